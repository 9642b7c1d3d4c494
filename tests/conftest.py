"""Fixtures that several test modules share; every run and every test has a home of its own (own_home.py)."""

import contextlib
import gc
import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests import children, own_home
from tests.ground_truth import ORACLE

pytest_plugins = ["tests.skips"]

ROOT = Path(__file__).resolve().parent.parent

# A busy machine is no failure: no test is judged by the clock. Nothing is kept in the current folder. With
# `--hypothesis-profile nightly` there are forty times as many examples.
settings.register_profile("untimed", deadline=None, database=None, max_examples=50)
settings.register_profile("nightly", settings.get_profile("untimed"), max_examples=2000)
settings.load_profile("untimed")

FETCHING = ("android_host", "browser", "consumer", "device", "lab", "network")
"""Marks of tests that share downloads."""

RUN_FOLDER = pytest.StashKey[Path | None]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ort-mobile")
    group.addoption("--schedules", type=int, default=1000, help="schedules of faults, on real adbd at most")
    group.addoption("--write-pictures", action="store_true", help="write the pictures of the page in docs/pictures")
    group.addoption("--update", action="store_true", help="write tests/goldens again: what commands give users")
    group.addoption("--reverse", action="store_true", help="run the tests in the other order")
    group.addoption("--schedule-seconds", type=float, default=240.0, help="time for them; 0: as long as it takes")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[RUN_FOLDER] = own_home.start()


def pytest_unconfigure(config: pytest.Config) -> None:
    folder = config.stash.get(RUN_FOLDER, None)
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


def pytest_collection(session: pytest.Session) -> None:
    """In a fresh clone, each process of xdist compiles a part of the test files before it collects all of them.

    Where they collect beside each other in one order, each compiles all of them: two thirds of that work are wasted.
    """
    worker, count = os.environ.get("PYTEST_XDIST_WORKER", ""), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if count == 1 or session.config.args != session.config.getini("testpaths"):
        return
    for path in sorted(ROOT.glob("tests/**/test_*.py"))[int(worker[2:]) :: count]:
        with contextlib.suppress(Exception, pytest.skip.Exception):  # collection meets them again and says where
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("reverse"):
        items.reverse()


def pytest_collection_finish() -> None:
    """What was collected lives as long as the run: garbage collections need not walk over it a thousand times.

    A tenth of the time of the fast tests was theirs.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def pytest_sessionfinish() -> None:
    """As above, for the five collections with which pytest ends: they look for what was left since this one."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def no_adb(monkeypatch: pytest.MonkeyPatch) -> None:
    """No adb program: where no server listens, none is started, which would stay."""
    monkeypatch.setenv("ADBUTILS_ADB_PATH", "/bin/false")


@pytest.fixture(scope="session", autouse=True)
def shared_workers() -> Iterator[None]:
    """Workers that outlive their test; `own_workers` for tests of when they start and end."""
    with children.shared():
        yield


@pytest.fixture(scope="session", autouse=True)
def copied_databases() -> Iterator[None]:
    """Tables of new databases that are copied; tests of the migrations run them."""
    from tests import new_databases  # where tests run: the process that only hands them out needs no database

    with new_databases.copied():
        yield


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Files of a test need not outlive a computer that loses its power: each would be waited for for 5 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda _: None)
        yield


@pytest.fixture(name="own_workers")
def _own_workers() -> Iterator[None]:
    with children.not_shared():
        yield


@pytest.fixture(autouse=True)
def home_of_the_test(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty HOME for each test; fixtures that outlive a test use the run's own."""
    may_fetch = any(request.node.get_closest_marker(name) for name in FETCHING)
    with own_home.home(may_fetch=may_fetch) as folder:
        monkeypatch.setenv("HOME", str(folder))
        yield folder


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


@pytest.fixture(autouse=True)
def compiler_of_the_npu(request: pytest.FixtureRequest) -> None:
    """Tests for an NPU need its compiler."""
    if request.node.get_closest_marker("npu") and importlib.util.find_spec("onnxruntime_qnn") is None:
        pytest.skip("the package onnxruntime-qnn is not installed")
