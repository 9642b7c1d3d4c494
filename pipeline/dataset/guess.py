"""Sizes for a model's dynamic dimensions: from test data, from what the graph requires, else the usual, tried."""

import math
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from device_runner import spec as run_spec
from device_runner.errors import RunnerError
from device_runner.spec import ElementType, TensorFile
from pipeline.config import tables as config_tables
from pipeline.core import ort_session
from pipeline.core.errors import ConfigError, ModelError, PipelineError
from pipeline.dataset import Dataset, TensorInfo, check_data, first_sample, samples, sizes_in, usual_sizes
from pipeline.dataset.files import write_tensor
from pipeline.dataset.lengths import full_lengths
from pipeline.dataset.states import caches_of, states_of
from pipeline.model import edit as onnx_edit
from pipeline.model import guards, onnx_model, ort_format, signature
from pipeline.model import reads as model_reads
from pipeline.model import session as model_session
from pipeline.model.sources import SourceModel

if TYPE_CHECKING:
    import onnx


RATE = re.compile(r"^sr$|(?<![a-z])(?<!down_)(?<!up_)sampl\w*rate", re.IGNORECASE)
"""Names of samples a second, which no factor of a resampling is."""
MASK = re.compile(r"mask", re.IGNORECASE)

PADDING = re.compile(r"pad", re.IGNORECASE)
"""Names of masks of truth values that say what is left out, as PyTorch's key_padding_mask does."""


def guess_values(
    model: "onnx.ModelProto", takes: Sequence[TensorInfo], declared: Sequence[TensorInfo] | None = None
) -> dict[str, tuple[config_tables.InputValue, str]]:
    """Values for inputs that random numbers would not suit, each with the reason.

    `declared` are the inputs as the file has them, where `takes` have sizes that a config fixed: the column of a batch
    of one is no single number of the model's.
    """
    reads = model_reads.Reads(model)
    states = {name: output for output, name in states_of(model, takes).items()}
    guesses: dict[str, tuple[config_tables.InputValue, str]] = {}
    shapes = {info.name: info.shape for info in declared or takes}
    for info in takes:
        kind = info.dtype.value if info.dtype else ""
        shape = shapes.get(info.name, info.shape)
        single = shape is not None and all(size == 1 for size in shape)
        if kind == "bool" and MASK.search(info.name):
            leaves_out = bool(PADDING.search(info.name))
            guesses[info.name] = int(not leaves_out), "a mask that leaves everything in"
        elif kind.startswith(("int", "uint")):
            if MASK.search(info.name):
                guesses[info.name] = 1, "a mask that leaves everything in"
            elif single and (number := _compared(reads, info.name)) is not None:
                guesses[info.name] = number, "the model compares it with this number"
            elif shape is not None and len(shape) < 2 and RATE.search(info.name):
                guesses[info.name] = 16000, "samples a second, as usual for speech"
            elif rows := _table_rows(reads, info.name):
                guesses[info.name] = config_tables.Range(low=0, high=rows), "rows of its embedding table"
        elif info.name in states:
            guesses[info.name] = 0.0, f"a state begins with zeros; {states[info.name]} is its next value"
        elif kind.startswith("float") and single and len(shape or ()) < 2:  # [1, 1] is a row of one column
            guesses[info.name] = 1.0, "a single number"
    return guesses


def _with_values(
    model: "onnx.ModelProto", takes: Sequence[TensorInfo], data: Dataset, declared: Sequence[TensorInfo] | None = None
) -> Dataset:
    """The data with guessed values for inputs that have none."""
    values = {name: value for name, (value, _) in guess_values(model, takes, declared).items()}
    return msgspec.structs.replace(data, inputs=values | data.inputs)


KNOWN_TEXTS = frozenset({"keys_strings", "cats_strings", "pool_strings", "classlabels_strings"})
"""Attributes of ai.onnx's and ai.onnx.ml's operators with the texts that they tell apart."""
SHOWN_TEXTS = 3


def texts_without_value(
    model: "onnx.ModelProto", takes: Sequence[TensorInfo], data: Dataset
) -> dict[str, tuple[str, ...]]:
    """Inputs of strings that have no value, each with some texts that its readers know; none is right for all."""
    reads = model_reads.Reads(model)
    return {
        info.name: tuple(
            text.decode("utf-8", "replace")
            for node, _ in reads.of(info.name)
            for attribute in node.attribute
            if attribute.name in KNOWN_TEXTS
            for text in attribute.strings
        )[:SHOWN_TEXTS]
        for info in takes
        if info.dtype is ElementType.STRING and info.name not in data.inputs and not data.test_data
    }


