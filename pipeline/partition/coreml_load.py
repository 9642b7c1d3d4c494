"""What becomes of CoreML's claims when a session is made: compiled nodes, or why its model cannot be built (E.6)."""

from collections.abc import Iterable, Iterator

from pipeline.partition.answer import LoadForecast, Refusal, Settings
from pipeline.partition.checks import show_shape
from pipeline.partition.claim import bodies, claim
from pipeline.partition.graph import Graph, Node
from pipeline.partition.rounds import LayoutRound, given_outside

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
            return LoadForecast(error=problem.text, remedy=problem.remedy or None)
        counts.append(len(asked.claim.groups))
        for _, body in bodies(asked.graph) if number == 0 else ():
            found = claim(body, settings)
            problem = found.fatal or build_refusal(body, found.groups, settings)
            if problem is not None:
                return LoadForecast(error=problem.text, remedy=problem.remedy or None)
            counts[0] += len(found.groups)
    return LoadForecast(partitions=counts[-1], rounds=tuple(counts))


def build_refusal(graph: Graph, groups: Iterable[tuple[Node, ...]], settings: Settings) -> Refusal | None:
    """The first reason why one of the partitions cannot become a Core ML model, so that no session is made."""
    return next((found for group in groups for found in _problems(graph, group, settings)), None)


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
    made = {name for node in group for name in node.outputs}
    for node in group:
        for slot, name in enumerate(node.inputs):
            if not name or name in made or name in graph.initializers or graph.constant(name) is not None:
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
