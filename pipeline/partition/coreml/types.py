"""CoreML's formats, data types that its op builders take, what fails when a session is made (ep_rules E.2 to E.6)."""

from collections.abc import Callable, Collection, Iterable, Iterator

from pipeline.partition.answer import LoadForecast, Refusal, Settings
from pipeline.partition.graph import Graph, Node
from pipeline.partition.grouping import LayoutRound, given_outside
from pipeline.partition.rules import Case, Check, bodies, claim, show, show_shape

NN = "NeuralNetwork"
MLP = "MLProgram"
BOTH = (NN, MLP)

MLPROGRAM_VERSION = 5
"""The Core ML version (iOS 15) that brought MLProgram."""


def model_format(settings: Settings) -> str:
    """The format that ONNX Runtime writes: up to release 1.21 NeuralNetwork where Core ML is too old for MLProgram."""
    return MLP if settings.mlprogram and settings.coreml_version >= MLPROGRAM_VERSION else NN


def mlprogram(case: Case) -> bool:
    """Condition: the model format is MLProgram."""
    return model_format(case.settings) == MLP


def neural_network(case: Case) -> bool:
    """Condition: the model format is NeuralNetwork."""
    return model_format(case.settings) == NN


def f16_by_version(case: Case) -> frozenset[str]:
    """The f16 of rows that ask for Core ML 6 themselves, whatever the library was built by."""
    return frozenset({"f16"}) if mlprogram(case) and case.settings.coreml_version >= 6 else frozenset()


def wide_types(case: Case) -> frozenset[str]:
    """What MLProgram supports in addition to f32 unless a row has its own: it depends on release and builder (E.2)."""
    settings = case.settings
    if not mlprogram(case):
        return frozenset()
    if settings.ort_release < (1, 22):
        return frozenset({"f16"} if settings.ort_release >= (1, 20) else ())
    built = settings.ort_release >= (1, 24) and settings.coreml6_types
    return frozenset({"f16", "i64"}) if built else frozenset()


def _words(case: Case, position: int, allowed: Collection[str]) -> Refusal:
    element = case.dtype(position) or "unknown"
    taken = " or ".join(sorted(allowed))
    return Refusal(
        "type",
        f"input {show(case, position)} is {element}; CoreML ({model_format(case.settings)}) supports {taken} here",
        _remedy(case, element, allowed),
    )


def _remedy(case: Case, element: str, allowed: Collection[str]) -> str:
    if element == "f16" and neural_network(case):
        return "convert the model to f32 (Core ML computes in f16 itself), or try format MLProgram"
    if element == "f16":
        return "convert the model to f32 (Core ML computes in f16 itself), or ship release 1.24 or later"
    if element in ("u8", "i8", "u16", "i16"):
        return "leave this node out of quantization: CoreML gets no quantized operators"
    return f"compute this part in {' or '.join(sorted(allowed))}; where it is a matter of shapes, fix the dimensions"


def taken(position: int, types: Callable[[Case], Collection[str]]) -> Check:
    """The element type of an input is one of those that `types` gives for the case."""

    def check(case: Case) -> Refusal | None:
        allowed = types(case)
        return None if case.dtype(position) in allowed else _words(case, position, allowed)

    return check


F32 = frozenset({"f32"})
plain = taken(0, lambda case: F32 | wide_types(case))
"""The check of rows that name no types of their own: T0 of ep_rules E.2."""


def same_types(case: Case) -> Refusal | None:
    """Both operands of Pow have one type."""
    if case.dtype(0) == case.dtype(1):
        return None
    return Refusal(
        "type",
        f"the operands are of types {case.dtype(0)} and {case.dtype(1)}; CoreML needs one type for both",
        "make the exponent a value of the base's type",
    )


def float_or_wide(case: Case) -> Refusal | None:
    """The plain types, but floating-point ones only (HardSigmoid, FusedConv)."""
    return plain(case) or taken(0, lambda _: ("f32", "f16"))(case)


def normalization(case: Case) -> Refusal | None:
    """f32 or f16, whatever the library; scale and bias of the same type."""
    refusal = taken(0, lambda _: ("f32", "f16"))(case)
    for position in range(1, 3):
        if refusal is None and case.exists(position) and case.dtype(position) != case.dtype(0):
            return Refusal(
                "type",
                f"{show(case, position)} is of type {case.dtype(position)}, the input of type {case.dtype(0)}",
                "give scale and bias in the type of the input",
            )
    return refusal


def cast(case: Case) -> Refusal | None:
    """MLProgram casts between the types that Core ML has; NeuralNetwork only the result of ArgMax."""
    if neural_network(case):
        return taken(0, lambda _: ("i64",))(case)
    allowed = ("f16", "f32", "i32", "i64", *(("bool",) if case.settings.ort_release >= (1, 27) else ()))
    refusal = taken(0, lambda _: allowed)(case)
    element = case.graph.value(case.node.first_output).dtype
    if refusal is None and element not in allowed:
        return Refusal(
            "type",
            f"it casts to {element or 'an unknown type'}, Core ML has {', '.join(allowed)}",
            "cast to one of them",
        )
    return refusal


