"""Where a model in another precision stops being finite: it and the float original run with every inner value shown."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from pipeline.check.compare import Array, OutputCheck, OutputPrecision
from pipeline.core.errors import PipelineError
from pipeline.dataset.candidates import open_session, run_session
from pipeline.model.onnx_model import PreparedModel
from pipeline.passes.preprocess import name_nodes

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

VALUES_AT_ONCE = 64
"""So many inner values are in memory at a time, each from both models."""
ROOM = 2.0
"""Nodes whose values come so near to the largest half-precision number stay float, too: other samples have others."""
LARGEST_HALF = float(np.finfo(np.float16).max)
MOST_NAMED = 40
"""Nodes that a remedy names: of more, the precision suits the model as a whole too little."""

NAMES = {
    OutputPrecision.FLOAT32: "the model in its precision",
    OutputPrecision.FLOAT16: "half precision",
    OutputPrecision.QUANTIZED: "the quantized model",
}


def refuted_outputs(
    form: PreparedModel,
    original: PreparedModel,
    feeds: Mapping[str, Array],
    outputs: tuple[Mapping[str, Array], Mapping[str, Array]],
    precision: OutputPrecision,
) -> Iterator[OutputCheck]:
    """A failed check for each output of `form` that is not finite where the float original's is; nothing where all are.

    `outputs` are those of both models on `feeds`. The reason names the first node that stops being finite.
    """
    lost = {
        name: _lost(wanted, outputs[0][name])
        for name, wanted in outputs[1].items()
        if name in outputs[0] and _lost(wanted, outputs[0][name])
    }
    if not lost:
        return
    try:
        cause, remedy = _explained(form, original, feeds, precision)
    except (PipelineError, MemoryError) as error:  # the outputs are as wrong without the name of the node
        cause, remedy = f"the first node that is not finite could not be found: {error}", ""
    for name, share in lost.items():
        largest = f"the float original's largest is {_largest(outputs[1][name]):.4g}"
        reason = f"{cause}; {share:.3g} % of this output is not finite, {largest}"
        yield OutputCheck(output=name, passed=False, reason=reason, remedy=remedy)


def _lost(original: Array, actual: Array) -> float:
    """Per cent of the elements that are finite in the original alone; 0 for outputs that cannot be compared."""
    if original.shape != actual.shape or original.dtype.kind != "f" or actual.dtype.kind != "f" or not original.size:
        return 0.0
    return float((np.isfinite(original) & ~np.isfinite(actual)).mean() * 100)


def _largest(array: Array) -> float:
    finite = np.abs(array[np.isfinite(array)].astype(np.float64))
    return float(finite.max()) if finite.size else 0.0


@dataclass(slots=True)
class _Walk:
    """What both models were seen to do: the first node of the form that is not finite, and the original's largest."""

    first: "NodeProto | None" = None
    share: float = 0.0
    infinite: bool = False
    largest: dict[str, float] = field(default_factory=dict)


def _explained(
    form: PreparedModel, original: PreparedModel, feeds: Mapping[str, Array], precision: OutputPrecision
) -> tuple[str, str]:
    """The cause and the remedy in words."""
    walk = _walked(form, original, feeds)
    if walk.first is None:
        return f"{NAMES[precision]} is not finite where the float original is", ""
    node = walk.first
    (value, *_) = (name for name in node.output if name in walk.largest)
    verb = "overflows" if walk.infinite else "gives NaN"
    limit = f"; half precision ends at {LARGEST_HALF:g}" if precision is OutputPrecision.FLOAT16 else ""
    cause = (
        f"{NAMES[precision]} {verb} at {node.op_type} {node.name or value!r}: {walk.share:.3g} % of its elements are "
        f"not finite, the float original's largest there is {walk.largest[value]:.4g}{limit}"
    )
    named = _to_keep_float(original.proto, walk)
    if len(named) > MOST_NAMED:
        return cause, f"ship the model in float: {len(named)} of its nodes would have to stay float"
    listed = ",".join(named)
    return cause, (
        f"leave these nodes float: `--keep-float '{listed}'` of convert and `run --model`, keep_float of the model in "
        "the config; or ship the model in float"
    )


def _walked(form: PreparedModel, original: PreparedModel, feeds: Mapping[str, Array]) -> _Walk:
    """Run both models once for every VALUES_AT_ONCE values that they share by name, in the form's order."""
    known = {name for node in original.proto.graph.node for name in node.output}
    makers = {name: node for node in form.proto.graph.node for name in node.output if name in known}
    names, walk = list(makers), _Walk()
    for start in range(0, len(names), VALUES_AT_ONCE):
        chunk = names[start : start + VALUES_AT_ONCE]
        wanted, given = _values(original, chunk, feeds), _values(form, chunk, feeds)
        for name in chunk:
            if name in wanted and wanted[name].dtype.kind == "f":
                walk.largest[name] = _largest(wanted[name])
                share = _lost(wanted[name], given[name])
                if share and walk.first is None:
                    walk.first, walk.share = makers[name], share
                    walk.infinite = bool(np.isinf(given[name]).any())
    return walk


def _values(model: PreparedModel, names: Sequence[str], feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Inner values of a model by name; what is no tensor is left out."""
    import onnx

    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    del proto.graph.output[:]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return run_session(open_session(replace(model, proto=proto)), feeds, model.source.name)


def _to_keep_float(original: "ModelProto", walk: _Walk) -> list[str]:
    """Names of the nodes that read or give values too large for half precision, as passes name them.

    Where none is, a value too small for it became 0 or a ratio of two: the first node and those that it reads from.
    """
    import onnx

    proto = onnx.ModelProto()
    proto.CopyFrom(original)
    name_nodes(proto.graph)
    large = {name for name, value in walk.largest.items() if value * ROOM > LARGEST_HALF}
    nodes = [node for node in proto.graph.node if node.op_type != "Constant"]
    found = [node.name for node in nodes if not large.isdisjoint((*node.input, *node.output))]
    first = walk.first
    if first is not None and large.isdisjoint((*first.input, *first.output)):
        beside = {*first.input, *first.output}
        found += [node.name for node in nodes if not beside.isdisjoint(node.output)]
    return list(dict.fromkeys(found))
