"""A farm of real adbd programs for all tests of this folder, and the tools that they run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from device_runner.adb.device import AdbDevice, Tools
from device_runner.adb.link import Link, server_at
from device_runner.local import wheel_library
from device_runner.probe.build import build_probe
from tests.device.adb_farm import Farm, Open, Phone, farm_in
from tests.probe_models import save_models


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.device)


@pytest.fixture(scope="session")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    with farm_in(tmp_path_factory.mktemp("farm")) as farm:
        yield farm


@pytest.fixture(scope="session")
def phone(farm: Farm) -> Phone:
    """A device that answers as a plain Linux one."""
    return farm.phone()


@pytest.fixture(scope="session")
def tools() -> Tools:
    return Tools(build_probe(flags=("-Werror",)), wheel_library())


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def opened(farm: Farm, tools: Tools) -> Iterator[Open]:
    """Open devices of the farm; they are closed with the test."""
    devices: list[AdbDevice] = []

    def go(phone: Phone) -> AdbDevice:
        link = Link(server_at(f"127.0.0.1:{farm.port}"), phone.serial)
        devices.append(AdbDevice(link, root=phone.root, tools=tools))
        return devices[-1]

    yield go
    for device in devices:
        device.close()
