"""What stands between the file and the topology: extends, --set and --unset, ${VAR}, variants and matrices, 1P4D."""

import pytest

from disagg_cli.errors import UsageError
from disagg_cli.topology.loading import load_topology, read_topologies
from disagg_cli.topology.merging import Document, change

SMALLEST = """\
name: demo
platform: cpu
model: synthetic
prefill: {tp: 2}
decode: {workers: 2}
"""


@pytest.fixture
def write(tmp_path):
    """Write files beside each other; the last one's path."""

    def written(**texts):
        for name, text in texts.items():
            (tmp_path / f"{name}.yaml").write_text(text)
        return tmp_path / f"{name}.yaml"

    return written


@pytest.fixture
def complaint(tmp_path):
    """What is said about a call, without the folder."""

    def said(call, *args, **options):
        with pytest.raises(UsageError) as caught:
            call(*args, **options)
        return str(caught.value.what).replace(f"{tmp_path}/", "")

    return said


def test_a_file_extends_another(write):
    spec = load_topology(write(base=SMALLEST, t="extends: base.yaml\nname: mine\ndecode: {tp: 2}\n"))
    assert (spec.name, spec.prefill[0].tp) == ("mine", 2)
    assert (spec.decode[0].workers, spec.decode[0].tp) == (2, 2)


def test_the_name_of_a_base_that_is_misspelt(write):
    with pytest.raises(UsageError) as caught:
        load_topology(write(base=SMALLEST, t="name: x\nextends: bas.yaml\n"))
    assert (caught.value.place.line, caught.value.fix) == (2, "did you mean `base.yaml`?")


def test_links_that_go_round(write, tmp_path):
    (tmp_path / "a.yaml").symlink_to("b.yaml")
    (tmp_path / "b.yaml").symlink_to("a.yaml")
    with pytest.raises(UsageError, match=r"t\.yaml:1:1: extends: (no such file|cannot read)"):
        load_topology(write(t="extends: a.yaml\n"))


def test_of_several_bases_the_later_wins(write):
    file = write(a=SMALLEST, b="router: {port: 9000}\nname: b\n", t="extends: [a.yaml, b.yaml]\n")
    spec = load_topology(file)
    assert (spec.name, spec.router.port) == ("b", 9000)


def test_a_list_replaces_a_mapping(write):
    spec = load_topology(write(base=SMALLEST, t="extends: base.yaml\ndecode: [{tp: 1}, {tp: 2}]\n"))
    assert [pool.workers for pool in spec.decode] == [1, 1]


def test_places_name_the_file_that_says_it(write, tmp_path):
    spec = load_topology(write(base=SMALLEST, t="extends: base.yaml\ndecode: {tp: 2}\n"))
    assert str(spec.places.at("decode.tp")) == f"{tmp_path}/t.yaml:2:10"
    assert str(spec.places.at("decode[0].workers")) == f"{tmp_path}/base.yaml:5:10"
    assert str(spec.places.at("decode.args.page-size")) == f"{tmp_path}/t.yaml:2:1"


def test_a_wrong_value_in_a_base_is_named_there(write, complaint):
    file = write(base=SMALLEST.replace("tp: 2", "tp: 0"), t="extends: base.yaml\n")
    assert complaint(load_topology, file) == "base.yaml:4:11: prefill.tp: expected greater than 0, got 0"


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ({"t": "extends: t.yaml\n"}, "t.yaml:1:1: extends: t.yaml extends itself, or more than 8 files deep"),
        ({"a": "extends: t.yaml\n", "t": "extends: a.yaml\n"}, "a.yaml:1:1: extends: t.yaml extends itself"),
        ({"a": "name: x\n", "t": f"extends: [{', '.join(['a.yaml'] * 99)}]\n"}, "t.yaml:1:1: extends: "),
        ({"t": "extends: none.yaml\n"}, "t.yaml:1:1: extends: no such file: none.yaml"),
        ({"t": "extends:\n"}, "t.yaml:1:1: extends: expected a file name"),
        ({"t": "extends: {a: 1}\n"}, "t.yaml:1:1: extends: expected a file name, or a list of them"),
    ],
)
def test_bases_that_cannot_be(write, complaint, texts, said):
    assert complaint(load_topology, write(**texts)).startswith(said)


def test_setting_and_taking_away(write):
    file = write(t=SMALLEST + "engine: {args: {page-size: 64}}\n")
    spec = load_topology(file, sets=["prefill.tp=4", "decode.args.log-level=debug"], unsets=["engine.args.page-size"])
    assert (spec.prefill[0].tp, spec.decode[0].args, spec.engine.args) == (4, {"log-level": "debug"}, {})
    assert str(spec.places.at("prefill.tp")) == "--set prefill.tp"


def test_setting_in_a_list_means_every_pool(write):
    file = write(t=SMALLEST.replace("{workers: 2}", "[{tp: 1}, {tp: 2}]"))
    assert [pool.workers for pool in load_topology(file, sets=["decode.workers=3"]).decode] == [3, 3]
    assert [pool.tp for pool in load_topology(file, sets=["decode[1].tp=4"]).decode] == [1, 4]


def test_setting_beside_a_short_form(write):
    spec = load_topology(write(t=SMALLEST.replace("synthetic", "a/b")), sets=["model.served_name=c"])
    assert (spec.model.path, spec.model.served_name) == ("a/b", "c")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sets": ["prefill.tp"]}, "--set prefill.tp: expected path=value, such as prefill.tp=8"),
        ({"sets": ["prefill.tp=two"]}, "--set prefill.tp: prefill.tp: expected a whole number, got 'two'"),
        ({"sets": ["name.x=1"]}, "name.x: `x` cannot be set inside 'demo'"),
        ({"sets": ["decode[3].tp=1"]}, "decode[3].tp: there is no item 3 here"),
        ({"unsets": ["router.port"]}, "--unset router.port: nothing is set there"),
        ({"variant": "x"}, "t.yaml has no variant 'x'"),
    ],
)
def test_changes_that_cannot_be(write, complaint, options, said):
    assert complaint(load_topology, write(t=SMALLEST), **options) == said


