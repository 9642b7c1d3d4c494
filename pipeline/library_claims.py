"""What the genuine library that ships claims and saves: Android's libonnxruntime is asked in a process here.

Claims are those of the saving mode (session saved in ORT format without the compile step), as our rules compute them.
Every node is first named after its first output, because the library tells names only.
"""

import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from device_runner.android_host.ask import STOP_OPS, Answer, Question, Session, ask
from device_runner.android_host.device import Phone
from device_runner.library_source import LibraryFacts, find_library
from device_runner.spec import NnapiFlag, OptimizationLevel
from pipeline.errors import ModelError

if TYPE_CHECKING:
    import onnx

NNAPI = "NnapiExecutionProvider"
SAVE_ORT = {"session.save_model_format": "ORT"}
NO_NCHWC = {"optimization.disable_specified_optimizers": "NchwcTransformer"}
"""NchwcTransformer makes files for one x86 machine only; the library that answers is one for x86."""
SUPPORTED = re.compile(r"Node supported: \[(\d)\] Operator type: \[.*?\] index: \[\d+\] name: \[(.*?)\] as part of")
PLACED = re.compile(r"placed on \[(\w+)\]")


class LibraryClaims(msgspec.Struct, frozen=True, kw_only=True):
    """What a library claims of one model: each partition's nodes by their first outputs, in the library's order.

    A graph with functions is asked again after they are inlined: `inlined` is set, and what was claimed then stands
    behind the first answer's partitions, inlined nodes as "". `partitions` is None where the library is older than 1.24
    and tells which nodes it claims (`nodes`) but not how it groups them. `reasons` has the library's own words for
    refused nodes, when they were asked for. With `error` set nothing else is known; `crashed` when the process ended.
    """

    id: str
    release: str
    partitions: tuple[tuple[str, ...], ...] | None = None
    nodes: frozenset[str] = frozenset()
    inlined: bool = False
    reasons: Mapping[str, str] = {}
    error: str | None = None
    crashed: bool = False


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What claims depend on beside model and library. `stop_ops` None leaves the provider's own list."""

    api_level: int = 31
    flags: tuple[NnapiFlag, ...] = ()
    stop_ops: tuple[str, ...] | None = None
    level: OptimizationLevel = OptimizationLevel.NONE
    reasons: bool = False

    def session(self, config: Mapping[str, str]) -> Session:
        """The sessions that answer it."""
        stops = {} if self.stop_ops is None else {STOP_OPS: ",".join(self.stop_ops)}
        return Session(
            flags=self.flags,
            level=self.level,
            config={**config, **stops},
            verbose=self.reasons,
            phone=Phone(api_level=self.api_level),
        )


def reference_claims(model: Path, library: str, asked: Asked) -> LibraryClaims:
    """The claims of one model; `library` is an AAR, a .so or a release. Raises ModelError for what is no model.

    Refusals and crashes of the library are in the answer.
    """
    return next(claims_of_many([model], library, asked))


def claims_of_many(models: Sequence[Path], library: str, asked: Asked) -> Iterator[LibraryClaims]:
    """The claims of many models in one process, in their order."""
    facts = find_library(library)
    with tempfile.TemporaryDirectory(prefix="ort-mobile-claims-") as name:
        folder = Path(name)
        questions = [
            Question(id=str(index), model=_renamed(model, folder / f"{index}.onnx"), saved=folder / "saved.ort")
            for index, model in enumerate(models)
        ]
        # Claims of older libraries are in the verbose log only.
        wordy = asked if _tells_claims(facts) else msgspec.structs.replace(asked, reasons=True)
        for answer in ask(facts, questions, wordy.session(SAVE_ORT)):
            yield _claims(answer, str(models[int(answer.id)]), facts)


def _tells_claims(facts: LibraryFacts) -> bool:
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


def name_nodes(proto: "onnx.ModelProto") -> None:
    """Name every node of the main graph after its first output that has a name."""
    for node in proto.graph.node:
        node.name = next((output for output in node.output if output), node.name)


def _claims(answer: Answer, model: str, facts: LibraryFacts) -> LibraryClaims:
    if answer.failed:
        what = answer.message or answer.signal
        crashed = bool(answer.signal)
        said = f"the library ended by {answer.signal}: {answer.message}" if crashed else what
        return LibraryClaims(id=model, release=facts.release, error=said, crashed=crashed)
    recorded = answer.recorded
    groups = tuple(
        tuple(node.name for node in subgraph.nodes) for subgraph in answer.subgraphs if subgraph.provider == NNAPI
    )
    nodes = {name for group in groups for name in group} if recorded else _placed(answer.log)
    return LibraryClaims(
        id=model,
        release=facts.release,
        partitions=groups if recorded else None,
        nodes=frozenset(nodes),
        inlined=any(not node.name for subgraph in answer.subgraphs for node in subgraph.nodes),
        reasons=_reasons(answer.log),
    )


