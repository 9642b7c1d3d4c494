"""How far outputs are from the original model's, and whether that is near enough. Pure functions over arrays.

The one rule of every numeric check (conversion, devices, advice, proofs): an error passes up to the larger of a share
of the reference's largest value and an absolute floor, and only where a trivially wrong answer would not pass as well.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

from device_runner import spec as run_spec
from device_runner.spec import ElementType, TensorFile
from pipeline.core.errors import ModelError
from pipeline.model import random_numbers

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from pipeline.check.ranked_rows import RankedRows


class OutputCheck(msgspec.Struct, frozen=True, kw_only=True):
    """How one output of a run differs from the host's reference; None where it could not be computed (or is NaN).

    `max_rel_error` is relative to the largest absolute value of the reference, `limit` the largest absolute error that
    passes, `cosine` over the flattened outputs, `top1_agreement` the share of the labelled set on which the answer is
    the original model's. `unknown`: these inputs cannot show whether the output is right, for the reason given; then
    `passed` is false, and the check has not failed either. `random_inputs`: some input got random numbers, as nobody
    gave test data. `sqnr_db` is the output's signal to noise against the float original's on the same inputs, where the
    reference is that model in another precision; None where they are equal, unset where there is no such number.
    `from_simulator` is the largest difference from what the simulator of the phone's NPU computes on the same inputs,
    relative as `max_rel_error`.
    """

    output: run_spec.Text
    passed: bool
    unknown: bool = False
    random_inputs: bool = False
    constants: tuple[run_spec.Text, ...] = ()
    """Inputs that got a constant, where nobody gave test data."""
    max_abs_error: float | None = None
    max_rel_error: float | None = None
    limit: float | None = None
    cosine: float | None = None
    top1_agreement: float | None = None
    reason: run_spec.Text = ""
    remedy: run_spec.Text = ""
    """What to do about it; "" for what is usual (`remedy_of`)."""
    sqnr_db: float | msgspec.UnsetType | None = msgspec.UNSET
    metric: run_spec.Text = ""
    value: float | None = None
    """The metric of the labelled set from the device's own outputs."""
    original_value: float | None = None
    """The same of the float original's outputs, on the computer that made the artifacts."""
    from_simulator: float | None = None
    session: run_spec.Text = ""
    """The session that judged on this computer, where it is not ONNX Runtime's default: the level and the entries that
    [[runs]] ask for, and where memory forbade to prepack; of several sessions that of the worst answer.
    """
    unequal: int | None = None
    """Of class numbers, indices and truth values: how many elements differ; `max_rel_error` is their share."""
    ties: int = 0
    """So many of them differ where the original's two best scores are as near as rounding. Of rows that are sorted by a
    score: so many have another place, or are others, for the same reason.
    """
    unsteady: bool = False
    """Whether the original's own output fails this check when its inputs change by a rounding error: that a file
    repeats it here says nothing of other processors and releases.
    """

    @property
    def failed(self) -> bool:
        """Whether the output was shown to be wrong."""
        return not self.passed and not self.unknown

    @property
    def without_data(self) -> bool:
        """Whether nobody gave test data."""
        return self.random_inputs or bool(self.constants)


def sound(checks: Sequence[OutputCheck]) -> bool:
    """Whether outputs were compared, and none was shown to be wrong."""
    return bool(checks) and not any(check.failed for check in checks)


Array: TypeAlias = "npt.NDArray[np.generic]"
Floats: TypeAlias = "npt.NDArray[np.float64]"


class OutputPrecision(StrEnum):
    """What a model computes in; decides how far outputs may differ."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    QUANTIZED = "quantized"


MAX_RELATIVE_ERROR = {OutputPrecision.FLOAT32: 1e-3, OutputPrecision.FLOAT16: 2e-2, OutputPrecision.QUANTIZED: 0.1}
"""Largest difference relative to the reference output's largest magnitude.

Float: fusions reorder sums over some thousands of terms. Half: rounding at 2**-11 adds up over the layers. Quantized:
a step or two of 255 where rounding falls the other way.
"""

FLOORS = {OutputPrecision.FLOAT32: 1e-6, OutputPrecision.FLOAT16: 2e-5, OutputPrecision.QUANTIZED: 2 / 255}
"""Largest difference relative to what an output can span at all (`output_spans`), whatever it is on these inputs.

