"""What a model keeps of its accuracy: the types alone, for records that are only read."""

from enum import StrEnum

import msgspec

from pipeline.core.errors import Finding


class DropVerdict(StrEnum):
    """Whether a drop keeps its budget: an interval decides, not the drop alone."""

    WITHIN = "within"
    OVER = "over"
    CANNOT_TELL = "cannot tell"


class OutputDrift(msgspec.Struct, frozen=True, kw_only=True):
    """How far one output is from the original's over all samples; None for what is infinite or cannot be computed.

    `sqnr_db` is None and `max_error` 0 where they are equal. `agreement` is the share of samples with the same top-1.
    """

    output: str
    sqnr_db: float | None
    psnr_db: float | None
    cosine: float | None
    max_error: float | None
    agreement: float | None


class AccuracyResult(msgspec.Struct, frozen=True, kw_only=True):
    """The metric of a model and of its original on the same samples.

    `labelled`: compared with labels; else with the original's own outputs, and the value is no accuracy. `drop` is how
    much worse the model is, whichever direction is better; `drop_low` and `drop_high` bound it at 95 %. They are None
    where a metric has no drop, the bounds also for too few samples. `p_value` is McNemar's, for 0/1 metrics with
    labels. `verdict` is None without a budget; `samples_needed` says how many would tell, None for no such number.
    `value` is None for infinite, and where it cannot be computed. `not_finite` counts samples on which an output has
    NaN or infinity where the original's has numbers. `chip` is whose NPU was simulated, where the CPU did not compute.
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

    @property
    def computed(self) -> bool:
        """Whether the metric has a value; the signal to noise of equal outputs is infinite and has no number."""
        return self.value is not None or any(drift.max_error == 0 for drift in self.outputs)

    @property
    def refused(self) -> bool:
        """Whether there is a budget that was not shown to be kept, or numbers of the original are lost."""
        return bool(self.not_finite) or (self.max_drop is not None and self.verdict is not DropVerdict.WITHIN)


class ArtifactAccuracy(msgspec.Struct, frozen=True, kw_only=True):
    """What an artifact in another precision than the model's own keeps of its accuracy, on the computer that made it.

    `why` says why it could not be measured: then there is no result.
    """

    model: str
    variant: str
    result: AccuracyResult | None = None
    why: str = ""

    def refused(self, max_drop: float | None) -> str:
        """Why the artifact may not ship with a budget for the drop, if there is one; "" where it may."""
        if self.result and self.result.not_finite:
            count = f"{self.result.not_finite} of {self.result.samples} samples"
            return f"gives NaN or infinity where the float original gives numbers, on {count}"
        if max_drop is None:
            return ""
        if self.result is None:
            return f"may lose more accuracy than {max_drop:g}: {self.why}"
        if not self.result.computed:
            return f"was not shown to lose at most {max_drop:g} of {self.result.metric}, which could not be computed"
        return f"was not shown to lose at most {max_drop:g} of {self.result.metric}" if self.result.refused else ""
