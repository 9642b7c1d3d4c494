"""A farm of real adbd programs for all tests of this folder, and the tools that they run."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from device_runner.adb.device import AdbDevice, Tools
from device_runner.adb.link import Link, server_at
from device_runner.build import build_probe
from device_runner.local import wheel_library
from tests.device.adb_farm import Farm, Open, Phone, farm_in
from tests.probe_models import save_models

Count = Callable[[str, object], None]
"""The fixture record_property: what is noted there is printed after the tests."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.device)


@pytest.fixture(scope="session", autouse=True)
def usual_port() -> Iterator[list[str] | None]:
    """Who connected to port 5037, where a developer's adb server would listen: nobody may, or start a server there.

    Each process of a run listens, and one of them is given a connection. None where something else listens already.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANDROID_ADB_SERVER_PORT", "1")  # for what forgets to name a port
        for name in ("ADB_USB", "ADB_EMU", "ADB_MDNS"):
            patch.setenv(name, "0")
        try:
            listener = socket.create_server(("127.0.0.1", 5037), reuse_port=True)
        except OSError:
            yield None
            return
        callers: list[str] = []
        watching = threading.Thread(target=_watch, args=(listener, callers), daemon=True)
        watching.start()
        yield callers
        listener.shutdown(socket.SHUT_RDWR)
        watching.join()
        listener.close()
        assert callers == []


def _watch(listener: socket.socket, callers: list[str]) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection, address = listener.accept()
            callers.append(f"{address}: {connection.recv(100)!r}")
            connection.close()


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
    return build_probe(flags=("-Werror",)), wheel_library()


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
