"""The whole release of a config: what must hold, the signature, packages for apps; behind a gate that fails is nothing.

What needs no measurement is checked before anything is measured.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pipeline.config import AndroidRelease, Config, Gate, Platform, Target, Telemetry
from pipeline.core.abis import abis_of_target
from pipeline.core.errors import ConfigError, Finding, Severity
from pipeline.job.assemble import Assembled
from pipeline.release.android.library import AndroidOrder, android_library
from pipeline.release.app_models import only_target
from pipeline.release.apple.package import PLATFORMS as SWIFT_PLATFORMS
from pipeline.release.apple.package import swift_package, versions_for, write_package
from pipeline.release.apple.runtime import own_runtime
from pipeline.release.attestation import Signed, sign
from pipeline.release.bundle import BUNDLE
from pipeline.release.contents import library_name
from pipeline.release.envelope import read_private_key
from pipeline.release.manifest import Manifest, refuse_unproven, verify_bundle
from pipeline.release.shipped import release_for
from pipeline.release.update import library_licenses

MAVEN, SWIFT = "maven", "swift"
"""The folders of packages in a job's output folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseOrder:
    """What is to be released: the key file and its passphrase, and the version of packages, where there are any."""

    config: Config
    folder: Path
    key: Path | None = None
    passphrase: str | None = None
    version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """What a release left: who signed, how apps name each kind of package, and what to know of them."""

    signed: Signed | None
    packages: Mapping[str, str]
    warnings: tuple[str, ...] = ()


def check_order(order: ReleaseOrder) -> None:
    """Raise ConfigError, or MissingError, for a key, a version or a name that cannot be used."""
    if order.key:
        read_private_key(order.key, order.passphrase)
    if android := order.config.release.android:
        if not order.version:
            raise ConfigError(
                "the packages have no version",
                where="[release] version",
                why="what is published under a version never changes",
                remedy="write version in [release], or give --version",
            )
        target = _target(order.config, ("android",), "Android", android.target, "[release.android]")
        _android(android, order.version).check([release_for(target)], abis_of_target(target.platform, target.abis))
    if apple := order.config.release.apple:
        target = _target(order.config, SWIFT_PLATFORMS, "iOS or macOS", apple.target, "[release.apple]")
        with own_runtime(Path(apple.runtime) if apple.runtime else None, apple.runtime_url) as own:
            versions_for(release_for(target), target.platform, apple.onnxruntime, own)


def _target(config: Config, platforms: tuple[str, ...], title: str, wanted: str | None, where: str) -> Target:
    names = {one.name: one for one in config.targets if one.platform in platforms}
    return names[only_target(names, platforms, title, wanted, "config", where)]


def _android(table: AndroidRelease, version: str) -> AndroidOrder:
    return AndroidOrder(
        group=table.group,
        version=version,
        artifact=table.artifact,
        package=table.package,
        target=table.target,
        telemetry=table.telemetry is not Telemetry.OFF,
        runtime=table.runtime,
        pack=Path(table.ai_pack) if table.ai_pack else None,
    )


def early_findings(order: ReleaseOrder) -> tuple[Finding, ...]:
    """Why nothing may be released, as far as the config says it: the gates that need no measurement."""
    return tuple(finding for gate in order.config.release.gates if gate in EARLY for finding in EARLY[gate](order))


