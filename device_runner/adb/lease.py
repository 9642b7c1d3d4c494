"""One campaign at a time on a device: a lock on this computer that goes with the process that holds it."""

import fcntl
import hashlib
import os
import re
from pathlib import Path
from typing import BinaryIO

from device_runner.adb.link import Server
from device_runner.errors import MissingError
from device_runner.folders import own_folder_errors, state_folder

LOOPBACK = ("127.0.0.1", "localhost", "::1")

OF_ONE_SERVER = re.compile(r"emulator-\d+|(127\.\d+\.\d+\.\d+|localhost|\[?::1\]?):\d+")
"""Serials that mean something else for a server behind a tunnel."""


def lease_key(server: Server, serial: str) -> str:
    """What tells devices apart: one on the network or on USB is the same by whichever server of this computer."""
    here = server.host in LOOPBACK
    if here and not OF_ONE_SERVER.fullmatch(serial):
        return serial
    return f"{'127.0.0.1' if here else server.host}:{server.port} {serial}"


def take_lease(key: str, name: str) -> BinaryIO:
    """The lock of a device, held until it is closed or the process ends; raises MissingError when another has it.

    `key` is what tells devices apart (`lease_key`), `name` how messages call it.
    """
    folder = state_folder() / "leases"
    path = folder / hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    with own_folder_errors(folder, "ORT_MOBILE_STATE"):
        folder.mkdir(parents=True, exist_ok=True)
        file = path.open("a+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = _holder(path)
        file.close()
        raise MissingError(
            f"{name} is in use", why=f"process {holder} of this computer runs on it", remedy="wait, or end that process"
        ) from error
    file.truncate(0)
    file.write(str(os.getpid()).encode())
    file.flush()
    return file


def _holder(path: Path) -> str:
    return path.read_text(errors="replace")[:20] or "unknown"
