"""Samples of sound in steps: what is new, behind what was kept, is the window that a model takes.

What is kept is a state of the graph, so that an app gives each sample once. One hop a step makes the bits of a stream
the same however the app's recording is cut (app_data D.4).
"""

from typing import TYPE_CHECKING

from device_runner.spec import ElementType
from pipeline.config import app_data
from pipeline.core.errors import ConfigError
from pipeline.features.app_data.graph_end import GraphEnd
from pipeline.model import edit as onnx_edit
from pipeline.model import types as onnx_types
from pipeline.model.signature import TensorInfo

if TYPE_CHECKING:
    import onnx

TITLE = f"{onnx_edit.ENDS}takes"
ELEMENTS = {app_data.SampleKind.INT16: onnx_types.CODES["i16"], app_data.SampleKind.FLOAT: onnx_types.FLOAT}


def window_of(takes: app_data.Takes, window: int) -> GraphEnd:
    """The part from SAMPLES [1, hop], and KEPT [1, window - hop] where they differ, to a window, float32 [1, window].

    Its last node but for the one that makes NEXT_KEPT gives the window.
    """
    import numpy as np

    part = GraphEnd(TITLE)
    samples = app_data.SAMPLES
    if takes.samples is app_data.SampleKind.INT16:
        samples = part.add("Cast", [samples], "floats", to=onnx_types.FLOAT)
    if takes.divide is not None:
        samples = part.add("Div", [samples, part.constant("divided by", np.float32(takes.divide))], "divided")
    kept = window - (takes.hop or window)
    if not kept:
        part.add("Identity", [samples], "window")
        return part
    whole = part.add("Concat", [app_data.KEPT, samples], "window", axis=1)
    bounds = [np.array([number], np.int64) for number in (window - kept, window, 1)]
    names = [part.constant(name, bound) for name, bound in zip(("start", "end", "axis"), bounds, strict=True)]
    part.add("Slice", [whole, *names], "kept")
    return part


def put_before(proto: "onnx.ModelProto", tensor: TensorInfo, takes: app_data.Takes, where: str) -> GraphEnd:
    """Put the window before an input of a model, in place; what was put. ConfigError where it does not fit."""
    from onnx import helper

    graph, window = proto.graph, _length(tensor, takes, where)
    hop = takes.hop or window
    part = window_of(takes, window)
    own = {part.named("window"): tensor.name, part.named("kept"): app_data.NEXT_KEPT}
    for node in part.nodes:
        node.input[:] = [own.get(name, name) for name in node.input]
        node.output[:] = [own.get(name, name) for name in node.output]
    place = next(index for index, value in enumerate(graph.input) if value.name == tensor.name)
    kind = ELEMENTS[takes.samples or app_data.SampleKind.FLOAT]
    graph.input[place].CopyFrom(helper.make_tensor_value_info(app_data.SAMPLES, kind, [1, hop]))
    if window > hop:
        ends = (graph.input, app_data.KEPT), (graph.output, app_data.NEXT_KEPT)
        for values, name in ends:
            values.append(helper.make_tensor_value_info(name, onnx_types.FLOAT, [1, window - hop]))
    nodes = [*part.nodes, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(part.constants)
    return part


def _length(tensor: TensorInfo, takes: app_data.Takes, where: str) -> int:
    """The samples of the window; ConfigError where the input takes none, or others."""
    shape = tensor.shape
    if (
        tensor.dtype is not ElementType.FLOAT32
        or not shape
        or len(shape) != 2
        or (isinstance(shape[0], int) and shape[0] != 1)
    ):
        raise ConfigError(
            f"the input {tensor.name!r} takes no samples",
            where=where,
            why=f"it is {tensor}; float32 [1, n] is wanted",
            remedy="name another input as `takes.input`, or export the model for one sound",
        )
    own = shape[1] if isinstance(shape[1], int) else None
    window = takes.window or own
    if window is None or (own is not None and window != own) or window < (takes.hop or window):
        raise ConfigError(
            f"a window of {window or 'no'} samples does not fit the input {tensor.name!r}",
            where=where,
            why=f"it is {tensor}, and {takes.hop} samples are new in each step",
            remedy="give `takes.window`, the samples that the model takes at once, and a `takes.hop` that is no larger",
        )
    return window
