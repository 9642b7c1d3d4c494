"""Sessions that somebody changed: refused whole, or judged turn by turn; what no file can prove is marked."""

import json
import os
import re
import shutil
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from device_runner.result import FailureKind, Mark
from pipeline.core.errors import ConfigError
from tests.features.away.conftest import TURNS, Job

pytestmark = pytest.mark.long

Attack = Callable[[Path], object]
"""What is done to the folder of a session."""


def answer_of(session: Path, turn: str = "0000") -> str:
    return (session / f"{turn}.answer").read_text()


def write_answer(session: Path, text: str, turn: str = "0000") -> None:
    """With the checksum that the probe would have made."""
    body = text[: text.rindex(',"crc32":')].encode()
    (session / f"{turn}.answer").write_bytes(body + b',"crc32":%d}\n' % zlib.crc32(body))


def times_changed(session: Path, change: Callable[[int], int], turn: str = "0000") -> None:
    text = answer_of(session, turn)
    match = re.search(r'"latencies_ns":\[([^\]]*)\]', text)
    assert match
    changed = ",".join(str(change(int(number))) for number in match[1].split(","))
    write_answer(session, text.replace(match[1], changed), turn)


def number_changed(session: Path, key: str, change: Callable[[int], int]) -> None:
    write_answer(session, re.sub(rf'"{key}":(\d+)', lambda m: f'"{key}":{change(int(m[1]))}', answer_of(session)))


def exchanged(session: Path, one: str, other: str) -> None:
    """All files of two turns, the outputs with them."""
    for path in list(session.glob(f"{one}.*")):
        there = session / path.name.replace(one, other, 1)
        aside = session / "aside"
        path.rename(aside)
        if there.exists():
            there.rename(path)
        aside.rename(there)


def replayed(session: Path, to: str) -> None:
    """The first turn's answer as that of another, with all that is bound to the turn put right."""
    request = json.loads(answer_of(session, to))["request"]
    text = answer_of(session).replace('"0000.', f'"{to}.')
    write_answer(session, re.sub(r'"request":\d+', f'"request":{request}', text), to)
    shutil.copy(session / "0000.begun", session / f"{to}.begun")


def output_zeroed(session: Path, *, with_checksum: bool) -> None:
    path = session / "0000.output_0.raw"
    content = bytes(path.stat().st_size)
    path.write_bytes(content)
    if with_checksum:
        document = json.loads(answer_of(session))
        old = document["outputs"][0]["crc32"]
        write_answer(session, answer_of(session).replace(str(old), str(zlib.crc32(content))))


def linked(session: Path, name: str) -> None:
    (session / name).unlink()
    (session / name).symlink_to("/etc/hostname")


def piped(session: Path, name: str) -> None:
    (session / name).unlink()
    os.mkfifo(session / name)


def sparse(session: Path, name: str, size: int) -> None:
    with (session / name).open("r+b") as file:
        file.truncate(size)


def output_named(session: Path, name: str) -> None:
    write_answer(session, answer_of(session).replace("0000.output_0.raw", name))