def _placed(log: Sequence[str]) -> set[str]:
    """Nodes placed on NNAPI, from the lines `Node(s) placed on [PROVIDER]` with one ` OPERATOR (NAME)` each behind."""
    placed: set[str] = set()
    provider = ""
    supported = {match.group(2) for line in log if (match := SUPPORTED.search(line)) and match.group(1) == "1"}
    for line in log:
        if match := PLACED.search(line):
            provider = match.group(1)
            if provider == NNAPI and "All nodes placed" in line:
                return supported
        elif provider == NNAPI and (node := re.fullmatch(r"\s+\S+ \((.*)\)", line)):
            placed.add(node.group(1))
    return placed


def _reasons(log: Sequence[str]) -> dict[str, str]:
    """The library's reason for each refused node: what it said just before `Node supported: [0]`, first answer only."""
    reasons: dict[str, str] = {}
    said: list[str] = []
    for line in log:
        match = SUPPORTED.search(line)
        if match is None:
            said = [*said, line] if not line.startswith(PREAMBLE) else []
            continue
        if match.group(1) == "0":
            reasons.setdefault(match.group(2), "; ".join(said) or "not among its operators")
        said = []
    return reasons


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A node that one side claims and the other does not, with both sides' reasons ("" where there is none)."""

    output: str
    ours: bool
    theirs: bool
    our_reason: str = ""
    their_reason: str = ""


def first_answer(theirs: LibraryClaims, ours: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """The partitions that the library gave when it was asked first, as many as ours where it was asked twice.

    The record does not say where the second answer begins; it can only begin behind a first one that agrees.
    """
    partitions = theirs.partitions or ()
    prefix = partitions[: len(ours)] if theirs.inlined else partitions
    return prefix if _same(prefix, ours) else partitions


def _same(theirs: Sequence[Sequence[str]], ours: Sequence[Sequence[str]]) -> bool:
    """Equal as sets of sets. Nodes of local functions have no names in the record: such a group is only counted."""
    left, right = (sorted(map(_plain, groups)) for groups in (theirs, ours))
    if left == right:
        return True
    rest = [Counter(group) for group in right]
    for group in sorted(left, key=lambda names: names.count("")):
        named = Counter(name for name in group if name)
        found = next((mine for mine in rest if mine.total() == len(group) and named <= mine), None)
        if found is None:
            return False
        rest.remove(found)
    return not rest


PREAMBLE = ("Using default partitioning", "Found devices", "Effective NNAPI feature level")
"""Lines that belong to no node."""
TOKEN = re.compile(r"_token_\d+")


def _plain(names: Sequence[str]) -> list[str]:
    """Names without the number that ONNX Runtime's hash order decides (`x/duplicated_token_3`)."""
    return sorted(TOKEN.sub("", name) for name in names)


def same_claims(theirs: LibraryClaims, ours: Sequence[Sequence[str]]) -> bool:
    """Whether the library's partitions are ours: as sets of sets; as sets of nodes where it does not tell groups."""
    if theirs.partitions is None:
        return _plain(tuple(theirs.nodes)) == _plain([name for group in ours for name in group])
    return _same(first_answer(theirs, ours), ours)


def differences(
    theirs: LibraryClaims, ours: Sequence[Sequence[str]], our_reasons: Mapping[str, str]
) -> tuple[Difference, ...]:
    """Nodes that only one side claims, by first output, sorted, with what each side says."""
    our_nodes = {name for group in ours for name in group}
    groups = first_answer(theirs, ours) if theirs.partitions is not None else (tuple(theirs.nodes),)
    their_nodes = {name for group in groups for name in group}
    if "" in their_nodes:
        return ()
    return tuple(
        Difference(
            output=name,
            ours=name in our_nodes,
            theirs=name in their_nodes,
            our_reason=our_reasons.get(name, ""),
            their_reason=theirs.reasons.get(name, ""),
        )
        for name in sorted(our_nodes ^ their_nodes)
    )


def reference_aware(
    model: Path, target: Path, library: str, asked: Asked, *, provider: str = "nnapi", config: Mapping[str, str] = {}
) -> None:
    """Let the genuine provider's session save its EP-aware ORT format file of `model` at `asked.level`.

    `config` are further session config entries, as the stock converter's for its style and platform. The model is
    shown as it stands: its node names steer names in the file. Raises ModelError with the library's reason when it
    fails or crashes; `target` is then not there.
    """
    facts = find_library(library)
    session = asked.session({**SAVE_ORT, **NO_NCHWC, **config})
    with tempfile.TemporaryDirectory(prefix="ort-mobile-aware-", dir=target.parent) as name:
        part = Path(name) / "saved.ort"
        question = Question(id=str(model), model=model, saved=part)
        answer = next(ask(facts, [question], _with_provider(session, provider)))
        if answer.failed or not part.is_file():
            raise ModelError(
                f"the library of {facts.release} cannot save this model",
                where=str(model),
                why=f"{answer.signal} {answer.message}".strip(),
                remedy="splice the claimed nodes instead (convert without --reference), or change the model",
            )
        part.replace(target)


def _with_provider(session: Session, provider: str) -> Session:
    from dataclasses import replace

    return replace(session, provider=provider)
