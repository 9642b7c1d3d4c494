"""Agreement of our rules with ARM's libraries of an AAR: claims of the ground truth's models, and files that keep them.

As a program: `python -m tests.arm64_agreement [--library android:1.29.0] [--abi ABI] [--every N] [ARCHIVE...]`; exit
status 1 where a claim or a file differs. The archive `files` stands for the files of real models with our claims,
beside those that the arm64 library saves. Without `--abi` both are asked for claims, armeabi-v7a each seventh of the
small models. The onnxruntime of the library's release must be installed: it infers shapes and optimizes.
"""

import argparse
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, product
from pathlib import Path

import msgspec
import onnx

from device_runner.library import LibraryFacts, resolve
from pipeline.convert import ConvertRequest, convert_model
from pipeline.convert.request import AwareSpec, OptimizerPlatform
from pipeline.core.abis import ARM32, ARM64, X86_64
from pipeline.core.releases import line_of
from pipeline.core.variant import Artifact, AwareBy, Level, Variant, Way
from pipeline.model.sources import SourceModel
from pipeline.partition.answer import ModelAnswer, Optimize, make_settings
from pipeline.partition.judge import PartitionRequest, judge
from pipeline.partition.library_claims import LibraryClaims, same_claims
from pipeline.partition.reference import claims_of_named
from pipeline.partition.subject import name_nodes
from tests.ground_truth import ORACLE

SETTINGS = (("nnapi", 27), ("nnapi", 31), ("xnnpack", 31))
"""Providers with the API level."""
ARCHIVES = ("real", "dags", "ops")
FILES = "files"
"""Stands for the real models' files where an archive is named."""
THINNED = 7
"""Of the small models armeabi-v7a is asked each so-many-th, unless it is named."""

LEVELS = (Level.BASIC, Level.EXTENDED, Level.ALL)

Member = tuple[str, str]
"""Archive and name of a model."""


def members(archive: str, every: int = 1, part: str = "") -> list[Member]:
    """Each so-many-th model of an archive, of those whose name has a part."""
    with zipfile.ZipFile(ORACLE / f"{archive}.zip") as packed:
        names = sorted(name for name in packed.namelist() if name.endswith(".onnx") and part in name)
    return [(archive, name) for name in names[::every]]


def compare(
    library: LibraryFacts, models: Sequence[Member], provider: str, level: int
) -> tuple[Counter[str], list[str]]:
    """How many answers are the same, and those that differ; where there is no session neither side is asked."""
    settings = make_settings(
        provider, release=str(line_of(library.release)), abi=library.abi, android=True, api_level=level
    )
    counts, different = Counter[str](), []
    with tempfile.TemporaryDirectory() as folder:
        paths = list(unpacked(models, Path(folder)))
        requests = (
            PartitionRequest(source=SourceModel(path=str(path)), settings=settings, optimize=Optimize.NONE)
            for path in paths
        )
        for (_, name), request, theirs in zip(
            models, requests, claims_of_named(paths, library, settings, reasons=True), strict=True
        ):
            ours = judge(request)
            verdict = _verdict(ours, theirs)
            counts[verdict] += 1
            if verdict == "different":
                different.append(f"{name}: {ours.error or ours.partitions} but {theirs.partitions}")
    return counts, different


def unpacked(models: Sequence[Member], folder: Path) -> Iterator[Path]:
    """The models with each node named after its first output, as the library is asked."""
    for archive, rows in groupby(enumerate(models), key=lambda row: row[1][0]):
        with zipfile.ZipFile(ORACLE / f"{archive}.zip") as packed:  # reading its directory takes as long as 5 models
            for number, (_, name) in rows:
                proto = onnx.load_from_string(packed.read(name))
                name_nodes(proto)
                path = folder / f"{number}.onnx"
                onnx.save(proto, path)
                yield path


def _verdict(ours: ModelAnswer, theirs: LibraryClaims) -> str:
    if theirs.error is not None:
        return "no session"
    return "same" if not ours.error and same_claims(theirs, ours.partitions) else "different"


