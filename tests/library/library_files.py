"""Files with the layout of ONNX Runtime's packages, and the smallest libraries that are whole."""

import struct
import zipfile
from pathlib import Path

MINIMAL = b"ONNX format model is not supported in this build."
"""What minimal builds say and full ones do not."""

MACHINES = {"arm64-v8a": 183, "x86_64": 62}


def library(
    abi: str, *, needed: str = "libc.so", extra: bytes = b"", alignment: int = 16384,
    functions: tuple[str, ...] = ("OrtGetApiBase",),
) -> bytes:  # fmt: skip
    """A 64-bit ELF file that exports `functions` and needs one library; `extra` stands in its data."""
    strings, symbols, chain = b"\0", bytes(24), b""
    for number, name in enumerate(functions, start=1):
        symbols += struct.pack("<IBBHQQ", len(strings), 0x12, 0, 1, 0x100, 4)
        chain += struct.pack("<I", number == len(functions))
        strings += name.encode() + b"\0"
    needed_at = len(strings)
    strings += needed.encode() + b"\0"
    table = struct.pack("<IIII", 1, 1, 1, 0) + struct.pack("<Q", 0) + struct.pack("<I", 1) + chain
    start = 64 + 2 * 56
    places = [start, start + 6 * 16]
    places += [places[1] + len(strings)]
    places += [places[2] + len(symbols)]
    end = places[3] + len(table)
    tags = ((5, places[1]), (6, places[2]), (0x6FFFFEF5, places[3]), (10, len(strings)), (1, needed_at), (0, 0))
    dynamic = b"".join(struct.pack("<QQ", *tag) for tag in tags)
    body = dynamic + strings + symbols + table + b"\0" + extra + b"\0"
    size = end + len(extra) + 2
    head = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 3, MACHINES[abi], 1, 0, 64, 0, 0, 64, 56, 2, 64, 0, 0)
    head += struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, size, size, alignment)
    head += struct.pack("<IIQQQQQQ", 2, 6, start, start, start, len(dynamic), len(dynamic), 8)
    return head + body


def texts(release: str, *providers: str) -> bytes:
    """What a library of a release with these providers carries in its data."""
    paths = b"".join(b"/src/onnxruntime/core/providers/%s/x.cc\0" % name.encode() for name in ("cpu", *providers))
    return b"VERS_%s\0" % release.encode() + paths


def _add(archive: zipfile.ZipFile, name: str, content: str | bytes) -> None:
    """A member without the time of day, so that equal archives have equal bytes."""
    archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)


def official_aar(path: Path, release: str = "1.28.0", abis: tuple[str, ...] = ("arm64-v8a", "x86_64")) -> Path:
    """An AAR as ONNX Runtime's Gradle build lays it out: classes, headers, both libraries of each ABI."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        manifest = (
            f'<manifest package="ai.onnxruntime"><uses-sdk android:minSdkVersion="24"/></manifest><!--{release}-->'
        )
        _add(archive, "AndroidManifest.xml", manifest)
        _add(archive, "classes.jar", b"PK\x05\x06" + bytes(18))
        _add(archive, "R.txt", "")
        for header in ("onnxruntime_c_api.h", "cpu_provider_factory.h", "nnapi_provider_factory.h"):
            _add(archive, f"headers/{header}", f"// {release}")
        for abi in abis:
            content = library(abi, extra=texts(release, "nnapi", "xnnpack"))
            _add(archive, f"jni/{abi}/libonnxruntime.so", content)
            _add(archive, f"jni/{abi}/libonnxruntime4j_jni.so", b"\x7fELF")
    return path


def official_jar(path: Path, release: str = "1.28.0") -> Path:
    """The JVM's JAR: a folder for each desktop system and architecture."""
    folders = {"linux-x64": "x86_64", "linux-aarch64": "arm64-v8a"}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        _add(archive, "META-INF/MANIFEST.MF", "Manifest-Version: 1.0\n")
        for folder, abi in folders.items():
            content = library(abi, needed="libc.so.6", extra=texts(release))
            _add(archive, f"ai/onnxruntime/native/{folder}/libonnxruntime.so", content)
        _add(archive, "ai/onnxruntime/native/osx-aarch64/libonnxruntime.dylib", b"\xcf\xfa\xed\xfe")
        _add(archive, "ai/onnxruntime/native/win-x64/onnxruntime.dll", b"MZ")
    return path
