"""Asks all providers about graphs with odd quantization, and compares with the genuine library where one is at hand."""

import random
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import msgspec
import onnx

from device_runner.library import LibraryFacts
from pipeline.core.abis import ARM64, X86_64
from pipeline.core.errors import PipelineError
from pipeline.core.releases import line_of
from pipeline.model.sources import SourceModel
from pipeline.partition.answer import ModelAnswer, Optimize, Settings, make_settings
from pipeline.partition.judge import PartitionRequest, judge, judge_views
from pipeline.partition.library_claims import same_claims
from pipeline.partition.reference import claims_of_named
from pipeline.partition.subject import name_nodes, open_views
from tests.random_graphs import odd_quantization

RELEASES = ("1.19", "1.23", "1.26", "1.32")
COMPARED = (("nnapi", 27, ()), ("nnapi", 28, ()), ("nnapi", 30, ("USE_NCHW",)), ("nnapi", 31, ()), ("xnnpack", 31, ()))


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """How many answers there were, of them with a claim or an error, and what must not be."""

    answers: int = 0
    claims: int = 0
    errors: int = 0
    wrong: tuple[str, ...] = ()


def settings(seed: int) -> Iterator[Settings]:
    """Every provider with what its claims depend on, for the release whose turn it is."""
    release = RELEASES[seed % len(RELEASES)]
    for level, flags in product((27, 28, 29, 30, 31), ((), ("USE_NCHW",))):
        abi = (X86_64, ARM64)[(seed + level) % 2]
        stops = (None, "", "Concat,Sigmoid,Softmax")[(seed + level) % 3]
        yield make_settings("nnapi", release=release, abi=abi, api_level=level, nnapi_flags=flags, stop_ops=stops)
    for provider, version in product(("coreml-nn", "coreml-mlprogram"), (5, 6, 7, 8)):
        option = (("RequireStaticInputShapes=1",), ("EnableOnSubgraphs=1",))[(seed + version) % 2]
        yield make_settings(provider, release=release, coreml_version=version, options={"coreml": option})
    yield from (make_settings("xnnpack", release=release, abi=abi) for abi in (X86_64, ARM64))


def answer_all(seeds: Sequence[int], count: int) -> Verdict:
    """Judge the graph of each seed for so many of all settings; `wrong` has what is neither an answer nor a reason."""
    answers = claims = errors = 0
    wrong: list[str] = []
    for seed in seeds:
        asked = random.Random(seed).sample(list(settings(seed)), count)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            onnx.save(odd_quantization(seed), path)
            for optimize in Optimize:
                for answer in _answers(path, optimize, asked, f"seed {seed}", wrong):
                    answers += 1
                    claims += bool(answer and answer.claimed)
                    errors += answer is None
    return Verdict(answers=answers, claims=claims, errors=errors, wrong=tuple(wrong))


def _answers(
    path: Path, optimize: Optimize, asked: Sequence[Settings], seed: str, wrong: list[str]
) -> Iterator[ModelAnswer | None]:
    """The answer for each settings; None for a reason in its place. The views are made once for all."""
    try:
        views = open_views(SourceModel(path=str(path)), optimize, path.parent, {})
    except PipelineError:
        yield None
        return
    for row in asked:
        where = f"{seed}, {optimize}, {row}"
        try:
            answer = judge_views(views, row)
        except PipelineError:
            yield None
        except Exception:  # noqa: BLE001 - whatever it is, a user would see it as an internal error
            wrong.append(f"{where}: {traceback.format_exc(limit=-3)}")
            yield None
        else:
            wrong += [f"{where}: {text}" for text in _flaws(answer)]
            yield answer


def _flaws(answer: ModelAnswer) -> Iterator[str]:
    """What no answer may be: a node in two partitions or in none that is there, a refusal without its reason."""
    names = [name for group in answer.partitions for name in group]
    if len(names) != len(set(names)) or len(names) != answer.claimed:
        yield f"{answer.claimed} nodes are claimed, partitions have {sorted(names)}"
    if not all(answer.partitions):
        yield "a partition is empty"
    lacking = [row.outputs for row in answer.decisions if not row.claimed and not row.reason]
    if lacking and not (answer.load and answer.load.error):
        yield f"refused without a reason: {lacking}"


def differing(library: LibraryFacts, seeds: Sequence[int]) -> tuple[Counter[str], list[str]]:
    """The claims of our rules beside those of the genuine library, for graphs of which it makes a session."""
    counts, different = Counter[str](), []
    with tempfile.TemporaryDirectory() as folder:
        paths = [_named(seed, Path(folder)) for seed in seeds]
        for provider, level, flags in COMPARED:
            row = make_settings(
                provider, release=str(line_of(library.release)), android=True, api_level=level, nnapi_flags=flags
            )
            for seed, path, theirs in zip(
                seeds, paths, claims_of_named(paths, library, row, reasons=True), strict=True
            ):
                ours = judge(PartitionRequest(source=SourceModel(path=str(path)), settings=row))
                if ours.subgraphs and theirs.partitions:  # the library lists claims in bodies with those of the graph
                    known = {name for decision in ours.decisions for name in decision.outputs}
                    groups = tuple(group for group in theirs.partitions if not known.isdisjoint(group))
                    theirs = msgspec.structs.replace(theirs, partitions=groups)
                same = theirs.error is not None or (not ours.error and same_claims(theirs, ours.partitions))
                counts["no session" if theirs.error else "same" if same else "different"] += 1
                if not same:
                    different.append(
                        f"seed {seed}, {provider} {level} {flags}: {ours.error or ours.partitions} but "
                        f"{theirs.partitions}"
                    )
    return counts, different


def _named(seed: int, folder: Path) -> Path:
    proto = odd_quantization(seed)
    name_nodes(proto)
    path = folder / f"{seed}.onnx"
    onnx.save(proto, path)
    return path
