"""How one output differs from the reference."""

import msgspec


class OutputCheck(msgspec.Struct, frozen=True, kw_only=True):
    """How one output of a run differs from the host's reference; None where it could not be computed (or is NaN).

    `max_rel_error` is relative to the largest absolute value of the reference, `limit` the largest absolute error that
    passes, `cosine` over the flattened outputs, `top1_agreement` the share of the labelled set on which the answer is
    the original model's. `unknown`: these inputs cannot show whether the output is right, for the reason given; then
    `passed` is false, and the check has not failed either. `random_inputs`: nobody gave test data.
    """

    output: str
    passed: bool
    unknown: bool = False
    random_inputs: bool = False
    max_abs_error: float | None = None
    max_rel_error: float | None = None
    limit: float | None = None
    cosine: float | None = None
    top1_agreement: float | None = None
    reason: str = ""
    metric: str | msgspec.UnsetType = msgspec.UNSET
    value: float | msgspec.UnsetType = msgspec.UNSET
    """The metric of the labelled set from the device's own outputs."""
    original_value: float | msgspec.UnsetType = msgspec.UNSET
    """The same of the float original's outputs, on the computer that made the artifacts."""

    @property
    def failed(self) -> bool:
        """Whether the output was shown to be wrong."""
        return not self.passed and not self.unknown
