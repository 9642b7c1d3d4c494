"""The whole release of a config: what must hold before anything is signed or packaged, the signature, the packages.

What needs no measurement is checked before anything is measured.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from device_runner import library as ort_library
from device_runner.errors import UnavailableError
from pipeline import config as configs
from pipeline.check import compare as output_compare
from pipeline.check import library_proof
from pipeline.config import Config
from pipeline.core import errors as core_errors
from pipeline.core import files as storage
from pipeline.core.errors import ConfigError, Finding, Severity
from pipeline.core.features import Place
from pipeline.job import assemble
from pipeline.release import manifest as bundle_manifest
from pipeline.release import shipped as release_shipped
from pipeline.release import signature
from pipeline.report import model as report_model


@dataclass(frozen=True, slots=True)
class AppPackage:
    """A package for apps that was found possible: how apps name its parts, by kind; what to know of it."""

    names: Mapping[str, str]
    warnings: tuple[str, ...]
    write: Callable[[], object]


CHECKS = Place[Callable[[Config], None]]("release.checks")
"""Raise ConfigError, or MissingError, for what needs no bundle: tables of [release] that cannot be used."""
PACKAGES = Place[Callable[[Config, Path, bundle_manifest.Manifest], AbstractContextManager[AppPackage | None]]](
    "release.packages"
)
"""The package that a table of [release] wants of the bundle in a job's folder, None without such a table; it can be
written while the block runs."""

SEE_PROOF = "`ort-mobile prove` on the bundle shows each run, with what to do about those that fail"


def _refused(gate: configs.Gate, what: str, why: str, remedy: str) -> Finding:
    return Finding(severity=Severity.ERROR, what=what, where=f"gate {gate}", why=why, remedy=remedy)


def _signature(config: Config) -> Iterator[Finding]:
    if not config.release.key:
        yield _refused(
            configs.Gate.SIGNATURE,
            "there is no key to sign the bundle with",
            "it is given by --key, ORT_MOBILE_KEY or `key` in [release]",
            "give the private key, or leave signature out of [release] gates",
        )


def _license(config: Config) -> Iterator[Finding]:
    for model in config.shipped:
        if not model.license:
            yield _refused(
                configs.Gate.LICENSE,
                f"the licence of {model.name or Path(model.path).stem} is not known",
                "its [[models]] has no `license`",
                'write it, as in license = "Apache-2.0"',
            )
    licensed = release_shipped.library_licenses(config.targets)
    for target in config.targets:
        if target.name not in licensed:
            yield _refused(
                configs.Gate.LICENSE,
                f"the licence of the library of {target.name} is not known",
                f"{release_shipped.library_name(target)} is no package of ONNX Runtime's, and the target has no "
                "`library_license`",
                'write it, as in library_license = "MIT"',
            )


def _library(config: Config, given: str | None) -> Iterator[Finding]:
    """A target for Android whose library is not named, or not on this computer, cannot be shown to run in it."""
    android = [target for target in config.targets if target.platform is configs.Platform.ANDROID]
    libraries = release_shipped.libraries_of(android, given)
    for target in android:
        if not any(target.name in names for names in libraries.values()):
            yield _refused(
                configs.Gate.PROOF,
                f"the bundle cannot be shown to run in the library of {target.name}",
                "the target names no library",
                'name it, as in library = "android:1.29.0"',
            )
    for library, names in libraries.items():
        try:
            ort_library.find_archive(library)
        except UnavailableError as error:
            what = f"the bundle cannot be shown to run in the library of {', '.join(names)}"
            yield _refused(configs.Gate.PROOF, what, error.reason, error.remedy)


def _accuracy(
    accuracy: configs.AccuracyConfig, assembled: assemble.Assembled, manifest: bundle_manifest.Manifest
) -> Iterator[Finding]:
    record = assembled.record
    results = {(result.model, result.variant): result for result in record.accuracy}
    for choice in assembled.choices:
        model, variant = choice.artifact.model, choice.artifact.variant
        name = f"{model} {variant.name}"
        checks = record.checks_of(model, variant.name)
        # Outputs that were judged neither here nor on a device nor in a library that ships
        proven = (row for proof in manifest.proofs for row in proof.rows)
        rows: Iterable[report_model.Row | library_proof.ProofRow] = (*assembled.report.rows, *proven)
        elsewhere = [row.checks for row in rows if (row.model, row.variant) == (model, variant.name) and row.checks]
        unknown = [check for check in checks if check.unknown]
        if unknown and not any(all(check.passed for check in judged) for judged in elsewhere):
            yield _refused(
                configs.Gate.ACCURACY,
                f"{name}: its outputs could not be judged",
                "; ".join(f"{check.output}: {check.reason}" for check in unknown),
                output_compare.remedy_of(unknown[0]),
            )
        if bad := [check.output for check in checks if check.failed]:
            yield _refused(
                configs.Gate.ACCURACY,
                f"{name}: outputs differ from the original's",
                f"output {', '.join(bad)}",
                "see the report; choose another level or precision",
            )
        if not variant.precision:
            continue
        result = results.get((model, variant.name))
        if not accuracy.has_budget:
            yield _refused(
                configs.Gate.ACCURACY,
                f"{name} has another precision than the model, and no budget for its accuracy",
                "[accuracy] has no max_drop",
                "write max_drop, as in 0.01 for one percentage point",
            )
        elif result is None or result.refused(accuracy.max_drop):
            why = result.refused(accuracy.max_drop) if result else "its accuracy was not measured"
            yield _refused(
                configs.Gate.ACCURACY, f"{name} may lose too much accuracy", why, "give labelled data, or ship float"
            )


def _proof(assembled: assemble.Assembled, manifest: bundle_manifest.Manifest) -> Iterator[Finding]:
    """Each Android target must have run in the library that it ships, on this computer, with outputs that are right."""
    proofs = manifest.proofs
    proven = {name for proof in proofs if not proof.failed for row in proof.rows for name in row.targets}
    for target in dict.fromkeys(choice.target for choice in assembled.choices):
        if target.platform is not configs.Platform.ANDROID:
            continue
        if target.name in proven:
            for proof_row in (proof_row for proof in proofs for proof_row in proof.undecided(target.name)):
                finding = next(finding for finding in proof_row.findings if finding.code not in library_proof.CLAIMS)
                yield _refused(
                    configs.Gate.PROOF,
                    f"{target.name}: {proof_row.model} {proof_row.variant} ({proof_row.run}) could not be judged",
                    finding.text,
                    finding.remedy,
                )
            continue
        failed = [proof for proof in proofs if proof.library.file == release_shipped.library_name(target)]
        why = "; ".join(proof.not_run or ", ".join(proof.objections) for proof in failed)
        yield _refused(
            configs.Gate.PROOF,
            f"the bundle was not shown to run in the library of {target.name}",
            why or "no proof was made in it",
            "; ".join(proof.remedy for proof in failed if proof.remedy) or SEE_PROOF,
        )


def over_budget(shipping: Iterable[Finding]) -> Iterator[Finding]:
    """What a budget says, and a budget that nothing could be compared with."""
    for finding in shipping:
        if finding.code == core_errors.BUDGET:
            yield _refused(configs.Gate.BUDGET, finding.what, finding.why, finding.remedy)


def early_findings(config: Config, library: str | None) -> tuple[Finding, ...]:
    """Why nothing may be released, as far as gates need no measurement; `library` is that of the command line."""
    early = {
        configs.Gate.SIGNATURE: _signature(config),
        configs.Gate.LICENSE: _license(config),
        configs.Gate.PROOF: _library(config, library),
    }
    return tuple(finding for gate in config.release.gates for finding in early.get(gate, ()))


def gate_findings(config: Config, folder: Path, assembled: assemble.Assembled) -> tuple[Finding, ...]:
    """Why nothing may be released of a job with a bundle in `folder`."""
    manifest = bundle_manifest.verify_bundle(folder / storage.BUNDLE)
    late = {
        configs.Gate.ACCURACY: _accuracy(config.accuracy, assembled, manifest),
        configs.Gate.PROOF: _proof(assembled, manifest),
        configs.Gate.BUDGET: over_budget(assembled.findings),
    }
    return tuple(finding for gate in config.release.gates for finding in late.get(gate, ()))


def check_config(config: Config, passphrase: str | None) -> None:
    """Raise ConfigError, or MissingError, for a key, a version or a name that cannot be used."""
    if config.release.key:
        signature.read_private_key(Path(config.release.key), passphrase)
    for name in ("android", "apple"):
        if getattr(config.release, name) and name not in PACKAGES.features():
            raise ConfigError(
                f"[release.{name}] cannot be released",
                where=config.name,
                why=f"this installation of ort-mobile was made without what packs models for {name}",
                remedy=f"take [release.{name}] out of the config, or install ort-mobile with it",
            )
    for check in CHECKS:
        check(config)


def make_release(
    config: Config, folder: Path, passphrase: str | None
) -> tuple[signature.Signed | None, list[AppPackage]]:
    """Sign the bundle of a job's folder and write the packages, after all of them were found possible.

    Raises CheckFailed, whatever the gates, for a bundle that failed in its library; else as the commands for packages.
    """
    bundle, key = folder / storage.BUNDLE, config.release.key
    manifest = bundle_manifest.verify_bundle(bundle)
    bundle_manifest.refuse_unproven(bundle, manifest)
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(package(config, folder, manifest)) for package in PACKAGES]
        packages = [package for package in opened if package]
        signed = signature.sign(bundle, manifest, Path(key), passphrase) if key else None
        for package in packages:
            package.write()
    return signed, packages
