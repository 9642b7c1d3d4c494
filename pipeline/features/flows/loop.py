"""A stage that runs at every step of a loop over tokens: its nodes are the body of a Loop, caches are carried."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from device_runner import spec as run_spec
from device_runner.spec import ElementType
from pipeline.config import flow as flow_tables
from pipeline.core.errors import ConfigError
from pipeline.features.app_data import graph_end
from pipeline.features.flows import whole as flow_whole
from pipeline.features.flows.member import StageModel
from pipeline.features.flows.whole import Whole
from pipeline.model.signature import TensorInfo

if TYPE_CHECKING:
    import onnx

EMPTY = "empty"
TOKENS = "tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopValue:
    """A value that the loop carries: `inside` at the start of a step, `after` it, `first` before the first step."""

    info: TensorInfo
    inside: str
    after: str
    first: str


def add_stage(whole: Whole, stage: flow_tables.FlowStage, until: flow_tables.Until) -> None:
    """Put the loop behind what is there; its output is TOKENS, what the loop began with among them.

    ConfigError for what does not fit.
    """
    from onnx import helper

    member = whole.members[stage.run]
    where = f"{whole.where}, stage {stage.run}"
    feeds = expanded(stage, member, where)
    begin = _begin(feeds, where)
    body = graph_end.GraphEnd("flow/step")
    given: dict[str, str] = {}
    carried: list[LoopValue] = []
    for name, info in member.inputs.items():
        feed = feeds.get(name)
        if feed is None:
            given[name] = whole.add_constant(member, info, where)
        elif feed.state:
            part = _state(whole, member, info, feed, where)
            carried.append(part)
            given[name] = part.inside
        elif feed.source is None:
            given[name] = _cast(body, _of_tokens(whole, body, feed, name), ElementType.INT64, info, name)
        else:
            given[name] = _from_outside(whole, info, feed, where)
    nodes = member.nodes(given)
    chosen = graph_end.GraphEnd("flow/step")
    token = _chosen(whole, chosen, member, until, where)
    again = _goes_on(whole, chosen, token, until)
    chosen.add("Concat", [body.named(flow_tables.Tokens.ALL.value), token], "all after", axis=1)
    chosen.add("Identity", [token], "last after")
    first = whole.links.constant("begin", begin)
    int64 = ElementType.INT64
    carried = [
        *(
            LoopValue(
                info=TensorInfo(name=kind.value, dtype=int64, shape=(1, None)),
                inside=body.named(kind.value),
                after=body.named(f"{kind.value} after"),
                first=first,
            )
            for kind in flow_tables.Tokens
        ),
        *carried,
    ]
    graph = helper.make_graph(
        [*body.nodes, *nodes, *chosen.nodes],
        "step",
        [
            _value("flow/step/number", int64, ()),
            _value("flow/step/goes on", ElementType.BOOL, ()),
            *(_of(part, part.inside, "before") for part in carried),
        ],
        [_value(again, ElementType.BOOL, ()), *(_of(part, part.after, "after") for part in carried)],
    )
    whole.links.constants += [*body.constants, *chosen.constants]
    most = whole.links.constant("most steps", _scalar(until.most, "int64"))
    yes = whole.links.constant("begins", _scalar(1, "bool"))
    whole.links.add("Loop", [most, yes, *(part.first for part in carried)], "loop", body=graph)
    ends = [whole.links.named(f"at the end {number}") for number in range(len(carried))]
    whole.links.nodes[-1].output[:] = ends
    whole.add_output(TOKENS, ends[0], int64, (1, "tokens"))


def expanded(stage: flow_tables.FlowStage, member: StageModel, where: str) -> dict[str, flow_tables.Feed]:
    """What each input gets, `%d` in names replaced by the numbers that the model's inputs have there."""
    feeds: dict[str, flow_tables.Feed] = {}
    for name, made in stage.feeds.items():
        if "%d" not in name:
            feeds[name] = made
            continue
        pattern = re.compile(r"(\d+)".join(map(re.escape, name.split("%d", 1))))
        numbers = [match[1] for own in member.inputs if (match := pattern.fullmatch(own))]
        if not numbers:
            raise ConfigError(
                f"no input is called {name!r}",
                where=where,
                why=f"the model has {', '.join(member.inputs)}",
                remedy="write its inputs' names with %d in place of the number",
            )
        for number in numbers:
            state = made.state and made.state.replace("%d", number)
            first = made.first and made.first.replace("%d", number)
            feeds[name.replace("%d", number)] = flow_tables.Feed(state=state, first=first, fill=made.fill)
    return feeds