A model's last layers round relative to the numbers that they add up, so a sigmoid of -12 has the error of the -12.
Float and half: a thousandth of what passes at full range, some 8 units in the last place of 1. Quantized: two steps.
"""

FLOOR_OF_UNBOUNDED = 1e-6
"""The floor where nothing bounds an output, absolute: between numpy's 1e-8 and torch.testing's 1e-5 for float."""

NUMPY_TYPES: dict[ElementType, str] = {
    kind: "uint16" if kind is ElementType.BFLOAT16 else kind.value for kind in ElementType if kind != ElementType.STRING
}
"""Element type to the numpy type of its raw file; bfloat16 has none and is widened by `read_tensor`."""


class Tie(msgspec.Struct, frozen=True, array_like=True):
    """A position in a flat output, and what else may stand there: its score is as near to the best as rounding."""

    position: int
    others: tuple[int, ...]


class Categorical(msgspec.Struct, frozen=True, kw_only=True):
    """An output of so many `elements` that are categorical: class numbers, indices, truth values.

    `all_ties`: no other positions than those of `ties` have one.
    """

    elements: int
    ties: tuple[Tie, ...] = ()
    all_ties: bool = False


class Tolerance(msgspec.Struct, frozen=True, kw_only=True):
    """What still passes, and what is known of the reference that outputs are compared with.

    `floor` is a share of an output's span; `spans` are the spans of outputs that are bounded. `random_inputs`: some
    input got random numbers. `unsteady` are the outputs that the original itself does not repeat when these inputs
    change by a rounding error: they show nothing.
    """

    max_relative_error: float
    floor: float = 0.0
    spans: dict[run_spec.Text, float] = {}
    random_inputs: bool = False
    unsteady: tuple[run_spec.Text, ...] = ()
    constants: tuple[run_spec.Text, ...] = ()
    """Inputs that got a constant, where nobody gave test data."""
    refuted: tuple[OutputCheck, ...] = ()
    drawn: dict[run_spec.Text, run_spec.Text] = {}
    """Outputs that depend on random numbers, with what draws them: no two runs give the same."""
    categorical: dict[run_spec.Text, Categorical] = {}
    scales: tuple[run_spec.Text, ...] = ()
    """Outputs of whole numbers that are not categorical, though their type is usual for these."""
    sorted_rows: tuple[run_spec.Text, ...] = ()
    """Outputs whose rows the model sorts by a score."""
    min_top1_agreement: float | None = None

    def floor_of(self, output: str) -> float:
        """The absolute error of an output that passes whatever its range; never over what passes at full range."""
        span = self.spans.get(output)
        floor = self.floor * span if span else min(self.floor, FLOOR_OF_UNBOUNDED)
        return min(floor, self.max_relative_error * (span or 1.0))

    def categories_of(self, output: str, array: Array) -> Categorical | None:
        """What is known of a categorical output; None for numbers on a scale."""
        known = self.categorical.get(output)
        if known and known.elements == array.size:
            return known
        return (
            Categorical(elements=array.size)
            if known or (is_categorical_by_type(array) and output not in self.scales)
            else None
        )

    @property
    def without_data(self) -> bool:
        """Whether nobody gave test data."""
        return self.random_inputs or bool(self.constants)

    @property
    def data(self) -> str:
        """What the inputs are, in words."""
        return inputs_text(random=self.random_inputs, constants=self.constants) or "this test data"


CATEGORICAL_TYPES = frozenset({"bool", "int32", "int64", "uint32", "uint64"})


def is_categorical_by_type(array: Array) -> bool:
    """Whether elements of the type are usually categorical; numbers of 8 and 16 bits are those of a scale."""
    return array.dtype.name in CATEGORICAL_TYPES


def inputs_text(*, random: bool, constants: Sequence[str]) -> str:
    """What inputs were without test data, in words; "" where there are such data."""
    words = ["random inputs"] if random else []
    words += [f"constants ({', '.join(constants)})"] if constants else []
    return " and ".join(words)


def usual_tolerance(precision: OutputPrecision, max_relative_error: float | None = None) -> Tolerance:
    """What a precision brings with it, with another relative error where one is asked for."""
    share = MAX_RELATIVE_ERROR[precision] if max_relative_error is None else max_relative_error
    return Tolerance(max_relative_error=share, floor=FLOORS[precision])


def read_tensor(tensor: TensorFile) -> Array:
    """A raw tensor file as an array of its shape; ModelError when its size does not fit."""
    import numpy as np

    if tensor.dtype is ElementType.STRING:
        texts = Path(tensor.file).read_bytes().decode("utf-8", "backslashreplace").split("\0")[:-1]
        if len(texts) != int(np.prod(tensor.shape)):
            raise ModelError(f"the tensor {tensor.name!r} has {len(texts)} strings", where=tensor.file)
        return np.array(texts, dtype=object).reshape(tensor.shape)
    dtype = np.dtype(NUMPY_TYPES[tensor.dtype]).newbyteorder("<")
    data = Path(tensor.file).read_bytes()
    expected = int(np.prod(tensor.shape, dtype=np.int64)) * dtype.itemsize
    if len(data) != expected:
        raise ModelError(f"the tensor {tensor.name!r} has {len(data)} bytes instead of {expected}", where=tensor.file)
    array = np.frombuffer(data, dtype)
    if tensor.dtype is ElementType.BFLOAT16:
        array = (array.astype("<u4") << 16).view("<f4")
    return array.reshape(tensor.shape)


def compare_outputs(
    reference: Mapping[str, Array],
    actual: Mapping[str, Array],
    tolerance: Tolerance,
    original: Mapping[str, Array] = MappingProxyType({}),
) -> Iterator[OutputCheck]:
    """A check for each output of the reference, in its order; an output that is not there fails.

    It is unknown where the inputs cannot show whether an output is right.

    `original` has the float original's outputs where the reference is that model in another precision.
    """
    for name, expected in reference.items():
        if name not in actual:
            strings = expected.dtype.kind not in "fiub"
            why = "the run did not give this output"
            if strings:
                why = "strings of more than 16 MiB, or with a NUL in one, are not brought from devices"
            yield OutputCheck(output=name, passed=False, unknown=strings, reason=why)
            continue
        check = next((refuted for refuted in tolerance.refuted if refuted.output == name), None)
        if drawn := tolerance.drawn.get(name):
            check = OutputCheck(
                output=name,
                passed=False,
                unknown=True,
                reason=f"cannot be compared: {drawn}",
                remedy=random_numbers.WITHOUT_CHANCE,
            )
            yield msgspec.structs.replace(check, random_inputs=tolerance.random_inputs, constants=tolerance.constants)
            continue
        if check is None:
            check = _compared(name, expected, actual[name], tolerance)
            if check.failed:
                check = _at_ties(check, expected, actual[name], tolerance)
            if check.failed and name in tolerance.unsteady:
                why = "the original model's own output changes as much when its inputs change by a rounding error"
                check = msgspec.structs.replace(check, unknown=True, reason=f"{why}; {check.reason}")
            dead = _dead(original[name], actual[name], tolerance.floor_of(name)) if name in original else ""
            if not check.failed and dead:
                why = f"{dead} in the float original"
                empty = not actual[name].size
                unknown = empty and tolerance.without_data  # what a detector finds in noise says nothing
                check = msgspec.structs.replace(
                    check,
                    passed=False,
                    unknown=unknown,
                    reason=why,
                    limit=None,
                    remedy="" if unknown else DEAD,
                    max_rel_error=None if empty else check.max_rel_error,
                    max_abs_error=None if empty else check.max_abs_error,
                )
            if check.unknown:
                check = msgspec.structs.replace(check, reason=f"cannot judge on {tolerance.data}: {check.reason}")
            check = msgspec.structs.replace(check, random_inputs=tolerance.random_inputs)
        scale = name in original and tolerance.categories_of(name, expected) is None
        sqnr: float | msgspec.UnsetType | None = msgspec.UNSET
        if scale:
            rows = _sorted_rows(name, original[name], actual[name], tolerance)
            sqnr = sqnr_db(rows.original, rows.actual) if rows else sqnr_db(original[name], actual[name])
        yield msgspec.structs.replace(
            check, sqnr_db=sqnr, constants=tolerance.constants, unsteady=name in tolerance.unsteady
        )


def _sorted_rows(output: str, original: Array, actual: Array, tolerance: Tolerance) -> "RankedRows | None":
    """The rows of an output that the graph sorts by a score, each beside the original's; None for other outputs."""
    from pipeline.check import ranked_rows  # which most models need for nothing

    if output not in tolerance.sorted_rows:
        return None
    return ranked_rows.matched_rows(original, actual, tolerance.max_relative_error, tolerance.floor_of(output))


