"""What a model keeps of its accuracy: the types alone, for records that are only read."""

from enum import StrEnum

import msgspec

from pipeline.core.errors import Finding


class DropVerdict(StrEnum):
    """Whether a drop keeps its budget: an interval decides, not the drop alone."""

    WITHIN = "within"
    OVER = "over"
    CANNOT_TELL = "cannot tell"


FLOOR_DB = 10.0
"""Signal to noise from float below which an output ships only with a budget that allows it: the error has a tenth of
the signal's power, as where one element in ten is 0 in place of its number."""
LEAST_EQUAL = 0.5
"""The same of whole numbers and texts: the share of elements that must be the original's."""


class OutputDrift(msgspec.Struct, frozen=True, kw_only=True):
    """How far one output is from the original's over all samples; None for what is infinite or cannot be computed.

    `sqnr_db` is None and `max_error` 0 where they are equal. `agreement` is the share of samples with the same top-1,
    `equal` that of equal elements, of whole numbers and texts. `steps`: it was run in a stream of so many, with states
    of its own. `metric` is what it is judged by, "" for an output that is not; its other fields are as those of
    AccuracyResult, `max_drop` by its weight. `channels` are those that decide where it holds values of different scale
    ("channels 4 to 83"), with their own signal to noise. `allowed`: a budget that was kept sees how far it is, or its
    metric was asked for.
    """

    output: str
    sqnr_db: float | None
    psnr_db: float | None
    cosine: float | None
    max_error: float | None
    agreement: float | None
    equal: float | None = None
    steps: int = 0
    metric: str = ""
    value: float | None = None
    reference_value: float | None = None
    drop: float | None = None
    drop_low: float | None = None
    drop_high: float | None = None
    max_drop: float | None = None
    verdict: DropVerdict | None = None
    samples_needed: int | None = None
    channels: str = ""
    channels_sqnr_db: float | None = None
    still: str = ""
    """How little the original's values vary, where the metric cannot tell noise from a wrong output."""
    allowed: bool = False

    @property
    def over(self) -> bool:
        """Whether it has a budget that was not shown to be kept."""
        return self.max_drop is not None and self.verdict is not DropVerdict.WITHIN

    @property
    def below_floor(self) -> str:
        """How far from float it is, where that is too far to ship without a budget that allows it; else ""."""
        if not self.metric or self.allowed:
            return ""
        if self.equal is not None:
            return f"{self.equal:.0%} of its elements are equal".replace("%", " %") if self.equal < LEAST_EQUAL else ""
        for ratio, where in ((self.sqnr_db, ""), (self.channels_sqnr_db, f" in {self.channels}")):
            if ratio is not None and ratio < FLOOR_DB:
                return f"{ratio:.1f} dB from float{where}"
        return ""

    @property
    def name(self) -> str:
        """The output, and in how many steps of a stream."""
        return f"{self.output} in {self.steps} steps" if self.steps else self.output


class AccuracyResult(msgspec.Struct, frozen=True, kw_only=True):
    """The metric of a model and of its original on the same samples: of the output that decides, the worst.

    `output` names that, "" where the metric gets all. `labelled`: compared with labels; else with the original's own
    outputs, and the value is no accuracy. `drop` is how much worse the model is, whichever direction is better;
    `drop_low` and `drop_high` bound it at 95 %. They are None where a metric has no drop, the bounds also for too few
    samples. `p_value` is McNemar's, for 0/1 metrics with labels. `verdict` is None without a budget; `samples_needed`
    says how many would tell, None for no such number. `value` is None for infinite, and where it cannot be computed.
    `not_finite` counts samples on which an output has NaN or infinity where the original's has numbers. `chip` is whose
    NPU was simulated, where the CPU did not compute. `unjudged` are outputs that nobody compared with the original's:
    no numbers, or left out by the config. `steps`: the output that decides was run in a stream of so many. `channels`
    are those of it that decide, "" for all; `still` as in OutputDrift.
    """

    model: str
    metric: str
    labelled: bool
    samples: int
    data: str
    value: float | None
    reference_value: float | None = None
    drop: float | None = None
    drop_low: float | None = None
    drop_high: float | None = None
    p_value: float | None = None
    max_drop: float | None = None
    verdict: DropVerdict | None = None
    samples_needed: int | None = None
    not_finite: int = 0
    chip: str = ""
    outputs: tuple[OutputDrift, ...] = ()
    findings: tuple[Finding, ...] = ()
    output: str = ""
    steps: int = 0
    channels: str = ""
    still: str = ""
    unjudged: tuple[str, ...] = ()

    @property
    def computed(self) -> bool:
        """Whether the metric has a value; the signal to noise of equal outputs is infinite and has no number."""
        return self.value is not None or any(drift.max_error == 0 for drift in self.outputs)

    @property
    def over(self) -> bool:
        """Whether there is a budget that was not shown to be kept, of any output."""
        mine = self.max_drop is not None and self.verdict is not DropVerdict.WITHIN
        return mine or any(drift.over for drift in self.outputs)

    @property
    def below_floor(self) -> str:
        """The outputs that are too far from float to ship without a budget that allows it, each with how far."""
        return ", ".join(f"output {drift.name}: {drift.below_floor}" for drift in self.outputs if drift.below_floor)

    @property
    def refused(self) -> bool:
        """Whether a budget was not shown to be kept, outputs are too far from float, or numbers of the original are
        lost.
        """
        return bool(self.not_finite) or self.over or bool(self.below_floor)

    @property
    def of_output(self) -> str:
        """Which output decides, in words: " of the output boxes in 100 steps"; "" where there is but one."""
        if not self.output or (len(self.outputs) + len(self.unjudged) < 2 and not self.steps and not self.channels):
            return ""
        channels = f", {self.channels}," if self.channels else ""
        return f" of the output {self.output}{channels}" + (f" in {self.steps} steps" if self.steps else "")


class ArtifactAccuracy(msgspec.Struct, frozen=True, kw_only=True):
    """What an artifact in another precision than the model's own keeps of its accuracy, on the computer that made it.

    `why` says why it could not be measured: then there is no result. `sqnr_db` is the worst signal to noise of its
    check beside the float original, which decides where there is no result.
    """

    model: str
    variant: str
    result: AccuracyResult | None = None
    why: str = ""
    sqnr_db: float | None = None

    def refused(self, max_drop: float | None) -> str:
        """Why the artifact may not ship, with a budget for the drop if there is one; "" where it may."""
        result = self.result
        if result and result.not_finite:
            count = f"{result.not_finite} of {result.samples} samples"
            return f"gives NaN or infinity where the float original gives numbers, on {count}"
        if result and result.over:
            budget = f"{max_drop if result.max_drop is None else result.max_drop:g}"
            lost = f"was not shown to lose at most {budget} of {result.metric}{result.of_output}"
            if result.still:
                return f"{lost}, and cannot be shown on data where {result.still}"
            return lost if result.computed else f"{lost}, which could not be computed"
        if max_drop is not None and result is None:
            return f"may lose more accuracy than {max_drop:g}: {self.why}"
        if result is None and self.sqnr_db is not None and self.sqnr_db < FLOOR_DB:
            return f"is too far from float ({self.sqnr_db:.1f} dB; at least {FLOOR_DB:g} dB without a budget)"
        if result and (far := result.below_floor):
            return f"is too far from float ({far}; at least {FLOOR_DB:g} dB without a budget that allows less)"
        return ""
