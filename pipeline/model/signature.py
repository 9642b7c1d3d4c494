"""Inputs and outputs of a model: names, types, shapes, and the open dimensions with a user's names for them."""

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from device_runner import spec as run_spec
from device_runner.spec import ElementType
from pipeline.core import documents
from pipeline.core.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    import onnx

    Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
else:
    Array = Any


class TensorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One input or output: `dtype` is None for what is no tensor of plain elements (sequences, maps).

    An axis of `shape` is a size, the name of a symbolic dimension, or None; `shape` is None for an unknown rank.
    """

    name: run_spec.Text
    dtype: ElementType | None
    shape: tuple[int | run_spec.Text | None, ...] | None

    @property
    def fixed(self) -> bool:
        """Whether every axis has a size."""
        return self.shape is not None and all(isinstance(axis, int) for axis in self.shape)

    def __str__(self) -> str:
        """As in `x float32 [1, 3, height, ?]`; `[?]` marks an unknown rank's only certainty, that it has one."""
        sizes = (
            "of unknown rank"
            if self.shape is None
            else f"[{', '.join('?' if s is None else str(s) for s in self.shape)}]"
        )
        return f"{self.name} {self.dtype.value if self.dtype else 'no tensor'} {sizes}"


class TextTokens(msgspec.Struct, frozen=True, kw_only=True):
    """How an app makes inputs of a text: `file` is the tokenizer's in the bundle, which `library` was asked for.

    `ids`, `mask` and `types` are the names of inputs, "" for none; a text becomes at most `most` tokens.
    """

    file: documents.ModelFile
    algorithm: Literal["wordpiece", "bpe"]
    library: documents.Line
    ids: run_spec.Text
    mask: run_spec.Text = ""
    types: run_spec.Text = ""
    most: int

    @property
    def inputs(self) -> dict[str, str]:
        """The names of inputs by what they get."""
        return {"ids": self.ids, "mask": self.mask, "types": self.types}

    def length(self, inputs: Iterable[TensorInfo]) -> int:
        """The number of tokens that a model with these inputs takes, neither more nor less; 0 where that is open."""
        sizes = (given.shape[-1] for given in inputs if given.shape)
        return next((size for size in sizes if isinstance(size, int)), 0)


def tensor_infos(values: "Iterable[onnx.ValueInfoProto]") -> tuple[TensorInfo, ...]:
    """What a graph declares of its inputs or outputs."""
    return tuple(
        TensorInfo(
            name=value.name,
            dtype=run_spec.TYPES_BY_CODE.get(value.type.tensor_type.elem_type)
            if value.type.HasField("tensor_type")
            else None,
            shape=_shape(value),
        )
        for value in values
    )


def own_inputs(model: "onnx.ModelProto") -> tuple[TensorInfo, ...]:
    """The inputs that a caller must give: initializers among the graph's inputs have values already."""
    constants = {tensor.name for tensor in model.graph.initializer}
    constants |= {tensor.values.name for tensor in model.graph.sparse_initializer}
    return tensor_infos(value for value in model.graph.input if value.name not in constants)


def _shape(value: "onnx.ValueInfoProto") -> tuple[int | str | None, ...] | None:
    if not value.type.tensor_type.HasField("shape"):
        return None
    return tuple(declared_axis(dim) for dim in value.type.tensor_type.shape.dim)


def declared_axis(dim: "onnx.TensorShapeProto.Dimension") -> int | str | None:
    """An axis as a file declares it: its size, its symbolic name, or None. A negative size is none (ep_rules A.4)."""
    if dim.HasField("dim_value"):
        size: int = dim.dim_value
        return size if size >= 0 else None
    return dim.dim_param or None


PLACEHOLDER = re.compile(r"[\W_]*|-?[0-9]+|None")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAxis:
    """One axis of an input that has no size; `symbol` is "" where it has no name of its own."""

    input: str
    axis: int
    symbol: str

    @property
    def key(self) -> str:
        """The name that every axis has, as in `x[2]`."""
        return f"{self.input}[{self.axis}]"


