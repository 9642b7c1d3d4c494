"""What a build needs on this machine: looked up before hours are spent, with where to get what is missing.

`look` asks the machine; the tools that a platform needs are a table; `examine` puts all together.
"""

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from device_runner import errors as runner_errors
from pipeline import config as configs
from pipeline.config import tables as config_tables
from pipeline.core.errors import MissingError
from pipeline.ort_build.plan import AAR_SCRIPT, ASSET_CACHE_FLAG
from pipeline.ort_build.request import ASSET_CACHE_SINCE, Request, version_key
from pipeline.ort_build.run import build_environment
from pipeline.ort_build.tree import text_of, tree_release

GIB = 1 << 30
ASK_SECONDS = 30


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a build needs: what is present, and what to do when that is not enough."""

    name: str
    present: str = msgspec.field(default="", name="found")
    good: bool
    why: str = ""
    remedy: str = ""


_TOOLS: dict[str, tuple[str, str, str]] = {
    "cmake": ("ONNX Runtime is built by CMake", runner_errors.pip_install("cmake"), ""),
    "ninja": ("the generator of the plan", runner_errors.pip_install("ninja"), ""),
    "c++": ("C++17 compiler", "apt-get install g++ (11 or newer), or your system's", ""),
    "javac": ("Java bindings and Gradle", "install a JDK 17 (apt-get install openjdk-17-jdk)", "17"),
    "xcodebuild": ("Apple's compilers and SDKs", "build on a Mac with Xcode installed", "15"),
    "protoc": ("compiles ONNX's protobuf", "apt-get install protobuf-compiler", ""),
    "pkg-config": ("finds re2 and its like", "apt-get install pkgconf", ""),
}
"""Programs: what each is for, how to get it, and its lowest version, "" for any. The source tree names CMake's."""

_NEEDED: dict[configs.Platform, tuple[str, ...]] = {
    configs.Platform.ANDROID: ("cmake", "ninja", "javac"),
    configs.Platform.IOS: ("cmake", "xcodebuild"),
    configs.Platform.MACOS: ("cmake", "xcodebuild"),
    configs.Platform.LINUX: ("cmake", "ninja", "c++"),
}

_HEADERS: dict[str, str] = {
    "absl/base/config.h": "libabsl-dev",
    "boost/mp11.hpp": "libboost-dev",
    "cpuinfo.h": "libcpuinfo-dev",
    "date/date.h": "libhowardhinnant-date-dev",
    "flatbuffers/flatbuffers.h": "libflatbuffers-dev",
    "google/protobuf/message_lite.h": "libprotobuf-dev",
    "gsl/gsl": "libmsgsl-dev",
    "nlohmann/json.hpp": "nlohmann-json3-dev",
    "re2/re2.h": "libre2-dev",
    "safeint/SafeInt.hpp": "libsafeint-dev",
}
"""Headers below /usr/include that system dependencies need, by Debian's packages. Eigen is CMake's to find."""

DISK_BYTES: dict[configs.Platform, int] = {
    configs.Platform.ANDROID: 4 * GIB,
    configs.Platform.IOS: 6 * GIB,
    configs.Platform.MACOS: 6 * GIB,
    configs.Platform.LINUX: 3 * GIB,
}
"""Free space that one ABI takes with its object files, generously."""


def look(command: tuple[str, ...]) -> str | None:
    """The version that a program prints, None when it is not there, empty when it prints none."""
    program = shutil.which(command[0], path=build_environment(os.environ)["PATH"])
    if program is None:
        return None
    try:
        answer = subprocess.run(
            [program, *command[1:]], capture_output=True, text=True, errors="replace", timeout=ASK_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"\d+(\.\d+)+|\b\d+\b", answer.stdout + answer.stderr)
    return match[0] if match and answer.returncode == 0 else ""


def examine(
    request: Request, source: Path | None, work: Path, environment: Mapping[str, str] | None = None
) -> tuple[Check, ...]:
    """Everything that this build needs, in the order in which one would get it; `source` is ONNX Runtime's tree."""
    environment = os.environ if environment is None else environment
    platform = request.target.platform
    checks = [
        Check(
            name="source tree",
            present=f"ONNX Runtime {tree_release(source)} in {source}" if source else "",
            good=source is not None,
            why=f"the target wants {request.version}",
            remedy=f"git clone --recursive --branch v{request.version} the repository microsoft/onnxruntime, and give "
            "its folder with --source",
        )
    ]
    checks += [_tool_check(name, source) for name in _NEEDED[platform]]
    if request.operators is not None:
        name, installed = "flatbuffers", ""
        with contextlib.suppress(PackageNotFoundError):
            installed = version(name)
        checks.append(
            Check(
                name=f"Python package {name}",
                present=installed,
                good=bool(installed),
                why="reads operator configs with types",
                remedy=runner_errors.pip_install(name),
            )
        )
    if platform is configs.Platform.ANDROID:
        checks += _android_checks(request, source, environment)
    if request.settings.dependencies is config_tables.Dependencies.SYSTEM:
        checks += _system_checks(request)
    folder = next(path for path in (work, *work.absolute().parents) if path.is_dir())
    free = shutil.disk_usage(folder).free
    needed = DISK_BYTES[platform] * len(request.abis)
    return (
        *checks,
        Check(
            name="disk",
            present=f"{free / GIB:.1f} GiB free in {folder}",
            good=free >= needed,
            why=f"{needed / GIB:.0f} GiB for {len(request.abis)} ABI",
            remedy="free some space, or choose another folder with --output",
        ),
    )