def _at_ties(check: OutputCheck, expected: Array, given: Array, tolerance: Tolerance) -> OutputCheck:
    """The check again of rows that have other places where their scores tie; else as it is."""
    rows = _sorted_rows(check.output, expected, given, tolerance)
    if rows is None:
        return check
    again = _compared(check.output, rows.original, rows.actual, tolerance)
    return msgspec.structs.replace(again, ties=rows.moved + rows.others) if not again.failed else check


DEAD = "leave the layers that make it float (`keep_float` of the model in the config), or ship float or half precision"


def _dead(original: Array, actual: Array, floor: float) -> str:
    """What is 0 everywhere, and up to which number in the original: an output of several numbers, or its channels of a
    smaller scale; or that it has no elements, and how many there; "" for none. Numbers up to the floor are rightly 0 in
    so few bits.
    """
    import numpy as np

    from pipeline.check.scales import parts_of  # which records need for nothing

    if original.size and not actual.size:
        return f"it is empty {list(actual.shape)}, and {list(original.shape)}"
    if original.dtype.kind != "f" or original.shape != actual.shape or original.size < 2:
        return ""
    if actual.any():
        least = max(floor, FLOORS[OutputPrecision.QUANTIZED])  # each channel may have a scale of its own
        dead = next((part for part in parts_of(original, actual) if part.zeroed and part.largest > least), None)
        return f"in {dead.name} it is 0 everywhere, and up to {dead.largest:.3g}" if dead else ""
    finite = np.abs(original[np.isfinite(original)])
    largest = float(finite.max(initial=0))
    return f"it is 0 everywhere, and up to {largest:.3g}" if largest > floor else ""


