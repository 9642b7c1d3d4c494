"""Genuine Android libraries from registry packages; tests that need one skip by name where it cannot be had."""

import contextlib
import ctypes.util
import importlib.metadata
import importlib.util
import os
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from device_runner.android_host.device import AndroidHost, Phone
from device_runner.device import Device, open_device
from device_runner.errors import UnavailableError
from device_runner.files import taking_turns
from device_runner.host_device import check_host
from device_runner.library import LibraryFacts, resolve
from device_runner.vulkan import find_driver
from pipeline.core.errors import PipelineError
from pipeline.library.fetch import PACKAGES
from tests.debian_packages import unpacked
from tests.npm_packages import library_entry
from tests.own_home import FOLDER_VARIABLE

ROOT = Path(__file__).resolve().parents[2]
NEWEST = PACKAGES[0].release
OLDEST = PACKAGES[-1].release


def fetch(release: str, abi: str = "x86_64") -> LibraryFacts:
    """The library of a release, fetched once; skips where this machine cannot run or have it."""
    try:
        check_host(abi)
        library_entry(f"android:{release}")
        return resolve(release, abi).android()
    except (UnavailableError, PipelineError) as error:
        pytest.skip(f"no android:{release} here: {error}")


@pytest.fixture(scope="session")
def release() -> str:
    """The installed onnxruntime's release where a package has its library, else the newest one."""
    installed = importlib.metadata.version("onnxruntime")
    return installed if installed in {package.release for package in PACKAGES} else NEWEST


@pytest.fixture(scope="session")
def library(release: str) -> LibraryFacts:
    return fetch(release)


@pytest.fixture(scope="session")
def mnist() -> Path:
    return ROOT / "build_configs" / "examples" / "mnist" / "mnist.onnx"


@pytest.fixture(scope="session")
def vulkan() -> str:
    """A Vulkan driver that computes on the CPU: SwiftShader, which Debian's chromium brings."""
    with contextlib.suppress(UnavailableError):
        return str(find_driver("swiftshader"))
    return str(find_driver(str(unpacked("chromium-common", with_dependencies=False, suite="bookworm"))))


needs_plugin = pytest.mark.skipif(
    not importlib.util.find_spec("onnxruntime_ep_webgpu"), reason="onnxruntime-ep-webgpu is not installed"
)


@pytest.fixture(params=[pytest.param("local", marks=needs_plugin, id="plugin"), pytest.param("", id="android")])
def gpu(request: pytest.FixtureRequest, library: LibraryFacts, vulkan: str) -> Iterator[Device]:
    """A software GPU: the plugin's in this computer's library, and the Android library's."""
    if request.param:
        with open_device(f"local?vulkan={vulkan}") as here:
            yield here
    else:
        with AndroidHost("android-host", library, Phone(vulkan=vulkan)) as phone:
            yield phone


@pytest.fixture(scope="session")
def lavapipe() -> str:
    """A Vulkan driver with half precision: lavapipe of Mesa 25, this computer's or, on Debian 12, out of backports."""
    if ctypes.util.find_library("LLVM-15"):
        mesa = unpacked("mesa-vulkan-drivers", with_dependencies=False, suite="bookworm-backports")
        return str(find_driver(str(mesa)))
    try:
        return str(find_driver("lavapipe"))
    except UnavailableError as error:
        pytest.skip(f"no lavapipe here: {error}")


def _unpacked(oracle: Path, name: str) -> Path:
    """The folder of an archive's models, which all processes of a run share: 5,388 files take two seconds."""
    folder = Path(os.environ[FOLDER_VARIABLE]) / "models" / name
    with taking_turns(folder.with_name(f"{name}.lock")):
        if not folder.is_dir():
            with zipfile.ZipFile(oracle / f"{name}.zip") as archive:
                archive.extractall(whole := folder.with_name(f"{name}.begun"))
            whole.rename(folder)
    return folder


@pytest.fixture(scope="session")
def real_model(oracle: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """One real architecture of the oracle by its name; all of them are half a gigabyte."""

    def unpack(name: str) -> Path:
        with zipfile.ZipFile(oracle / "real.zip") as archive:
            return Path(archive.extract(f"{name}.onnx", tmp_path_factory.mktemp("real")))

    return cache(unpack)


@pytest.fixture(scope="session")
def real_models(oracle: Path) -> list[Path]:
    """Real architectures of the oracle, unpacked."""
    return sorted(_unpacked(oracle, "real").rglob("*.onnx"))


@pytest.fixture(scope="session")
def op_models(oracle: Path) -> Path:
    """The folder of one-operator models, FAMILY/NAME.onnx."""
    return _unpacked(oracle, "ops")
