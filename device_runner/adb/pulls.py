"""Fetching the files of a run from a device, within one time limit for all of them."""

import time
from pathlib import Path

from device_runner.adb.link import Link
from device_runner.adb.store import SLOWEST_BYTES_PER_SECOND
from device_runner.files import PROFILE_LIMIT_BYTES, Fetch, tensor_bytes
from device_runner.result import RunResult

GRACE_SECONDS = 20.0


def fetch_from(link: Link, folder: str, result: RunResult) -> Fetch:
    """What brings files of the run folder here; raises LinkError, and LinkTimeout when the time for all is over.

    The time is that of the slowest sound connection, from now on.
    """
    tensors = (*result.outputs, *((result.labelled_outputs,) if result.labelled_outputs else ()))
    size = sum(map(tensor_bytes, tensors)) + (PROFILE_LIMIT_BYTES if result.profile_file else 0)
    deadline = time.monotonic() + GRACE_SECONDS + size / SLOWEST_BYTES_PER_SECOND

    def fetch(name: str, path: Path, limit_bytes: int) -> None:
        seconds = max(0.0, deadline - time.monotonic())
        link.pull(f"{folder}/{name}", path, seconds=seconds, limit_bytes=limit_bytes)

    return fetch
