"""`disagg import srtctl`: both layouts, variants and sweeps; and sixteen real recipes, where they are at hand."""

import json

import pytest
import yaml
from command_line import disagg
from deployments import ROOT

from disagg_cli.topology.loading import load_topology

RECIPES = ROOT.parent / "shared/recipes/srtctl"

ONE = """\
name: one p / one d
model: {path: alias, container: "lmsysorg/sglang:v0.5.17-cu130", precision: fp8}
resources: {gpu_type: gb200, gpus_per_node: 4, prefill_nodes: 1, decode_nodes: 2, prefill_workers: 1, decode_workers: 1}
slurm: {account: x, partition: y, time_limit: "4:00:00"}
frontend: {type: sglang, args: {policy: round_robin}}
backend:
  type: sglang
  prefill_environment: {A: "1", DYN_LOG: debug}
  decode_environment: {A: "1", B: "{node}"}
  sglang_config:
    prefill: {served-model-name: org/model, tensor-parallel-size: 4, disaggregation-mode: prefill,
      disaggregation-transfer-backend: nixl, disaggregation-bootstrap-port: 30001, page_size: 64, context-length: 9600}
    decode: {served-model-name: org/model, tp-size: 8, dp-size: 8, enable-dp-attention: true,
      disaggregation-transfer-backend: nixl, page-size: 64}
benchmark: {type: gsm8k, num_examples: 1319, num_shots: 5}
"""

TWO = """\
schema: 2
name: two
engine: sglang
model: {path: /models/m}
resources: {gpu_type: h100, gpus_per_node: 8}
roles:
  prefill: {nodes: 1, workers: 1, gpus: 4, args: {tp-size: 4}, env: {A: "010"}}
  decode: {nodes: colocate, workers: 1, gpus: 4, args: {tp-size: 4}, critical: true}
frontend: {type: sglang-router}
"""


@pytest.fixture
def imported(tmp_path):
    def done(text, *args):
        file = tmp_path / "recipe.yaml"
        file.write_text(text)
        ran = disagg("import", "srtctl", file, "--json", *args)
        assert ran.returncode == 0, ran.stderr
        document = json.loads(ran.stdout)
        return document["topology"], document["left"]

    return done


def test_schema_1(imported):
    topology, _ = imported(ONE)
    assert topology == {
        "name": "one-p-one-d",
        "platform": "gb200-nvl72",
        "model": "org/model",
        "prefill": {"workers": 1, "tp": 4, "gpus": 4, "nodes": 1, "args": {"context-length": 9600}},
        "decode": {"workers": 1, "tp": 8, "dp": 8, "dp_attention": True, "gpus": 8, "nodes": 2},
        "engine": {"sglang": "0.5.17", "args": {"page-size": 64}, "env": {"A": "1"}},
        "connector": {"backend": "nixl"},
        "router": {"policy": "round_robin"},
        "executor": {"slurm": {"partition": "y", "account": "x", "time": "4:00:00"}},
        "eval": {"gsm8k": {"dataset": "gsm8k", "questions": 1319, "shots": 5}},
    }


def test_what_is_not_carried_over_is_said(imported):
    _, left = imported(ONE)
    assert [line.split(":")[0] for line in left] == [
        "--disaggregation-bootstrap-port 30001",
        "DYN_LOG",
        "decode B={node}",
        "model.container",
        "model.precision",
        "model.path",
    ]


def test_schema_2(imported):
    topology, left = imported(TWO)
    assert topology["prefill"] == {"workers": 1, "tp": 4, "gpus": 4, "nodes": 1, "env": {"A": "010"}}
    assert topology["decode"] == {"workers": 1, "tp": 4, "gpus": 4}
    assert topology["model"] == "/models/m"
    assert left == ["decode.critical: has no counterpart"]


def indented(text):
    return "base:\n" + "".join(f"  {line}\n" for line in text.splitlines())


def test_variants(imported):
    text = indented(TWO) + (
        "override_wide:\n  roles: {decode: {args: {tp-size: 8}, gpus: 8}}\n"
        "zip_override_ctx:\n  roles: {prefill: {args: {context-length: [2048, 8192]}}}\n"
    )
    topology, _ = imported(text)
    assert topology["variants"] == {
        "wide": {"decode": {"tp": 8, "gpus": 8}},
        "ctx_0": {"prefill": {"args": {"context-length": 2048}}},
        "ctx_1": {"prefill": {"args": {"context-length": 8192}}},
    }
    assert imported(text, "--variant", "wide")[0]["decode"]["tp"] == 8


