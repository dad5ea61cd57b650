"""Wrong YAML: file, line, column, field, what was expected, and the nearest right name. All of it at once."""

import pytest

from disagg_cli.errors import UsageError
from disagg_cli.topology.complaints import SHAPES
from disagg_cli.topology.loading import MAX_BYTES, load_topology
from disagg_cli.topology.platforms import platforms

SMALLEST = """\
name: demo
platform: cpu
model: synthetic
prefill: {tp: 2}
decode: {workers: 2}
"""


@pytest.fixture
def load(tmp_path):
    """Load a text as t.yaml."""

    def loaded(text):
        file = tmp_path / "t.yaml"
        file.write_text(text)
        return load_topology(file)

    return loaded


@pytest.fixture
def complaint(load, tmp_path):
    """What is said about a text, without its folder."""

    def said(text):
        with pytest.raises(UsageError) as caught:
            load(text)
        return caught.value.what.replace(f"{tmp_path}/", "")

    return said


def test_the_smallest_topology(load):
    spec = load(SMALLEST)
    assert (spec.name, spec.platform) == ("demo", "cpu")
    assert (spec.prefill[0].tp, spec.decode[0].workers) == (2, 2)
    assert spec.model.synthetic.kv_heads == 4


def test_a_misspelt_field(complaint):
    said = complaint(SMALLEST.replace("tp: 2", "tpp: 2"))
    assert said == "t.yaml:4:11: prefill.tpp: unknown key; did you mean `tp`?"


def test_a_field_like_no_other(complaint):
    said = complaint(SMALLEST + "connector: {speed: 3}\n")
    assert said == "t.yaml:6:13: connector.speed: unknown key; known: backend, overlay"


def test_a_missing_field(complaint):
    said = complaint(SMALLEST.replace("decode: {workers: 2}\n", ""))
    assert said == "t.yaml:1:1: decode: this key is missing"


GPUS = SMALLEST.replace("cpu", "h100")


def test_a_missing_field_further_down(complaint):
    assert complaint(GPUS + "executor: {ssh: {}}\n") == "t.yaml:6:12: executor.ssh.hosts: this key is missing"


def test_a_misspelt_key_that_has_to_be_there_is_not_missing(complaint):
    said = complaint(SMALLEST.replace("prefill:", "prefil:"))
    assert said == "t.yaml:4:1: prefil: unknown key; did you mean `prefill`?"


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("TP", "tp"),
        ("tp-size", "tp"),
        ("tensor_parallel_size", "tp"),
        ("enable-dp-attention", "dp_attention"),
        ("replicas", "workers"),
        ("Workers", "workers"),
        ("environment", "env"),
    ],
)
def test_keys_by_the_names_that_others_give_them(complaint, key, meant):
    value = "{A: x}" if meant == "env" else "true" if meant == "dp_attention" else 1
    said = complaint(SMALLEST.replace("{tp: 2}", f"{{{key}: {value}}}"))
    assert said == f"t.yaml:4:11: prefill.{key}: unknown key; did you mean `{meant}`?"


def test_a_flag_beside_args(complaint):
    said = complaint(SMALLEST.replace("tp: 2", "tp: 2, page_size: 64"))
    assert said.endswith("unknown key; flags of SGLang go under `args`: {args: {page-size: ...}}")


