"""Our claims compared with a genuine library's on the same graph (`ort-mobile partition --reference`).

Our rules say why, for every platform; the library that ships is what they are checked against. Where there are no rules
for its release, its claims are the answer.
"""

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from device_runner.android_host.processor import check_host, default_abi
from device_runner.library_facts import LibraryFacts
from device_runner.library_source import resolve
from pipeline.core.errors import ConfigError, ExitCode
from pipeline.core.providers import PROVIDER_RULES, XNNPACK, in_android_libraries
from pipeline.core.releases import has_rules, line_of, rules_of
from pipeline.core.workers import Task, TaskOutcome, run_tasks
from pipeline.model.sources import find_models
from pipeline.partition.answer import SUFFIXES, ModelAnswer, Optimize, PartitionDocument, Settings
from pipeline.partition.input import (
    NO_SIZES,
    remove_model,
    written_bytes,
)
from pipeline.partition.judge import TIMEOUT_SECONDS
from pipeline.partition.reference.ask import (
    LibraryClaims,
    asked_of,
    check_asked,
    claims_of_named,
    tells_claims,
)
from pipeline.partition.reference.diff import ClaimDiff, as_answer, diff_claims
from pipeline.partition.reference.show import ShownGraph, ShowRequest, show

AT_ONCE, AT_ONCE_BYTES = 64, 512 << 20
"""So many models, or so much of them, lie in the scratch folder at once and are asked about in one process."""


class LibraryReference(msgspec.Struct, frozen=True, kw_only=True):
    """The library of an ABI that was asked, and its answers. With `rules` False none of ours are for its release."""

    library: str
    release: str
    sha256: str
    abi: str
    rules: bool
    different: int
    models: tuple[ClaimDiff, ...]


class ReferencedDocument(PartitionDocument, frozen=True, kw_only=True):
    """The JSON document of `ort-mobile partition --reference`."""

    reference: LibraryReference

    @property
    def complete(self) -> tuple[ModelAnswer, ...]:
        """Answers that are whole: a library before 1.24 does not report how nodes are grouped."""
        pairs = zip(self.models, self.reference.models, strict=True)
        return tuple(
            m for m, one in pairs if m.error or self.reference.rules or len(m.partitions) == one.library_partitions
        )

    @property
    def exit_code(self) -> ExitCode:
        """4 when claims differ, 1 when the library gave no answer for a model."""
        if self.reference.different:
            return ExitCode.CHECK_FAILED
        failed = any(one.error for one in self.reference.models)
        return ExitCode.SOME_FAILED if failed else ExitCode.DONE


def open_reference(text: str, provider: str, release: str, abi: str = "") -> LibraryFacts:
    """The library that can be asked about a provider; `release` is the one that the user named, "" for none.

    `abi` is by Android's name, "" for the one that needs no emulator here.

    Raises ConfigError for what no Android library reports, MissingError where it is not available or cannot run here.
    """
    run = PROVIDER_RULES[provider].run
    if run.home and run.never_on("android"):
        owner = run.home.owner
        raise ConfigError(
            f"no Android library can be asked about {provider}",
            why=f"{run.title} is in {owner}'s libraries only, which run on {owner}'s systems only",
            remedy=f"leave --reference out, or ask about {' or '.join(in_android_libraries())}",
        )
    wanted = abi or default_abi()
    check_host(wanted)
    facts = resolve(text, wanted).android()
    check_asked(facts, provider)
    if provider == XNNPACK and not tells_claims(facts):
        raise ConfigError(
            f"a library of {facts.release} does not report what XNNPACK claims",
            why="that came with release 1.24; before, only NNAPI logs its claims",
            remedy="ask about nnapi, or a library of 1.24 or later",
        )
    if release and facts.release and not (facts.release + ".").startswith(release.rstrip(".") + "."):
        raise ConfigError(
            f"the library is of release {facts.release}, not {release}",
            where=text,
            why="claims of one release are checked against the rules of the same",
            remedy="leave --ort-release out: it is the library's then",
        )
    return facts


def rules_known(facts: LibraryFacts) -> bool:
    """Whether there are rules for a library's release; where it reports none, the user names the release."""
    return not facts.release or has_rules(line_of(facts.release))


