"""The whole release of a config: what must hold before anything is signed or packaged, the signature, the packages.

What needs no measurement is checked before anything is measured.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from device_runner.errors import UnavailableError
from device_runner.library import find_archive
from pipeline.check.compare import remedy_of
from pipeline.check.library_proof import CLAIMS, ProofRow
from pipeline.config import AccuracyConfig, Config, Gate, Platform
from pipeline.core.errors import BUDGET, ConfigError, Finding, Severity
from pipeline.core.features import Place
from pipeline.core.files import BUNDLE
from pipeline.job.assemble import Assembled
from pipeline.release.manifest import Manifest, refuse_unproven, verify_bundle
from pipeline.release.shipped import libraries_of, library_licenses, library_name
from pipeline.release.signature import Signed, read_private_key, sign
from pipeline.report.model import Row

AppPackage = tuple[Mapping[str, str], tuple[str, ...], Callable[[], object]]
"""A package for apps that was found possible: how apps name its parts, by kind; what to know of it; what writes it."""

CHECKS = Place[Callable[[Config], None]]("release.checks")
"""Raise ConfigError, or MissingError, for what needs no bundle: tables of [release] that cannot be used."""
PACKAGES = Place[Callable[[Config, Path, Manifest], AbstractContextManager[AppPackage | None]]]("release.packages")
"""The package that a table of [release] wants of the bundle in a job's folder, None without such a table; it can be
written while the block runs."""

SEE_PROOF = "`ort-mobile prove` on the bundle shows each run, with what to do about those that fail"


def _refused(gate: Gate, what: str, why: str, remedy: str) -> Finding:
    return Finding(severity=Severity.ERROR, what=what, where=f"gate {gate}", why=why, remedy=remedy)


def _signature(config: Config) -> Iterator[Finding]:
    if not config.release.key:
        yield _refused(
            Gate.SIGNATURE, "there is no key to sign the bundle with",
            "it is given by --key, ORT_MOBILE_KEY or `key` in [release]",
            "give the private key, or leave signature out of [release] gates",
        )  # fmt: skip


def _license(config: Config) -> Iterator[Finding]:
    for model in config.models:
        if not model.license:
            yield _refused(
                Gate.LICENSE, f"the licence of {model.name or Path(model.path).stem} is not known",
                "its [[models]] has no `license`", 'write it, as in license = "Apache-2.0"',
            )  # fmt: skip
    licensed = library_licenses(config.targets)
    for target in config.targets:
        if target.name not in licensed:
            yield _refused(
                Gate.LICENSE, f"the licence of the library of {target.name} is not known",
                f"{library_name(target)} is no package of ONNX Runtime's, and the target has no `library_license`",
                'write it, as in library_license = "MIT"',
            )  # fmt: skip


def _library(config: Config, given: str | None) -> Iterator[Finding]:
    """A target for Android whose library is not named, or not on this computer, cannot be shown to run in it."""
    android = [target for target in config.targets if target.platform is Platform.ANDROID]
    libraries = libraries_of(android, given)
    for target in android:
        if not any(target.name in names for names in libraries.values()):
            yield _refused(
                Gate.PROOF, f"the bundle cannot be shown to run in the library of {target.name}",
                "the target names no library", 'name it, as in library = "android:1.29.0"',
            )  # fmt: skip
    for library, names in libraries.items():
        try:
            find_archive(library)
        except UnavailableError as error:
            what = f"the bundle cannot be shown to run in the library of {', '.join(names)}"
            yield _refused(Gate.PROOF, what, error.reason, error.remedy)


def _accuracy(accuracy: AccuracyConfig, assembled: Assembled, manifest: Manifest) -> Iterator[Finding]:
    record = assembled.record
    results = {(result.model, result.variant): result for result in record.accuracy}
    for choice in assembled.choices:
        model, variant = choice.artifact.model, choice.artifact.variant
        name = f"{model} {variant.name}"
        checks = record.checks_of(model, variant.name)
        # Outputs that were judged neither here nor on a device nor in a library that ships
        proven = (row for proof in manifest.proofs for row in proof.rows)
        rows: Iterable[Row | ProofRow] = (*assembled.report.rows, *proven)
        elsewhere = [row.checks for row in rows if (row.model, row.variant) == (model, variant.name) and row.checks]
        unknown = [check for check in checks if check.unknown]
        if unknown and not any(all(check.passed for check in judged) for judged in elsewhere):
            yield _refused(
                Gate.ACCURACY, f"{name}: its outputs could not be judged",
                "; ".join(f"{check.output}: {check.reason}" for check in unknown), remedy_of(unknown[0]),
            )  # fmt: skip
        if bad := [check.output for check in checks if check.failed]:
            yield _refused(
                Gate.ACCURACY, f"{name}: outputs differ from the original's", f"output {', '.join(bad)}",
                "see the report; choose another level or precision",
            )  # fmt: skip
        if not variant.precision:
            continue
        result = results.get((model, variant.name))
        if not accuracy.has_budget:
            yield _refused(
                Gate.ACCURACY, f"{name} has another precision than the model, and no budget for its accuracy",
                "[accuracy] has no max_drop", "write max_drop, as in 0.01 for one percentage point",
            )  # fmt: skip
        elif result is None or result.refused(accuracy.max_drop):
            why = result.refused(accuracy.max_drop) if result else "its accuracy was not measured"
            yield _refused(
                Gate.ACCURACY, f"{name} may lose too much accuracy", why, "give labelled data, or ship float"
            )


def _proof(assembled: Assembled, manifest: Manifest) -> Iterator[Finding]:
    """Each Android target must have run in the library that it ships, on this computer, with outputs that are right."""
    proofs = manifest.proofs
    proven = {name for proof in proofs if not proof.failed for row in proof.rows for name in row.targets}
    for target in dict.fromkeys(choice.target for choice in assembled.choices):
        if target.platform is not Platform.ANDROID:
            continue
        if target.name in proven:
            for row in (row for proof in proofs for row in proof.undecided(target.name)):
                finding = next(finding for finding in row.findings if finding.kind not in CLAIMS)
                yield _refused(
                    Gate.PROOF, f"{target.name}: {row.model} {row.variant} ({row.run}) could not be judged",
                    finding.text, finding.remedy,
                )  # fmt: skip
            continue
        failed = [proof for proof in proofs if proof.library.file == library_name(target)]
        why = "; ".join(proof.not_run or ", ".join(proof.objections) for proof in failed)
        yield _refused(
            Gate.PROOF, f"the bundle was not shown to run in the library of {target.name}",
            why or "no proof was made in it", "; ".join(proof.remedy for proof in failed if proof.remedy) or SEE_PROOF,
        )  # fmt: skip


def over_budget(shipping: Iterable[Finding]) -> Iterator[Finding]:
    """What a budget says, and a budget that nothing could be compared with."""
    for finding in shipping:
        if finding.rule == BUDGET:
            yield _refused(Gate.BUDGET, finding.what, finding.why, finding.remedy)


def early_findings(config: Config, library: str | None) -> tuple[Finding, ...]:
    """Why nothing may be released, as far as gates need no measurement; `library` is that of the command line."""
    early = {
        Gate.SIGNATURE: _signature(config),
        Gate.LICENSE: _license(config),
        Gate.PROOF: _library(config, library),
    }
    return tuple(finding for gate in config.release.gates for finding in early.get(gate, ()))


def gate_findings(config: Config, folder: Path, assembled: Assembled) -> tuple[Finding, ...]:
    """Why nothing may be released of a job with a bundle in `folder`."""
    manifest = verify_bundle(folder / BUNDLE)
    late = {
        Gate.ACCURACY: _accuracy(config.accuracy, assembled, manifest),
        Gate.PROOF: _proof(assembled, manifest),
        Gate.BUDGET: over_budget(assembled.findings),
    }
    return tuple(finding for gate in config.release.gates for finding in late.get(gate, ()))


def check_config(config: Config, passphrase: str | None) -> None:
    """Raise ConfigError, or MissingError, for a key, a version or a name that cannot be used."""
    if config.release.key:
        read_private_key(Path(config.release.key), passphrase)
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


def make_release(config: Config, folder: Path, passphrase: str | None) -> tuple[Signed | None, list[AppPackage]]:
    """Sign the bundle of a job's folder and write the packages, after all of them were found possible.

    Raises CheckFailed, whatever the gates, for a bundle that failed in its library; else as the commands for packages.
    """
    bundle, key = folder / BUNDLE, config.release.key
    manifest = verify_bundle(bundle)
    refuse_unproven(bundle, manifest)
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(package(config, folder, manifest)) for package in PACKAGES]
        packages = [package for package in opened if package]
        signed = sign(bundle, manifest, Path(key), passphrase) if key else None
        for _, _, write in packages:
            write()
    return signed, packages
