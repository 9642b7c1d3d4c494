"""How a provider is asked about its claims: the functions that its folder in pipeline/providers gives.

A provider has `claim`; the others are for what few have, and their defaults say that there is nothing.
"""

import importlib
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from pipeline.core.errors import Finding
from pipeline.partition.answer import LoadForecast, Refusal, Settings, Simulation
from pipeline.partition.graph import Graph, Node

if TYPE_CHECKING:
    from onnx import ModelProto

    from device_runner import providers as runner_providers
    from pipeline.check import result as check_result
    from pipeline.dataset import Dataset
    from pipeline.model import onnx_model
    from pipeline.model.onnx_model import LeanModel
    from pipeline.partition.claiming import Claim
    from pipeline.partition.subject import Views


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRun:
    """A model whose claims are known: what ships of it, as `views` has it, and what making its session gives."""

    views: "Views"
    ships: Graph
    settings: Settings
    load: LoadForecast


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRun:
    """A session of a file, in ORT format or not, that is called `where`; `half`: whether the GPU has shader-f16."""

    graph: Graph
    settings: Settings
    where: str
    ort_format: bool
    half: bool | None = None


def _last_round(rounds: Iterable[tuple[Graph, "Claim"]], _settings: Settings) -> LoadForecast:
    """For providers that compile what they claim: the groups of the last round."""
    counts = tuple(len(claimed.groups) for _, claimed in rounds)
    return LoadForecast(partitions=counts[-1], rounds=counts)


def _nothing_wrong(_views: "Views", _shown: Graph, _settings: Settings) -> None:
    """For providers whose settings name nothing of a model."""


def _all_built(_graph: Graph, _groups: Iterable[tuple[Node, ...]], _settings: Settings) -> Refusal | None:
    """For providers that compile no partitions."""
    return None


def _as_forecast(run: ModelRun) -> LoadForecast:
    """For providers that run whatever they make a session of."""
    return run.load


def _no_findings(_run: FileRun) -> Iterable[Finding]:
    return ()


def _no_warnings(_run: ModelRun) -> Iterable[str]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCopies:
    """Of a provider that takes nodes one by one: the copies of values between its memory and the CPU's.

    `count` is how many one inference makes with these nodes claimed, `estimated` whether ONNX Runtime may insert
    others. `written` is a finished model with the copies in it, which ONNX Runtime inserts in ONNX files alone: the
    same model where none are needed.
    """

    count: Callable[[Graph, Settings, Container[int]], int]
    estimated: Callable[[Graph, Settings, Container[int]], bool]
    written: Callable[["LeanModel", Settings, Callable[["ModelProto"], Graph]], "LeanModel"]


class Simulator(Protocol):
    """The module that computes as a chip does, on this computer."""

    def simulate(
        self,
        loaded: "onnx_model.LoadedModel",
        model: "ModelProto",
        graph: Graph,
        chip: "runner_providers.Chip",
        data: "Dataset",
        folder: Path,
        original: "check_result.Reference | None" = None,
    ) -> Simulation:
        """Run a model on data and compare it with the original; ModelError where that cannot be run."""

    def run_samples(
        self, model: "LeanModel", chip: "runner_providers.Chip", feeds: Sequence[dict[str, Any]], target: Path
    ) -> list[dict[str, Any]] | Refusal:
        """What it makes of each sample, by names of outputs; or why there is nothing. `target` is the model's file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipCompiler:
    """Of a provider whose claims a compiler gives, for a chip.

    `ask` is told the model with its weights, as a message and as a graph, the chip and a folder. `suspicions` are
    lines about claimed nodes that the chip may compute otherwise. `session` is the program that compiles, a process for
    each question, which takes `seconds` beside what the model's size asks for; `meaning` is what its errors mean.
    `simulator_module` computes as the chip does.
    """

    ask: Callable[
        ["onnx_model.LoadedModel", "ModelProto", Graph, "runner_providers.Chip", Path], tuple["Claim", LoadForecast]
    ]
    suspicions: Callable[[Graph, Container[int]], Iterable[str]]
    session: str
    seconds: float
    meaning: Callable[[str], Refusal]
    simulator_module: str

    @property
    def simulator(self) -> Simulator:
        """The simulator of the chips, imported now."""
        return cast(Simulator, importlib.import_module(self.simulator_module))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRefusals:
    """What a library's log says that a provider refuses: reasons by the names of nodes, and the operators of those
    without a kernel; `nothing` is why it takes no node at all.
    """

    kinds: Mapping[str, str]
    reasons: Mapping[str, str]
    nothing: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryLog:
    """Of a provider whose refusals a library logs, as it has kernels and compiles nothing: it claims all the rest.

    `entries` are those of the session that is asked, `read` is told the verbose log.
    """

    entries: Callable[[Settings], dict[str, str]]
    read: Callable[[Sequence[str], Settings], LoggedRefusals]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderClaims:
    """The functions of a provider, `CLAIMS` of its module of claims.

    `claim` is what it takes of a graph, of the nodes that it is given where it is asked again. `forecast` is told the
    rounds of a session, each with its graph and claim. `table` has the operators of which it may take a call of a
    function whole.
    `build_refusal` is why a partition cannot be compiled, `crash_in_file` why no session at level all opens a file in
    ORT format of which it claims these nodes. `check` raises ModelError for settings that do not go with a
    model. `at_run` is the forecast of a session that is made, with why it does not run what ships, `run_findings` are
    the reasons why a session does not run a file, each as an error; `warnings` are lines about what it does.
    `library_note` is why a library's claims may differ from those of the rules.
    """

    claim: Callable[[Graph, Settings, Container[int] | None], "Claim"]
    forecast: Callable[[Iterable[tuple[Graph, "Claim"]], Settings], LoadForecast] = _last_round
    table: Mapping[str, object] = field(default_factory=dict)
    build_refusal: Callable[[Graph, Iterable[tuple[Node, ...]], Settings], Refusal | None] = _all_built
    crash_in_file: Callable[[Graph, Container[int]], Refusal | None] | None = None
    copies: NodeCopies | None = None
    compiler: ChipCompiler | None = None
    check: Callable[["Views", Graph, Settings], None] = _nothing_wrong
    at_run: Callable[[ModelRun], LoadForecast] = _as_forecast
    run_findings: Callable[[FileRun], Iterable[Finding]] = _no_findings
    library_log: LibraryLog | None = None
    library_note: str = ""
    warnings: Callable[[ModelRun], Iterable[str]] = _no_warnings
