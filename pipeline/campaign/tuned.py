"""What a search for the best configuration found: its candidates, its answer, and what devices share (tune.json)."""

from enum import StrEnum
from typing import Final, Literal

import msgspec

from device_runner import options as runner_options
from device_runner.device import DeviceFacts
from device_runner.spec import RunOptions

TUNE_VERSION: Final = 1


class TuneOutcome(StrEnum):
    """How a search ended. Only the first two have a winner."""

    DECIDED = "decided"
    BUDGET = "budget used up"
    TOO_SMALL = "budget too small"
    ALL_FAILED = "every candidate failed"
    NONE_POSSIBLE = "no candidate is possible"
    LOST = "device lost"
    REFUSED = "not measurable here"


ANSWERED = (TuneOutcome.DECIDED, TuneOutcome.BUDGET)
"""Outcomes that have a winner."""


class CandidateValues(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of a candidate: medians over its processes; None where nothing was.

    `latency_ns` is of their medians, `mean_ns` of their means, `first_run_ns` of their first inferences, which no goal
    is about. `memory_bytes` is the peak, `private_bytes` what no file is behind. `sustained_ns` is the latency at the
    end of runs of minutes, which only the last candidates of a search for it have.
    """

    latency_ns: float | None = None
    mean_ns: float | None = None
    first_run_ns: float | None = None
    p90_ns: float | None = None
    memory_bytes: float | None = None
    private_bytes: float | None = None
    size_bytes: float | None = None
    sustained_ns: float | None = None


class Dropped(msgspec.Struct, frozen=True, kw_only=True):
    """Why a candidate is not the winner: a reason that holds for many, and what is of this one alone.

    `above` is how much more than the leader it takes (0.01 is 1 %), at least and at most; None where nothing says that.
    """

    reason: str
    detail: str = ""
    above: tuple[float, float] | None = None

    @property
    def text(self) -> str:
        """All of it in one line."""
        above = " to ".join(dict.fromkeys(f"{share:+.1%}" for share in self.above or ()))
        return ": ".join(filter(None, (self.reason, above, self.detail)))


class TunedCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate of a search: what was measured of it in `processes`, and when and why it was dropped.

    `id` is that of its planned run, "" for what was left out before anything was measured; `dropped` is None for
    the winner.
    """

    variant: str
    run: str
    id: str = ""
    processes: int = 0
    values: CandidateValues = CandidateValues()
    dropped: Dropped | None = None


class TunedModel(msgspec.Struct, frozen=True, kw_only=True):
    """The search for one model on one device.

    `winner`, `documented` (what ONNX Runtime's documentation advises) and `ort_default` (what an app gets that sets
    nothing) are ids of planned runs; "" for none. `front` are candidates that no other beats in all goals, as far as
    the search knows. `reason` says why it ended so.
    """

    device: str
    model: str
    goals: tuple[str, ...]
    outcome: TuneOutcome
    reason: str
    winner: str = ""
    documented: str = ""
    ort_default: str = ""
    front: tuple[str, ...] = ()
    processes: int = 0
    spent_seconds: float = 0.0
    budget_seconds: float = 0.0
    strategy: str = ""
    seed: int = 0
    candidates: tuple[TunedCandidate, ...] = ()


class TunedClass(runner_options.DeviceClass, frozen=True, kw_only=True):
    """Devices for which one answer counts: the chip, Android's API level (0 elsewhere), and the first ABI."""

    abi: str

    @classmethod
    def of(cls, facts: DeviceFacts) -> "TunedClass":
        """The class of a device."""
        device_class = runner_options.class_of(facts)
        return cls(chip=device_class.chip, api_level=device_class.api_level, abi=facts.abis[0] if facts.abis else "")

    @property
    def text(self) -> str:
        """In one line: SM8450, API 33, arm64-v8a."""
        api_level = f"API {self.api_level}" if self.api_level else ""
        return ", ".join(part for part in (self.chip, api_level, self.abi) if part)


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """How much less of a goal the winner takes than another: 0.8 is 20 % less, with its 95 % interval.

    Beside the goal latency also of `mean` and `p90`, where a difference was shown that medians do not have.

    From rounds that did not choose it, measured after the search; bounds are None for what is not measured (sizes).
    """

    than: Literal["documentation", "onnxruntime"]
    goal: str
    variant: str
    run: str
    ratio: float
    low: float | None = None
    high: float | None = None
    rounds: int = 0


class FrontPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration that no other beats in all goals, with its values in the confirming rounds."""

    variant: str
    run: str
    values: CandidateValues


class TuneAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a search on a device came to: the winner, confirmed, and all candidates."""

    search: TunedModel
    variant: str = ""
    run: str = ""
    values: CandidateValues = CandidateValues()
    confirmed_rounds: int = 0
    gains: tuple[Gain, ...] = ()
    front: tuple[FrontPoint, ...] = ()

    @property
    def why_none(self) -> str:
        """Why there is no winner, in one line; "" where there is one."""
        search = self.search
        if search.outcome in ANSWERED:
            return ""
        return f"{search.outcome.value} for {search.model} on {search.device}: {search.reason}"


class ClassChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What classes of devices run of a model. `cost` is the most that any of the devices loses against its own winner
    (0.01 is 1 %), None where that was not measured.
    """

    model: str
    classes: tuple[TunedClass, ...]
    devices: tuple[str, ...]
    variant: str
    file: str
    run: str
    options: RunOptions
    cost: float | None = None


class SharedCost(msgspec.Struct, frozen=True, kw_only=True):
    """What it costs a device to run another's winner, relative to its own, with the 95 % interval."""

    model: str
    device: str
    winner_of: str
    variant: str
    run: str
    ratio: float
    low: float | None = None
    high: float | None = None


class TuneReport(msgspec.Struct, frozen=True, kw_only=True):
    """tune.json: what searches found. Times are nanoseconds, sizes bytes, ratios below 1 are better."""

    version: Literal[1] = TUNE_VERSION
    name: str
    campaign: str
    answers: tuple[TuneAnswer, ...]
    choices: tuple[ClassChoice, ...] = ()
    costs: tuple[SharedCost, ...] = ()
    share_percent: float = 0.0

    @property
    def unanswered(self) -> bool:
        """Whether a search found no winner."""
        return any(answer.search.outcome not in ANSWERED for answer in self.answers)

    @property
    def impossible(self) -> bool:
        """Whether no candidate of a search keeps to the constraints."""
        return any(answer.search.outcome is TuneOutcome.NONE_POSSIBLE for answer in self.answers)
