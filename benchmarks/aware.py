"""NNAPI-aware files with our claims beside those that the genuine Android library saves: time, operators, partitions.

Best run with the wheel of a release whose library is at hand (`ort-mobile library get android:1.28.0`): the wheel
optimizes with the wheel, the library with its own code. Models are those of tests/ground_truth
(real.zip).
"""

import statistics
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from pipeline.convert import ConvertRequest, convert_model
from pipeline.convert.aware_reference import AUTO, choose_reference
from pipeline.convert.request import AwareSpec, ConvertResult
from pipeline.core.releases import installed_release
from pipeline.core.variant import Level, Variant
from pipeline.library.fetch import known_libraries
from pipeline.model.sources import SourceModel
from pipeline.partition.answer import ModelAnswer, Settings, make_settings
from pipeline.partition.judge import PartitionRequest, judge
from tests.ground_truth import ORACLE

REAL = ORACLE / "real.zip"
LEVELS = (Level.BASIC, Level.EXTENDED, Level.ALL)
API_LEVEL = 30
ROUNDS = 2


def main() -> None:
    """Print one line a model and one for all."""
    reference = _reference()
    if reference is None:
        print("no Android library at hand (`ort-mobile library get`), or it cannot run here: nothing was measured")
        return
    installed = str(installed_release())
    print(
        f"Wheel {installed}, library {reference.by.release}; {len(LEVELS)} levels a model, best of {ROUNDS} rounds.\n"
    )
    print("| model | nodes claimed | partitions | ours ms | genuine ms | ratio | same operators |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    ratios, counts = [], Counter[str]()
    with tempfile.TemporaryDirectory(prefix="ort-mobile-bench-") as name:
        for path in models(Path(name)):
            ratios.append(_compare(path, Path(name), reference, counts))
            path.unlink()
    print(f"| median of {len(ratios)} |  |  |  |  | {statistics.median(ratios):.2f} |  |")
    print(f"\nFiles with the same operators: {counts['operators']} of {counts['files']}; the same partitions: "
          f"{counts['partitions']} of {counts['files']}.")  # fmt: skip


def _reference() -> AwareSpec | None:
    """The library of the installed release, else the newest at hand."""
    wanted = str(installed_release())
    fetched = (k.release for k in known_libraries() if k.at_hand and k.name.startswith("android:"))
    for release in (wanted, max(fetched, key=_parts, default=wanted)):
        found = choose_reference(AUTO, release)
        if found.library:
            return found
    return None


def _parts(release: str) -> list[int]:
    return [int(part) for part in release.split(".")]


def models(folder: Path) -> Iterator[Path]:
    """The real models, one at a time in `folder`."""
    with zipfile.ZipFile(REAL) as archive:
        for member in sorted(name for name in archive.namelist() if name.endswith(".onnx")):
            yield Path(archive.extract(member, folder))


def _compare(path: Path, folder: Path, reference: AwareSpec, counts: Counter[str]) -> float:
    """One line of the table; gives genuine / ours."""
    release = ".".join(reference.by.release.split(".")[:2])
    settings = make_settings("nnapi", release=release, api_level=API_LEVEL)
    own = AwareSpec()
    taken: dict[AwareSpec, list[int]] = {own: [], reference: []}
    made: dict[AwareSpec, ConvertResult] = {}
    for _ in range(ROUNDS):
        for way in taken:
            made[way] = _convert(path, folder / ("ours" if way is own else "genuine"), settings, way)
            taken[way].append(made[way].timings_ns["optimize"])
    saved, genuine = made[own].artifacts, made[reference].artifacts
    same = [left.operators == right.operators for left, right in zip(saved, genuine, strict=True)]
    answers = [_claims(folder / "ours", one.file, settings) for one in saved]
    others = [_claims(folder / "genuine", one.file, settings) for one in genuine]
    alike = [len(left.partitions) == len(right.partitions) for left, right in zip(answers, others, strict=True)]
    counts.update(files=len(same), operators=sum(same), partitions=sum(alike))
    partitions = " / ".join(dict.fromkeys(str(len(answer.partitions)) for answer in (*answers, *others)))
    ours, theirs = (min(taken[way]) / 1e6 for way in (own, reference))
    verdict = "yes" if all(same) else ", ".join(v.variant.name for v, fine in zip(saved, same, strict=True) if not fine)
    print(f"| {path.stem} | {answers[0].claimed} of {answers[0].nodes} | {partitions} | {ours:.0f} | {theirs:.0f} | "
          f"{theirs / ours:.2f} | {verdict} |", flush=True)  # fmt: skip
    return theirs / ours


def _convert(path: Path, folder: Path, settings: Settings, wish: AwareSpec) -> ConvertResult:
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        return convert_model(
            ConvertRequest(
                source=SourceModel(path=str(path)),
                variants=tuple(Variant(level=level, providers=("nnapi",)) for level in LEVELS),
                stem=path.stem,
                output_folder=str(folder),
                work_folder=work,
                aware=msgspec.structs.replace(wish, providers=(settings,)),
            )
        )


def _claims(folder: Path, file: str, settings: Settings) -> ModelAnswer:
    """What NNAPI takes of an artifact, by our rules."""
    return judge(PartitionRequest(source=SourceModel(path=str(folder / file)), settings=settings))


if __name__ == "__main__":
    main()
