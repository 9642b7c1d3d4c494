"""What a pass is: a function from a model to a model, with its options, its precondition and how exact it is."""

import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from pipeline.config import tables as config_tables
from pipeline.core import providers as provider_rules
from pipeline.core.errors import ModelError
from pipeline.model.onnx_model import LeanModel

if TYPE_CHECKING:
    from onnx import ModelProto

    from pipeline.passes.edit import GraphFacts

Model: TypeAlias = LeanModel
"""What passes go over: a message whose large weights are ranges of files. Passes never change the one that they get."""

Feeds: TypeAlias = Mapping[str, Any]
"""One sample: arrays by the names of the model's inputs."""


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of a pass that has none; the base of the others'. Field docstrings are their documentation."""


class Effect(StrEnum):
    """How far the outputs of a pass may be from those of the model that it got."""

    EXACT = "exact"
    """Equal to the last bit."""
    ROUNDING = "rounding"
    """Equal but for rounding: the tolerance of the model's own precision (pipeline.check.compare)."""
    LOSSY = "lossy"
    """Another precision: accuracy is measured on data."""
    INTERFACE = "interface"
    """Inputs or outputs differ; those that remain are equal."""


class NotApplicable(ModelError):
    """The precondition of a pass does not hold: nothing was done, and `why` says what speaks against it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassContext:
    """What passes may use beside the model.

    `folder` is a scratch folder for files of their own; `where` names the model in errors. `samples` starts a new walk
    over calibration data, one sample in memory at a time; None where there are none. `say` shows the user what a pass
    that takes long is at; `warn` takes what the user must know of the result, in one line. `usual` gives the sample
    that checks run a model on without data.
    """

    folder: Path
    where: str
    samples: Callable[[], Iterator[Feeds]] | None = None
    say: Callable[[str], None] = lambda _: None
    warn: Callable[[str], None] = lambda _: None
    usual: Callable[[], Feeds] = dict

    def new_file(self, suffix: str) -> Path:
        """A path in the scratch folder that no other file has."""
        return self.folder / f"{secrets.token_hex(8)}{suffix}"


Apply: TypeAlias = Callable[[Model, Any, PassContext], Model]
"""The changed model; NotApplicable when a precondition does not hold, ModelError when a library fails.

The second argument is an instance of the pass's own options type.
"""


Edit: TypeAlias = "Callable[[ModelProto, GraphFacts], ModelProto | None]"
"""A changed message; None where there is nothing to change. ModelError when it should apply and cannot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One row of the registry: `title` is its line in `ort-mobile transform --list`, `extra` what pip must install.

    A pass that needs data has `before_data`, what it does before it reads any: that refuses models that no data help.
    `measures`: it looks at data where there are some. What advice tries has `edit`, the same on a graph and what is
    known of it, `helps`, the providers that it may help, and `absent`, why it does not apply where it does not.
    """

    name: str
    title: str
    apply: Apply
    effect: Effect
    options: type[Options] = Options
    before_data: Apply | None = None
    measures: bool = False
    extra: str = ""
    edit: "Edit | None" = None
    helps: frozenset[str] = frozenset(provider_rules.PROVIDER_RULES)
    absent: str = ""

    @property
    def exact(self) -> bool:
        """Whether outputs stay equal to the last bit."""
        return self.effect is Effect.EXACT

    @property
    def task(self) -> str:
        """The title as advice names it among others: `write Clip as Relu, or Max and Min`."""
        return f"{self.title[0].lower()}{self.title[1:].removesuffix('.')}"

    @property
    def needs_data(self) -> bool:
        """Whether it needs calibration data."""
        return self.before_data is not None


class StepChange(msgspec.Struct, frozen=True, kw_only=True):
    """What a step did: nodes of the main graph, and bytes of message and weights, before and after it."""

    step: config_tables.Step
    nodes_before: int
    nodes_after: int
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PassResult:
    """A model behind its passes: `changes` has what was done to it, first step first, `notes` are warnings about it."""

    model: Model
    changes: tuple[StepChange, ...] = ()
    notes: tuple[str, ...] = ()


class LayerLoss(msgspec.Struct, frozen=True, kw_only=True):
    """What quantizing some nodes alone costs: one layer, or a run of layers that was not worth dividing."""

    nodes: tuple[str, ...]
    op_type: str
    sqnr_db: float


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One choice that was measured whole: what is left float and what that gives."""

    types: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    sqnr_db: float
    quantized: int
    partitions: int | None = None
    """Partitions of the provider; None without one, and where its partitions cost nothing."""
    load_error: str = ""
    """Why no session can be made on the phone."""


class MixedSearch(msgspec.Struct, frozen=True, kw_only=True):
    """A search and its result. `spread`: no operator type and no layer is to blame for the loss."""

    goal_db: float
    evaluations: int
    start: Trial
    best: Trial
    spread: bool
    layers: tuple[LayerLoss, ...] = ()
    trials: tuple[Trial, ...] = ()

    @property
    def text(self) -> str:
        """The result in one line."""
        start = f"{_figures(self.start)} with all quantized"
        if not self.best.types and not self.best.nodes and not self.spread:
            return f"{start}: nothing must stay float"
        gain = f"{start}, {_figures(self.best)}"
        left = [f"all {', '.join(self.best.types)}"] if self.best.types else []
        left += [f"{len(self.best.nodes)} layer{'s' * (len(self.best.nodes) != 1)}"] if self.best.nodes else []
        if self.spread:
            return f"{gain} at best: the loss is spread, no layer helps; use wider activations or fewer operator types"
        return f"{gain} with {' and '.join(left)} float, after {self.evaluations} evaluations"


def _figures(trial: Trial) -> str:
    """As in `31.0 dB in 2 partitions`."""
    count = "" if trial.partitions is None else f" in {trial.partitions} partition{'s' * (trial.partitions != 1)}"
    return f"{trial.sqnr_db:.1f} dB{count}{', which does not load' if trial.load_error else ''}"
