"""What a rehearsal may take of the machine that it runs on."""

import math

import pytest

from disagg_cli.runtime.rehearse import cores_of_group, memory_of_group


@pytest.mark.parametrize(
    ("said", "cores"),
    [("max 100000", math.inf), ("200000 100000", 2), ("250000 100000", 2), ("50000 100000", 1), ("", math.inf)],
)
def test_cores_of_a_control_group(tmp_path, said, cores):
    (tmp_path / "cpu.max").write_text(f"{said}\n")
    assert cores_of_group(tmp_path) == cores


def test_memory_of_a_control_group(tmp_path):
    (tmp_path / "memory.current").write_text("3000\n")
    for limit, free in (("max", math.inf), ("5000", 2000), ("2000", 0)):
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        assert memory_of_group(tmp_path) == free


def test_a_machine_without_control_groups(tmp_path):
    assert (cores_of_group(tmp_path), memory_of_group(tmp_path)) == (math.inf, math.inf)