def test_all_problems_at_once_in_the_files_order(complaint):
    said = complaint(
        "name: demo\n"
        "platform: cpuu\n"
        "model: synthetic\n"
        "prefill: {tp: 0}\n"
        "decode:\n"
        "  - {tp: two}\n"
        "  - {tp: 1, dpp: 3}\n"
        "router: {port: 70000}\n"
    )
    assert said.splitlines() == [
        "t.yaml has 5 problems:",
        "  t.yaml:2:1: platform: unknown platform 'cpuu'; did you mean `cpu`? known: " + ", ".join(platforms()),
        "  t.yaml:4:11: prefill.tp: expected greater than 0, got 0",
        "  t.yaml:6:6: decode[0].tp: expected a whole number, got 'two'",
        "  t.yaml:7:13: decode[1].dpp: unknown key; did you mean `pp`?",
        "  t.yaml:8:10: router.port: expected less than or equal to 65535, got 70000",
    ]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("engine:\n", "6:1: engine: expected a mapping, such as {args: {page-size: 64}}, got nothing"),
        (
            "engine: {args: {page-size: }}\n",
            "6:17: engine.args.page-size: expected text, a number, true, false or a list",
        ),
        ("engine: {args: {x: []}}\n", "6:17: engine.args.x: expected text, a number, true, false or a list"),
        (
            "engine: {args: {x: {a: 1}}}\n",
            "6:17: engine.args.x: expected text, a number, true, false or a list; write",
        ),
        ("engine: {args: {x: 1, --x: 2}}\n", "6:23: `--x` stands twice in the same mapping (as `x`)"),
        ("engine: {args: {x: 2020-99-01}}\n", "6:20: month must be in 1..12"),
        ('engine: {args: {x: "a\\0b"}}\n', "6:17: engine.args.x: expected text without NUL characters"),
        ("engine: {env: {A: }}\n", "6:16: engine.env.A: expected text, got nothing"),
        ("engine: {args: {tp_size: 2}}\n", "6:17: engine.args.tp_size: disagg sets --tp-size; say it with `tp`"),
        ("router: {args: {--port: 2}}\n", "6:17: router.args.--port: disagg sets --port; say it with `router.port`"),
        (
            "connector: {backend: mooncak}\n",
            "6:13: connector.backend: expected 'nixl' or 'mooncake', got 'mooncak'; did you mean `mooncake`?",
        ),
        ("connector: {overlay: on}\n", "6:13: connector.overlay: expected 'auto', 'off' or 'require', got true"),
        (
            "executor: k8s\n",
            "6:1: executor: unknown executor 'k8s'; known: `local`, `slurm`, `{ssh: {hosts: [a, b]}}`",
        ),
        ("platform2: h100\n", "6:1: platform2: unknown key; did you mean `platform`?"),
        ("executor: {local: {}, ssh: {hosts: [a]}}\n", "6:1: executor: expected one of `local`, `ssh` and `slurm`"),
        ("probe: {timeout_s: .inf}\n", "6:9: probe.timeout_s: expected a finite number, got inf"),
        ("eval: {gsm8k: {questoins: 3}}\n", "6:16: eval.gsm8k.questoins: unknown key; did you mean `questions`?"),
        ("1: 2\n", "6:1: 1: unknown key"),
        ("? [a]\n: 2\n", "6:3: a key must be plain text"),
        ("name: again\n", "6:1: `name` stands twice in the same mapping"),
        ("engine: *nobody\n", "6:9: found undefined alias"),
        ("engine: {<<: 3}\n", "6:14: expected a mapping, or a list of mappings, after `<<`"),
        ("engine: {args: {x: !python/name:os.system y}}\n", "6:20: could not determine a constructor for the tag"),
        ("engine:\n\targs: {}\n", "7:1: found character that cannot start any token"),
        ("engine: \x01\n", "6:1: control characters are not allowed (#x0001)"),
        ("---\nname: another\n", "6:1: but found another document"),
    ],
)
def test_one_wrong_line(complaint, more, said):
    assert complaint(SMALLEST + more).startswith(f"t.yaml:{said}")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("tp: true", "expected a whole number, got true"),  # YAML's `yes`; pydantic would make 1 of it
        ("tp: '2'", "expected a whole number, got '2'; did you mean 2?"),
        ("tp: 2.0", "expected a whole number, got 2.0; did you mean 2?"),
        ("tp: 1:30", "expected a whole number, got '1:30'"),  # YAML 1.1 reads 90
        ("tp: 010", "expected a whole number, got '010'; did you mean 10?"),
        ("tp: ", "expected a whole number, got nothing"),
        ("tp: {a: 1}", "expected a whole number"),
    ],
)
def test_values_are_not_converted(complaint, wrong, said):
    assert complaint(SMALLEST.replace("tp: 2", wrong)) == f"t.yaml:4:11: prefill.tp: {said}"


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("{}", "3:1: model: expected either `path` (a hub id or a folder) or `synthetic`"),
        ("{path: a, synthetic: {}}", "3:1: model: expected either `path` (a hub id or a folder) or `synthetic`"),
        ("''", "3:1: model: expected text that is not empty, got ''"),
        ("{synthetic: {kv_head: 4}}", "3:21: model.synthetic.kv_head: unknown key; did you mean `kv_heads`?"),
        (
            "{synthetic: {kv_heads: 3}}",
            "3:21: model.synthetic.kv_heads: attention_heads 8 must be a multiple of kv_heads 3",
        ),
    ],
)
def test_a_wrong_model(complaint, model, said):
    assert complaint(SMALLEST.replace("synthetic", model)) == f"t.yaml:{said}"


@pytest.mark.parametrize("name", ["no", "123", "../x", "a b", "-x", "''"])
def test_a_name_becomes_a_folder(complaint, name):
    assert complaint(SMALLEST.replace("demo", name)).startswith("t.yaml:1:1: name: expected ")


def test_dp_attention_divides_tp(complaint):
    said = complaint(SMALLEST.replace("tp: 2", "tp: 4, dp: 3, dp_attention: true"))
    assert said == "t.yaml:4:18: prefill.dp: with dp_attention, tp 4 must be a multiple of dp 3"


