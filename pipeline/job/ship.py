"""From a campaign's choices to its bundle."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from pipeline.config import Config, ModelConfig
from pipeline.core.errors import Finding, PipelineError, errors
from pipeline.core.files import sha256_of, write_text
from pipeline.core.progress import NoProgress, Progress
from pipeline.job.assemble import Assembled
from pipeline.job.gate import check_shipping, unshipped
from pipeline.job.prepare import ARTIFACTS, REFERENCES
from pipeline.job.proofs import attested, libraries_of, proven
from pipeline.release.bundle import BUNDLE, make_bundle
from pipeline.release.choose import Choice
from pipeline.release.contents import keep_reference, library_name, runs_of, signature_of
from pipeline.release.manifest import (
    MEASURED_FILE,
    Content,
    KeptReference,
    ModelSignature,
    Shipped,
)
from pipeline.release.shipped import library_release, shipped_library
from pipeline.release.update import library_licenses, operator_configs, requirements
from pipeline.report.markdown import measured_text


def signatures(assembled: Assembled, folder: Path) -> tuple[ModelSignature, ...]:
    """The inputs and outputs of each model that ships, as its file declares them, with what the config says of them."""
    files = {choice.artifact.model: folder / ARTIFACTS / choice.artifact.file for choice in assembled.choices}
    tables = assembled.record.tables
    return tuple(signature_of(model, file, tables.get(model) or ModelConfig(path="")) for model, file in files.items())


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
    files = {f"models/{choice.artifact.file}": folder / ARTIFACTS / choice.artifact.file for choice in choices}
    operators = operator_configs(assembled.record.config, list(files.values()))
    sources: dict[str, Path | bytes] = {**files}
    sources |= {f"operators/{name}": text.encode() for name, text in operators.items()}
    report = assembled.report
    references, tensors = kept_references(assembled, folder)
    ships = tuple(_shipped(assembled, choice) for choice in choices)
    models = signatures(assembled, folder)
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
        attest=partial(attested, libraries_of(choices, library), progress or NoProgress()),
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


def write_operator_configs(config: Config, folder: Path, artifacts: Sequence[Path]) -> None:
    """Both operator configs of everything that was converted."""
    for name, text in operator_configs(config, artifacts).items() if artifacts else ():
        write_text(folder / name, text)


def kept_references(assembled: Assembled, folder: Path) -> tuple[tuple[KeptReference, ...], dict[str, Path]]:
    """What the bundle keeps of the originals of its models, and the raw tensors by their paths in the bundle.

    A model is left out of which the campaign was stored before references were, or whose tensors are no longer there.
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
        file=f"models/{artifact.file}",
        semantic_digest=artifact.semantic_digest,
        aware_by=artifact.aware_by,
        steps=artifact.steps,
        provider=choice.options.provider,
        provider_options=choice.options.provider_options,
        flags=tuple(choice.options.flags),
        session_config=artifact.session_options | choice.options.session_config,
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


def _loading(assembled: Assembled, choice: Choice) -> Literal["mapped", "path"] | msgspec.UnsetType:
    """How a choice was loaded where it was measured."""
    if not choice.measured:
        return msgspec.UNSET
    key = (choice.artifact.model, choice.artifact.variant.name, choice.options)
    found = {run.mapped for run in assembled.record.planned if (run.model, run.variant, run.options) == key}
    by_probe = assembled.record.config.measure.perf_test is None
    return "mapped" if by_probe and True in found else "path"


def _evidence(assembled: Assembled, choices: Sequence[Choice]) -> dict[str, object]:
    """What was measured of the artifacts that ship, on what, and why they were chosen."""
    report = assembled.report
    shipped = {(choice.artifact.model, choice.artifact.variant.name) for choice in choices}
    rows = [row for row in report.rows if (row.model, row.variant) in shipped]
    accuracy = msgspec.to_builtins([one for one in report.accuracy or () if (one.model, one.variant) in shipped])
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
