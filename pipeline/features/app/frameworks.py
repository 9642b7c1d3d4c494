"""Frameworks of an app for iOS, and what of them the App Store refuses, whatever library they hold.

Sources: onnxruntime issue 27396 (a framework without MinimumOSVersion); Apple's TN2435, "Embedding frameworks in an
app" (static ones are not to be embedded: an app with one is not exported, "unexpected Mach-O header code: 0x72613c21").
"""

import plistlib
import re
import struct
from collections.abc import Iterator, Sequence
from typing import Any
from xml.parsers.expat import ExpatError

from device_runner.probe import elf as elf_file
from pipeline.core.errors import Finding, Severity
from pipeline.features.app.document import finding
from pipeline.features.app.members import Member

INFO = re.compile(r"(?P<framework>(.*/)?[^/]+\.framework)/Info\.plist")
CODE = re.compile(r"(?P<framework>(.*/)?(?P<name>[^/]+)\.framework)/(?P=name)")
"""As iOS has them: a framework for macOS has its files in Versions/A, and says LSMinimumSystemVersion."""
INFO_BYTES = 1 << 20
OS_VERSION = re.compile(r"\d+(\.\d+){0,2}")
DEVICE = ("ios", "")


class Frameworks:
    """The frameworks of a package by their paths: the oldest version of iOS that each names, and its code."""

    def __init__(self) -> None:
        self.lowest: dict[str, str] = {}
        self.images: dict[str, Sequence[elf_file.MachOImage]] = {}

    def takes(self, member: Member) -> bool:
        """Whether a file describes a framework."""
        return bool(INFO.fullmatch(member.path)) and member.size_bytes <= INFO_BYTES

    def read(self, member: Member) -> None:
        """Keep what it says; nothing where it cannot be read, which no store reads either."""
        match = INFO.fullmatch(member.path)
        try:
            with member.open() as file:
                document: Any = plistlib.loads(file.read())
        except (ValueError, ExpatError, struct.error, IndexError, OverflowError, RecursionError, MemoryError):
            document = None
        version = document.get("MinimumOSVersion") if isinstance(document, dict) else None
        if match:
            self.lowest[match["framework"]] = version if isinstance(version, str) else ""

    def add_code(self, path: str, images: Sequence[elf_file.MachOImage]) -> None:
        """Keep the code of a framework."""
        if match := CODE.fullmatch(path):
            self.images[match["framework"]] = images

    def findings(self, whole: bool) -> Iterator[Finding]:
        """What a store refuses; `whole`: of an app, in which all frameworks are embedded."""
        for path in sorted({*self.lowest, *self.images}):
            images = self.images.get(path, ())
            static = any(image.static for image in images)
            for_phones = whole or any(image.system == DEVICE for image in images)
            if whole and static:
                yield finding(
                    "app-store",
                    Severity.ERROR,
                    "a static framework lies in the app",
                    path,
                    "Xcode does not export such an app: unexpected Mach-O header code 0x72613c21; its code is linked "
                    "into the app already",
                    "set the framework to Do Not Embed in the target's settings",
                )
            if for_phones and not OS_VERSION.fullmatch(self.lowest.get(path, "")):
                embedded = "Xcode puts the folder of a static framework into the app as well, and " if static else ""
                yield finding(
                    "app-store",
                    Severity.ERROR if whole or not static else Severity.WARNING,
                    "the App Store refuses an app with this framework: it has no MinimumOSVersion",
                    path,
                    f"{embedded}its Info.plist must name the oldest iOS that it runs on",
                    "add MinimumOSVersion to its Info.plist before the app is signed, or take a release that has it; "
                    "of static code make an xcframework of libraries alone (xcodebuild -create-xcframework -library)",
                )
