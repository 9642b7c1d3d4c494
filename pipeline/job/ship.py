"""From a campaign's choices to its bundle."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from pipeline.conversion import config_texts
from pipeline.errors import PipelineError
from pipeline.files import sha256_of
from pipeline.job.assemble import Assembled
from pipeline.job.prepare import ARTIFACTS
from pipeline.release.bundle import make_bundle
from pipeline.release.choose import Choice
from pipeline.release.manifest import Content, Shipped

MAKERS = ("ort-mobile", "onnxruntime", "onnx")
"""Programs whose versions decide the artifacts' bytes; the manifest's content names them."""


def ship(assembled: Assembled, folder: Path) -> Content | None:
    """Make OUTPUT/bundle from the choices; None where nothing may ship. Raises PipelineError for changed artifacts."""
    choices = assembled.choices
    if not choices:
        return None
    for choice in choices:
        _check_unchanged(folder, choice)
    files = {f"models/{choice.artifact.file}": folder / ARTIFACTS / choice.artifact.file for choice in choices}
    operators = config_texts(list(files.values()), providers=sorted({choice.options.provider for choice in choices}))
    sources: dict[str, Path | bytes] = {**files}
    sources |= {f"operators/{name}": text.encode() for name, text in operators.items()}
    report = assembled.report
    return make_bundle(
        folder / "bundle",
        name=report.name,
        sources=sources,
        ships=tuple(_shipped(assembled, choice) for choice in choices),
        made_with={name: report.versions[name] for name in MAKERS if name in report.versions},
        evidence=_evidence(assembled, choices),
    )


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
        provider=choice.options.provider,
        provider_options=choice.options.provider_options,
        flags=tuple(choice.options.flags),
        session_config=artifact.session_options | choice.options.session_config,
        ort_release=target.ort_release or installed,
        min_api_level=target.min_api_level,
        min_os_version=target.min_os_version,
        basis="measured" if choice.measured else "advised",
    )


def _evidence(assembled: Assembled, choices: Sequence[Choice]) -> dict[str, object]:
    """What was measured of the artifacts that ship, on what, and why they were chosen."""
    report = assembled.report
    shipped = {(choice.artifact.model, choice.artifact.variant.name) for choice in choices}
    rows = [row for row in report.rows if (row.model, row.variant) in shipped]
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
    }