def open_axes(takes: Sequence[TensorInfo]) -> tuple[OpenAxis, ...]:
    """Axes of the inputs that have no size, in the order of the model."""
    return tuple(
        OpenAxis(
            input=info.name, axis=axis, symbol=size if isinstance(size, str) and not PLACEHOLDER.fullmatch(size) else ""
        )
        for info in takes
        for axis, size in enumerate(info.shape or ())
        if not isinstance(size, int)
    )


def resolve_dimensions(takes: Sequence[TensorInfo], given: Mapping[str, int], where: str) -> dict[str, int]:
    """Sizes by `input[axis]` for what a user's names mean: `input[axis]`, or a symbolic name for all axes of it.

    A size that is given for one axis holds for all axes of its symbolic name that have no other. ConfigError, with a
    suggestion, for a name that no open dimension has, and for a placeholder that several share.
    """
    axes = open_axes(takes)
    raw = {(info.name, axis): size for info in takes for axis, size in enumerate(info.shape or ())}
    by_key: dict[str, list[OpenAxis]] = {}
    by_name: dict[object, list[OpenAxis]] = {}
    for a in axes:
        by_key.setdefault(a.key, []).append(a)
        for name in {a.symbol, raw[a.input, a.axis]}:
            by_name.setdefault(name, []).append(a)
    sizes: dict[str, int] = {}
    for key, size in given.items():
        meant = by_key.get(key) or by_name.get(key, [])
        if not meant:
            raise _unknown(takes, axes, key, where)
        if len(meant) > 1 and not meant[0].symbol:
            raise ConfigError(
                f"{key!r} is no name of a dimension",
                where=where,
                why=f"several dimensions have this placeholder: {', '.join(a.key for a in meant)}",
                remedy=f"name each, as in {meant[-1].key}={size}",
            )
        sizes |= {a.key: size for a in meant if key == a.key or a.key not in given}
    by_symbol: dict[str, set[int]] = {}
    for a in axes:
        if a.symbol and a.key in sizes:
            by_symbol.setdefault(a.symbol, set()).add(sizes[a.key])
    for a in axes:
        if a.key not in sizes and len(by_symbol.get(a.symbol, ())) == 1:
            sizes[a.key] = next(iter(by_symbol[a.symbol]))
    return sizes


def check_states(states: Mapping[str, str], inputs: Collection[str], outputs: Collection[str], where: str) -> None:
    """ConfigError, with the names that there are, for a state of a stream (output to input) that the model lacks."""
    for kind, named, names in (("input", states.values(), inputs), ("output", states.keys(), outputs)):
        if unknown := [name for name in named if name not in names]:
            raise ConfigError(
                f"the state {'goes into no input' if kind == 'input' else 'comes from no output'}",
                where=where,
                why=f"the model has no {kind} {unknown[0]!r}",
                remedy=f"its {kind}s are {', '.join(names)}",
            )


def names_of(axes: Sequence[OpenAxis]) -> dict[str, list[OpenAxis]]:
    """The shortest names that tell the axes apart, each with its axes: symbolic names first, `input[axis]` else."""
    names: dict[str, list[OpenAxis]] = {}
    for axis in axes:
        names.setdefault(axis.symbol or axis.key, []).append(axis)
    return names


def _unknown(takes: Sequence[TensorInfo], axes: Sequence[OpenAxis], key: str, where: str) -> ConfigError:
    for info in takes:
        for axis, size in enumerate(info.shape or ()):
            if key == f"{info.name}[{axis}]" and isinstance(size, int):
                return ConfigError(
                    f"the dimension {key!r} is not open",
                    where=where,
                    why=f"the model fixes it to {size}",
                    remedy="leave it out",
                )
    names = list(names_of(axes))
    keys = [*names, *(a.key for a in axes if a.symbol)]
    close = difflib.get_close_matches(key, keys, n=1)
    remedy = f"did you mean {close[0]!r}?" if close else f"open dimensions: {', '.join(names)}"
    if not names:
        remedy = "leave it out: every dimension of this model has a size"
    return ConfigError(f"the model has no open dimension {key!r}", where=where, remedy=remedy)
