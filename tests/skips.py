"""Tests that may be left out: a skip whose reason is not in this table fails the run, as `--no-skips` makes all do.

A pytest plugin; tests/conftest.py registers it.
"""

import re

import pytest

ALLOWED = (
    # What the machine is
    r"sanitizers are run on Linux only",
    r"system calls are traced on Linux only",
    r"this system lets no process trace another",
    r"only Linux ends a child with its parent",
    r"this system has no /proc to see processes in",
    r"no /dev/full on this system",
    r"mounting a small disk needs root",
    r"a small disk of its own can only be mounted by root",
    r"this system does not let root mount a tmpfs",
    r"network namespaces need root",
    r"cannot mount a small file system here: .*",
    r"a real adbd is run on x86-64 Linux only",
    r"android-host: .*",
    r"something listens on port 5037 already: .*",
    # Tools that no package brings
    r"gcc is not installed",
    r"ruby is not installed",
    r"no \w+: install a JDK",
    r"no mvn: install Maven",
    r"valgrind is not installed",
    r"no CMake of 3\.24 or newer: .*",
    r"\w+ names no onnxruntime_perf_test: .*",
    # What a registry or a mirror does not give
    r"no adb program: .*",
    r"no [\w.:-]+ here: .*",
    r"the package index cannot be reached: .*",
    r"jars cannot be fetched: .*",
    r"packages of Debian \w+ cannot be fetched: .*",
    r"the source of ONNX Runtime cannot be fetched: .*",
    # What the installed onnxruntime is: sessions with other releases run them
    r"the installed onnxruntime is newer than what was measured",
    r"the installed onnxruntime has no telemetry",
    r"the installed onnxruntime lacks this kernel, too: .*",
    r"onnxruntime [\w.]+ does not tell its claims",
    r"onnxruntime [\w.]+ has no tool for weights in 4 and 8 bits",
    r"onnxruntime [\w.]+ does not need onnx-ir",
    r"onnxruntime [\w.]+ is installed; the library is of [\w.]+",
    r"shapes must come from onnxruntime [\w.]+, which is not installed",
    r"our files are made by the installed onnxruntime, which is not [\w.]+",
    r"this onnxruntime has NNAPI",
    r"graphs are recorded of [\d., and]+, installed is [\w.]+",
    r"the labels are of [\d.]+, onnxruntime [\w.]+ fuses otherwise",
    # Packages that `nox -s extra_tests` installs
    r"psycopg is not installed",
    r"no PostgreSQL on this machine .*",
    r"scikit-learn is not installed",
    r"tree-sitter-swift is not installed",
    r"jiwer is not installed",
    r"junitparser is not installed",
    r"sarif-pydantic is not installed",
    r"tornado is not installed",
    r"schemathesis is not installed",
    r"pycocotools is not installed",
    r".*onnxruntime-qnn is not installed",
    r"onnxruntime-ep-webgpu is not installed",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("ort-mobile").addoption("--no-skips", action="store_true", help="any skip fails the run")


def refused(reports: list[pytest.TestReport], *, allowed: tuple[str, ...]) -> list[str]:
    """Skips whose reason is not allowed, one line each."""
    lines = []
    for report in reports:
        reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        reason = reason.removeprefix("Skipped: ")
        if not any(re.fullmatch(pattern, reason, re.DOTALL) for pattern in allowed):
            lines.append(f"{report.nodeid}: {reason}")
    return lines


def skipped_against_the_rule(config: pytest.Config) -> list[str]:
    """What was skipped in this run and may not be."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:  # in a worker; the process that started it has all reports
        return []
    allowed = () if config.getoption("no_skips") else ALLOWED
    return refused(reporter.stats.get("skipped", []), allowed=allowed)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A run with such a skip has failed."""
    if session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) and skipped_against_the_rule(
        session.config
    ):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name them."""
    lines = skipped_against_the_rule(config)
    if lines:
        terminalreporter.section("skips that are not allowed (tests/skips.py)")
    for line in lines:
        terminalreporter.write_line(line)
