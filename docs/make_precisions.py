"""Generates docs/reference/precisions.md: what the rules of each provider claim of real models in every precision.

python docs/make_precisions.py [--check] [--model NAME]…

Takes minutes: every model of the ground truth that is named in MODELS is given every precision and judged for every
provider and release.
"""

import argparse
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pipeline.advice.precision_choice import compute_claims
from pipeline.core.errors import PipelineError
from pipeline.core.providers import COREML_MLPROGRAM, COREML_NN, NNAPI, WEBGPU, XNNPACK
from pipeline.core.releases import NEWEST_RULES, OLDEST_RULES, Release
from pipeline.dataset import Dataset, samples
from pipeline.model.onnx_model import load_model
from pipeline.model.signature import own_inputs
from pipeline.model.sources import SourceModel
from pipeline.partition.answer import ModelAnswer, Optimize, Settings
from pipeline.partition.judge import judge_views
from pipeline.partition.subject import open_views, write_model
from pipeline.passes.base import PassContext
from pipeline.passes.precisions import OLDER, PER_CHANNEL_SINCE_API_LEVEL, PRECISIONS, RECIPES
from pipeline.passes.registry import run_passes

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "precisions.md"
REAL = ROOT / "tests" / "ground_truth" / "real.zip"
MODELS = ("mnist", "fsrcnn", "blazeface", "mobilenet_v2", "vit_tiny", "unet", "yolov8n")
RELEASES = (OLDEST_RULES, Release(1, 23), Release(1, 24), NEWEST_RULES)
"""The lines between which the rules differ for these forms: f16 in MLProgram since 1.24."""
GPU_RELEASES = (Release(1, 27), NEWEST_RULES)
"""Those of the tables of WebGPU's kernels."""
PLACES: Mapping[str, tuple[str, int]] = {
    "NNAPI, API level 31": (NNAPI, 31),
    "NNAPI, API level 28": (NNAPI, 28),
    "CoreML, MLProgram": (COREML_MLPROGRAM, 31),
    "CoreML, NeuralNetwork": (COREML_NN, 31),
    "XNNPACK": (XNNPACK, 31),
    "WebGPU, layout NHWC": (WEBGPU, 31),
}
"""Headings with the provider and NNAPI's API level."""
SAMPLES = 8
"""Random calibration samples: which nodes are claimed depends on types, not on ranges."""

INTRO = """<!-- Made by docs/make_precisions.py from the rules: change those. -->

# Precisions

What a config's `precisions` and `--precision` take. Names have the types of values and weights; `pc` is a scale for
each output channel.

"""
TABLES_INTRO = """
## What each provider claims

By our rules, of real architectures after level basic: claimed compute nodes (Conv, Gemm, MatMul and their quantized
forms) of all, and partitions; **L** where a session fails on the phone. Where releases differ, each has its own entry.
XNNPACK copies nothing between its nodes and others, so its partitions are not counted; **c** is how often WebGPU copies
between GPU and CPU in an inference. `-` is a precision that cannot
be had for the model; the reasons are at the end. What a search leaves float depends on the data: those precisions are
not in the tables.

"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One model in every precision: cells by heading and precision, and why some could not be made."""

    model: str
    cells: Mapping[tuple[str, str], str]
    missing: Mapping[str, str]


def column(model: str) -> Column:
    """Judge a model of the ground truth in every precision."""
    cells: dict[tuple[str, str], str] = {}
    missing: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with zipfile.ZipFile(REAL) as archive:
            source = SourceModel(path=archive.extract(f"{model}.base.onnx", folder))
        for precision in ("", *(name for name, row in PRECISIONS.items() if not row.by_search)):
            try:
                made = source if not precision else _in_precision(source, precision, folder)
                for heading, text in _judged(made, folder):
                    cells[heading, precision] = text
            except PipelineError as error:
                missing[precision] = "; ".join(part for part in (error.what, error.why) if part)
    return Column(model=model, cells=cells, missing=missing)


def _in_precision(source: SourceModel, precision: str, folder: Path) -> SourceModel:
    loaded = load_model(source, folder)
    takes = own_inputs(loaded.proto)

    def feeds() -> Iterator[Mapping[str, object]]:
        for seed in range(SAMPLES):
            yield from (sample.inputs for sample in samples(Dataset(seed=seed), takes))

    context = PassContext(folder=folder, where=source.name, samples=feeds)
    target = folder / f"{precision}.onnx"
    write_model(run_passes(loaded, PRECISIONS[precision].steps, context).model, target)
    return SourceModel(path=str(target))