@pytest.mark.parametrize(
    ("executor", "said"),
    [
        ("{ssh: {hosts: a}}", "6:18: executor.ssh.hosts: expected a list, got 'a'; did you mean ['a']?"),
        ("{ssh: {hosts: []}}", "6:18: executor.ssh.hosts: expected at least one item"),
        ("{ssh: {hosts: [a, me@a]}}", "6:18: executor.ssh.hosts: expected each host once; more than once: a"),
        (
            "{ssh: {hosts: ['-oProxyCommand=x']}}",
            "6:26: executor.ssh.hosts[0]: expected a host name or address",
        ),
        ("{ssh: {hosts: ['[::1]']}}", "6:26: executor.ssh.hosts[0]: expected a host name or address, without brackets"),
        ("{ssh: {hosts: ['a:22']}}", "6:26: executor.ssh.hosts[0]: 'a:22' is no host name or address; a port of ssh"),
        ("{ssh: [a, b]}", "6:12: executor.ssh: expected a mapping, such as {hosts: [a, b]}"),
        ("ssh", "6:1: executor: ssh has to be told which hosts: `{ssh: {hosts: [a, b]}}`"),
        ("slrum", "6:1: executor: unknown executor 'slrum'; did you mean `slurm`?"),
        ("{slurm: {args: {nodes: 3}}}", "6:27: executor.slurm.args.nodes: disagg sets --nodes; say it with `executor"),
    ],
)
def test_hosts(complaint, executor, said):
    assert complaint(GPUS + f"executor: {executor}\n").startswith(f"t.yaml:{said}")


def test_a_time_needs_no_quotes(load):
    """YAML 1.1 would make 5400 of it, which Slurm takes for minutes."""
    assert load(GPUS + "executor: {slurm: {time: 1:30:00}}\n").executor.slurm.time == "1:30:00"


def test_an_address_of_no_host(complaint):
    said = complaint(SMALLEST + "executor: {ssh: {hosts: [a], addresses: {b: 10.0.0.1}}}\n")
    assert said == "t.yaml:6:30: executor.ssh.addresses: addresses of what is none of the hosts: b"


@pytest.mark.parametrize("text", ["", "# nothing\n", "hello\n", "- name: demo\n", "&a [*a]\n"])
def test_no_mapping(complaint, text):
    assert complaint(text) == "t.yaml:1:1: expected a mapping with keys such as `name` and `prefill`"


def test_one_pool_or_several(load):
    one = load(SMALLEST.replace("{workers: 2}", "{tp: 1}")).decode
    several = load(SMALLEST.replace("{workers: 2}", "[{tp: 1}, {workers: 2, tp: 4}]")).decode
    assert [pool.tp for pool in one] == [1]
    assert [(pool.workers, pool.tp) for pool in several] == [(1, 1), (2, 4)]


@pytest.mark.parametrize(
    ("pools", "said"),
    [
        ("[]", "expected at least one item"),
        ("4", f"expected {SHAPES['decode']}, got 4"),
    ],
)
def test_no_pool(complaint, pools, said):
    assert complaint(SMALLEST.replace("{workers: 2}", pools)) == f"t.yaml:5:1: decode: {said}"


@pytest.mark.parametrize(("written", "read"), [("off", "off"), ("'off'", "off"), ("auto", "auto")])
def test_overlay_off_is_a_word(load, written, read):
    assert load(SMALLEST + f"connector: {{overlay: {written}}}\n").connector.overlay == read


def test_flags_are_spelt_as_sglang_does(load):
    args = load(SMALLEST + "engine: {args: {--page_size: 64, trust-remote-code: true}}\n").engine.args
    assert args == {"page-size": 64, "trust-remote-code": True}


def test_several_values_of_one_flag(load):
    assert load(SMALLEST + "engine: {args: {cuda-graph-bs: [1, 2, 4]}}\n").engine.args == {"cuda-graph-bs": (1, 2, 4)}


def test_values_of_flags_are_passed_on_as_written(load):
    args = load(SMALLEST + "engine: {args: {a: 0.80, b: 64, c: 1e-3, d: 010, e: 1:30, f: 12e34}}\n").engine.args
    assert args == {"a": "0.80", "b": 64, "c": "1e-3", "d": "010", "e": "1:30", "f": "12e34"}


def test_a_fraction_with_an_exponent(load):
    assert load(SMALLEST + "probe: {timeout_s: 1e2}\n").probe.timeout_s == 100


def test_environment_is_verbatim(load):
    """YAML would read 010 as 8 and 1.10 as 1.1."""
    env = load(SMALLEST + "engine: {env: {A: 010, B: 1.10, C: 1_000, D: text, E: yes}}\n").engine.env
    assert env == {"A": "010", "B": "1.10", "C": "1_000", "D": "text", "E": "yes"}


