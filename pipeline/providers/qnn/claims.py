"""The claims of a Snapdragon's NPU: Qualcomm's compiler is asked, and its answer is brought to the model's own nodes.

There are no rules here. One session is made for a chip, in a process of its own (`session`); the provider says which
nodes it took, its trace and the backend's log why not the others. A session that fails is an answer of its own.
"""

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from device_runner import providers as runner_providers
from device_runner import untrusted_files
from pipeline.core import errors as core_errors
from pipeline.core import files as storage
from pipeline.core import releases as ort_releases
from pipeline.core.errors import MissingError
from pipeline.model import guards, onnx_model
from pipeline.partition import answer as claim_answer
from pipeline.partition import claiming as partition_claiming
from pipeline.partition import graph as partition_graph
from pipeline.partition import provider_claims
from pipeline.partition import rules as partition_rules
from pipeline.partition import shown as partition_shown
from pipeline.partition import subject as partition_subject
from pipeline.partition import types as partition_types
from pipeline.partition.kept import entry_of, keep, kept
from pipeline.providers.qnn.suspects import suspicions

if TYPE_CHECKING:
    from onnx import ModelProto

PROVIDER: Final = "QNNExecutionProvider"
NHWC: Final = "com.ms.internal.nhwc"
"""The domain of operators that ONNX Runtime changed to channels last for a provider."""


SESSION: Final = "pipeline.providers.qnn.session"
SECONDS = 100.0
"""For one question: less than a worker has for a model, so that a hang is an answer."""


TO_CPU = "leave it to the CPU at the model's end"

WITHOUT_SIZE = r"Cannot get (?:[\w\[\]]+ )*shape"
"""Said of a value whose shape the provider does not know."""

SIZE_BY_DATA = claim_answer.Refusal(
    "data",
    "the size of one of its values depends on data, such as on what NonMaxSuppression finds",
    "leave such a part to the CPU at the model's end",
)
"""What `WITHOUT_SIZE` means in a model whose inputs have all their sizes."""

