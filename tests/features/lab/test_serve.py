"""`lab serve`, as a process on a free port with a real store: what it shows, to whom, and that nothing can write."""

import base64
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from device_runner.device import DeviceFacts
from device_runner.result import FailureKind, Status
from pipeline.campaign.store import Store, open_reading, open_store
from pipeline.campaign.store.tables import campaigns
from pipeline.core.errors import ConfigError, MissingError, PipelineError
from pipeline.report import html, model
from tests.campaign.store.samples import ARTIFACT, CAMPAIGN, failed, run_record

pytest.importorskip("tornado", reason="tornado is not installed")

from pipeline.features.lab.serve import MOST_STREAMS, PAGES, openapi, progress_of, read_token, serve

TOKEN = "0123456789abcdef-token"
HOSTILE = msgspec.structs.replace(CAMPAIGN, id="c 2?<b>%", name="<script>alert(1)</script>")

Got = tuple[int, Mapping[str, str], bytes]


@pytest.fixture
def store(file_url: str) -> Iterator[Store]:
    with open_store(file_url) as opened:
        opened.start(CAMPAIGN, [DeviceFacts(name="local", platform="linux", abis=("x86_64",))], [ARTIFACT])
        opened.add_run(run_record())
        opened.start(HOSTILE)
        yield opened


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'results.sqlite'}"


SHORT = """
import sys
from pipeline.features.lab import connections, serve
connections.OF_ADDRESS, connections.CONNECTIONS, connections.REQUEST_SECONDS = 8, 12, 2.0
serve.serve(sys.argv[1], "127.0.0.1", 0, "", lambda url: print(f"serving {url} - Ctrl-C ends it", flush=True))
"""


