"""Two launches at the same moment cannot both take a port."""

import os
import subprocess
import sys

import pytest

from disagg_cli.errors import PlanRefused
from disagg_cli.runtime.reservation import reserved


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_the_second_is_refused():
    with reserved([21000, 21001]), pytest.raises(PlanRefused, match="on port 21001"), reserved([21001, 21002]):
        pass


def test_the_same_port_of_another_host_is_another_port():
    with reserved(["a:21000"]), reserved(["b:21000"]), reserved([21000]):
        pass
    with reserved(["a:21000"]), pytest.raises(PlanRefused, match="on port a:21000"), reserved(["a:21000"]):
        pass


def test_free_again_once_the_first_has_let_go(tmp_path):
    with reserved([21000]):
        pass
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]
    with reserved([21000]):
        pass


def test_many_that_want_it_one_after_the_other(tmp_path):
    """A lock on a file that its holder has just removed would be worth nothing."""
    code = """
import os, pathlib, sys, time
from disagg_cli.errors import PlanRefused
from disagg_cli.runtime.reservation import reserved
mine, had = pathlib.Path(sys.argv[1]), 0
while had < 200:
    try:
        with reserved([21000]):
            os.close(os.open(mine, os.O_CREAT | os.O_EXCL))
            mine.unlink()
            had += 1
    except PlanRefused:
        pass
"""
    argv = [sys.executable, "-c", code, str(tmp_path / "only-one")]
    many = [subprocess.Popen(argv, env={**os.environ, "TMPDIR": str(tmp_path)}) for _ in range(3)]
    assert [one.wait(60) for one in many] == [0, 0, 0]


def test_a_process_that_is_gone_holds_nothing(tmp_path):
    code = "import os; from disagg_cli.runtime.reservation import reserved; reserved([21005]).__enter__(); os._exit(0)"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(tmp_path)}, check=True)
    with reserved([21005]):
        pass


def somebody_elses(folder):
    folder.mkdir()
    os.chown(folder, 65534, 65534)


def open_to_all(folder):
    folder.mkdir()
    folder.chmod(0o777)


def a_link(folder):
    (folder.parent / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(folder.parent / "elsewhere")


@pytest.mark.parametrize("laid", [somebody_elses, open_to_all, a_link])
def test_a_folder_that_somebody_else_has_laid_there(tmp_path, laid):
    """Its name is no secret, and /tmp is everybody's."""
    if laid is somebody_elses and os.getuid():
        pytest.skip("only root can give a folder away")
    laid(tmp_path / f"disagg-ports-{os.getuid()}")
    with pytest.raises(PlanRefused, match="not a folder of this user alone"), reserved([21000]):
        pass
