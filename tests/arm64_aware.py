"""Agreement of files with our claims with those that the arm64 library of an AAR saves: real models.

As a program: `python -m tests.arm64_aware [--library android:1.29.0] [--every N] [--part TEXT]`; exit status 1 where
a file differs. The onnxruntime of the library's release must be installed: it optimizes the rest.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from device_runner.library import LibraryFacts, resolve
from pipeline.convert import ConvertRequest, convert_model
from pipeline.convert.request import AwareSpec, OptimizerPlatform
from pipeline.core.abis import ARM64
from pipeline.core.releases import line_of
from pipeline.core.variant import Artifact, AwareBy, Level, Variant, Way
from pipeline.model.sources import SourceModel
from pipeline.partition.answer import make_settings
from tests.arm64_agreement import Member, members, unpacked

LEVELS = (Level.BASIC, Level.EXTENDED, Level.ALL)


def compare_files(
    library: LibraryFacts, models: Sequence[Member], levels: Sequence[Level] = LEVELS, api_level: int = 31
) -> tuple[Counter[str], list[str]]:
    """How many files are node for node the library's, and those that are not; ARM targets get int8 as it is."""
    counts, different = Counter[str](), []
    by = AwareBy(way=Way.LIBRARY, release=library.release, sha256=library.sha256, abi=library.abi)
    wishes = (AwareSpec(), AwareSpec(by=by, library=library.path))
    with tempfile.TemporaryDirectory() as name:
        for path, (_, member) in zip(unpacked(models, Path(name)), models, strict=True):
            ours, saved = (_made(path, Path(name), library, one, levels, api_level) for one in wishes)
            for level in levels:
                verdict, text = _verdict(ours.get(level), saved.get(level))
                counts[verdict] += 1
                if verdict == "different":
                    different.append(f"{member} {level.value}: {text}")
            path.unlink()
    return counts, different


def _made(
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


def _verdict(ours: Artifact | str | None, theirs: Artifact | str | None) -> tuple[str, str]:
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
    """Print counts and each file that differs; 1 where there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", default="android:1.29.0")
    parser.add_argument("--abi", default=ARM64)
    parser.add_argument("--every", type=int, default=1, help="each so-many-th model")
    parser.add_argument("--part", default="", help="models with this in their name")
    parser.add_argument("--api-level", type=int, default=31)
    chosen = parser.parse_args()
    library = resolve(chosen.library, chosen.abi).android()
    total, wrong = Counter[str](), 0
    for member in members("real", chosen.every, chosen.part):
        counts, different = compare_files(library, [member], api_level=chosen.api_level)
        total += counts
        wrong += len(different)
        print(f"{member[1]:40s} {dict(counts)}", flush=True)
        print("".join(f"      {line}\n" for line in different), end="", flush=True)
    print(f"NNAPI-aware files: {dict(total)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