def shape(case: Case) -> Refusal | None:
    """The types of Shape's input."""
    wide = {"i64"} if case.settings.ort_release >= (1, 23) else set()
    return taken(0, lambda c: {"f32", "f16", "i32"} | wide if mlprogram(c) else F32)(case)


def gather(case: Case) -> Refusal | None:
    """f32 and i64; f16 for MLProgram since release 1.24."""
    recent = case.settings.ort_release >= (1, 24)
    return taken(0, lambda c: {"f32", "i64"} | (f16_by_version(c) if recent else frozenset()))(case)


slice_ = taken(0, lambda case: {"f32", "i64"} | f16_by_version(case))
tile = taken(0, lambda case: {"f32", "i32", "i64", "bool"} | f16_by_version(case))
gather_nd = taken(0, lambda _: ("f32", "f16", "i32", "i64", "bool"))


def where(case: Case) -> Refusal | None:
    """A bool condition and two floating-point operands of one type."""
    refusal = taken(0, lambda _: ("bool",))(case) or taken(1, lambda _: ("f32", "f16"))(case)
    return refusal or taken(2, lambda c: (c.dtype(1) or "f32",))(case)


def both_bool(case: Case) -> Refusal | None:
    """Both operands of And are bool."""
    return taken(0, lambda _: ("bool",))(case) or taken(1, lambda _: ("bool",))(case)


def pad(case: Case) -> Refusal | None:
    """Under MLProgram f16 too, whatever the library (release 1.26)."""
    return taken(0, lambda _: ("f32", "f16"))(case) if mlprogram(case) else plain(case)


CORE_ML_TYPES = ("f32", "f16", "i32", "i64")
"""Element types that values between ONNX Runtime and a Core ML model may have (i64 travels as i32)."""


def forecast(rounds: Iterable[LayoutRound], settings: Settings) -> LoadForecast:
    """The compiled nodes of the last round (`rounds` has those of each), or the first thing that goes wrong.

    Bodies are asked about once, before the graph around them.
    """
    counts: list[int] = []
    for number, asked in enumerate(rounds):
        problem = asked.claim.fatal or build_refusal(asked.graph, asked.claim.groups, settings)
        if problem is not None:
            return LoadForecast.failing(problem)
        counts.append(len(asked.claim.groups))
        for _, body in bodies(asked.graph) if number == 0 else ():
            body_claim = claim(body, settings)
            problem = body_claim.fatal or build_refusal(body, body_claim.groups, settings)
            if problem is not None:
                return LoadForecast.failing(problem)
            counts[0] += len(body_claim.groups)
    return LoadForecast(partitions=counts[-1], rounds=tuple(counts))


def build_refusal(graph: Graph, groups: Iterable[tuple[Node, ...]], settings: Settings) -> Refusal | None:
    """The first reason why one of the partitions cannot become a Core ML model, so that no session is made."""
    return next((problem for group in groups for problem in _problems(graph, group, settings)), None)


def _problems(graph: Graph, group: tuple[Node, ...], settings: Settings) -> Iterator[Refusal]:
    members = {node.index for node in group}
    taken = (*CORE_ML_TYPES, *(("bool",) if settings.ort_release >= (1, 27) else ()))
    for name, node in _inputs(graph, group):
        if graph.value(name).dtype not in taken:
            yield _bad_type(graph, name, node, taken)
    for node in group:
        if node.op_type == "Split" and len(node.inputs) > 1 and not node.inputs[1]:
            yield _empty_split(node)
    for name in given_outside(graph, group, members):
        value = graph.value(name)
        if value.shape is None:
            yield _unknown_shape(name)
        elif value.dtype not in taken:
            yield _bad_type(graph, name, group[-1], taken)


def _inputs(graph: Graph, group: tuple[Node, ...]) -> Iterator[tuple[str, Node]]:
    """Values that the Core ML model gets from outside: no initializers, and not Resize's roi, which is skipped."""
    outputs = {name for node in group for name in node.outputs}
    for node in group:
        for slot, name in enumerate(node.inputs):
            if not name or name in outputs or name in graph.initializers or graph.constant(name) is not None:
                continue
            if node.op_type != "Resize" or slot != 1:
                yield name, node


def _bad_type(graph: Graph, name: str, node: Node, taken: Iterable[str]) -> Refusal:
    return Refusal(
        "io_type",
        f"value '{name}' goes between ONNX Runtime and the Core ML model with {node.op_type} "
        f"'{node.name or node.first_output}', and is of type {graph.value(name).dtype or 'unknown'}; Core ML has "
        f"{', '.join(taken)} there, so building the model fails and no session is made",
        "cast the value to one of them before the node",
    )


def _unknown_shape(name: str) -> Refusal:
    return Refusal(
        "io_shape",
        f"value '{name}' leaves the Core ML model, and its rank is not known "
        f"({show_shape(None)}): building the model fails and no session is made",
        "give the value's shape in the model (value_info), or fix the model's dynamic dimensions",
    )


def _empty_split(node: Node) -> Refusal:
    return Refusal(
        "crash",
        f"Split '{node.name or node.first_output}' lists its second input under an empty name: ONNX Runtime's CoreML "
        "part reads it all the same and the process ends",
        "leave the second input out of the list",
        fatal=True,
    )
