"""Every real model in the forms that ship for GPUs, run with WebGPU in a genuine Android library on a software Vulkan.

`python -m tests.gpu_models TABLE.md [WORD…]` (`nox -s gpu_models`) writes a table; words are parts of the names of
models, forms and layouts.
ORT_MOBILE_VULKAN names another driver than lavapipe. Answers are kept in TABLE.jsonl as they come, and models in there
are not run again. Exit status 1 where a file that nothing refuses fails, or gives other outputs than its model on the
CPU.
"""

import os
import re
import sys
import tempfile
import zipfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from device_runner.android_host.device import AndroidHost, Phone
from device_runner.library import LibraryFacts
from device_runner.result import RunResult
from device_runner.spec import RunOptions, RunSpec
from device_runner.vulkan import LAVAPIPE, VARIABLE, find_driver
from pipeline.check.compare import OutputPrecision, compare_outputs, read_tensor
from pipeline.check.reference import make_reference
from pipeline.check.result import Reference
from pipeline.compat.gpu import gpu_findings
from pipeline.core.errors import PipelineError
from pipeline.core.releases import line_of
from pipeline.dataset import Dataset
from pipeline.model.onnx_model import load_model
from pipeline.model.signature import open_axes, own_inputs
from pipeline.model.sources import SourceModel
from pipeline.passes.precisions import PRECISIONS
from pipeline.passes.run import transform
from tests.android_host.runs import DIMENSIONS
from tests.command import ort_mobile
from tests.ground_truth import ORACLE
from tests.releases_watch import newest_library

FORMS = tuple(
    (form, layout)
    for form in (
        "none-onnx.onnx",
        "extended-onnx.onnx",
        "basic-fixed.ort",
        "extended-fixed.ort",
        "basic-fixed-webgpu.ort",
        "extended-fixed-webgpu.ort",
    )
    for layout in ("NHWC", "NCHW")
)
HALF = "none-onnx-fp16.onnx"
VERDICTS = ("right", "cannot judge", "refused", "no file", "wrong", "fails")
"""The last two must not be."""
SECONDS = 900.0
PROCESSES = 2


class Row(NamedTuple):
    """What became of a model in a form and layout; `text` has the largest error, the rules, or the reason."""

    model: str
    form: str
    verdict: str
    text: str


@cache
def _place() -> tuple[LibraryFacts, Path]:
    return newest_library(say=False), find_driver(os.environ.get(VARIABLE, "") or "lavapipe")


def rows_of(name: str, words: tuple[str, ...]) -> list[Row]:
    """The forms of one model in which a word is."""
    with tempfile.TemporaryDirectory() as text, zipfile.ZipFile(ORACLE / "real.zip") as packed:
        folder = Path(text)
        source = SourceModel(path=packed.extract(f"{name}.onnx", folder))
        axes = open_axes(own_inputs(load_model(source, folder).proto))
        sizes = {axis.key: DIMENSIONS.get(axis.symbol, 1) for axis in axes}
        reference = make_reference(source, sizes, Dataset(), str(folder / "float"), text)
        tried = [
            (folder / f"{name}.{form}", layout, reference) for form, layout in FORMS if _asked(words, form, layout)
        ]
        if tried:
            to = ("--output", folder)
            ort_mobile(
                "convert", source.path, "--level", "none,basic,extended", "--style", "fixed,onnx", *to, code=None
            )
            ort_mobile("convert", source.path, "--level", "basic,extended", "--ep", "webgpu", *to, code=None)
        if reference.precision is OutputPrecision.FLOAT32 and _asked(words, HALF):
            half = folder / f"{name}.{HALF}"
            transform(source, PRECISIONS["fp16"].steps, text, half.name, check=False)
            expected = make_reference(
                SourceModel(path=str(half)), sizes, Dataset(), str(folder / "half"), text, original=source
            )
            tried += [(half, layout, expected) for layout in ("NHWC", "NCHW")]
        known: dict[tuple[bytes, str], tuple[str, str]] = {}  # files of two forms may be the same
        rows = []
        for file, layout, wanted in tried:
            key = (file.read_bytes() if file.is_file() else b"", layout)
            if key not in known:
                known[key] = _tried(file, layout, wanted)
            rows.append(Row(name, f"{file.name.removeprefix(f'{name}.')} {layout}", *known[key]))
        return rows