def _table_rows(reads: model_reads.Reads, name: str) -> int | None:
    """Rows of the smallest table that an input looks up: a constant, or behind DequantizeLinear, Cast or Identity."""
    rows = []
    for node, slot in reads.of(name):
        if node.op_type != "Gather" or slot != 1 or any(a.name == "axis" and a.i for a in node.attribute):
            continue
        table = node.input[0]
        for _ in range(3):
            makers = [n for readers in reads.readers.values() for n, _ in readers if table in n.output]
            if table in reads.constants or not makers:
                break
            if makers[0].op_type not in ("DequantizeLinear", "Cast", "Identity"):
                break
            table = makers[0].input[0]
        if table in reads.constants and len(reads.constants[table].dims) >= 2:
            rows.append(int(reads.constants[table].dims[0]))
    return min(rows, default=None)


def _compared(reads: model_reads.Reads, name: str) -> int | None:
    """The integer that a single number is compared with."""
    from onnx import numpy_helper

    for node, slot in reads.of(name):
        other = reads.constants.get(node.input[1 - slot]) if node.op_type == "Equal" and len(node.input) == 2 else None
        if other is not None and math.prod(other.dims) == 1 and other.data_type in (6, 7):
            return int(numpy_helper.to_array(other).reshape(-1)[0])
    return None


def make_feeds(
    source: SourceModel, dimensions: dict[str, int], data: Dataset, work_folder: str
) -> tuple[TensorFile, ...]:
    """The inputs of one model as raw files in `work_folder`, of the sizes and data that are given.

    Open dimensions that nobody sizes get likely sizes.

    ConfigError for names, sizes and data that do not fit, and for open dimensions that run with no likely size.
    """
    path, folder = Path(source.path), Path(work_folder)
    if path.suffix.lower() == ".ort":
        takes = inputs_of_file(path)
        sizes = signature.resolve_dimensions(takes, dimensions, path.name)
        data = _complete_ort_data(path, takes, sizes, data)
    else:
        loaded = onnx_model.load_model(source, folder)
        takes = signature.own_inputs(loaded.proto)
        sizes = signature.resolve_dimensions(takes, dimensions, path.name)
        data = complete_data(loaded, dimensions, data)
        data = msgspec.structs.replace(data, sizes=data.sizes | sizes)
    arrays = first_sample(data, takes).inputs
    return tuple(
        write_tensor(folder / f"input_{number}.bin", name, array) for number, (name, array) in enumerate(arrays.items())
    )


def _complete_ort_data(path: Path, takes: Sequence[TensorInfo], sizes: Mapping[str, int], data: Dataset) -> Dataset:
    """As `complete_data`, of an ORT format file, with `sizes` by `input[axis]`: names and shapes alone say what is
    likely.
    """
    from onnx import ModelProto

    data = msgspec.structs.replace(data, sizes={**data.sizes, **sizes})
    unsized = (axis for axis in signature.open_axes(takes) if axis.key not in sizes)
    axes = [axis for axis in unsized if not isinstance(data.inputs.get(axis.input), tuple)]
    if data.test_data or not axes:
        return data
    session = model_session.open_session(path, model_session.ASKED, path.name)
    whole = _with_values(ModelProto(), takes, data)
    sized, why = _first_that_runs(session, ModelProto(), takes, axes, whole, path.name)
    if not sized:
        raise no_size(path.name, list(signature.names_of(axes)), why)
    guessed = signature.resolve_dimensions(takes, {name: size for name, (size, _) in sized.items()}, path.name)
    return msgspec.structs.replace(whole, sizes=guessed | whole.sizes)


def inputs_of_file(path: Path) -> tuple[TensorInfo, ...]:
    """The inputs of a file in either format that are no initializers; ModelError when it cannot be read."""
    graph = ort_format.read_artifact(path).graph
    inputs = []
    for name in graph.inputs:
        kind = graph.node_args.get(name)
        if name not in graph.initializers:
            plain = kind if isinstance(kind, ort_format.TensorType) else None
            inputs.append(
                TensorInfo(
                    name=name,
                    dtype=run_spec.TYPES_BY_CODE.get(plain.elem_type) if plain else None,
                    shape=plain.shape if plain else None,
                )
            )
    return tuple(inputs)


