"""Devices in a folder: launches of an app in C++ or Swift with drivers that end it, and how its processes ended."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx
import onnxruntime
import pytest
from onnx import helper

from pipeline.campaign.run_options import options_name
from pipeline.features.guard import cpp
from tests.debian_packages import unpacked
from tests.features.android.samples import CPU, NNAPI, WEBGPU
from tests.features.guard.models import desk
from tests.features.guard.phones import CRASH_NATIVE, EXIT_SELF, SIGNALED, USER_REQUESTED, Launch
from tests.ort_models import conv_relu

HERE = Path(__file__).parent
RUNS = (NNAPI, WEBGPU, CPU)


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeApp:
    """How an app is started, the folder that it keeps below its storage, and what it is given."""

    command: Sequence[str]
    folder: str
    given: Mapping[str, object]


@dataclass(slots=True, kw_only=True)
class Device:
    """A device with an app: its storage lasts from launch to launch; from level 30 on it knows how processes ended."""

    app: NativeApp
    storage: Path
    level: int = 29
    boot: int = 3
    ended: str = ""
    properties: dict[str, object] = field(default_factory=dict)

    @property
    def files(self) -> Path:
        """The guard's folder."""
        return self.storage / self.app.folder

    def launch(self, faults: str = "", *, seconds: float = 60, user_waits: float = 0, **more: object) -> Launch:
        """Start the app; after `user_waits` seconds without an end, a user ends it."""
        self.storage.mkdir(exist_ok=True)
        given = {
            **self.app.given, "storage": self.files, "home": self.storage, "faults": faults, "level": self.level,
            "boot": self.boot, "ended": self.ended, "system": "a build", "runs": 3, "limit": 20_000, "noise": -1,
            **self.properties, **more,
        }  # fmt: skip
        words = {name.upper(): "1" if value is True else str(value) for name, value in given.items()}
        process = subprocess.Popen(
            self.app.command, env=words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        killed = False
        try:
            output, errors = process.communicate(timeout=user_waits or seconds)
        except subprocess.TimeoutExpired:
            killed = True
            process.kill()
            output, errors = process.communicate()
            assert user_waits, f"the app hangs: {output}"
        self.ended = f"{process.pid},{_reason(process.returncode, killed)},{int(time.time() * 1000)}"
        return Launch(code=process.returncode, lines=tuple(output.splitlines()), errors=errors)


def _reason(code: int, killed: bool) -> str:
    """As Android names it."""
    if killed:
        return f"{USER_REQUESTED},0"
    if code == -signal.SIGKILL:
        return f"{SIGNALED},9"
    return f"{CRASH_NATIVE},{-code}" if code < 0 else f"{EXIT_SELF},{code}"


def driven(folder: Path) -> Path:
    """The model of these tests with the operator of a driver behind it."""
    proto = conv_relu()
    proto.graph.node[-1].output[0] = "before"
    proto.graph.node.append(helper.make_node("Driver", ["before"], ["y"], domain="guard.test"))
    proto.opset_import.append(helper.make_opsetid("guard.test", 1))
    onnx.save(proto, folder / "driven.onnx")
    return folder / "driven.onnx"


def compiler(name: str) -> str:
    """A compiler; skips without."""
    found = shutil.which(name)
    if not found:
        pytest.skip(f"no {name}")
    return found


def built(command: Sequence[str]) -> None:
    """Run a compiler, which must have nothing to say."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[:3000]


def driver(folder: Path) -> Path:
    """The library with the drivers."""
    library = folder / "libdriver.so"
    built([compiler("cc"), "-shared", "-fPIC", "-O1", "-o", str(library), str(HERE / "native/driver.c")])
    return library


def runtime(folder: Path) -> Path:
    """The library of the wheel under the name that programs ask for."""
    library = next((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so*"))
    (folder / "libonnxruntime.so.1").symlink_to(library)
    return library


def sample(folder: Path) -> dict[str, object]:
    """What an app is given of the model: its file, its digest, its sample, and its session options."""
    (folder / "desk").mkdir()
    made = desk(folder / "desk", RUNS)
    (folder / "M.sample").write_bytes(made.test.data)
    return {
        "model": driven(folder), "sample": folder / "M.sample", "digest": made.order.files[0].digests,
        "ways": "\n".join(map(options_name, RUNS)),
    }  # fmt: skip


def cpp_app(folder: Path) -> NativeApp:
    """The app in C++, against Debian's headers of ONNX Runtime and the library of the wheel."""
    headers = unpacked("libonnxruntime-dev", with_dependencies=False) / "usr/include/onnxruntime"
    for name, text in cpp.headers().items():
        (folder / name).write_text(text, "utf-8")
    libraries = [str(driver(folder)), str(runtime(folder))]
    warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wno-sign-conversion"]
    words = ["-std=c++17", "-O1", *warnings, "-isystem", str(headers), "-I", str(folder), str(HERE / "native/app.cc")]
    program = folder / "app"
    built([compiler("g++"), *words, *libraries, "-pthread", f"-Wl,-rpath,{folder}", "-o", str(program)])
    return NativeApp(command=(str(program),), folder="my.guard", given=sample(folder))