def _asked(words: tuple[str, ...], *names: str) -> bool:
    return not words or bool(re.search("|".join(words), " ".join(names)))


def _tried(file: Path, layout: str, reference: Reference) -> tuple[str, str]:
    """The verdict on a file, and its reason."""
    if not file.is_file():
        return "no file", ""
    library, driver = _place()
    options = {"preferredLayout": layout}
    half = driver.name == LAVAPIPE
    found = [row.rule for row in gpu_findings(file, line_of(library.release), options, "m", half=half)]
    if found:
        return "refused", " ".join(found)
    with AndroidHost("android-host", library, Phone(vulkan=str(driver))) as phone:
        result = phone.run(
            RunSpec(
                id=file.stem, model=str(file), options=RunOptions(provider="webgpu", provider_options=options),
                inputs=reference.inputs, warmup=0, min_runs=1, min_seconds=0.0, timeout_seconds=SECONDS,
                outputs_folder=str(file.parent / f"{file.name}.{layout}"),
            )
        )  # fmt: skip
    return _judged(result, reference)


def _judged(result: RunResult, reference: Reference) -> tuple[str, str]:
    if result.failure:
        return "fails", f"{result.failure.kind} {result.failure.signal or result.failure.message[:120]}"
    expected = {tensor.name: read_tensor(tensor) for tensor in reference.outputs}
    actual = {tensor.name: read_tensor(tensor) for tensor in result.outputs}
    checks = list(compare_outputs(expected, actual, reference.tolerance()))
    error = max((check.max_rel_error or 0.0 for check in checks), default=0.0)
    bad = next((check for check in checks if check.failed), None)
    unknown = next((check for check in checks if check.unknown), None)
    worst = bad or unknown
    return "wrong" if bad else "cannot judge" if unknown else "right", worst.reason if worst else f"{error:.1e}"


def main(target: str, *words: str) -> int:
    """Write the table; small models come first, so that what is stopped has most of it."""
    with zipfile.ZipFile(ORACLE / "real.zip") as packed:
        sizes = {row.filename.removesuffix(".onnx"): row.file_size for row in packed.infolist()}
    models = tuple(word for word in words if any(word in name for name in sizes))
    forms = tuple(word for word in words if word not in models)
    chosen = [name for name in sorted(sizes, key=sizes.__getitem__) if _asked(models, name)]
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    kept = Path(f"{target}.jsonl")
    rows = msgspec.json.Decoder(Row).decode_lines(kept.read_bytes()) if kept.is_file() else []
    missing = [name for name in chosen if name not in {row.model for row in rows}]
    with ProcessPoolExecutor(PROCESSES, max_tasks_per_child=1) as pool:
        for future in as_completed([pool.submit(_answered, name, forms) for name in missing]):
            rows += future.result()
            kept.write_bytes(msgspec.json.Encoder().encode_lines(rows))
            Path(target).write_text(table(rows), encoding="utf-8")
    return 1 if {row.verdict for row in rows} & {"wrong", "fails"} else 0


def _answered(name: str, forms: tuple[str, ...]) -> list[Row]:
    try:
        return rows_of(name, forms)
    except PipelineError as error:
        return [Row(name, "all", "fails", f"here: {error}")]


def table(rows: list[Row]) -> str:
    """How many of each form came to what, then every file that is not right."""
    counts = Counter((row.form, row.verdict) for row in rows)
    lines = [f"| form | {' | '.join(VERDICTS)} |", "|---|" + "---|" * len(VERDICTS)]
    forms = sorted({row.form for row in rows})
    lines += [f"| {form} | {' | '.join(str(counts[form, verdict]) for verdict in VERDICTS)} |" for form in forms]
    lines += ["", "| model | form | verdict | why |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in sorted(rows) if row.verdict != "no file"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
