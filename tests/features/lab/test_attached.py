"""What an agent finds on its host: a server that does not answer has its reason, and the others go on."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.features.lab import agent as agent_module
from pipeline.features.lab.agent import Attached
from tests.lying_adb import Lie, LyingAdb


def test_an_adb_server_that_does_not_answer_is_noted_and_costs_no_other_device() -> None:
    attached = Attached(("adb:*@nohost.invalid:5037", "local"))
    attached.look()
    assert list(attached.opens.values()) == ["local"]
    assert list(attached.opens) == list(attached.facts)
    assert attached.notes[0].startswith("adb nohost.invalid:5037: no adb server; ")


def test_a_host_without_an_adb_program_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ADBUTILS_ADB_PATH", str(tmp_path / "adb"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(free.getsockname()[1]))
        attached = Attached(("adb:*",))
        attached.look()
    (note,) = attached.notes
    assert note.startswith("adb here: no adb server; ")
    assert str(tmp_path / "adb") in note


def test_a_phone_that_works_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answers would take time from what is measured there."""
    monkeypatch.setenv("ADBUTILS_ADB_PATH", "/bin/false")
    asked = []

    def counted(data: bytes) -> Iterator[bytes]:
        asked.append(data)
        yield data

    with LyingAdb(Lie(shell=counted)) as adb:
        attached = Attached((f"adb:*@127.0.0.1:{adb.port}",))
        attached.look()
        (before,), questions = attached.facts.items(), len(asked)
        assert questions
        attached.seen = None  # as when another phone comes
        attached.look([before[0]])
        assert (dict([before]), len(asked)) == (attached.facts, questions)
        attached.seen = None
        attached.look()
        assert len(asked) > questions


def test_a_phone_that_works_and_is_lost_is_missing_until_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that `lab status` says since when; its facts stay for the run that it is in."""
    monkeypatch.setenv("ADBUTILS_ADB_PATH", "/bin/false")
    with LyingAdb(Lie(serials=("R1", "R2"))) as adb:
        attached = Attached((f"adb:*@127.0.0.1:{adb.port}",))
        attached.look()
        adb.lie = Lie(serials=("R2",))
        attached.look(["adb:R1", "adb:R2", "campaign c1"])
        assert (set(attached.missing), set(attached.facts)) == ({"adb:R1"}, {"adb:R1", "adb:R2"})
        adb.lie = Lie(serials=("R2",), others=(("R1", "offline"),))
        attached.look(["adb:R1", "adb:R2"])
        assert attached.missing == {"adb:R1"}
        adb.lie = Lie(serials=("R1", "R2"))
        attached.look(["adb:R1", "adb:R2"])
        assert attached.missing == set()
    attached.look(["adb:R1"])
    assert attached.missing == {"adb:R1"}, "its server is away"


def test_a_phone_on_the_network_that_its_server_forgot_is_joined_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """With pauses that double; a phone on a cable, and one that never was there, are nobody's to join."""
    monkeypatch.setenv("ADBUTILS_ADB_PATH", "/bin/false")
    joining = ["host:disconnect:10.0.0.7:5555", "host:connect:10.0.0.7:5555"]
    with LyingAdb(Lie(serials=("10.0.0.7:5555", "CABLE"))) as adb:
        attached = Attached((f"adb:*@127.0.0.1:{adb.port}",))
        attached.look()
        assert len(attached.facts) == 2
        adb.lie = Lie(serials=())
        attached.look()
        assert attached.facts == {}
        assert adb.joined == joining
        attached.look()
        assert adb.joined == joining, "not before the pause has passed"
        ((phone, (_, pause)),) = attached.lost.items()
        assert pause == 2 * agent_module.JOIN_SECONDS[0]
        attached.lost[phone] = 0.0, pause
        attached.look()
        assert adb.joined == 2 * joining
        adb.lie = Lie(serials=("10.0.0.7:5555",))
        attached.look()
        assert (len(attached.facts), attached.lost, adb.joined) == (1, {}, 2 * joining)


def test_phones_that_were_lost_together_are_joined_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A switch was off: one after the other, each phone that does not answer would hold up all that follow."""
    monkeypatch.setenv("ADBUTILS_ADB_PATH", "/bin/false")
    phones = tuple(f"10.0.0.{number}:5555" for number in range(3))
    meeting = threading.Barrier(len(phones))

    def joining(service: str) -> None:
        if service.startswith("host:connect:"):
            meeting.wait(600)  # raises in the server's thread, which pytest reports, where one is asked before others

    with LyingAdb(Lie(serials=phones, joining=joining)) as adb:
        attached = Attached((f"adb:*@127.0.0.1:{adb.port}",))
        attached.look()
        adb.lie = Lie(serials=(), joining=joining)
        attached.look()
        assert sorted(adb.joined) == sorted(
            f"host:{word}:{phone}" for phone in phones for word in ("connect", "disconnect")
        )
    assert not meeting.broken


def test_a_phone_that_is_not_ready_has_its_reason_and_costs_no_other() -> None:
    with LyingAdb(Lie(serials=("GOOD",), others=(("NEW", "unauthorized"), ("GONE", "offline")))) as adb:
        attached = Attached((f"adb:*@127.0.0.1:{adb.port}",))
        attached.look()
    assert list(attached.facts) == ["adb:GOOD"]
    assert attached.notes == (
        f"adb:NEW@127.0.0.1:{adb.port}: unauthorized: unlock the device and accept the dialog",
        f"adb:GONE@127.0.0.1:{adb.port}: offline: plug it in again, or `adb reconnect offline`",
    )