def with_first_step(
    checks: Iterable[OutputCheck], reference: Mapping[str, Array], actual: Mapping[str, Array], tracked: Container[str]
) -> Iterator[OutputCheck]:
    """The checks of a stream's outputs: what failed of those that have each step says the first that differs."""
    import numpy as np

    for check in checks:
        expected, given = reference.get(check.output), actual.get(check.output)
        if check.failed and check.output in tracked and expected is not None and given is not None:
            limit = np.inf if check.limit is None else check.limit  # None: NaN or infinity differ
            limit = 0.0 if check.unequal else limit
            steps = zip(expected, given, strict=False)
            differ = (
                n for n, step in enumerate(steps, 1) if not np.allclose(*step, rtol=0, atol=limit, equal_nan=True)
            )
            if first := next(differ, 0):
                where = f"step {first} of {len(expected)} is the first that differs; "
                check = msgspec.structs.replace(check, reason=where + check.reason)
        yield check


def beside_simulator(
    checks: Iterable[OutputCheck], simulated: Mapping[str, Array], actual: Mapping[str, Array]
) -> Iterator[OutputCheck]:
    """The checks of a phone's outputs with how far these are from a simulator's, where both gave numbers."""
    for check in checks:
        name = check.output
        if name in simulated and name in actual:
            difference = _compared(name, simulated[name], actual[name], Tolerance(max_relative_error=0.0))
            check = msgspec.structs.replace(check, from_simulator=difference.max_rel_error)
        yield check


