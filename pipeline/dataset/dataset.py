"""The value that says what a model is run on, and its samples, one at a time."""

import difflib
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pipeline.config import ModelConfig
from pipeline.config.tables import InputValue, PartConfig, PreprocessConfig, Range, is_function
from pipeline.core.errors import ConfigError, Finding, Severity
from pipeline.dataset.files import ReadRequest, SampleFiles, find_samples, read_labels, safe
from pipeline.dataset.values import check_padding, function_samples, plain_dtype, value_array
from pipeline.model.signature import Array, TensorInfo, open_axes, own_inputs, resolve_dimensions

if TYPE_CHECKING:
    from onnx import ModelProto


class Part(StrEnum):
    """Which samples of test data: all, or those for one purpose, chosen by content."""

    ALL = "all"
    CALIBRATION = "calibration"
    EVALUATION = "evaluation"


CALIBRATION_SHARE = 4
"""One sample in so many is for calibration: it needs some hundred, accuracy as many as there are."""


class Dataset(msgspec.Struct, frozen=True, kw_only=True):
    """What a model is run on: plain data, so that it travels to worker processes and into results.

    `test_data` is a file, a folder or `module:function`; "" for none. `inputs` are declared values, which win over
    test data. What neither gives is random from `seed`, with open axes as in `sizes` (by `input[axis]` or symbolic
    name, else 1); with test data nothing is random that is not declared so.
    """

    test_data: str = ""
    inputs: dict[str, InputValue] = {}
    preprocess: PreprocessConfig | None = None
    sizes: dict[str, int] = {}
    seed: int = 0
    padding: dict[str, int | float] = {}
    """What apps fill up inputs with, which the inputs must be able to hold."""
    labels: str = ""
    """CSV file of labels; "" where samples come with their own, or have none."""
    part: Part = Part.ALL
    limit: int = 0
    """At most so many samples of the part; 0: all."""
    least: int = 0
    """With fewer samples they are not divided: every part is all of them."""

    def __post_init__(self) -> None:
        """Refuse numbers that JSON has no text for: workers would get none, and make random ones."""
        for name, value in self.inputs.items():
            numbers = (value.low, value.high) if isinstance(value, Range) else value
            for number in numbers if isinstance(numbers, tuple) else (numbers,):
                if isinstance(number, float) and not math.isfinite(number):
                    raise ConfigError(
                        f"no value for the input {name!r}", where=f"inputs.{name}", why=f"{number} is no finite number",
                        remedy="give a finite number, such as -1e9 in a mask, or test data",
                    )  # fmt: skip

    @property
    def given(self) -> bool:
        """Whether anything but random numbers was asked for."""
        return bool(self.test_data or self.inputs)

    @property
    def file_bytes(self) -> int:
        """Bytes of a file that may be one sample, or all in one array; of folders one sample is in memory at a time."""
        path = Path(self.test_data)
        return path.stat().st_size if self.test_data and path.is_file() else 0

    def is_random(self, takes: Sequence[TensorInfo]) -> bool:
        """Whether any input of a model gets random numbers, in a declared range or not."""
        return not self.test_data and any(
            info.name not in self.inputs or isinstance(self.inputs[info.name], Range) for info in takes
        )

    @property
    def source(self) -> str:
        """Where the samples come from, for reports."""
        declared = f"declared values of {', '.join(self.inputs)}" if self.inputs else ""
        origin = self.test_data or f"random inputs of seed {self.seed}"
        origin += "" if self.part is Part.ALL else f", {self.part} part"
        return f"{origin}, {declared}" if declared else origin


def dataset_of(table: ModelConfig) -> Dataset:
    """What a table of a config says that its models are run on."""
    sizes = {name: max(sizes) for name, sizes in table.lists.items()}
    return Dataset(
        test_data=table.test_data or "", inputs=table.inputs, preprocess=table.preprocess, sizes=sizes,
        padding=table.padding,
    )  # fmt: skip


