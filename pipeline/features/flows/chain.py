"""Stages that run once for each inference, one behind the other: windows become states, and sizes fit each other."""

from math import prod

from device_runner import spec as run_spec
from device_runner.spec import ElementType
from pipeline.config import flow as flow_tables
from pipeline.core.errors import ConfigError
from pipeline.features.flows import whole as flow_whole
from pipeline.features.flows.member import StageModel
from pipeline.features.flows.whole import Whole
from pipeline.model.signature import TensorInfo


def add_stage(whole: Whole, stage: flow_tables.FlowStage, often: int) -> None:
    """Put a stage behind what is there; it runs so often in a step. ConfigError for what does not fit."""
    member = whole.members[stage.run]
    where = f"{whole.where}, stage {stage.run}"
    feeds = stage.feeds
    given: dict[str, tuple[str, ...]] = {}
    carried: dict[str, flow_whole.FlowState] = {}
    for name, info in member.inputs.items():
        feed = feeds.get(name)
        if feed is None:
            given[name] = (whole.add_constant(member, info, where),) * often
        elif feed.state:
            carried[name] = _state(whole, member, info, feed, where)
        elif feed.window:
            given[name] = _windows(whole, member, info, feed, often)
        else:
            given[name] = _values(whole, member, info, feed, often)
    for run in range(often):
        own = {name: values[run] for name, values in given.items()}
        for name, state in carried.items():
            before = feeds[name].state
            own[name] = state.input if run == 0 else member.made(before or "", run - 1)
        whole.links.nodes.extend(member.nodes(own, run))
    for name, state in carried.items():
        whole.links.add("Identity", [member.made(feeds[name].state or "", often - 1)], state.output)
        whole.links.nodes[-1].output[:] = [state.output]
    for output in member.outputs:
        whole.values[f"{stage.run}.{output}"] = tuple(member.made(output, run) for run in range(often))


def _state(
    whole: Whole, member: StageModel, info: TensorInfo, feed: flow_tables.Feed, where: str
) -> flow_whole.FlowState:
    """A state of the model itself, such as of a recurrent one."""
    if feed.state not in member.outputs or info.dtype is None or not info.fixed:
        raise ConfigError(
            f"the input {info.name!r} is no state",
            where=where,
            why=f"it is {info}; outputs are {', '.join(map(str, member.outputs.values()))}",
            remedy="name the output that becomes it, and give its open dimensions in `dimensions` of the model",
        )
    return whole.add_state(f"{member.name}.{info.name}", info.dtype, info.shape or (), feed.fill)


def _values(whole: Whole, member: StageModel, info: TensorInfo, feed: flow_tables.Feed, often: int) -> tuple[str, ...]:
    """What comes as it is: a value of each run of the stage before, or the feature's own input in every run."""
    source = feed.source or ""
    if source not in whole.values:
        given = whole.add_input(source, info.dtype or ElementType.FLOAT32, info.shape or ())
        return (_as_wanted(whole, given, feed, member.value(info.name), (info.dtype, info.dtype)),) * often
    values = whole.values[source]
    changed = [
        _as_wanted(whole, value, feed, f"{member.value(info.name)} {run}", _types(whole, source, info))
        for run, value in enumerate(values)
    ]
    return tuple(changed)


def _windows(whole: Whole, member: StageModel, info: TensorInfo, feed: flow_tables.Feed, often: int) -> tuple[str, ...]:
    """The windows that the runs of a stage get: what was kept and what is new, cut, in the shape of the input."""
    window, hop = feed.window or 1, feed.rows_taken
    source, title = feed.source or "", member.value(info.name)
    dtype = info.dtype or ElementType.FLOAT32
    row = [feed.rows] if feed.rows else []
    if source in whole.values:
        fresh = whole.values[source]
        types = _types(whole, source, info)
    else:
        axes: flow_whole.Axes = (often * hop, *row) if row else (1, often * hop)
        fresh = (whole.add_input(source, dtype, axes),)
        types = (dtype, dtype)
    shape = whole.numbers(f"{title} rows", -1, *row)
    parts = [
        whole.links.add(
            "Reshape", [_as_wanted(whole, value, feed, f"{title} new {run}", types), shape], f"{title} rows {run}"
        )
        for run, value in enumerate(fresh)
    ]
    state = (
        whole.add_state(f"{member.name}.{info.name}", dtype, (window - hop, *row), feed.fill) if window > hop else None
    )
    parts = [state.input, *parts] if state else parts
    rows = whole.links.add("Concat", parts, f"{title} all", axis=0) if len(parts) > 1 else parts[0]
    if state:
        begin, end = whole.numbers(f"{title} from", hop - window), whole.numbers(f"{title} to", 2**31 - 1)
        whole.links.add("Slice", [rows, begin, end, whole.numbers(f"{title} axis", 0)], f"{title} kept")
        whole.links.nodes[-1].output[:] = [state.output]
    wanted = whole.numbers(f"{title} shape", *_sizes(info, window * prod(row)))
    windows = []
    for run in range(often):
        part = rows
        if often > 1:
            begin = whole.numbers(f"{title} begin {run}", run * hop)
            end = whole.numbers(f"{title} end {run}", run * hop + window)
            axis = whole.numbers(f"{title} axis {run}", 0)
            part = whole.links.add("Slice", [rows, begin, end, axis], f"{title} part {run}")
        windows.append(whole.links.add("Reshape", [part, wanted], f"{title} window {run}"))
    return tuple(windows)


def _types(whole: Whole, source: str, info: TensorInfo) -> tuple[ElementType | None, ElementType | None]:
    """The type of elements that a stage gives, and the one that an input takes."""
    stage = flow_whole.stage_of(source, whole.members)
    given = whole.members[stage].outputs[source[len(stage) + 1 :]].dtype if stage else info.dtype
    return given, info.dtype


def _as_wanted(
    whole: Whole, value: str, feed: flow_tables.Feed, title: str, types: tuple[ElementType | None, ElementType | None]
) -> str:
    """A value in the type of the input, divided and added to."""
    import numpy as np

    given, taken = types
    if given is not taken and taken is not None:
        value = whole.links.add("Cast", [value], f"{title} cast", to=run_spec.ONNX_CODES[taken])
    dtype = (taken or ElementType.FLOAT32).value
    for op_type, number in (("Div", feed.divide), ("Add", feed.add)):
        if number is not None:
            constant = whole.links.constant(f"{title} {op_type}", np.array(number, dtype))
            value = whole.links.add(op_type, [value, constant], f"{title} {op_type.lower()}")
    return value


def _sizes(info: TensorInfo, count: int) -> list[int]:
    """The shape of an input that gets so many elements: of its open axes the last takes what is left."""
    shape = list(info.shape or (count,))
    opened = [axis for axis, size in enumerate(shape) if not isinstance(size, int)]
    return [size if isinstance(size, int) else -1 if axis == opened[-1] else 1 for axis, size in enumerate(shape)]
