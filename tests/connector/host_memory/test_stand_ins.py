"""What stands where a CUDA-only package would be: everything is there until it is called."""

import importlib.util

import pytest

from disagg_cli.connector.host_memory import mode


@pytest.fixture
def sgl_kernel():
    file = mode.STAND_INS / "sgl_kernel" / "__init__.py"
    spec = importlib.util.spec_from_file_location("stand_in_sgl_kernel", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_kernel_says_why_it_cannot_run(sgl_kernel):
    with pytest.raises(NotImplementedError, match=r"sgl_kernel\.fused_add_rmsnorm needs a GPU"):
        sgl_kernel.fused_add_rmsnorm(1, eps=2)


def test_pythons_own_questions_are_answered_as_usual(sgl_kernel):
    assert not hasattr(sgl_kernel, "__wrapped__")
