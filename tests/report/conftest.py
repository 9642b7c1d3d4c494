"""Fixtures of the report's tests."""

import pytest
from report_samples import make_report

from pipeline.report.model import CampaignReport


@pytest.fixture
def report() -> CampaignReport:
    """A report with one of each kind of outcome."""
    return make_report()
