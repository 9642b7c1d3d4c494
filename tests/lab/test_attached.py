"""What an agent finds on its host: a server that does not answer has its reason, and the others go on."""

from collections.abc import Iterator

import pytest

from pipeline.job.lab.attached import Attached
from tests.lying_adb import Lie, LyingAdb


def test_an_adb_server_that_does_not_answer_is_noted_and_costs_no_other_device() -> None:
    attached = Attached(("adb:*@nohost.invalid:5037", "local"))
    attached.look()
    assert list(attached.opens.values()) == ["local"]
    assert list(attached.opens) == list(attached.facts)
    assert attached.notes[0] == "adb nohost.invalid:5037: no adb server"


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
