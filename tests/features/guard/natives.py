"""Devices in a folder: launches of an app in C++ or Swift with drivers that end it, and how its processes ended."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import onnx
import onnxruntime
import pytest
from onnx import helper

from device_runner.spec import RunOptions
from pipeline.campaign.run_options import options_name
from pipeline.features.apple.package import BINDINGS
from pipeline.features.apple.sources import swift_sources
from pipeline.features.guard import cpp
from pipeline.release.app_fit import ROLLBACK
from tests.consumers import swift as toolchain
from tests.debian_packages import unpacked
from tests.features.android.samples import WEBGPU, manifest, signature
from tests.features.apple.samples import COREML, for_ios
from tests.features.guard.models import desk
from tests.features.guard.phones import CRASH_NATIVE, EXIT_SELF, SIGNALED, USER_REQUESTED, Launch
from tests.ort_models import conv_relu

HERE = Path(__file__).parent
RUNS = (COREML, WEBGPU, RunOptions())


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
    for name in ("libonnxruntime.so.1", "libonnxruntime_c.so"):
        shutil.copy(library, folder / name)
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


REGISTER = """\
OrtStatus *RegisterDriver(OrtSessionOptions *options, const OrtApiBase *base, const char *provider);
"""
SWIFT = """\
set -e
cd /build
swiftc -O -parse-as-library -emit-library -emit-module -module-name OnnxRuntimeBindings -I . -L . bindings/*.swift \
    -o libOnnxRuntimeBindings.so
swiftc -Onone -module-name App -D SWIFT_PACKAGE -I . -I crypto -L . app/*.swift -lOnnxRuntimeBindings -o app.out
"""


def swift_app(folder: Path) -> NativeApp:
    """The app in Swift with the classes of a package, whose session options all have the driver.

    They run over the product's own bindings of the C API, in which a provider is what the driver does of its name.
    """
    given = sample(folder)
    libraries = (driver(folder), runtime(folder))
    headers = unpacked("libonnxruntime-dev", with_dependencies=False) / "usr/include/onnxruntime"
    (folder / "onnxruntime_c_api.h").write_text(
        (headers / "onnxruntime_c_api.h").read_text("utf-8") + REGISTER, "utf-8"
    )
    (folder / "module.modulemap").write_text(toolchain.MODULE_MAP.replace("export *", 'link "driver"\n    export *'))
    (folder / "bindings").mkdir()
    (folder / "bindings/bindings.swift").write_text(_driven_bindings(), "utf-8")
    toolchain.write_crypto(folder / "crypto")
    ships = for_ios(runs=RUNS, file="models/driven.onnx")
    texts = swift_sources(
        manifest([ships], [signature()], rollback=ROLLBACK), "phone", "DemoModels", deny_key="04" * 65
    )
    (folder / "app").mkdir()
    for name, text in texts.items():
        (folder / "app" / name).write_text(text.replace("2" * 64, str(given["digest"])), "utf-8")
    for name in ("main.swift", "Resources.swift"):
        shutil.copy(HERE / "native" / name, folder / "app")
    (folder / "Models").mkdir()
    for path in (folder / "driven.onnx", folder / "M.sample"):
        shutil.copy(path, folder / "Models")
    done = toolchain.run(folder, "sh", "-c", SWIFT)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    tree = unpacked(*toolchain.PACKAGES)
    found = {
        path.parent
        for path in tree.rglob("*.so*")
        if path.name.startswith(("libFoundation.so", "libc.so", "libstdc++"))
    }
    places = ":".join(map(str, (folder, *{path.parent for path in libraries}, *sorted(found))))
    loader = next((tree / "usr").rglob("ld-linux-*.so.2"))
    return NativeApp(
        command=(str(loader), "--library-path", places, str(folder / "app.out")),
        folder=".local/share/DemoModels.guard",
        given={**given, "resources": folder},
    )


def _driven_bindings() -> str:
    """The product's bindings, in which appending a provider only names the driver of the session."""
    folder = resources.files("pipeline.features.apple") / "templates"
    text = (folder / f"{BINDINGS}.swift").read_text("utf-8")
    append = "try check(api.pointee.SessionOptionsAppendExecutionProvider(pointer, name, keys, values, pairs.count))"
    opening = "self.env = env"
    options = "public final class ORTSessionOptions {"
    assert all(text.count(part) == 1 for part in (append, opening, options))
    text = text.replace(append, "driver = name.lowercased()")
    text = text.replace(options, options + '\n    fileprivate var driver = "cpu"')
    registered = 'try check(RegisterDriver(sessionOptions?.pointer, OrtGetApiBase(), sessionOptions?.driver ?? "cpu"))'
    return text.replace(opening, f"{opening}\n        {registered}")
