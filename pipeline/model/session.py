"""What a model or a file computes on this computer's CPU: the one place where either is run to have its outputs.

A session is the app's: ONNX Runtime's defaults with the entries that the file ships with. Weights are prepacked, for
some kernels compute otherwise without: MatMulNBits with accuracy_level 4 in float in place of 8 bits. The original
model alone is run as its operators are defined (`ORIGINAL`): it is what all others are compared with.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from device_runner import failures
from pipeline.core import (
    ort_session,
    workers,
)
from pipeline.core.errors import Finding, ModelError, Severity
from pipeline.core.variant import Level
from pipeline.model.edit import all_nodes, copied
from pipeline.model.guards import BY_PATH, check_structure
from pipeline.model.onnx_model import LeanModel, LoadedModel, loadable
from pipeline.model.ort_format import read_artifact

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from onnx import ModelProto, NodeProto

Array: TypeAlias = "npt.NDArray[np.generic]"


class Role(StrEnum):
    """What a file is to the question, as errors call it."""

    ORIGINAL = "the original model"
    CHANGED = "the changed model"
    FORM = "the model in this precision"
    ARTIFACT = "the artifact"
    MODEL = "the model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedies:
    """What to do where a file of a role does not load, and where it fails on its inputs."""

    loads: str
    runs: str


FITTING_DATA = "give test data that fits the model (`test_data` in the config, --test-data), or change `dimensions`"
OTHER_FORM = "leave the operators that it names float (`--keep-float`), or take another precision"
DISAGREE = "leave this variant out, or report it: conversion and loading disagree"
LOWER = "the original runs on the same inputs without optimizations: use a lower level (none changes nothing)"
REMEDIES: Mapping[Role, Remedies] = {
    Role.ORIGINAL: Remedies(
        loads="nothing can be compared without it: fix the model, or try another onnxruntime", runs=FITTING_DATA
    ),
    Role.CHANGED: Remedies(
        loads="leave out the step that made it so, or the operators that it names",
        runs="the original runs on the same inputs: leave out the step that made it so, or the operators that it names",
    ),
    Role.FORM: Remedies(loads=OTHER_FORM, runs=OTHER_FORM),
    Role.ARTIFACT: Remedies(loads=DISAGREE, runs=LOWER),
    Role.MODEL: Remedies(loads="leave it out, or try another onnxruntime", runs=FITTING_DATA),
}


class AppSession(msgspec.Struct, frozen=True, kw_only=True):
    """The optimization level and the session config entries that an app opens a file with."""

    level: Level = Level.ALL
    config: dict[str, str] = {}

    @property
    def text(self) -> str:
        """What is not ONNX Runtime's default, in words: at level basic with session.disable_prepacking=1; else ""."""
        level = "" if self.level is Level.ALL else f"at level {self.level}"
        entries = ", ".join(f"{key}={value}" for key, value in self.config.items())
        return " ".join(filter(None, (level, f"with {entries}" if entries else "")))


DEFAULT = AppSession()
"""ONNX Runtime's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuSettings:
    """How a file is opened: the app's session, unless something else is said.

    `config` are session config entries that it ships with, `brief`: it runs a few times. Without `prepacked` weights
    stay where they are mapped: for sessions whose outputs nobody judges, and where memory forbids a second copy.
    `defined`: every operator computes as it is defined, in the types of its inputs.
    """

    role: Role = Role.MODEL
    level: Level = Level.ALL
    config: Mapping[str, str] = field(default_factory=dict)
    brief: bool = False
    prepacked: bool = True
    defined: bool = False


ORIGINAL = CpuSettings(role=Role.ORIGINAL, level=Level.NONE, defined=True)
"""The reference of every comparison: nothing is fused, and nothing computed in fewer bits than the graph says."""
ASKED = replace(ORIGINAL, brief=True, prepacked=False)
"""Whether the original runs at all, and what shapes it gives."""
OPTIMIZED = replace(ORIGINAL, level=Level.ALL, prepacked=False, defined=False)
"""Whether the original can be optimized."""

LEAN = {
    "session.use_memory_mapped_ort_model": "1",
    "session.use_ort_model_bytes_for_initializers": "1",
    "session.load_model_format": "ORT",
}
"""Weights are used where the file is mapped, not copied; releases before 1.26 read the file instead."""
SMALL_BYTES = 16 << 20
"""Files that one thread runs: starting more takes longer than they save."""

RUN_FACTOR, PREPACKED_FACTOR = 2.0, 3.0
"""Peak memory of a run relative to the file's bytes, and with the copy of its weights that kernels order anew (measured
with 200 MB of matrices: 1.1 and 2.1; of convolutions 1.1).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What running a file may need, and whether that is enough for a session that prepacks its weights."""

    prepacked: bool
    memory_bytes: int


def room_for(size_bytes: int) -> Room:
    """Prepacked where the memory that is free now allows it."""
    needed, budget = workers.needed_bytes(size_bytes, PREPACKED_FACTOR), workers.memory_budget()
    prepacked = not budget or needed <= budget
    return Room(prepacked=prepacked, memory_bytes=needed if prepacked else workers.needed_bytes(size_bytes, RUN_FACTOR))


WITHOUT_PREPACKING = "without prepacking"
"""How a session is called that memory kept from being the app's."""


