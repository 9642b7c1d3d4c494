"""Fixtures that several test modules share."""

from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent
ORACLE = ROOT.parent / "shared" / "ep_oracle"

# A busy machine is no failure: no test is judged by the clock.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def oracle() -> Path:
    """The folder of ground truth beside the checkout; tests that need it skip by name without it."""
    if not ORACLE.is_dir():
        pytest.skip("no ../shared/ep_oracle beside this checkout: ground truth of real builds is not at hand")
    return ORACLE
