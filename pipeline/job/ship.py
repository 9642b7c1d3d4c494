"""From a campaign's choices to its bundle, proven in the library that ships."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from device_runner.errors import RunnerError
from device_runner.library_source import release_of
from pipeline.check.library_proof import PROOFS, LibraryProof, ProvenLibrary
from pipeline.config import BuildKind, Config, ModelConfig, Platform
from pipeline.convert.many import TYPED_CONFIG_FILE, config_texts
from pipeline.core.errors import PipelineError
from pipeline.core.files import sha256_of
from pipeline.core.progress import NoProgress, Progress
from pipeline.job.assemble import Assembled
from pipeline.job.prepare import ARTIFACTS
from pipeline.release.bundle import make_bundle
from pipeline.release.choose import Choice
from pipeline.release.contents import keep_reference, library_name, runs_of, signature_of
from pipeline.release.manifest import (
    MEASURED_FILE,
    Content,
    KeptReference,
    ModelSignature,
    Shipped,
    read_manifest,
)
from pipeline.release.prove import ProofOrder, prove_bundle
from pipeline.release.shipped import library_release, planned_build, shipped_library
from pipeline.release.update import requirements
from pipeline.report.markdown import measured_text


def signatures(assembled: Assembled, folder: Path) -> tuple[ModelSignature, ...]:
    """The inputs and outputs of each model that ships, as its file declares them, with what the config says of them."""
    files = {choice.artifact.model: folder / ARTIFACTS / choice.artifact.file for choice in assembled.choices}
    tables = assembled.record.tables
    return tuple(signature_of(model, file, tables.get(model) or ModelConfig(path="")) for model, file in files.items())


MAKERS = ("ort-mobile", "onnxruntime", "onnx")
"""Programs whose versions decide the artifacts' bytes; the manifest's content names them."""

REFERENCES = "reference"
"""The folder in which a job leaves raw tensors of the original models, one folder for each model."""

BUNDLE = "bundle"
"""The folder of what ships in a job's output folder."""


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
    typed = hashlib.sha256(operators[TYPED_CONFIG_FILE].encode()).hexdigest()
    manifest = make_bundle(
        folder / BUNDLE,
        name=report.name,
        sources=sources,
        ships=ships,
        made_with={name: report.versions[name] for name in MAKERS if name in report.versions},
        evidence=_evidence(assembled, choices),
        models=models,
        requires=tuple(requirements(ships, models, files, typed, library_licenses(choices))),
        classes=[choice.classes for choice in choices],
        reports={MEASURED_FILE: measured_text(report, choices, assembled.record.checks).encode()},
        references=references,
        tensors=tensors,
        attest=partial(attested, libraries_of(choices, library), progress or NoProgress()),
    )
    return manifest.content


LIBRARY_LICENSE = "MIT"
"""ONNX Runtime's own."""


def library_licenses(choices: Sequence[Choice]) -> dict[str, str]:
    """The licence of each target's library: as the config has it; of ONNX Runtime's own packages and builds MIT."""
    own = {
        one.target.name: LIBRARY_LICENSE for one in choices if not one.target.library or release_of(one.target.library)
    }
    return own | {one.target.name: one.target.library_license for one in choices if one.target.library_license}


def operator_configs(config: Config, artifacts: Sequence[Path]) -> dict[str, str]:
    """Both operator configs that the builds of all targets need to run some artifacts in every way of the config."""
    builds = [planned_build(target, config) for target in config.targets]
    return config_texts(
        artifacts,
        providers=sorted({name for _, providers in builds for name in providers} - {"cpu"}),
        extended=any(kind is not BuildKind.MINIMAL for kind, _ in builds),
    )


def libraries_of(choices: Sequence[Choice], given: str | None) -> dict[str, tuple[str, ...]]:
    """The Android libraries to prove, each with the targets that ship it.

    A library of the command line may be any computer's: it counts where it is an AAR or a release.
    """
    android = given if given and (given.endswith(".aar") or release_of(given)) else None
    found: dict[str, tuple[str, ...]] = {}
    for target in dict.fromkeys(choice.target for choice in choices):
        library = target.library or android
        if target.platform is Platform.ANDROID and library:
            found[library] = (*found.get(library, ()), target.name)
    return found


def attested(libraries: Mapping[str, tuple[str, ...]], progress: Progress, bundle: Path) -> dict[str, Any]:
    """The evidence on a finished bundle: a proof for each library, with the targets that ship it."""
    proofs = [_proof(bundle, library, targets, progress) for library, targets in libraries.items()]
    return {PROOFS: msgspec.to_builtins(proofs)} if proofs else {}


def _proof(bundle: Path, library: str, targets: tuple[str, ...], progress: Progress) -> LibraryProof:
    """The proof, or why this computer cannot do it: the job goes on without."""
    try:
        return prove_bundle(bundle, ProofOrder(library=library, targets=targets), progress)
    except RunnerError as error:
        return LibraryProof(bundle="", library=ProvenLibrary(file=Path(library).name), not_run=error.text)


def proven(assembled: Assembled, folder: Path) -> Assembled:
    """The same with what came of the libraries that ship, where OUTPUT/bundle is of this campaign."""
    try:
        manifest = read_manifest(folder / BUNDLE)
        proofs = manifest.proofs
    except (PipelineError, msgspec.ValidationError):
        return assembled
    if manifest.evidence.get("campaign") != assembled.report.campaign:
        return assembled
    return replace(assembled, report=msgspec.structs.replace(assembled.report, proofs=proofs))


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
        basis="measured" if choice.measured else "advised",
    )


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
