"""What a check of doctor found: its outcome, what was measured of each remedy."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import msgspec

from device_runner.problem import Problem
from device_runner.spec import OptimizationLevel, RunOptions
from pipeline.campaign import run_options
from pipeline.campaign.statistics import compare as run_compare


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """What is changed to see whether it helps.

    `settings` are keys of [[runs]] with their values; `level` is the optimization level of an .onnx file; `without` are
    session config keys that are left out; `steps` are passes as `ort-mobile transform --do` has them; `ort_format`
    converts to ORT format at level all. `lossy`: outputs are expected to differ by the precision of half floats.
    """

    name: str
    settings: dict[str, Any] = {}
    level: OptimizationLevel | None = None
    without: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    ort_format: bool = False
    lossy: bool = False

    @property
    def file_key(self) -> tuple[tuple[str, ...], bool]:
        """Remedies with the same key run the same file; that of the model itself is empty."""
        return self.steps, self.ort_format

    def options(self, start: RunOptions) -> RunOptions:
        """The run options with the remedy; a file in ORT format has no level of its own."""
        kept = {key: value for key, value in start.session_config.items() if key not in self.without}
        options = run_options.changed(msgspec.structs.replace(start, session_config=kept), self.settings)
        level = OptimizationLevel.ALL if self.ort_format else self.level or options.optimization_level
        return msgspec.structs.replace(options, optimization_level=level)


def together(remedies: Sequence[Remedy]) -> Remedy:
    """All remedies at once; where two set the same, the later one counts."""
    settings: dict[str, Any] = {}
    for remedy in remedies:
        for key, value in remedy.settings.items():
            settings[key] = {**settings.get(key, {}), **value} if isinstance(value, dict) else value
    return Remedy(
        name=" + ".join(remedy.name for remedy in remedies),
        settings=settings,
        level=next((remedy.level for remedy in reversed(remedies) if remedy.level), None),
        without=tuple(dict.fromkeys(key for remedy in remedies for key in remedy.without)),
        steps=tuple(dict.fromkeys(step for remedy in remedies for step in remedy.steps)),
        ort_format=any(remedy.ort_format for remedy in remedies),
        lossy=any(remedy.lossy for remedy in remedies),
    )


class Outcome(StrEnum):
    """What came of a check."""

    GAIN = "gain"
    """A remedy is faster, by the rule for verdicts."""
    NO_GAIN = "no gain shown"
    NOTE = "note"
    """Something to know or to do that was not measured."""
    UNTESTED = "not tested"
    """It could not be measured: it failed, or the time was over."""
    NOT_APPLICABLE = "does not apply"


class MeasuredRemedy(msgspec.Struct, frozen=True, kw_only=True):
    """A remedy with what it gave over all rounds, each compared with the start of the same round.

    `run` names the run options. `why` says why there is no number, or why a number does not count: the run failed,
    its outputs differ from the start's, the time was over. `memory_bytes` is the median of the peaks. `set` are the
    lines of a config that set it, `commands` what makes the file, `calls` lines of an app's code in `language`.
    """

    remedy: Remedy
    run: str
    set: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    language: str = ""
    why: str = ""
    rounds: int = 0
    median_ns: float | None = None
    latency: run_compare.Comparison | None = None
    load: run_compare.Comparison | None = None
    first_run: run_compare.Comparison | None = None
    memory_bytes: int = 0

    @property
    def gains(self) -> bool:
        """Whether it is faster and nothing speaks against it."""
        return not self.why and self.latency is not None and self.latency.verdict is run_compare.Verdict.FASTER

    @property
    def loads_faster(self) -> bool:
        """Whether sessions are created faster, and inferences were not shown to be slower."""
        slower = self.latency is None or self.latency.verdict in (run_compare.Verdict.SLOWER, run_compare.Verdict.MIXED)
        return not self.why and not slower and self.load is not None and self.load.verdict is run_compare.Verdict.FASTER

    @property
    def ratio(self) -> float:
        """Of latencies, for sorting, by what decides: 1 where none is known."""
        return self.latency.deciding_ratio if self.latency else 1.0


class DoctorFinding(Problem, frozen=True, kw_only=True):
    """What one check found, or why it does not apply; the advice is what to do that is no setting.

    `source` is the page below onnxruntime.ai/docs/ that gives it, `share` the share of the time that it concerns,
    `best` the name of the remedy that gains most.
    """

    code: str = msgspec.field(name="check")
    title: str
    how: str
    source: str
    outcome: Outcome
    what: str = msgspec.field(default="", name="text")
    remedy: str = msgspec.field(default="", name="advice")
    share: float | None = None
    best: str = ""
    measured: tuple[MeasuredRemedy, ...] = ()
