"""What a topology may say of its Slurm job."""

import pytest
from pydantic import ValidationError

from disagg_cli.topology.slurm import SlurmSpec


@pytest.mark.parametrize("where", ["args", "step_args"])
@pytest.mark.parametrize("value", ["ALL,HF_TOKEN=hf_planted", "HTTPS_PROXY=http://me:planted@proxy:3128"])
def test_a_secret_among_options_is_refused(where, value):
    """It would stand in the script, or on the command lines of steps."""
    with pytest.raises(ValidationError, match="a secret does not belong on a command line"):
        SlurmSpec.model_validate({where: {"export": value}})


@pytest.mark.parametrize("value", ["ALL,UCX_TLS=rc", "ALL,HF_TOKEN", "gpu:4"])
def test_other_options_are_passed_on(value):
    assert SlurmSpec.model_validate({"args": {"export": value}}).args == {"export": value}
