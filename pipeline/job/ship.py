"""From a campaign's choices to its bundle."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from pipeline.config import Config, ModelConfig
from pipeline.core.errors import Finding, PipelineError, errors
from pipeline.core.features import Place
from pipeline.core.files import sha256_of, write_text
from pipeline.core.output import ARTIFACTS, BUNDLE, REFERENCES, TYPED_CONFIG_FILE
from pipeline.core.progress import NoProgress, Progress
from pipeline.job.assemble import Assembled
from pipeline.job.gate import check_shipping, unshipped
from pipeline.ort_build.history import added_by_operator
from pipeline.release.bundle import make_bundle
from pipeline.release.choose import Choice
from pipeline.release.contents import keep_reference, libraries_of, library_name, runs_of, signature_of
from pipeline.release.manifest import (
    MEASURED_FILE,
    Content,
    KeptReference,
    ModelSignature,
    Shipped,
    read_manifest,
)
from pipeline.release.shipped import library_release, shipped_library
from pipeline.release.update import library_licenses, operator_configs, requirements
from pipeline.report.markdown import measured_text
from pipeline.report.operators import required_operators
from pipeline.required_ops import read_config

MODELS = "models/"
"""The bundle's folder of artifacts."""


def signatures(assembled: Assembled, folder: Path) -> tuple[ModelSignature, ...]:
    """The inputs and outputs of each model that ships, as its file declares them, with what the config says of them."""
    files = {choice.artifact.model: folder / ARTIFACTS / choice.artifact.file for choice in assembled.choices}
    tables = assembled.record.tables
    return tuple(signature_of(model, file, tables.get(model) or ModelConfig(path="")) for model, file in files.items())


PROOFS = Place[Callable[[Mapping[str, tuple[str, ...]], Progress, Path], dict[str, Any]]]("ship.proofs")
"""The evidence on a finished bundle of libraries that ship, each given with the targets that ship it."""
MAKERS = ("ort-mobile", "onnxruntime", "onnx")
"""Programs whose versions decide the artifacts' bytes; the manifest's content names them."""


def ship(
    assembled: Assembled, folder: Path, *, library: str | None = None, progress: Progress | None = None
) -> Content | None:
    """Make OUTPUT/bundle from the choices; None where nothing may ship. Raises PipelineError for changed artifacts.

    Android targets are proven in the library that their config names, or in `library`; what came of it, or why it could
    not be done here, is in the evidence.
    """
    choices = assembled.choices
    if not choices:
        return None
    for choice in choices:
        _check_unchanged(folder, choice)
    ships = tuple(_shipped(assembled, choice) for choice in choices)
    files = {one.file: folder / ARTIFACTS / one.file.removeprefix(MODELS) for one in ships}
    operators = operator_configs(assembled.record.config, list(files.values()))
    sources: dict[str, Path | bytes] = {**files}
    sources |= {f"operators/{name}": text.encode() for name, text in operators.items()}
    report = assembled.report
    references, tensors = kept_references(assembled, folder)
    models = signatures(assembled, folder)
    libraries = libraries_of((choice.target for choice in choices), library)

    def attested(bundle: Path) -> dict[str, Any]:
        proofs = [prove(libraries, progress or NoProgress(), bundle) for prove in PROOFS]
        return {key: value for proof in proofs for key, value in proof.items()}

    manifest = make_bundle(
        folder / BUNDLE,
        name=report.name,
        sources=sources,
        ships=ships,
        made_with={name: report.versions[name] for name in MAKERS if name in report.versions},
        evidence=_evidence(assembled, choices),
        models=models,
        requires=tuple(
            requirements(ships, models, files, operators, library_licenses(assembled.record.config.targets))
        ),
        classes=[choice.classes for choice in choices],
        reports={MEASURED_FILE: measured_text(report, choices, assembled.record.checks).encode()},
        references=references,
        tensors=tensors,
        attest=attested,
    )
    return manifest.content


def ship_or_refuse(
    assembled: Assembled, folder: Path, *, library: str | None, progress: Progress
) -> tuple[Assembled, Content | None, tuple[Finding, ...]]:
    """The bundle of a campaign that ended, None where something speaks against it, with all that does.

    The campaign comes back with the bundle's proofs, or with the refusals, for its report.
    """
    findings = check_shipping(assembled, folder)
    if errors(findings):
        return unshipped(assembled, findings), None, findings
    content = ship(assembled, folder, library=library, progress=progress)
    return proven(assembled, folder), content, findings


def proven(assembled: Assembled, folder: Path) -> Assembled:
    """The same with what came of the libraries that ship, and the operators of a reduced build, of its own bundle."""
    try:
        manifest = read_manifest(folder / BUNDLE)
        proofs = manifest.proofs
    except (PipelineError, msgspec.ValidationError):
        return assembled
    if manifest.evidence.get("campaign") != assembled.report.campaign:
        return assembled
    report = msgspec.structs.replace(assembled.report, proofs=proofs)
    with contextlib.suppress(PipelineError, OSError):  # builds may be removed at this moment
        config = read_config(folder / BUNDLE / "operators" / TYPED_CONFIG_FILE)
        report = msgspec.structs.replace(report, required=required_operators(config, added_by_operator()))
    return dataclasses.replace(assembled, report=report)


