"""What a hostile client sends to `lab serve`: each is refused and the log says why; others go on being served."""

import contextlib
import http.client
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.features.lab.test_serve import TOKEN, ask, file_url, store

pytest.importorskip("tornado", reason="tornado is not installed")

pytestmark = pytest.mark.long

__all__ = ["file_url", "store"]

SERVER = """
import logging, sys
from pipeline.features.lab import connections, serve
logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
connections.REQUEST_SECONDS, connections.ANSWER_SECONDS = 1.5, 1.5
connections.OF_ADDRESS, connections.CONNECTIONS = 32, 48
serve.serve(sys.argv[1], "127.0.0.1", 0, sys.argv[2], lambda url: print(url, flush=True))
"""


@dataclass(frozen=True)
class Hostile:
    """A server with short bounds, in a process of its own that writes a log."""

    port: int
    pid: int
    log: Path

    def memory(self) -> int:
        """The most bytes that it has had."""
        return int(re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())[0]) << 10


@contextlib.contextmanager
def server(url: str, log: Path, token: str = "") -> Iterator[Hostile]:
    command = [sys.executable, "-c", SERVER, url, token]
    with log.open("w") as out, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=out, text=True) as started:
        assert started.stdout
        try:
            found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\n", started.stdout.readline())
            assert found, log.read_text()
            yield Hostile(int(found[1]), started.pid, log)
        finally:
            started.send_signal(signal.SIGINT)
            started.wait(600)
    assert started.returncode == 0
    assert "Traceback" not in log.read_text(), log.read_text()


@pytest.fixture
def hostile(store: object, file_url: str, tmp_path: Path) -> Iterator[Hostile]:
    """While it is attacked, another client asks as before, and has to wait for no answer.

    A connection may lose its place before its request is there, where hundreds come meanwhile: it asks again, as
    browsers do.
    """
    stop = threading.Event()
    waited: list[tuple[int, float]] = []
    lost: list[OSError] = []

    def others(port: int) -> None:
        while not stop.wait(0.05) or not waited:
            began = time.monotonic()
            try:
                waited.append((ask(port, "/api/lab")[0], time.monotonic() - began))
            except (http.client.RemoteDisconnected, ConnectionResetError) as error:
                lost.append(error)

    with server(file_url, tmp_path / "log") as found:
        before = found.memory()
        thread = threading.Thread(target=others, args=(found.port,))
        thread.start()
        yield found
        stop.set()
        thread.join(600)
        assert found.memory() - before < 48 << 20
    assert {status for status, _ in waited} == {200}
    assert len(lost) <= 1 + len(waited) // 10
    assert max(seconds for _, seconds in waited) < 10


LINE = b"GET /api/lab HTTP/1.1\r\nConnection: close\r\n"
HEAD = LINE + b"Host: localhost\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def field(text: bytes) -> bytes:
    return HEAD + text + b"\r\n\r\n"


def lined(line: bytes) -> bytes:
    return line + b"\r\nHost: localhost\r\nConnection: close\r\n\r\n"


