"""Likely sizes of dynamic dimensions: from the graph and the model's metadata, else the usual ones, likeliest first."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from pipeline.dataset.lengths import LENGTH, TIME
from pipeline.dataset.states import STATE
from pipeline.model import reads as model_reads
from pipeline.model import signature
from pipeline.model.signature import TensorInfo

if TYPE_CHECKING:
    import onnx


BATCH = re.compile(r"batch|^(n|b|bs)$", re.IGNORECASE)


def metadata_size(model: "onnx.ModelProto") -> tuple[int, int] | None:
    """Height and width that the exporter wrote into the model's metadata (`imgsz` of Ultralytics)."""
    for entry in model.metadata_props:
        if entry.key == "imgsz":
            try:
                value = json.loads(entry.value)
            except ValueError:
                return None
            sizes = value if isinstance(value, list) else [value, value]
            if len(sizes) == 2 and all(isinstance(size, int) and 1 < size < 10_000 for size in sizes):
                return sizes[0], sizes[1]
    return None


SOUND = re.compile(r"(?<![a-z])wav(es?)?(?![a-z])|waveform|audio|sound|speech|signal|pcm|voice", re.IGNORECASE)
"""Names of inputs that are sampled signals."""
SIGNAL_PASSING = model_reads.PASSING | {"Pad", "Slice", "Transpose", "Add", "Sub", "Mul", "Div"}
"""Operators behind which a signal is still one: padded, cut, or normalized."""
SPECTRA = frozenset({"STFT", "DFT"})
TREES = frozenset({"TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor"})


def is_signal(reads: model_reads.Reads, info: TensorInfo, symbol: str) -> bool:
    """Whether an axis counts samples: names say so, or a spectrum or a convolution of one channel along it reads it."""
    if SOUND.search(info.name) or SOUND.search(symbol) or TIME.search(symbol):
        return True
    for node, slot in reads.of(info.name, SIGNAL_PASSING):
        weight = reads.constants.get(node.input[1]) if slot == 0 and node.op_type == "Conv" else None
        if (slot == 0 and node.op_type in SPECTRA) or (weight is not None and list(weight.dims[1:-1]) in ([1], [1, 1])):
            return True
    return False


def connected_size(reads: model_reads.Reads, name: str) -> int | None:
    """How many features the fully connected layer that reads an input takes, or how many trees look at."""
    for node, slot in reads.of(name):
        if node.op_type in TREES and slot == 0:
            return 1 + max((i for a in node.attribute if a.name == "nodes_featureids" for i in a.ints), default=0)
        weight = reads.constants.get(node.input[1]) if slot == 0 and node.op_type in ("MatMul", "Gemm") else None
        if weight is not None and len(weight.dims) == 2:
            transposed = any(a.name == "transB" and a.i for a in node.attribute)
            return int(weight.dims[1 if transposed else 0])
    return None


SIDES = (
    224, 320, 640, 256, 384, 512, 416, 299, 240, 288, 192, 128, 160, 112, 96, 480, 448, 336, 1024, 64, 32, 28, 48, 227,
)  # fmt: skip
"""Sides of square images, by how usual they are: classifiers, detectors, segmentation, then the rest."""
LINES = ((48, 320), (32, 320), (32, 100))
"""Height and width of lines of text, as recognizers take them; none has as many pixels as a usual square."""
SIZES: Mapping[str, tuple[int, ...]] = {
    "batch": (1,),
    "past": (16, 8),
    "channels": (3, 1),
    "tokens": (128, 64, 32, 16, 256, 512, 77, 8),
    "signal": (16000, 512, 1024, 480, 256, 160, 4096, 8000, 48000),
    "frames": (100, 128, 64, 200, 3000, 256, 512, 16),
}
"""Sizes of other axes by what they count (`kind_of`)."""
OTHER = (64, 32, 16, 128, 8, 4, 256)
USUAL = "usual"
ONE = "one at a time"

Choices: TypeAlias = tuple[tuple[tuple[int, ...], str], ...]
"""Sizes for some dimensions together, each with the reason, most likely first."""

DimensionUnit: TypeAlias = tuple[tuple[str, ...], Choices]
"""The names of dimensions that are tried together, and sizes for them."""

SIDE_KINDS = ("height", "width")
"""What the sides of an image count."""


def units(
    model: "onnx.ModelProto", takes: Sequence[TensorInfo], axes: Sequence[signature.OpenAxis]
) -> tuple[DimensionUnit, ...]:
    """What is to be tried for the open axes, one unit for height and width."""
    infos, reads = {info.name: info for info in takes}, model_reads.Reads(model)
    named = {name: group for name, group in signature.names_of(axes).items() if not sum_parts(name)}
    kinds = {name: kind_of(infos[group[0].input], group[0].axis, group[0].symbol) for name, group in named.items()}
    sides_of: dict[str, dict[str, list[str]]] = {}  # of each input, by kind
    for name, group in named.items():
        for input_name in dict.fromkeys(axis.input for axis in group) if kinds[name] in SIDE_KINDS else ():
            sides_of.setdefault(input_name, {}).setdefault(kinds[name], []).append(name)
    tried, done = [], set[str]()
    for name, group in named.items():
        if name in done:
            continue
        info = infos[group[0].input]
        sides = [n for kind in SIDE_KINDS for n in sides_of.get(info.name, {}).get(kind, ())]
        pair = tuple(sides) if name in sides else (name,)
        done |= set(pair)
        if len(pair) == 2 or kinds[name] in SIDE_KINDS:
            tried.append((tuple(pair), _images(model, info, pair)))
            continue
        usual = SIZES.get(kinds[name], OTHER)
        if kinds[name] == "signal" and not is_signal(reads, info, group[0].symbol):
            usual = (*OTHER, *(size for size in usual if size not in OTHER))
        choices = [((size,), ONE if kinds[name] == "batch" else USUAL) for size in usual]
        if kinds[name] == "signal" and (demanded := connected_size(reads, info.name)):
            choices.insert(0, ((demanded,), "what the layer that reads it takes"))
        tried.append(((name,), tuple(choices)))
    return tuple(tried)


