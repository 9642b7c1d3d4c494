"""What an agent calls before it takes a device and after it gives it back: real programs, real servers, real agents."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from device_runner.errors import RunnerError
from pipeline.campaign.store import Store
from pipeline.core.errors import ConfigError, MissingError
from pipeline.features.lab import agent as lab_agent
from pipeline.features.lab import hooks as lab_hooks
from pipeline.features.lab.agent import work
from pipeline.features.lab.hooks import (
    Hook,
    HookError,
    HookLateError,
    Hooks,
    Reservation,
    Reservations,
    call,
    read_hooks,
    said_by_server,
)
from pipeline.features.lab.queue import DONE, MEASURED, WAITING, jobs_of, lab_hosts
from tests.features.lab.farm import JOURNAL, LONG_SECONDS, SECONDS, all_in, check_stored, rigs, submitted, until

RECIPES = re.findall(r"```toml\n(.*?)```", (Path(__file__).parents[3] / "docs/lab.md").read_text(), re.DOTALL)

PHONE = Reservation(device="adb:R58M1", host="h1")

WRONG = {
    "x = 1": "unknown field `x`",
    "[reserve]": "it needs either `command` or `url`",
    '[reserve]\ncommand = ["a"]\nurl = "https://a"': "it needs either `command` or `url`",
    '[release]\ncommand = "rm -rf /"': "Expected `array`",
    '[reserve]\ncommand = ["a", "{password}"]': "{password} is none of {device}, {serial}, {host}",
    '[reserve]\ncommand = ["a"]\njson = {}': "belong to a `url`",
    '[reserve]\nurl = "ftp://a/b"': "is no http or https address",
    '[reserve]\nurl = "file:///etc/passwd"': "is no http or https address",
    '[reserve]\nurl = "https://{serial}/b"': "cannot stand for a server",
    '[reserve]\nurl = "https://a"\njson = { list = [{ x = "{id}" }] }': "{id} is none of",
    '[reserve]\nurl = "https://a"\ntimeout_seconds = 0': "Expected `float` > 0",
    '[reserve]\nurl = "https://a"\nmethod = "BREW"': "Invalid enum value 'BREW'",
    "[reserve": "this is not valid TOML",
}  # fmt: skip


@pytest.mark.parametrize(
    "address", ["file://{}", "FILE:{}", "ftp://127.0.0.1/x", "data:,x", "http:{}", "https://[", "x"]
)
def test_an_address_of_a_database_opens_no_file_here(tmp_path: Path, address: str) -> None:
    """A database has what its owner entered, too, and brackets that hold no address pass its check."""
    (tmp_path / "secret").write_text("s")
    said = said_by_server(Hook(url="https://a"), address.format(tmp_path / "secret"), str)
    assert said == "it is no http or https address"


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_file_is_one_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "hooks.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as said:
        read_hooks(path)
    assert WRONG[text] in str(said.value)


def test_recipes_of_the_docs_are_files_of_hooks(tmp_path: Path) -> None:
    assert len(RECIPES) == 4
    found = []
    for recipe in RECIPES:
        (tmp_path / "hooks.toml").write_text(recipe)
        hooks = read_hooks(tmp_path / "hooks.toml")
        found.append((bool(hooks.reserve), bool(hooks.release), bool(hooks.ended)))
    assert sorted(found) == [(False, False, True), *[(True, True, False)] * 3]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="there is no such file"):
        read_hooks(tmp_path / "hooks.toml")


def test_arguments_stay_what_they_are(tmp_path: Path) -> None:
    """No shell reads them, and a name cannot become an option."""
    out = tmp_path / "out"
    code = "import json, sys; json.dump(sys.argv[2:], open(sys.argv[1], 'w'))"
    hook = Hook(
        command=(sys.executable, "-c", code, str(out), "{serial}", "{device} on {host}; touch x", '{"{serial}": $HOME}')
    )
    call(hook, "reserve", PHONE)
    assert json.loads(out.read_text()) == ["R58M1", "adb:R58M1 on h1; touch x", '{"R58M1": $HOME}']
    for name in ("adb:--help", "adb:a\nb", "adb:\x1b[31m", 'adb:x", "y": "', "adb:"):
        with pytest.raises(HookError, match="could be read as more than a name"):
            call(hook, "reserve", Reservation(device=name, host="h1"))


def test_a_command_says_why_it_failed() -> None:
    code = "import sys; print('place R58M1 is already\\n\\x1b[31macquired', file=sys.stderr); sys.exit(1)"
    with pytest.raises(HookError) as said:
        call(Hook(command=(sys.executable, "-c", code)), "reserve", PHONE)
    assert said.value.why.endswith(r"ended with 1: place R58M1 is already \x1b[31macquired")
    with pytest.raises(HookError, match="/no/such/program cannot be started: No such file"):
        call(Hook(command=("/no/such/program",)), "reserve", PHONE)


def test_a_command_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    hook = Hook(command=("sh", "-c", f"sleep 60 & echo $! > {tmp_path}/pid; wait"), timeout_seconds=5.0)
    begun = time.monotonic()
    with pytest.raises(HookLateError, match="it had not ended after 5 s"):
        call(hook, "reserve", PHONE)
    assert time.monotonic() - begun < 55
    state = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")
    until(lambda: not state.exists() or ") Z " in state.read_text())


@contextmanager
def answering(status: int = 200, *, drips: bool = False, location: str = "") -> Iterator[tuple[str, list[str]]]:
    """A server with what it was asked; one that drips sends a byte now and then and never ends."""
    asked: list[str] = []
    ending = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            asked.append(f"{self.command} {self.path} {self.headers.get('Authorization', '')} {content}".strip())
            if drips:
                while not ending.wait(0.1):
                    self.wfile.write(b"H")
                return
            body = b'{"description":"Device is being used"}'
            self.send_response(status)
            if location:
                self.send_header("Location", location)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_DELETE = do_GET = answer  # noqa: N815 # the names are http.server's

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        ending.set()
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_farm_is_asked_as_its_interface_says(tmp_path: Path) -> None:
    """The recipe for DeviceFarmer's STF."""
    (tmp_path / "token").write_text("secret\n")
    with answering() as (address, asked):
        (tmp_path / "hooks.toml").write_text(
            f'[reserve]\nurl = "{address}/api/v1/user/devices"\njson = {{ serial = "{{serial}}", timeout = 900000 }}\n'
            f'token_file = "token"\n[release]\nurl = "{address}/api/v1/user/devices/{{serial}}"\nmethod = "DELETE"\n'
            'token_file = "token"\n'
        )
        hooks = read_hooks(tmp_path / "hooks.toml")
        assert hooks.reserve
        assert hooks.release
        for hook in (hooks.reserve, hooks.release):
            call(hook, "reserve", Reservation(device="adb:10.0.0.7:5555/x", host="h1"))
    assert asked == [
        'POST /api/v1/user/devices Bearer secret {"serial":"10.0.0.7:5555/x","timeout":900000}',
        "DELETE /api/v1/user/devices/10.0.0.7%3A5555%2Fx Bearer secret",
    ]


