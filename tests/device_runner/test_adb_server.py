"""adb servers that cut, trickle, flood or keep silent, over real sockets: every end is an error of ours, in time."""

import contextlib
import gc
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import adbutils
import pytest

from device_runner.adb import server as adb_server
from device_runner.adb.link import (
    LONGEST,
    Link,
    LinkError,
    LinkLost,
    LinkTimeout,
    NoServer,
    Server,
    remote_command,
    script,
)  # fmt: skip
from device_runner.adb.server import Client, list_serials, reconnect
from tests.lying_adb import Lie, LyingAdb, read

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 0.5
"""What a request may take here."""

LATE_SECONDS = 20.0
"""A request that takes longer did not end in its time, however busy this computer is."""

Says = Callable[[socket.socket], object]


@contextlib.contextmanager
def serving(says: Says) -> Iterator[Server]:
    """A server that reads the first request of each connection, and then does as it likes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve(client: socket.socket) -> None:
            with client, contextlib.suppress(OSError, EOFError):
                read(client, int(read(client, 4), 16))
                says(client)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        yield listener.getsockname()[:2]
        listener.shutdown(socket.SHUT_RDWR)
        accepting.join()


def exactly(data: bytes) -> Says:
    """These bytes, and the end."""
    return lambda client: client.sendall(data)


def silent(client: socket.socket) -> None:
    """Nothing, until the other end goes."""
    with contextlib.suppress(OSError):
        client.recv(1)


def trickle(client: socket.socket) -> None:
    """A byte now and then, of an answer that would be right."""
    for byte in b"OKAY" + b"ffff" + bytes(0xFFFF):
        client.sendall(bytes([byte]))
        time.sleep(SECONDS / 5)


def flood(client: socket.socket) -> None:
    """A right beginning, and a GB of what may follow it."""
    client.sendall(b"OKAY")
    for _ in range(1 << 14):
        client.sendall(b"ffff" + b"x" * 0xFFFF)


def cut(answer: bytes) -> dict[str, tuple[Says, type[LinkError]]]:
    """The answer, cut at each of its bytes."""
    return {f"{size} of {len(answer)} bytes": (exactly(answer[:size]), LinkLost) for size in range(len(answer))}


ANSWERS: dict[str, tuple[Says, type[LinkError]]] = {
    **cut(b"OKAY0008SER\tgone"),
    **cut(b"FAIL0003why"),
    "silence": (silent, LinkTimeout),
    "a byte now and then": (trickle, LinkTimeout),
    "a refusal": (exactly(b"FAIL0003why"), LinkError),
    "a device that is gone": (exactly(b"FAIL001ddevice '10.0.0.7' not found !"), LinkLost),
    "another protocol": (exactly(b"HTTP/1.1 400 Bad Request\r\n\r\n"), LinkError),
    "a length that is none": (exactly(b"OKAYzzzz"), LinkError),
    "a refusal of no length": (exactly(b"FAIL\xff\xff\xff\xff"), LinkError),
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_adb_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is started by an adb program."""
    monkeypatch.setenv("ADBUTILS_ADB_PATH", "/bin/false")
    monkeypatch.setattr(adb_server, "ANSWER_SECONDS", SECONDS)
    monkeypatch.setattr(adb_server, "LEAVING_SECONDS", SECONDS)


REQUESTS: dict[str, Callable[[Client], object]] = {
    "devices": lambda client: next(client.listed()),
    "a service": lambda client: client.service("host:version").read_string_block(),
    "a device": lambda client: client.service("shell,v2,raw:true", "SER").read_string_block(),
    "adbutils' own": lambda client: client.forward_list(),
}
"""Ours, and one of adbutils that nothing was done about: its connections are bounded as well."""


def ask(server: Server, request_name: str) -> None:
    """One request, with its limit and errors of ours."""
    with Client(server, SECONDS) as client, adb_server.OurErrors():
        REQUESTS[request_name](client)


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("request_name", ["devices", "a service"])
def test_no_answer_that_is_not_whole_counts(name: str, request_name: str) -> None:
    says, kind = ANSWERS[name]
    begun = time.monotonic()
    with serving(says) as server, pytest.raises(LinkError) as caught:
        ask(server, request_name)
    assert type(caught.value) is kind, caught.value
    assert time.monotonic() - begun < LATE_SECONDS
    with serving(says) as server, pytest.raises(NoServer, match="does not answer as one") as refused:
        list_serials(server)
    assert refused.value.remedy


@pytest.mark.parametrize("name", ["silence", "a byte now and then", "3 of 16 bytes", "a length that is none"])
@pytest.mark.parametrize("request_name", REQUESTS)
def test_every_request_of_adbutils_ends_in_time_and_leaves_nothing_open(name: str, request_name: str) -> None:
    says, _ = ANSWERS[name]
    begun = time.monotonic()
    with serving(says) as server:
        with pytest.raises(LinkError):
            ask(server, request_name)
        assert list_of_open(server) == []
    assert time.monotonic() - begun < LATE_SECONDS
    gc.collect()  # a socket that is left open is a warning, and so an error here


def list_of_open(server: Server) -> list[str]:
    """Connections of this process to a server that are not closed (Linux)."""
    port = f":{server[1]:04X}"
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return [" ".join(row) for row in rows if row[2].endswith(port) and row[3] == "01"]