def _compared(name: str, reference: Array, actual: Array, tolerance: Tolerance) -> OutputCheck:
    import numpy as np

    if reference.shape != actual.shape:
        reason = f"its shape is {list(actual.shape)} instead of {list(reference.shape)}"
        return OutputCheck(output=name, passed=False, reason=reason)
    if reference.size == 0:
        return OutputCheck(
            output=name, passed=False, unknown=True, max_abs_error=0.0, max_rel_error=0.0, reason="the output is empty"
        )
    if reference.dtype.kind not in "fiub":
        same = bool(np.array_equal(reference, actual))
        return OutputCheck(output=name, passed=same, reason="" if same else "it differs")
    if known := tolerance.categories_of(name, reference):
        return _compared_categories(name, reference, actual, tolerance, known)
    # NaN and infinity must stand where the reference has them; all other numbers must be near
    expected, given = reference.astype(np.float64), actual.astype(np.float64)
    finite = np.isfinite(expected)
    if not np.array_equal(expected[~finite], given[~finite], equal_nan=True) or not np.isfinite(given[finite]).all():
        # WGSL lets shaders assume that there is no NaN: Relu makes 0 of it
        count = int((np.isnan(expected) & ~np.isnan(given)).sum())
        reason = f"numbers where the original has NaN ({count} of {expected.size} elements; GPUs may do so)"
        if not count:
            reason = "NaN or infinity where the original has numbers, or otherwise"
        unknown = tolerance.without_data and not finite.all()
        return OutputCheck(output=name, passed=False, unknown=unknown, reason=reason)
    if not finite.any():
        return OutputCheck(output=name, passed=False, unknown=True, reason="the original gives only NaN or infinity")
    # Of integers, equal ones are right however few values occur
    whole = reference.dtype.kind in "iub" and actual.dtype.kind in "iub"
    expected, given = expected[finite], given[finite]
    largest = float(np.abs(expected).max())
    error = float(np.abs(expected - given).max())
    relative = error / largest if largest else error
    share, floor = tolerance.max_relative_error, tolerance.floor_of(name)
    limit = max(share * largest, floor)
    low, high = float(expected.min()), float(expected.max())
    trivial = float(np.ptp(expected)) / 2 if expected.size > 1 else largest
    norms = float(np.linalg.norm(expected) * np.linalg.norm(given))
    shown = (whole and error == 0) or any(error <= bound < trivial for bound in (share * largest, floor))
    known_wrong = error > limit and (trivial > floor or error > share * max(largest, tolerance.spans.get(name, 1.0)))
    if shown:
        reason = ""
    elif known_wrong:
        reason = f"relative error {relative:.2g} is over {share:.2g} (absolute {error:.2g}, limit {limit:.2g})"
    elif low == high:
        reason = f"the output is {low:.3g} everywhere"
    else:
        reason = f"the output is nearly constant there ({low:.2g} to {high:.2g})"
    return OutputCheck(
        output=name,
        passed=shown,
        unknown=not shown and not known_wrong,
        max_abs_error=error,
        max_rel_error=relative,
        limit=limit,
        cosine=float(expected.ravel() @ given.ravel()) / norms if norms else None,
        reason=reason,
    )


TIED_SHARE = 0.01
"""So many elements may be ties where the scores are not known: what differs there is not shown to be wrong."""


def unequal_places(original: Array, actual: Array) -> "npt.NDArray[np.intp]":
    """The places of elements that are not the original's, in the flat output; both are of one shape."""
    import numpy as np

    return np.flatnonzero(original != actual)


def _compared_categories(
    name: str, reference: Array, actual: Array, tolerance: Tolerance, known: Categorical
) -> OutputCheck:
    """The check of class numbers and indices: how many elements differ, but for ties of the original's scores.

    Most elements may be one class, as the background of an image: the share counts of the others, so that a file which
    gives that class everywhere does not pass.
    """
    import numpy as np

    expected, given = reference.ravel(), actual.ravel()
    differ = unequal_places(expected, given)
    others = {tie.position: tie.others for tie in known.ties}
    tied = [index for index in differ.tolist() if given[index] in others.get(index, ())]
    share, elements = tolerance.max_relative_error, expected.size
    _, counts = np.unique(expected, return_counts=True)
    allowed = int(share * (elements - counts.max()))
    ties = len(tied) if share else 0  # what must be equal has no ties
    wrong = len(differ) - ties
    passed = not len(differ) or (wrong <= allowed and 2 * ties <= elements)
    # Ties alone, or what may be ties that nobody could look for
    most = allowed if known.all_ties else int(max(share, TIED_SHARE) * elements)
    unknown = not passed and share > 0 and wrong <= most
    reason = "" if passed else f"{len(differ)} of {elements} elements differ, {allowed} may"
    if ties and not passed:
        reason += f"; {ties} of them are ties: the original's two best scores are nearly equal there"
    return OutputCheck(
        output=name,
        passed=passed,
        unknown=unknown,
        max_rel_error=len(differ) / elements,
        unequal=len(differ),
        ties=ties,
        reason=reason,
    )