def not_prepacked(file: str) -> Finding:
    """Which session judged a file, where it was not the app's."""
    return Finding(
        severity=Severity.WARNING,
        what=f"outputs are of a session {WITHOUT_PREPACKING}",
        where=file,
        why="there is not the memory for an app's session, which has a second copy of them",
        remedy="run it again where more memory is free",
    )


FREE_TO_ROUND = "accuracy_level"
"""The attribute of MatMulNBits and its like that allows kernels to compute in fewer bits than their inputs have."""
IN_FEWER_BITS = frozenset({"MatMulNBits", "MatMulNBitsQLoRA", "MatMulNBitsQkv", "MatMulNBitsMlp", "QMoE"})
"""The operators of com.microsoft that have it (get_all_operator_schema of 1.32)."""


IN_BYTES = 4
"""The accuracy_level of products in 8-bit integers; the others compute in floats."""


def in_fewer_bits(file: Path) -> str:
    """An operator of a file that computes in 8 bits in apps, "" where there is none; ModelError as `read_artifact`."""
    content = file.read_bytes()
    if FREE_TO_ROUND.encode() not in content:  # to parse a file takes longer than to run it
        return ""
    nodes = (node for graph in read_artifact(file).graph.walk() for node in graph.nodes)
    levels = ((node, node.attributes.get(FREE_TO_ROUND)) for node in nodes if node.op_type in IN_FEWER_BITS)
    return next((node.op_type for node, level in levels if level is not None and level.value == IN_BYTES), "")


def _as_defined(proto: "ModelProto") -> "ModelProto":
    """The message without leave to compute in fewer bits; itself where nobody has it."""

    def free(message: "ModelProto") -> "list[NodeProto]":
        bodies = [node for function in message.functions for node in function.node]
        return [node for node in (*all_nodes(message.graph), *bodies) if node.op_type in IN_FEWER_BITS]

    if not free(proto):
        return proto
    defined = copied(proto)
    for node in free(defined):
        for index in reversed(range(len(node.attribute))):
            if node.attribute[index].name == FREE_TO_ROUND:
                del node.attribute[index]
    return defined


def open_session(model: LeanModel | Path, settings: CpuSettings = ORIGINAL, where: str = "") -> Any:
    """A session on the CPU, weights mapped from where they lie; ModelError when it does not load, or never would."""
    if isinstance(model, LoadedModel):
        where = where or model.source.name
        check_structure(model.proto, where)
    try:
        return _opened(model, settings)
    except ort_session.ort_errors() as error:
        raise refused(error, where or str(model), settings.role) from error


def refused(error: Exception, where: str, role: Role = Role.ORIGINAL) -> ModelError:
    """The error for what makes no session."""
    what, remedy = f"{role} does not load on this computer's CPU", REMEDIES[role].loads
    if role is Role.ORIGINAL and (text := failures.text_of_message(str(error), failures.Topic.MODEL)):
        what, remedy = text.why, text.remedy
    return ModelError(what, where=where, why=ort_session.first_line(error), remedy=remedy)


def _opened(model: LeanModel | Path, settings: CpuSettings) -> Any:
    config, folder = dict(settings.config), None
    source: bytes | Path
    if isinstance(model, Path):
        source, onnx, small = model, model.suffix.lower() != ".ort", model.stat().st_size < SMALL_BYTES
        config = config if onnx else LEAN | config
    else:
        onnx, small, folder = True, not model.weights, model.folder
        proto = loadable(model)
        source = (_as_defined(proto) if settings.defined else proto).SerializeToString()
    if not settings.prepacked or (settings.defined and isinstance(model, Path)):
        config = ort_session.NO_PREPACKING | config

    def session(entries: Mapping[str, str]) -> Any:
        brief = settings.brief
        options = ort_session.session_options(
            settings.level, weights=folder, config=entries, brief=brief, small=brief and small
        )
        return ort_session.make_session(source, options)

    if onnx and settings.level not in (Level.NONE, Level.BASIC):
        with suppress(*ort_session.ort_errors()):
            return session(config | ort_session.EXACT_PRODUCTS)
    if not onnx:
        with suppress(*ort_session.ort_errors()):
            return session(config)
        config = config | BY_PATH  # guards.unmappable
    return session(config)


