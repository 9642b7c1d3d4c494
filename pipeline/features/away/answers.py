"""What a session says of its turns, and whether it can be true: an answer belongs to its request, and to one turn."""

from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from device_runner import device as runner_device
from device_runner import failures
from device_runner import result as run_result
from device_runner import run as device_run
from device_runner.device import DeviceFacts
from device_runner.errors import RunnerError
from device_runner.probe import protocol
from device_runner.result import RunResult
from device_runner.spec import RunSpec
from pipeline import config as configs
from pipeline.features.away import ios_session, shell
from pipeline.features.away.plan import PackageTurn
from pipeline.features.away.session import STATE_BYTES, PackageSession

HOST = "reported by a package"
"""What stands for the computer that drove the device."""

LOST = "lost"
SPARE_MS = 50
"""By how much an answer's own times may disagree: clocks of milliseconds, one of which is set by the network."""

Times = tuple[int, ...]


class SessionReader:
    """The results of one session's turns, read in their order; `earlier` are those that are stored by now."""

    def __init__(self, session: PackageSession, facts: DeviceFacts, earlier: Iterable[RunResult]) -> None:
        self.session = session
        self.device = facts.name
        self.in_app = facts.platform == configs.Platform.IOS
        self.first_turns: dict[str, str] = {}
        """By the name of a process: the first turn that ran in it."""
        self.ended_ms = 0
        self.seen = {times: f"{result.device}: {result.spec_id}" for result in earlier if (times := _times(result))}

    def begun(self, turn: PackageTurn) -> bool:
        """Whether a turn was begun, so that there is something to say of it; also where that is nonsense."""
        try:
            has_begun = self.session.files.line(f"{turn.turn}.begun") is not None
            if has_begun and self.in_app and (process := ios_session.process_of(self._noted(turn, "before"))):
                self.first_turns.setdefault(process, turn.turn)
        except (RunnerError, OSError):
            return True
        return has_begun

    def result(self, turn: PackageTurn, spec: RunSpec) -> RunResult:
        """What came of a turn, its files in the spec's folder; whatever cannot be true is a failure."""
        begun_ms = ended_ms = 0
        before = after = run_result.Conditions()
        try:
            begun_ms = _milliseconds(self.session.files.line(f"{turn.turn}.begun"))
            answer = self._answer(turn, spec, begun_ms)
            if isinstance(answer, run_result.Failure):
                result = run_result.without_measurement(spec, self.device, answer)
            else:
                ended_ms = answer.ended_ms
                result = protocol.to_result(spec, self.device, answer)
                result = self._alone(result)
            result = device_run.keep_files(spec, result, lambda *asked: self._fetch(turn, *asked))
            before, after = self._state(turn, "before"), self._state(turn, "after")
            result = self._without_others(turn, result)
        except (RunnerError, OSError) as error:
            failure = failures.failure_of(error)
            result = run_result.without_measurement(
                spec, self.device, replace(failure, code=run_result.FailureKind.GARBAGE)
            )
        return replace(
            result,
            spec_id=spec.id,
            started_at=run_result.utc_at(begun_ms) if begun_ms else run_result.utc_now(),
            elapsed_ns=max(0, ended_ms - begun_ms) * 1_000_000 if ended_ms else 0,
            host=HOST,
            before=before,
            after=after,
            marks=(*result.marks, *run_result.condition_marks(before), run_result.Mark.REPORTED),
        )

    def _answer(self, turn: PackageTurn, spec: RunSpec, begun_ms: int) -> protocol.ProbeAnswer | run_result.Failure:
        """The probe's document with the plain names of its files, or why there is none. RunnerError, OSError."""
        files = self.session.files
        code, content = files.line(f"{turn.turn}.code"), files.read(f"{turn.turn}.answer", turn.answer_bytes)
        if code in (None, LOST):
            return run_result.Failure(
                code=run_result.FailureKind.LOST_DEVICE,
                what="the turn began and did not end",
                why="the session was ended meanwhile, or the turn took the device down with it",
                remedy="`ort-mobile export --rest` makes a package of what is left",
            )
        if content is None:
            errors = files.read(f"{turn.turn}.errors", STATE_BYTES) or b""
            text = errors[-2000:].decode("utf-8", "replace").strip() or "nothing said"
            message = f"no answer, exit code {code}: {text}"
            return run_result.Failure(code=run_result.FailureKind.GARBAGE, what=message)
        answer = protocol.decode_answer(content)
        if isinstance(answer, run_result.Failure):
            return answer
        if why := self._untrue(turn, spec, answer, begun_ms):
            return run_result.Failure(
                code=run_result.FailureKind.GARBAGE,
                what=why,
                why="it is not what the probe wrote in this turn",
                remedy="run the turn again: `ort-mobile export --rest`",
            )
        self.ended_ms = answer.ended_ms
        outputs = [msgspec.structs.replace(output, file=_plain(output.file, turn)) for output in answer.outputs]
        return replace(answer, outputs=outputs, profile=_plain(answer.profile, turn))

    def _untrue(self, turn: PackageTurn, spec: RunSpec, answer: protocol.ProbeAnswer, begun_ms: int) -> str:
        """Why an answer cannot be this turn's, or ""."""
        work_ns = sum((answer.open_ns, answer.load_ns, answer.first_run_ns, *answer.latencies_ns))
        work_ns += sum(part[2] for part in answer.bins)
        took_ms = answer.ended_ms - answer.began_ms
        if answer.request != turn.request:
            return f"the answer is to request {answer.request}, this turn's is {turn.request}"
        if took_ms > 1000 * (spec.timeout_seconds + runner_device.GRACE_SECONDS):
            return f"a process of {took_ms} ms that was to be ended after {spec.timeout_seconds:g} s"
        if not begun_ms <= answer.began_ms + SPARE_MS or took_ms < 0:
            return "its times are not in order: it began before its turn, or ended before it began"
        if answer.began_ms + SPARE_MS < self.ended_ms:
            return "it began before the turn before it had ended"
        if work_ns / 1e6 > took_ms + SPARE_MS:
            return f"{work_ns / 1e6:.0f} ms of work in a process of {took_ms} ms"
        return ""

    def _alone(self, result: RunResult) -> RunResult:
        """A result that no other has: two runs never agree in every nanosecond."""
        times = _times(result)
        if other := self.seen.get(times) if times else None:
            failure = run_result.Failure(
                code=run_result.FailureKind.GARBAGE,
                what=f"the answer is that of another run again ({other})",
                why="two runs never agree in every nanosecond",
                remedy="run the turn again: `ort-mobile export --rest`",
            )
            status = run_result.status_of(failure)
            return RunResult(spec_id=result.spec_id, device=result.device, status=status, failure=failure)
        if times:
            self.seen[times] = f"{result.device}: {result.spec_id}"
        return result

    def _without_others(self, turn: PackageTurn, result: RunResult) -> RunResult:
        """A result without what others left in its process: load and first inference are faster, memory is more."""
        process = ios_session.process_of(self._noted(turn, "before")) if self.in_app else ""
        if self.first_turns.get(process, turn.turn) == turn.turn:
            return result
        return replace(result, **dict.fromkeys(OF_PROCESS, 0), marks=(*result.marks, run_result.Mark.SHARED_PROCESS))

    def _fetch(self, turn: PackageTurn, name: str, path: Path, limit_bytes: int) -> None:
        content = self.session.files.read(f"{turn.turn}.{name}", limit_bytes)
        if content is not None:  # what is missing is said by who asks for it
            path.write_bytes(content)

    def _state(self, turn: PackageTurn, when: str) -> run_result.Conditions:
        conditions_of = ios_session.conditions_of if self.in_app else shell.conditions_of
        return conditions_of(self._noted(turn, when))

    def _noted(self, turn: PackageTurn, when: str) -> bytes:
        return self.session.files.read(f"{turn.turn}.{when}", STATE_BYTES) or b""