def rules_release(facts: LibraryFacts, named: str) -> str:
    """The release whose rules a library is compared with: its own or the nearest with rules; "": the installed one.

    `named` is the user's, for files that do not report their release.
    """
    wanted = facts.release or named
    if not wanted:
        return ""
    return str(rules_of(line_of(wanted)))


def compare_answers(
    paths: Sequence[str | Path],
    answers: Sequence[ModelAnswer],
    facts: LibraryFacts,
    settings: Settings,
    optimize: Optimize,
    *,
    sizes: Mapping[str, int] = NO_SIZES,
    processes: int = 1,
) -> ReferencedDocument:
    """The answers for the models under `paths`, in their order, compared with the library's.

    `sizes` are for dynamic dimensions, as in the answers.

    Models are read in worker processes and shown to the library in another one, so a crash costs one model. A model
    that has no answer of ours is not shown: what is wrong with it is known already.
    """
    known = rules_known(facts)
    pairs = list(_pairs(paths, answers, facts, settings, optimize, sizes, known=known, processes=processes))
    reference = LibraryReference(
        library=facts.path,
        release=facts.release,
        sha256=facts.sha256,
        abi=facts.abi,
        rules=known,
        different=sum(one.same is False for one, _ in pairs),
        models=tuple(one for one, _ in pairs),
    )
    return ReferencedDocument(models=tuple(answer for _, answer in pairs), reference=reference)


def _pairs(
    paths: Sequence[str | Path],
    answers: Sequence[ModelAnswer],
    facts: LibraryFacts,
    settings: Settings,
    optimize: Optimize,
    sizes: Mapping[str, int],
    *,
    known: bool,
    processes: int,
) -> Iterator[tuple[ClaimDiff, ModelAnswer]]:
    """Each model's comparison with the answer that holds: ours, or the library's where its release has no rules."""
    pairs = list(zip(find_models(paths, SUFFIXES), answers, strict=True))
    with tempfile.TemporaryDirectory(prefix="ort-mobile-compare-") as name:
        requests = [
            ShowRequest(
                source=source,
                settings=settings,
                optimize=optimize,
                target=f"{name}/{number}.onnx",
                sizes=dict(sizes),
            )
            for number, (source, answer) in enumerate(pairs)
            if not answer.error
        ]
        tasks = [Task(label=request.source.name, request=request) for request in requests]
        shown = run_tasks(show, ShownGraph, tasks, processes=processes, timeout_seconds=TIMEOUT_SECONDS)
        claims = {path: found for chunk in _chunks(shown) for path, found in _claims(chunk, facts, settings)}
    for _, answer in pairs:
        if answer.error:
            yield ClaimDiff(path=answer.path, asked=False), answer
        else:
            one = diff_claims(answer, claims[answer.path], settings, known=known)
            yield one, (answer if known else as_answer(answer, one, facts.release))


Showing = TaskOutcome[ShowRequest, ShownGraph]


def _chunks(shown: Iterable[Showing]) -> Iterator[list[Showing]]:
    """Models for one process of the library each: not too many, and not too large together."""
    chunk: list[Showing] = []
    size = 0
    for outcome in shown:
        chunk.append(outcome)
        size += written_bytes(Path(outcome.task.request.target))
        if len(chunk) == AT_ONCE or size > AT_ONCE_BYTES:
            yield chunk
            chunk, size = [], 0
    yield chunk


def _claims(shown: Iterable[Showing], facts: LibraryFacts, settings: Settings) -> Iterator[tuple[str, LibraryClaims]]:
    """The library's claims by model; files are removed once they were asked about."""
    good = []
    for outcome in shown:
        why = outcome.error or (outcome.value and outcome.value.error)
        if why:
            yield outcome.task.label, LibraryClaims(id="", release=facts.release, error=f"it was not asked: {why}")
        else:
            good.append(outcome.task.request)
    files = [Path(request.target) for request in good]
    for request, claims in zip(good, claims_of_named(files, facts, asked_of(settings)), strict=True):
        error = claims.error and claims.error.replace(request.target, request.source.name)
        yield request.source.name, msgspec.structs.replace(claims, error=error)
    for file in files:
        remove_model(file)
