"""An adb server that lies: it speaks the host's protocol, runs commands and keeps files on this computer, and then
answers something else. Everything behind a lie (probe, files, shell) is real, and no adb program is needed.
"""

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

STDIN, STDOUT, STDERR, EXIT = 0, 1, 2, 3
CHUNK = 64 * 1024

Document = dict[str, Any]


def truth(data: bytes) -> Iterator[bytes]:
    """What is so."""
    yield data


def endless(_: bytes) -> Iterator[bytes]:
    """More than any computer has room for."""
    while True:
        yield bytes(CHUNK)


def repeated(text: bytes, size: int) -> Callable[[bytes], Iterator[bytes]]:
    """A text again and again, in place of what is so."""

    def parts(_: bytes) -> Iterator[bytes]:
        part = text * (CHUNK // len(text))
        yield from (part for _ in range(size // len(part)))

    return parts


def document(change: Callable[[Document], object]) -> Callable[[bytes], Iterator[bytes]]:
    """The probe's document with a change, and a checksum that is right again."""

    def parts(data: bytes) -> Iterator[bytes]:
        answer = json.loads(data)
        change(answer)
        del answer["crc32"]
        body = json.dumps(answer, separators=(",", ":")).encode()[:-1]
        yield body + b',"crc32":%d}' % zlib.crc32(body)

    return parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Lie:
    """What to make of the probe's document, of other output of a shell, of a file that is fetched, of the devices.

    `file` None: no answer comes. `others` are serials with states in which nothing can be asked of them. `joining` is
    called with each request about a device on the network before it is answered.
    """

    run: Callable[[bytes], Iterator[bytes]] = truth
    shell: Callable[[bytes], Iterator[bytes]] = truth
    file: Callable[[bytes], Iterator[bytes]] | None = truth
    serials: tuple[str, ...] = ("fake1",)
    others: tuple[tuple[str, str], ...] = ()
    joining: Callable[[str], object] = bool


class LyingAdb:
    """The server, from the start on; `sent` counts the bytes of output and files that it was rid of.

    `joined` has what it was asked of devices on the network.
    """

    def __init__(self, lie: Lie) -> None:
        self.lie = lie
        self.sent = 0
        self.joined: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._ended = threading.Event()
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError, EOFError):
            service = self._service(client)
            if service == "host:track-devices":
                client.sendall(b"OKAY")
                self._track(client)
            if service.startswith(("host:disconnect:", "host:connect:")):
                self.joined.append(service)
                self.lie.joining(service)
                client.sendall(b"OKAY" + text_block("done"))
            if service.startswith(("host:transport:", "host:tport:serial:")):
                client.sendall(b"OKAY" + bytes(8 if "tport" in service else 0))
                service = self._service(client)
                client.sendall(b"OKAY")
                if service.startswith("shell,v2,raw:"):
                    self._shell(client, service.removeprefix("shell,v2,raw:"))
                else:
                    self._sync(client)

    def _track(self, client: socket.socket) -> None:
        """Tell which devices there are, again when a lie has changed, until the client is gone."""
        told = None
        client.settimeout(0.01)
        while not self._ended.is_set():
            lie = self.lie
            if lie is not told:
                listed = (*((serial, "device") for serial in lie.serials), *lie.others)
                client.sendall(text_block("".join(f"{serial}\t{state}\n" for serial, state in listed)))
                told = lie
            with contextlib.suppress(TimeoutError):
                if not client.recv(1):
                    return

    def _service(self, client: socket.socket) -> str:
        return read(client, int(read(client, 4), 16)).decode("utf-8", "surrogateescape")

    def _shell(self, client: socket.socket, command: str) -> None:
        with subprocess.Popen(
            ["sh", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,
        ) as process:  # fmt: skip
            feeding = threading.Thread(target=feed, args=(client, process), daemon=True)
            feeding.start()
            assert process.stdout is not None
            assert process.stderr is not None
            output, errors = process.stdout.read(), process.stderr.read()
            code = process.wait()
            tell = self.lie.run if output.startswith(b'{"probe"') else self.lie.shell
            for part in tell(output):
                self._send(client, struct.pack("<BI", STDOUT, len(part)) + part)
            self._send(client, struct.pack("<BI", STDERR, len(errors)) + errors)
            self._send(client, struct.pack("<BIB", EXIT, 1, code % 256))
            client.shutdown(socket.SHUT_WR)
            feeding.join(10)

    def _sync(self, client: socket.socket) -> None:
        kind, size = struct.unpack("<4sI", read(client, 8))
        name = read(client, size).decode()
        if kind == b"SEND":
            receive(client, Path(name.rpartition(",")[0]))
            client.sendall(b"OKAY" + bytes(4))
            return
        if self.lie.file is None:
            self._ended.wait(60)
            return
        for part in self.lie.file(Path(name).read_bytes()):
            for start in range(0, len(part), CHUNK):
                data = part[start : start + CHUNK]
                self._send(client, b"DATA" + struct.pack("<I", len(data)) + data)
        self._send(client, b"DONE" + bytes(4))

    def _send(self, client: socket.socket, data: bytes) -> None:
        client.sendall(data)
        self.sent += len(data)


def read(client: socket.socket, size: int) -> bytes:
    """So many bytes; raises EOFError."""
    data = b""
    while len(data) < size:
        part = client.recv(min(size - len(data), 1 << 20))
        if not part:
            raise EOFError
        data += part
    return data


def text_block(text: str) -> bytes:
    """A text with its length before it, as the host's services answer."""
    data = text.encode()
    return b"%04x" % len(data) + data


def feed(client: socket.socket, process: subprocess.Popen[bytes]) -> None:
    """Pass the client's standard input on; when the client is gone, so is the process."""
    assert process.stdin is not None
    with contextlib.suppress(OSError, EOFError, ValueError):
        while True:
            kind, size = struct.unpack("<BI", read(client, 5))
            data = read(client, size)
            if kind == STDIN:
                process.stdin.write(data)
                process.stdin.flush()
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def receive(client: socket.socket, path: Path) -> None:
    """A file that the client sends."""
    with path.open("wb") as file:
        while True:
            kind, size = struct.unpack("<4sI", read(client, 8))
            if kind == b"DONE":
                return
            file.write(read(client, size))