VARIABLE = SMALLEST.replace("tp: 2", 'tp: "${TP}"')


def test_a_variable_takes_the_type_that_it_reads_as(write):
    assert load_topology(write(t=VARIABLE), environment={"TP": "4"}).prefill[0].tp == 4


def test_a_variable_inside_text_and_its_default(write):
    text = SMALLEST.replace("demo", '"run-${WHO:-x}"') + 'engine: {env: {A: "${HOME}/a", B: "$${B}", C: "${N}"}}\n'
    spec = load_topology(write(t=text), environment={"HOME": "/home/u", "N": "010"})
    assert spec.name == "run-x"
    assert spec.engine.env == {"A": "/home/u/a", "B": "${B}", "C": "010"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (VARIABLE, "t.yaml:4:15: ${TP} is not set in the environment; export it, or write ${TP:-default}"),
        (VARIABLE.replace("${TP}", "${1}"), "t.yaml:4:15: expected ${NAME} or ${NAME:-default}"),
    ],
)
def test_a_variable_that_is_not_set(write, complaint, text, said):
    assert complaint(load_topology, write(t=text), environment={}).startswith(said)


def names(file, **options):
    return [(one.variant, one.spec.prefill[0].tp) for one in read_topologies(file, **options)]


def test_variants(write):
    file = write(t=SMALLEST + "variants: {wide: {prefill: {tp: 4}}, named: {name: other}}\n")
    assert names(file) == [(None, 2), ("wide", 4), ("named", 2)]
    assert names(file, variant="wide") == [("wide", 4)]
    assert load_topology(file).prefill[0].tp == 2
    assert load_topology(file, variant="wide").prefill[0].tp == 4


def test_a_matrix_is_every_combination(write):
    file = write(t=SMALLEST + "matrix: {prefill.tp: [1, 2], decode.args.page-size: [16, 64]}\n")
    assert names(file) == [(f"prefill.tp={tp},decode.args.page-size={page}", tp) for tp in (1, 2) for page in (16, 64)]


def test_a_wrong_value_of_a_matrix_is_named_there(write, tmp_path):
    (one,) = read_topologies(write(t=SMALLEST + "matrix: {prefill.tp: [0]}\n"))
    assert [problem.sentence for problem in one.problems] == [
        f"{tmp_path}/t.yaml:6:23: prefill.tp: expected greater than 0, got 0"
    ]


def test_a_null_takes_away_what_the_base_has(write):
    """As `--unset` does: a variant could not leave a flag out otherwise."""
    base = SMALLEST + "engine: {args: {page-size: 64, log-level: debug}}\neval: {gsm8k: {}}\n"
    more = "variants: {plain: {engine: {args: {page-size: null}}, eval: null}}\n"
    spec = load_topology(write(t=base + more), variant="plain")
    assert (spec.engine.args, spec.eval.gsm8k) == ({"log-level": "debug"}, None)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("matrix: [1]\n", "t.yaml:6:1: matrix: expected fields with a list of values each"),
        ("matrix: {a: 1}\n", "t.yaml:6:1: matrix: expected fields with a list of values each"),
        ("variants: [a]\n", "t.yaml:6:1: variants: expected a mapping of names to changes"),
        (f"matrix: {{{', '.join(f'a{n}: [1, 2]' for n in range(10))}}}\n", "t.yaml:6:1: matrix: 1,024 combinations"),
    ],
)
def test_variants_that_cannot_be(write, complaint, more, said):
    file = write(t=SMALLEST + more)
    assert complaint(load_topology, file).startswith(said)
    (one,) = read_topologies(file)
    assert len(one.specs) == 1  # the rest can be judged all the same


SHORT = "name: demo\nplatform: cpu\nmodel: synthetic\ntopology: 1P4D\n"


def test_a_topology_in_short(write):
    spec = load_topology(write(t=SHORT + "prefill: {tp: 4}\n"))
    assert [(pool.workers, pool.tp) for pool in (*spec.prefill, *spec.decode)] == [(1, 4), (4, 1)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SHORT.replace("1P4D", "1PD"), "topology: expected something like 1P4D, got '1PD'"),
        (SHORT + "decode: {workers: 2}\n", "topology: 1P4D, and decode.workers is 2"),
        (SHORT + "decode: [{tp: 1}]\n", "topology: 1P4D is about one pool for each role, and decode has a list"),
    ],
)
def test_a_topology_in_short_that_contradicts(write, complaint, text, said):
    assert complaint(load_topology, write(t=text)).endswith(said)


@pytest.mark.parametrize(
    "text",
    [
        *("engine.env.HF_TOKEN=hf_x", "prefill.env.DB_PWD=x", "router.args.api-key=x"),
        *("engine.env={HF_TOKEN: hf_x}", "router={args: {api-key: x}}", "decode=[{tp: 1, args: {admin-api-key: x}}]"),
    ],
)
def test_a_secret_is_not_taken_from_a_command_line(text):
    with pytest.raises(UsageError, match="a secret does not belong on a command line"):
        change(Document(file="t.yaml", data={}, known={}), [text])


def test_a_flag_about_tokens_is_no_secret():
    changed = change(Document(file="t.yaml", data={}, known={}), ["engine.args.max-total-tokens=4096"])
    assert changed.data == {"engine": {"args": {"max-total-tokens": 4096}}}
