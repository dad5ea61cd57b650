"""What an import has read, and whether that is still so."""

import os
import sys
from importlib import import_module

import pytest

from disagg_cli.connector.host_memory.imported import import_and_note


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of a folder on the path, which is forgotten after the test."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(text):
        (tmp_path / "a_module.py").write_text(text)
        return tmp_path / "a_module.py"

    yield write
    sys.modules.pop("a_module", None)


def note(module, text):
    module(f"import os\n{text}\n")
    return import_and_note(lambda: import_module("a_module"))


@pytest.mark.parametrize(
    "reads",
    [
        "os.environ.get('ASKED')",
        "os.getenv('ASKED', '')",
        "'ASKED' in os.environ",
        "os.environ.setdefault('ASKED', '1')",
        "dict(os.environ); os.getenv('ASKED')",
        "list(os.environ); os.getenv('ASKED')",
    ],
)
def test_variables_that_are_asked_for(module, monkeypatch, reads):
    monkeypatch.delenv("ASKED", raising=False)
    noted = note(module, reads)
    monkeypatch.delenv("ASKED", raising=False)
    assert noted.environment["ASKED"] is None
    assert noted.differing(dict(os.environ)) == ()
    assert noted.differing({**os.environ, "ASKED": "2", "NOT_ASKED": "2"}) == ("ASKED",)


def test_the_value_before_the_import_is_what_counts(module, monkeypatch):
    """What a library sets for itself would be set by a server's own import, too."""
    monkeypatch.setenv("ASKED", "mine")
    noted = note(module, "os.environ['ASKED'] = 'its own'; os.environ['ASKED']")
    assert noted.environment["ASKED"] == "mine"


def test_going_through_their_names_is_no_copy(module, monkeypatch):
    monkeypatch.setenv("AN_ASKED_ONE", "1")
    noted = note(module, "[os.environ[name] for name in os.environ if name.startswith('AN_ASKED')]")
    assert noted.environment["AN_ASKED_ONE"] == "1"


@pytest.mark.parametrize(
    "copies", ["dict(os.environ)", "os.environ.copy()", "{**os.environ}", "list(os.environ.items())"]
)
def test_who_copies_all_of_them_asks_for_none(module, monkeypatch, copies):
    """Else no parent would be right in another terminal, whose window has another number."""
    monkeypatch.setenv("WINDOW", "1")
    noted = note(module, f"{copies}; os.environ.get('ASKED')")
    assert "WINDOW" not in noted.environment
    assert "ASKED" in noted.environment


def test_variables_that_c_libraries_read(module, monkeypatch):
    noted = note(module, "")
    assert noted.differing({**os.environ, "OMP_SOMETHING": "1"}) == ("OMP_SOMETHING",)


def test_two_terminals_are_not_different(module):
    noted = note(module, "[os.environ.get(name) for name in ('TERM', 'PATH', 'COLUMNS')]")
    assert noted.differing({**os.environ, "TERM": "dumb", "PATH": "/", "COLUMNS": "3"}) == ()


def test_the_environment_is_an_ordinary_one_again(module):
    plain = type(os.environ)
    with pytest.raises(ZeroDivisionError):
        note(module, "1 / 0")
    assert type(os.environ) is plain


def test_files_that_change(module):
    noted = note(module, "version = 1")
    assert noted.changed() == ()
    file = module("version = 20")
    assert noted.changed() == ("a_module",)
    file.unlink()
    assert noted.changed() == ("a_module",)