PATIENCE_SECONDS = 40.0
DATA = "from the test data"
GIVEN = "as given"
MOST_TRIALS = 60


class Guess(msgspec.Struct, frozen=True, kw_only=True):
    """What a model takes, and what to run it on.

    `dimensions` has sizes by the shortest names, `values` numbers for inputs; `reasons` says by the same names why.
    `missing` are dimensions for which no size was found, with `why` the model refused the last one that was tried.
    `states` are outputs that look like an input's next value.
    `fixable` is False where the model runs with these sizes only as long as its dimensions stay open.
    """

    inputs: tuple[TensorInfo, ...]
    dimensions: dict[str, int] = {}
    values: dict[str, config_tables.InputValue] = {}
    reasons: dict[str, str] = {}
    missing: tuple[str, ...] = ()
    why: str = ""
    fixable: bool = True
    optional: tuple[str, ...] = ()
    """Inputs with a value in the file, which artifacts have as constants."""
    opset: int = 0
    """Of ONNX's own operators."""
    states: dict[str, str] = {}
    texts: dict[str, tuple[str, ...]] = {}
    """Inputs of strings that have no value yet, with some texts that the model knows."""
    growing: tuple[str, ...] = ()
    """Dimensions that have another size in the output which looks like the input's next value, and what follows them: a
    file in which one is fixed makes a single step.
    """

    @property
    def to_fix(self) -> dict[str, int]:
        """The sizes to convert the model with: those given, and all that do not grow where it is fixable."""
        left = self.growing if self.fixable else self.dimensions
        return {k: size for k, size in self.dimensions.items() if k not in left or self.reasons[k] == GIVEN}


def guess_inputs(source: SourceModel, dimensions: dict[str, int], data: Dataset, work_folder: str) -> Guess:
    """Sizes and values for a model, tried by running it on the CPU without optimizations.

    Sizes that were given are among those of the answer. With test data, the others are those that all its samples
    have; what differs between samples stays open.

    ModelError when the model cannot be used, ConfigError for data or names that do not fit it.
    """
    loaded = onnx_model.load_model(source, Path(work_folder))
    _refuse_optional(loaded, data)
    prepared = onnx_model.prepare_model(loaded, dimensions)
    # What no session loads, operators of custom domains and types that do not fit, is refused before anything is tried.
    # No session is made: a model may have no kernel on this computer's CPU, and run on an accelerator
    guards.check_structure(prepared.proto, source.name)
    try:
        ort_session.load_session(
            prepared.proto.SerializeToString(), ort_session.session_options(weights=prepared.folder)
        )
    except ort_session.ort_errors() as error:
        raise model_session.refused(error, source.name) from error
    takes = signature.own_inputs(prepared.proto)
    axes = signature.open_axes(takes)
    guess = Guess(
        inputs=signature.own_inputs(onnx_model.prepare_model(loaded, {}).proto),
        dimensions=dimensions,
        reasons=dict.fromkeys(dimensions, GIVEN),
        optional=onnx_model.optional_inputs(loaded.proto),
        opset=onnx_edit.onnx_opset(loaded.proto),
        states=states_of(prepared.proto, takes),
    )
    if data.test_data:
        named: dict[str, set[int]] = {}
        for sample in samples(data, takes):
            for name, group in signature.names_of(axes).items():
                named.setdefault(name, set()).add(int(sample.inputs[group[0].input].shape[group[0].axis]))
        same = {name: sizes.pop() for name, sizes in named.items() if len(sizes) == 1}
        reasons = guess.reasons | dict.fromkeys(same, DATA)
        guess = msgspec.structs.replace(guess, dimensions=dimensions | same, reasons=reasons)
        return _stepped(guess, prepared, takes, data)
    guessed = {k: v for k, v in guess_values(prepared.proto, takes, guess.inputs).items() if k not in data.inputs}
    values = {name: value for name, (value, _) in guessed.items()}
    reasons = guess.reasons | {name: reason for name, (_, reason) in guessed.items()}
    texts = texts_without_value(prepared.proto, takes, data)
    tried = {name: known[0] if known else "" for name, known in texts.items()}
    data = msgspec.structs.replace(data, inputs=tried | values | data.inputs)
    guess = msgspec.structs.replace(guess, values=values, reasons=reasons, texts=texts)
    if not axes:
        return _stepped(guess, prepared, takes, data)
    session = model_session.open_session(prepared, model_session.ASKED)
    sized, why = _first_that_runs(session, prepared.proto, takes, axes, data, source.name, dimensions)
    if not sized:
        names = tuple(
            n
            for group, choices in usual_sizes.units(prepared.proto, takes, axes)
            for n in group
            if choices[0][1] != usual_sizes.ONE
        )
        return msgspec.structs.replace(guess, missing=names or tuple(signature.names_of(axes)), why=why)
    sizes = dimensions | {name: size for name, (size, _) in sized.items()}
    reasons |= {name: reason for name, (_, reason) in sized.items()}
    # Lengths are filled in by themselves too, but which axis they are of is plain only while it is open
    by_axis = signature.resolve_dimensions(guess.inputs, sizes, source.name)
    arrays = first_sample(msgspec.structs.replace(data, sizes=by_axis), guess.inputs).inputs
    lengths = {name: size for name, size in full_lengths(guess.inputs, arrays).items() if name not in data.inputs}
    reasons |= dict.fromkeys(lengths, "the full length")
    values |= lengths
    guess = msgspec.structs.replace(guess, dimensions=sizes, values=values, reasons=reasons)
    in_sizes = msgspec.structs.replace(data, sizes=data.sizes | by_axis)
    guess = _stepped(guess, prepared, takes, in_sizes)
    fixed = onnx_model.prepare_model(loaded, guess.to_fix)
    try:  # whether it can be optimized, and still runs, when its dimensions are fixed to these sizes
        model_session.open_session(fixed, model_session.OPTIMIZED)
        fixed_takes = signature.own_inputs(fixed.proto)
        open_sizes = {axis.key: by_axis[axis.key] for axis in signature.open_axes(fixed_takes) if axis.key in by_axis}
        fixable = not _refusal(model_session.open_session(fixed, model_session.ASKED), fixed_takes, open_sizes, data)
    except ModelError:
        fixable = False
    return msgspec.structs.replace(guess, fixable=fixable)