def part_of(table: ModelConfig, part: Part) -> Dataset:
    """The calibration or evaluation data of a model, as its table says or by default (docs/guide.md).

    Two parts that come from the same test data have no sample in common; of others `overlap` reports it.
    """
    parts = {Part.CALIBRATION: table.calibration, Part.EVALUATION: table.evaluation}
    config = parts[part] or PartConfig()
    labelled_set = (table.labels or "").lower().endswith(".npz")
    if labelled_set and part is Part.EVALUATION and not config.test_data:
        return Dataset(test_data=table.labels or "", inputs=table.inputs, limit=config.samples or 0)
    sources = [half.test_data if half and half.test_data else table.test_data for half in parts.values()]
    shared = sources[0] == sources[1] and not labelled_set
    labels = config.labels or (table.labels if not config.test_data and not labelled_set else None)
    return Dataset(
        test_data=config.test_data or table.test_data or "",
        inputs=table.inputs,
        preprocess=config.preprocess or preprocess_of(table),
        labels=labels or "",
        part=part if shared and sources[0] else Part.ALL,
        limit=config.samples or 0,
    )


def labelled_data(table: ModelConfig) -> Dataset | None:
    """The evaluation data of a model whose table names labels, or evaluation data of their own; None for others."""
    return part_of(table, Part.EVALUATION) if table.labels or table.evaluation else None


def preprocess_of(table: ModelConfig) -> PreprocessConfig | None:
    """The preprocessing that the app must repeat, wherever in a model's table it is declared."""
    parts = (part.preprocess for part in (table.evaluation, table.calibration) if part)
    return table.preprocess or next((preprocess for preprocess in parts if preprocess), None)


