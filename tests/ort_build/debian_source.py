"""ONNX Runtime's real build scripts: the source archive of Debian, fetched by apt into the cache, never into the repo.

`ORT_MOBILE_ORT_SOURCE` names a source tree to use instead. What cannot be had is a skip that says why.
"""

import contextlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest

from tests.debian_packages import KEYRING, SUITE, _apt, _apt_root, _mirror

RELEASE = "1.21.0"
ARCHIVE = f"onnxruntime_{RELEASE}+dfsg.orig.tar.xz"
OPTIMIZERS = "onnxruntime/core/optimizer/graph_transformer_utils.cc"
REGISTRATIONS = "onnxruntime/core/providers/cpu/cpu_execution_provider.cc"
WEBGPU_BUILD = "cmake/onnxruntime_providers_webgpu.cmake"
WANTED = (
    "VERSION_NUMBER",
    "cmake/CMakeLists.txt",
    "cmake/deps.txt",
    "tools/ci_build/",
    "tools/python/util/",
    OPTIMIZERS,
    WEBGPU_BUILD,
    REGISTRATIONS,
    "onnxruntime/contrib_ops/cpu/cpu_contrib_kernels.cc",
    "orttraining/orttraining/training_ops/cpu/cpu_training_kernels.cc",
    "onnxruntime/core/optimizer/layout_transformation/layout_transformation_potentially_added_ops.h",
    "onnxruntime/core/providers/op_kernel_type_control_overrides.inc",
)
"""What plans are checked against; the rest of the archive is not unpacked."""


def source_tree(cache: Path) -> Path:
    """The scripts of a source tree; made once, then taken from the cache."""
    given = os.environ.get("ORT_MOBILE_ORT_SOURCE")
    if given:
        return Path(given)
    folder = cache / "ort-source" / RELEASE
    if not all((folder / name).exists() for name in WANTED):
        _make(folder)
    return folder


def _make(folder: Path) -> None:
    if not shutil.which("apt-get") or not KEYRING.is_file():
        pytest.skip(f"the source of ONNX Runtime cannot be fetched: apt or {KEYRING} is missing")
    shutil.rmtree(folder, ignore_errors=True)  # one that lacks a file that is wanted now
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".apt-") as name:
        root = Path(name)
        _apt_root(root)
        (root / "etc/sources.list").write_text(f"deb-src [signed-by={KEYRING}] {_mirror()} {SUITE} main\n")
        _apt(root, "update")
        _fetch(root)
        with tarfile.open(root / "cache/archives" / ARCHIVE) as archive:
            archive.extractall(root / "tree", [m for m in archive if _is_wanted(m)], filter="data")
        with contextlib.suppress(OSError):  # another process was faster
            next((root / "tree").iterdir()).rename(folder)


def _fetch(root: Path) -> None:
    """apt checks the archive against Debian's signed list; Debian's patches beside it may be missing."""
    environment = {"APT_CONFIG": str(root / "apt.conf"), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
    done = subprocess.run(
        ["apt-get", "-q", "source", "--download-only", "onnxruntime"],
        env=environment, cwd=root / "cache/archives", capture_output=True, text=True, check=False,
    )  # fmt: skip
    if not (root / "cache/archives" / ARCHIVE).is_file():
        pytest.skip(f"the source of ONNX Runtime cannot be fetched: {done.stderr.strip().splitlines()[-1:]}")


def _is_wanted(member: tarfile.TarInfo) -> bool:
    name = member.name.partition("/")[2]
    return member.isfile() and name.startswith(WANTED)