def _stepped(guess: Guess, prepared: onnx_model.LoadedModel, takes: Sequence[TensorInfo], data: Dataset) -> Guess:
    """With the states whose size is the same after an inference, and the dimensions whose size it changed.

    None of either where the model does not run.
    """
    caches = caches_of(prepared.proto, takes) | guess.states
    if not caches:
        return guess
    try:
        feeds, session = first_sample(data, takes).inputs, model_session.open_session(prepared, model_session.ASKED)
        outputs = model_session.run_session(session, feeds, prepared.source.name)
    except (ModelError, ConfigError):
        return msgspec.structs.replace(guess, states={})
    states = {output: name for output, name in guess.states.items() if outputs[output].shape == feeds[name].shape}
    after = {output.name: output.shape or () for output in signature.tensor_infos(prepared.proto.graph.output)}
    names = signature.names_of(signature.open_axes(takes))
    keys = {axis.key: name for name, axes in names.items() for axis in axes}
    growing = set[str]()
    for output, name in caches.items():
        pairs = enumerate(zip(feeds[name].shape, outputs[output].shape, strict=False))
        changed = [axis for axis, (size, beside) in pairs if size != beside]
        if outputs[output].ndim == feeds[name].ndim and len(changed) == 1 and f"{name}[{changed[0]}]" in keys:
            growing |= {keys[f"{name}[{changed[0]}]"], str(after[output][changed[0]])}
    with_it = [name for name in names if name in growing or not growing.isdisjoint(usual_sizes.sum_parts(name) or ())]
    sizes = {
        axis.key: feeds[axis.input].shape[axis.axis] + (keys[axis.key] in with_it)
        for axis in signature.open_axes(takes)
    }
    if with_it and not data.test_data and _refusal(session, takes, sizes, data):  # one step is all that it makes
        with_it = []
    reasons = {
        name: f"{guess.reasons[name]}; left open, as it grows with each step"
        for name in with_it
        if guess.reasons.get(name, GIVEN) != GIVEN
    }
    return msgspec.structs.replace(guess, states=states, growing=tuple(with_it), reasons=guess.reasons | reasons)


