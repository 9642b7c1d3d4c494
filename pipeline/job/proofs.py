"""Proofs of a bundle in the libraries for Android and Linux that its targets ship."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from device_runner.errors import RunnerError
from device_runner.library_source import name_of, release_of
from pipeline.check.library_proof import PROOFS, LibraryProof, ProvenLibrary
from pipeline.config import Platform
from pipeline.convert.operator_configs import TYPED_CONFIG_FILE
from pipeline.core.errors import PipelineError
from pipeline.core.progress import Progress
from pipeline.job.assemble import Assembled
from pipeline.ort_build.history import added_by_operator
from pipeline.release.bundle import BUNDLE
from pipeline.release.choose import Choice
from pipeline.release.manifest import read_manifest
from pipeline.release.prove import ProofOrder, prove_bundle
from pipeline.report.operators import required_operators
from pipeline.required_ops import read_config


def libraries_of(choices: Sequence[Choice], given: str | None) -> dict[str, tuple[str, ...]]:
    """The libraries for Android and Linux to prove, each with the targets that ship it.

    A library of the command line may be any computer's: it counts where it is an AAR or a release, of the platform that
    the release is for.
    """
    name = name_of(given or "")
    spare = {
        Platform.ANDROID: given if given and (given.endswith(".aar") or release_of(given)) else None,
        Platform.LINUX: given if name and name.scheme in ("jvm", "wheel") else None,
    }
    found: dict[str, tuple[str, ...]] = {}
    for target in dict.fromkeys(choice.target for choice in choices):
        library = target.library or spare.get(target.platform)
        if target.platform in spare and library:
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
        file = ProvenLibrary(file=Path(library).name)
        return LibraryProof(bundle="", library=file, not_run=error.text, targets=targets)


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
    return replace(assembled, report=report)
