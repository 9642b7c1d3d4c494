"""Agreement of our rules with ARM's libraries of an AAR: claims of the ground truth's models, in one process each.

As a program: `python -m tests.arm64_agreement [--library android:1.29.0] [--abi ABI] [--every N] [ARCHIVE...]`; exit
status 1 where a claim differs; without `--abi` both are asked, armeabi-v7a each seventh of the small models. The
onnxruntime of the library's release must be installed, because its shapes count.
"""

import argparse
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, product
from pathlib import Path

import onnx

from device_runner.library import LibraryFacts, resolve
from pipeline.core.abis import ARM32, ARM64, X86_64
from pipeline.core.releases import line_of
from pipeline.model.sources import SourceModel
from pipeline.partition.answer import ModelAnswer, Optimize, make_settings
from pipeline.partition.judge import PartitionRequest, judge
from pipeline.partition.reference import LibraryClaims, claims_of_named, same_claims
from pipeline.partition.subject import name_nodes
from tests.ground_truth import ORACLE

SETTINGS = (("nnapi", 27), ("nnapi", 31), ("xnnpack", 31))
"""Providers with the API level."""
ARCHIVES = ("real", "dags", "ops")
THINNED = 7
"""Of the small models armeabi-v7a is asked each so-many-th, unless it is named."""


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


def main() -> int:
    """Print a line a setting and what differs; 1 unless all agree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archives", nargs="*", default=list(ARCHIVES))
    parser.add_argument("--library", default="android:1.29.0")
    parser.add_argument("--every", type=int, default=1, help="each so-many-th model")
    parser.add_argument("--abi", choices=(ARM64, ARM32, X86_64), action="append")
    chosen = parser.parse_args()
    wrong = 0
    for abi, archive, (provider, level) in product(chosen.abi or (ARM64, ARM32), chosen.archives, SETTINGS):
        library = resolve(chosen.library, abi).android()
        thinned = 1 if chosen.abi or abi == ARM64 or archive == "real" else THINNED
        counts, different = compare(library, members(archive, chosen.every * thinned), provider, level)
        wrong += len(different)
        print(f"{abi:11s} {archive:5s} {provider:8s} {level} {dict(counts)}", flush=True)
        print("".join(f"      {line}\n" for line in different[:5]), end="")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
