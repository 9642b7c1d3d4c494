"""What a build needs for ONNX files, which it optimizes when it loads them: the operators of the file, and those that
the optimizer makes of them at each level, whichever of them an app sets.

A minimal build loads no ONNX file. A full one folds constants with the kernels that it has, so that what is folded away
is needed, too. The optimizer that is asked is this computer's; that of another release may fuse otherwise.
"""

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from pathlib import Path

from device_runner.files import cache_folder
from pipeline.convert.request import ConvertRequest, ConvertResult, OptimizerPlatform, convert_model
from pipeline.core.abis import ARM_ABIS, abi_of
from pipeline.core.errors import Finding, ModelError, Severity
from pipeline.core.files import scratch
from pipeline.core.groups import counted, grouped
from pipeline.core.releases import installed_release, line_of
from pipeline.core.variant import Level, Style, Variant
from pipeline.core.workers import Task, run_tasks
from pipeline.model.guards import unstorable
from pipeline.model.onnx_model import read_onnx
from pipeline.model.sources import SourceModel
from pipeline.required_ops import Needs, needs_of_artifacts

LEVELS = (Level.NONE, Level.BASIC, Level.EXTENDED, Level.ALL)
"""Those that a session can have in every release."""


def onnx_needs(files: Sequence[Path], *, abis: Collection[str] = (), providers: Sequence[str] = ()) -> dict[str, Needs]:
    """What a full build for some ABIs (all, where none is named) needs for each file, by path, at every level.

    ModelError for a file that this computer's ONNX Runtime does not optimize at each of them.
    """
    named = {abi_of(abi) for abi in abis}
    arm, x86 = not named or bool(named & ARM_ABIS), not named or bool(named - ARM_ABIS)
    platforms = [*([OptimizerPlatform.ARM] if arm else []), *([OptimizerPlatform.AMD64] if x86 else [])]
    needs: dict[str, Needs] = {}
    with scratch(files[0].parent) as work:
        tasks = {}
        for number, (file, platform) in enumerate((file, platform) for file in files for platform in platforms):
            folder = work / str(number)
            folder.mkdir()
            request = ConvertRequest(
                source=SourceModel(path=str(file)),
                variants=tuple(Variant(level=level, style=Style.FIXED) for level in LEVELS),
                stem=platform.value,
                output_folder=str(folder),
                work_folder=str(folder),
                cache_folder=str(cache_folder() / "artifacts"),
                platform=platform,
            )
            tasks[Task(label=file.name, call=partial(convert_model, request))] = (file, folder)
        made: dict[Path, list[Path]] = {}
        for outcome in run_tasks(tasks):
            file, folder = tasks[outcome.task]
            made.setdefault(file, []).extend(_written(file, folder, outcome.error, outcome.value))
        for file in files:
            read, errors = needs_of_artifacts(made[file], providers=providers, extended=True)
            for error in errors:
                raise ModelError(error.what, where=str(file), why=error.why, remedy=error.remedy)
            of_levels = grouped(
                (need, label) for level in read.values() for need, labels in level.items() for label in labels
            )
            needs[str(file)] = {need: tuple(dict.fromkeys(labels)) for need, labels in of_levels.items()}
    return needs


def needs_of_one(
    file: Path, *, abis: Collection[str] = (), providers: Sequence[str] = (), extended: bool
) -> tuple[Needs | None, ModelError | None]:
    """What a build needs for one artifact of either format; or why that is not known."""
    try:
        if file.suffix.lower() == ".onnx":
            return onnx_needs([file], abis=abis, providers=providers)[str(file)], None
        needs, errors = needs_of_artifacts([file], providers=providers, extended=extended)
    except ModelError as error:
        return None, error
    return next(iter(needs.values()), None), next(iter(errors), None)


def _written(file: Path, folder: Path, error: Exception | None, result: ConvertResult | None) -> Iterable[Path]:
    failures = result.failures if result else ()
    made = [folder / artifact.file for artifact in result.artifacts] if result else []
    low = {failure.variant.level for failure in failures} <= {Level.NONE, Level.BASIC}
    if failures and low and not error and unstorable(read_onnx(file).graph):
        return [file, *made]  # no ORT format file has their types: these levels are the model's own operators
    if error or failures or result is None:
        why = "; ".join(f"level {failure.variant.level.value}: {failure.text}" for failure in failures)
        raise ModelError(
            "what a reduced build needs for it is not known", where=str(file),
            why=why or str(error), remedy="leave the operator config out of its build, or use ORT format files",
        )  # fmt: skip
    return made


def unproven(files: Iterable[str | Path], releases: Iterable[str]) -> Finding | None:
    """What is not known of the operators of ONNX files in other releases than this computer's; None where all is."""
    onnx = [str(file) for file in files if str(file).lower().endswith(".onnx")]
    here = installed_release()
    others = sorted({line for release in releases if release and (line := line_of(release)) != here})
    if not onnx or not others:
        return None
    names = ", ".join(map(str, others))
    return Finding(
        severity=Severity.WARNING, where="operator config",
        what=f"it has what the optimizer of {here} makes of {counted(len(onnx), 'ONNX file')}: not proven for {names}",
        why="another release may fuse other nodes while it loads them",
        remedy=f"prove the bundle in the reduced library, or convert with onnxruntime {others[0]}",
    )  # fmt: skip
