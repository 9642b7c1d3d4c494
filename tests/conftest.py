"""Fixtures that several test modules share."""

from pathlib import Path

import pytest
from hypothesis import settings

from tests.ground_truth import ORACLE

ROOT = Path(__file__).resolve().parent.parent

# A busy machine is no failure: no test is judged by the clock.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ort-mobile")
    group.addoption("--schedules", type=int, default=1000, help="schedules of faults on real adbd, at most")
    group.addoption("--schedule-seconds", type=float, default=240.0, help="time for them; 0: as long as it takes")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests counted, and noted by `record_property`."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, [])]
    counted = [line for report in reports if report.when == "call" for line in report.user_properties]
    if counted:
        terminalreporter.section("counted")
    for name, text in counted:
        terminalreporter.write_line(f"{name}: {text}")


@pytest.fixture(scope="session")
def oracle() -> Path:
    """The folder of ground truth: what real builds of ONNX Runtime claimed."""
    return ORACLE
