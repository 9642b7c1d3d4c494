"""Waiting for campaigns, being told of their end, and devices that nobody has, on a real PostgreSQL."""

import http.server
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from device_runner.device import DeviceFacts
from pipeline.campaign.store import Store
from pipeline.campaign.store.digests import row_digest
from pipeline.campaign.store.tables import campaigns
from pipeline.core.errors import MissingError
from pipeline.features.lab.agent import work
from pipeline.features.lab.campaigns import chosen_devices
from pipeline.features.lab.hooks import Hooks, read_hooks
from pipeline.features.lab.queue import DONE, LabSession, LostDevice, cancel_jobs, jobs_of, lost_devices
from pipeline.features.lab.status import lab_status, status_lines
from tests.command import ROOT, ort_mobile
from tests.features.lab.farm import LONG_SECONDS, agent, all_in, host_session, rigs, silent, submitted, until

pytestmark = pytest.mark.postgresql

DEVICE = "rig:0"


def wait_for(url: str, *words: str, code: int) -> str:
    return ort_mobile("lab", "wait", *words, "--database", url, code=code).out


def test_waiting_says_how_campaigns_ended_by_its_exit_code(url: str, store: Store, tmp_path: Path) -> None:
    submitted(store, tmp_path, rigs(2), 1, "good")
    submitted(store, tmp_path, rigs(1), 1, "bad")
    begun = time.monotonic()
    assert "good lab: open; devices: 2 waiting" in wait_for(url, "good", "bad", "--timeout", "0.5", code=124)
    assert time.monotonic() - begun < LONG_SECONDS
    assert cancel_jobs(store, "bad") == 1
    with agent(url, "h1", rigs(2)):
        assert wait_for(url, "good", code=0) == "good lab: done; devices: 2 done\n"
    out = wait_for(url, "good", "bad", "good", code=1)
    assert out.splitlines() == [
        "good lab: done; devices: 2 done", "bad lab: failed; devices: 1 cancelled", "  rig:0: cancelled",
    ]  # fmt: skip
    assert "no campaign 'nope' was submitted" in ort_mobile("lab", "wait", "nope", "--database", url, code=2).err


def test_ctrl_c_ends_the_waiting_and_no_campaign(url: str, store: Store, tmp_path: Path) -> None:
    submitted(store, tmp_path, rigs(1), 1, "good")
    command = [sys.executable, "-m", "pipeline", "lab", "wait", "good", "--database", url]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert "good lab: 0 of at most 2 runs stored, not known yet how long rig:0 takes" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    assert "the campaigns go on" in process.stderr.read()
    assert process.wait(LONG_SECONDS) == 130
    process.stderr.close()
    assert [job.state for job in jobs_of(store)] == ["waiting"]


# --- being told -------------------------------------------------------------------------------------------------------