def test_a_server_that_refuses_hangs_redirects_or_is_away() -> None:
    with answering(403) as (address, _), pytest.raises(HookError, match=r"answers 403: .*Device is being used"):
        call(Hook(url=address), "reserve", PHONE)
    with answering() as (other, asked), answering(307, location=other) as (address, _):
        with pytest.raises(HookError, match="the server answers 307"):
            call(Hook(url=address), "reserve", PHONE)
        assert asked == []
    with answering(drips=True) as (address, _), pytest.raises(HookLateError, match="had not ended after 1 s"):
        call(Hook(url=address, timeout_seconds=1.0), "reserve", PHONE)
    with pytest.raises(HookError, match="the server cannot be asked: Connection refused"):
        call(Hook(url=address), "reserve", PHONE)
    with pytest.raises(HookError, match="/no/token cannot be read"):
        call(Hook(url=address, token_file="/no/token"), "reserve", PHONE)


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORT_MOBILE_STATE", str(tmp_path / "state"))


def shell(tmp_path: Path, name: str, more: str = "") -> Hook:
    """A hook that writes down that it was called, and does more."""
    return Hook(command=("sh", "-c", f'echo {name} "$1" >> {tmp_path}/called; {more}', "-", "{device}"))


def called(tmp_path: Path) -> list[str]:
    path = tmp_path / "called"
    return path.read_text().splitlines() if path.exists() else []


