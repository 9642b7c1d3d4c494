"""What the genuine library that ships claims and saves: Android's libonnxruntime is asked in a process here.

Claims are those of the saving mode (session saved in ORT format without the compile step), as our rules compute them.
Every node is first named after its first output, because the library reports names only.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from device_runner.android_host.calls import HANG, STOP_OPS, LibraryAnswer, Session, ask
from device_runner.android_host.device import Phone
from device_runner.files import scratch_folder
from device_runner.library import LibraryFacts, resolve
from device_runner.spec import NnapiFlag, OptimizationLevel
from pipeline.core.errors import MissingError, ModelError
from pipeline.core.providers import NNAPI, PROVIDER_RULES
from pipeline.model.edit import keep_only, subgraphs
from pipeline.model.onnx_model import LoadedModel
from pipeline.model.sources import SourceModel
from pipeline.partition.answer import Optimize, Settings
from pipeline.partition.basic import save_basic, undone_for_provider
from pipeline.partition.functions import before_partitioning
from pipeline.partition.input import body_types, name_nodes, open_subject, tensor_reader, write_model

if TYPE_CHECKING:
    from onnx import ModelProto

    from pipeline.partition.graph import Graph

EXTERNAL_SINCE = (1, 23)
"""Providers before refuse weights that lie in other files than the model (ep_rules A.4)."""


class ShowRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A model with sizes for its dynamic dimensions, and where its graph goes, as it stands or after level basic.

    The file's folder is for scratch too.
    """

    source: SourceModel
    settings: Settings
    optimize: Optimize
    target: str
    sizes: dict[str, int] = {}


