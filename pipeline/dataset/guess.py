"""Finds sizes for a model's dynamic dimensions: from test data, from what the graph requires, else the usual, tried."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from device_runner.errors import RunnerError
from device_runner.spec import TYPES_BY_CODE, TensorFile
from pipeline.config.tables import InputValue
from pipeline.core.errors import ConfigError, ModelError, PipelineError
from pipeline.dataset import Dataset, TensorInfo, check_data, first_sample, samples, sizes_in
from pipeline.dataset.candidates import (
    ONE,
    assignments,
    check_operators,
    guess_values,
    open_session,
    run_session,
    units,
    with_sums,
)
from pipeline.dataset.files import write_tensor
from pipeline.model.onnx_model import LoadedModel, PreparedModel, load_model, prepare_model
from pipeline.model.ort_format import TensorType, read_ort
from pipeline.model.signature import OpenAxis, names_of, open_axes, own_inputs, resolve_dimensions
from pipeline.model.sources import SourceModel


def make_feeds(
    source: SourceModel, dimensions: dict[str, int], data: Dataset, work_folder: str
) -> tuple[TensorFile, ...]:
    """The inputs of one model as raw files in `work_folder`, of the sizes and data that are given.

    Open dimensions of .onnx files that nobody sizes get likely sizes.

    ConfigError for names, sizes and data that do not fit, and for open dimensions of .ort files without a size.
    """
    path, folder = Path(source.path), Path(work_folder)
    if path.suffix.lower() == ".ort":
        takes = ort_inputs(path)
        sizes = resolve_dimensions(takes, dimensions, path.name)
        _refuse_open(takes, sizes, data, str(path))
        data = msgspec.structs.replace(data, sizes=sizes)
    else:
        loaded = load_model(source, folder)
        takes = own_inputs(loaded.proto)
        sizes = resolve_dimensions(takes, dimensions, path.name)
        data = complete_data(loaded, dimensions, data)
        data = msgspec.structs.replace(data, sizes=data.sizes | sizes)
    arrays = first_sample(data, takes).inputs
    return tuple(
        write_tensor(folder / f"input_{number}.bin", name, array) for number, (name, array) in enumerate(arrays.items())
    )


def ort_inputs(path: Path) -> tuple[TensorInfo, ...]:
    """The inputs of an ORT format file that are no initializers."""
    graph = read_ort(path).graph
    inputs = []
    for name in graph.inputs:
        kind = graph.node_args.get(name)
        if name not in graph.initializers:
            plain = kind if isinstance(kind, TensorType) else None
            inputs.append(
                TensorInfo(
                    name=name,
                    dtype=TYPES_BY_CODE.get(plain.elem_type) if plain else None,
                    shape=plain.shape if plain else None,
                )
            )
    return tuple(inputs)


def _refuse_open(takes: tuple[TensorInfo, ...], sizes: dict[str, int], data: Dataset, where: str) -> None:
    missing = [axis for axis in open_axes(takes) if axis.key not in sizes and axis.input not in data.inputs]
    if missing and not data.test_data:
        names = list(names_of(missing))
        raise ConfigError(
            f"no size is given for {', '.join(names)}", where=where,
            remedy=f"give --dimension {names[0]}=N …, or --test-data",
        )  # fmt: skip


PATIENCE_SECONDS = 40.0
DATA = "from the test data"
GIVEN = "as given"
MOST_TRIALS = 60


class Guess(msgspec.Struct, frozen=True, kw_only=True):
    """What a model takes, and what to run it on.

    `dimensions` has sizes by the shortest names, `values` numbers for inputs; `reasons` says by the same names why.
    `missing` are dimensions for which no size was found, with `why` the model refused the last one that was tried.
    `fixable` is False where the model runs with these sizes only as long as its dimensions stay open.
    """

    inputs: tuple[TensorInfo, ...]
    dimensions: dict[str, int] = {}
    values: dict[str, InputValue] = {}
    reasons: dict[str, str] = {}
    missing: tuple[str, ...] = ()
    why: str = ""
    fixable: bool = True

    @property
    def to_fix(self) -> dict[str, int]:
        """The sizes to convert the model with: all, or those given alone where it is not fixable."""
        return {name: size for name, size in self.dimensions.items() if self.fixable or self.reasons[name] == GIVEN}


def guess_inputs(source: SourceModel, dimensions: dict[str, int], data: Dataset, work_folder: str) -> Guess:
    """Sizes and values for a model, tried by running it on the CPU without optimizations.

    Sizes that were given are among those of the answer. With test data, the others are those that all its samples
    have; what differs between samples stays open.

    ModelError when the model cannot be used, ConfigError for data or names that do not fit it.
    """
    loaded = load_model(source, Path(work_folder))
    prepared = prepare_model(loaded, dimensions)
    check_operators(prepared)
    takes = own_inputs(prepared.proto)
    guess = _guessed(loaded, prepared, takes, dimensions, data)
    return msgspec.structs.replace(
        guess,
        inputs=own_inputs(prepare_model(loaded, {}).proto),
        dimensions=dimensions | guess.dimensions,
        reasons=dict.fromkeys(dimensions, GIVEN) | guess.reasons,
    )


def _guessed(
    loaded: LoadedModel, prepared: PreparedModel, takes: tuple[TensorInfo, ...], given: dict[str, int], data: Dataset
) -> Guess:
    """Sizes and values for what is not given."""
    axes = open_axes(takes)
    if data.test_data:
        return _from_data(takes, axes, data)
    guessed = {k: v for k, v in guess_values(prepared.proto, takes).items() if k not in data.inputs}
    values = {name: value for name, (value, _) in guessed.items()}
    reasons = {name: reason for name, (_, reason) in guessed.items()}
    data = msgspec.structs.replace(data, inputs=values | data.inputs)
    guess = Guess(inputs=takes, values=values, reasons=reasons)
    if not axes:
        return guess
    sized, why = _first_that_runs(loaded, given, takes, axes, data)
    if not sized:
        names = tuple(n for group, choices in units(prepared.proto, takes, axes) for n in group if choices[0][1] != ONE)
        return msgspec.structs.replace(guess, missing=names or tuple(names_of(axes)), why=why)
    sizes = {name: size for name, (size, _) in sized.items()}
    return msgspec.structs.replace(
        guess,
        dimensions=sizes,
        reasons=reasons | {name: reason for name, (_, reason) in sized.items()},
        fixable=_runs_fixed(loaded, given | sizes, data),
    )


def _from_data(takes: tuple[TensorInfo, ...], axes: Sequence[OpenAxis], data: Dataset) -> Guess:
    named: dict[str, set[int]] = {}
    for sample in samples(data, takes):
        for name, group in names_of(axes).items():
            named.setdefault(name, set()).add(int(sample.inputs[group[0].input].shape[group[0].axis]))
    same = {name: sizes.pop() for name, sizes in named.items() if len(sizes) == 1}
    return Guess(inputs=takes, dimensions=same, reasons=dict.fromkeys(same, DATA))


def _first_that_runs(
    loaded: LoadedModel, given: Mapping[str, int], takes: Sequence[TensorInfo], axes: Sequence[OpenAxis], data: Dataset
) -> tuple[dict[str, tuple[int, str]], str]:
    """The likeliest sizes that the model runs with, by name with the reason; or none, and why not."""
    prepared = prepare_model(loaded, given)
    session = open_session(prepared, brief=True)
    deadline = time.monotonic() + PATIENCE_SECONDS
    why = ""
    for number, sizes in enumerate(assignments(units(prepared.proto, takes, axes))):
        if number >= MOST_TRIALS or time.monotonic() > deadline:
            break
        whole = with_sums({name: size for name, (size, _) in sizes.items()}, list(names_of(axes)))
        why = _refusal(session, takes, resolve_dimensions(takes, whole, loaded.source.name), data)
        if not why:
            return {name: sizes.get(name, (size, "a sum")) for name, size in whole.items()}, ""
    return {}, why


def _refusal(session: Any, takes: Sequence[TensorInfo], sizes: Mapping[str, int], data: Dataset) -> str:
    """Why the model does not run with inputs of these sizes; "" when it does and gives numbers."""
    try:
        feeds = first_sample(msgspec.structs.replace(data, sizes=dict(sizes)), takes).inputs
        outputs = run_session(session, feeds, "")
    except (ModelError, ConfigError) as error:
        return error.why or error.what
    empty = [name for name, array in outputs.items() if array.size == 0]
    return f"the output {empty[0]} is empty" if outputs and len(empty) == len(outputs) else ""


def _runs_fixed(loaded: LoadedModel, sizes: Mapping[str, int], data: Dataset) -> bool:
    """Whether the model still runs, and can be optimized, when its dimensions are fixed to these sizes."""
    prepared = prepare_model(loaded, sizes)
    try:
        open_session(prepared, optimized=True)
        return not _refusal(open_session(prepared, brief=True), own_inputs(prepared.proto), {}, data)
    except ModelError:
        return False


def complete_data(loaded: LoadedModel, dimensions: Mapping[str, int], data: Dataset) -> Dataset:
    """The data with values and sizes for what would be random or 1: what `guess_inputs` finds.

    ConfigError, with the line to write, when no size is found for an open dimension.
    """
    if data.test_data:
        return data
    prepared = prepare_model(loaded, dimensions)
    takes = own_inputs(prepared.proto)
    values = {name: value for name, (value, _) in guess_values(prepared.proto, takes).items()}
    whole = msgspec.structs.replace(data, inputs=values | data.inputs)
    axes = [axis for axis in open_axes(takes) if not isinstance(data.inputs.get(axis.input), tuple)]
    known = {name: size for name, size in data.sizes.items() if any(name in (a.key, a.symbol) for a in axes)}
    known = resolve_dimensions(takes, known, loaded.source.name)
    if all(axis.key in known for axis in axes):
        return msgspec.structs.replace(whole, sizes=data.sizes | known)
    sized, why = _first_that_runs(loaded, dimensions, takes, axes, whole)
    if not sized:
        error = no_size(loaded.source.name, list(names_of(axes)), why)
        raise blame_dimensions(loaded, dimensions, data, error) from error
    sizes = resolve_dimensions(takes, {name: size for name, (size, _) in sized.items()}, loaded.source.name)
    return msgspec.structs.replace(whole, sizes=sizes | data.sizes | known)


def check_inputs(source: SourceModel, dimensions: dict[str, int], data: Dataset, work_folder: str) -> int:
    """How many samples of a user's data fit a model: every one is read, and fixed dimensions are tried.

    ConfigError for the first that does not; ModelError for a model that cannot be used at all.
    """
    loaded = load_model(source, Path(work_folder))
    prepared = prepare_model(loaded, dimensions)
    takes = own_inputs(prepared.proto)
    resolve_dimensions(takes, data.sizes, loaded.source.name)
    count = check_data(data, takes) if data.given else 0
    if dimensions:
        whole = complete_data(loaded, dimensions, data)
        try:
            run_session(open_session(prepared, brief=True), first_sample(whole, takes).inputs, loaded.source.name)
        except ModelError as error:
            raise blame_dimensions(loaded, dimensions, data, error) from error
    return count


def blame_dimensions(
    loaded: LoadedModel, dimensions: Mapping[str, int], data: Dataset, error: PipelineError
) -> PipelineError:
    """The error of a model with fixed dimensions: another one where these are the cause, after trying without them."""
    if not dimensions:
        return error
    try:
        sizes = _sizes_without(loaded, data)
    except (ModelError, ConfigError):
        return error
    if not sizes:
        return error
    return ConfigError(
        "the model does not run with the sizes given for its dimensions", where=loaded.source.name,
        why=f"with {_text(dimensions)}: {error.why or error.what}; left open it runs, as with {_text(sizes)}",
        remedy="change `dimensions` (--dimension) to sizes that your app uses, or leave it out",
    )  # fmt: skip


def blame_optimization(loaded: LoadedModel, dimensions: Mapping[str, int], error: RunnerError) -> RunnerError:
    """The error of the optimizer on a model with fixed dimensions: another where it succeeds while they are open."""
    if not dimensions:
        return error
    try:
        open_session(prepare_model(loaded, {}), optimized=True)
    except ModelError:
        return error
    return ConfigError(
        "ONNX Runtime cannot optimize the model with the sizes given for its dimensions", where=loaded.source.name,
        why=f"with {_text(dimensions)}: {error.why or error.what}; with its dimensions open it can",
        remedy="leave `dimensions` (--dimension) out for this model, or change them",
    )  # fmt: skip


def _sizes_without(loaded: LoadedModel, data: Dataset) -> dict[str, int]:
    """Sizes with which the model runs while its dimensions stay open: the test data's own, else the likeliest."""
    prepared = prepare_model(loaded, {})
    takes = own_inputs(prepared.proto)
    if data.test_data:
        run_session(open_session(prepared, brief=True), first_sample(data, takes).inputs, loaded.source.name)
        return sizes_in(data, takes)
    values = {name: value for name, (value, _) in guess_values(prepared.proto, takes).items()}
    whole = msgspec.structs.replace(data, inputs=values | data.inputs)
    sized, _ = _first_that_runs(loaded, {}, takes, open_axes(takes), whole)
    return {name: size for name, (size, _) in sized.items()}


def _text(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {size}" for name, size in sizes.items())


def no_size(where: str, names: Sequence[str], why: str) -> ConfigError:
    """The error for a model whose open dimensions have no size, with the line that gives them."""
    line = ", ".join(f"{msgspec.json.encode(name).decode()} = …" for name in names)
    return ConfigError(
        f"the sizes of {', '.join(names)} are not known", where=where,
        why=f"the model does not run with any usual size: {why}",
        remedy=f"write `dimensions = {{ {line} }}` under [[models]], or give `test_data` (--dimension, --test-data)",
    )  # fmt: skip