def require(checks: tuple[Check, ...]) -> None:
    """Raise MissingError (exit code 3) with everything that is missing."""
    missing = [check for check in checks if not check.good]
    if missing:
        raise MissingError(
            f"missing for this build: {', '.join(check.name for check in missing)}",
            remedy="; ".join(dict.fromkeys(check.remedy for check in missing)),
        )


def _tool_check(name: str, source: Path | None) -> Check:
    why, remedy, minimum = _TOOLS[name]
    if name == "cmake" and source:
        minimum = cmake_minimum(source)
    present = look((name, "-version" if name in ("javac", "xcodebuild") else "--version"))
    new_enough = not minimum or (bool(present) and version_key(present or "0") >= version_key(minimum))
    return Check(
        name=name,
        present=present or ("" if present is None else "of unknown version"),
        good=present is not None and new_enough,
        why=f"{why}{f', {minimum} or newer' if minimum else ''}",
        remedy=remedy,
    )


def cmake_minimum(source: Path) -> str:
    """The version that the CMake file of a source tree demands, "" where it names none."""
    demand = re.search(r"cmake_minimum_required\(VERSION (\d+(?:\.\d+)*)", text_of(source / "cmake/CMakeLists.txt"))
    return demand[1] if demand else ""


def _android_checks(request: Request, source: Path | None, environment: Mapping[str, str]) -> list[Check]:
    sdk, ndk = android_folders(environment)
    platforms = sorted(path.name for path in (sdk / "platforms").glob("android-*")) if sdk else []
    revision = ""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        text = (ndk / "source.properties").read_text("utf-8") if ndk else ""
        revision = "".join(re.findall(r"Pkg\.Revision\s*=\s*([\w.]+)", text)[:1])
    checks = [
        Check(
            name="Android SDK",
            present=f"{sdk} ({', '.join(platforms) or 'no platforms'})" if sdk else "",
            good=bool(platforms),
            why="Gradle compiles the AAR with it",
            remedy="get Android's command line tools, `sdkmanager 'platforms;android-34'`, and set ANDROID_HOME",
        ),
        Check(
            name="Android NDK",
            present=f"{ndk} {revision}" if ndk else "",
            good=ndk is not None,
            why="compiles for the phone",
            remedy="`sdkmanager 'ndk;27.2.12479018'`, and set ANDROID_NDK_HOME to its folder",
        ),
    ]
    if source is None:
        return checks
    # What a source tree lacks or has too much of for an AAR
    wrapper = source / "java/gradle/wrapper/gradle-wrapper.jar"
    script = source / AAR_SCRIPT
    blocked = (
        request.release >= ASSET_CACHE_SINCE and script.is_file() and ASSET_CACHE_FLAG in script.read_text("utf-8")
    )
    return [
        *checks,
        Check(
            name="gradle-wrapper.jar",
            present=str(wrapper) if wrapper.is_file() else "",
            good=wrapper.is_file(),
            why="Gradle packs the AAR; some source archives leave it out",
            remedy="take a git checkout, or run `gradle wrapper` in its folder java",
        ),
        Check(
            name="downloads by vcpkg",
            present=f"{ASSET_CACHE_FLAG} in {AAR_SCRIPT}" if blocked else "allowed",
            good=not blocked,
            why="that flag blocks all downloads outside Microsoft, and no setting turns it off",
            remedy=f"remove {ASSET_CACHE_FLAG} from {script}",
        ),
    ]


def android_folders(environment: Mapping[str, str]) -> tuple[Path | None, Path | None]:
    """SDK and NDK: from ANDROID_HOME and ANDROID_NDK_HOME, else the newest NDK inside the SDK."""
    sdk = _folder(environment.get("ANDROID_HOME") or environment.get("ANDROID_SDK_ROOT"))
    ndk = _folder(environment.get("ANDROID_NDK_HOME") or environment.get("ANDROID_NDK_ROOT"))
    if ndk is None and sdk is not None:
        folders = [path for path in (sdk / "ndk").glob("*") if (path / "source.properties").is_file()]
        ndk = max(folders, key=lambda path: [int(part) for part in re.findall(r"\d+", path.name)], default=None)
    return sdk, ndk


def _folder(name: str | None) -> Path | None:
    return Path(name) if name and Path(name).is_dir() else None


def _system_checks(request: Request) -> list[Check]:
    missing = sorted(package for header, package in _HEADERS.items() if not Path("/usr/include", header).is_file())
    onnx = Path(request.settings.onnx_source or "", "onnx/onnx-ml.proto")
    return [
        *(_tool_check(name, None) for name in ("protoc", "pkg-config")),
        Check(
            name="headers of this system's libraries",
            present=f"missing: {', '.join(missing)}" if missing else f"{len(_HEADERS)} packages",
            good=not missing,
            why="they take the place of downloads",
            remedy=f"apt-get install {' '.join(missing)}",
        ),
        Check(
            name="source of ONNX",
            present=str(onnx.parent.parent) if onnx.is_file() else "",
            good=onnx.is_file(),
            why="minimal builds compile three of its files",
            remedy="unpack the release that cmake/deps.txt names, and give its folder as onnx_source in [build]",
        ),
    ]
