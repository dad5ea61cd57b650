"""The house reads from left to right, and nothing imports from its right (kv and connector share a place)."""

import ast
from pathlib import Path

import pytest

import disagg_cli

ROOMS = ("topology", "kv", "connector", "findings", "engine", "executors", "probe", "evals")
HOUSE = Path(disagg_cli.__file__).parent


def rooms_imported(file):
    for node in ast.walk(ast.parse(file.read_text())):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        yield from (name.split(".")[1] for name in names if name.startswith("disagg_cli."))


@pytest.mark.parametrize("room", ROOMS)
def test_nothing_imports_from_its_right(room):
    right = set(ROOMS[ROOMS.index(room) + 1 :])
    files = sorted((HOUSE / room).rglob("*.py"))
    assert files
    assert {str(file): found for file in files if (found := right & set(rooms_imported(file)))} == {}
