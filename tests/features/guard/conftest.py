"""The app of all tests of the guard: compiled once."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.features.guard.natives import Device, NativeApp, cpp_app, swift_app
from tests.features.guard.phones import App, Phone, build


@pytest.fixture(scope="session")
def app(tmp_path_factory: pytest.TempPathFactory) -> App:
    return build(tmp_path_factory.mktemp("guarded_app"))


@pytest.fixture(scope="session")
def helped_app(tmp_path_factory: pytest.TempPathFactory) -> App:
    """The same with the helper, which tries ways in processes of their own."""
    return build(tmp_path_factory.mktemp("helped_app"), helper=True)


@pytest.fixture
def phone(app: App, tmp_path: Path) -> Callable[..., Phone]:
    """Phones by their names, with what is given."""

    def made(name: str = "phone", **more: object) -> Phone:
        return Phone(app=app, storage=tmp_path / name, **more)  # type: ignore[arg-type]

    return made


@pytest.fixture(scope="session")
def cpp(tmp_path_factory: pytest.TempPathFactory) -> NativeApp:
    return cpp_app(tmp_path_factory.mktemp("guarded_cpp"))


@pytest.fixture(scope="session")
def swift(tmp_path_factory: pytest.TempPathFactory) -> NativeApp:
    return swift_app(tmp_path_factory.mktemp("guarded_swift"))


@pytest.fixture
def device(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Device]:
    """Devices by their names, with what is given; a test names the language of their app."""
    app = request.getfixturevalue(request.param)

    def made(name: str = "device", **more: object) -> Device:
        return Device(app=app, storage=tmp_path / name, **more)  # type: ignore[arg-type]

    return made