def test_a_variant_that_takes_things_away(imported, tmp_path):
    """Laid over the base again, each variant is what the recipe says."""
    text = indented(TWO.replace("args: {tp-size: 4}, env", "args: {tp-size: 4, page-size: 64}, env")) + (
        "override_plain:\n  roles: {prefill: {args: {page-size: null}, env: null}}\n  frontend: null\n"
        "override_deep:\n  roles: {prefill: {args: {pp-size: 2, tp-size: 2}}}\n"
    )
    topology, _ = imported(text)
    assert topology["variants"]["plain"] == {"prefill": {"args": None, "env": None}}
    file = tmp_path / "t.yaml"
    file.write_text(yaml.safe_dump(topology))
    for name in ("plain", "deep"):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(imported(text, "--variant", name)[0]))
        alone, laid = load_topology(tmp_path / f"{name}.yaml"), load_topology(file, variant=name)
        assert laid.model_dump() == alone.model_dump()


def test_a_base_that_is_no_deployment_by_itself(imported):
    """srtctl runs the variants, and the base only where it is asked for."""
    head, roles = TWO.split("roles:\n")
    text = indented(head) + "override_a:\n  roles:\n" + "".join(f"  {line}\n" for line in roles.splitlines()[:2])
    topology, left = imported(text)
    assert topology["prefill"]["tp"] == 4
    assert "variants" not in topology
    assert "base: the recipe has no prefill and no decode workers; disagg is for both" in left


def test_a_sweep_of_variants(imported):
    text = indented(TWO.replace("args: {tp-size: 4}, env", 'args: {tp-size: "{tp}"}, env') + "sweep: {tp: [2, 4]}\n")
    topology, _ = imported(text + "override_b:\n  name: b\n")
    assert list(topology["variants"]) == ["tp=4", "b,tp=2", "b,tp=4"]
    assert topology["variants"]["b,tp=4"] == {"name": "b", "prefill": {"tp": 4}}


def test_a_placeholder_without_quotes(imported):
    """As srt-slurm's documentation of sweeps writes it; YAML takes it for a mapping."""
    topology, _ = imported(
        TWO.replace("args: {tp-size: 4}, env", "args: {tp-size: { tp }}, env") + "sweep: {tp: [2, 4]}\n"
    )
    assert (topology["prefill"]["tp"], topology["variants"]) == (2, {"tp=4": {"prefill": {"tp": 4}}})


def test_values_stay_what_they_are(imported):
    """A time that YAML 1.1 makes seconds of, a list of sizes, a mapping that SGLang reads as JSON, a truth value."""
    args = "args: {tp-size: 4, cuda-graph-bs: [1, 2, 4], json-model-override-args: {a: 1}}, env"
    text = TWO.replace("args: {tp-size: 4}, env", args).replace('{A: "010"}', "{A: 010, B: true, C: 1.10}")
    topology, _ = imported(text + "slurm: {time_limit: 4:00:00}\n")
    assert topology["executor"]["slurm"]["time"] == "4:00:00"
    assert topology["prefill"]["args"] == {"cuda-graph-bs": [1, 2, 4], "json-model-override-args": '{"a": 1}'}
    assert topology["prefill"]["env"] == {"A": "010", "B": "true", "C": "1.10"}


@pytest.mark.parametrize(
    ("container", "release"),
    [
        ("lmsysorg/sglang:v0.5.8-cu130", "0.5.8"),
        ("lmsysorg+sglang+v0.5.5.post2.sqsh", "0.5.5.post2"),
        ("0.5.6.post2", "0.5.6.post2"),
        ("dynamo-sglang", None),
        ("nightly-dev-cu13-20260520", None),
    ],
)
def test_the_release_is_that_of_the_container(imported, container, release):
    topology, _ = imported(ONE.replace("lmsysorg/sglang:v0.5.17-cu130", container))
    assert topology["engine"].get("sglang") == release


def test_nothing_is_left_out_silently(imported):
    text = ONE.replace("gpu_type: gb200,", "gpu_type: gb200, het_jobs: true,").replace(
        "page_size: 64,", "page_size: 64, host: a,"
    )
    _, left = imported(
        text.replace("type: sglang, args", "type: sglang, env: {A: b}, args") + "health_check: {max_attempts: 3}\n"
    )
    assert {"health_check: has no counterpart", "resources.het_jobs: has no counterpart"} <= set(left)
    assert {"--host a: disagg sets it; say it with `executor`", "frontend.env: disagg starts one router"} <= set(left)


def test_the_clusters_platform(tmp_path):
    (tmp_path / "r.yaml").write_text(TWO.replace("gpu_type: h100, ", ""))
    done = disagg("import", "srtctl", tmp_path / "r.yaml")
    assert (done.returncode, "say it with --platform" in done.stderr) == (2, True)
    assert "platform: h200\n" in disagg("import", "srtctl", tmp_path / "r.yaml", "--platform", "h200").stdout
    assert disagg("import", "srtctl", tmp_path / "r.yaml", "--platform", "x").returncode == 2