def _judged(source: SourceModel, folder: Path) -> Iterator[tuple[str, str]]:
    """The cell of each heading."""
    with tempfile.TemporaryDirectory(dir=folder) as work:
        views = open_views(source, Optimize.BASIC, Path(work), {})
        for heading, (provider, level) in PLACES.items():
            answers = [
                (release, judge_views(views, Settings(provider=provider, ort_release=release, api_level=level)))
                for release in (GPU_RELEASES if provider == WEBGPU else RELEASES)
            ]
            yield heading, _by_release([(release, _cell(provider, answer)) for release, answer in answers])


def _cell(provider: str, answer: ModelAnswer) -> str:
    claims = compute_claims(answer)
    partitions = "" if provider == XNNPACK else f" p{len(answer.partitions)}"
    if answer.copies is not None:
        partitions = f" c{answer.copies}"
    fails = " **L**" if answer.load and answer.load.error else ""
    return f"{sum(claims)}/{len(claims)}{partitions}{fails}"


def _by_release(cells: Sequence[tuple[Release, str]]) -> str:
    """One entry, or one for each release from which it holds."""
    parts: list[tuple[Release, str]] = []
    for release, text in cells:
        if not parts or parts[-1][1] != text:
            parts.append((release, text))
    first, *later = parts
    return "; ".join([first[1], *(f"from {release} {text}" for release, text in later)])


def head() -> str:
    """The page up to the tables of claims: precisions and recipes."""
    lines = [INTRO, "| name | what |\n| --- | --- |\n", "| `float` | the model as it is |\n"]
    lines += [f"| `{one.name}` | {one.title} |\n" for one in PRECISIONS.values()]
    auto = "the best of these for each provider of the targets, by the rules; for the CPU static and dynamic int8"
    lines.append(f"| `auto` | {auto} |\n\n")
    lines.append(
        "Recipes stand for the precision that suits a provider:\n\n| recipe | is | gives |\n| --- | --- | --- |\n"
    )
    for recipe in RECIPES.values():
        older = OLDER.get(recipe.name)
        older = f"; `{older}` below API level {PER_CHANNEL_SINCE_API_LEVEL}" if older else ""
        lines.append(f"| `{recipe.name}` | `{recipe.precision}`{older} | {recipe.title} |\n")
    return "".join([*lines, TABLES_INTRO])


def page(columns: Sequence[Column]) -> str:
    """The whole page."""
    lines = [head()]
    for heading in PLACES:
        lines.append(f"### {heading}\n\n| precision | {' | '.join(one.model for one in columns)} |\n")
        lines.append(f"| --- |{' --- |' * len(columns)}\n")
        for precision in ("", *(name for name, row in PRECISIONS.items() if not row.by_search)):
            cells = (one.cells.get((heading, precision), "-") for one in columns)
            lines.append(f"| {precision or 'float'} | {' | '.join(cells)} |\n")
        lines.append("\n")
    reasons = [f"| {one.model} | {name} | {why} |\n" for one in columns for name, why in one.missing.items()]
    if reasons:
        lines += ["## What could not be made\n\n| model | precision | reason |\n| --- | --- | --- |\n", *reasons]
    return "".join(lines).rstrip() + "\n"


def stale_cells(columns: Sequence[Column], text: str) -> list[str]:
    """Where the cells of some models are not what a page has, or its list of precisions; [] where all agree."""
    heading, names, wrong = "", list[str](), list[str]()
    if not text.startswith(head()):
        wrong.append("the list of precisions or recipes, or the text around it")
    for line in text.splitlines():
        row = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("#"):
            heading = line.strip("# ")
        elif line.startswith("| precision |"):
            names = row
        elif heading in PLACES and line.startswith("| ") and "---" not in line:
            precision = "" if row[0] == "float" else row[0]
            for one in columns:
                given = one.cells.get((heading, precision), "-")
                if row[names.index(one.model)] != given:
                    wrong.append(
                        f"{heading}, {one.model} {row[0]}: {given}, the page has {row[names.index(one.model)]}"
                    )
    return wrong


def main() -> int:
    """Write the page; with --check say which cells are not current, of the models named or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 where a cell differs")
    parser.add_argument("--model", action="append", choices=MODELS, help="check this one only; repeatable")
    chosen = parser.parse_args()
    with ProcessPoolExecutor(2) as pool:
        columns = list(pool.map(column, (chosen.model if chosen.check and chosen.model else MODELS)))
    if not chosen.check:
        PAGE.write_text(page(columns), encoding="utf-8")
        return 0
    wrong = stale_cells(columns, PAGE.read_text(encoding="utf-8"))
    print("\n".join(wrong) or "every cell is current")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
