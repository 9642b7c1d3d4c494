"""States of a stream: outputs that look like the next value of an input, of its size or of one that grows."""

import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, NamedTuple

from pipeline.model import reads as model_reads
from pipeline.model import signature
from pipeline.model.signature import TensorInfo

if TYPE_CHECKING:
    import onnx

STATE = re.compile(r"state|hidden|cell|cache|past|(^|[^a-z])[hc](_?[0n0-9]+)?($|[^a-z])", re.IGNORECASE)
ACTIVATIONS = re.compile(r"hidden_states|(encoder|last|image|pooled|context)_", re.IGNORECASE)
"""Names that exporters give to features of a sequence, which are no states of a stream."""
RECURRENT = frozenset({"LSTM", "GRU", "RNN", "DynamicQuantizeLSTM", "AttnLSTM"})
"""ONNX's own, and ONNX Runtime's, which have the same initial and last states: `quantize_dynamic` makes the first."""
GATES = frozenset({"Sigmoid", "HardSigmoid"})
"""What decides in a recurrent operator that was exported as its nodes how much of a state stays."""
INITIAL_STATES = (5, 6)
"""Inputs of recurrent operators that their states begin with (RNN has no second)."""
CARRYING = model_reads.PASSING | {"Slice", "Split", "Gather", "Transpose", "Concat", "StridedSlice"}
"""Operators behind which a state is still one, in part or with others."""
ALIKE = 0.6
"""Names of a state and its successor have so much in common, as `h0` and `hn` after what only says which is which."""
SIDES_OF_NAMES = re.compile(
    r"key_values|input|output|new|next|prev|past|present|updated|in|out|[^a-z0-9]", re.IGNORECASE
)


class _StatePair(NamedTuple):
    """An output and the input whose next value it may be, with how much speaks for it."""

    likeness: float
    output: str
    input: str


def states_of(model: "onnx.ModelProto", takes: Sequence[TensorInfo]) -> dict[str, str]:
    """Outputs that look like the next value of an input, with that input: states of a stream.

    An input and an output of one type and shape, where a recurrent operator begins with the one and ends with the
    other, or where both are called states by like names. Names alone say nothing: an encoder's hidden states are
    features, and an image of the input's size is no state.
    """
    reads, gates, ends = model_reads.Reads(model), set[str](), set[str]()
    if len(takes) > 1 and len(model.graph.output) > 1:  # else it is what the model is about
        gates = {name for node in model.graph.node if node.op_type in GATES for name in node.output}
        ends = _recurrent_ends(model, gates)
    pairs: list[_StatePair] = []
    for info in takes:
        if info.dtype is None or not info.dtype.value.startswith("float") or info.shape is None:
            continue
        begins = bool(ends) and _begins(reads, info.name, gates)
        for output in signature.tensor_infos(model.graph.output):
            if output.dtype is not info.dtype or not _alike(info.shape, output.shape):
                continue
            likeness = SequenceMatcher(None, _stem(info.name), _stem(output.name)).ratio()
            if begins and output.name in ends:
                pairs.append(_StatePair(1 + likeness, output.name, info.name))
            elif likeness >= ALIKE and _called_state(info.name) and _called_state(output.name):
                pairs.append(_StatePair(likeness, output.name, info.name))
    states: dict[str, str] = {}
    for pair in sorted(pairs, key=lambda pair: -pair.likeness):  # of equal ones the first
        if pair.output not in states and pair.input not in states.values():
            states[pair.output] = pair.input
    return states


def caches_of(model: "onnx.ModelProto", takes: Sequence[TensorInfo]) -> dict[str, str]:
    """Outputs that look like an input's next value but for one axis, open and of another name, with that input."""
    caches: dict[str, str] = {}
    called = [
        output for output in signature.tensor_infos(model.graph.output) if output.shape and _called_state(output.name)
    ]
    for info in takes if called else ():
        if info.shape is None or not _called_state(info.name):
            continue
        stem, fitting = _stem(info.name), [output for output in called if _may_grow(info, output)]
        likeness = {
            output.name: SequenceMatcher(None, stem, _stem(output.name)).ratio()
            for output in [output for output in fitting if _stem(output.name) == stem][:1] or fitting
        }
        likest = max(likeness, key=likeness.__getitem__, default="")
        if likest and likeness[likest] >= ALIKE:
            caches.setdefault(likest, info.name)
    return caches


def _may_grow(info: TensorInfo, output: TensorInfo) -> bool:
    """Whether an output differs from an input in the name of one open axis alone."""
    before, after = info.shape or (), output.shape or ()
    if info.dtype is not output.dtype or len(before) != len(after):
        return False
    renamed = [size for size, beside in zip(before, after, strict=True) if size != beside]
    return len(renamed) == 1 and isinstance(renamed[0], str)


def _called_state(name: str) -> bool:
    return bool(STATE.search(name) or name.lower().startswith("present")) and not ACTIVATIONS.search(name)


def _stem(name: str) -> str:
    """A name without what says only that it goes in or comes out: past_key.0 and present_key.0 are both key0."""
    return SIDES_OF_NAMES.sub("", name.lower()) or name.lower()


def _alike(shape: Sequence[int | str | None], other: Sequence[int | str | None] | None) -> bool:
    """Whether two shapes can be the same: sizes that are known are equal, and so are names of sizes."""
    if other is None:
        return True
    return len(shape) == len(other) and not any(
        type(size) is type(beside) and size != beside for size, beside in zip(shape, other, strict=True)
    )


def _begins(reads: model_reads.Reads, name: str, gates: AbstractSet[str]) -> bool:
    """Whether a recurrent operator begins with an input or a part of it, or a gate lets it through, as in its nodes."""
    seen, names = {name}, [name]
    while names:
        current = names.pop()
        for node, _ in reads.readers[current]:
            slots = [slot for slot, read in enumerate(node.input) if read == current]
            if node.op_type in RECURRENT and set(slots) & set(INITIAL_STATES):
                return True
            if node.op_type == "Mul" and not gates.isdisjoint(node.input):
                return True
            if node.op_type in CARRYING:
                fresh = [output for output in node.output if output not in seen]
                seen.update(fresh)
                names += fresh
    return False


def _recurrent_ends(model: "onnx.ModelProto", gates: AbstractSet[str]) -> set[str]:
    """Values with the last states of recurrent operators in them, or of what a gate let through and was added to."""
    ends, let_through = set[str](), set[str]()
    for node in model.graph.node:  # in the order in which they run
        if node.op_type in RECURRENT:
            ends.update(name for name in node.output[1:] if name)
        elif node.op_type == "Mul" and not gates.isdisjoint(node.input):
            let_through.update(node.output)
        else:
            whole = node.op_type in ("Add", "Concat")  # else the first input is what is carried
            parts = let_through if node.op_type == "Add" else ends if node.op_type in CARRYING else set()
            if not parts.isdisjoint(node.input if whole else node.input[:1]):
                ends.update(node.output)
    return ends