class SignalAndNoise(NamedTuple):
    """The power of an original's numbers, and that of what others differ by."""

    signal: float
    noise: float


def signal_and_noise(original: Array, actual: Array) -> SignalAndNoise:
    """Of two arrays of one shape, summed in 64 bits."""
    import numpy as np

    signal = original.astype(np.float64)
    return SignalAndNoise(float(np.square(signal).sum()), float(np.square(signal - actual.astype(np.float64)).sum()))


def decibel(signal: float, noise: float) -> float:
    """The ratio of two powers; infinite without noise."""
    import numpy as np

    with np.errstate(divide="ignore", invalid="ignore"):
        return float(10 * np.log10(np.float64(signal) / noise)) if noise else float("inf")


def sqnr_db(original: Array, actual: Array) -> float | msgspec.UnsetType | None:
    """Signal to noise in dB where the original is finite; None for equal numbers, unset where it cannot be computed.

    Of an output that holds values of different scale, the worst of its parts.
    """
    import numpy as np

    from pipeline.check.scales import parts_of

    if original.shape != actual.shape or original.dtype.kind not in "fiub" or not original.size:
        return msgspec.UNSET
    finite = np.isfinite(original)
    given = actual[finite].astype(np.float64)
    if not given.size or not np.isfinite(given).all():
        return msgspec.UNSET
    power, noise = signal_and_noise(original[finite], given)
    if not noise:
        return None
    shares = [
        float(part.powers.sum() / part.errors.sum())
        for part in parts_of(original, actual)
        if not part.quiet and part.errors.any()
    ]
    return decibel(min([power / noise, *shares]), 1.0) if power else msgspec.UNSET


def worst_sqnr(checks: Iterable[OutputCheck]) -> float | msgspec.UnsetType | None:
    """The least signal to noise of all; None where all outputs are equal, unset where none has any."""
    ratios = [check.sqnr_db for check in checks if check.sqnr_db is not msgspec.UNSET]
    numbers = [number for number in ratios if isinstance(number, float)]
    return min(numbers, default=None) if ratios else msgspec.UNSET


def remedy_of(check: OutputCheck) -> str:
    """What to do about a check that did not pass: test data first, tolerances last."""
    if check.remedy:
        return check.remedy
    if check.unknown and not check.without_data:
        return "give test data on which this output varies"
    if check.unknown:
        return "give test data (`test_data` of the model in the config)"
    first = "give test data (`test_data` of the model in the config): made-up inputs may mean nothing to the model; "
    return (
        f"{first if check.without_data else ''}leave this variant or run out, or, if your app can tolerate the "
        "difference, raise max_relative_error in the config's check table"
    )


def top1_check(output: str, reference: Array, actual: Array, tolerance: Tolerance) -> OutputCheck:
    """Agreement on a labelled set: the share of samples (first axis) whose largest element is the reference's."""
    if reference.shape != actual.shape:
        return OutputCheck(output=output, passed=False, reason="the labelled set gave outputs of another shape")
    answers, expected = (array.reshape(len(array), -1).argmax(axis=1) for array in (actual, reference))
    share = float((answers == expected).mean())
    least = tolerance.min_top1_agreement
    passed = least is None or share >= least
    reason = "" if passed else f"top-1 agreement {share:.1%} is under {least:.1%}"
    return OutputCheck(output=output, passed=passed, top1_agreement=share, reason=reason)