CAUSES: Mapping[str, claim_answer.Refusal] = {
    WITHOUT_SIZE: claim_answer.Refusal(
        "shape",
        "the shape of one of its values is not known before the model runs",
        "give the dimensions of the inputs sizes, with --dimension NAME=N or the pass fixed-dimensions",
    ),
    r"Operators of type `?'?(QLinear\w+|QGemm|QAttention)`?'? are not supported": claim_answer.Refusal(
        "operator", "the NPU's provider has no {1}", "quantize the model in QDQ form instead of with QLinear operators"
    ),
    r"Operators of type `?'?(\w+)`?'? are not supported": claim_answer.Refusal(
        "operator", "the NPU's provider has no {1}", f"express it by other operators, or {TO_CPU}"
    ),
    r"(?:support )?(\w+) (?:operator not supported by|on the) HTP backend": claim_answer.Refusal(
        "operator", "the NPU has no {1}", f"express it by other operators, or {TO_CPU}"
    ),
    r"Failed to (?:add (?:\w+ )?|create manually inserted Qnn \w+ )node": claim_answer.Refusal(
        "backend",
        "the NPU has it not for these types and shapes, or not the operator that it belongs to",
        "compute it in f32 with at most 5 dimensions, or express it by other operators",
    ),
    "to not take (?:DQ nodes that generate a graph output|Q nodes that consume a graph input)": claim_answer.Refusal(
        "border", "it converts an input or output of the model, which ONNX Runtime does on the CPU: no partition is cut"
    ),
    "may only change the spatial dimensions": claim_answer.Refusal(
        "attr", "it resizes batch or channels, and the NPU only height and width", "resize the last two dimensions only"
    ),
    "Resize (?:on the NPU |operator )?(?:does|only|cubic)|ResizeNearestNeighbor on": claim_answer.Refusal(
        "attr",
        "the NPU has no Resize of this mode and these coordinates",
        "use linear with half_pixel, or nearest with asymmetric and floor (`transform --do equal-resize`)",
    ),
    "with an initializer input": claim_answer.Refusal(
        "trivial", "it reads nothing but constants", "fold constants first, with --optimize basic"
    ),
    "(?:initializer value|(?:must|needs? to) be (?:an? )?(?:constant|initializer)|requires constant input|"
    r"as constant input|hence input\[1\]|compile-time constants|[Dd]ynamic \w+)": claim_answer.Refusal(
        "const",
        "an input that the NPU needs as a constant is computed by the model, or is an input of it",
        "make it an initializer, and no input (the pass constant-initializers)",
    ),
    "standalone (?:DQ|Q) op with per-channel": claim_answer.Refusal(
        "quantized",
        "a tensor quantized by channel is taken only as the weight of an operator",
        "quantize this tensor as a whole, or the operator that reads it, too",
    ),
    r"per-(?:tensor|channel)(?: \(scalar\))? quant": claim_answer.Refusal(
        "quantized",
        "it has a scale for each channel, and the NPU takes it with a single one",
        "quantize this tensor as a whole",
    ),
    r"ranks?\b.*(?:of size|than|at least|>|>=|<=|3, 4, or 5)|\(rank 3\) inputs|more than 5 dimensions|"
    "PoolMax3d": claim_answer.Refusal(
        "rank", "the NPU has it not for so many dimensions", "reshape the values around the node to 4 dimensions"
    ),
    "axis with last input dimension|only supports normalization along the last axis": claim_answer.Refusal(
        "attr", "it normalizes more than the last axis", "normalize the last axis only"
    ),
    "unsupported equation|Einsum requires": claim_answer.Refusal(
        "attr", "the NPU has no such Einsum", "write it as MatMul and Transpose"
    ),
    "Pad doesn't support axes": claim_answer.Refusal("attr", "it names axes", "give pads of all dimensions"),
    "[Dd]ata ?type|Type not supported|only supports? (?:float|bool)|quantized input": claim_answer.Refusal(
        "type", "the NPU has it not for this type", "compute it in f32, or quantize it where it is f32"
    ),
    "at least (?:2|two) inputs": claim_answer.Refusal(
        "attr", "it has a single input, which it gives on", "leave the node out"
    ),
    "only supports? (alpha|beta)=1": claim_answer.Refusal(
        "attr", "its {1} is not 1", "multiply the weights by alpha and the bias by beta"
    ),
    "dilation": claim_answer.Refusal(
        "attr",
        "it has dilations, which the NPU has not for this operator",
        "make dilations 1: a kernel with zeros between its weights computes the same",
    ),
    "only supports? 1 output|expects exactly 2 outputs": claim_answer.Refusal(
        "attr",
        "it has another number of outputs than on the NPU",
        "leave out the outputs that are there for training or are not read",
    ),
    "negative (?:or out-of-bounds )?ind": claim_answer.Refusal(
        "attr", "an index counts from the end", "count it from the front"
    ),
    "does not support mode (?:bi)?cubic": claim_answer.Refusal(
        "attr", "the NPU has no cubic interpolation", "use linear, or nearest"
    ),
    "only support fmod == 0": claim_answer.Refusal(
        "attr",
        "its remainder has the sign of the dividend (fmod), which the NPU has not",
        "set fmod 0 where no number is below 0",
    ),
    "NonZero output shape must be static": SIZE_BY_DATA,
    "Pad mode only support|(?:reflect|edge) mode doesn't support negative": claim_answer.Refusal(
        "attr", "the NPU has not this mode of padding", "pad with constants, and cut off with Slice"
    ),
    "identical shapes for no-op": claim_answer.Refusal("attr", "it changes nothing", "leave the node out"),
    "NoOp for reduction": claim_answer.Refusal(
        "attr", "it reduces no axis, which changes nothing", "leave the node out"
    ),
}
"""What the provider's reasons mean, by patterns of them, the first that fits: `{1}` stands for the pattern's group.

A reason that no pattern fits stands as the provider says it.
"""

