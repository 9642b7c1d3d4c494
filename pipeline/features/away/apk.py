"""A package as one APK that instruments itself: what farms without a shell install, run and take results of.

The program in it (runner/PackageRunner.java) and its manifest never change, and lie here as D8 and aapt2 made them:
`nox -s package_runner` makes them again. So an APK is made without Android's SDK.
"""

import io
import shutil
import struct
import zipfile
from importlib import resources
from pathlib import Path
from typing import IO

from device_runner import files as runner_files
from pipeline.core import files as storage
from pipeline.core.errors import ConfigError
from pipeline.features.away import apk_signature, shell
from pipeline.features.away.plan import MadePackage

APPLICATION = "dev.ortmobile.runner"
RUNNER = f"{APPLICATION}/.PackageRunner"
ASSETS = "assets/package"
"""Where the runner unpacks the package from, into the app's folder `files`."""

MOST_BYTES = 2 << 30
"""Offsets in an APK have 32 bits, and Android installs none that is larger than 4 GB."""

KEY = "package-key.pem"
"""In the state folder of the user: phones take a later APK only of the same key."""

FOLDER, APK, RUN = "android-test", "package.apk", "run.sh"

TAKE = f"run-as {APPLICATION} tar -cf - -C files/package session"
"""Android lets nobody but the app and `run-as` read its folder; on farms the app leaves a copy where they may look."""

COMMANDS = f"""#!/bin/sh
# Runs the APK on the device of adb (ANDROID_SERIAL names one of several), and brings the folder session home beside it.
cd "${{0%/*}}" || exit 2
adb install -r -t {APK} && adb shell am instrument -w -r {RUNNER} || exit 2
adb exec-out {TAKE} | tar -xf - -C ..
"""

DATE = (1980, 1, 1, 0, 0, 0)
ALIGNMENT = 4
"""Bytes at which stored files begin: they are mapped as they are."""

HEADER_BYTES = 30
"""A member's own header in a ZIP archive, before its name and its extra fields."""

ALIGNMENT_FIELD, FIELD = 0xD935, struct.Struct("<HHH")
"""An extra field that readers skip, with which Android's build tools pad: its number, its bytes, the alignment."""


def write_android_test(made: MadePackage) -> None:
    """Write the APK of a package, and the commands for who has adb, into its folder.

    Raises ConfigError for a package that no APK can have, MissingError without cryptography.
    """
    package, abi = made.folder, made.plan.abi
    files = [path for path in sorted(package.rglob("*")) if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    if size > MOST_BYTES:
        raise ConfigError(
            f"the package is too large for an APK: {size / 1e9:.1f} GB",
            where="--for android-test",
            why=f"an APK has at most {MOST_BYTES / 1e9:.1f} GB here",
            remedy="export fewer models or variants, or --for ddp",
        )
    target = package / FOLDER / APK
    with storage.replacing(target) as temporary:
        with zipfile.ZipFile(temporary, "w") as apk:
            sources = resources.files(__package__) / "runner"
            _add(apk, "AndroidManifest.xml", io.BytesIO((sources / "AndroidManifest.bin").read_bytes()))
            _add(apk, "classes.dex", io.BytesIO((sources / "classes.dex").read_bytes()))
            state = shell.state_script(made.conditions, of_app=True).encode()
            for path in files:
                name = path.relative_to(package).as_posix()
                member, is_stored = _member(name, abi)
                with io.BytesIO(state) if name == "state.sh" else path.open("rb") as content:
                    _add(apk, member, content, is_stored=is_stored)
        apk_signature.sign(temporary, runner_files.state_folder() / KEY)
    storage.write_text(package / FOLDER / RUN, COMMANDS)


def _member(name: str, abi: str) -> tuple[str, bool]:
    """Where a file of the package lies in its APK, and whether it is stored: what is packed cannot be mapped."""
    if name == "probe":
        return f"lib/{abi}/libprobe.so", False
    if name.endswith(".so"):
        return f"lib/{abi}/{Path(name).name}", False
    return f"{ASSETS}/{name}", not name.startswith("requests/")


def _add(apk: zipfile.ZipFile, name: str, content: IO[bytes], *, is_stored: bool = False) -> None:
    info = zipfile.ZipInfo(name, DATE)
    info.external_attr = 0o644 << 16
    info.compress_type = zipfile.ZIP_STORED if is_stored else zipfile.ZIP_DEFLATED
    if is_stored and apk.fp:
        begin = apk.fp.tell() + HEADER_BYTES + len(name.encode()) + FIELD.size
        padding = -begin % ALIGNMENT
        info.extra = FIELD.pack(ALIGNMENT_FIELD, 2 + padding, ALIGNMENT) + bytes(padding)
    with apk.open(info, "w") as member:
        shutil.copyfileobj(content, member)