def _begin(feeds: Mapping[str, flow_tables.Feed], where: str) -> object:
    """The tokens of the beginning, int64 [1, count]."""
    import numpy as np

    begins = {feed.begin for feed in feeds.values() if feed.tokens}
    if len(begins) != 1 or None in begins:
        raise ConfigError(
            "it is not said which tokens the loop begins with",
            where=where,
            why="inputs with `tokens` have " + (f"{len(begins)} of them" if begins else "none: there is no such input"),
            remedy='write them once for each such input, as in `ids = { tokens = "last", begin = [1] }`',
        )
    return np.array([next(iter(begins))], np.int64)


def _state(whole: Whole, member: StageModel, info: TensorInfo, feed: flow_tables.Feed, where: str) -> LoopValue:
    """A state or cache of the model: carried, and of any length where its axes are open."""
    import numpy as np

    if feed.state is None or feed.state not in member.outputs or info.dtype is None or info.shape is None:
        raise ConfigError(
            f"the input {info.name!r} is no state",
            where=where,
            why=f"it is {info}; outputs are {', '.join(map(str, member.outputs.values()))}",
            remedy="name the output that becomes it as `state`",
        )
    if feed.first and feed.first != EMPTY:
        first = _one(whole, feed.first, where)
    elif feed.first == EMPTY or info.fixed:
        # The first open axis is that of the batch where another is open, too: one of length 1, never none
        opened = [axis for axis, size in enumerate(info.shape) if not isinstance(size, int)]
        batch = opened[0] if len(opened) > 1 and opened[0] == 0 else None
        axes = [size if isinstance(size, int) else 1 if axis == batch else 0 for axis, size in enumerate(info.shape)]
        first = whole.links.constant(f"first {info.name}", np.full(axes, feed.fill, info.dtype.value))
    else:
        raise ConfigError(
            f"the state {info.name!r} has no first value",
            where=where,
            why=f"it is {info}, with open axes",
            remedy='name a value of a stage before it as `first`, or "empty" for a cache that grows from nothing',
        )
    return LoopValue(info=info, inside=member.value(info.name), after=member.made(feed.state), first=first)


def _from_outside(whole: Whole, info: TensorInfo, feed: flow_tables.Feed, where: str) -> str:
    """A value that is the same at every step."""
    if feed.window or feed.divide or feed.add is not None or not feed.source:
        raise ConfigError(
            f"the input {info.name!r} gets nothing that a loop has",
            where=where,
            why="a loop's stage takes values as they are, states and tokens",
            remedy="give `from`, `state` or `tokens` alone",
        )
    if feed.source in whole.values:
        return _one(whole, feed.source, where)
    return whole.add_input(feed.source, info.dtype or ElementType.FLOAT32, info.shape or ())


def _one(whole: Whole, source: str, where: str) -> str:
    """The value of a stage that runs once in a step."""
    values = whole.values.get(source, ())
    if len(values) != 1:
        raise ConfigError(
            f"a loop cannot take {source!r}",
            where=where,
            why=f"its stage runs {len(values)} times in a step" if values else "no stage before it gives that",
            remedy=f"name one of: {', '.join(whole.values) or 'none'}",
        )
    return values[0]