def compare_files(
    library: LibraryFacts, models: Sequence[Member], levels: Sequence[Level] = LEVELS, api_level: int = 31
) -> tuple[Counter[str], list[str]]:
    """How many files are node for node the library's, and those that are not; ARM targets get int8 as it is."""
    counts, different = Counter[str](), []
    by = AwareBy(way=Way.LIBRARY, release=library.release, sha256=library.sha256, abi=library.abi)
    wishes = (AwareSpec(), AwareSpec(by=by, library=library.path))
    with tempfile.TemporaryDirectory() as name:
        for path, (_, member) in zip(unpacked(models, Path(name)), models, strict=True):
            ours, saved = (_files_by_level(path, Path(name), library, one, levels, api_level) for one in wishes)
            for level in levels:
                verdict, text = _file_verdict(ours.get(level), saved.get(level))
                counts[verdict] += 1
                if verdict == "different":
                    different.append(f"{member} {level.value}: {text}")
            path.unlink()
    return counts, different


def _files_by_level(
    path: Path,
    folder: Path,
    library: LibraryFacts,
    wish: AwareSpec,
    levels: Sequence[Level],
    api_level: int,
) -> dict[Level, Artifact | str]:
    """The NNAPI-aware files of one model by level, or why there is none."""
    release = str(line_of(library.release))
    with tempfile.TemporaryDirectory(dir=folder) as work:
        result = convert_model(
            ConvertRequest(
                source=SourceModel(path=str(path)),
                variants=tuple(Variant(level=level, providers=("nnapi",)) for level in levels),
                stem="model",
                output_folder=f"{work}/out",
                work_folder=f"{work}/work",
                release=release,
                platform=OptimizerPlatform.ARM,
                aware=msgspec.structs.replace(
                    wish, providers=(make_settings("nnapi", release=release, abi=library.abi, api_level=api_level),)
                ),
            )
        )
    failed: dict[Level, Artifact | str] = {one.variant.level: f"{one.what}: {one.why}" for one in result.failures}
    return failed | {artifact.variant.level: artifact for artifact in result.artifacts}


def _file_verdict(ours: Artifact | str | None, theirs: Artifact | str | None) -> tuple[str, str]:
    if not isinstance(ours, Artifact) or not isinstance(theirs, Artifact):
        made = [one if isinstance(one, str) else "made" for one in (ours, theirs)]
        return ("different" if "made" in made else "no file"), " but ".join(made)
    if ours.semantic_digest == theirs.semantic_digest:
        return "same", ""
    both = sorted(ours.operators.keys() | theirs.operators.keys())
    counted = ((name, ours.operators.get(name, 0), theirs.operators.get(name, 0)) for name in both)
    text = ", ".join(f"{name} {left} but {right}" for name, left, right in counted if left != right)
    return "different", text or "the same operators, joined otherwise"


def main() -> int:
    """Print a line a setting, then one a model's files, and what differs; 1 unless all agree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archives", nargs="*", default=[*ARCHIVES, FILES])
    parser.add_argument("--library", default="android:1.29.0")
    parser.add_argument("--every", type=int, default=1, help="each so-many-th model")
    parser.add_argument("--abi", choices=(ARM64, ARM32, X86_64), action="append")
    chosen = parser.parse_args()
    archives = [name for name in chosen.archives if name != FILES]
    wrong = 0
    for abi, archive, (provider, level) in product(chosen.abi or (ARM64, ARM32), archives, SETTINGS):
        library = resolve(chosen.library, abi).android()
        thinned = 1 if chosen.abi or abi == ARM64 or archive == "real" else THINNED
        counts, different = compare(library, members(archive, chosen.every * thinned), provider, level)
        wrong += _shown(f"{abi:11s} {archive:5s} {provider:8s} {level}", counts, different[:5])
    for member in members("real", chosen.every) if FILES in chosen.archives else ():
        wrong += _shown(f"{member[1]:40s}", *compare_files(resolve(chosen.library, ARM64).android(), [member]))
    return 1 if wrong else 0


def _shown(what: str, counts: Counter[str], different: list[str]) -> int:
    """Print counts and what differs; how many that is."""
    print(what, dict(counts), flush=True)
    print("".join(f"      {line}\n" for line in different), end="", flush=True)
    return len(different)


if __name__ == "__main__":
    sys.exit(main())
