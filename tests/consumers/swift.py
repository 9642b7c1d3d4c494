"""A Swift toolchain of Debian in a root folder of its own, and ONNX Runtime's Swift package over the C API.

The Objective-C sources of that package need Apple's runtime; what stands in for them has the same names and signatures
(docs/facts/release_consumers.md, R.8), and so does the product's own for libraries without Objective-C.
"""

import shutil
import subprocess
from importlib import resources
from pathlib import Path

import onnxruntime
import pytest

from pipeline.release.apple.package import REPOSITORY
from tests.debian_packages import unpacked

PACKAGES = ("swiftlang", "libc6-dev", "libstdc++-14-dev", "dash", "coreutils", "git")
LINKS = ("bin", "sbin", "lib", "lib64")
ENTER = """\
root=$1 tree=$2 work=$3
shift 3
mount --rbind "$tree/usr" "$root/usr" && mount --rbind "$work" "$root/build" && mount --rbind /dev "$root/dev" &&
mount -t proc proc "$root/proc" && exec chroot "$root" /usr/bin/env -i "$@"
"""
ENVIRONMENT = (
    "HOME=/root", "PATH=/usr/libexec/swift/bin:/usr/bin", "LC_ALL=C.UTF-8", "ORT_DISABLE_TELEMETRY=1",
    "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*", "LD_LIBRARY_PATH=/build/lib",
)  # fmt: skip

BINDINGS_MANIFEST = """\
// swift-tools-version: 5.9
import PackageDescription
let package = Package(
    name: "onnxruntime", platforms: [.iOS(.v15), .macOS(.v14)],
    products: [.library(name: "onnxruntime", type: .static, targets: ["OnnxRuntimeBindings"])],
    targets: [.target(name: "COnnxRuntime"), .target(name: "OnnxRuntimeBindings", dependencies: ["COnnxRuntime"])]
)
"""
MODULE_MAP = 'module COnnxRuntime {\n    header "onnxruntime_c_api.h"\n    link "onnxruntime_c"\n    export *\n}\n'
BUILD = f"""
set -e
cd /build/onnxruntime-swift-package-manager
git init -q .
git add .
git -c user.name=test -c user.email=test@localhost commit -qm "The package"
git tag "$1"
cd /build/app
swift package config set-mirror --original {REPOSITORY} --mirror file:///build/onnxruntime-swift-package-manager
swift build --disable-sandbox -j 2 -Xlinker -L/build/lib
"""


def run(work: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the toolchain with `work` as its /build; skips where that cannot be had."""
    if not shutil.which("unshare"):
        pytest.skip("no unshare here: folders cannot be mounted without root")
    tree = unpacked(*PACKAGES)
    root = work.with_name(f"{work.name} root")
    for name in ("usr", "proc", "dev", "tmp", "build", "root"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in LINKS:
        if not (root / name).is_symlink():
            (root / name).symlink_to(f"usr/{name}")
    enter = ["unshare", "--map-root-user", "--mount", "--pid", "--fork", "sh", "-c", ENTER, "sh"]
    done = subprocess.run(
        [*enter, str(root), str(tree), str(work), *ENVIRONMENT, *command], capture_output=True, text=True, check=False
    )
    if "unshare failed" in done.stderr:
        pytest.skip(f"no namespaces here: {done.stderr.strip()}")
    return done


def build(work: Path, version: str) -> str:
    """Build the app in `work`/app with ONNX Runtime's Swift package of a version; what the tools say of failing."""
    _write_bindings(work / "onnxruntime-swift-package-manager")
    (work / "lib").mkdir()
    library = next((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so*"))
    for name in ("libonnxruntime_c.so", "libonnxruntime.so.1"):
        shutil.copy(library, work / "lib" / name)
    done = run(work, "sh", "-c", BUILD, "sh", version)
    return done.stdout + done.stderr if done.returncode else ""


def _write_bindings(folder: Path) -> None:
    headers = unpacked("libonnxruntime-dev", with_dependencies=False) / "usr/include/onnxruntime"
    include = folder / "Sources/COnnxRuntime/include"
    include.mkdir(parents=True)
    shutil.copy(headers / "onnxruntime_c_api.h", include)
    (include / "module.modulemap").write_text(MODULE_MAP)
    (folder / "Sources/COnnxRuntime/empty.c").touch()
    (folder / "Sources/OnnxRuntimeBindings").mkdir()
    source = resources.files("pipeline.release.apple") / "templates/OnnxRuntimeBindings.swift"
    (folder / "Sources/OnnxRuntimeBindings/OnnxRuntimeBindings.swift").write_text(source.read_text("utf-8"))
    (folder / "Package.swift").write_text(BINDINGS_MANIFEST)