FAILURES: Mapping[str, claim_answer.Refusal] = {
    r"Node '[^']*' OpType:(\w+) .*was inserted using the NHWC format": claim_answer.Refusal(
        "layout",
        "the NPU's provider takes {1} and refuses it when layouts are channels last, which ends the session",
        "use another form of the model: quantized where the chip has no floats, else with unsigned activations",
    ),
    "Failed to (?:finalize|compose) Q[Nn][Nn] graph": claim_answer.Refusal(
        "build",
        "the compiler has no implementation of a node that the provider took, which ends the session",
        "quantize the nodes that are float still, or leave the last nodes to the CPU",
    ),
    "Unsupported FP64 data type": claim_answer.Refusal(
        "type", "an input or output is of type f64", "make the model's inputs and outputs f32"
    ),
    "Dynamic shape is not supported yet, for input: (.+)": claim_answer.Refusal(
        "dynamic", "the input {1} has a dimension without a size", "give it one with --dimension NAME=N"
    ),
    "^Cannot get shape": claim_answer.Refusal(
        "dynamic",
        "the provider met a value without a size, which ends the session",
        "give the open dimensions sizes with --dimension NAME=N",
    ),
    "zero graph inputs": claim_answer.Refusal(
        "trivial", "a partition reads nothing but constants", "fold constants first, with --optimize basic"
    ),
    "Could not find an implementation for (.+?) node": claim_answer.Refusal(
        "cpu", "neither the NPU nor the CPU has a kernel for {1}", "compute this part in another type, such as f32"
    ),
    r"Exception during initialization: .*::(\w+)\(const": claim_answer.Refusal(
        "cpu",
        "{1} is left to the CPU, whose kernel refuses its attributes",
        "give it attributes that the CPU computes, or express it by other operators",
    ),
    "contextCreateFromBinary failed": claim_answer.Refusal(
        "context",
        "the context is of another generation of NPUs, of a newer QAIRT, or for several chips",
        "make it again for this chip; a context for several chips cannot be opened on this computer",
    ),
    "file path in ep_cache_context does not exist": claim_answer.Refusal(
        "context",
        "the .bin of the context is not beside the model",
        "keep both in one folder, under the names that they were made with",
    ),
    "fallback to CPU EP has been explicitly disabled": claim_answer.Refusal(
        "cpu",
        "some nodes are not for the NPU, and the CPU is forbidden",
        "allow it, or fix the nodes that are named here",
    ),
    "soc_model and htp_arch having equal number|mode is enabled but (?:SoC model|soc_model)": claim_answer.Refusal(
        "option", "an option of the provider does not suit the chip", "leave options beside --chip out"
    ),
    "graph execute error": claim_answer.Refusal(
        "run",
        "the NPU makes a session and does not run it",
        "quantize the model, or find the node with `transform --do extract`",
    ),
    "Graph optimization|Type Error|ShapeInferenceError|INVALID_GRAPH": claim_answer.Refusal(
        "model", "ONNX Runtime refuses the model"
    ),
}
"""Why no session is made, as `CAUSES`; an error that is not here stands as ONNX Runtime says it."""

MOST_DIMENSIONS = 5
"""Nearly all operators of the backend take tensors of up to so many."""

PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ")


class CompilerAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What `session` wrote, or of what it ended: a signal's name or "time"."""

    subgraphs: tuple[tuple[str, tuple[tuple[str, str, str], ...]], ...] = ()
    refusals: dict[str, str] = {}
    invalid: dict[str, str] = {}
    error: str = ""
    ended_by: str = ""


def of_chip(
    loaded: onnx_model.LoadedModel,
    model: "ModelProto",
    graph: partition_graph.Graph,
    chip: runner_providers.Chip,
    folder: Path,
) -> tuple[partition_claiming.Claim, claim_answer.LoadForecast]:
    """What the NPU of a chip takes of a model, and what making a session gives.

    `graph` is the view of `model`, whose weights are those of `loaded`; `folder` is for files of the question.
    MissingError without the compiler, ModelError for a context, and where the compiler does not work.
    """
    guards.refuse_context((node.op_type for node in graph.nodes.values()), loaded.source.name)
    if empty := empty_value(graph):
        why = f"'{empty}' has a dimension of size 0, which the compiler does not stand"
        failure = claim_answer.Refusal("empty", why, "give the model's values other sizes")
        return partition_claiming.Claim(
            refusals=dict.fromkeys(graph.nodes, NO_SESSION)
        ), claim_answer.LoadForecast.failing(failure)
    target = folder / f"asked-{chip.name}.onnx"
    partition_subject.write_model(
        replace(loaded, proto=model), target, named=True
    )  # the answer knows nodes by names only
    entry = entry_of(".json", chip, *(storage.sha256_of(path) for path in sorted(folder.glob(f"{target.name}*"))))
    answer = kept(entry, CompilerAnswer)
    if answer is None:
        answer = ask(target, chip, SECONDS)
        if answer.ended_by != "time":  # a busy machine is no fact about the model
            keep(entry, answer)
    return claim_on(graph, answer, chip)


