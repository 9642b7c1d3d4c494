"""Fixtures of the report's tests."""

import pytest

from pipeline.report.model import CampaignReport
from tests.report_samples import make_report


@pytest.fixture
def report() -> CampaignReport:
    """A report with one of each kind of outcome."""
    return make_report()
