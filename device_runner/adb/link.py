"""One device through an adb server: shell (protocol 2), push, pull, each with a limit in time and every end typed.

adbutils brings the adb program that starts a server. Connections are driven here: its calls limit the time between
two answers but not the whole, drop standard input, sleep on closing, and leave sockets open.
"""

import contextlib
import itertools
import os
import re
import shlex
import socket
import struct
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from device_runner.errors import RunnerError, SpecError, UnavailableError

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


CHUNK = 64 * 1024
"""The most that one packet of the sync protocol may carry."""

OUTPUT_LIMIT = 1 << 20
"""Bytes of output of a command where nothing else is said: answers of a device about itself have some 100 KB."""

MOST_DEVICES = 512
"""Devices that one adb server is believed to have."""

LONGEST_SERVICE = 0xFFFF
"""adb gives the length of a service in four hexadecimal digits: more would be read as part of another."""

STDOUT, STDERR, EXIT, STDIN = 1, 2, 3, 0


class LinkError(RunnerError):
    """The device or its server refused; the text is theirs."""


class LinkLost(LinkError):
    """The connection ended before the answer was whole: device, cable, adbd or server went away."""


class NoServer(UnavailableError):
    """There is no adb server, and none could be started."""


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
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        remedy = "write adb:SERIAL@HOST:PORT" if address else "set ANDROID_ADB_SERVER_PORT to a number"
        raise SpecError(f"{port!r} is not a port of an adb server", remedy=remedy)
    try:
        host.encode("idna")  # as connecting would, which raises for a name with an empty or an overlong part
    except UnicodeError as error:
        remedy = "write adb:SERIAL@HOST:PORT" if address else "correct ANDROID_ADB_SERVER_ADDRESS"
        raise SpecError(f"{host!r} is no name of a host", why=str(error), remedy=remedy) from error
    return host, int(port)


def connect(server: Server, seconds: float) -> socket.socket:
    """A connection to the server, which is started when it is this computer's and does not run; raises NoServer."""
    host, port = server
    try:
        try:
            connection = socket.create_connection(server, seconds)
        except ConnectionRefusedError:
            # Start this computer's server with the adb on PATH or the one that adbutils brings
            import adbutils

            if host not in LOOPBACK:
                raise UnavailableError(f"nothing listens on {host}:{port}") from None
            try:
                program = adbutils.adb_path()
            except adbutils.AdbError as error:
                raise UnavailableError(str(error)) from error
            command = [program, "-P", str(port), "start-server"]
            subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=True)
            connection = socket.create_connection(server, seconds)
    except (OSError, UnicodeError, subprocess.SubprocessError, UnavailableError) as error:  # idna refuses some hosts
        raise NoServer(
            "no adb server",
            where=f"{host}:{port}",
            why=str(error),
            remedy="start one with `adb start-server`; ADBUTILS_ADB_PATH names an adb program of your own",
        ) from error
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


