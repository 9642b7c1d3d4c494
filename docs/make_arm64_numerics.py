"""Generates docs/reference/arm64-numerics.md: outputs of artifacts in the arm64 library, by processor and form.

python docs/make_arm64_numerics.py [--check | --kept] [--results FILE] [--subject NAME]… [--level LEVEL]…

Every real model of the ground truth is converted for ARM and run in the Android library of LIBRARY for x86_64 and, by
qemu-user, for arm64-v8a on each processor: hours. What was measured is kept in FILE, line by line, and not done again;
what a subject's time limit left out is tried again.
"""

import argparse
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from device_runner.android_host.device import AndroidHost, Phone
from device_runner.android_host.processor import SLOWNESS
from device_runner.library_source import resolve
from device_runner.spec import RunOptions, RunSpec
from pipeline.check.compare import MAX_RELATIVE_ERROR, OutputCheck, OutputPrecision, compare_outputs, read_tensor
from pipeline.check.reference import Reference, ReferenceRequest, make_reference
from pipeline.convert import ConvertRequest, convert_model
from pipeline.convert.request import OptimizerPlatform
from pipeline.core.errors import PipelineError
from pipeline.core.variant import Artifact, Level, Style, Variant
from pipeline.dataset import Dataset, samples
from pipeline.model.onnx_model import load_model
from pipeline.model.signature import own_inputs
from pipeline.model.sources import SourceModel
from pipeline.partition.input import write_model
from pipeline.passes.base import PassContext
from pipeline.passes.precisions import PRECISIONS
from pipeline.passes.registry import run_passes

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "arm64-numerics.md"
REAL = ROOT / "tests" / "ground_truth" / "real.zip"
RESULTS = ROOT / "docs" / "reference" / "arm64-numerics.jsonl"
LIBRARY = "android:1.29.0"
PLACES: Mapping[str, tuple[str, str]] = {
    "x86_64": ("x86_64", ""),
    "a53": ("arm64-v8a", "cortex-a53"),
    "a76": ("arm64-v8a", "cortex-a76"),
}
"""Where each artifact runs: the library's ABI and the emulated processor."""
ARM = ("a53", "a76")
IN_EVERY_FORM = ("mnist", "fsrcnn", "blazeface")
LEVELS = (Level.NONE, Level.BASIC, Level.EXTENDED, Level.ALL)
SAMPLES = 8
"""Random calibration samples of the forms that are made here."""
SECONDS = 1200.0
"""Time limit of a subject, conversion apart: an emulated inference of ResNet50 takes a minute on a busy computer."""

INTRO = """<!-- Made by docs/make_arm64_numerics.py: run that again. -->

# Outputs on ARM

Artifacts of real architectures, converted for ARM at levels none, basic, extended and all (large ones so far at
extended alone), run once on random inputs in the library of {library} for arm64-v8a on a Cortex-A53 (no dot product, no
half precision) and a Cortex-A76 (both), by qemu-user. *x86_64* is the library of the same AAR on an x86-64 computer.
Differences and errors are relative to the largest magnitude of the output. An error is against the original model
without optimizations on the computer, and the budget that of every numeric check: {budgets};
*unknown* where random inputs cannot show it.

Measured are {measured} of {known} models and forms in {files} files; [the others](#what-was-not-measured) have no such
artifacts, or take longer than a model's time limit of {minutes:g} minutes or than the table's.

"""


NOT_REACHED = "not reached so far: larger models come last, and take minutes each in the emulator"

REASONS = {
    "mnist.qdq_s8s8": "int8 sums overflow without dot product, as its weights have -128; preflight says so "
    "([facts](../facts/arm64_host.md), 5.1)",
    "mobilenet_v2.qop": "0.14 of the output on random inputs, likely a step of QLinearAdd that its patterned weights "
    "amplify",
    "ssd_mobilenet.nopost_qdq_u8u8": "0.84 of the output at level extended on the computer, too, with the wheel's "
    "library as with Android's: its check refuses that file, and passes level basic",
}
"""Why ARM's verdict on a model is not x86_64's, in words of the page."""


