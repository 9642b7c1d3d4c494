"""Libraries of custom operators of a command: sessions here, cache keys and runs on devices ask for them by `given`.

They are in a variable of the environment, which workers inherit, as every session of a command needs them.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from device_runner import custom_ops as runner_custom_ops
from device_runner import files as runner_files
from device_runner.errors import RunnerError
from pipeline.core.errors import ConfigError

VARIABLE = "ORT_MOBILE_CUSTOM_OPS"


def given() -> tuple[str, ...]:
    """The files that the command was given, for whatever system and ABI."""
    return tuple(filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)))


def of_this_computer(files: Sequence[str] | None = None) -> tuple[Path, ...]:
    """Those of the files (by default: that are given) that a session here registers; UnavailableError for none."""
    files = given() if files is None else files
    if not files:
        return ()
    from device_runner import local as local_device  # which loads what runs need

    return tuple(
        library.path
        for library in runner_custom_ops.fitting(
            files, local_device.machine_system(), local_device.machine_abi(), python=True
        )
    )


def register(options: Any) -> None:
    """Register those that are given with onnxruntime's SessionOptions of a session here."""
    for library in of_this_computer():
        options.register_custom_ops_library(str(library))


def digests() -> list[str]:
    """Of those that sessions here register, for keys of what is made with them."""
    return [runner_files.sha256(path) for path in of_this_computer()]


@contextmanager
def custom_operators(files: Sequence[str], where: str) -> Iterator[None]:
    """Use these files in the block, where there are any; ConfigError for one that is no such library."""
    before = os.environ.get(VARIABLE)
    try:
        for file in files:
            runner_custom_ops.read_libraries(file)
    except RunnerError as error:
        raise ConfigError.of(error.problem, where=f"{where} {error.where}") from error
    if files:
        os.environ[VARIABLE] = os.pathsep.join(str(Path(file).absolute()) for file in files)
    try:
        yield
    finally:
        os.environ.pop(VARIABLE, None)
        os.environ.update({VARIABLE: before} if before is not None else {})
