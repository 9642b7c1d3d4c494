"""xcframeworks of the library of samples.py, compiled for Apple's systems by ziglang."""

import functools
import plistlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

SLICES = {"aarch64-ios": ("ios", ""), "aarch64-ios-simulator": ("ios", "simulator"), "aarch64-macos": ("macos", "")}
"""Zig's name of a system to platform and variant of an xcframework."""


def compiled(folder: Path, target: str, lowest: str = "15.0") -> Path:
    """A static archive for phones and simulators, a .dylib for macOS."""
    product = folder / target / ("libtwice.dylib" if target.endswith("macos") else "libtwice.a")
    product.parent.mkdir(parents=True)
    product.write_bytes(_library(target, lowest))
    return product


@functools.cache
def _library(target: str, lowest: str) -> bytes:
    zig = pytest.importorskip("ziglang", reason="ziglang is not installed")
    headers = Path(zig.__file__).parent / "lib/libc/include/any-darwin-any"
    system = target.replace("-ios", f"-ios.{lowest}").replace("-macos", f"-macos.{lowest}")
    line = ["cc", "-target", system, "-O2", "-isystem", str(headers), str(Path(__file__).with_name("twice.c"))]
    with tempfile.TemporaryDirectory() as folder:
        if target.endswith("macos"):
            product = Path(folder, "libtwice.dylib")
            _zig(*line, "-shared", "-o", str(product))
        else:
            code, product = Path(folder, "twice.o"), Path(folder, "libtwice.a")
            _zig(*line, "-c", "-o", str(code))
            _zig("ar", "rc", str(product), str(code))
        return product.read_bytes()


def _zig(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "ziglang", *words], check=True, capture_output=True)


def framework(folder: Path, *targets: str, name: str = "twice", lowest: str = "15.0") -> Path:
    """A ZIP of an xcframework with libraries for these systems, made as Xcode makes it."""
    listed = []
    path = folder / f"{name}.xcframework.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for target in targets:
            library = compiled(folder / name, target, lowest)
            platform, variant = SLICES[target]
            archive.write(library, f"{name}.xcframework/{target}/{library.name}")
            row = {"LibraryIdentifier": target, "LibraryPath": library.name, "SupportedArchitectures": ["arm64"]}
            row |= {"SupportedPlatform": platform} | ({"SupportedPlatformVariant": variant} if variant else {})
            listed.append(row)
        document = {
            "AvailableLibraries": listed,
            "CFBundlePackageType": "XFWK",
            "XCFrameworkFormatVersion": "1.0",
        }
        archive.writestr(f"{name}.xcframework/Info.plist", plistlib.dumps(document))
    return path