class Unmeasured(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A subject with all or the rest of its files left out, and why."""

    subject: str
    why: str


class Measured(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One artifact: how far each ARM processor is from x86_64, from the original, and the verdicts.

    `variants` share the file. `unlike` and `error` are by processor, None where the run failed; `failed` has why.
    """

    subject: str
    form: str
    precision: OutputPrecision
    variants: tuple[str, ...]
    sha256: str
    unlike: dict[str, float | None] = {}
    error: dict[str, float | None] = {}
    verdict: dict[str, str] = {}
    failed: dict[str, str] = {}


def subjects() -> dict[str, tuple[str, str]]:
    """Model of the ground truth and precision ("" for its own), by the name of the subject; small ones first."""
    with zipfile.ZipFile(REAL) as archive:
        sizes = {member.filename.removesuffix(".onnx"): member.file_size for member in archive.infolist()}
    forms = [name for name, row in PRECISIONS.items() if not row.by_search]
    made = {f"{model}@{form}": (f"{model}.base", form) for model in IN_EVERY_FORM for form in forms}
    return made | {name: (name, "") for name in sorted(sizes, key=sizes.__getitem__)}


def form_of(name: str, precision: str) -> str:
    """What weights and values are: the precision, or what a model's own name says."""
    ending = name.partition(".")[2]
    if ending == "dyn":
        return "dyn8"
    if precision or "q" not in ending:
        return precision or ("fp16" if "fp16" in ending else "float")
    return "u8s8 QOperator" if ending == "qop" else ending.rpartition("qdq_")[2]


def measure(
    subject: str, levels: Sequence[Level], known: set[tuple[str, str]], seconds: float
) -> Iterator[Measured | Unmeasured]:
    """Convert and run a subject's artifacts while its time lasts, but those whose (subject, sha256) is known."""
    try:
        yield from _measure(subject, levels, known, seconds)
    except PipelineError as error:
        yield Unmeasured(subject=subject, why=error.reason)


def _measure(
    subject: str, levels: Sequence[Level], known: set[tuple[str, str]], seconds: float
) -> Iterator[Measured | Unmeasured]:
    model, precision = subjects()[subject]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with zipfile.ZipFile(REAL) as archive:
            source = SourceModel(path=archive.extract(f"{model}.onnx", folder))
        if precision:
            source = _in_precision(source, precision, folder)
        work = folder / "work"
        work.mkdir()
        request = ReferenceRequest(source=source, folder=str(folder / "reference"), work_folder=str(work))
        reference = make_reference(request)
        artifacts = [one for one in _artifacts(source, levels, folder) if (subject, one[0].sha256) not in known]
        end = time.monotonic() + seconds
        for number, files in enumerate(artifacts):
            if time.monotonic() > end:
                left = ", ".join(one.variant.name for rest in artifacts[number:] for one in rest)
                yield Unmeasured(subject=subject, why=f"time limit of {seconds / 60:g} minutes: {left}")
                return
            yield _measured(subject, form_of(model, precision), files, reference, folder, end)


def _in_precision(source: SourceModel, precision: str, folder: Path) -> SourceModel:
    loaded = load_model(source, folder)
    takes = own_inputs(loaded.proto)

    def feeds() -> Iterator[Mapping[str, object]]:
        for seed in range(SAMPLES):
            yield from (sample.inputs for sample in samples(Dataset(seed=seed), takes))

    made = run_passes(loaded, PRECISIONS[precision].steps, PassContext(folder=folder, where=source.name, samples=feeds))
    target = folder / "made.onnx"
    write_model(made.model, target)
    return SourceModel(path=str(target))


def _artifacts(source: SourceModel, levels: Sequence[Level], folder: Path) -> list[list[Artifact]]:
    """Artifacts of one content together; those that no release replays are not for shipping."""
    variants = [Variant(level=level) for level in levels]
    if Level.EXTENDED in levels:
        variants.append(Variant(level=Level.EXTENDED, style=Style.RUNTIME))
    found: dict[str, list[Artifact]] = {}
    request = ConvertRequest(
        source=source, variants=tuple(variants), stem="model", output_folder=str(folder / "out"),
        work_folder=str(folder / "convert"), platform=OptimizerPlatform.ARM,
    )  # fmt: skip
    for artifact in convert_model(request).artifacts:
        if not artifact.unreplayable:
            found.setdefault(artifact.sha256, []).append(artifact)
    return list(found.values())


def _measured(
    subject: str, form: str, files: list[Artifact], reference: Reference, folder: Path, end: float
) -> Measured:
    outputs, failed = {}, {}
    for place in PLACES:
        spec = _spec(folder / "out" / files[0].file, files[0], reference, folder / place, end - time.monotonic())
        abi, cpu = PLACES[place]
        with AndroidHost(place, resolve(LIBRARY, abi).android(), Phone(cpu=cpu)) as device:
            result = device.run(spec)
        if result.failure:
            failed[place] = f"{result.failure.kind.value}: {result.failure.cause or result.failure.message}"
        else:
            outputs[place] = {tensor.name: read_tensor(tensor) for tensor in result.outputs}
    expected = {tensor.name: read_tensor(tensor) for tensor in reference.outputs}
    tolerance = reference.tolerance()
    checks = {place: list(compare_outputs(expected, given, tolerance)) for place, given in outputs.items()}
    host = outputs.get("x86_64")
    return Measured(
        subject=subject,
        form=form,
        precision=reference.precision,
        variants=tuple(one.variant.name for one in files),
        sha256=files[0].sha256,
        unlike={place: _unlike(host, outputs[place]) for place in ARM if host and place in outputs},
        error={place: max((one.max_rel_error or 0.0 for one in found), default=0.0) for place, found in checks.items()},
        verdict={place: _verdict(found) for place, found in checks.items()},
        failed=failed,
    )


def _spec(file: Path, artifact: Artifact, reference: Reference, folder: Path, seconds: float) -> RunSpec:
    """One inference; devices multiply the time limit by how much slower they say an emulator is."""
    return RunSpec(
        id="numerics",
        model=str(file),
        options=RunOptions(intra_op_threads=1, session_config=artifact.session_options),
        inputs=reference.inputs,
        warmup=0,
        min_runs=1,
        min_seconds=0.0,
        timeout_seconds=max(seconds, 60.0) / SLOWNESS,
        outputs_folder=str(folder),
    )


def _unlike(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> float:
    """The largest difference of an element, relative to its output's largest magnitude; 0.0 for equal bits alone."""
    worst = 0.0
    for name, left in one.items():
        right = other[name]
        if left.shape != right.shape:
            return float("inf")
        if left.tobytes() != right.tobytes():
            a, b = left.astype(np.float64), right.astype(np.float64)
            scale = float(np.nanmax(np.abs(a), initial=0.0)) or 1.0
            worst = max(worst, float(np.nanmax(np.abs(np.where(a == b, 0.0, a - b)), initial=0.0)) / scale, 1e-12)
    return worst


def _verdict(checks: Iterable[OutputCheck]) -> str:
    found = list(checks)
    if any(check.failed for check in found):
        return "over"
    return "unknown" if any(check.unknown for check in found) else "within"


def page(rows: Sequence[Measured], left_out: Sequence[Unmeasured]) -> str:
    """The whole page: a table by form, a row for each subject, and why others or some of their files have none.

    Subjects are measured small ones first: what was not reached is too large for the time that was spent.
    """
    budgets = ", ".join(f"{share:g} {kind.value}" for kind, share in MAX_RELATIVE_ERROR.items())
    lines = [
        INTRO.format(
            library=LIBRARY,
            budgets=budgets,
            measured=len({row.subject for row in rows}),
            known=len(subjects()),
            files=len(rows),
            minutes=SECONDS / 60,
        ),
        "## By form\n\n",
    ]
    lines.append(
        "| form | files | equal to x86_64, bit for bit: A53, A76 | largest difference: A53, A76 | largest error: "
    )
    lines.append("x86_64, A53, A76 | over the budget: x86_64, A53, A76 |\n| --- | --- | --- | --- | --- | --- |\n")
    forms = dict.fromkeys(sorted(row.form for row in rows))
    lines += [_form_row(form, [row for row in rows if row.form == form]) for form in forms]
    lines.append(_predictions(rows))
    lines.append("\n## By model\n\nThe worst of its files; `=` is equal to x86_64 bit for bit.\n\n")
    lines.append(
        "| model | files | A53 to x86_64 | A76 to x86_64 | error: x86_64, A53, A76 | verdict: x86_64, A53, A76 |\n"
    )
    lines.append("| --- | --- | --- | --- | --- | --- |\n")
    lines[1:1] = _summary(rows)
    of_subject = {subject: [row for row in rows if row.subject == subject] for subject in subjects()}
    lines += [_subject_row(subject, mine) for subject, mine in of_subject.items() if mine]
    failures = [(row, place) for row in rows for place in row.failed]
    if failures:
        lines.append("\n## What did not run\n\n| model | files | where | why |\n| --- | --- | --- | --- |\n")
        lines += [f"| {row.subject} | {', '.join(row.variants)} | {at} | {row.failed[at]} |\n" for row, at in failures]
    lines.append("\n## What was not measured\n\n| model | why |\n| --- | --- |\n")
    lines += [f"| {one.subject} | {one.why} |\n" for one in left_out]
    named = {row.subject for row in (*rows, *left_out)}
    lines += [f"| {name} | {NOT_REACHED} |\n" for name in of_subject if name not in named]
    return "".join(lines)


EQUAL, ROUNDING = 0.0, 1e-5
"""Differences of a form from x86_64 at most: the same bits, or what another order of float sums gives."""


def _summary(rows: Sequence[Measured]) -> Iterator[str]:
    """In words: which forms give the same bits on ARM as on x86_64, which nearly, and which others by how much."""
    worst = {
        form: _worst(row.unlike.get(place) for row in rows if row.form == form for place in ARM)
        for form in sorted({row.form for row in rows})
    }
    equal = [form for form, far in worst.items() if far == EQUAL]
    near = [form for form, far in worst.items() if EQUAL < far <= ROUNDING]
    far = [f"{form} ({_short(value)})" for form, value in worst.items() if value > ROUNDING]
    apart = sorted({row.subject for row in rows if row.unlike.get("a53") != row.unlike.get("a76")})
    yield "## What it shows\n\n"
    yield f"- **Equal to x86_64, bit for bit, in every file**: {', '.join(equal) or 'no form'}.\n"
    yield f"- **Within {ROUNDING:g} of the output**: {', '.join(near) or 'no form'}.\n"
    yield f"- **Other forms, with their largest difference**: {', '.join(far) or 'none'}.\n"
    yield f"- **Another answer on a Cortex-A53 than on an A76**: {', '.join(apart) or 'no model'}.\n"
    over = sorted({row.subject for row in rows if "over" in {row.verdict.get(place) for place in ARM}})
    yield f"- **Over the budget on ARM**: {', '.join(over) or 'no model'}; the reasons are below.\n\n"


def _predictions(rows: Sequence[Measured]) -> str:
    """How often the verdict on x86_64 is that on ARM, by form of 8 bits, and the models of which it is not."""
    eight = [row for row in rows if row.precision is OutputPrecision.QUANTIZED and "x86_64" in row.verdict]
    lines = [
        "\n## How well a check on x86_64 predicts ARM\n\nFiles of which the numeric check says the same.\n\n",
        "| form | files | same verdict: A53, A76 | another verdict |\n| --- | --- | --- | --- |\n",
    ]
    for form in sorted({row.form for row in eight}):
        mine = [row for row in eight if row.form == form]
        same = ", ".join(str(sum(row.verdict[place] == row.verdict["x86_64"] for row in mine)) for place in ARM)
        others = {row.subject for row in mine if len({row.verdict.get(place) for place in PLACES}) > 1}
        lines.append(f"| {form} | {len(mine)} | {same} | {', '.join(sorted(others))} |\n")
    lines += [f"\n{subject}: {why}.\n" for subject, why in REASONS.items() if any(r.subject == subject for r in eight)]
    return "".join(lines)


def _form_row(form: str, rows: Sequence[Measured]) -> str:
    equal = ", ".join(str(sum(row.unlike.get(place) == 0.0 for row in rows)) for place in ARM)
    far = ", ".join(_short(_worst(row.unlike.get(place) for row in rows)) for place in ARM)
    wrong = ", ".join(_short(_worst(row.error.get(place) for row in rows)) for place in PLACES)
    over = ", ".join(str(sum(row.verdict.get(place) == "over" for row in rows)) for place in PLACES)
    return f"| {form} | {len(rows)} | {equal} | {far} | {wrong} | {over} |\n"


def _subject_row(subject: str, rows: Sequence[Measured]) -> str:
    unlike = [_short(_worst(row.unlike.get(place) for row in rows), "=") for place in ARM]
    error = ", ".join(_short(_worst(row.error.get(place) for row in rows)) for place in PLACES)
    found = [[row.verdict.get(place, "failed") for row in rows] for place in PLACES]
    verdict = ", ".join(max(words, key=("within", "unknown", "failed", "over").index) for words in found)
    return f"| {subject} | {len(rows)} | {unlike[0]} | {unlike[1]} | {error} | {verdict} |\n"


def _worst(values: Iterable[float | None]) -> float:
    return max((value for value in values if value is not None), default=0.0)


def _short(value: float, none: str = "0") -> str:
    return f"{value:.0e}".replace("e-0", "e-") if value else none


def stale(rows: Sequence[Measured], kept: Mapping[tuple[str, str], Measured]) -> list[str]:
    """What was measured now and is not what was kept: another verdict, or a difference three times as large."""
    wrong = []
    known = {(one.subject, variant): one for one in kept.values() for variant in one.variants}
    for row in rows:
        before = kept.get((row.subject, row.sha256)) or known.get((row.subject, row.variants[0]))
        if before is None:
            wrong.append(f"{row.subject} {row.variants[0]}: the page does not have this file")
        elif row.verdict != before.verdict or any(
            _worst([row.unlike.get(place)]) > max(3 * _worst([before.unlike.get(place)]), 1e-6) for place in ARM
        ):
            wrong.append(
                f"{row.subject} {row.variants[0]}: {row.verdict} {row.unlike}, kept {before.verdict} {before.unlike}"
            )
    return wrong


Line = Measured | Unmeasured


def _split(lines: Iterable[Line]) -> tuple[dict[tuple[str, str], Measured], list[Unmeasured]]:
    """What was measured by subject and sha256, and of what was not the last word on each subject."""
    measured: dict[tuple[str, str], Measured] = {}
    left_out: dict[str, Unmeasured] = {}
    for line in lines:
        if isinstance(line, Measured):
            measured[line.subject, line.sha256] = line
            left_out.pop(line.subject, None)
        else:
            left_out[line.subject] = line
    return measured, list(left_out.values())


def main() -> int:
    """Measure what is not kept yet and write the page; with --check measure again and say what differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 where a result differs")
    parser.add_argument("--kept", action="store_true", help="measure nothing: write the page of what is kept")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where what was measured is kept")
    parser.add_argument("--subject", action="append", choices=tuple(subjects()), metavar="NAME", help="this one only")
    parser.add_argument("--level", action="append", choices=[level.value for level in LEVELS], help="this one only")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time limit of a subject")
    chosen = parser.parse_args()
    levels = [Level(name) for name in chosen.level or LEVELS]
    text = chosen.results.read_bytes() if chosen.results.is_file() else b""
    lines = [msgspec.json.decode(line, type=Line) for line in text.splitlines()]
    kept, left_out = _split(lines)
    chosen.results.parent.mkdir(parents=True, exist_ok=True)
    fresh: list[Line] = []
    for subject in () if chosen.kept else chosen.subject or subjects():
        for line in measure(subject, levels, set() if chosen.check else set(kept), chosen.seconds):
            fresh.append(line)
            print(msgspec.json.encode(line).decode(), file=sys.stderr, flush=True)
            if not chosen.check:
                with chosen.results.open("ab") as file:
                    file.write(msgspec.json.encode(line) + b"\n")
    if chosen.check:
        measured, missing = _split(fresh)
        reasons = {one.subject: one.why for one in left_out}
        wrong = stale(list(measured.values()), kept)
        wrong += [f"{one.subject}: {one.why}" for one in missing if one.subject not in reasons]
        print("\n".join(wrong) or f"{len(measured)} files give what the page says")
        return 1 if wrong else 0
    kept, left_out = _split([*lines, *fresh])
    PAGE.write_text(page(list(kept.values()), left_out), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