def empty_value(graph: partition_graph.Graph) -> str:
    """A value without an element, of which the compiler dies by a division by zero; "" where there is none."""
    makes = (name for node in graph.nodes.values() for name in node.outputs if name)
    return next((name for name in (*graph.inputs, *makes) if 0 in (graph.value(name).shape or ())), "")


def ask(model: Path, chip: runner_providers.Chip, limit_seconds: float, inputs: Path | None = None) -> CompilerAnswer:
    """One question to the compiler; its crash or hang is the answer.

    With `inputs`, an .npz of one sample or several, the simulator runs the model on each: its outputs are beside the
    model as .npz, in their order.
    """
    target = model.with_suffix(".json")
    options = [f"{key}={value}" for key, value in chip.options.items()]
    program = [sys.executable, "-m", SESSION, "claims"]
    command = [*program, str(model), str(target), str(inputs or ""), *options]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return CompilerAnswer(ended_by="time")
    if done.returncode < 0:
        return CompilerAnswer(ended_by=signal.Signals(-done.returncode).name)
    try:
        answer = untrusted_files.decode_json(untrusted_files.read_regular(target), CompilerAnswer)
    except (OSError, msgspec.MsgspecError) as error:
        last = (done.stderr.strip().splitlines() or [str(error)])[-1]
        raise _broken(last) from error
    if re.search("SetupBackend failed|Could not determine default backend|minimum.*version|API version", answer.error):
        raise _broken(answer.error)
    return answer


def _broken(why: str) -> MissingError:
    return MissingError(
        "Qualcomm's compiler for the NPU does not work here",
        why=why,
        remedy=f"install the pair again: {core_errors.install_extra('qnn')}",
    )


def claim_on(
    graph: partition_graph.Graph, answer: CompilerAnswer, chip: runner_providers.Chip
) -> tuple[partition_claiming.Claim, claim_answer.LoadForecast]:
    """The compiler's answer on a graph whose nodes were named after their first outputs."""
    failure = _failure(graph, answer, chip)
    groups = _groups(graph, answer)
    claimed = {node.index for group in groups for node in group}
    refusals = {
        index: _refusal(graph, node, answer, chip) or (NO_SESSION if failure else _unsaid(graph, node, answer))
        for index, node in graph.nodes.items()
        if index not in claimed
    }
    if failure is None and not chip.floats:
        # The compiler takes floats for some of these chips; their phones refuse them when the session is made.
        node = next((node for group in groups for node in group if _computes_floats(graph, node)), None)
        if node is not None:
            failure = _float(node, chip)
    claim = partition_claiming.Claim(groups=groups, refusals=refusals)
    if failure is not None:
        return claim, claim_answer.LoadForecast.failing(failure)
    return claim, claim_answer.LoadForecast(partitions=len(groups), rounds=(len(groups),))


def _failure(
    graph: partition_graph.Graph, answer: CompilerAnswer, chip: runner_providers.Chip
) -> claim_answer.Refusal | None:
    """Why no session is made, None where one is."""
    if answer.ended_by == "time":
        return claim_answer.Refusal("hang", "the compiler gave no answer in time", "ask again on an idle machine")
    if answer.ended_by:
        return claim_answer.Refusal(
            "crash", f"the compiler crashed ({answer.ended_by})", "find the node with `transform --do extract`"
        )
    if not answer.error:
        return None
    floats = (
        None if chip.floats else next((node for node in graph.nodes.values() if _computes_floats(graph, node)), None)
    )
    failure = failure_of(answer.error)
    return _float(floats, chip) if floats and failure.code in ("layout", "build") else failure


def failure_of(error: str) -> claim_answer.Refusal:
    """What an error of ONNX Runtime or the provider means."""
    text = PREFIX.sub("", error).strip()
    return meaning_of(FAILURES, text) or claim_answer.Refusal("session", f"no session is made: {text}")


def cause_of(error: str) -> claim_answer.Refusal:
    """What an error means for one who compiles: of the session, or of the first node that is refused."""
    text = PREFIX.sub("", error).strip()
    return meaning_of(FAILURES, text) or meaning_of(CAUSES, text) or claim_answer.Refusal("session", text)