def _first_that_runs(
    session: Any,
    model: "onnx.ModelProto",
    takes: Sequence[TensorInfo],
    axes: Sequence[signature.OpenAxis],
    data: Dataset,
    where: str,
    given: Mapping[str, int] = MappingProxyType({}),
) -> tuple[dict[str, tuple[int, str]], str]:
    """The likeliest sizes that the model runs with, by name with the reason; or none, and why not.

    Sizes that were `given` are parts of sums, too.
    """
    names = signature.names_of(axes)
    deadline = time.monotonic() + PATIENCE_SECONDS
    why = ""
    for number, sizes in enumerate(usual_sizes.assignments(usual_sizes.units(model, takes, axes))):
        if number >= MOST_TRIALS or time.monotonic() > deadline:
            break
        solved = usual_sizes.with_sums({**given, **{name: size for name, (size, _) in sizes.items()}}, list(names))
        whole = {name: size for name, size in solved.items() if name in names}
        why = _refusal(session, takes, signature.resolve_dimensions(takes, whole, where), data)
        if not why:
            return {name: sizes.get(name, (size, "a sum")) for name, size in whole.items()}, ""
    return {}, why


def _refusal(session: Any, takes: Sequence[TensorInfo], sizes: Mapping[str, int], data: Dataset) -> str:
    """Why the model does not run with inputs of these sizes; "" when it does and gives numbers."""
    try:
        feeds = first_sample(msgspec.structs.replace(data, sizes={**data.sizes, **sizes}), takes).inputs
        outputs = model_session.run_session(session, feeds, "")
    except ModelError as error:
        return error.why or error.what
    except ConfigError as error:  # no size helps where an input lacks its text
        return error.text
    empty = [name for name, array in outputs.items() if array.size == 0]
    return f"the output {empty[0]} is empty" if outputs and len(empty) == len(outputs) else ""


def complete_data(
    loaded: onnx_model.LoadedModel, dimensions: Mapping[str, int], data: Dataset, session: Any = None
) -> Dataset:
    """The data with values and sizes for what would be random or 1: what `guess_inputs` finds.

    Sizes are tried in the `session` of the model, where its caller has one. ConfigError, with the line to write, when
    no size is found for an open dimension.
    """
    _refuse_optional(loaded, data)
    if data.test_data:
        return data
    prepared = onnx_model.prepare_model(loaded, dimensions)
    takes = signature.own_inputs(prepared.proto)
    if texts := texts_without_value(prepared.proto, takes, data):
        raise no_text(loaded.source.name, list(texts))
    whole = _with_values(prepared.proto, takes, data, signature.own_inputs(loaded.proto))
    axes = [axis for axis in signature.open_axes(takes) if not isinstance(data.inputs.get(axis.input), tuple)]
    of_data = {name: size for name, size in data.sizes.items() if any(name in (a.key, a.symbol) for a in axes)}
    of_data = signature.resolve_dimensions(takes, of_data, loaded.source.name)
    if all(axis.key in of_data for axis in axes):
        return msgspec.structs.replace(whole, sizes=data.sizes | of_data)
    session, where = session or model_session.open_session(prepared, model_session.ASKED), loaded.source.name
    sized, why = _first_that_runs(session, prepared.proto, takes, axes, whole, where, dimensions)
    if not sized:
        error = no_size(loaded.source.name, list(signature.names_of(axes)), why)
        raise blame_dimensions(loaded, dimensions, data, error) from error
    sizes = signature.resolve_dimensions(takes, {name: size for name, (size, _) in sized.items()}, loaded.source.name)
    return msgspec.structs.replace(whole, sizes=sizes | data.sizes | of_data)


def _refuse_optional(loaded: onnx_model.LoadedModel, data: Dataset) -> None:
    """ConfigError for a value of an input that has one in the model's file."""
    for name in onnx_model.optional_inputs(loaded.proto) if data.inputs else ():
        if name in data.inputs:
            raise ConfigError(
                f"{name!r} is an optional input, and models run with its value from the file here",
                where=f"inputs.{name}",
                why="artifacts have it as a constant, unless `optional_inputs` keeps it",
                remedy="give it no value; to try another, change the initializer in the model",
            )


