"""libonnxruntime for Linux devices of another architecture: out of that architecture's wheel, fetched once."""

import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from device_runner.errors import MissingError
from device_runner.files import ZIP_ERRORS
from device_runner.folders import NOTE, are_sound, cache_folder, note_digests, own_folder_errors
from device_runner.reading import check_unpacked

MACHINES = {"arm64-v8a": "aarch64", "x86_64": "x86_64"}
"""ABI names of devices to those of wheels."""

PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux2014")
"""glibc levels that onnxruntime's wheels were built for (1.19 to 1.31), newest first."""

WHEEL_LIBRARY = re.compile(r"onnxruntime/capi/libonnxruntime\.so\.\d[\d.]*")
MAX_BYTES = 256 << 20
"""No library of a wheel for CPUs is larger; 1.31's has 27 MB."""
SECONDS = 600.0


def foreign_library(abi: str, version: str = "") -> Path:
    """Libonnxruntime of the wheel for that ABI and release (the installed one's by default), from the cache or PyPI.

    Raises MissingError where there is no such wheel, or it cannot be fetched.
    """
    release = version or importlib.metadata.version("onnxruntime")
    machine = MACHINES.get(abi)
    if machine is None:
        raise MissingError(f"there is no onnxruntime wheel for {abi}", remedy="name a library for it with --library")
    target = cache_folder() / "wheels" / f"{release}-{machine}" / "libonnxruntime.so"
    if not _is_kept(target):
        with own_folder_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            _unpack(_download(release, machine, Path(folder)), Path(folder) / "library").replace(target)
        with own_folder_errors(target):
            note_digests(target.parent, [target.name])
    return target


def _is_kept(target: Path) -> bool:
    """Whether the library is there and what was fetched; earlier releases noted no digest of it: that is done now."""
    if target.is_file() and not (target.parent / NOTE).exists():
        with own_folder_errors(target):
            note_digests(target.parent, [target.name])
    return are_sound(target.parent, [target.name])


def _download(release: str, machine: str, folder: Path) -> Path:
    platforms = [word for name in PLATFORMS for word in ("--platform", f"{name}_{machine}")]
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(folder),
        *platforms, f"onnxruntime=={release}",
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise _unfetched(release, machine, f"pip took longer than {SECONDS:.0f} s") from error
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise _unfetched(release, machine, done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no wheel")
    return wheels[0]


def _unpack(wheel: Path, target: Path) -> Path:
    """The one library of a wheel as `target`; nothing else is unpacked, and no name in it counts."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if WHEEL_LIBRARY.fullmatch(name)]
            for name in names[:1]:
                check_unpacked(archive.getinfo(name), MAX_BYTES)
            content = archive.read(names[0]) if names else b""
    except ZIP_ERRORS as error:
        raise MissingError(
            "this wheel cannot be unpacked", where=wheel.name, why=str(error), remedy="fetch it again"
        ) from error
    if not names:
        raise MissingError(
            "this wheel has no libonnxruntime",
            where=wheel.name,
            why="wheels have a C library of their own from 1.19 on",
            remedy="name a library with --library",
        )
    with target.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return target


def _unfetched(release: str, machine: str, why: str) -> MissingError:
    return MissingError(
        f"the wheel of onnxruntime {release} for {machine} cannot be fetched",
        why=why,
        remedy="check the network, or name a library for the device with --library",
    )