@contextlib.contextmanager
def process(
    url: str, *arguments: str, script: str = "", **environment: str
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The command, and its port, until it is interrupted; it must then end with 0 and without a traceback."""
    command = [sys.executable, "-m", "pipeline", "lab", "serve", "--database", url, "--port", "0", *arguments]
    if script:
        command = [sys.executable, "-c", script, url]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    ) as started:
        assert started.stdout is not None
        line = started.stdout.readline()
        found = re.fullmatch(r"serving http://127\.0\.0\.1:(\d+)/ - Ctrl-C ends it\n", line)
        if not found:
            started.kill()
            pytest.fail(line + started.communicate()[1])
        try:
            yield started, int(found[1])
        finally:
            started.send_signal(signal.SIGINT)
            _, said = started.communicate(timeout=600)
    assert started.returncode == 0, said
    assert "Traceback" not in said


def ask(port: int, path: str, method: str = "GET", **headers: str) -> Got:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): text for name, text in headers.items()})
        answer = connection.getresponse()
        return answer.status, {name.lower(): text for name, text in answer.getheaders()}, answer.read()
    finally:
        connection.close()


@pytest.fixture
def port(store: Store, file_url: str) -> Iterator[int]:
    with process(file_url) as (_, number):
        yield number


@pytest.mark.long
def test_what_is_served_is_what_is_stored(port: int, store: Store, tmp_path: Path) -> None:
    import jsonschema  # late: beside the linters of `extra_tests`, which bring it a grammar, it takes 1.6 s

    before = {path: path.read_bytes() for path in tmp_path.glob("results.sqlite*") if not path.name.endswith("-shm")}
    listed = json.loads(ask(port, "/api/campaigns")[2])
    assert [campaign["id"] for campaign in listed["campaigns"]] == ["c 2?<b>%", "c1"]
    assert json.loads(ask(port, "/api/campaigns?limit=1")[2])["total"] == 2
    status, headers, page = ask(port, "/campaigns/c1/report.html")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = re.search(rb'Content-Security-Policy" content="([^"]*)"', page)
    assert policy
    assert headers["content-security-policy"].startswith(policy[1].decode().replace("&#39;", "'"))
    report = model.decode(ask(port, "/api/campaigns/c1")[2])
    assert (report.campaign, len(report.rows)) == ("c1", 1)
    progress = json.loads(ask(port, "/api/campaigns/c1/progress")[2])
    assert progress["devices"] == [{"device": "local", "stored": 1, "failed": 0, "state": ""}]
    assert json.loads(ask(port, "/api/lab")[2]) == {
        "version": 1, "hosts": [], "devices": [], "campaigns": [], "golden": "", "lost": [], "quarantine": {},
    }  # fmt: skip
    for path in ("/", "/lab", "/campaigns/c1", f"/campaigns/{quote(HOSTILE.id)}"):
        status, headers, page = ask(port, path)
        assert status == 200
        assert b"<script>alert" not in page
        assert headers["content-security-policy"] == f"{html.listing_policy()}; frame-ancestors 'none'"
    assert b"&lt;script&gt;alert(1)" in ask(port, "/")[2]
    described = json.loads(ask(port, "/openapi.json")[2])
    for path, answer in (("/api/campaigns", listed), ("/api/campaigns/{campaign}/progress", progress)):
        schema = described["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        jsonschema.validate(answer, {**schema, "components": described["components"]})
    after = {path: path.read_bytes() for path in before}
    assert after == before


def test_a_run_that_is_impossible_on_a_device_has_not_failed(store: Store) -> None:
    record = failed(FailureKind.PROVIDER_MISSING, "s2")
    skipped = msgspec.structs.replace(record.result, status=Status.SKIPPED)
    assert store.add_run(msgspec.structs.replace(record, result=skipped))
    found = progress_of(store, CAMPAIGN)
    assert (found.stored, found.failed) == (2, 0)


@pytest.mark.long
def test_every_answer_is_strict_and_no_method_writes(port: int) -> None:
    asked = [("GET", path.path.format(campaign="c1")) for path in PAGES if path.make]
    wrong = [("GET", "/nope"), ("GET", "/api/nope"), ("GET", "/api/campaigns/x"), ("GET", "/campaigns/x/report.html"),
             ("GET", "/api/campaigns/x/events"), ("GET", "/?x=1"), ("GET", "/api/campaigns?limit=0"),
             ("GET", "/api/campaigns?limit=1&limit=2"), ("GET", "/api/campaigns?limit=%F0%9F%98%80")]  # fmt: skip
    writing = [(method, path) for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS") for path in ("/", "/api/lab")]
    for method, path in (*asked, *wrong, *writing, ("HEAD", "/api/lab")):
        status, headers, content = ask(port, path, method)
        good = (method, path) in asked or method == "HEAD"
        assert status == 200 if good else status == 405 if (method, path) in writing else status in (400, 404), path
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert "server" not in headers
        if not good:
            assert headers["content-type"].startswith("application/json" if "/api/" in path else "text/html")
            assert b"Traceback" not in content
            assert content


@pytest.mark.long
def test_only_the_token_opens(store: Store, file_url: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN + "\n")
    basic = base64.b64encode(f"anybody:{TOKEN}".encode()).decode()
    with process(file_url, "--token-file", str(tmp_path / "token"), ORT_MOBILE_LAB_TOKEN="another-token-0123") as (
        _,
        port,
    ):
        refused: tuple[dict[str, str], ...] = (
            {}, {"authorization": "Bearer "}, {"authorization": f"Bearer {TOKEN[:-1]}"}, {"authorization": "Basic ???"},
            {"authorization": f"Bearer {TOKEN}é"}, {"authorization": "Bearer another-token-0123"},
            {"authorization": f"Digest {TOKEN}"}, {"cookie": f"token={TOKEN}"},
        )  # fmt: skip
        for headers in refused:
            status, answered, content = ask(port, f"/api/campaigns?token={TOKEN}", **headers)
            assert (status, "Basic" in answered["www-authenticate"]) == (401, True), headers
            assert TOKEN.encode() not in content
        assert ask(port, "/openapi.json")[0] == 401
        for value in (f"Bearer {TOKEN}", f"bearer {TOKEN}", f"Basic {basic}"):
            assert ask(port, "/api/campaigns", authorization=value, host="lab.example")[0] == 200


@pytest.mark.long
def test_without_a_token_a_request_must_name_this_computer(port: int) -> None:
    for host in ("localhost", f"127.0.0.1:{port}", "[::1]:80"):
        assert ask(port, "/api/lab", host=host)[0] == 200
    others = (
        "evil.example",
        "127.0.0.1.evil.example",
        "",
        "[::1].evil",
        "localhost:80@evil",
        "localhost:x",
        "[localhost]",
    )
    for host in others:
        assert ask(port, "/api/lab", host=host)[0] == 421


@pytest.mark.long
def test_progress_arrives_as_it_is_stored_and_ctrl_c_ends_open_streams(store: Store, file_url: str) -> None:
    with process(file_url) as (_, port), _stream(port) as client:
        assert '"stored":1,"failed":0' in _until(client, b'"devices"')
        store.add_run(msgspec.structs.replace(failed(FailureKind.TIMEOUT), round=1))
        assert '"stored":2,"failed":1' in _until(client, b'"devices"')


@pytest.mark.long
def test_streams_are_bounded_and_make_room_when_they_end(port: int) -> None:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(_stream(port)) for _ in range(MOST_STREAMS + 3)]
        assert sorted(client.recv(12)[-3:] for client in clients) == [b"200"] * MOST_STREAMS + [b"503"] * 3
    deadline = time.monotonic() + 300
    while True:
        with _stream(port) as client:
            if client.recv(12).endswith(b"200"):
                return
        assert time.monotonic() < deadline


def _stream(port: int) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), timeout=300)
    client.sendall(b"GET /api/campaigns/c1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return client


def _until(client: socket.socket, wanted: bytes) -> str:
    found = b""
    while wanted not in found:
        part = client.recv(65536)
        assert part, found
        found += part
    return found.decode()


HEAD = b"GET /api/lab HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture
def strict_port(store: Store, file_url: str) -> Iterator[int]:
    with process(file_url, script=SHORT) as (_, number):
        yield number


@pytest.mark.long
@pytest.mark.parametrize("begun", [b"", HEAD], ids=["silent", "half sent"])
def test_many_connections_without_a_request_keep_nobody_out(strict_port: int, begun: bytes) -> None:
    """Of another address or of the same; and none of them is kept, whatever trickles in."""
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(_client(strict_port, "127.0.0.2")) for _ in range(20)]
        for client in clients:
            with contextlib.suppress(ConnectionError):  # all but eight are ended at once
                client.sendall(begun)
        for address in ("127.0.0.1", "127.0.0.2"):
            assert _answer(strict_port, address) == b"HTTP/1.1 200"
        while any(map(_is_open, clients)):
            assert time.monotonic() - began < 300
            for client in clients if begun else ():
                with contextlib.suppress(ConnectionError):
                    client.sendall(b"x")
            time.sleep(0.1)
    assert time.monotonic() - began > 1.9


@pytest.mark.long
def test_a_body_is_waited_for_as_long_as_a_head(strict_port: int) -> None:
    began = time.monotonic()
    with _client(strict_port, "127.0.0.1") as client:
        client.sendall(HEAD + b"Content-Length: 100000\r\n\r\n")
        while _is_open(client):
            assert time.monotonic() - began < 300
            with contextlib.suppress(ConnectionError):
                client.sendall(b"x")
            time.sleep(0.1)


@pytest.mark.long
def test_streams_outlive_the_time_for_a_request(strict_port: int, store: Store) -> None:
    """Also one that was asked for before the answer to another had come."""
    with _client(strict_port, "127.0.0.1") as client:
        client.sendall(HEAD + b"\r\n" + b"GET /api/campaigns/c1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        _until(client, b'"stored":1')
        time.sleep(3)
        store.add_run(msgspec.structs.replace(failed(FailureKind.TIMEOUT), round=1))
        _until(client, b'"stored":2')


@pytest.mark.long
def test_places_are_taken_from_nobody_who_has_a_request(strict_port: int) -> None:
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(_stream(strict_port)) for _ in range(8)]
        assert [client.recv(12) for client in streams] == [b"HTTP/1.1 200"] * 8
        assert _answer(strict_port, "127.0.0.1") == b""
        assert _answer(strict_port, "127.0.0.2") == b"HTTP/1.1 200"
        assert all(map(_is_open, streams))


def _client(port: int, address: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=300, source_address=(address, 0))


def _answer(port: int, address: str) -> bytes:
    """The first bytes of an answer, b"" where the connection is ended."""
    with _client(port, address) as client, contextlib.suppress(ConnectionError):
        client.sendall(HEAD + b"\r\n")
        return client.recv(12)
    return b""


def _is_open(client: socket.socket) -> bool:
    try:
        client.setblocking(False)
        while client.recv(65536):
            pass
    except BlockingIOError:
        return True
    except ConnectionError:
        return False
    finally:
        client.settimeout(300)
    return False


@pytest.mark.long
def test_odd_ids_are_not_there(port: int, store: Store) -> None:
    store.start(msgspec.structs.replace(CAMPAIGN, id="a/b"))
    for path in ("/campaigns/%00", "/api/campaigns/c1%00/progress", "/campaigns/%1b%5b31m", "/campaigns/%ff", "/a/b"):
        assert ask(port, path)[0] == 404, path
    assert ask(port, "/campaigns/a%2Fb")[0] == 200
    assert json.loads(ask(port, "/api/campaigns/a%2Fb/progress")[2])["campaign"] == "a/b"


def test_only_a_server_with_a_token_says_that_it_needs_one() -> None:
    assert "security" in openapi(has_token=True)
    assert "security" not in str(openapi(has_token=False))
    assert "401" not in str(openapi(has_token=False))
    assert "421" not in str(openapi(has_token=True))


def test_a_reader_cannot_write_make_or_upgrade(store: Store, file_url: str, tmp_path: Path) -> None:
    with open_reading(file_url) as reading:
        with pytest.raises(PipelineError):
            reading.start(msgspec.structs.replace(CAMPAIGN, id="c9"))
        with pytest.raises(PipelineError):
            reading.write(lambda connection: connection.execute(campaigns.delete()))
        assert set(reading.names()) == {"c1", HOSTILE.id}
    with pytest.raises(MissingError):
        open_reading(f"sqlite:///{tmp_path / 'none.sqlite'}")
    assert not (tmp_path / "none.sqlite").exists()
    with sqlite3.connect(tmp_path / "old.sqlite") as old:
        old.execute("CREATE TABLE alembic_version (version_num TEXT)")
        old.execute("INSERT INTO alembic_version VALUES ('0002')")
    with pytest.raises(ConfigError, match="schema 0002"):
        open_reading(f"sqlite:///{tmp_path / 'old.sqlite'}")


@pytest.mark.long
def test_a_damaged_campaign_costs_its_page_alone(store: Store, file_url: str) -> None:
    change = campaigns.update().where(campaigns.c.id == HOSTILE.id).values(name="another")
    store.write(lambda connection: connection.execute(change))
    with process(file_url) as (_, port):
        status, _, content = ask(port, f"/api/campaigns/{quote(HOSTILE.id)}")
        assert (status, "damaged" in json.loads(content)["error"]) == (500, True)
        assert b"damaged" in ask(port, f"/campaigns/{quote(HOSTILE.id)}")[2]
        assert ask(port, "/api/campaigns/c1")[0] == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "lab.example", ""])  # refused
def test_other_addresses_need_a_token(file_url: str, host: str) -> None:
    with pytest.raises(ConfigError, match="no token"):
        serve(file_url, host, 0, "", lambda _address: pytest.fail("it listens"))


@pytest.mark.parametrize("text", ["", "short", "a" * 2000, "has a space in it, here", "ünïcödé-ünïcödé-ünïcödé"])
def test_a_bad_token_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "token"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        read_token(path, {})
    assert not text or text not in str(refused.value)
    if text:
        with pytest.raises(ConfigError):
            read_token(None, {"ORT_MOBILE_LAB_TOKEN": text})


def test_a_port_in_use_is_named(store: Store, file_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError, match="cannot listen"):
        serve(file_url, "127.0.0.1", taken.getsockname()[1], "", lambda _address: pytest.fail("it listens"))


@pytest.mark.slow
def test_what_is_described_is_true(store: Store, file_url: str) -> None:
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    described = openapi(has_token=True)
    for path in [path for path in described["paths"] if path.endswith("/events")]:
        del described["paths"][path]  # it does not end
    del described["security"]  # else it asks with tokens of its own, too: test_only_the_token_opens does that
    with process(file_url, ORT_MOBILE_LAB_TOKEN=TOKEN) as (_, port):
        tried = _fuzz(schemathesis, described, f"http://127.0.0.1:{port}")
    assert tried > 200


def _fuzz(schemathesis: Any, described: dict[str, Any], url: str) -> int:
    """How many requests were made; each answer must be as it is described, with the token."""
    from hypothesis import HealthCheck, Phase, given, settings

    schema, tried = schemathesis.openapi.from_dict(described), 0
    schema.config.update(base_url=url, headers={"authorization": f"Bearer {TOKEN}"})
    for operation in (found.ok() for found in schema.get_all_operations()):

        @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
        @given(case=operation.as_strategy())
        def check(case: Any) -> None:
            nonlocal tried
            tried += 1
            case.call_and_validate()

        check()
    return tried
