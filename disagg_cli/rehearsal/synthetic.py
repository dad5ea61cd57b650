"""Random-weight models small enough for CPUs, with the attention geometry that is asked for.

They load in SGLang like any model: config.json, model.safetensors, a tokenizer. Their answers mean nothing; that every
KV byte reached the right rank shows in them, because every KV head changes the logits.
"""

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from disagg_cli.errors import UsageError
from disagg_cli.topology.synthetic import VOCABULARY, SyntheticModel

FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
# Words that word problems are made of become tokens; everything else is spelled in bytes.
WORDS = (
    "Question Answer the a of and to in is are was has have had each how many much does did do she he they it her "
    "his for from with at on per day days week hour hours minute minutes dollars cents costs price buys sells "
    "gives takes makes more than less twice half left total all together number apples boxes bags books pages "
    "miles people students children first second then if same every other one two three four five six seven eight "
    "nine ten Tom Anna "
)


def materialize(model: SyntheticModel, cache: Path) -> Path:
    """Return the folder that holds the model, written on first use. UsageError if the cache cannot be written.

    Written beside its place and renamed, so that two launches, or one that is killed, never leave half a model.
    """
    target = cache / model.key
    if _is_whole(target):
        return target
    try:
        cache.mkdir(parents=True, exist_ok=True)
        _write(model, target)
    except OSError as error:
        if not _is_whole(target):  # else another launch was faster
            raise UsageError(f"cannot write a synthetic model: {error}", where=str(cache)) from None
    return target


def _is_whole(folder: Path) -> bool:
    return all((folder / name).exists() for name in FILES)


def _write(model: SyntheticModel, target: Path) -> None:
    draft = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
    try:
        _write_config(model, draft)
        _write_tokenizer(draft)
        _write_weights(model, draft)
        draft.chmod(0o755)
        if target.exists() and not _is_whole(target):  # something cleans up single files here
            shutil.rmtree(target)
        draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _write_config(model: SyntheticModel, folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(model.config(), indent=2))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, "pad_token_id": 0}))


def _write_tokenizer(folder: Path) -> None:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # one thread: the same merges on every machine
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(  # type: ignore[no-untyped-call]
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([f" {word}" for word in WORDS.split()], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 32768,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))


def _write_weights(model: SyntheticModel, folder: Path) -> None:
    from safetensors.numpy import save

    # its save_file has errors of its own for a full disk
    (folder / "model.safetensors").write_bytes(save(_weights(model), metadata={"format": "pt"}))


def _weights(model: SyntheticModel) -> dict[str, Any]:
    import numpy as np

    random = np.random.default_rng(model.seed)

    def matrix(rows: int, columns: int) -> Any:
        # Wide enough that attention is far from uniform: a misplaced KV head moves log-probabilities by several nats.
        return (random.standard_normal((rows, columns)) * 0.3).astype(np.float32)

    hidden = model.hidden_size
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (VOCABULARY, hidden)}
    for layer in range(model.layers):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in _layer(model).items()}
    shapes |= {"model.norm": (hidden,), "lm_head": (VOCABULARY, hidden)}
    return {
        f"{name}.weight": np.ones(shape, dtype=np.float32) if len(shape) == 1 else matrix(*shape)
        for name, shape in shapes.items()
    }


def _layer(model: SyntheticModel) -> dict[str, tuple[int, ...]]:
    hidden = model.hidden_size
    attention = _latent(model) if model.family == "deepseek" else _heads(model)
    return {
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
        **{f"self_attn.{name}": shape for name, shape in attention.items()},
        "mlp.gate_proj": (hidden, hidden),
        "mlp.up_proj": (hidden, hidden),
        "mlp.down_proj": (hidden, hidden),
    }


def _heads(model: SyntheticModel) -> dict[str, tuple[int, ...]]:
    hidden, queries, keys = model.hidden_size, model.attention_heads * model.head_dim, model.kv_heads * model.head_dim
    norms = {} if model.family == "llama" else {"q_norm": (model.head_dim,), "k_norm": (model.head_dim,)}
    return {
        "q_proj": (queries, hidden),
        "k_proj": (keys, hidden),
        "v_proj": (keys, hidden),
        "o_proj": (hidden, queries),
        **norms,
    }


def _latent(model: SyntheticModel) -> dict[str, tuple[int, ...]]:
    hidden, heads, size, rank = model.hidden_size, model.attention_heads, model.head_dim, model.rank
    return {
        "q_a_proj": (rank, hidden),
        "q_a_layernorm": (rank,),
        "q_b_proj": (heads * (size + model.rope_dim), rank),
        "kv_a_proj_with_mqa": (rank + model.rope_dim, hidden),
        "kv_a_layernorm": (rank,),
        "kv_b_proj": (heads * 2 * size, rank),
        "o_proj": (hidden, heads * size),
    }
