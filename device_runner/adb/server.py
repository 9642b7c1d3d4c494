"""An adb server through adbutils: the one module that imports it, and where its errors become ours.

adbutils' client does the asking, over connections with a limit. Those of its own limit the time between two answers
and not the whole, take half an answer for all of it, stay open after an error, sleep on closing, and start a server at
another port than was asked for (docs/facts/adb.md).
"""

import contextlib
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Self

import adbutils

from device_runner.adb.link import LOOPBACK, LinkError, LinkLost, LinkTimeout, NoServer, Server

START_SECONDS = 20.0
"""What finding an adb program, and starting a server by it, may take each."""


class OurErrors:
    """A block in which errors of adbutils and of sockets are ours: LinkTimeout, LinkLost, LinkError."""

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, TimeoutError):
            raise LinkTimeout("the time for the answer is over") from error
        if isinstance(error, OSError):
            raise LinkLost(str(error)) from error
        if isinstance(error, ValueError):
            raise LinkError(f"the adb server answers nonsense: {error}") from error
        if isinstance(error, adbutils.AdbError):
            # A device that is not there (any more) is lost; everything else is the server's word
            gone = re.search(r"not found|offline|closed|no devices|unauthorized", str(error))
            raise (LinkLost if gone else LinkError)(str(error)) from error


class Client(adbutils.AdbClient):  # type: ignore[misc]  # untyped
    """What one request asks of a server: its connections end when its time is over, and close with its block."""

    def __init__(self, server: Server, seconds: float) -> None:
        super().__init__(*server)
        self._seconds, self._deadline = seconds, 0.0
        self._opened: list[Connection] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._opened:
            connection.close()

    def make_connection(self, timeout: float | None = None) -> "Connection":
        """What adbutils asks by; raises NoServer."""
        left = self._deadline - time.monotonic() if self._deadline else self._seconds
        connection = _connected((self.host, self.port), max(left, 0.001))
        # From the first connection on: what starting a server took is not the request's time
        self._deadline = self._deadline or time.monotonic() + self._seconds
        self._opened.append(Connection(connection, self._deadline))
        return self._opened[-1]

    def server_version(self) -> int:
        """By which adbutils words its request for a transport: in the old way, which all know (docs/facts/adb.md A)."""
        return 40

    def service(self, name: str, serial: str | None = None) -> "Connection":
        """A connection to a service of the server or of a device, which has begun; raises NoServer, LinkError."""
        if serial == "":  # adbutils would take any device
            raise LinkLost("device '' not found")
        with OurErrors():
            connection: Connection = self.device(serial).open_transport() if serial else self.make_connection()
            connection.send_command(name)
            connection.check_okay()
            return connection

    def listed(self) -> Iterator[list[tuple[str, str]]]:
        """Serial and state of each device, as the server says them, now and whenever that changes.

        Raises LinkTimeout when the time is over, LinkLost when the server ends, NoServer, LinkError.
        """
        connection = self.service("host:track-devices")
        while True:
            with OurErrors():
                lines = connection.read_string_block().splitlines()
            devices = (line.partition("\t") for line in lines)
            yield [(serial, state) for serial, _, state in devices if state][:MOST_DEVICES]


class Connection(adbutils.AdbConnection):  # type: ignore[misc]  # untyped
    """A connection that ends with its time, and of which all is sent and read that is asked for."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._socket, self._deadline = connection, deadline

    @property
    def conn(self) -> socket.socket:
        """The socket, which waits for no longer than there is time; raises LinkTimeout."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise LinkTimeout("the time for the answer is over")
        self._socket.settimeout(left)
        return self._socket

    def close(self) -> None:
        """At once."""
        self._socket.close()

    def send(self, data: bytes) -> int:
        """Send all of it; raises LinkLost, LinkTimeout."""
        with OurErrors():
            self.conn.sendall(data)
        return len(data)

    def read(self, n: int) -> bytes:
        """So many bytes and no fewer; raises LinkLost, LinkTimeout."""
        data = bytearray()
        with OurErrors():
            while len(data) < n:
                part = self.conn.recv(min(n - len(data), 1 << 20))
                if not part:
                    raise ConnectionError("the connection ended")
                data += part
        return bytes(data)

    def send_command(self, cmd: str) -> None:
        """Ask for a service; raises LinkError."""
        data = cmd.encode("utf-8", "surrogateescape")
        if len(data) > 0xFFFF:  # it gives the length in four hexadecimal digits
            raise LinkError(f"a service's name is too long for adb: {len(data)} bytes")
        self.send(b"%04x" % len(data) + data)


def _connected(server: Server, seconds: float) -> socket.socket:
    """A connection to the server, which is started when it is this computer's and does not run; raises NoServer."""
    host, port = server
    try:
        try:
            connection = socket.create_connection(server, seconds)
        except ConnectionRefusedError:
            if host not in LOOPBACK:
                raise
            command = [_adb_program(), "-P", str(port), "start-server"]
            subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=START_SECONDS, check=True)
            connection = socket.create_connection(server, seconds)
    except (OSError, UnicodeError, subprocess.SubprocessError, adbutils.AdbError) as error:  # idna refuses some hosts
        remedy = "start one with `adb start-server`; ADBUTILS_ADB_PATH names an adb program of your own"
        raise NoServer("no adb server", where=f"{host}:{port}", why=str(error), remedy=remedy) from error
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _adb_program() -> str:
    """ADBUTILS_ADB_PATH, the adb on PATH or the one that adbutils brings; raises AdbError, TimeoutError.

    In a thread: adbutils runs the one on PATH to see whether it works, and waits for it without a limit.
    """
    answer: Future[str] = Future()

    def find() -> None:
        try:
            answer.set_result(adbutils.adb_path())
        except (OSError, adbutils.AdbError) as error:
            answer.set_exception(error)

    threading.Thread(target=find, daemon=True).start()
    return answer.result(START_SECONDS)


ANSWER_SECONDS = 10.0

MOST_DEVICES = 512
"""Devices that one adb server is believed to have."""


def list_serials(server: Server) -> list[tuple[str, str]]:
    """Serial and state of every device that the server knows, as it says them; raises NoServer."""
    try:
        with Client(server, ANSWER_SECONDS) as client:
            return next(client.listed())
    except LinkError as error:
        why = f"what listens there does not answer as one: {error}"
        remedy = "`adb kill-server`, end what listens there, or set ANDROID_ADB_SERVER_PORT to another port"
        raise NoServer("no adb server", where="{}:{}".format(*server), why=why, remedy=remedy) from error


LEAVING_SECONDS = 2.0


def reconnect(server: Server, serial: str) -> str:
    """Join a device on the network again: the server keeps a lost one as offline until it is disconnected.

    What the server says of it, in one line; nothing is raised. It answers before it has done either: a device is
    listed for a while after it was disconnected, when connecting finds the old connection and makes none, and it is
    offline until it has answered a new one. Both are waited for.
    """
    answer = ""
    for ask, passing, seconds in (
        (Client.disconnect, ("offline", "device"), LEAVING_SECONDS),
        (Client.connect, ("offline",), ANSWER_SECONDS),
    ):
        try:
            with Client(server, ANSWER_SECONDS) as client, OurErrors():
                answer = " ".join((ask(client, serial) or "").split())
        except (LinkError, NoServer) as error:
            answer = str(error)
        with contextlib.suppress(LinkError, NoServer), Client(server, seconds) as client:
            next(devices for devices in client.listed() if dict(devices).get(serial) not in passing)
    return answer
