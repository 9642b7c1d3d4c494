"""One campaign at a time on a device: a lock on this computer that goes with the process that holds it."""

import fcntl
import hashlib
import os
from pathlib import Path
from typing import BinaryIO

from device_runner.errors import MissingError
from device_runner.probe.build import cache_folder


def take_lease(key: str, name: str) -> BinaryIO:
    """The lock of a device, held until it is closed or the process ends; raises MissingError when another has it.

    `key` is what tells devices apart (server and serial), `name` how messages call it.
    """
    folder = cache_folder() / "leases"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:32]
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
