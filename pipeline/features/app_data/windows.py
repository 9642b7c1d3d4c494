"""Samples of sound before a model: whole recordings, or steps, whose window is what is new behind what was kept.

What is kept is a state of the graph, so that an app gives each sample once. One hop a step makes the bits of a stream
the same however the app's recording is cut (app_data D.7).
"""

from typing import TYPE_CHECKING

from pipeline.config import app_data
from pipeline.features.app_data import fbank, log_mel, recording, sound_form
from pipeline.features.app_data.graph_end import GraphEnd
from pipeline.features.app_data.sound_form import SoundForm
from pipeline.model import edit as onnx_edit
from pipeline.model import types as onnx_types
from pipeline.model.signature import TensorInfo

if TYPE_CHECKING:
    import onnx

TITLE = f"{onnx_edit.ENDS}takes"
ELEMENTS = {app_data.SampleKind.INT16: onnx_types.CODES["i16"], app_data.SampleKind.FLOAT: onnx_types.FLOAT}


def part_of(takes: app_data.Takes, form: SoundForm) -> GraphEnd:
    """The part from SAMPLES, and KEPT [1, window - hop] where they differ, to what the model takes, its last node's.

    SAMPLES are [1, hop], or [1, n] of a whole recording.
    """
    import numpy as np

    part = GraphEnd(TITLE)
    samples = app_data.SAMPLES
    if takes.samples is app_data.SampleKind.INT16:
        samples = part.add("Cast", [samples], "floats", to=onnx_types.FLOAT)
    if takes.divide is not None:
        samples = part.add("Div", [samples, part.constant("divided by", np.float32(takes.divide))], "divided")
    if takes.whole_recording:
        samples = recording.add_to(part, samples, form.window, form.least)
    elif kept := _kept(takes, form):
        window = kept + (takes.hop or 0)
        samples = part.add("Concat", [app_data.KEPT, samples], "window", axis=1)
        next_kept = part.columns(samples, window - kept, window, 1, "kept")
        part.give(next_kept, app_data.NEXT_KEPT, "f32", [1, kept])
    if takes.features is app_data.SoundFeatures.LOG_MEL:
        log_mel.add_to(part, samples, form.bins, form.window or log_mel.USUAL_SAMPLES)
    elif takes.features:
        fbank.add_to(part, samples, takes, form.bins, form.window)
    else:
        part.add("Identity", [samples], "samples of the model")
    return part


def put_before(proto: "onnx.ModelProto", tensor: TensorInfo, takes: app_data.Takes, where: str) -> GraphEnd:
    """Put the part before an input of a model, in place; what was put. ConfigError where it does not fit."""
    from onnx import helper

    form = sound_form.form_of(tensor, takes, where)
    graph, part = proto.graph, part_of(takes, form)
    part.nodes[-1].output[:] = [tensor.name]  # readers of the input, in bodies too, read what the part makes
    place = next(index for index, value in enumerate(graph.input) if value.name == tensor.name)
    kind = ELEMENTS[takes.samples or app_data.SampleKind.FLOAT]
    length: int | str = app_data.LENGTH if takes.whole_recording else (takes.hop or form.window or 0)
    graph.input[place].CopyFrom(helper.make_tensor_value_info(app_data.SAMPLES, kind, [1, length]))
    if kept := _kept(takes, form):
        graph.input.append(helper.make_tensor_value_info(app_data.KEPT, onnx_types.FLOAT, [1, kept]))
    graph.output.extend(part.outputs)
    nodes = [*part.nodes, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(part.constants)
    return part


def _kept(takes: app_data.Takes, form: SoundForm) -> int:
    """How many samples a step keeps for the next one."""
    return (form.window or 0) - takes.hop if takes.hop else 0
