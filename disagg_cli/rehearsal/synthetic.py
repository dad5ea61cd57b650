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
    import numpy as np
    from safetensors.numpy import save_file

    random = np.random.default_rng(model.seed)

    def matrix(rows: int, columns: int) -> Any:
        # Wide enough that attention is far from uniform: a misplaced KV head moves log-probabilities by several nats.
        return (random.standard_normal((rows, columns)) * 0.3).astype(np.float32)

    def ones(size: int) -> Any:
        return np.ones(size, dtype=np.float32)

    hidden, queries, keys = model.hidden_size, model.hidden_size, model.kv_heads * model.head_dim
    weights = {"model.embed_tokens.weight": matrix(VOCABULARY, hidden)}
    for layer in range(model.layers):
        prefix = f"model.layers.{layer}."
        weights |= {
            prefix + "input_layernorm.weight": ones(hidden),
            prefix + "post_attention_layernorm.weight": ones(hidden),
            prefix + "self_attn.q_proj.weight": matrix(queries, hidden),
            prefix + "self_attn.k_proj.weight": matrix(keys, hidden),
            prefix + "self_attn.v_proj.weight": matrix(keys, hidden),
            prefix + "self_attn.o_proj.weight": matrix(hidden, queries),
            prefix + "self_attn.q_norm.weight": ones(model.head_dim),
            prefix + "self_attn.k_norm.weight": ones(model.head_dim),
            prefix + "mlp.gate_proj.weight": matrix(hidden, hidden),
            prefix + "mlp.up_proj.weight": matrix(hidden, hidden),
            prefix + "mlp.down_proj.weight": matrix(hidden, hidden),
        }
    weights |= {"model.norm.weight": ones(hidden), "lm_head.weight": matrix(VOCABULARY, hidden)}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
