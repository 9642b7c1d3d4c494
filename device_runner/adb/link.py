"""One device through an adb server: shell (protocol 2), push, pull, each with a limit in time and every end typed.

These three are driven here, on connections that adbutils opens (server.py): its own calls have no limit for an answer
or a file, no standard input, and reasons get lost (docs/facts/adb.md).
"""

import os
import re
import shlex
import struct
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from device_runner.errors import RunnerError, SpecError, UnavailableError

if TYPE_CHECKING:
    from device_runner.adb.server import Client

LONGEST = 60_000
"""Bytes of a command: adb gives the length of a service in four hexadecimal digits."""


def remote_command(arguments: Sequence[str]) -> str:
    """One command line that runs exactly these arguments in any POSIX shell (mksh on Android, dash, toybox's sh).

    Raises SpecError for what no command line can carry: a NUL, no argument at all, too much text, lone surrogates.
    """
    command = shlex.join(arguments)
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


CHUNK = 64 * 1024
"""The most that one packet of the sync protocol may carry."""

OUTPUT_LIMIT = 1 << 20
"""Bytes of output of a command where nothing else is said: answers of a device about itself have some 100 KB."""

STDOUT, STDERR, EXIT, STDIN = 1, 2, 3, 0


class LinkError(RunnerError):
    """The device or its server refused; the text is theirs."""


class LinkLost(LinkError):
    """The connection ended before the answer was whole: device, cable, adbd or server went away."""


class NoServer(UnavailableError):
    """There is no adb server, and none could be started; or what listens there is none."""


class LinkTimeout(LinkError):
    """No whole answer in time."""


class RunTimeout(LinkTimeout):
    """The probe did not end in a run's time."""


Server = tuple[str, int]
"""Host and port at which an adb server listens."""

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def server_at(address: str = "") -> Server:
    """The adb server at HOST:PORT, by default where ANDROID_ADB_SERVER_ADDRESS and _PORT say; raises SpecError."""
    host, _, port = address.rpartition(":")
    usual = os.environ.get("ANDROID_ADB_SERVER_ADDRESS") or os.environ.get("ANDROID_ADB_SERVER_HOST", "127.0.0.1")
    host = host.strip("[]") or usual
    port = port or os.environ.get("ANDROID_ADB_SERVER_PORT", "5037")
    remedy = "write adb:SERIAL@HOST:PORT" if address else "correct ANDROID_ADB_SERVER_ADDRESS, ANDROID_ADB_SERVER_PORT"
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise SpecError(f"{port!r} is not a port of an adb server", remedy=remedy)
    try:
        host.encode("idna")  # as connecting would, which raises for a name with an empty or an overlong part
    except UnicodeError as error:
        raise SpecError(f"{host!r} is no name of a host", why=str(error), remedy=remedy) from error
    return host, int(port)


OF_ONE_SERVER = re.compile(r"emulator-\d+|(127\.\d+\.\d+\.\d+|localhost|\[?::1\]?):\d+")
"""Serials that mean something else for a server behind a tunnel."""


def lease_key(server: Server, serial: str) -> str:
    """What tells devices apart: one on the network or on USB is the same by whichever server of this computer."""
    host, port = server
    is_local = host in LOOPBACK
    if is_local and not OF_ONE_SERVER.fullmatch(serial):
        return serial
    return f"{'127.0.0.1' if is_local else host}:{port} {serial}"


class Link:
    """A device of a server. Every call opens a connection of its own, so threads may share it."""

    def __init__(self, server: Server, serial: str) -> None:
        self.server = server
        self.serial = serial

    def _client(self, seconds: float) -> "Client":
        """For one request: a service of the device is asked for by its `service`."""
        from device_runner.adb.server import Client

        return Client(self.server, seconds)

    def shell(
        self, arguments: Sequence[str], *, stdin: bytes = b"", seconds: float = 30.0, limit_bytes: int = OUTPUT_LIMIT
    ) -> "subprocess.CompletedProcess[bytes]":
        """Run arguments on the device. `stdin` is sent, then held open: its end tells the device that we are gone.

        Raises LinkLost, LinkTimeout (the command may still run), LinkError, also for more output than `limit_bytes`.
        """
        kept = {STDOUT: bytearray(), STDERR: bytearray()}
        left = limit_bytes
        with self._client(seconds) as client:
            stream = client.service(f"shell,v2,raw:{remote_command(arguments)}", self.serial)
            for start in range(0, len(stdin), CHUNK):
                part = stdin[start : start + CHUNK]
                stream.send(struct.pack("<BI", STDIN, len(part)) + part)
            while True:
                kind, size = struct.unpack("<BI", stream.read(5))
                left -= size
                if left < 0:
                    raise LinkError(f"the device answers with more than {limit_bytes} bytes")
                data = stream.read(size)
                if kind == EXIT:
                    code = data[0] if data else 255
                    return subprocess.CompletedProcess(arguments, code, bytes(kept[STDOUT]), bytes(kept[STDERR]))
                if kind in kept:
                    kept[kind] += data

    def push(self, parts: Iterable[bytes], remote: str, *, seconds: float) -> None:
        """Send a file, part by part; what arrives is to be checked. Parts of 256 KB cost the least.

        Raises LinkError with the device's reason, and its kinds; what reading the parts raises.
        """
        with self._client(seconds) as client:
            stream = client.service("sync:", self.serial)
            target = f"{remote},{0o100644}".encode()
            stream.send(b"SEND" + struct.pack("<I", len(target)) + target)
            for part in parts:
                # In packets of the protocol, all in one: a call for each would cost more than the copy
                packets = (memoryview(part)[start : start + CHUNK] for start in range(0, len(part), CHUNK))
                heads = ((struct.pack("<4sI", b"DATA", len(packet)), packet) for packet in packets)
                stream.send(b"".join(data for pair in heads for data in pair))
            stream.send(b"DONE" + struct.pack("<I", int(time.time())))
            kind, size = struct.unpack("<4sI", stream.read(8))
            if kind != b"OKAY":
                raise LinkError(stream.read(min(size, CHUNK)).decode("utf-8", "replace"))

    def pull(self, remote: str, target: Path, *, seconds: float, limit_bytes: int) -> None:
        """Fetch a file of at most so many bytes; raises LinkError (no such file, too long), LinkLost, LinkTimeout."""
        with target.open("wb") as file, self._client(seconds) as client:
            stream = client.service("sync:", self.serial)
            name = remote.encode()
            stream.send(b"RECV" + struct.pack("<I", len(name)) + name)
            while True:
                kind, size = struct.unpack("<4sI", stream.read(8))
                if kind == b"DONE":
                    return
                if size > CHUNK:
                    raise LinkError("the device answers nonsense")
                data = stream.read(size)
                if kind != b"DATA":
                    raise LinkError(data.decode("utf-8", "replace"))
                limit_bytes -= size
                if limit_bytes < 0:
                    raise LinkError(f"{remote} is longer than it can be")
                file.write(data)
