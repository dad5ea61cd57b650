"""The one module of `kv` that reaches out: it fetches a model's config.json, where nothing at hand has it."""

import logging
from pathlib import Path

from disagg_cli.errors import UsageError
from disagg_cli.kv.models import FIX


def download_config(model: str) -> Path:
    """Fetch a hub model's config.json, or find it in the cache. Raises UsageError where neither works."""
    try:
        from huggingface_hub import errors, hf_hub_download
    except ImportError:
        raise UsageError(
            f"{model!r} is no packaged model, and huggingface_hub, which would fetch it, is not installed",
            fix=f"pip install huggingface_hub, or give {FIX}",
        ) from None
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it logs each of its retries
    try:
        return Path(hf_hub_download(model, "config.json"))
    except errors.LocalEntryNotFoundError as error:
        what, fix = (
            "the Hugging Face hub cannot be reached, and the cache has no copy",
            "go online once, or give a folder",
        )
        raise UsageError(f"cannot fetch the config.json of {model!r}: {what}", fix=fix) from error
    except errors.GatedRepoError as error:
        fix = "accept its terms on the hub and log in (`hf auth login`)"
        raise UsageError(f"the model {model!r} is gated on the Hugging Face hub", fix=fix) from error
    except (errors.RepositoryNotFoundError, errors.EntryNotFoundError) as error:
        raise UsageError(f"no KV layout for model {model!r}: the hub has no such config.json", fix=FIX) from error
    except Exception as error:
        raise UsageError(f"cannot fetch the config.json of {model!r}: {error}", fix=FIX) from error