@contextmanager
def listening(code: int = 200, pause_seconds: float = 0.0) -> Iterator[tuple[str, list[dict[str, object]]]]:
    """A server that keeps what it is told."""
    told: list[dict[str, object]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # the name that http.server calls
            told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            time.sleep(pause_seconds)
            self.send_response(code)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hooks/secret", told
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def hooked(url: str, host: str, hooks: Hooks, said: list[str]) -> Iterator[None]:
    stop = threading.Event()
    words = {"host": host, "say": said.append, "called": hooks}
    thread = threading.Thread(target=work, args=(url, rigs(2), stop), kwargs=words)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(LONG_SECONDS)


def program(folder: Path, body: str) -> Hooks:
    """The hooks of a host whose `ended` runs a program."""
    script = folder / "told.py"
    script.write_text(body)
    file = folder / "hooks.toml"
    file.write_text(f'[ended]\ncommand = ["{sys.executable}", "{script}", "{{file}}"]\ntimeout_seconds = 300\n')
    return read_hooks(file)


def test_who_is_named_is_told_once_of_the_end(url: str, store: Store, tmp_path: Path) -> None:
    """By two hosts that both have a program: it runs once, and the address is told once, with the same document."""
    out = tmp_path / "told"
    hooks = program(tmp_path, f"import sys; open({str(out)!r}, 'a').write(open(sys.argv[1]).read() + '\\n')")
    said: list[str] = []
    with listening() as (address, told):
        submitted(store, tmp_path, rigs(2), 1, "c1", address=address)
        with hooked(url, "h1", hooks, said), hooked(url, "h2", hooks, said):
            until(all_in(store, DONE))
            until(lambda: bool(told) and out.exists())
            time.sleep(2)
        document = {
            "version": 1,
            "campaign": "c1",
            "name": "lab",
            "outcome": "done",
            "devices": {"done": 2},
            "left": {},
        }
        assert told == [document]
        assert [json.loads(line) for line in out.read_text().splitlines()] == [document]
    assert "c1: its address was told of its end" in said
    assert not any("secret" in line for line in said)


def test_who_cannot_be_told_costs_nothing_else(
    url: str, store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that hangs, one that is not there, and a program that fails: the next campaign is measured meanwhile."""
    monkeypatch.setattr("pipeline.features.lab.notices.TIMEOUT_SECONDS", 1.0)
    hooks = program(tmp_path, "import sys; sys.exit('the printer burns')")
    with listening(pause_seconds=5.0) as (address, told):
        submitted(store, tmp_path, rigs(1), 1, "c1", address=address)
        submitted(store, tmp_path, rigs(1), 1, "c2", address="http://127.0.0.1:9/secret")
        cancel_jobs(store, "c2")
        with hooked(url, "h1", hooks, []):
            until(lambda: bool(told))
            submitted(store, tmp_path, rigs(2), 2, "c3")
            until(lambda: all(job.state == DONE for job in jobs_of(store, "c3")))
            until(lambda: caplog.text.count("was not told of its end") >= 4)
    assert "c1: its address was not told of its end: it had not answered after 1 s" in caplog.text
    assert "c2: its address was not told of its end: the server cannot be asked: Connection refused" in caplog.text
    assert "ended with 1: the printer burns" in caplog.text
    assert "secret" not in caplog.text


def test_names_that_a_campaign_has_reach_no_command(url: str, store: Store, tmp_path: Path) -> None:
    """What comes from the database is in the file, and the file's name is the host's."""
    out = tmp_path / "words"
    hooks = program(tmp_path, f"import sys; open({str(out)!r}, 'w').write(repr(sys.argv[1:]))")
    submitted(store, tmp_path, rigs(1), 1)
    row = store.read(lambda connection: connection.execute(sa.select(campaigns)).mappings().one())
    named = {"name": "; touch /tmp/evil {file} $(id)"}
    named["digest"] = row_digest("campaigns", {**row, **named})
    store.write(lambda connection: connection.execute(campaigns.update().values(named)))
    cancel_jobs(store, "c1")
    with hooked(url, "h1", hooks, []):
        until(out.exists)
        until(lambda: bool(out.read_text()))
    (word,) = eval(out.read_text())  # what this test's program wrote
    assert word.endswith("/campaign.json")
    assert "touch" not in word


@pytest.mark.parametrize(
    "address", ["ftp://x", "x", "http://a b", "file:///etc/passwd", "http://x/\n", "https://[", "https://" + "x" * 2000]
)
def test_an_address_that_is_none_is_refused_before_anything_is_done(address: str, tmp_path: Path) -> None:
    config = ROOT / "build_configs/mnist.toml"
    words = ("lab", "submit", config, "--database", "postgresql://nobody@192.0.2.1/lab", "--notify", address)
    assert "this is no address to be told" in ort_mobile(*words, code=2).err


def test_the_database_takes_no_other_address(url: str, store: Store, tmp_path: Path) -> None:
    for number, address in enumerate(("ftp://x", "http://a b", "http://x\n", "http://" + "x" * 2000)):
        with pytest.raises(Exception, match="check constraint"):
            submitted(store, tmp_path, rigs(1), 1, f"c{number}", address=address)


# --- devices that nobody has ------------------------------------------------------------------------------------------


def phone(name: str) -> DeviceFacts:
    return DeviceFacts(name=name, platform="android", model="Pixel 8")


@pytest.mark.parametrize("asked", ["adb:PIXEL9", "adb:model=Galaxy*", "local", "adb:B@h1", "android-host:1.29.0"])
def test_a_device_that_nobody_has_is_an_error_beside_others(asked: str) -> None:
    attached = {f"adb:{letter}": phone(f"adb:{letter}") for letter in "ABCDEFGH"}
    lost = {"adb:PIXEL9": LostDevice("h7", "2026-11-30 04:00:00+0000", 90)}
    with pytest.raises(MissingError, match="no host of the lab has such a device") as refused:
        chosen_devices(["adb:A", asked], attached, lost)
    assert refused.value.where == asked
    assert "attached are: adb:A, adb:B, adb:C, adb:D, adb:E, and 3 more" in refused.value.why
    assert ("adb:PIXEL9 was at h7 until 2026-11-30 04:00:00+0000" in refused.value.why) == (asked == "adb:PIXEL9")
    assert list(chosen_devices(["adb:A", "adb:model=Pixel*"], attached, lost)) == list(attached)


def test_names_in_a_message_are_few(store: Store, url: str, tmp_path: Path) -> None:
    for number in range(9):
        submitted(store, tmp_path, rigs(1), 1, f"c{number}")
    said = ort_mobile("lab", "status", "nope", "--database", url, code=2).err
    assert "c8, c7, c6, c5, c4, and 4 more" in " ".join(said.split())


def test_a_lost_device_is_said_with_its_host_and_since_when(url: str, store: Store, tmp_path: Path) -> None:
    names = rigs(2)
    submitted(store, tmp_path, names, 1)
    session = host_session(store, "h1", names)
    assert session.next_job(DEVICE, ()) == "c1"
    session.call("lab_change", "c1", DEVICE, "running", 0, "")
    document = f'{{"name":"{names[1]}","platform":"linux"}}'
    session.sign_of_life("{}", "", {names[1]: document})
    assert list(lost_devices(store)) == [DEVICE]
    text = "\n".join(status_lines(lab_status(url)))
    assert "lost: rig:0, at h1 until 20" in text
    assert "  rig:0 running: lost: at h1 until 20" in text
    session.sign_of_life("{}", "", dict.fromkeys(names, document))
    assert lost_devices(store) == {}
    silent(store, "h1")
    until(lambda: "rig:0 running: nothing heard of h1 for 1 h 0 min" in "\n".join(status_lines(lab_status(url))))
    assert "worked on rig:0" in "\n".join(status_lines(lab_status(url)))
    session.close()


def test_a_device_at_another_host_is_not_lost(store: Store) -> None:
    first, second = host_session(store, "h1", rigs(1)), host_session(store, "h2", rigs(1))
    first.end()
    assert lost_devices(store) == {}
    second.end()
    assert lost_devices(store)[DEVICE].host == "h2"
    again = LabSession(store.engine, "h3", "k")
    for number in range(600 // 300 + 1):
        many = {f"adb:{number}-{place}": "{}" for place in range(300)}
        again.sign_of_life("{}", "", many)
    again.end()
    assert sum(device.host == "h3" for device in lost_devices(store).values()) <= 512
