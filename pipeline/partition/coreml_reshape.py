"""What CoreML's op builders ask of nodes that give data another shape: Reshape, Unsqueeze, Tile, Pad (ep_rules E.4)."""

from pipeline.partition.answer import Refusal
from pipeline.partition.checks import constant, listed, rank, show, show_shape, since, when
from pipeline.partition.coreml_index import MAX_RANK, static
from pipeline.partition.coreml_types import mlprogram, neural_network
from pipeline.partition.graph import Shape
from pipeline.partition.rules import Case


def reshape(case: Case) -> Refusal | None:
    """A constant shape of one to five entries, for an input whose shape is known."""
    refusal = constant(1, "the shape")(case)
    found = case.constant(1)
    if refusal is not None or found is None:
        return refusal
    entries = found.numbers()
    if not 1 <= len(entries) <= MAX_RANK:
        return Refusal("rank", f"the new shape {entries} has {len(entries)} entries, taken are 1 to 5", "use fewer")
    refusal = static(case) or rank(0, 1, MAX_RANK)(case)
    if refusal is None and case.attribute("allowzero", 0) == 1 and 0 in entries:
        return Refusal("zero", f"the new shape {entries} asks for a dimension of 0 (allowzero = 1)", "leave it out")
    return refusal


def unsqueeze(case: Case) -> Refusal | None:
    """Axes known beforehand (ONNX Runtime reads their number without looking), at most five dimensions."""
    if case.ver < 13:
        added = len(case.attribute("axes") or ())
    else:
        refusal = constant(1, "axes")(case)
        found = case.constant(1)
        if refusal is not None or found is None:
            return refusal
        if found.dims == ():
            return Refusal(
                "crash",
                f"Unsqueeze '{case.node.name or case.node.first_output}' has axes that are a single number: ONNX "
                "Runtime's CoreML part reads them as a list and the process ends",
                "give the axes as a list of one number",
                fatal=True,
            )
        added = found.dims[0]
    if case.rank(0) + added <= MAX_RANK:
        return None
    return Refusal("rank", f"the result has rank {case.rank(0) + added}, Core ML has at most 5", "use fewer dimensions")


SQUEEZE = when(since(13), when(listed(1), constant(1, "axes")))


def tile(case: Case) -> Refusal | None:
    """Repeats of at least one for each dimension; NeuralNetwork must know them beforehand."""
    found = case.constant(1)
    if found is None:
        return constant(1, "repeats")(case) if neural_network(case) else None
    repeats = found.numbers()
    if len(repeats) == case.rank(0) and all(count >= 1 for count in repeats):
        return None
    return Refusal(
        "repeats", f"repeats {repeats} of {show_shape(case.shape(0))}", "repeat at least once along each dimension"
    )


def transposed_flatten(case: Case) -> Refusal | None:
    """Flatten of a scalar is not taken."""
    return rank(0, 1, MAX_RANK)(case)


def pad(case: Case) -> Refusal | None:
    """Constant padding of the last two dimensions by NeuralNetwork; of any, or by reflection, by MLProgram (1.26)."""
    recent = case.settings.ort_release >= (1, 26)
    least = 1 if mlprogram(case) else 2
    return (
        rank(0, least, MAX_RANK)(case)
        or _pad_mode(case)
        or _pad_value(case, optional=recent and mlprogram(case))
        or _pads(case)
    )


def _pad_mode(case: Case) -> Refusal | None:
    mode = case.attribute("mode", "constant")
    if mode == "constant" or (mode == "reflect" and mlprogram(case)):
        return None
    return Refusal("mode", f"mode {mode} is not taken", "pad by a constant, or write reflection as Slice and Concat")


def _pad_value(case: Case, *, optional: bool) -> Refusal | None:
    if optional and (case.attribute("mode", "constant") != "constant" or not case.exists(2)):
        return None
    if case.graph.initializers.get(case.input(2)) is None:
        return Refusal(
            "const",
            f"the padding value {show(case, 2)} is no initializer of the graph in which the node stands",
            "give the padding value as an initializer",
        )
    if neural_network(case) and case.settings.ort_release >= (1, 23) and case.dtype(2) != "f32":
        return Refusal("type", f"the padding value is {case.dtype(2)}, not f32", "pad in f32")
    return None


def _pads(case: Case) -> Refusal | None:
    found = case.graph.initializers.get(case.input(1))
    if found is None:
        return Refusal("const", f"pads {show(case, 1)} is no initializer of this graph", "make pads an initializer")
    pads = found.numbers()
    if any(pad < 0 for pad in pads):
        return Refusal("negative", f"pads {pads} are partly negative", "cut with Slice in place of negative padding")
    shape = case.shape(0) or ()
    axes = list(range(len(shape)))
    if case.listed > 3:
        given_axes = case.graph.initializers.get(case.input(3)) if case.exists(3) else None
        if given_axes is None:
            return _no_axes(case)
        axes = [axis + len(shape) if axis < 0 else axis for axis in given_axes.numbers()]
    return _padded(case, shape, dict(zip(axes, zip(pads[: len(axes)], pads[len(axes) :], strict=False), strict=False)))


def _no_axes(case: Case) -> Refusal:
    """Axes that are no initializer; listed under an empty name they end the session since release 1.26."""
    fatal = not case.exists(3) and case.settings.ort_release >= (1, 26)
    text = f"Pad '{case.node.name or case.node.first_output}' lists axes {show(case, 3)}, which are no initializer"
    return Refusal(
        "crash" if fatal else "const",
        text + (": ONNX Runtime's CoreML part throws, and no session is made" if fatal else " of this graph"),
        "leave the axes out of the input list, or make them an initializer",
        fatal=fatal,
    )


def _padded(case: Case, shape: Shape, amounts: dict[int, tuple[int, int]]) -> Refusal | None:
    mode = case.attribute("mode", "constant")
    outer = [axis for axis, pair in amounts.items() if any(pair) and axis < len(shape) - 2]
    if outer and (neural_network(case) or mode != "constant"):
        return Refusal(
            "axis",
            f"it pads dimension {outer[0]} of {show_shape(shape)}, taken are the last two",
            "pad height and width only" + ("; or use format MLProgram (release 1.26)" if mode == "constant" else ""),
        )
    for axis, pair in amounts.items() if mode == "reflect" else ():
        size = shape[axis]
        if size is None or max(pair) >= size:
            return Refusal(
                "pads", f"it reflects {max(pair)} entries of a dimension of size {size or 'unknown'}", "pad by less"
            )
    return None
