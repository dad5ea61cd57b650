"""Random-weight models: the geometry that is asked for, the same files for the same key, and never half of them."""

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_cli.errors import UsageError
from disagg_cli.kv.models import layout_from_config
from disagg_cli.rehearsal.synthetic import FILES, WORDS, materialize
from disagg_cli.topology.synthetic import VOCABULARY, SyntheticModel

TINY = SyntheticModel(attention_heads=2, kv_heads=1, layers=1, head_dim=2)

geometries = st.builds(
    lambda kv, group, layers, half: SyntheticModel(
        attention_heads=kv * group, kv_heads=kv, layers=layers, head_dim=2 * half
    ),
    st.integers(1, 16),
    st.integers(1, 8),
    st.integers(1, 4),
    st.integers(1, 32),
)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The demo's model on disk."""
    return materialize(SyntheticModel(), tmp_path_factory.mktemp("cache"))


def test_the_demos_model(model):
    assert set(contents(model)) == set(FILES)
    assert model.name.startswith("qwen3-h8-kv4-l2-")


def test_the_same_geometry_and_seed_give_the_same_bytes(model, tmp_path):
    """Prefill and decode on two machines make their own copies."""
    assert contents(materialize(SyntheticModel(), tmp_path)) == contents(model)


def test_another_seed_is_another_model(tmp_path):
    first, second = (materialize(SyntheticModel(seed=seed), tmp_path) for seed in (0, 1))
    assert contents(first)["model.safetensors"] != contents(second)["model.safetensors"]


def test_a_model_is_written_once(tmp_path):
    first = materialize(TINY, tmp_path)
    written = (first / "model.safetensors").stat().st_mtime_ns
    assert materialize(TINY, tmp_path) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == written


def test_what_a_killed_launch_left_is_not_taken_for_a_model(tmp_path):
    (tmp_path / f".{TINY.key}-half").mkdir()
    (tmp_path / f".{TINY.key}-half" / "config.json").write_text("{")
    assert set(contents(materialize(TINY, tmp_path))) == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_a_model_that_lost_a_file_is_made_again(tmp_path, name):
    """Cleaners of temporary folders remove single files."""
    (materialize(TINY, tmp_path) / name).unlink()
    assert set(contents(materialize(TINY, tmp_path))) == set(FILES)


def test_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write a synthetic model"):
        materialize(TINY, tmp_path / "file")


def test_a_cache_that_is_full(tmp_path):
    """A real disk of 512 KiB: what writes weights has errors of its own for that."""
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", tmp_path], capture_output=True)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        with pytest.raises(UsageError, match=r"cannot write a synthetic model: .*No space left"):
            materialize(SyntheticModel(), tmp_path)
    finally:
        subprocess.run(["umount", "-l", tmp_path], check=True)


def test_two_launches_at_once(tmp_path):
    """Whenever the folder is there, it is whole; nothing is left beside it."""
    code = (
        "import sys; from pathlib import Path; from disagg_cli.rehearsal.synthetic import materialize;"
        "from disagg_cli.topology.synthetic import SyntheticModel;"
        f"print(sorted(p.name for p in materialize({TINY!r}, Path(sys.argv[1])).iterdir()))"
    )
    launches = [
        subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    while any(launch.poll() is None for launch in launches):
        if (tmp_path / TINY.key).exists():
            assert set(contents(tmp_path / TINY.key)) == set(FILES)
    assert [launch.communicate()[0] for launch in launches] == [f"{sorted(FILES)}\n"] * 2
    assert [path.name for path in tmp_path.iterdir()] == [TINY.key]


@given(geometries)
def test_any_geometry_is_what_the_plan_reads_from_it(model):
    layout = layout_from_config(model.config(), name="synthetic")
    assert (layout.total_kv_heads, layout.attention_heads) == (model.kv_heads, model.attention_heads)
    assert (layout.num_layers, layout.head_dim) == (model.layers, model.head_dim)


@given(geometries, geometries)
def test_every_geometry_has_a_key_of_its_own(one, other):
    assert (one.key == other.key) == (one == other)
    assert "/" not in one.key


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (4, 4), (8, 2), (12, 3)])
def test_weights_have_the_shapes_of_the_config(tmp_path, heads, kv_heads):
    safetensors = pytest.importorskip("safetensors")
    folder = materialize(SyntheticModel(attention_heads=heads, kv_heads=kv_heads, layers=1, head_dim=4), tmp_path)
    config = json.loads((folder / "config.json").read_text())
    with safetensors.safe_open(folder / "model.safetensors", framework="np") as weights:
        shapes = {name: tuple(weights.get_slice(name).get_shape()) for name in weights.keys()}  # noqa: SIM118
    hidden = config["hidden_size"]
    assert hidden == heads * 4
    assert shapes["model.layers.0.self_attn.k_proj.weight"] == (kv_heads * 4, hidden)
    assert shapes["model.layers.0.self_attn.q_proj.weight"] == (hidden, hidden)
    assert shapes["lm_head.weight"] == (VOCABULARY, hidden)


@pytest.fixture(scope="module")
def tokenizer(model):
    tokenizers = pytest.importorskip("tokenizers")
    return tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))


@pytest.mark.parametrize(
    "text", ["Question: Tom buys 3 apples.\nAnswer:", "", " ", "a  b\t\n", "1,234.56 €", "数学 🍎", "<|im_end|> x"]
)
def test_text_comes_back(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_every_token_is_in_the_vocabulary(tokenizer):
    assert tokenizer.get_vocab_size() <= VOCABULARY
    assert tokenizer.token_to_id("<|im_end|>") == SyntheticModel().config()["eos_token_id"]


def test_words_of_word_problems_are_short(tokenizer):
    words = WORDS.split()
    assert len(tokenizer.encode(" ".join(words)).ids) < 2 * len(words)