def meaning_of(causes: Mapping[str, claim_answer.Refusal], text: str) -> claim_answer.Refusal | None:
    """What a text of the provider means; None where no pattern fits it."""
    for pattern, refusal in causes.items():
        if match := re.search(pattern, text):
            words = ("", *match.groups(""))
            return claim_answer.Refusal(refusal.code, refusal.what.format(*words), refusal.remedy.format(*words))
    return None


def _groups(graph: partition_graph.Graph, answer: CompilerAnswer) -> tuple[tuple[partition_graph.Node, ...], ...]:
    """The nodes of each partition, in the graph's order.

    The layout change puts nodes in place of others, cancels Transposes and moves DequantizeLinear and QuantizeLinear
    past them: the answer does not know those. They go with a partition that is beside them, as they cost nothing there.
    """
    names = {node.first_output: index for index, node in graph.nodes.items()}
    partition_of: dict[int, int | None] = {}
    for number, (provider, nodes) in enumerate(answer.subgraphs):
        for name, domain, _ in nodes:
            original = name if name in names else re.sub(r"_token_\d+$", "", name) if domain == NHWC else ""
            if original in names:
                partition_of[names[original]] = number if provider == PROVIDER else None
    # Parts of functions that neither NPU nor CPU run as they stand have no names, and are asked about for themselves.
    inlined = [
        index
        for index in graph.order
        if index not in partition_of and partition_shown.is_inlined(graph, graph.nodes[index])
    ]
    unnamed = [number for number, (_, nodes) in enumerate(answer.subgraphs) if not all(name for name, _, _ in nodes)]
    whole = len(unnamed) == len(inlined) and all(answer.subgraphs[number][0] == PROVIDER for number in unnamed)
    partition_of |= zip(inlined, unnamed, strict=True) if whole else dict.fromkeys(inlined)
    for unknown in _connected(graph, [index for index in graph.order if index not in partition_of]):
        beside = {partition_of.get(other) for index in unknown for other in _neighbours(graph, index)} - {None}
        partition_of |= dict.fromkeys(unknown, min((number for number in beside if number is not None), default=None))
    members: dict[int, list[partition_graph.Node]] = {}
    for index in graph.order:
        partition = partition_of[index]
        if partition is not None:
            members.setdefault(partition, []).append(graph.nodes[index])
    return tuple(tuple(members[number]) for number in sorted(members))


def _neighbours(graph: partition_graph.Graph, index: int) -> Iterator[int]:
    yield from (edge.producer for edge in graph.in_edges[index])
    yield from (edge.consumer for edge in graph.out_edges[index])


def _connected(graph: partition_graph.Graph, nodes: Sequence[int]) -> Iterator[list[int]]:
    """The nodes in sets that edges among them connect."""
    waiting = dict.fromkeys(nodes)
    while waiting:
        connected = [waiting.popitem()[0]]
        for index in connected:  # grows
            near = [other for other in _neighbours(graph, index) if other in waiting]
            connected += dict.fromkeys(near)
            for other in near:
                waiting.pop(other, None)
        yield connected


def _refusal(
    graph: partition_graph.Graph, node: partition_graph.Node, answer: CompilerAnswer, chip: runner_providers.Chip
) -> claim_answer.Refusal | None:
    """Why a node is not taken: the backend's own validation says more than the provider's words of it."""
    name = node.first_output
    reason = answer.refusals.get(name, "").strip()
    if name in answer.invalid and not chip.floats and _computes_floats(graph, node):
        return _float(node, chip)
    if name in answer.invalid:
        values = [(value, graph.value(value)) for value in node.inputs if value]
        remedy = next((remedy for fits, remedy in REMEDIES if any(fits(value) for _, value in values)), "")
        words = ", ".join(
            f"'{name}' {value.dtype or 'of unknown type'} {partition_rules.show_shape(value.shape)}"
            for name, value in values
        )
        return claim_answer.Refusal("backend", f"the NPU has no {answer.invalid[name]} for {words}", remedy)
    if not reason:
        return INLINED if partition_shown.is_inlined(graph, node) and not answer.error else None
    if all(graph.value(value).static for value in graph.inputs) and re.search(WITHOUT_SIZE, reason):
        return SIZE_BY_DATA
    text = re.sub(r"\s*\w+ node `[^`]*` will not be assigned to QNN EP\.?", "", reason)
    own_words = claim_answer.Refusal(
        "provider", f"the provider says: {text}", f"give the node what it has there, or {TO_CPU}"
    )
    return meaning_of(CAUSES, reason) or own_words


