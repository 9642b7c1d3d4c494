"""Open dimensions of a model's inputs: what they are called, and which sizes a user's names mean.

A dimension has two names: `input[axis]`, always, and its symbolic name where the exporter gave it one. Placeholders
such as Paddle's `?` are no names: dimensions that share them need not be equal.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.core.errors import ConfigError
from pipeline.model.signature import TensorInfo

PLACEHOLDER = re.compile(r"[\W_]*|-?[0-9]+|None", re.ASCII)


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


def symbol_of(size: int | str | None) -> str:
    """The symbolic name of an axis; "" for a size, for nothing and for placeholders."""
    return size if isinstance(size, str) and not PLACEHOLDER.fullmatch(size) else ""


def open_axes(takes: Sequence[TensorInfo]) -> tuple[OpenAxis, ...]:
    """Axes of the inputs that have no size, in the order of the model."""
    return tuple(
        OpenAxis(input=info.name, axis=axis, symbol=symbol_of(size))
        for info in takes
        for axis, size in enumerate(info.shape or ())
        if not isinstance(size, int)
    )


def resolve_dimensions(takes: Sequence[TensorInfo], wanted: Mapping[str, int], where: str) -> dict[str, int]:
    """Sizes by `input[axis]` for what a user's names mean: `input[axis]`, or a symbolic name for all axes of it.

    A size that is given for one axis holds for all axes of its symbolic name that have no other. ConfigError, with a
    suggestion, for a name that no open dimension has, and for a placeholder that several share.
    """
    axes = open_axes(takes)
    raw = {(info.name, axis): size for info in takes for axis, size in enumerate(info.shape or ())}
    sizes: dict[str, int] = {}
    for key, size in wanted.items():
        meant = [a for a in axes if key == a.key] or [a for a in axes if key in (a.symbol, raw[a.input, a.axis])]
        if not meant:
            raise _unknown(takes, axes, key, where)
        if len(meant) > 1 and not meant[0].symbol:
            raise ConfigError(
                f"{key!r} is no name of a dimension", where=where,
                why=f"several dimensions have this placeholder: {', '.join(a.key for a in meant)}",
                remedy=f"name each, as in {meant[-1].key}={size}",
            )  # fmt: skip
        sizes |= {a.key: size for a in meant if key == a.key or a.key not in wanted}
    by_symbol: dict[str, set[int]] = {}
    for a in axes:
        if a.symbol and a.key in sizes:
            by_symbol.setdefault(a.symbol, set()).add(sizes[a.key])
    for a in axes:
        if a.key not in sizes and len(by_symbol.get(a.symbol, ())) == 1:
            sizes[a.key] = next(iter(by_symbol[a.symbol]))
    return sizes


def names_of(axes: Sequence[OpenAxis]) -> dict[str, list[OpenAxis]]:
    """The shortest names that tell the axes apart, each with its axes: symbolic names first, `input[axis]` else."""
    found: dict[str, list[OpenAxis]] = {}
    for axis in axes:
        found.setdefault(axis.symbol or axis.key, []).append(axis)
    return found


def _unknown(takes: Sequence[TensorInfo], axes: Sequence[OpenAxis], key: str, where: str) -> ConfigError:
    for info in takes:
        for axis, size in enumerate(info.shape or ()):
            if key == f"{info.name}[{axis}]" and isinstance(size, int):
                return ConfigError(
                    f"the dimension {key!r} is not open", where=where, why=f"the model fixes it to {size}",
                    remedy="leave it out",
                )  # fmt: skip
    names = list(names_of(axes))
    known = [*names, *(a.key for a in axes if a.symbol)]
    close = difflib.get_close_matches(key, known, n=1)
    remedy = f"did you mean {close[0]!r}?" if close else f"open dimensions: {', '.join(names) or 'none'}"
    return ConfigError(f"the model has no open dimension {key!r}", where=where, remedy=remedy)
