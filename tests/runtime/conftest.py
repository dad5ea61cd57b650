"""What tests of a run's supervision may use."""

import pytest
from supervised import QUICK, Supervised


@pytest.fixture
def supervised(home):
    """Make a supervisor, with short times unless others are given."""
    return lambda timeouts=QUICK: Supervised(timeouts)