def _chosen(whole: Whole, body: graph_end.GraphEnd, member: StageModel, until: flow_tables.Until, where: str) -> str:
    """The token with the largest value, int64 [1, 1]."""
    info = member.outputs.get(until.source.removeprefix(f"{member.name}."))
    if info is None or info.shape is None or len(info.shape) not in (2, 3):
        raise ConfigError(
            f"no token can be chosen from {until.source!r}",
            where=where,
            why=f"it is {info}; a value for each token is wanted, [1, tokens] or [1, steps, tokens]"
            if info
            else f"{member.name} gives {', '.join(member.outputs)}",
            remedy=f"name another output of it as `until.from`, as in {member.name}.{next(iter(member.outputs))}",
        )
    values = member.made(info.name)
    if len(info.shape) == 3:
        values = body.add("Gather", [values, whole.links.constant("last", _scalar(-1, "int64"))], "of the last", axis=1)
    best = body.add("ArgMax", [values], "best", axis=1, keepdims=1)
    shape = whole.numbers("one token", 1, 1)
    return body.add("Reshape", [best, shape], "token")


def _goes_on(whole: Whole, body: graph_end.GraphEnd, token: str, until: flow_tables.Until) -> str:
    """Whether another step follows: the token is none that ends a text."""
    import numpy as np

    ends = (until.token,) if isinstance(until.token, int) else until.token
    ended = ""
    for number, end in enumerate(ends):
        same = body.add(
            "Equal", [token, whole.links.constant(f"end {number}", np.array([[end]], np.int64))], f"is end {number}"
        )
        ended = body.add("Or", [ended, same], f"is an end {number}") if ended else same
    return body.add("Reshape", [body.add("Not", [ended], "is no end"), whole.numbers("no axes")], "go on")


def _of_tokens(whole: Whole, body: graph_end.GraphEnd, feed: flow_tables.Feed, name: str) -> str:
    """Tokens, their places in the text, or a 1 for each of them: int64 [1, count]."""
    kind = feed.tokens or feed.positions or feed.mask or flow_tables.Tokens.ALL
    tokens = body.named(kind.value)
    if feed.tokens:
        return tokens
    if feed.mask:
        import numpy as np
        from onnx import numpy_helper

        one = numpy_helper.from_array(np.array([1], np.int64))
        return body.add("ConstantOfShape", [body.add("Shape", [tokens], f"{name} shape")], f"{name} ones", value=one)
    axis = whole.links.constant(f"{name} axis", _scalar(1, "int64"))
    step = whole.links.constant(f"{name} by", _scalar(1, "int64"))
    every = body.named(flow_tables.Tokens.ALL.value)
    end = body.add("Gather", [body.add("Shape", [every], f"{name} all"), axis], f"{name} end", axis=0)
    count = body.add("Gather", [body.add("Shape", [tokens], f"{name} some"), axis], f"{name} count", axis=0)
    places = body.add("Range", [body.add("Sub", [end, count], f"{name} begin"), end, step], f"{name} range")
    return body.add("Reshape", [places, whole.numbers(f"{name} row", 1, -1)], f"{name} places")


def _cast(body: graph_end.GraphEnd, value: str, given: ElementType, info: TensorInfo, name: str) -> str:
    if info.dtype is given or info.dtype is None:
        return value
    return body.add("Cast", [value], f"{name} cast", to=run_spec.ONNX_CODES[info.dtype])


def _of(part: LoopValue, name: str, moment: str) -> "onnx.ValueInfoProto":
    """Its open axes have names of the moment: what is carried may grow."""
    axes = tuple(
        size if isinstance(size, int) else f"{part.info.name} {axis} {moment}"
        for axis, size in enumerate(part.info.shape or ())
    )
    return _value(name, part.info.dtype or ElementType.FLOAT32, axes)


def _value(name: str, dtype: ElementType, axes: flow_whole.Axes) -> "onnx.ValueInfoProto":
    from onnx import helper

    return helper.make_tensor_value_info(name, run_spec.ONNX_CODES[dtype], axes)


def _scalar(number: int, dtype: str) -> object:
    import numpy as np

    return np.array(number, dtype)
