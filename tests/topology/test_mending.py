"""A topology in which something is wrong: read once where it is plain what is meant, twice where it is not."""

import pytest

from disagg_cli.topology.loading import read_topologies

SMALLEST = """\
name: demo
platform: h100
model: Qwen/Qwen3-8B
prefill: {tp: 2}
decode: {tp: 2, args: {page-size: 16}}
"""


@pytest.fixture
def loaded(tmp_path):
    """The specs and the sentences of a text."""

    def done(text):
        (tmp_path / "t.yaml").write_text(text)
        (one,) = read_topologies(tmp_path / "t.yaml", environment={})
        return one.specs, [f"{problem.place.line}: {problem.what}" for problem in one.problems]

    return done


def test_nothing_is_wrong(loaded):
    (spec,), said = loaded(SMALLEST)
    assert (spec.prefill[0].tp, said) == (2, [])


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("tp: 2", "tpp: 2"), ("tp: 2", "tp: '2'"), ("prefill:", "prefil:"), ("args:", "arg:"), ("h100", "H100")],
)
def test_what_is_plain_is_read_once(loaded, right, wrong):
    (spec,), said = loaded(SMALLEST.replace(right, wrong, 1))
    assert spec.model_dump() == loaded(SMALLEST)[0][0].model_dump()
    assert len(said) == 1


@pytest.mark.parametrize(
    ("right", "wrong", "differ"),
    [
        ("tp: 2", "tp: two", lambda spec: spec.prefill[0].tp),
        ("h100", "abacus", lambda spec: spec.platform),
        ("name: demo\n", "", lambda spec: spec.name),
        ("prefill: {tp: 2}\n", "", lambda spec: spec.prefill[0].tp),
        ("tp: 2", 'tp: "${NOT_SET}"', lambda spec: spec.prefill[0].tp),
    ],
)
def test_what_is_not_plain_is_read_twice_and_differently(loaded, right, wrong, differ):
    """So that whoever compares the two knows what depends on it. The rest is what was written."""
    specs, said = loaded(SMALLEST.replace(right, wrong, 1))
    assert len({differ(spec) for spec in specs}) == len(specs) == 2
    assert all(spec.decode[0].args == {"page-size": 16} for spec in specs)
    assert len(said) == 1


def test_a_problem_that_another_one_hid(loaded):
    """DP attention is looked at once the misspelt key is read."""
    _, said = loaded(SMALLEST.replace("tp: 2", "tpp: 4, dp: 3, dp_attention: true", 1))
    assert said == [
        "4: unknown key; did you mean `tp`?",
        "4: with dp_attention, tp 4 must be a multiple of dp 3",
    ]


def test_so_little_is_right_that_everything_is_made_up(loaded):
    specs, said = loaded("nothing: 1\nof: 2\nthis: 3\n")
    assert len(said) == 8  # three unknown keys, five that are missing
    assert len(specs) == 2