def write_operator_configs(config: Config, folder: Path, artifacts: Sequence[Path]) -> None:
    """Both operator configs of everything that was converted."""
    for name, text in operator_configs(config, artifacts).items() if artifacts else ():
        write_text(folder / name, text)


def kept_references(assembled: Assembled, folder: Path) -> tuple[tuple[KeptReference, ...], dict[str, Path]]:
    """What the bundle keeps of the originals of its models, and the raw tensors by their paths in the bundle.

    A model is left out whose tensors are no longer there.
    """
    kept: list[KeptReference] = []
    files: dict[str, Path] = {}
    for model in dict.fromkeys(choice.artifact.source for choice in assembled.choices):
        reference = assembled.record.references.get(model)
        if reference:
            here = folder / REFERENCES / model
            one = keep_reference(model, reference, here, assembled.record.config.check)
            kept.append(one)
            files |= {tensor.path: here / Path(tensor.path).name for tensor in (*one.inputs, *one.outputs)}
    return tuple(kept), files


def _check_unchanged(folder: Path, choice: Choice) -> None:
    path = folder / ARTIFACTS / choice.artifact.file
    if not path.is_file() or sha256_of(path) != choice.artifact.sha256:
        raise PipelineError(
            "an artifact is not what was measured",
            where=str(path),
            why="it is missing or was changed after the campaign",
            remedy="run the campaign again: unchanged models are not converted anew",
        )


def bundled_name(choice: Choice, choices: Iterable[Choice]) -> str:
    """The name of an artifact's file in the bundle: levels that give the same bytes share that of the first choice."""
    alike = (each.artifact for each in choices if each.artifact.sha256 == choice.artifact.sha256)
    return next(each.file for each in alike if each.model == choice.artifact.model)


def _shipped(assembled: Assembled, choice: Choice) -> Shipped:
    digests = {model.name: model.sha256 for model in assembled.report.models}
    installed = ".".join(assembled.report.versions["onnxruntime"].split(".")[:2])
    artifact, target = choice.artifact, choice.target
    return Shipped(
        target=target.name,
        platform=target.platform.value,
        model=artifact.model,
        model_sha256=digests[artifact.model],
        variant=artifact.variant,
        file=MODELS + bundled_name(choice, assembled.choices),
        semantic_digest=artifact.semantic_digest,
        aware_by=artifact.aware_by,
        steps=artifact.steps,
        runs=runs_of(assembled.record.config, choice),
        ort_release=target.ort_release or library_release(target) or installed,
        min_api_level=target.min_api_level,
        min_os_version=target.min_os_version,
        abis=target.abis,
        library=library_name(target),
        library_kind=shipped_library(target, assembled.record.config, installed).runtime.kind.value,
        loading=_loading(assembled, choice),
        basis="measured" if choice.measured else "advised",
    )


def _loading(assembled: Assembled, choice: Choice) -> Literal["mapped", "path"] | None:
    """How a choice was loaded where it was measured."""
    if not choice.measured:
        return None
    key = (choice.artifact.model, choice.artifact.variant.name, choice.options)
    found = {run.mapped for run in assembled.record.planned if (run.model, run.variant, run.options) == key}
    by_probe = assembled.record.config.measure.perf_test is None
    return "mapped" if by_probe and True in found else "path"


def _evidence(assembled: Assembled, choices: Sequence[Choice]) -> dict[str, object]:
    """What was measured of the artifacts that ship, on what, and why they were chosen."""
    report = assembled.report
    shipped = {(choice.artifact.model, choice.artifact.variant.name) for choice in choices}
    rows = [row for row in report.rows if (row.model, row.variant) in shipped]
    accuracy = msgspec.to_builtins([one for one in report.accuracy if (one.model, one.variant) in shipped])
    return {
        "campaign": report.campaign,
        "created_at": report.created_at,
        "host": msgspec.to_builtins(report.host),
        "versions": report.versions,
        "devices": msgspec.to_builtins(report.devices),
        "choices": msgspec.to_builtins(report.choices),
        "checks": {
            f"{model}/{variant}": msgspec.to_builtins(assembled.record.checks.get(model, {}).get(variant, ()))
            for model, variant in sorted(shipped)
        },
        "measured": msgspec.to_builtins(rows),
        "datasets": [
            {"model": model, "use": use, "name": Path(data).name}
            for model, table in sorted(assembled.record.tables.items())
            for use, data in _data_of(table)
        ],
    } | ({"accuracy": accuracy} if accuracy else {})


def _data_of(table: ModelConfig) -> Iterator[tuple[str, str]]:
    """What the config names as data of a model, by use."""
    for use, data in (
        ("test", table.test_data),
        ("labels", table.labels),
        ("calibration", table.calibration and table.calibration.test_data),
        ("evaluation", table.evaluation and table.evaluation.test_data),
    ):
        if data:
            yield use, data