def test_an_anchor_is_used_twice(load):
    spec = load(SMALLEST.replace("{tp: 2}", "{args: &shared {page-size: 64}}") + "engine: {args: *shared}\n")
    assert spec.engine.args == spec.prefill[0].args == {"page-size": 64}


def test_a_merge_key_is_overridden(load):
    """The merged mapping is used a second time, as it stands: PyYAML changes it in place while merging."""
    spec = load(
        "name: demo\n"
        "platform: cpu\n"
        "model: synthetic\n"
        "prefill: &base {tp: 4, args: {page-size: 1}}\n"
        "decode:\n"
        "  - &two {<<: *base, tp: 2}\n"
        "  - {<<: *two, tp: 1}\n"
        "  - *two\n"
    )
    assert [pool.tp for pool in spec.decode] == [2, 1, 2]
    assert all(pool.args == {"page-size": 1} for pool in spec.decode)


def test_of_several_merged_mappings_the_first_wins(load):
    merge = "{<<: [{tp: 4}, {tp: 2, workers: 3}]}"
    (pool,) = load(SMALLEST.replace("{workers: 2}", merge)).decode
    assert (pool.tp, pool.workers) == (4, 3)


def test_a_wrong_value_that_was_merged_stands_where_it_was_written(complaint):
    said = complaint(SMALLEST.replace("{workers: 2}", "{<<: {tp: 0}}"))
    assert said == "t.yaml:5:15: decode.tp: expected greater than 0, got 0"


def nested(opening, closing, times):
    return f"engine: {opening * times}1{closing * times}\n"


def bomb(line):
    return "l0: &l0 {x: 1}\n" + "".join(line.format(n=n, ten=", ".join([f"*l{n - 1}"] * 10)) for n in range(1, 9))


@pytest.mark.timeout(5)
@pytest.mark.parametrize(
    "text",
    [
        pytest.param(bomb("l{n}: &l{n} [{ten}]\n"), id="billion laughs"),
        pytest.param(bomb("l{n}: &l{n} {{<<: [{ten}]}}\n"), id="billion merges"),
        pytest.param(SMALLEST + "engine: &a {args: *a}\n", id="mapping in itself"),
        pytest.param(SMALLEST + "eval: &a [*a]\n", id="list in itself"),
        pytest.param("&a\nname: demo\n<<: *a\n", id="merged into itself"),
        pytest.param(SMALLEST + nested("[", "]", 100), id="deep lists"),
        pytest.param(SMALLEST + nested("{a: ", "}", 100), id="deep mappings"),
    ],
)
def test_values_without_end(complaint, text):
    assert "too many or too deep values" in complaint(text)


@pytest.mark.timeout(5)
@pytest.mark.parametrize("brackets", [("[", "]"), ("{a: ", "}")])
def test_deeper_than_the_parser_goes(complaint, brackets):
    assert complaint(SMALLEST + nested(*brackets, 100_000)).startswith("t.yaml")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match=r"no such file: .*/none\.yaml"):
        load_topology(tmp_path / "none.yaml")


def test_a_folder(tmp_path):
    with pytest.raises(UsageError, match=f"not a file: {tmp_path}"):
        load_topology(tmp_path)


def test_a_binary_file(tmp_path):
    (tmp_path / "t.yaml").write_bytes(b"name: \xff\xfe\x00")
    with pytest.raises(UsageError, match=r"t\.yaml:1:1: not UTF-8 text \(byte 6\)"):
        load_topology(tmp_path / "t.yaml")


def test_a_file_of_two_megabytes(tmp_path):
    (tmp_path / "t.yaml").write_text("# x\n" * (MAX_BYTES // 2))
    with pytest.raises(UsageError, match=r"is 2,097,152 bytes; a topology has at most 1,048,576"):
        load_topology(tmp_path / "t.yaml")


@pytest.mark.parametrize("text", ["\ufeff" + SMALLEST, SMALLEST.replace("\n", "\r\n")])
def test_files_from_windows(load, text):
    assert load(text).name == "demo"


def test_a_slip_of_the_finger(complaint):
    """A thousand workers too many are found at once, not placed one by one."""
    said = complaint(SMALLEST.replace("workers: 2", "workers: 4000"))
    assert said == "t.yaml:5:1: decode: 4,001 workers with 4,002 ranks; at most 3,000 and 16,384"


@pytest.mark.parametrize(
    ("value", "kind"), [("!!bool abc", "bool"), ("!!timestamp abc", "timestamp"), ('!!int ""', "int")]
)
def test_a_tag_that_its_value_belies(tmp_path, value, kind):
    file = tmp_path / "x.yaml"
    file.write_text(f"name: x\nplatform: cpu\nprefill: {{tp: {value}}}\n")
    with pytest.raises(UsageError, match=rf"x\.yaml:3:\d+.* is no {kind}"):
        load_topology(file)
