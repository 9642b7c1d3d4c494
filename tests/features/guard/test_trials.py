"""Trials in processes of their own: whatever drivers do there, the app lives, and finds out."""

import os
import signal
import subprocess
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.features.guard.phones import App, Launch, Phone
from tests.features.guard.test_lives import crashes, provider

pytestmark = pytest.mark.long

MakePhone = Callable[..., Phone]


@pytest.fixture
def phone(helped_app: App, tmp_path: Path) -> Callable[..., Phone]:
    """Phones by their names, whose app has the helper."""

    def made(name: str = "phone", **more: object) -> Phone:
        return Phone(app=helped_app, storage=tmp_path / name, **more)  # type: ignore[arg-type]

    return made


def texts(launch: Launch, event: str) -> Iterator[str]:
    return (line for line in launch.said("event") if f'"event":"{event}"' in line)


def test_what_passed_in_a_process_of_its_own_is_opened_next(phone: MakePhone) -> None:
    ours = phone()
    first, second = ours.launch(wait=True), ours.launch()
    assert first.events == ["passed nnapi", "passed webgpu", "chosen nnapi"]
    assert all('"by":"child"' in line for line in texts(first, "passed"))
    assert (provider(second), second.events) == ("nnapi", [])
    left = {path.name for path in (ours.storage / "com.example.demo.guard").iterdir()}
    assert left == {"M.rows", "M.use", "M.trial.use", "M.lock", "events.jsonl"}
    assert not list(ours.storage.glob("*.trial/*"))  # the copy of a model that the app maps


@pytest.mark.parametrize("stage", ["options", "open", "first_run", "close"])
@pytest.mark.parametrize("kind", ["abort", "segv", "ill", "bus", "fpe", "exit"])
def test_a_driver_that_dies_ends_no_app(phone: MakePhone, kind: str, stage: str) -> None:
    for level in (34, 29):
        ours = phone(f"level{level}", level=level)
        launches = [ours.launch(f"nnapi:{kind}@{stage}", wait=True) for _ in range(2)]
        assert crashes(launches) == 0
        assert launches[0].events == ["died nnapi", "passed webgpu", "chosen webgpu"]
        (died,) = texts(launches[0], "died")
        assert f'"stage":"{stage}"' in died
        assert ('"signal":' in died) == (kind != "exit")
        assert provider(launches[1]) == "webgpu"


@pytest.mark.parametrize("kind", ["nan", "inf", "zeros", "half", "permuted", "reversed"])
def test_wrong_outputs_are_seen_there(phone: MakePhone, kind: str) -> None:
    launches = [phone().launch(f"nnapi:{kind}@run", wait=True) for _ in range(2)]
    assert launches[0].events == ["wrong nnapi", "passed webgpu", "chosen webgpu"]
    assert len({value for launch in launches for value in launch.said("sum")}) == 1


@pytest.mark.parametrize("kind", ["hang", "spin"])
@pytest.mark.parametrize("stage", ["options", "open", "first_run", "close"])
def test_a_driver_that_hangs_is_ended(phone: MakePhone, kind: str, stage: str) -> None:
    ours = phone()
    first, second = (ours.launch(f"nnapi:{kind}@{stage}", wait=True, child_limits=3000) for _ in range(2))
    assert first.is_whole
    assert first.events == ["hung nnapi", "passed webgpu", "chosen webgpu"]
    assert f'"stage":"{stage}"' in next(texts(first, "hung"))
    assert provider(second) == "webgpu"
    assert running(ours) == []


def running(ours: Phone) -> list[str]:
    """Helpers of an app that still run."""
    done = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if str(ours.storage) in line and "ort_mobile_trial" in line]


def test_what_ends_a_trial_from_outside_is_no_verdict(phone: MakePhone) -> None:
    ours = phone()
    first, second = ours.launch("nnapi:kill@open", wait=True), ours.launch(wait=True)
    assert first.is_whole
    assert first.events == ["postponed nnapi"]
    assert "the system ended the trial" in next(texts(first, "postponed"))
    assert second.events == ["passed nnapi", "passed webgpu", "chosen nnapi"]


def test_a_helper_ends_with_its_app(phone: MakePhone) -> None:
    ours = phone()
    assert ours.launch("nnapi:hang@open", wait=True, user_waits=3).code == -signal.SIGKILL
    end = time.monotonic() + 30
    while running(ours) and time.monotonic() < end:
        time.sleep(0.05)
    assert running(ours) == []
    assert ours.launch(wait=True).events[0] == "passed nnapi"  # and nobody is charged