GARBAGE: dict[str, Attack] = {
    "an answer of 400,000 brackets": lambda session: (session / "0000.answer").write_bytes(b"[" * 400_000),
    "an answer of 4 GB": lambda session: sparse(session, "0000.answer", 4 << 30),
    "an answer that was cut": lambda session: sparse(session, "0000.answer", 300),
    "an empty answer": lambda session: sparse(session, "0000.answer", 0),
    "an answer in another's words": lambda session: (session / "0000.answer").write_text('{"status":"ok"}'),
    "a number without its checksum": lambda session: (session / "0000.answer").write_text(
        answer_of(session).replace('"load_ns":', '"load_ns":1')
    ),
    "inferences of a nanosecond": lambda session: times_changed(session, lambda _: 1),
    "more work than time": lambda session: times_changed(session, lambda time: 100_000 * time),
    "fewer inferences than were asked for": lambda session: write_answer(
        session, re.sub(r'"latencies_ns":\[[^\]]*\]', '"latencies_ns":[50000]', answer_of(session))
    ),
    "the request of another turn": lambda session: number_changed(session, "request", lambda number: number ^ 1),
    "an end before the beginning": lambda session: number_changed(session, "ended_ms", lambda ms: ms - 3_600_000),
    "a beginning before its turn": lambda session: number_changed(session, "began_ms", lambda ms: ms - 3_600_000),
    "a run of a day": lambda session: number_changed(session, "ended_ms", lambda ms: ms + 86_400_000),
    "an end in the year 287396": lambda session: number_changed(session, "ended_ms", lambda _: 2**53 - 1),
    "a peak below what it has": lambda session: number_changed(session, "memory_peak_bytes", lambda _: 1000),
    "a turn that does not say when it began": lambda session: (session / "0000.begun").write_text("yesterday\n"),
    "a turn that began in words of 300 bytes": lambda session: (session / "0000.begun").write_bytes(b"9" * 300),
    "an output that was changed": lambda session: output_zeroed(session, with_checksum=False),
    "an output that was cut": lambda session: sparse(session, "0000.output_0.raw", 1),
    "an output of 4 GB": lambda session: sparse(session, "0000.output_0.raw", 4 << 30),
    "an output that is not there": lambda session: (session / "0000.output_0.raw").unlink(),
    "an output that is a link": lambda session: linked(session, "0000.output_0.raw"),
    "an output elsewhere": lambda session: output_named(session, "0000./../../../../etc/passwd"),
    "an output of another turn": lambda session: output_named(session, "0001.output_0.raw"),
    "an output of no name": lambda session: output_named(session, "0000.plan.json"),
    "an answer that is a link": lambda session: linked(session, "0000.answer"),
    "an answer that is a pipe": lambda session: piped(session, "0000.answer"),
    "a state of 2 MB": lambda session: (session / "0000.before").write_bytes(b"level: 1\n" * 250_000),
}
"""What spoils the first turn alone."""


@pytest.mark.parametrize("attack", GARBAGE)
def test_what_cannot_be_of_a_turn_spoils_that_turn_alone(job: Job, attack: str) -> None:
    GARBAGE[attack](job.session)
    (collected,) = job.collected()
    assert (collected.new, collected.failed, collected.left) == (TURNS, 1, 1)
    with job.store() as store:
        (spoilt,) = (run for run in store.runs(job.plan.campaign) if run.result.failure)
    assert (spoilt.round, spoilt.result.failure and spoilt.result.failure.code) == (0, FailureKind.GARBAGE)


BETWEEN: dict[str, tuple[Attack, int]] = {
    "rounds of one run exchanged": (lambda session: exchanged(session, "0000", "0004"), 2),
    "two runs exchanged": (lambda session: exchanged(session, "0000", "0001"), 2),
    "an answer given twice": (lambda session: shutil.copy(session / "0000.answer", session / "0004.answer"), 1),
    "an answer given twice, bound to both turns": (lambda session: replayed(session, "0004"), 1),
    "a turn without an end": (lambda session: (session / "0013.code").unlink(), 1),
    "a turn that took the phone down": (lambda session: (session / "0003.code").write_text("lost\n"), 1),
    "a turn whose process said nothing": (lambda session: (session / "0003.answer").unlink(), 1),
}
"""What spoils some turns, and how many."""


@pytest.mark.parametrize("attack", BETWEEN)
def test_answers_belong_to_one_turn(job: Job, attack: str) -> None:
    spoil, count = BETWEEN[attack]
    spoil(job.session)
    (collected,) = job.collected()
    assert (collected.failed, collected.left) == (count, count)
    with job.store() as store:
        kinds = Counter(run.result.failure.code for run in store.runs(job.plan.campaign) if run.result.failure)
    assert set(kinds) <= {FailureKind.GARBAGE, FailureKind.LOST_DEVICE}


def test_outputs_that_are_wrong_fail_their_check(job: Job) -> None:
    """With checksums that fit they are stored, and are not what the model computes: that run cannot be chosen."""
    output_zeroed(job.session, with_checksum=True)
    (collected,) = job.collected()
    assert collected.failed == 0
    with job.store() as store:
        wrong = [run for run in store.runs(job.plan.campaign) if any(not check.passed for check in run.checks)]
    assert [run.round for run in wrong] == [0]


