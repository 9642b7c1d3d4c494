"""Small models, and how to run the probe on them."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from device_runner.build import build_probe
from device_runner.local import LocalDevice, wheel_library
from device_runner.result import RunResult
from device_runner.spec import RunSpec
from tests.probe_models import save_models

MORE_LIBRARIES = [path for path in os.environ.get("ORT_MOBILE_TEST_LIBRARIES", "").split(os.pathsep) if path]
"""Of other releases, to test with beside the installed wheel's."""


@pytest.fixture(scope="session")
def probe() -> Path:
    return build_probe(flags=("-Werror",))


@pytest.fixture(scope="session", params=[None, *MORE_LIBRARIES])
def library(request: pytest.FixtureRequest) -> str:
    return request.param or str(wheel_library())


@pytest.fixture(scope="session")
def device(probe: Path) -> LocalDevice:
    return LocalDevice(probe)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models that tests use."""
    return save_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def run(device: LocalDevice, models: Path) -> Callable[..., RunResult]:
    """Run a model of `models` for a few inferences, with a spec's further values by name."""

    def go(model: str, **values: object) -> RunResult:
        quick = {"min_runs": 3, "min_seconds": 0.0, "warmup": 1, "timeout_seconds": 60.0, **values}
        return device.run(RunSpec(id=model, model=str(models / model), **quick))  # type: ignore[arg-type]  # by name

    return go
