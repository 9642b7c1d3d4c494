"""The one place where arguments become a command line of a device's shell."""

import shlex
from collections.abc import Sequence

from device_runner.errors import SpecError

LONGEST = 60_000
"""Bytes of a command: adb gives the length of a service in four hexadecimal digits."""


def remote_command(arguments: Sequence[str]) -> str:
    """One command line that runs exactly these arguments in any POSIX shell (mksh on Android, dash, toybox's sh).

    Raises SpecError for what no command line can carry: a NUL, no argument at all, too much text, lone surrogates.
    """
    command = " ".join(shlex.quote(argument) for argument in arguments)
    if not arguments or "\0" in command:
        raise SpecError("an argument for the device has a NUL in it", where=repr(command[:80]))
    try:
        size = len(command.encode())
    except UnicodeEncodeError as error:
        raise SpecError("an argument for the device is not valid Unicode", where=repr(command[:80])) from error
    if size > LONGEST:
        raise SpecError(f"a command for the device is too long: {size} bytes", where=repr(command[:80]))
    return command


def script(text: str, *arguments: str) -> tuple[str, ...]:
    """Arguments that run a script of ours with these as $1, $2, ...: values never become part of its text."""
    return ("sh", "-c", text, "sh", *arguments)
