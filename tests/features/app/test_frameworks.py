"""`ort-mobile app` on frameworks for iOS: what the App Store refuses."""

import plistlib
from pathlib import Path
from typing import Any

import pytest

from tests.features.app.test_app import inspected, package
from tests.features.apple.frameworks import DYLIB, SIMULATOR, archive, fat, image

MISSING = "the App Store refuses an app with this framework: it has no MinimumOSVersion"
EMBEDDED = "a static framework lies in the app"
DYNAMIC, STATIC = image(kind=DYLIB), fat(arm64=archive(image()))


def info(**more: Any) -> bytes:
    return plistlib.dumps({"CFBundleExecutable": "own", "CFBundlePackageType": "FMWK", **more})


WHOLE = info(MinimumOSVersion="15.1")
XML = b"<?xml version='1.0'?><!DOCTYPE plist [<!ENTITY a 'b'>]><plist version='1.0'><string>&a;</string></plist>"


def found(path: Path) -> list[tuple[str, str, str]]:
    rows = [row for row in inspected(path)["findings"] if row["rule"] == "app-store"]
    return [(row["severity"], row["what"], row["where"]) for row in rows]


@pytest.mark.parametrize(
    ("code", "text", "expected"),
    [
        (DYNAMIC, WHOLE, []),
        (DYNAMIC, info(), [("error", MISSING)]),
        (DYNAMIC, None, [("error", MISSING)]),
        (DYNAMIC, info(MinimumOSVersion=""), [("error", MISSING)]),
        (DYNAMIC, info(MinimumOSVersion=15), [("error", MISSING)]),
        (DYNAMIC, b"bplist00" + b"\xff" * 60, [("error", MISSING)]),
        (DYNAMIC, XML, [("error", MISSING)]),
        (STATIC, WHOLE, [("error", EMBEDDED)]),
        (STATIC, info(), [("error", EMBEDDED), ("error", MISSING)]),
    ],
)
def test_every_framework_of_an_app_has_a_version_and_is_dynamic(
    code: bytes, text: bytes | None, expected: list[tuple[str, str]], tmp_path: Path
) -> None:
    """Whatever library it holds."""
    place = "Payload/App.app/Frameworks/own.framework"
    members = {"Payload/App.app/Info.plist": info(), f"{place}/own": code}
    members |= {} if text is None else {f"{place}/Info.plist": text}
    assert found(package(tmp_path / "app.ipa", members)) == [(*row, place) for row in expected]


@pytest.mark.parametrize(
    ("code", "severity"),
    [(DYNAMIC, "error"), (STATIC, "warning"), (image(kind=DYLIB, system=SIMULATOR), ""), (image(system=6), "")],
)
def test_of_an_xcframework_what_is_for_phones_is_looked_at(code: bytes, severity: str, tmp_path: Path) -> None:
    """Xcode embeds a static framework in some releases; what is for a simulator or a Mac goes to no phone."""
    place = "own.xcframework/slice/own.framework"
    members = {"own.xcframework/Info.plist": info(), f"{place}/own": code, f"{place}/Info.plist": info()}
    assert found(package(tmp_path / "own.zip", members)) == ([(severity, MISSING, place)] if severity else [])