def test_a_server_without_end_costs_one_answer() -> None:
    sent = []

    def count(client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            flood(client)
            sent.append("all of it")

    with serving(count) as server:
        assert list_serials(server) == []
        with pytest.raises(LinkError):
            Link(server, "SER").shell(["true"], seconds=5.0)
    assert sent == []


def test_joining_a_device_raises_nothing_whatever_the_server_says() -> None:
    for says, _ in ANSWERS.values():
        begun = time.monotonic()
        with serving(says) as server:
            assert isinstance(reconnect(server, "10.0.0.7:5555"), str)
        assert time.monotonic() - begun < LATE_SECONDS


def test_a_state_of_several_words_and_a_serial_with_blanks_are_kept() -> None:
    """adbutils' list() splits at blanks: a phone without a udev rule would be in the state `no`."""
    listed = "1234\tno permissions (missing udev rules?)\n(no serial number)\tunauthorized\n"
    answer = b"OKAY%04x%s" % (len(listed), listed.encode())
    with serving(exactly(answer)) as server:
        assert list_serials(server) == [
            ("1234", "no permissions (missing udev rules?)"),
            ("(no serial number)", "unauthorized"),
        ]


def test_a_request_is_sent_whole_where_the_socket_takes_a_part_at_once() -> None:
    taken: list[int] = []

    def slowly(client: socket.socket) -> None:
        taken.append(1)
        client.sendall(b"OKAY")

    with serving(slowly) as server, Client(server, LATE_SECONDS) as client:
        connection = client.make_connection()
        connection.conn.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        connection.send_command("x" * 60_000)  # the server answers when it has read as much as was announced
        connection.check_okay()
    assert taken


def test_the_longest_command_arrives(tmp_path: Path) -> None:
    rest = LONGEST - len(remote_command(script('printf %s "${#1}"', "")))
    with LyingAdb(Lie()) as adb:
        output = Link(("127.0.0.1", adb.port), "fake1").shell(script('printf %s "${#1}"', "x" * (rest + 2)))
    assert output.stdout == b"%d" % (rest + 2)


def adb_that(folder: Path, does: str) -> Path:
    """An adb program that notes its arguments and then does something."""
    program = folder / "adb"
    program.write_text(f'#!/bin/sh\necho "$@" >> {folder}/arguments\n{does}\n')
    program.chmod(0o755)
    return program


@pytest.fixture
def closed() -> Server:
    """Where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return "127.0.0.1", free.getsockname()[1]


def test_a_server_is_started_at_the_port_that_was_asked_for(
    closed: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the environment says; adbutils would start one at the environment's port, by default a developer's."""
    monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", "1")
    monkeypatch.setenv("ADBUTILS_ADB_PATH", str(adb_that(tmp_path, "exit 7")))
    with pytest.raises(NoServer, match="exit status 7") as caught:
        list_serials(closed)
    assert (tmp_path / "arguments").read_text() == f"-P {closed[1]} start-server\n"
    assert caught.value.where == f"127.0.0.1:{closed[1]}"


def test_what_starting_a_server_takes_is_not_the_requests_time(
    closed: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program here waits until this process listens, for twice the time of the request."""
    waits = f"while [ ! -e {tmp_path}/listens ]; do sleep 0.05; done"
    monkeypatch.setenv("ADBUTILS_ADB_PATH", str(adb_that(tmp_path, waits)))

    def listen() -> None:
        while not (tmp_path / "arguments").exists():
            time.sleep(0.01)
        time.sleep(2 * SECONDS)
        with socket.create_server(closed) as listener:
            (tmp_path / "listens").touch()
            client, _ = listener.accept()
            with client:
                read(client, int(read(client, 4), 16))
                client.sendall(b"OKAY0000")

    listening = threading.Thread(target=listen)
    listening.start()
    assert list_serials(closed) == []
    listening.join()


def test_no_server_is_started_for_another_computer(
    closed: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADBUTILS_ADB_PATH", str(adb_that(tmp_path, "exit 0")))
    monkeypatch.setattr(adb_server, "LOOPBACK", ())
    with pytest.raises(NoServer, match="refused"):
        list_serials(closed)
    assert not (tmp_path / "arguments").exists()


@pytest.mark.parametrize("where", ["path", "variable"])
def test_an_adb_program_that_hangs_is_given_up(
    where: str, closed: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the one on PATH, which adbutils itself runs and waits for; and the command ends after it said so."""
    program = adb_that(tmp_path, "exec sleep 60")
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "ADBUTILS_ADB_PATH": str(program)}
    if where == "path":
        del environment["ADBUTILS_ADB_PATH"]
    code = (
        "import sys; from device_runner.adb import server; server.START_SECONDS = 0.5\n"
        "try: server.list_serials(('127.0.0.1', int(sys.argv[1])))\n"
        "except server.NoServer as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(closed[1])], cwd=ROOT, env=environment, capture_output=True, text=True,
        timeout=50, check=True,
    )  # fmt: skip
    assert "no adb server" in done.stdout
    assert (tmp_path / "arguments").exists()


def test_a_server_at_an_address_of_ipv6() -> None:
    """Which adbutils' own connections cannot reach."""
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    with listener:

        def serve() -> None:
            client, _ = listener.accept()
            with client:
                read(client, int(read(client, 4), 16))
                client.sendall(b"OKAY0000")

        threading.Thread(target=serve, daemon=True).start()
        assert list_serials(listener.getsockname()[:2]) == []


def test_what_is_replaced_of_adbutils_is_what_it_uses() -> None:
    """Its client connects by `make_connection` alone, and its connections do all by `conn`, `read` and the like."""
    with serving(exactly(b"OKAY0000")) as server, Client(server, SECONDS) as client:
        assert client.forward_list() == []
        assert isinstance(client, adbutils.AdbClient)
        assert isinstance(client.make_connection(), adbutils.AdbConnection)