def _plain(file: str, turn: PackageTurn) -> str:
    """The name of a file without that of its turn; RunnerError for one of another turn, or elsewhere."""
    plain = file.removeprefix(f"{turn.turn}.")
    if file and (plain == file or "/" in file):
        raise RunnerError(f"the answer names a file that is none of its turn's: {file!r}")
    return plain


def _milliseconds(text: str | None) -> int:
    """Since 1970, as a turn notes its beginning; RunnerError for anything else."""
    if text is None or not text.isascii() or not text.isdigit() or len(text) > len(str(LATEST_MS)):
        raise RunnerError(f"it does not say when it began: {text!r}")
    return min(int(text), LATEST_MS)


LATEST_MS = 32_503_680_000_000
"""The year 3000."""


OF_PROCESS = (
    "open_ns",
    "load_ns",
    "first_run_ns",
    "memory_before_load_bytes",
    "memory_after_load_bytes",
    "memory_peak_bytes",
    "memory_private_bytes",
)
"""What of a result depends on all that its process did before."""


def _times(result: RunResult) -> Times:
    """What of a result no other run's has; nothing where nothing was timed.

    Inferences alone where there are some: of a shared process no more is kept.
    """
    bins = result.sustained.bins if result.sustained else ()
    inferences = (*result.warmup_ns, *result.latencies_ns, *(part.total_ns for part in bins))
    if len(inferences) >= ENOUGH:
        return inferences
    times = (result.open_ns, result.load_ns, result.first_run_ns, *inferences)
    return times if any(times) else ()


ENOUGH = 3
"""Inferences that no two processes time alike."""
