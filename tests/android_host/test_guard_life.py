"""Lives of an app on Android's own library, in a JVM: the guard's real classes, its helper, and bad drivers."""

import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from device_runner.android_host.build import build_host
from device_runner.android_host.device import Driver, DriverProfile, DriverStage, Fault, FaultKind
from device_runner.android_host.device import Phone as HostPhone
from device_runner.build import build_trial
from device_runner.library import find_archive
from pipeline.features.android.protection import trial_name
from tests.android_host.conftest import fetch
from tests.features.android.samples import needs_java
from tests.features.guard.phones import App, Launch, Phone, build

pytestmark = pytest.mark.android_host

WHOLE = "1.29.0"
"""The release of which a package has the whole AAR, with the Java library."""


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> App:
    """The app of these tests with the classes and native libraries of the AAR, our NNAPI, and the helper."""
    needs_java()
    fetch(WHOLE)
    folder = tmp_path_factory.mktemp("app")
    natives = shutil.copytree(build_host(), folder / "natives")
    shutil.copy(build_trial(), natives / f"lib{trial_name('com.example.demo')}.so")
    with zipfile.ZipFile(find_archive(f"android:{WHOLE}")) as archive:
        archive.extract("classes.jar", folder)
        for name in ("libonnxruntime.so", "libonnxruntime4j_jni.so"):
            (natives / name).write_bytes(archive.read(f"jni/x86_64/{name}"))
    (folder / "built").mkdir()
    made = build(folder / "built", folder / "classes.jar", helper=True)
    return replace(made, natives=natives)


def launch(ours: Phone, folder: Path, *faults: Fault, **more: object) -> Launch:
    """A launch with a driver of these faults."""
    driver = DriverProfile(devices=(Driver(name="npu", feature_level=31),), faults=faults)
    host = HostPhone(driver=driver).environment(folder)
    ours.variables = {**host, "LD_LIBRARY_PATH": str(ours.app.natives)}
    ours.properties = {"onnxruntime.native.path": ours.app.natives}
    return ours.launch(wait=True, **more)  # type: ignore[arg-type]


def fault(kind: FaultKind, stage: DriverStage = DriverStage.RUN, first: int = 1) -> Fault:
    return Fault(stage=stage, kind=kind, first=first, delay_ns=1_000_000)


@pytest.fixture
def ours(app: App, tmp_path: Path) -> Phone:
    return Phone(app=app, storage=tmp_path / "phone")


def provider(found: Launch) -> str:
    return found.way.partition("+")[0]


def of_nnapi(found: Launch) -> list[str]:
    return [event for event in found.events if event.endswith("nnapi")]


def test_a_driver_that_works_is_opened_from_the_second_launch_on(ours: Phone, tmp_path: Path) -> None:
    first, second = launch(ours, tmp_path), launch(ours, tmp_path)
    assert provider(first) == "cpu"
    assert of_nnapi(first) == ["passed nnapi", "chosen nnapi"]
    assert any('"by":"child"' in line for line in first.said("event"))
    assert (provider(second), of_nnapi(second)) == ("nnapi", [])
    slow = launch(ours, tmp_path, fault(FaultKind.SLOW))
    assert provider(slow) == "nnapi"


@pytest.mark.parametrize(
    ("given", "event"),
    [
        (fault(FaultKind.ABORT, DriverStage.COMPILE), "died nnapi"),
        (fault(FaultKind.ILLEGAL), "died nnapi"),
        (fault(FaultKind.CRASH, DriverStage.WAIT), "died nnapi"),
        (fault(FaultKind.NAN), "wrong nnapi"),
        (fault(FaultKind.ZEROS), "wrong nnapi"),
        (fault(FaultKind.NOISE), "wrong nnapi"),
        (fault(FaultKind.PERMUTED), "wrong nnapi"),
        (fault(FaultKind.HANG), "hung nnapi"),
    ],
    ids=lambda given: given if isinstance(given, str) else given.kind.value,
)
def test_a_driver_that_is_bad_from_the_start_is_never_opened(
    ours: Phone, tmp_path: Path, given: Fault, event: str
) -> None:
    launches = [launch(ours, tmp_path, given, child_limits=2000) for _ in range(2)]
    assert all(found.is_whole for found in launches)
    assert of_nnapi(launches[0]) == [event]
    assert "nnapi" not in {provider(found) for found in launches}
    assert len({value for found in launches for value in found.said("sum")}) == 1


def test_a_driver_that_begins_to_die_in_use_ends_the_app_once(ours: Phone, tmp_path: Path) -> None:
    launch(ours, tmp_path)
    launches = [launch(ours, tmp_path, fault(FaultKind.ABORT, first=3)) for _ in range(3)]
    assert [found.is_whole for found in launches] == [False, True, True]
    assert provider(launches[0]) == "nnapi"
    assert "died nnapi" in launches[1].events
    assert "nnapi" not in {provider(found) for found in launches[1:]}


def test_a_driver_that_begins_to_give_nonsense_is_seen_when_it_is_opened(ours: Phone, tmp_path: Path) -> None:
    good = launch(ours, tmp_path)
    later = launch(ours, tmp_path, fault(FaultKind.ZEROS))
    assert "wrong nnapi" in later.events
    assert later.said("sum") == good.said("sum")