def gate_findings(order: ReleaseOrder, assembled: Assembled, shipping: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Why nothing may be released of a job with a bundle; `shipping` is what its gate found."""
    manifest = verify_bundle(order.folder / BUNDLE)
    measured = _Measured(order.config, assembled, shipping, manifest)
    return tuple(finding for gate in order.config.release.gates if gate in LATE for finding in LATE[gate](measured))


def make_release(order: ReleaseOrder) -> Released:
    """Sign the bundle and write the packages, after all of them were found possible.

    Raises CheckFailed, whatever the gates, for a bundle that failed in its library; else as the commands for packages.
    """
    bundle = order.folder / BUNDLE
    manifest = verify_bundle(bundle)
    refuse_unproven(bundle, manifest)
    packages: dict[str, str] = {}
    writes: list[Callable[[], object]] = []
    told: tuple[str, ...] = ()
    with contextlib.ExitStack() as stack:
        if android := order.config.release.android:
            library = android_library(bundle, manifest, _android(android, order.version or ""))
            repository = Path(android.repository or order.folder / MAVEN)
            writes.append(partial(library.write, repository))
            packages["android"] = f"{library.named.notation} in {repository}"
            if library.beside:
                packages["runtime"] = f"{library.beside.notation} in {repository}"
            if library.pack_folder:
                packages["ai pack"] = str(library.pack_folder)
            told += library.runtime.warnings if library.runtime else ()
        if apple := order.config.release.apple:
            runtime = own_runtime(Path(apple.runtime) if apple.runtime else None, apple.runtime_url)
            swift = swift_package(
                bundle, manifest, name=apple.name, target=apple.target, version=apple.onnxruntime,
                runtime=stack.enter_context(runtime),
            )  # fmt: skip
            place = Path(apple.folder or order.folder / SWIFT)
            writes.append(partial(write_package, swift, place))
            packages["apple"] = f"{swift.name} in {place}"
            told += swift.warnings
        signed = sign(bundle, manifest, order.key, order.passphrase) if order.key else None
        for write in writes:
            write()
    return Released(signed=signed, packages=packages, warnings=told)


@dataclass(frozen=True, slots=True)
class _Measured:
    """What the gates after a job look at."""

    config: Config
    assembled: Assembled
    shipping: tuple[Finding, ...]
    manifest: Manifest


def _refused(gate: Gate, what: str, why: str, remedy: str) -> Finding:
    return Finding(severity=Severity.ERROR, what=what, where=f"gate {gate}", why=why, remedy=remedy)


def _signature(order: ReleaseOrder) -> Iterator[Finding]:
    if not order.key:
        yield _refused(
            Gate.SIGNATURE, "there is no key to sign the bundle with",
            "it is given by --key, ORT_MOBILE_KEY or `key` in [release]",
            "give the private key, or leave signature out of [release] gates",
        )  # fmt: skip


def _license(order: ReleaseOrder) -> Iterator[Finding]:
    for model in order.config.models:
        if not model.license:
            yield _refused(
                Gate.LICENSE, f"the licence of {model.name or Path(model.path).stem} is not known",
                "its [[models]] has no `license`", 'write it, as in license = "Apache-2.0"',
            )  # fmt: skip
    known = library_licenses(order.config.targets)
    for target in order.config.targets:
        if target.name not in known:
            yield _refused(
                Gate.LICENSE, f"the licence of the library of {target.name} is not known",
                f"{library_name(target)} is no package of ONNX Runtime's, and the target has no `library_license`",
                'write it, as in library_license = "MIT"',
            )  # fmt: skip


def _accuracy(measured: _Measured) -> Iterator[Finding]:
    record = measured.assembled.record
    results = {(one.model, one.variant): one for one in record.accuracy}
    budget = measured.config.accuracy.max_drop
    for choice in measured.assembled.choices:
        model, variant = choice.artifact.model, choice.artifact.variant
        name = f"{model} {variant.name}"
        checks = record.checks.get(model, {}).get(variant.name, ())
        if bad := [check.output for check in checks if check.failed]:
            yield _refused(
                Gate.ACCURACY, f"{name}: outputs differ from the original's", f"output {', '.join(bad)}",
                "see the report; choose another level or precision",
            )  # fmt: skip
        if not variant.precision:
            continue
        found = results.get((model, variant.name))
        if budget is None:
            yield _refused(
                Gate.ACCURACY, f"{name} has another precision than the model, and no budget for its accuracy",
                "[accuracy] has no max_drop", "write max_drop, as in 0.01 for one percentage point",
            )  # fmt: skip
        elif found is None or found.refused(budget):
            why = found.refused(budget) if found else "its accuracy was not measured"
            yield _refused(
                Gate.ACCURACY, f"{name} may lose too much accuracy", why, "give labelled data, or ship float"
            )


def _proof(measured: _Measured) -> Iterator[Finding]:
    """Each Android target must have run in the library that it ships, on this computer."""
    proofs = measured.manifest.proofs
    proven = {name for proof in proofs if not proof.failed for row in proof.rows for name in row.targets}
    for target in dict.fromkeys(choice.target for choice in measured.assembled.choices):
        if target.platform is not Platform.ANDROID or target.name in proven:
            continue
        own = [proof for proof in proofs if proof.library.file == library_name(target)]
        why = "; ".join(proof.not_run or ", ".join(proof.objections) for proof in own)
        yield _refused(
            Gate.PROOF, f"the bundle was not shown to run in the library of {target.name}",
            why or "the target names no library", 'name it, as in library = "android:1.29.0", and run on x86-64 Linux',
        )  # fmt: skip


def _budget(measured: _Measured) -> Iterator[Finding]:
    """What a budget says, and a budget that nothing could be compared with."""
    for finding in measured.shipping:
        if "max_library_bytes" in finding.where:
            yield _refused(Gate.BUDGET, finding.what, finding.why, finding.remedy)


EARLY: Mapping[Gate, Callable[[ReleaseOrder], Iterator[Finding]]] = {
    Gate.SIGNATURE: _signature,
    Gate.LICENSE: _license,
}
LATE: Mapping[Gate, Callable[[_Measured], Iterator[Finding]]] = {
    Gate.ACCURACY: _accuracy,
    Gate.PROOF: _proof,
    Gate.BUDGET: _budget,
}