def sum_parts(name: str) -> tuple[str, str] | None:
    """The parts of a symbolic name that is a sum, as `past + 1`: such a size follows from the others."""
    match = re.fullmatch(r"(\w+) ?\+ ?(\w+)", name)
    return (match.group(1), match.group(2)) if match else None


def assignments(tried: Sequence[DimensionUnit]) -> Iterator[dict[str, tuple[int, str]]]:
    """Sizes with reasons for every dimension, the likeliest combinations first.

    They are made as they are asked for: there are as many as the product of all choices.
    """
    worst = sum(len(choices) - 1 for _, choices in tried)
    for total in range(worst + 1):
        for ranks in _ranks([len(choices) for _, choices in tried], total):
            yield {
                name: (size, reason)
                for at, (names, choices) in enumerate(tried)
                for name, size in zip(names, choices[ranks.get(at, 0)][0], strict=True)
                for reason in (choices[ranks.get(at, 0)][1],)
            }


def _ranks(counts: Sequence[int], total: int, first: int = 0) -> Iterator[dict[int, int]]:
    """Ranks by place, those above 0, that add up to a total: what changes the last places alone comes first."""
    if total == 0:
        yield {}
        return
    for position in reversed(range(first, len(counts))):
        for rank in range(1, min(counts[position] - 1, total) + 1):
            for behind in _ranks(counts, total - rank, position + 1):
                yield {position: rank, **behind}


def with_sums(sizes: Mapping[str, int], names: Sequence[str]) -> dict[str, int]:
    """The sizes with those of names that are sums of others."""
    solved = dict(sizes)
    for name in names:
        parts = sum_parts(name)
        terms = [solved.get(part, int(part) if part.isdigit() else None) for part in parts or ()]
        if parts and all(term is not None for term in terms):
            solved[name] = sum(term for term in terms if term is not None)
    return solved


def kind_of(info: TensorInfo, axis: int, symbol: str) -> str:
    """What an axis counts, from its name, its place and the axes beside it."""
    shape, text = info.shape or (), symbol.lower()
    integer = bool(info.dtype) and str(info.dtype).startswith(("int", "uint", "bool"))
    if integer and len(shape) == 1 and LENGTH.fullmatch(info.name):  # one length for each row of the batch
        return "batch"
    batched = axis and isinstance(shape[0], str) and BATCH.search(shape[0])  # then N, behind it, is another size
    if BATCH.search(text) and not batched:
        return "batch"
    if re.search(r"past|cache", f"{info.name} {text}".lower()) and len(shape) >= 3 and axis:
        return "past"
    if TIME.search(text):
        return "tokens" if integer else _in_time(shape, axis)
    few = [isinstance(size, int) and size in (1, 3, 4) for size in shape[:4]]
    places: dict[int, str] = {}
    if len(shape) == 4:
        last = few[3] and not few[1]
        places = {1: "height", 2: "width", 3: "channels"} if last else {1: "channels", 2: "height", 3: "width"}
    elif len(shape) == 3 and shape[2] == 3:
        places = {0: "height", 1: "width"}
    elif len(shape) == 3 and shape[0] == 3:
        places = {1: "height", 2: "width"}
    if axis in places:
        return places[axis]
    if len(shape) < 2 or (len(shape) == 2 and axis):
        return "tokens" if integer else "signal"
    if axis == 0 or (
        len(shape) == 3 and axis == 1 and (STATE.search(info.name) or (isinstance(shape[0], int) and shape[0] > 1))
    ):
        return "batch"
    return _in_time(shape, axis) if len(shape) == 3 else "other"


def _in_time(shape: Sequence[int | str | None], axis: int) -> str:
    """Samples of a signal where nothing else may have many elements, else frames of features."""
    others = (size for index, size in enumerate(shape) if index not in (0, axis))
    features = any(not isinstance(size, int) or size > 2 for size in others)
    return "frames" if features or (axis == 0 and len(shape) > 1) else "signal"


def _images(model: "onnx.ModelProto", info: TensorInfo, pair: tuple[str, ...]) -> Choices:
    """Sizes of images; where one side is fixed, the same for the other comes first."""
    recorded = metadata_size(model)
    if len(pair) == 2:
        first = [(recorded, "from the model's metadata")] if recorded else []
        squares = [(side, side) for side in SIDES]
        rest = [*squares[:4], *LINES, *squares[4:]]  # a recognizer of lines takes small squares too, and no large ones
        return (*first, *((sizes, USUAL) for sizes in rest))
    fixed = [
        size
        for axis, size in enumerate(info.shape or ())
        if isinstance(size, int) and kind_of(info, axis, "") in ("height", "width")
    ]
    beside = [(size, "as its other side") for size in fixed if size >= SMALLEST_SQUARE]
    lines = [(width, USUAL) for height, width in LINES if fixed and height == fixed[0]]
    return tuple(((size,), reason) for size, reason in (*beside, *lines, *((side, USUAL) for side in SIDES)))


SMALLEST_SQUARE = 65
"""An image with a fixed side below this may be a line of text."""
