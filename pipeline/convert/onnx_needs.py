"""What a build needs for ONNX files, which it optimizes when it loads them: the operators of the file, and those that
the optimizer makes of them at each level, whichever of them an app sets.

A minimal build loads no ONNX file. A full one folds constants with the kernels that it has, so that what is folded away
is needed, too. The optimizer that is asked is this computer's; that of another release may fuse otherwise.
"""

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from pathlib import Path

from device_runner import files as runner_files
from pipeline import required_ops
from pipeline.convert.request import ConvertRequest, OptimizerPlatform, convert_model
from pipeline.core import abis as core_abis
from pipeline.core import files as storage
from pipeline.core import groups as counting
from pipeline.core import releases as ort_releases
from pipeline.core import workers
from pipeline.core.errors import Finding, ModelError, Severity
from pipeline.core.variant import Level, Style, Variant
from pipeline.model.sources import SourceModel

LEVELS = (Level.NONE, Level.BASIC, Level.EXTENDED, Level.ALL)
"""Those that a session can have in every release."""


def onnx_needs(
    files: Sequence[Path], *, abis: Collection[str] = (), providers: Sequence[str] = ()
) -> tuple[dict[str, required_ops.Needs], list[ModelError]]:
    """What a full build for some ABIs (all, where none is named) needs for each file, by path, at every level; and what
    is not known, as this computer's ONNX Runtime does not optimize a file at a level.
    """
    named = {core_abis.abi_of(abi) for abi in abis}
    arm, x86 = not named or bool(named & core_abis.ARM_ABIS), not named or bool(named - core_abis.ARM_ABIS)
    platforms = [*([OptimizerPlatform.ARM] if arm else []), *([OptimizerPlatform.AMD64] if x86 else [])]
    needs: dict[str, required_ops.Needs] = {}
    unknown: list[ModelError] = []
    with storage.scratch(files[0].parent) as work:
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
                cache_folder=str(runner_files.cache_folder() / "artifacts"),
                platform=platform,
            )
            tasks[workers.Task(label=file.name, call=partial(convert_model, request))] = (file, folder)
        made: dict[Path, list[Path]] = {file: [] for file in files}
        for outcome in workers.run_tasks(tasks):
            file, folder = tasks[outcome.task]
            made[file] += [folder / artifact.file for artifact in (outcome.value.artifacts if outcome.value else ())]
            failures = outcome.value.failures if outcome.value else ()
            texts = [f"level {failure.variant.level.value}: {failure.text}" for failure in failures]
            texts += [outcome.error.text] if outcome.error else []
            if texts:
                unknown.append(
                    ModelError(
                        "not all that a reduced build needs for it is known",
                        where=str(file),
                        why="; ".join(texts),
                        remedy="build it with all operators, or use ORT format files",
                    )
                )
        for file in (file for file in files if made[file]):
            read, errors = required_ops.needs_of_artifacts(made[file], providers=providers, extended=True)
            unknown += [ModelError.of(error.problem, where=str(file)) for error in errors]
            of_levels = counting.grouped(
                (need, label) for level in read.values() for need, labels in level.items() for label in labels
            )
            needs[str(file)] = {need: tuple(dict.fromkeys(labels)) for need, labels in of_levels.items()}
    return needs, unknown


def needs_of_one(
    file: Path, *, abis: Collection[str] = (), providers: Sequence[str] = (), extended: bool
) -> tuple[required_ops.Needs | None, ModelError | None]:
    """What a build needs for one artifact of either format, and why that, or a part of it, is not known."""
    if file.suffix.lower() == ".onnx":
        needs, errors = onnx_needs([file], abis=abis, providers=providers)
    else:
        needs, errors = required_ops.needs_of_artifacts([file], providers=providers, extended=extended)
    return next(iter(needs.values()), None), next(iter(errors), None)


def unproven(files: Iterable[str | Path], releases: Iterable[str]) -> Finding | None:
    """What is not known of the operators of ONNX files in other releases than this computer's; None where all is."""
    onnx = [str(file) for file in files if str(file).lower().endswith(".onnx")]
    here = ort_releases.installed_release()
    others = sorted({line for release in releases if release and (line := ort_releases.line_of(release)) != here})
    if not onnx or not others:
        return None
    names = ", ".join(map(str, others))
    return Finding(
        severity=Severity.WARNING,
        where="operator config",
        what=f"it has what the optimizer of {here} makes of {counting.counted(len(onnx), 'ONNX file')}: not proven "
        f"for {names}",
        why="another release may fuse other nodes while it loads them",
        remedy=f"prove the bundle in the reduced library, or convert with onnxruntime {others[0]}",
    )