def check_inputs(
    source: SourceModel,
    dimensions: dict[str, int],
    data: Dataset,
    work_folder: str,
    states: Mapping[str, str] | None = None,
) -> int:
    """How many samples of a user's data fit a model: every one is read, and fixed dimensions are tried.

    The `states` of a stream are looked for, too.

    ConfigError for the first that does not; ModelError for a model that cannot be used at all.
    """
    loaded = onnx_model.load_model(source, Path(work_folder))
    _refuse_optional(loaded, data)
    prepared = onnx_model.prepare_model(loaded, dimensions)
    takes = signature.own_inputs(prepared.proto)
    outputs = [output.name for output in prepared.proto.graph.output]
    signature.check_states(states or {}, [info.name for info in takes], outputs, loaded.source.name)
    signature.resolve_dimensions(takes, data.sizes, loaded.source.name)
    count = check_data(data, takes) if data.given or data.padding else 0
    if dimensions:
        whole = complete_data(loaded, dimensions, data)
        try:
            model_session.run_session(
                model_session.open_session(prepared, model_session.ASKED),
                first_sample(whole, takes).inputs,
                loaded.source.name,
            )
        except ModelError as error:
            raise blame_dimensions(loaded, dimensions, data, error) from error
    return count


def output_names(source: SourceModel, work_folder: str) -> tuple[str, ...]:
    """The names of a model's outputs; ModelError for one that cannot be read."""
    return tuple(output.name for output in onnx_model.load_model(source, Path(work_folder)).proto.graph.output)


def blame_dimensions(
    loaded: onnx_model.LoadedModel, dimensions: Mapping[str, int], data: Dataset, error: PipelineError
) -> PipelineError:
    """The error of a model with fixed dimensions: another one where these are the cause, after trying without them."""
    if not dimensions:
        return error
    # Sizes with which the model runs while its dimensions stay open: the test data's own, else the likeliest
    try:
        prepared = onnx_model.prepare_model(loaded, {})
        takes = signature.own_inputs(prepared.proto)
        if data.test_data:
            model_session.run_session(
                model_session.open_session(prepared, model_session.ASKED),
                first_sample(data, takes).inputs,
                loaded.source.name,
            )
            sizes = sizes_in(data, takes)
        else:
            whole = _with_values(prepared.proto, takes, data)
            session, axes = model_session.open_session(prepared, model_session.ASKED), signature.open_axes(takes)
            sized, _ = _first_that_runs(session, prepared.proto, takes, axes, whole, loaded.source.name)
            sizes = {name: size for name, (size, _) in sized.items()}
    except (ModelError, ConfigError):
        return error
    if not sizes:
        return error
    return ConfigError(
        "the model does not run with the sizes given for its dimensions",
        where=loaded.source.name,
        why=f"with {_text(dimensions)}: {error.why or error.what}; left open it runs, as with {_text(sizes)}",
        remedy="change `dimensions` (--dimension) to sizes that your app uses, or leave it out",
    )


def blame_optimization(
    loaded: onnx_model.LoadedModel, dimensions: Mapping[str, int], error: RunnerError
) -> RunnerError:
    """The error of the optimizer on a model with fixed dimensions: another where it succeeds while they are open."""
    if not dimensions:
        return error
    try:
        model_session.open_session(onnx_model.prepare_model(loaded, {}), model_session.OPTIMIZED)
    except ModelError:
        return error
    return ConfigError(
        "ONNX Runtime cannot optimize the model with the sizes given for its dimensions",
        where=loaded.source.name,
        why=f"with {_text(dimensions)}: {error.why or error.what}; with its dimensions open it can",
        remedy="leave `dimensions` (--dimension) out for this model, or change them",
    )


def _text(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {size}" for name, size in sizes.items())


def no_size(where: str, names: Sequence[str], why: str) -> ConfigError:
    """The error for a model whose open dimensions have no size, with the line that gives them."""
    line = ", ".join(f"{msgspec.json.encode(name).decode()} = …" for name in names)
    return ConfigError(
        f"the sizes of {', '.join(names)} are not known",
        where=where,
        why=f"the model does not run with any usual size: {why}",
        remedy=f"write `dimensions = {{ {line} }}` under [[models]], or give `test_data` (--dimension, --test-data)",
    )


def no_text(where: str, names: Sequence[str]) -> ConfigError:
    """The error for a model with inputs of strings that have no value, with the line that gives them."""
    line = ", ".join(f'{msgspec.json.encode(name).decode()} = "…"' for name in names)
    return ConfigError(
        f"the input {', '.join(names)} needs a text",
        where=where,
        why="it is of strings, which are not guessed",
        remedy=f"write `inputs = {{ {line} }}` under [[models]] (--input '{names[0]}=\"…\"'), or give `test_data`",
    )