def _unsaid(graph: partition_graph.Graph, node: partition_graph.Node, answer: CompilerAnswer) -> claim_answer.Refusal:
    """Why a node is not taken of which the provider says nothing."""
    if window := claim_answer.layout_window(graph.opset, ort_releases.installed_release()):
        return claim_answer.Refusal(
            "opset", window, "convert the model to a newer opset (`transform --do opset:version=17`)"
        )
    assigned = {name: op_type for _, nodes in answer.subgraphs for name, _, op_type in nodes}
    names = {node.first_output for node in graph.nodes.values()}
    merged = (name for name, op_type in assigned.items() if name not in names and answer.invalid.get(name) == op_type)
    if node.first_output not in assigned and (name := next(merged, "")):
        return claim_answer.Refusal(
            "merged",
            f"ONNX Runtime makes a {assigned[name]} of integers of it, which the NPU has not without a scale",
            f"compute something else between DequantizeLinear and QuantizeLinear, or {TO_CPU}",
        )
    if node.op_type in QUANTIZING:
        return SINGLE
    if not all(graph.value(name).static for name in (*node.inputs, *node.outputs) if name):
        return CAUSES[WITHOUT_SIZE]
    return UNKNOWN


def _float(node: partition_graph.Node, chip: runner_providers.Chip) -> claim_answer.Refusal:
    return claim_answer.Refusal(
        "float",
        f"{node.op_type} '{node.first_output}' computes floats, and the NPU of {chip.title} has none",
        "quantize every operator of the model (--precision qnn, or --advise)",
    )


REMEDIES: Sequence[tuple[Callable[[partition_types.Value], bool], str]] = (
    (
        lambda value: len(value.shape or ()) > MOST_DIMENSIONS,
        f"reshape it to at most {MOST_DIMENSIONS} dimensions around the node",
    ),
    (lambda value: value.dtype == "f64" or (value.dtype or "")[:1] in {"i", "u", "b"}, "compute it in f32"),
    (lambda value: value.dtype in ("f32", "f16"), "quantize it: some operators are there for quantized values only"),
)
"""What helps a node that the backend refuses, by one of its inputs; the first that fits."""

NO_SESSION = claim_answer.Refusal("unknown", "not known, because no session is made")
UNKNOWN = claim_answer.Refusal("unknown", "the provider does not say why")

SINGLE = claim_answer.Refusal(
    "single",
    "what it converts for is not on the NPU, and alone it is no partition",
    "bring the node beside it to the NPU",
)

INLINED = claim_answer.Refusal(
    "inlined",
    "neither the NPU nor the CPU has it, so that ONNX Runtime takes it apart: the NPU has not all its parts",
    f"express it by operators that the NPU has, or {TO_CPU}",
)

QUANTIZING = frozenset({"DequantizeLinear", "QuantizeLinear"})


def _computes_floats(graph: partition_graph.Graph, node: partition_graph.Node) -> bool:
    """Whether no input of a node with float inputs comes from DequantizeLinear: it is in no quantized unit."""
    if node.op_type in QUANTIZING:
        return False
    floats = [name for name in node.inputs if name and graph.value(name).dtype in ("f32", "f16")]
    producers = [graph.producers.get(name) for name in floats]
    dequantized = any(producer and graph.nodes[producer[0]].op_type == "DequantizeLinear" for producer in producers)
    return bool(floats) and not dequantized


def claim(graph: partition_graph.Graph, settings: object, only: object = None) -> partition_claiming.Claim:  # noqa: ARG001 - the signature of claims
    """No claim: of calls of functions, the only thing that is asked about before the compiler is."""
    return partition_claiming.Claim()


CLAIMS = provider_claims.ProviderClaims(
    claim=claim,
    compiler=provider_claims.ChipCompiler(
        ask=of_chip,
        suspicions=suspicions,
        session=SESSION,
        seconds=SECONDS,
        meaning=cause_of,
        simulator_module="pipeline.providers.qnn.simulate",
    ),
)