def test_times_that_somebody_made_up_are_marked_only(job: Job) -> None:
    """No file can prove that it was measured: such results are called reported, wherever they stand."""
    times_changed(job.session, lambda time: time // 2)
    (collected,) = job.collected()
    assert collected.failed == 0
    with job.store() as store:
        assert all(Mark.REPORTED in run.result.marks for run in store.runs(job.plan.campaign))


def archive_of(session: Path, change: Callable[[zipfile.ZipFile], object]) -> Path:
    path = session.parent / "session.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for file in sorted(session.iterdir()):
            packed.write(file, f"session/{file.name}")
        change(packed)
    return path


def link_in(packed: zipfile.ZipFile) -> None:
    info = zipfile.ZipInfo("session/0099.begun")
    info.external_attr = 0o120777 << 16
    packed.writestr(info, "/etc/hostname")


def test_an_archive_is_a_session_too(job: Job) -> None:
    """What else is in it, also with names that lead out of it, is not looked at."""
    (collected,) = job.collected(archive_of(job.session, lambda packed: packed.writestr("../../session/x", "x")))
    assert (collected.new, collected.failed) == (TURNS, 0)


def test_a_bomb_in_an_archive_is_not_unpacked(job: Job) -> None:
    (job.session / "0000.answer").write_bytes(bytes(64 << 20))
    (collected,) = job.collected(archive_of(job.session, lambda _: None))
    assert (collected.failed, collected.left) == (1, 1)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_file_twice_in_an_archive_is_refused(job: Job) -> None:
    with pytest.raises(ConfigError, match="the session cannot be read") as error:
        job.collected(archive_of(job.session, lambda packed: packed.writestr("session/0000.answer", "x")))
    assert "twice" in error.value.why


def replaced(path: Path, old: bytes, new: bytes) -> None:
    path.write_bytes(path.read_bytes().replace(old, new))


def set_file(name: str, text: str) -> Attack:
    return lambda session: (session / name).write_text(text)


REFUSED: dict[str, tuple[Attack, str]] = {
    "of another package": (set_file("package", "0" * 64), "another campaign"),
    "of no package": (set_file("package", "../../x"), "cannot be read"),
    "without an id": (set_file("session", "../x"), "cannot be read"),
    "whose id is a link": (lambda session: linked(session, "session"), "cannot be read"),
    "of nothing": (lambda session: (session / "device").unlink(), "no session here"),
    "of another ABI": (
        lambda session: replaced(session / "device", b"x86_64", b"riscv64"),
        "another kind of device",
    ),
    "of Android": (
        lambda session: (session / "device").write_bytes(b"35" + (session / "device").read_bytes()),
        "another kind of device",
    ),
}


@pytest.mark.parametrize("attack", REFUSED)
def test_a_session_that_is_none_of_ours_is_refused(job: Job, attack: str) -> None:
    from pipeline.core.progress import NoProgress
    from pipeline.features.away.collect import CollectOrder, collect

    spoil, said = REFUSED[attack]
    spoil(job.session)
    with pytest.raises(ConfigError, match=said) as error:
        collect(CollectOrder(sessions=(job.session,), output=job.output), NoProgress())
    assert error.value.remedy
    with job.store() as store:
        assert not store.runs(job.plan.campaign)
        assert not store.devices(job.plan.campaign)


def test_a_phone_that_changed_in_between_is_refused(job: Job) -> None:
    job.collected(name="farm:box")
    content = (job.session / "device").read_bytes()
    kernel = os.uname().release.encode()
    (job.session / "device").write_bytes(content.replace(kernel, b"9.9"))
    with pytest.raises(ConfigError, match="another device, or has another system"):
        job.collected(name="farm:box")


def test_what_a_device_says_of_itself_is_cleaned(job: Job) -> None:
    parts = (job.session / "device").read_bytes().split(b"\0")
    parts[4] = b"\x1b[31m<script>\xe2\x80\xae" + b"A" * 10_000  # ro.product.model
    (job.session / "device").write_bytes(b"\0".join(parts))
    (collected,) = job.collected()
    assert re.fullmatch(r"farm:[A-Za-z0-9,._-]{1,60}", collected.device)
    with job.store() as store:
        (facts,) = store.devices(job.plan.campaign)
    assert facts.model.isprintable()
    assert len(facts.model) <= 200


def test_a_plan_in_a_session_is_not_believed(job: Job) -> None:
    """That of the job's own folder counts, with its digest."""
    (job.session / "plan.json").write_text("{}")
    kept = job.output / "packages" / f"{job.plan.plan.digest}.json"
    (collected,) = job.collected()
    assert collected.failed == 0
    document: dict[str, Any] = json.loads(kept.read_bytes())
    document["plan"]["turns"][0]["request"] ^= 1
    digest = job.plan.plan.digest
    kept.write_text(json.dumps(document))
    from pipeline.features.away.plan import kept_plan

    with pytest.raises(ConfigError, match="damaged"):
        kept_plan(job.output, digest)