def test_what_another_has_is_not_given_back(tmp_path: Path) -> None:
    """A farm that knows no more than the user would take it from whoever has it."""
    held = Reservations("h1", Hooks(reserve=shell(tmp_path, "reserve", "exit 1"), release=shell(tmp_path, "release")))
    with pytest.raises(HookError), held.of("adb:A"):
        pass
    assert called(tmp_path) == ["reserve adb:A"]
    assert held.left() == []
    assert "the reserve hook failed" in held.troubles["adb:A"]


def test_a_reservation_that_cannot_be_written_down_is_not_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORT_MOBILE_STATE", "/dev/null/state")
    held = Reservations("h1", Hooks(reserve=shell(tmp_path, "reserve")))
    with pytest.raises(RunnerError, match="/dev/null"), held.of("adb:A"):
        pass
    assert called(tmp_path) == []


def test_what_may_have_been_reserved_is_given_back(tmp_path: Path) -> None:
    late = Hook(command=("sh", "-c", "sleep 60"), timeout_seconds=0.5)
    held = Reservations("h1", Hooks(reserve=late, release=shell(tmp_path, "release")))
    with pytest.raises(HookLateError), held.of("adb:A"):
        pass
    assert called(tmp_path) == ["release adb:A"]


def test_a_release_that_fails_is_tried_again_and_not_for_ever(tmp_path: Path) -> None:
    held = Reservations("h1", Hooks(release=shell(tmp_path, "release", f"test -e {tmp_path}/open")))
    with held.of("adb:A"):
        pass
    held.give_back("adb:A")
    assert held.left() == ["adb:A"]
    (tmp_path / "open").touch()
    held.give_back("adb:A")
    assert (held.left(), held.troubles) == ([], {})
    (tmp_path / "open").unlink()
    with held.of("adb:A"):
        pass
    held.give_back("adb:A")
    for _ in range(4):
        assert held.left() == ["adb:A"]
        held.give_back("adb:A")
    assert held.left() == []
    assert "the release hook failed" in held.troubles["adb:A"]


def test_a_device_goes_on_as_it_is_reserved_but_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Reservations("h1", Hooks(reserve=shell(tmp_path, "reserve"), release=shell(tmp_path, "release")))
    for _ in range(3):
        with held.of("adb:A"):
            pass
    assert called(tmp_path) == ["reserve adb:A"]
    assert (list(held.idle), held.left()) == (["adb:A"], [])
    monkeypatch.setattr(lab_hooks, "MOST_HELD_SECONDS", 0.0)
    with held.of("adb:A"):
        assert held.left() == ["adb:A"]
    assert called(tmp_path) == ["reserve adb:A", "release adb:A"]
    assert (held.idle, held.left()) == ({}, [])


def test_what_ends_in_an_error_is_given_back_at_once(tmp_path: Path) -> None:
    held = Reservations("h1", Hooks(release=shell(tmp_path, "release")))
    with pytest.raises(ZeroDivisionError), held.of("adb:A"):
        raise ZeroDivisionError
    assert (called(tmp_path), held.idle, held.left()) == (["release adb:A"], {}, [])