class ShownGraph(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the file was written; `error` says why not."""

    error: str = ""


def show(request: ShowRequest) -> ShownGraph:
    """Write the model with its weights inside and each node of the main graph named after its first output."""
    try:
        _show(request)
    except ModelError as error:
        return ShownGraph(error=error.reason)
    return ShownGraph()


def _show(request: ShowRequest) -> None:
    target = Path(request.target)
    with scratch_folder(parent=target.parent) as folder:
        loaded = open_subject(request.source, folder, request.sizes).loaded
        if loaded is None:
            raise ModelError(
                "an ORT format file cannot be shown to a library",
                where=request.source.name,
                why="it reports its claims of ONNX models only",
                remedy="give the ONNX model that the file was made from",
            )
        if request.optimize is Optimize.BASIC:
            loaded = _after_basic(loaded, request.settings, folder)
        write_model(loaded, target, named=True, external=request.settings.ort_release >= EXTERNAL_SINCE)


def _after_basic(loaded: LoadedModel, settings: Settings, folder: Path) -> LoadedModel:
    """As `judge` shows it to the rules."""
    from pipeline.partition.onnx_view import view

    read = tensor_reader(loaded)

    def look(model: "ModelProto") -> "Graph":
        return view(model, read=read, saved=lambda: body_types(model, folder), outside=loaded.outside)

    before = before_partitioning(loaded.proto, look, settings)
    saved = save_basic(loaded, folder)
    proto = undone_for_provider(saved.proto, before) or saved.proto
    _forget_unused_domains(proto)
    return replace(saved, proto=proto)


def _forget_unused_domains(proto: "ModelProto") -> None:
    """A saved model imports every domain that the installed onnxruntime knows, at versions that older ones refuse."""
    used = {node.domain for graph in subgraphs(proto.graph) for node in graph.node}
    used |= {node.domain for function in proto.functions for node in function.node}
    keep_only(proto.opset_import, lambda entry: entry.domain in used or entry.domain in {"", "ai.onnx"})


SAVE_ORT = {"session.save_model_format": "ORT"}
SAVE_ONLY = {"session.disable_prepacking": "1"}
"""The session is thrown away as soon as it has saved."""
NO_NCHWC = {"optimization.disable_specified_optimizers": "NchwcTransformer"}
"""NchwcTransformer makes files for one x86 machine only; the library that answers is one for x86."""
SUPPORTED = re.compile(r"Node supported: \[(\d)\] Operator type: \[.*?\] index: \[\d+\] name: \[(.*?)\] as part of")
PLACED = re.compile(r"placed on \[(\w+)\]")
NONE_AT_ALL = re.compile(r"All ops will fallback to CPU EP, because (.*)")
COUNTED = re.compile(r"number of partitions supported by NNAPI: (\d+) ")


class LibraryClaims(msgspec.Struct, frozen=True, kw_only=True):
    """What a library claims of one model: each partition's nodes by their first outputs, in the library's order.

    A graph with functions is asked again after they are inlined: `inlined` is set, and what was claimed then stands
    behind the first answer's partitions, inlined nodes as "". `partitions` is None where the library is older than 1.24
    and reports which nodes it claims (`nodes`) and in how many groups (`count`), but not how it groups them. `reasons`
    has the library's own words for refused nodes, when they were asked for; `reason` those for refusing all of them.
    With `error` set nothing else is known; `crashed` when the process ended.
    """

    id: str
    release: str
    partitions: tuple[tuple[str, ...], ...] | None = None
    nodes: frozenset[str] = frozenset()
    count: int = 0
    inlined: bool = False
    reasons: Mapping[str, str] = {}
    reason: str = ""
    error: str | None = None
    crashed: bool = False


class ClaimQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What claims depend on in addition to model and library. `stop_ops` None leaves the provider's own list.

    `cpu` is a profile of an emulator, "" for the usual one.
    """

    provider: str = NNAPI
    api_level: int = 31
    flags: tuple[NnapiFlag, ...] = ()
    stop_ops: tuple[str, ...] | None = None
    level: OptimizationLevel = OptimizationLevel.NONE
    reasons: bool = False
    cpu: str = ""

    def session(self, config: Mapping[str, str]) -> Session:
        """The sessions that answer it."""
        stops = {} if self.stop_ops is None else {STOP_OPS: ",".join(self.stop_ops)}
        return Session(
            provider=PROVIDER_RULES[self.provider].run.append_name,
            flags=self.flags,
            level=self.level,
            config={**config, **stops},
            verbose=self.reasons,
            phone=Phone(api_level=self.api_level, cpu=self.cpu),
        )


def asked_of(settings: Settings) -> ClaimQuery:
    """The question that is settled by the settings of our rules, with reasons."""
    return ClaimQuery(
        provider=settings.provider,
        api_level=settings.api_level,
        flags=tuple(NnapiFlag(flag) for flag in settings.nnapi_flags),
        stop_ops=settings.stop_ops,
        reasons=True,
    )


def reference_claims(model: Path, library: str, asked: ClaimQuery) -> LibraryClaims:
    """The claims of one model; `library` is an AAR, a .so or a release. Raises ModelError for what is no model.

    Refusals and crashes of the library are in the answer.
    """
    return next(claims_of_many([model], library, asked))


def claims_of_many(models: Sequence[Path], library: str, asked: ClaimQuery) -> Iterator[LibraryClaims]:
    """The claims of many models in one process, in their order."""
    with scratch_folder() as folder:
        named = [_renamed(model, folder / f"{index}.onnx") for index, model in enumerate(models)]
        for model, claims in zip(models, claims_of_named(named, resolve(library).android(), asked), strict=True):
            yield msgspec.structs.replace(claims, id=str(model))


def claims_of_named(models: Sequence[Path], library: LibraryFacts, asked: ClaimQuery) -> Iterator[LibraryClaims]:
    """The claims of models whose nodes go by their first outputs already (`name_nodes`), in their order."""
    # Claims of older libraries are in the verbose log only.
    wordy = asked if tells_claims(library) else msgspec.structs.replace(asked, reasons=True)
    with scratch_folder() as folder:
        saved = folder / "saved.ort"
        questions = [(str(index), model, saved) for index, model in enumerate(models)]
        for answer in ask(library, questions, wordy.session({**SAVE_ORT, **SAVE_ONLY})):
            yield _claims(answer, str(models[int(answer.id)]), library, PROVIDER_RULES[asked.provider].run.ort_name)


def check_asked(facts: LibraryFacts, provider: str) -> None:
    """MissingError for a library that cannot claim nodes of an ONNX model."""
    if facts.kind != "full":
        raise MissingError(
            f"a {facts.kind} build cannot be asked for claims",
            where=facts.path,
            why="it loads ORT format files only",
            remedy="use the full library of the same release (`ort-mobile library get`)",
        )
    name = PROVIDER_RULES[provider].provider
    if name not in facts.providers:
        raise MissingError(
            f"this library was built without {name}",
            where=facts.path,
            why=f"it has {', '.join(facts.providers)}",
            remedy="use a library with the provider",
        )


def tells_claims(facts: LibraryFacts) -> bool:
    """Whether a library records what it assigns (the C API's version 24); older ones log it for NNAPI."""
    return facts.release == "" or tuple(map(int, facts.release.split(".")[:2])) >= (1, 24)


def _renamed(model: Path, target: Path) -> Path:
    """A copy of a model with each node of the main graph named after its first output, weights inside."""
    import onnx
    from google.protobuf.message import DecodeError, EncodeError

    try:
        proto = onnx.load(model)
        name_nodes(proto)
        onnx.save(proto, target)
    except (OSError, ValueError, DecodeError, EncodeError, onnx.checker.ValidationError) as error:
        raise ModelError(
            "this model cannot be shown to a library", where=str(model), why=str(error), remedy="check the file"
        ) from error
    return target


def _claims(answer: LibraryAnswer, model: str, facts: LibraryFacts, provider: str) -> LibraryClaims:
    if answer.failed:
        return LibraryClaims(id=model, release=facts.release, error=_failure(answer), crashed=bool(answer.signal))
    recorded = answer.recorded
    groups = tuple(
        tuple(name for name, _, _ in subgraph.nodes) for subgraph in answer.subgraphs if subgraph.provider == provider
    )
    nodes = {name for group in groups for name in group} if recorded else _placed(answer.log, provider)
    counted = (int(match.group(1)) for line in answer.log if (match := COUNTED.search(line)))
    return LibraryClaims(
        id=model,
        release=facts.release,
        partitions=groups if recorded else None,
        nodes=frozenset(nodes),
        count=len(groups) if recorded else next(counted, 0) if nodes else 0,  # it counts groups that it then drops
        inlined=any(not name for subgraph in answer.subgraphs for name, _, _ in subgraph.nodes),
        reasons=_reasons(answer.log),
        reason=next((match.group(1) for line in answer.log if (match := NONE_AT_ALL.search(line))), ""),
    )


def _failure(answer: LibraryAnswer) -> str:
    if not answer.signal:
        return answer.message or f"ONNX Runtime gives error code {answer.code} and no reason"
    how = "did not answer in time and was ended" if answer.signal == HANG else f"ended by {answer.signal}"
    return f"the library {how}" + (f": {answer.message}" if answer.message else "")


def _placed(log: Sequence[str], wanted: str) -> set[str]:
    """Nodes placed on a provider: behind a line `Node(s) placed on [PROVIDER]` stands one ` OPERATOR (NAME)` each."""
    placed: set[str] = set()
    provider = ""
    supported = {match.group(2) for line in log if (match := SUPPORTED.search(line)) and match.group(1) == "1"}
    for line in log:
        if match := PLACED.search(line):
            provider = match.group(1)
            if provider == wanted and "All nodes placed" in line:
                return supported
        elif provider == wanted and (node := re.fullmatch(r"\s+\S+ \((.*)\)", line)):
            placed.add(node.group(1))
    return placed


def _reasons(log: Sequence[str]) -> dict[str, str]:
    """The library's reason for each refused node: what it said just before `Node supported: [0]`, first answer only."""
    reasons: dict[str, str] = {}
    lines: list[str] = []
    for line in log:
        match = SUPPORTED.search(line)
        if match is None:
            lines = [*lines, line] if not line.startswith(PREAMBLE) else []
            continue
        if match.group(1) == "0":
            reasons.setdefault(match.group(2), "; ".join(lines) or "not among its operators")
        lines = []
    return reasons


PREAMBLE = ("Using default partitioning", "Found devices", "Effective NNAPI feature level")
"""Lines that belong to no node."""


def reference_aware(
    model: Path, target: Path, library: LibraryFacts, asked: ClaimQuery, *, config: Mapping[str, str] = {}
) -> None:
    """Let the genuine provider's session save its EP-aware ORT format file of `model` at `asked.level`.

    `config` are further session config entries, as the stock converter's for its style and platform. The model is
    shown as it stands: its node names steer names in the file. Raises ModelError with the library's reason when it
    fails or crashes; `target` is then not there.
    """
    session = asked.session({**SAVE_ORT, **SAVE_ONLY, **NO_NCHWC, **config})
    with scratch_folder(parent=target.parent) as folder:
        part = folder / "saved.ort"
        question = (str(model), model, part)
        answer = next(ask(library, [question], session))
        if answer.failed or not part.is_file():
            raise ModelError(
                f"the library of {library.release} cannot save this model",
                where=str(model),
                why=_failure(answer) or "it saved no file",
                remedy="keep the claims of our rules instead (convert without --reference), or change the model",
            )
        part.replace(target)
