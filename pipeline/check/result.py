"""What the original model computes, kept as raw files: the types alone, for records that are only read."""

import msgspec

from device_runner import spec as run_spec
from device_runner.spec import TensorFile
from pipeline.check.compare import Categorical, OutputCheck, OutputPrecision, Tolerance, usual_tolerance
from pipeline.dataset import Dataset


class LabelledSet(msgspec.Struct, frozen=True, kw_only=True):
    """The labelled set as raw files: `inputs` and `outputs` are stacked samples, first axis the sample.

    `labels` has one for each. `accuracy` is the original's share of right
    answers, None where labels are no numbers of classes.
    """

    samples: int
    inputs: TensorFile
    outputs: TensorFile
    accuracy: float | None
    labels: tuple[int | str, ...]


class StreamReference(msgspec.Struct, frozen=True, kw_only=True):
    """A stream with what its steps are given, and the original's outputs: of each step, or after the last one.

    `original` are those of the float model that it was made from, with states of its own; () for a model in its own
    precision. Where nobody `declared` the states they were found in the graph, and devices run no stream.
    """

    stream: run_spec.Stream
    outputs: tuple[TensorFile, ...]
    original: tuple[TensorFile, ...] = ()
    declared: bool = True


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs and what the original model makes of them, as raw files; `notes` are findings that a user should see.

    `data` says what the inputs were taken from, and `sample` which of its samples they are. `run_seconds` is how long
    one inference took on this computer.
    """

    inputs: tuple[TensorFile, ...]
    outputs: tuple[TensorFile, ...]
    precision: OutputPrecision
    labelled: LabelledSet | None = None
    input_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    random_inputs: bool = False
    constants: tuple[str, ...] = ()
    """Inputs that got a constant, declared or guessed, where nobody gave test data."""
    run_seconds: float = 0.0
    spans: dict[str, float] = {}
    """Upper minus lower bound of outputs that their operators bound, by name."""
    unsteady: tuple[str, ...] = ()
    """Outputs that the original does not repeat when inputs that nobody gave change by a rounding error."""
    drawn: dict[str, str] = {}
    """Outputs that depend on random numbers, with what draws them."""
    categorical: dict[str, Categorical] = {}
    """Outputs that are class numbers, indices or truth values."""
    scales: tuple[str, ...] = ()
    """Outputs of whole numbers that are none."""
    sorted_rows: tuple[str, ...] = ()
    """Outputs whose rows the model sorts by a score."""
    original: tuple[TensorFile, ...] = ()
    """The float original's outputs on the same inputs; () for a model in its own precision."""
    refuted: tuple[OutputCheck, ...] = ()
    """Outputs that are not finite where the float original's are: no file of this precision may pass."""
    data: Dataset = Dataset()
    sample: str = ""
    simulated: dict[str, tuple[TensorFile, ...]] = {}
    """What the simulator of a chip computes with a context, by its variant."""
    stream: StreamReference | None = None
    """The stream of a model with state, which begins with `inputs`."""

    def tolerance(self, max_relative_error: float | None = None) -> Tolerance:
        """What outputs may differ by: as asked, or what the precision brings with it."""
        return msgspec.structs.replace(
            usual_tolerance(self.precision, max_relative_error),
            spans=self.spans,
            random_inputs=self.random_inputs,
            constants=self.constants,
            unsteady=self.unsteady,
            refuted=self.refuted,
            drawn=self.drawn,
            categorical=self.categorical,
            scales=self.scales,
            sorted_rows=self.sorted_rows,
        )