class _Stream:
    """A connection and the moment at which its time is over."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection = connection
        self._deadline = deadline

    def _limit(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise LinkTimeout("the time for the answer is over")
        self._connection.settimeout(left)

    def send(self, data: bytes) -> None:
        self._limit()
        try:
            self._connection.sendall(data)
        except TimeoutError as error:
            raise LinkTimeout("the device does not accept more bytes in time") from error
        except OSError as error:
            raise LinkLost(str(error)) from error

    def read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            self._limit()
            try:
                part = self._connection.recv(min(size - len(data), 1 << 20))
            except TimeoutError as error:
                raise LinkTimeout("the time for the answer is over") from error
            except OSError as error:
                raise LinkLost(str(error)) from error
            if not part:
                raise LinkLost("the connection ended")
            data += part
        return bytes(data)

    def command(self, service: str) -> None:
        """Ask the server or the device for a service; raises LinkError with its reason."""
        data = service.encode("utf-8", "surrogateescape")
        if len(data) > LONGEST_SERVICE:
            raise LinkError(f"a service's name is too long for adb: {len(data)} bytes")
        self.send(b"%04x" % len(data) + data)
        answer = self.read(4)
        if answer == b"FAIL":
            reason = self.block()
            # A device that is not there (any more) is lost; everything else is the server's word.
            gone = re.search(r"not found|offline|closed|no devices|unauthorized", reason)
            raise LinkLost(reason) if gone else LinkError(reason)
        if answer != b"OKAY":
            raise LinkError(f"the adb server answers nonsense: {answer!r}")

    def block(self) -> str:
        """A text with its length before it in four hexadecimal digits."""
        digits = self.read(4)
        if not re.fullmatch(rb"[0-9a-fA-F]{4}", digits):
            raise LinkError(f"the adb server answers nonsense: {digits!r}")
        return self.read(int(digits, 16)).decode("utf-8", "replace")


class Link:
    """A device of a server. Every call opens a connection of its own, so threads may share it."""

    def __init__(self, server: Server, serial: str) -> None:
        self.server = server
        self.serial = serial

    @contextlib.contextmanager
    def _open(self, seconds: float) -> Iterator[_Stream]:
        """A connection to the device itself."""
        deadline = time.monotonic() + seconds
        connection = connect(self.server, seconds)
        with connection:
            stream = _Stream(connection, deadline)
            stream.command(f"host:transport:{self.serial}")
            yield stream

    def shell(
        self, arguments: Sequence[str], *, stdin: bytes = b"", seconds: float = 30.0, limit_bytes: int = OUTPUT_LIMIT
    ) -> "subprocess.CompletedProcess[bytes]":
        """Run arguments on the device. `stdin` is sent, then held open: its end tells the device that we are gone.

        Raises LinkLost, LinkTimeout (the command may still run), LinkError, also for more output than `limit_bytes`.
        """
        kept = {STDOUT: bytearray(), STDERR: bytearray()}
        left = limit_bytes
        with self._open(seconds) as stream:
            stream.command(f"shell,v2,raw:{remote_command(arguments)}")
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
        with self._open(seconds) as stream:
            stream.command("sync:")
            target = f"{remote},{0o100644}".encode()
            stream.send(b"SEND" + struct.pack("<I", len(target)) + target)
            for part in parts:
                # In packets of the protocol, all in one: a call for each would cost more than the copy
                view = memoryview(part)
                packets = (view[start : start + CHUNK] for start in range(0, len(part), CHUNK))
                pairs = ((b"DATA" + struct.pack("<I", len(packet)), packet) for packet in packets)
                stream.send(b"".join(itertools.chain.from_iterable(pairs)))
            stream.send(b"DONE" + struct.pack("<I", int(time.time())))
            kind, size = struct.unpack("<4sI", stream.read(8))
            if kind != b"OKAY":
                raise LinkError(stream.read(min(size, CHUNK)).decode("utf-8", "replace"))

    def pull(self, remote: str, target: Path, *, seconds: float, limit_bytes: int) -> None:
        """Fetch a file of at most so many bytes; raises LinkError (no such file, too long), LinkLost, LinkTimeout."""
        with target.open("wb") as file, self._open(seconds) as stream:
            stream.command("sync:")
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


def _answer(server: Server, service: str, seconds: float) -> str:
    """What the server itself says to a request; raises NoServer, LinkError."""
    with connect(server, seconds) as connection:
        stream = _Stream(connection, time.monotonic() + seconds)
        stream.command(service)
        return stream.block()


def list_serials(server: Server, seconds: float = 10.0) -> list[tuple[str, str]]:
    """Serial and state of every device that the server knows, as it says them; raises NoServer."""
    try:
        lines = _answer(server, "host:devices", seconds).splitlines()
    except LinkError as error:
        raise NoServer(
            "no adb server",
            where="{}:{}".format(*server),
            why=f"what listens there does not answer as one: {error}",
            remedy="`adb kill-server`, end what listens there, or set ANDROID_ADB_SERVER_PORT to another port",
        ) from error
    listed = [(serial, state) for serial, _, state in (line.partition("\t") for line in lines) if state]
    return listed[:MOST_DEVICES]


LIST_POLL_SECONDS = 0.05
LEAVING_SECONDS = 2.0
JOINING_SECONDS = 10.0


def reconnect(server: Server, serial: str) -> str:
    """Join a device on the network again: the server keeps a lost one as offline until it is disconnected.

    What the server says of it, in one line; nothing is raised. It answers before it has done either: a device is
    listed for a while after it was disconnected, when connecting finds the old connection and makes none, and it is
    offline until it has answered a new one. Both are waited for.
    """
    answer, end = "", time.monotonic() + JOINING_SECONDS
    for service, passing, limit in (
        ("host:disconnect", ("offline", "device"), time.monotonic() + LEAVING_SECONDS),
        ("host:connect", ("offline",), end),
    ):
        try:
            answer = " ".join(_answer(server, f"{service}:{serial}", JOINING_SECONDS).split())
        except (LinkError, NoServer) as error:
            answer = str(error)
        with contextlib.suppress(NoServer):
            while dict(list_serials(server, JOINING_SECONDS)).get(serial) in passing and time.monotonic() < limit:
                time.sleep(LIST_POLL_SECONDS)
    return answer
