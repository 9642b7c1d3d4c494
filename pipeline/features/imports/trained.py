"""A model in its framework: what it takes, how it runs, how it is exported; and what exporters complain about."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core.errors import ConfigError

if TYPE_CHECKING:
    from pipeline.model.signature import Array

MOST_WHY = 600
REWRITE = "write that layer with other operators, or export with --opset of a newer release"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A model in its framework. `example` has arrays in the order of the model's inputs; `run` takes such and gives
    outputs in their order. `layers` finds those that an exporter's complaint is about, for the message, and `remedy` is
    what to do about one. `quantized`: it computes with 8-bit integers, whatever the exported model does. `classes` are
    those of a classifier, in the order of its second output's columns. `notes` say what differs from what was given.
    `rows`: its samples are rows, each with an answer. `unloadable` is what to do about a file that does not load.
    """

    title: str
    example: tuple["Array", ...]
    run: Callable[[Sequence["Array"]], list["Array"]]
    export: Callable[[Path, int | None], None]
    layers: Callable[[BaseException], list[str]] = lambda _: []
    remedy: Callable[[BaseException], str] = lambda _: REWRITE
    quantized: bool = False
    rows: bool = False
    classes: "Array | None" = None
    unloadable: str = ""
    notes: tuple[str, ...] = ()


def check_arguments(options: Any, known: Collection[str], exporter: str) -> None:
    """ConfigError for arguments of an exporter that it does not get: a silent one would be taken for granted."""
    if not isinstance(options, Mapping):
        raise ConfigError(
            "the arguments of the exporter are no dict",
            why=f"they are {type(options).__name__}",
            remedy="give (model, example inputs, {argument: value})",
        )
    if unknown := [str(key) for key in options if key not in known]:
        remedy = f"leave it out; {exporter} takes {', '.join(known)}" if known else "leave it out"
        if "dynamic_axes" in unknown and "dynamic_shapes" in known:
            remedy = "give dynamic_shapes, as in {'dynamic_shapes': ({0: torch.export.Dim('batch')},)} for one input"
        if {"opset_version", "opset"} & set(unknown):
            remedy = "leave it out, and give --opset"
        raise ConfigError(
            f"{exporter} gets no argument {unknown[0]!r} here",
            why=f"the function gave {', '.join(map(str, options))}",
            remedy=remedy,
        )


def said(error: BaseException) -> str:
    """The class and the words of an error."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:MOST_WHY]


def explained(error: BaseException) -> str:
    """What an exporter says, the causes first: outer exceptions repeat its manual."""
    return said(chain_of(error)[-1])


def chain_of(error: BaseException) -> list[BaseException]:
    """An error and what caused it, the first cause last."""
    chain: list[BaseException] = []
    at: BaseException | None = error
    while at is not None and at not in chain:
        chain.append(at)
        at = at.__cause__ or at.__context__
    return chain


def every_word(error: BaseException) -> str:
    """All that an exporter says, in which layers are looked for."""
    return " ".join(str(at) for at in (error, error.__cause__, error.__context__) if at)