def test_a_driver_that_refuses_is_refused(phone: MakePhone) -> None:
    first = phone().launch("nnapi:refuse@options", wait=True)
    assert first.events == ["refused nnapi", "passed webgpu", "chosen webgpu"]
    assert "no driver" in next(texts(first, "refused"))


def test_a_library_that_the_helper_cannot_open_costs_no_way(phone: MakePhone, helped_app: App, tmp_path: Path) -> None:
    """NNAPI's is hidden from it; the app tries that way behind a marker, and others still there."""
    folder = other_natives(helped_app, tmp_path / "hidden")
    (folder / "libneuralnetworks.so").unlink()
    first = phone().launch(wait=True, libraries=folder)
    assert first.events == ["no_child nnapi", "passed nnapi", "passed webgpu", "chosen nnapi"]
    assert "libneuralnetworks.so" in next(texts(first, "no_child"))
    assert ['"by":"child"' in line for line in texts(first, "passed")] == [False, True]
    dies = phone("dies")
    launches = [dies.launch("nnapi:abort@open", wait=True, libraries=folder) for _ in range(4)]
    assert crashes(launches) == 1
    assert provider(launches[3]) == "webgpu"


def other_natives(app: App, folder: Path) -> Path:
    folder.mkdir()
    for file in app.natives.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
        (folder / file.name).chmod(0o755)
    return folder


def helper_of(folder: Path) -> Path:
    return next(folder.glob("libort_mobile_trial_*.so"))


def test_without_a_helper_that_starts_the_app_tries_itself(phone: MakePhone, helped_app: App, tmp_path: Path) -> None:
    """None, of another processor, none that may be started, no ONNX Runtime, one that says nothing."""
    folders = {name: other_natives(helped_app, tmp_path / name) for name in ("none", "arm", "mode", "ort", "mute")}
    helper_of(folders["none"]).unlink()
    content = bytearray(helper_of(folders["arm"]).read_bytes())
    content[18] = 183  # e_machine: AArch64
    helper_of(folders["arm"]).write_bytes(content)
    helper_of(folders["mode"]).chmod(0o644)
    (folders["ort"] / "libonnxruntime.so").write_bytes(b"none")
    helper_of(folders["mute"]).write_text("#!/bin/sh\nexit 1\n")
    for name, folder in folders.items():
        if name == "mode" and os.geteuid() != 0 and os.access(helper_of(folder), os.X_OK):
            continue
        ours = phone(f"on_{name}")
        first = ours.launch(wait=True, libraries=folder)
        assert first.is_whole, name
        assert first.events == ["no_child nnapi", "passed nnapi", "passed webgpu", "chosen nnapi"], name
        assert all('"by":"app"' in line for line in texts(first, "passed")), name
        dies = phone(f"dies_{name}")
        launches = [dies.launch("nnapi:abort@open", wait=True, libraries=folder) for _ in range(3)]
        assert crashes(launches) == 1, name


def test_libraries_that_lie_in_the_package_are_found_there(phone: MakePhone, tmp_path: Path) -> None:
    """There is no linker of Android here, so nothing starts; and before Android 10 none may."""
    package = tmp_path / "base.apk"
    with zipfile.ZipFile(package, "w") as archive:
        archive.writestr("lib/arm64-v8a/libort_mobile_trial_com_example_demo.so", b"")
        archive.writestr("lib/arm64-v8a/libonnxruntime.so", b"")
    for level, why in ((34, "/system/bin/linker64"), (28, "Android 28 starts no program out of a package")):
        ours = phone(f"level{level}", level=level)
        launch = ours.launch(wait=True, libraries=tmp_path / "nothing", package=package)
        assert why in next(texts(launch, "no_child"))
        assert "passed nnapi" in launch.events


def test_the_app_is_told_where_a_driver_passes_and_then_fails_in_it(phone: MakePhone) -> None:
    ours = phone()
    ours.launch(wait=True)
    launches = [ours.launch("nnapi:abort@open", wait=True) for _ in range(3)]
    assert crashes(launches) == 1
    assert "died nnapi" in launches[1].events
    assert provider(launches[2]) == "webgpu"