FUSED = re.compile(r"/(\w+Fusion)/")
"""How the optimizers of ONNX Runtime name the nodes that they make."""
OTHER_NAMES = {"_new_reshape": "ReshapeFusion"}
"""Parts of other such names."""


def fusion_of(error: Exception) -> str:
    """The optimizer that made the node which an error names, "" where it names none that is known."""
    text = str(error)
    named = FUSED.search(text)
    return named[1] if named else next((name for part, name in OTHER_NAMES.items() if part in text), "")


def broken_by_optimizer(
    message: bytes, level: Level, error: Exception, told: ModelError, config: Mapping[str, str] = {}
) -> ModelError:
    """The error for a model that a lower level loads; `told` where the model itself is refused, or memory lacks."""
    if isinstance(error, MemoryError) or failures.text_of_message(str(error), failures.Topic.ROOM):
        return told
    levels = list(Level)
    first = level
    for lower in reversed(levels[: levels.index(level)]):
        with suppress(*ort_session.ort_errors()):
            ort_session.make_session(
                message,
                ort_session.session_options(
                    lower, config={**config, **ort_session.NO_PREPACKING}, brief=True, small=True
                ),
            )
            return ModelError(
                f"ONNX Runtime's {fusion_of(error) or 'optimizer'} breaks the model from level {first.value} on",
                where=told.where,
                why=told.why,
                remedy=f"use level {lower.value}, which loads; the model itself is sound",
            )
        first = lower
    return told


def failed(error: Exception, where: str, role: Role, inputs: str = "") -> ModelError:
    """The error for what fails on its inputs; of what ONNX Runtime made, with the optimizer where it is known."""
    fusion = fusion_of(error) if role is not Role.ORIGINAL else ""
    what = f"{role} fails on these inputs"
    what = f"ONNX Runtime's {fusion} breaks the model: {what}" if fusion else what
    return ModelError(what, where=where, why=f"{ort_session.first_line(error)}{inputs}", remedy=REMEDIES[role].runs)


def run_session(session: Any, feeds: Mapping[str, Array], where: str, role: Role = Role.ORIGINAL) -> dict[str, Array]:
    """The outputs that are tensors, by name; ModelError when the file fails on these inputs."""
    names = [output.name for output in session.get_outputs()]
    try:
        values = session.run(None, dict(feeds))
    except Exception as error:
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in feeds.items())
        if isinstance(error, MemoryError) or "Failed to allocate memory" in str(error):
            raise ModelError(
                "not enough memory for these inputs",
                where=where,
                why=f"inputs: {shapes}",
                remedy="give smaller dimensions (`dimensions` in the config, --dimension), or smaller test data",
            ) from error
        raise failed(error, where, role, f"; inputs: {shapes}") from error
    return {name: value for name, value in zip(names, values, strict=True) if hasattr(value, "dtype")}


class StreamStates:
    """The states of a model along a stream: the outputs of each step that the next one is given.

    `states` are inputs by the outputs that give their next value, `now` their values.
    """

    def __init__(self, states: Mapping[str, str], first: Mapping[str, Array] = {}) -> None:
        self.states, self.now = states, dict(first)

    def feeds(self, step: Mapping[str, Array]) -> dict[str, Array]:
        """The inputs of a step with the states."""
        return {**step, **self.now}

    def take(self, feeds: Mapping[str, Array], outputs: Mapping[str, Array]) -> list[str]:
        """Take the states out of a step's outputs; the outputs whose state changed its size are left out."""
        changed = []
        for output, name in self.states.items():
            if feeds[name].shape == outputs[output].shape:
                self.now[name] = outputs[output]
            else:
                self.now.pop(name, None)
                changed.append(output)
        return changed


def outputs_of(
    model: LeanModel | Path, feeds: Mapping[str, Array], settings: CpuSettings = ORIGINAL, where: str = ""
) -> dict[str, Array]:
    """What a model or a file gives for some inputs in one run; those that it does not take are left out."""
    where = where or (model.source.name if isinstance(model, LoadedModel) else str(model))
    session = open_session(model, replace(settings, brief=True), where)
    taken = {value.name for value in session.get_inputs()}
    return run_session(session, {name: array for name, array in feeds.items() if name in taken}, where, settings.role)