REFUSED: dict[str, tuple[bytes, int, str]] = {
    "a field that is too long": (field(b"A: " + b"x" * 17000), 0, "not found within 16384 bytes"),
    "a head of many lines": (HEAD + b"A: b\r\n" * 4000 + b"\r\n", 0, "not found within 16384 bytes"),
    "a head without an end": (HEAD + b"x" * (8 << 20), 0, "not found within 16384 bytes"),
    "a request line that is too long": (lined(b"GET /" + b"x" * 17000 + b" HTTP/1.1"), 0, "not found within"),
    "many fields": (HEAD + b"A: b\r\n" * 101 + b"\r\n", 400, "more than 100 header fields"),
    "a body that is too long": (field(b"Content-Length: 20000") + b"xx", 400, "Content-Length too long"),
    "a length beyond all": (field(b"Content-Length: " + b"9" * 4000), 400, "Content-Length"),
    "a chunk beyond all": (CHUNKED + b"ffffffffffff\r\n", 400, "chunked body too large"),
    "many chunks": (CHUNKED + b"400\r\n%s\r\n" % bytes(1024) * 16 + b"1\r\n", 400, "chunked body too large"),
    "a chunk of a negative size": (CHUNKED + b"-5\r\nhello\r\n0\r\n\r\n", 400, "invalid chunk size"),
    "a chunk with 0x": (CHUNKED + b"0x5\r\nhello\r\n0\r\n\r\n", 400, "invalid chunk size"),
    "a chunk with an underscore": (CHUNKED + b"1_0\r\nhello\r\n0\r\n\r\n", 400, "invalid chunk size"),
    "a chunk with an extension": (CHUNKED + b"5;a=b\r\nhello\r\n0\r\n\r\n", 400, "invalid chunk size"),
    "a chunk that is longer than it says": (CHUNKED + b"2\r\nhello\r\n0\r\n\r\n", 400, "improperly terminated chunk"),
    "a line of a chunk without an end": (CHUNKED + b"1" * 100, 0, "not found within 64 bytes"),
    "length and chunks": (
        field(b"Content-Length: 5\r\nTransfer-Encoding: chunked") + b"0\r\n\r\n", 400,
        "both Transfer-Encoding and Content-Length",
    ),
    "two lengths": (field(b"Content-Length: 5\r\nContent-Length: 6") + b"hello", 400, "unequal Content-Lengths"),
    "a length with a sign": (field(b"Content-Length: +5") + b"hello", 400, "Only integer Content-Length"),
    "a length with an underscore": (field(b"Content-Length: 1_0") + b"hello", 400, "Only integer Content-Length"),
    "an unknown coding": (field(b"Transfer-Encoding: gzip, chunked"), 400, "Unsupported Transfer-Encoding"),
    "two codings": (
        field(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity"), 400, "Unsupported Transfer-Encoding"
    ),
    "a coding behind a control": (field(b"Transfer-Encoding: \x0bchunked"), 400, ""),
    "a space before the colon": (field(b"Content-Length : 5") + b"hello", 400, "Malformed HTTP message"),
    "a field without a colon": (field(b"nothing"), 400, "Malformed HTTP message"),
    "a NUL in a field": (field(b"A: b\0c"), 400, "Malformed HTTP message"),
    "a CR in a field": (field(b"A: b\rTransfer-Encoding: chunked"), 400, "Malformed HTTP message"),
    "no version": (b"GET /\r\n\r\n", 400, "Malformed HTTP"),
    "another version": (lined(b"GET / HTTP/3.0"), 400, "HTTP version"),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "Malformed HTTP"),
    "TLS": (bytes.fromhex("16030100c8010000c40303") + bytes(180), 0, ""),
    "no host": (LINE + b"\r\n", 421, "another host"),
    "two hosts": (field(b"Host: evil.example"), 421, "another host"),
    "HTTP/1.0 without a host": (b"GET /api/lab HTTP/1.0\r\n\r\n", 421, "another host"),
    "a host in the target": (lined(b"GET http://evil.example/api/lab HTTP/1.1"), 404, "no such page"),
    "a tunnel": (lined(b"CONNECT evil.example:443 HTTP/1.1"), 404, "no such page"),
    "an asterisk": (lined(b"OPTIONS * HTTP/1.1"), 404, "no such page"),
    "dots in a path": (lined(b"GET /../../etc/passwd HTTP/1.1"), 404, "no such page"),
    "escaped dots": (lined(b"GET /api/campaigns/%2e%2e%2f%2e%2e%2fetc%2fpasswd HTTP/1.1"), 404, "no campaign"),
    "two slashes": (lined(b"GET //api/lab HTTP/1.1"), 404, "no such page"),
    "a NUL in a path": (lined(b"GET /api/campaigns/c1%00 HTTP/1.1"), 404, "no such page"),
    "bad UTF-8": (lined(b"GET /api/campaigns/%ff%fe HTTP/1.1"), 404, "no campaign"),
    "an overlong slash": (lined(b"GET /api/campaigns/%c0%af HTTP/1.1"), 404, "no campaign"),
    "bad UTF-8 of a parameter": (lined(b"GET /api/campaigns?limit=%ff HTTP/1.1"), 400, "limit is a number"),
    "many parameters": (lined(b"GET /api/campaigns?" + b"limit=1&" * 1500 + b" HTTP/1.1"), 400, "given twice"),
    "a method that writes": (field(b"Content-Length: 2").replace(b"GET", b"POST") + b"{}", 405, "Only GET and HEAD"),
    "a method in small letters": (lined(b"get /api/lab HTTP/1.1"), 405, "Only GET and HEAD"),
    "a method of its own": (lined(b"STEAL /api/lab HTTP/1.1"), 405, "Only GET and HEAD"),
}  # fmt: skip
"""What is sent to the status that it gets, 0 for an ended connection, and what the log says."""