def overlap(calibration: Dataset, evaluation: Dataset, takes: Sequence[TensorInfo]) -> Finding | None:
    """A warning where samples stand in both: accuracy on data that ranges were taken from is too good.

    Reads both, and keeps the digests of one; raises as `samples` does.
    """
    names = {sample.digest: sample.name for sample in samples(calibration, takes)}
    both = [(sample.name, names[sample.digest]) for sample in samples(evaluation, takes) if sample.digest in names]
    if not both:
        return None
    if calibration.least and len(both) < calibration.least and calibration.test_data == evaluation.test_data:
        return Finding(
            severity=Severity.WARNING,
            what=f"the ranges come from all samples, the {len(both)} that accuracy is measured on among them",
            where=evaluation.source,
            why=f"there are fewer than {calibration.least}, too few to divide",
            remedy=f"give {calibration.least} or more, or max_drop or labels: then they are kept apart",
        )
    return Finding(
        severity=Severity.WARNING,
        what=f"{len(both)} samples are in the calibration data and in the evaluation data",
        where=evaluation.source,
        why=f"{both[0][0]} has the content of {both[0][1]}",
        remedy="take them out of one of the two: accuracy on calibration data is too good",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One set of inputs in the model's order; `expected` are outputs that came with it, by the names in the files.

    `label` is a text, a number or an array; None for none.
    """

    name: str
    inputs: dict[str, Array]
    expected: list[tuple[str, Array]] = field(default_factory=list)
    label: Any = None

    @property
    def digest(self) -> str:
        """sha256 of the inputs: names, types, shapes and elements."""
        import numpy as np

        total = hashlib.sha256()
        for name, array in sorted(self.inputs.items()):
            total.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
            total.update(np.ascontiguousarray(array).data)
        return total.hexdigest()

    @property
    def part(self) -> Part:
        """The part that the sample belongs to by its content alone, whatever else there is."""
        return Part.EVALUATION if int(self.digest[:8], 16) % CALIBRATION_SHARE else Part.CALIBRATION


def samples(data: Dataset, takes: Sequence[TensorInfo]) -> Iterator[Sample]:
    """Samples for a model with these inputs; only one is in memory at a time.

    Test data give as many as they have in the part that is asked for, up to the limit; anything else gives one.
    ConfigError for the first wrong sample, with its file and the reason: also for one without label where there are
    labels, and, after the last, for a label without sample. MissingError when images need Pillow.
    """
    _check_names(data, takes)
    if data.labels and not data.test_data:
        raise ConfigError(
            "labels without samples", where=data.labels, why="there is no test data that they could be of",
            remedy="give `test_data` (--test-data), or one .npz with `inputs` and `labels` as `labels` alone",
        )  # fmt: skip
    if not data.test_data:
        name = data.source
        yield Sample(name=name, inputs=_complete(data, takes, {}, 0, name))
        return
    count = in_part = 0
    whole = data.part is Part.ALL or sum(1 for _ in islice(_every(data, takes), data.least)) < data.least
    for sample in _every(data, takes):
        count += 1
        if whole or data.part is sample.part:
            in_part += 1
            yield sample
            if in_part == data.limit:
                return
    if not in_part:
        raise _none(data, count)


def _every(data: Dataset, takes: Sequence[TensorInfo]) -> Iterator[Sample]:
    """All samples of test data, with their labels."""
    labels = read_labels(Path(data.labels)) if data.labels else None
    for number, files in enumerate(_found(data, tuple(takes))):
        given = _matched(files, [info for info in takes if info.name not in data.inputs], takes)
        label = labels.label_of(files.name, _label_names(data, files.name, number)) if labels else files.label
        inputs = _complete(data, takes, given, number, files.name)
        yield Sample(name=files.name, inputs=inputs, expected=files.expected, label=label)
    if labels:
        labels.check_all_used()


def _label_names(data: Dataset, sample: str, number: int) -> tuple[str, ...]:
    """What a line of labels may call a sample: its path in the folder, its name with and without ending; what is no
    file has a number.
    """
    path, root = Path(sample), Path(data.test_data)
    if not path.exists():
        return (str(number),)
    inside = path.relative_to(root).as_posix() if path != root and path.is_relative_to(root) else path.name
    return tuple(dict.fromkeys((inside, path.name, path.stem)))


def _none(data: Dataset, count: int) -> ConfigError:
    if not count:
        return ConfigError("the test data has no samples", where=data.test_data, remedy="check `test_data`")
    return ConfigError(
        f"the {data.part} part of the test data has no samples", where=data.test_data,
        why=f"it has {count} sample{'s' * (count > 1)}, which are divided by content, "
        f"one in {CALIBRATION_SHARE} for calibration",
        remedy="give more samples, or files of its own: `calibration` and `evaluation` of the model in the config",
    )  # fmt: skip


def first_sample(data: Dataset, takes: Sequence[TensorInfo]) -> Sample:
    """The first sample; raises as `samples` does."""
    return next(samples(data, takes))


def check_data(data: Dataset, takes: Sequence[TensorInfo]) -> int:
    """How many samples there are; raises as `samples` does for the first that is wrong."""
    return sum(1 for _ in samples(data, takes))


def sizes_in(data: Dataset, takes: Sequence[TensorInfo]) -> dict[str, int]:
    """Sizes that the first sample of test data gives to open axes, by `input[axis]`; none without test data.

    Raises as `samples` does.
    """
    if not data.test_data:
        return {}
    arrays = first_sample(data, takes).inputs
    return {axis.key: int(arrays[axis.input].shape[axis.axis]) for axis in open_axes(takes)}


def given_sizes(data: Dataset, model: "ModelProto", named: Mapping[str, int], where: str) -> dict[str, int]:
    """Sizes for open dimensions by `input[axis]`: those that are named before those of the test data.

    ConfigError for a name that the model, `where`, does not have; else raises as `samples` does.
    """
    takes = own_inputs(model)
    return sizes_in(data, takes) | resolve_dimensions(takes, named, where)


def _found(data: Dataset, takes: tuple[TensorInfo, ...]) -> Iterator[SampleFiles]:
    if is_function(data.test_data):
        for name, arrays, label in function_samples(data.test_data):
            yield SampleFiles(name=name, inputs=list(arrays.items()), expected=[], label=label)
        return
    without = tuple(info for info in takes if info.name not in data.inputs)
    yield from find_samples(Path(data.test_data), ReadRequest(takes=takes, open=without, preprocess=data.preprocess))


def _check_names(data: Dataset, takes: Sequence[TensorInfo]) -> None:
    names = [info.name for info in takes]
    for key, name in (*(("inputs", name) for name in data.inputs), *(("padding", name) for name in data.padding)):
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            remedy = f"did you mean {close[0]!r}?" if close else f"inputs: {', '.join(names) or 'none'}"
            raise ConfigError(f"the model has no input {name!r}", where=f"{key}.{name}", remedy=remedy)
    for name, number in data.padding.items():
        check_padding(takes[names.index(name)], number)


def _matched(files: SampleFiles, inputs: Sequence[TensorInfo], takes: Sequence[TensorInfo]) -> dict[str, Array]:
    """Arrays of a sample by the model's names: by name, by the name's letters that files can have, else by number."""
    names = {safe(info.name): info.name for info in takes} | {info.name: info.name for info in takes}
    if len({name for name, _ in files.inputs}) == len(files.inputs) and all(n in names for n, _ in files.inputs):
        return {names[name]: array for name, array in files.inputs}
    if files.by_number:
        for infos in (takes, inputs):
            if len(infos) == len(files.inputs):
                return {info.name: array for info, (_, array) in zip(infos, files.inputs, strict=True)}
        raise ConfigError(
            f"the test data has {len(files.inputs)} inputs, the model {len(takes)}", where=files.name,
            remedy="give input_0.pb … for every input of the model, and for no initializer",
        )  # fmt: skip
    extra = [name for name, _ in files.inputs if name not in names]
    raise ConfigError(
        f"the test data has {', '.join(map(repr, extra[:5]))}, which the model does not take", where=files.name,
        remedy=f"name arrays after the model's inputs: {', '.join(info.name for info in takes)}",
    )  # fmt: skip


def _complete(
    data: Dataset, takes: Sequence[TensorInfo], given: dict[str, Array], number: int, where: str
) -> dict[str, Array]:
    """Every input of the model: declared values before given arrays before random numbers."""
    import numpy as np

    generator = np.random.Generator(np.random.PCG64(data.seed + number))
    arrays = {}
    for info in takes:
        if info.name in data.inputs or (not data.test_data and info.name not in given):
            arrays[info.name] = value_array(info, data.inputs.get(info.name), data.sizes, generator)
        elif info.name in given:
            arrays[info.name] = _fitting(info, given[info.name], where)
        else:
            raise ConfigError(
                f"the test data lacks the input {info.name!r}", where=where,
                why=f"it has {', '.join(given) or 'none'}",
                remedy=f"add it, or give it a value: `inputs.{info.name} = …` in the config, --input {info.name}=…",
            )  # fmt: skip
    return arrays


def _fitting(info: TensorInfo, array: Array, where: str) -> Array:
    """The array, when it has the input's type and sizes; strings may have any length."""
    import numpy as np

    sizes_fit = info.shape is None or (
        len(array.shape) == len(info.shape)
        and all(not isinstance(want, int) or want == have for want, have in zip(info.shape, array.shape, strict=True))
    )
    if not sizes_fit or np.dtype(array.dtype.type) != plain_dtype(info):
        raise ConfigError(
            f"the test data does not fit the input {info.name!r}", where=where,
            why=f"it is {array.dtype} {list(array.shape)}, the model takes {info}",
            remedy="make the test data again for this model, or change `dimensions`",
        )  # fmt: skip
    return array
