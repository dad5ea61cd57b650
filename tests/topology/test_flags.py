"""Flags of SGLang releases, read from wheels and kept as data."""

import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from disagg_cli.engine.installed import version_of
from disagg_cli.topology.flag_lists import changes, read_installed, read_release
from disagg_cli.topology.flags import every_flag, flags_of, installed_flags, nearest, router_flags

SOURCE = """
BACKENDS = ["x", "y"]

class ServerArgs:
    page_size: A[Optional[int], Arg(help="The number of tokens in a page.")] = None
    model_path: A[str, Arg(help="Path.", aliases=["--model"])]
    trust_remote_code: A[bool, "Whether to trust."] = False
    hidden: A[bool, Arg(help="x", no_cli=True)] = False
    plain: int = 3
    batch_sizes: A[Optional[List[int]], Arg(help="Sizes.")] = None
    fraction: A[float | None, "A fraction."] = None
    kind: A[Literal["a", "b"], "Which."] = "a"
    backend: A[str, Arg(help="Backend.", choices=BACKENDS + ["z"])] = "x"
    computed: A[str, Arg(help="Computed.", choices=list(TABLE))] = "x"

    def add_cli_args(parser):
        parser.add_argument("--old-flag", action=DeprecatedStoreTrueAction, help="Deprecated.")
        parser.add_argument("--fuse", action=argparse.BooleanOptionalAction)
        parser.add_argument("--host", "--address", type=str, help="Where to listen.")
        parser.add_argument("--level", type=int, nargs="?", const=3)
"""


@pytest.fixture
def wheel(tmp_path):
    """A wheel whose server_args.py is the text above."""
    file = tmp_path / "sglang-9.9.9-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("sglang/srt/server_args.py", SOURCE)
        archive.writestr("sglang/srt/environ.py", "SGLANG_SOMETHING = EnvInt(3)\n")
    return file


def test_a_release_is_read_from_its_wheel(wheel):
    found = read_release(wheel)
    declared = {"batch-sizes", "fraction", "kind", "backend", "computed"}
    assert found.values == {"page-size", "model-path", "model", "host", "address", "level"} | declared
    assert (found.ints, found.floats, found.lists) == (
        {"page-size", "batch-sizes", "level"},
        {"fraction"},
        {"batch-sizes"},
    )
    assert found.choices == {"kind": ["a", "b"], "backend": ["x", "y", "z"]}
    assert found.optional == {"level"}
    assert found.switches == {"trust-remote-code", "old-flag", "fuse", "no-fuse"}
    assert (found.deprecated, found.environment) == ({"old-flag"}, {"SGLANG_SOMETHING"})


def test_releases_are_kept_as_changes(wheel):
    old, new = read_release(wheel), read_release(wheel)
    new.values.remove("host")
    first, second = changes({"0.1": old, "0.2": new})
    assert second == {"release": "0.2", "source": first["source"].replace("0.1", "0.2"), "-values": "host"}


@pytest.mark.parametrize(
    ("flag", "first", "removed_in"),
    [
        ("disaggregation-decode-enable-radix-cache", "0.5.11", None),
        ("attn-dp-size", None, None),
        ("prefill-round-robin-balance", "0.5.6", "0.5.20"),
    ],
)
def test_when_a_flag_came_and_went(flag, first, removed_in):
    assert first is None or flag in flags_of(first).known
    assert flags_of("0.5.23").removed.get(flag) == removed_in
    assert (flag in flags_of("0.5.23").known) is (removed_in is None)


def test_a_release_that_is_not_listed_is_judged_by_the_one_below():
    found = flags_of("0.5.8.post2")
    assert (found.release, found.exact) == ("0.5.8.post1", False)
    assert flags_of("0.5.8").exact
    assert flags_of("0.5.5") is None


def test_flags_are_abbreviated_as_argparse_does():
    flags = flags_of("0.5.23")
    assert flags.spelt_out("page-size") == ("page-size",)
    assert flags.spelt_out("speculative-algo") == ("speculative-algorithm",)
    assert len(flags.spelt_out("disagg")) > 1
    assert flags.spelt_out("enable-warp-drive") == ()


def test_an_installed_release_that_is_not_listed_is_read_from_its_source(tmp_path):
    (tmp_path / "sglang/srt").mkdir(parents=True)
    (tmp_path / "sglang/srt/server_args.py").write_text(SOURCE)
    found = installed_flags("9.9.9", tmp_path)
    assert (found.release, found.exact, "page-size" in found.values) == ("9.9.9", True, True)
    assert found.removed["disaggregation-mode"] == "9.9.9 or before"
    assert installed_flags("0.5.23", tmp_path) is None
    assert installed_flags("9.9.9", tmp_path / "none") is None


def test_the_list_of_the_installed_release_is_what_its_source_says():
    version = version_of("sglang")
    if version is None or not flags_of(version).exact:
        pytest.skip("no SGLang is installed whose flags are packaged")
    found = read_installed(Path(str(metadata.distribution("sglang").locate_file(""))))
    listed = flags_of(version)
    assert (found.switches, found.values, found.ints) == (listed.switches, listed.values, listed.ints)
    assert {flag: tuple(words) for flag, words in found.choices.items()} == listed.choices


def test_the_nearest_flag():
    assert flags_of("0.5.23").nearest("pagesize") == "page-size"
    assert nearest("zzz", ("page-size",)) is None


def test_switches_and_values_are_apart():
    flags = flags_of("0.5.23")
    assert {"trust-remote-code", "enable-dp-attention"} <= flags.switches
    assert {"tp-size", "tensor-parallel-size", "kv-cache-dtype"} <= flags.values
    assert not flags.switches & flags.values
    assert flags.known <= every_flag()


def test_the_routers_flags():
    flags = router_flags()
    assert flags.release == "0.3.2"
    assert {"policy", "pd-disaggregation", "cb-timeout-duration-secs"} <= flags.known
    assert "round_robin" in flags.choices["policy"]
    assert "cb-timeout-duration-secs" in flags.ints