def test_a_sweep(imported):
    text = TWO.replace("args: {tp-size: 4}, env", 'args: {tp-size: "{tp}"}, env')
    topology, _ = imported(text + "sweep:\n  - {tp: 2}\n  - {tp: 4}\n")
    assert topology["prefill"]["tp"] == 2
    assert topology["variants"] == {"tp=4": {"prefill": {"tp": 4}}}


def test_a_sweep_as_a_grid(imported):
    text = TWO.replace("args: {tp-size: 4}, env", 'args: {tp-size: "{tp}"}, env')
    topology, _ = imported(text + "sweep: {mode: grid, tp: [1, 2, 4]}\n")
    assert list(topology["variants"]) == ["tp=2", "tp=4"]


def test_a_file_that_check_reads(tmp_path):
    recipe, out = tmp_path / "r.yaml", tmp_path / "t.yaml"
    recipe.write_text(ONE)
    done = disagg("import", "srtctl", recipe, "--out", out)
    assert (done.returncode, done.stdout) == (0, "")
    assert "not carried over: model.precision: fp8" in done.stderr
    assert "#   model.precision: fp8\n" in out.read_text()
    assert yaml.safe_load(out.read_text())["name"] == "one-p-one-d"
    assert disagg("check", out).returncode in (0, 3)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TWO.replace("engine: sglang", "engine: vllm"), "the recipe is for vllm; disagg starts SGLang"),
        (TWO.replace("h100", "v100"), "resources.gpu_type: unknown 'v100'"),
        (TWO.replace("  decode:", "  agg:"), "the recipe has no decode workers"),
        ("base: 3\n", "base: expected a mapping"),
        (TWO.replace("schema: 2", "schema: 3"), "schema 3 is not known; known: 1, 2"),
        (
            TWO.replace("workers: 1, gpus: 4, args", "workers: two, gpus: 4, args", 1),
            "prefill.workers: expected a whole number",
        ),
        (
            TWO.replace("args: {tp-size: 4}, env", "args: {tp-size: '{tp}'}, env"),
            "prefill tp-size: expected a whole number",
        ),
        (TWO.replace("{path: /models/m}", "{container: c}"), "model.path: the recipe names no model"),
        (TWO + "sweep: {mode: zip, a: [1, 2], b: [1]}\n", "sweep: lists of different lengths (a 2, b 1)"),
        (TWO + "name: again\n", "r.yaml:10:1: `name` stands twice"),
        ("- 1\n", "expected a mapping"),
    ],
)
def test_recipes_that_cannot_be(tmp_path, text, said):
    (tmp_path / "r.yaml").write_text(text)
    done = disagg("import", "srtctl", tmp_path / "r.yaml")
    assert done.returncode == 2
    assert said in done.stderr


# Attention TP, prefill -> decode, of the recipes that differ; the others have the same on both sides.
DIFFERENT = {
    "gb200-fp8_1k1k_low-latency-mtp": (4, 8),
    "gb200-fp8_8k1k_low-latency-mtp": (4, 8),
    "gb200-fp4_8k1k_max-tpt": (4, 1),
    "gb200-fp4_8k1k_mid-curve": (4, 1),
    "qwen3.5_fp8_disagg_nixl_stp_prefix_off_1p1d-dep4-nixl-gsm8k": (4, 1),
    "h100_1k1k_mtp_h100-fp8-1p1d-max-dep-mtp": (16, 1),
    "h100_8k1k_stp_h100-fp8-1p1d-max-dep": (16, 1),
    "h200_8k1k_bs128-1p1d-dep": (8, 1),
    "dsv4-pro_sglang_gb300-fp4_8k1k_disagg_disagg-low-latency-1p6d-dep4-tp4-mtp": (1, 4),
}


@pytest.mark.skipif(not RECIPES.is_dir(), reason="the srtctl recipes are not beside this checkout (../shared/recipes)")
@pytest.mark.parametrize("recipe", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem[:40])
def test_real_recipes(tmp_path, recipe):
    out = tmp_path / "t.yaml"
    assert disagg("import", "srtctl", recipe, "--out", out).returncode == 0
    (checked,) = json.loads(disagg("check", out, "--json").stdout)["topologies"]
    assert not [one for one in checked["findings"] if one["code"] in ("DSG201", "DSG202", "DSG301", "DSG303", "DSG304")]
    found = [one["message"] for one in checked["findings"] if one["code"] == "DSG501"]
    if recipe.stem in DIFFERENT:
        p, d = DIFFERENT[recipe.stem]
        assert found[0].startswith(f"attention TP {p} on prefill and {d} on decode")
    else:
        assert found == []