@pytest.mark.postgresql
@pytest.mark.parametrize("seconds", [3600.0, 0.0], ids=["within the time", "beyond it"])
def test_a_device_that_changes_campaigns_stays_reserved(
    url: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """A farm would lend it in between; after a time it may."""
    monkeypatch.setattr(lab_hooks, "MOST_HELD_SECONDS", seconds)
    monkeypatch.setenv(SECONDS, "0.05")
    submitted(store, tmp_path, rigs(1), 300, "c1")
    hooks = Hooks(reserve=shell(tmp_path, "reserve"), release=shell(tmp_path, "release"))
    stop = threading.Event()
    thread = threading.Thread(target=work, args=(url, rigs(1), stop), kwargs={"host": "h1", "called": hooks})
    thread.start()
    try:
        until(lambda: len(store.finished("c1")) >= 2)
        submitted(store, tmp_path, rigs(1), 1, "c2", priority=1)
        until(lambda: all(job.state == DONE for job in jobs_of(store, "c2")))
        measured = len(store.finished("c1"))
        until(lambda: len(store.finished("c1")) > measured)
        meanwhile = called(tmp_path)
    finally:
        stop.set()
        thread.join(LONG_SECONDS)
    if seconds:
        assert meanwhile == ["reserve rig:0"]
    else:
        assert meanwhile[:3] == ["reserve rig:0", "release rig:0", "reserve rig:0"]
    assert called(tmp_path)[-1] == "release rig:0"
    assert called(tmp_path).count("release rig:0") == called(tmp_path).count("reserve rig:0")


@pytest.mark.postgresql
def test_a_device_that_cannot_be_reserved_waits_with_its_reason_and_stops_nothing_else(
    url: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab_agent, "RESERVE_SECONDS", 0.2)
    names = rigs(3)
    campaign = submitted(store, tmp_path, names, 2)
    refuses = f'test "$1" != rig:0 || test -e {tmp_path}/free || {{ echo in use by ann >&2; exit 1; }}'
    hooks = Hooks(reserve=shell(tmp_path, "reserve", refuses), release=shell(tmp_path, "release"))
    stop = threading.Event()
    thread = threading.Thread(target=work, args=(url, names, stop), kwargs={"host": "h1", "called": hooks})
    thread.start()
    try:
        until(lambda: [job.state for job in jobs_of(store)].count(WAITING) == 1 and bool(jobs_of(store)[0].reason))
        until(lambda: "in use by ann" in str(lab_hosts(store)[0]["note"]))
        job = jobs_of(store)[0]
        assert (job.device, job.attempts) == ("rig:0", 0)
        assert "h1: the reserve hook failed; sh ended with 1: in use by ann" in job.reason
        until(lambda: {job.state for job in jobs_of(store)[1:]} == {MEASURED})
        until(lambda: len(called(tmp_path)) >= 5)
        assert "release rig:0" not in called(tmp_path)
        (tmp_path / "free").touch()
        until(all_in(store, DONE))
        until(lambda: "in use by ann" not in str(lab_hosts(store)[0]["note"]))
    finally:
        stop.set()
        thread.join(LONG_SECONDS)
    check_stored(store, campaign, 2)
    lines = called(tmp_path)
    for name in names:
        assert lines.count(f"release {name}") >= 1


@pytest.mark.postgresql
def test_an_agent_that_was_killed_gives_back_at_its_next_start(
    url: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = rigs(2)
    submitted(store, tmp_path, names, 200)
    (tmp_path / "hooks.toml").write_text(
        "".join(
            f"[{name}]\ncommand = ['sh', '-c', 'echo {name} $1 >> {tmp_path}/called', '-', '{{device}}']\n"
            for name in ("reserve", "release")
        )
    )
    monkeypatch.setenv("ORT_MOBILE_LAB_HOOKS", str(tmp_path / "hooks.toml"))
    monkeypatch.setenv(SECONDS, "0.2")
    monkeypatch.setenv(JOURNAL, str(tmp_path / "journal"))
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.features.lab.agent_process", url, "h1", "2", str(tmp_path / "pid")],
        cwd=Path(__file__).parents[3],
    )
    try:
        until(lambda: len(store.finished("c1")) >= 2 and len(called(tmp_path)) >= 2)
        assert sorted(called(tmp_path)) == ["reserve rig:0", "reserve rig:1"]
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
        until(lambda: called(tmp_path).count("release rig:0") == 1 and called(tmp_path).count("release rig:1") == 1)
        until(lambda: len(called(tmp_path)) >= 6)  # and works on
        lines = called(tmp_path)
        assert all(lines.index(f"release {name}") < len(lines) - 1 - lines[::-1].index(f"reserve {name}")
                   for name in names)  # fmt: skip
    finally:
        process.terminate()
        process.wait(LONG_SECONDS)
    assert called(tmp_path).count("release rig:0") == called(tmp_path).count("reserve rig:0")