def said_to(port: int, *parts: bytes, pause: float = 0.0, seconds: float = 300.0) -> bytes:
    """All that comes back until the server ends the connection, or has sent an answer and waits for `seconds`."""
    got = b""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as client, contextlib.suppress(OSError):
        for part in parts:
            client.sendall(part)
            time.sleep(pause)
        while part := client.recv(1 << 16):
            got += part
    return got


def test_what_is_malformed_is_refused_and_named(hostile: Hostile) -> None:
    for name, (sent, status, named) in REFUSED.items():
        before = len(hostile.log.read_text())
        got = said_to(hostile.port, sent)
        assert got.startswith(b"HTTP/1.1 %d " % status if status else b""), (name, got)
        assert bool(status) == bool(got), (name, got)
        if status > 400:
            assert b"content-security-policy: default-src" in got.lower(), name
        assert b"passwd:" not in got
        assert got.count(b"HTTP/1.1") <= 1, (name, got)
        said = hostile.log.read_text()[before:]
        assert named in said, (name, said)


SLOW = {
    "silence": [b""] * 40,
    "a head in drops": [bytes([byte]) for byte in HEAD * 2],
    "a body in drops": [HEAD + b"Content-Length: 100\r\n\r\n", *[b"x"] * 90],
    "chunks in drops": [CHUNKED, *[b"1\r\nx\r\n"] * 90],
}


@pytest.mark.parametrize("name", SLOW)
def test_a_request_that_does_not_end_is_ended(hostile: Hostile, name: str) -> None:
    began = time.monotonic()
    assert said_to(hostile.port, *SLOW[name], pause=0.1) == b""
    assert 1 < time.monotonic() - began < 250


def test_requests_in_one_piece_are_answered_in_their_order(hostile: Hostile) -> None:
    asked = [b"/api/lab", b"/nope", b"/api/campaigns?limit=0", b"/api/campaigns"]
    sent = b"".join(b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path for path in asked)
    got = said_to(hostile.port, sent + b"GET /api/lab HTTP/1.0\r\nHost: localhost\r\n\r\n")
    assert re.findall(rb"HTTP/1.1 (\d+)", got) == [b"200", b"404", b"400", b"200", b"200"]


def test_who_asks_on_and_takes_no_answer_is_ended(hostile: Hostile) -> None:
    """And what it asked before its connection was ended is not answered then."""
    asked = b"GET /nope HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(300)
        client.connect(("127.0.0.1", hostile.port))
        with pytest.raises(ConnectionError):
            client.sendall(asked * 1_000_000)
    answered = hostile.log.read_text().count("no such page")
    time.sleep(2)
    assert hostile.log.read_text().count("no such page") < answered + 100


@pytest.mark.parametrize("sent", [b"", HEAD, HEAD + b"Content-Length: 9\r\n\r\n", CHUNKED], ids=range(4))
def test_connections_in_number_keep_nobody_out(hostile: Hostile, sent: bytes) -> None:
    """From many addresses, and half of them go without a word."""
    with contextlib.ExitStack() as stack:
        for number in range(400):
            client = socket.create_connection(
                ("127.0.0.1", hostile.port), timeout=300, source_address=(f"127.0.0.{2 + number % 50}", 0)
            )
            with contextlib.suppress(ConnectionError):
                client.sendall(sent)
            if number % 2:
                client.close()
            else:
                stack.enter_context(client)
        assert ask(hostile.port, "/api/lab")[0] == 200


def test_bad_tokens_are_refused_in_every_form(store: object, file_url: str, tmp_path: Path) -> None:
    word = TOKEN.encode()
    forms = (
        b"Bearer", b"Bearer ", b"Basic", b"Basic \xff\xfe", b"Basic Og==", b"Basic " + word,
        b"Bearer " + word[:-1], b"Bearer " + word + b"x", b"Bearer " + word.upper(), b"Digest " + word,
        b"Bearer x\r\nAuthorization: Bearer " + word, b"Bearer " + word + b"\r\nAuthorization: x",
        word, b"Bearer\t" + word, b"Bearer " + b"A" * 15000,
        b"x\r\nX-Authorization: Bearer " + word, b"x\r\nProxy-Authorization: Bearer " + word,
    )  # fmt: skip
    with server(file_url, tmp_path / "log", TOKEN) as found:
        for form in forms:
            got = said_to(found.port, field(b"Authorization: " + form))
            assert got.startswith(b"HTTP/1.1 401 "), form
            assert word not in got
        assert said_to(found.port, field(b"Authorization: Bearer " + word)).startswith(b"HTTP/1.1 200 ")
    said = (tmp_path / "log").read_text()
    assert said.count("The token is missing or wrong") == len(forms)
    assert TOKEN not in said
