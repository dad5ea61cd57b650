"""No rule and no fact without a source, and no source that cannot be looked up."""

import re
from pathlib import Path

import pytest
import yaml
from deployments import ROOT

from disagg_cli.findings import finding as catalogues
from disagg_cli.findings import plan_rules, topology_rules
from disagg_cli.findings.finding import catalogue
from disagg_cli.topology.platforms import platforms

LOOKED_UP = re.compile(
    r"#\d+"  # a thread
    r"|\bsglang(-router)? \d+\.\d+\.\d+"  # a released wheel
    r"|disagg_cli/[\w/]+"  # data or code here
    r"|\w+\([257]\)|nvidia-smi"  # a manual page
    r"|datasheet|RFC \d+|Python argparse|grade-school-math"
)


@pytest.mark.parametrize("entry", catalogue().values(), ids=lambda entry: entry.code)
def test_a_rules_source_can_be_looked_up(entry):
    assert LOOKED_UP.search(entry.source), entry.source
    for path in re.findall(r"disagg_cli/[\w/.]+\.(?:py|yaml)", entry.source):
        assert (ROOT / path).is_file(), path


def test_a_rule_without_a_source_cannot_be(tmp_path, monkeypatch):
    """Not even for one finding: the catalogue is not read."""
    entry = {"name": "n", "title": "t", "severity": "note", "why": "w", "fix": "f", "source": " "}
    (tmp_path / "catalogue.yaml").write_text(yaml.safe_dump({"DSG999": entry}))
    monkeypatch.setattr(catalogues, "CATALOGUES", ("catalogue.yaml",))
    monkeypatch.setattr(catalogues, "__file__", str(tmp_path / "finding.py"))
    with pytest.raises(ValueError, match="rules without a source: DSG999"):
        catalogues.catalogue.__wrapped__()


RULES = (*plan_rules.RULES, *topology_rules.RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_rule_names_its_codes(rule):
    codes = re.findall(r"\d{3}", re.match(r"(DSG\d{3}(, | to |: )?|\d{3}(, | to |: ))+", rule.__doc__)[0])
    assert {f"DSG{code}" for code in codes} <= set(catalogue())


@pytest.mark.parametrize("platform", platforms().values(), ids=lambda platform: platform.name)
def test_each_fact_of_a_platform_has_a_source(platform):
    facts = ("architecture", "gpus_per_node", "memory_gb", "nvlink_domain", "nics_per_node", "scale_up", "scale_out")
    known = {name.strip() for names in platform.source for name in names.split(",")}
    assert {fact for fact in facts if getattr(platform, fact)} | {"gpus_per_node"} == known
    assert all(text.strip() for text in platform.source.values())
    assert all(
        (setting.why and LOOKED_UP.search(setting.source)) or "recipes" in setting.source
        for setting in platform.environment
    )


FACTS = ["topology/page_sizes.yaml", "topology/weights.yaml", "kv/links.yaml", "kv/models.yaml"]


@pytest.mark.parametrize("file", FACTS)
def test_each_fact_has_a_source(file):
    facts = yaml.safe_load((Path(catalogues.__file__).parents[1] / file).read_text())
    assert [name for name, fact in facts.items() if not fact.get("source")] == []


@pytest.mark.parametrize("file", ["topology/flags.yaml", "connector/releases.yaml"])
def test_each_release_has_a_source(file):
    facts = yaml.safe_load((Path(catalogues.__file__).parents[1] / file).read_text())
    releases = facts["sglang"] if isinstance(facts, dict) else facts
    assert [entry["release"] for entry in releases if not entry.get("source")] == []
