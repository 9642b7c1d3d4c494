"""xcframeworks with the parts that are read: Mach-O headers with load commands, archives, property lists."""

import plistlib
import struct
from pathlib import Path
from typing import Any

MACHINES = {"arm64": 0x0100000C, "x86_64": 0x01000007}
DEVICE, SIMULATOR = 2, 7
OBJECT, DYLIB = 1, 6


def image(machine: str = "arm64", system: int = DEVICE, lowest: str = "15.1", kind: int = OBJECT) -> bytes:
    """A Mach-O file with LC_BUILD_VERSION and the name of ONNX Runtime's entry point."""
    major, minor = map(int, lowest.split("."))
    command = struct.pack("<6I", 0x32, 24, system, major << 16 | minor << 8, 0, 0)
    header = struct.pack("<8I", 0xFEEDFACF, MACHINES[machine], 0, kind, 1, len(command), 0, 0)
    return header + command + b"_OrtGetApiBase\0\0"


def archive(*members: bytes) -> bytes:
    """A static archive as Apple's tools write them, with an index."""
    found = b"!<arch>\n"
    for name, content in ((b"__.SYMDEF\0\0\0", b"_OrtGetApiBase\0\0"), *((b"code.o\0\0", one) for one in members)):
        size = str(len(name) + len(content)).encode()
        found += b"#1/%-13d%-12d%-6d%-6d%-8d%-10s`\n" % (len(name), 0, 0, 0, 644, size) + name + content
        found += b"\n" * (len(found) % 2)
    return found


def fat(**images: bytes) -> bytes:
    """Code for several machines in one file."""
    place, table, body = 8 + 20 * len(images), b"", b""
    for machine, content in images.items():
        table += struct.pack(">5I", MACHINES[machine], 0, place + len(body), len(content), 0)
        body += content
    return struct.pack(">2I", 0xCAFEBABE, len(images)) + table + body


def listed(identifier: str, machines: list[str], variant: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {
        "LibraryIdentifier": identifier, "LibraryPath": "onnxruntime.framework", "SupportedArchitectures": machines,
        "SupportedPlatform": "ios",
    }  # fmt: skip
    return found | ({"SupportedPlatformVariant": variant} if variant else {})


def xcframework(folder: Path, *, api: int = 24, device: bytes | None = None, simulator: bytes | None = None) -> Path:
    """A static xcframework for devices and simulators."""
    place = folder / "own.xcframework"
    slices = {
        "ios-arm64": archive(image(), image(lowest="15.0")) if device is None else device,
        "ios-arm64_x86_64-simulator": fat(
            arm64=archive(image(system=SIMULATOR)), x86_64=archive(image("x86_64", SIMULATOR))
        ) if simulator is None else simulator,
    }  # fmt: skip
    for identifier, content in slices.items():
        framework = place / identifier / "onnxruntime.framework"
        (framework / "Headers").mkdir(parents=True)
        (framework / "onnxruntime").write_bytes(content)
        (framework / "Headers/onnxruntime_c_api.h").write_text(f"#define ORT_API_VERSION {api}\n")
        (framework / "Headers/onnxruntime_cxx_api.h").write_text("class Ort;\n")
        (framework / "Info.plist").write_bytes(
            plistlib.dumps({"MinimumOSVersion": "15.1", "CFBundleIdentifier": "a.b"})
        )
    write_info(place, [
        listed("ios-arm64", ["arm64"]), listed("ios-arm64_x86_64-simulator", ["arm64", "x86_64"], "simulator"),
    ])  # fmt: skip
    return place


def write_info(place: Path, libraries: Any, kind: str = "XFWK") -> None:
    """The property list of an xcframework."""
    document = {"AvailableLibraries": libraries, "CFBundlePackageType": kind, "XCFrameworkFormatVersion": "1.0"}
    (place / "Info.plist").write_bytes(plistlib.dumps(document))
