"""Running a bundle and its contexts in the library that ships, and comparing with what they must compute there."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from device_runner import files as runner_files
from device_runner import host_device
from device_runner import library as ort_library
from device_runner import providers as runner_providers
from device_runner import result as run_result
from device_runner.android_host import device as android_host_device
from device_runner.android_host import inspection
from device_runner.device import Device
from device_runner.errors import RunnerError
from device_runner.spec import RunOptions
from pipeline.check import library_proof
from pipeline.check.compare import OutputCheck
from pipeline.core import abis as core_abis
from pipeline.core import groups as counting
from pipeline.core.errors import Severity
from pipeline.core.progress import Progress
from pipeline.features.prove import plan as prove_plan
from pipeline.features.prove.calls import claims_nothing, effect
from pipeline.features.prove.contexts import context_rows, contexts_to_run
from pipeline.features.prove.expected import ExpectedOutputs, expected_of, run_once
from pipeline.library import kernels
from pipeline.release import manifest as bundle_manifest

NOT_CHOSEN = (
    "it is not what was chosen to ship: write [[runs]] in the config without it where your app never runs it so"
)


@dataclass(frozen=True, slots=True)
class ProofRun:
    """How one run failed, its outputs checked against what they must be, and what it asked of NNAPI."""

    failure: run_result.Failure | None
    checks: tuple[OutputCheck, ...]
    calls: inspection.CallSummary | None


def prove_bundle(bundle: Path, order: prove_plan.ProofOrder, progress: Progress) -> library_proof.LibraryProof:
    """Load and run every artifact in every way that ships, at every API level that is asked for.

    Raises CheckFailed for a bundle that was changed, ConfigError for one with nothing for the library's system,
    MissingError where the library cannot be run on this computer. What the library does is in the rows.
    """
    manifest = bundle_manifest.verify_bundle(bundle)
    host_device.check_host()
    archive = ort_library.find_archive(order.library)  # which is not unpacked to see what system it is for
    system = (
        ort_library.archive_system(archive)
        if ort_library.is_archive(archive)
        else ort_library.read_facts(archive).system
    )
    ships, left_out = prove_plan.wanted_targets(manifest.content, order, system)
    places, notes = prove_plan.places_of(ships, order)
    libraries = {place.abi: ort_library.resolve(order.library, place.abi) for place in places}
    linux = ships[0].platform != prove_plan.ANDROID
    facts = {abi: library.linux() if linux else library.android() for abi, library in libraries.items()}
    contexts, not_simulated = contexts_to_run(manifest, order, [shipped.target for shipped in ships])
    expected: dict[str, ExpectedOutputs] = {}
    with runner_files.scratch_folder() as work:
        rows = []
        with progress.stage("prove", sum(len(place.trials) for place in places) + len(contexts)) as stage:
            for place in places:
                prover = _Prover(bundle, manifest, facts[place.abi], place.deciding, order, work, expected)
                for row in prover.rows(place.trials):
                    where = f"{row.abi} {row.cpu}".strip()
                    stage.at(f"{row.model} {row.variant} {row.run}, API level {row.api_level}, {where}")
                    stage.done()
                    rows.append(row)
            if contexts:
                android = ort_library.resolve(order.library, core_abis.X86_64).android()
                for row in context_rows(bundle, manifest, contexts, android, order, work):
                    stage.at(f"{row.model} {row.variant}, simulated")
                    stage.done()
                    rows.append(row)
    abi = next(place.abi for place in places if place.deciding)
    archive, library = libraries[abi].archive, facts[abi]
    notes += [*not_simulated, *by_kernel(rows)]
    for shipped in {shipped.target: shipped for shipped in ships}.values():
        if library.release and library.release.split(".")[:2] != shipped.ort_release.split(".")[:2]:
            notes.append(
                f"{shipped.target} ships ONNX Runtime {shipped.ort_release} by its config, this library is "
                f"{library.release}: set `ort_release` of the target to what ships"
            )
    notes += [
        f"{file} was compared with {expectation.origin}: the bundle keeps no reference of the original model"
        for file, expectation in expected.items()
        if expectation.origin and expectation.outputs is not None
    ]
    notes += _not_emulated(facts[core_abis.ARM64]) if order.cpus == ("all",) and core_abis.ARM64 in facts else ()
    return library_proof.LibraryProof(
        bundle=manifest.content_sha256,
        library=library_proof.ProvenLibrary(
            file=archive.name,
            release=library.release,
            commit=library.commit,
            sha256=library.sha256,
            abis=tuple(ort_library.archive_abis(archive)) if ort_library.is_archive(archive) else (library.abi,),
        ),
        rows=tuple(rows),
        left_out=tuple(left_out),
        notes=tuple(notes),
    )


def by_kernel(rows: Sequence[library_proof.ProofRow]) -> Iterator[str]:
    """In words which runs hold on one CPU and give wrong outputs on another: the library's kernels differ."""

    def differs(row: library_proof.ProofRow) -> bool:
        return any(finding.code is library_proof.FindingKind.OUTPUTS_DIFFER for finding in row.findings)

    rows_on_cpus = ((f"{row.model} {row.variant} ({row.run})", row) for row in rows if row.cpu)
    for (run, abi), rows_of_run in counting.grouped(((run, row.abi), row) for run, row in rows_on_cpus).items():
        right = {row.cpu for row in rows_of_run if not row.failed and not differs(row)}
        wrong = {row.cpu for row in rows_of_run if differs(row)}
        if right and wrong - right:
            yield (
                f"{run}: outputs are right on {', '.join(sorted(right))} and wrong on {', '.join(sorted(wrong))} of "
                f"{abi}: the library has other kernels for each"
            )


def _not_emulated(library: ort_library.LibraryFacts) -> Iterator[str]:
    """Processors of phones that no run of `--cpu all` stood for, and what the library's code has for them."""
    lacking = [
        name
        for name, cpu in host_device.CPUS.items()
        if cpu.common and name not in host_device.common_cpus(core_abis.ARM64)
    ]
    if lacking:
        yield f"{', '.join(lacking)} was not run: this QEMU has no such core, and a newer one does"
    code = kernels.read_arm_code(Path(library.path).read_bytes())
    asks = ", ".join(f"{query.source} {' '.join(query.bits)}".strip() for query in code.queries) or "nothing"
    for extension in code.extensions:
        if extension.extension == "sme2":
            yield (
                f"SME2 was not run, which no emulator has: {extension.functions} functions of this library are for it, "
                f"and it asks {asks} of the processor"
            )
    yield "chips whose cores differ in extensions were not run: a run has cores of one kind"


class _Prover:
    """The proof in one place: each file's reference is read once in all of them, each run is done once."""

    def __init__(
        self,
        bundle: Path,
        manifest: bundle_manifest.Manifest,
        library: ort_library.LibraryFacts,
        deciding: frozenset[str],
        order: prove_plan.ProofOrder,
        work: Path,
        expected: dict[str, ExpectedOutputs],
    ) -> None:
        self.bundle = bundle
        self.manifest = manifest
        self.library = library
        self.deciding = deciding
        self.order = order
        self.work = work
        self.stock = ort_library.name_of(order.library) is not None
        self.expected = expected
        self.ships = {(shipped.file, shipped.target): shipped for shipped in reversed(manifest.content.ships)}
        self.seen: dict[tuple[str, bytes, int], ProofRun] = {}

    def rows(self, trials: list[library_proof.ProofRow]) -> Iterator[library_proof.ProofRow]:
        """The rows of a place, in their order, with what came of them."""
        calls = self.work / "calls.jsonl"
        for (level, cpu), group in groupby(trials, key=lambda trial: (trial.api_level, trial.cpu)):
            phone = self.order.phone(level, cpu, calls)
            device = (
                android_host_device.AndroidHost("android-host", self.library, phone)
                if self.library.system == prove_plan.ANDROID
                else host_device.LinuxHost("linux-host", self.library, phone.cpu, phone.vulkan)
            )
            with device:
                for trial in group:
                    yield self._row(device, trial, calls)

    def _row(self, device: Device, trial: library_proof.ProofRow, calls: Path) -> library_proof.ProofRow:
        observed = self._observe(device, trial, trial.options, calls)
        findings = list(self._findings(device, trial, observed, calls))
        # What a GPU computes does not depend on the processor beside it: this computer's first look decides.
        first_look = self.deciding.isdisjoint(trial.targets) and not prove_plan.on_gpu(trial)
        for index, finding in enumerate(findings):
            if finding.severity is Severity.ERROR and (first_look or not trial.chosen):
                # A way to run that the bundle does not advise keeps nothing from shipping.
                parts = (finding.remedy,) if first_look else (finding.remedy, NOT_CHOSEN)
                findings[index] = msgspec.structs.replace(
                    finding, severity=Severity.WARNING, remedy="; ".join(filter(None, parts))
                )
        return msgspec.structs.replace(
            trial,
            failed=any(finding.severity is Severity.ERROR for finding in findings),
            checks=observed.checks,
            partitions=tuple(map(len, observed.calls.partitions)) if observed.calls else None,
            findings=tuple(findings),
        )

    def _findings(
        self, device: Device, trial: library_proof.ProofRow, observed: ProofRun, calls: Path
    ) -> Iterator[library_proof.ProofFinding]:
        failure, shipped = observed.failure, self.ships[trial.file, trial.targets[0]]
        expected = self._expected(shipped)
        options = trial.options
        if failure and failure.code is run_result.FailureKind.WRONG_DEVICE:
            # This computer has not what the way to run needs: the library was asked nothing.
            yield library_proof.ProofFinding(
                severity=Severity.WARNING,
                code=library_proof.FindingKind.NOT_COMPARED,
                what="it was not run on this computer",
                why="; ".join(part for part in (failure.what, failure.why) if part),
                remedy=failure.remedy,
            )
            return
        if expected.outputs is None and not failure:
            yield prove_plan.not_compared(expected.origin)
        yield from prove_plan.explain_run(
            failure,
            observed.checks,
            self.bundle / trial.file,
            prove_plan.loaded(shipped, options, self.bundle),
            (self.library, trial.cpu),
            stock=self.stock,
            origin=expected.origin,
        )
        if failure or not runner_providers.provider_named(options.provider).nnapi:
            return
        if nothing := claims_nothing(observed.calls, trial.api_level):
            yield nothing
            return
        phone = self.order.phone(trial.api_level)
        for flag in options.flags:
            rest = msgspec.structs.replace(options, flags=tuple(other for other in options.flags if other is not flag))
            without = self._observe(device, trial, rest, calls).calls
            if observed.calls and without:
                yield from effect(flag, phone, observed.calls, without)

    def _observe(self, device: Device, trial: library_proof.ProofRow, options: RunOptions, calls: Path) -> ProofRun:
        shipped, level = (
            self.ships[trial.file, trial.targets[0]],
            prove_plan.NO_LEVEL if prove_plan.on_gpu(trial) else trial.api_level,
        )
        key = (shipped.file, msgspec.json.encode(options, order="sorted"), level)
        if key not in self.seen:
            expected, file = self._expected(shipped), self.bundle / shipped.file
            calls.unlink(missing_ok=True)
            with_ops = prove_plan.loaded(shipped, options, self.bundle)
            seconds = self.order.timeout_seconds
            result, actual = run_once(device, file, with_ops, expected.inputs, seconds, self.work)
            if result.failure:
                self.seen[key] = ProofRun(result.failure, (), None)
            else:
                summary = inspection.summarize(inspection.read_calls(calls)) if calls.is_file() else None
                self.seen[key] = ProofRun(None, expected.compared(actual, file, result.cpu), summary)
        return self.seen[key]

    def _expected(self, shipped: bundle_manifest.Shipped) -> ExpectedOutputs:
        if shipped.file not in self.expected:
            self.expected[shipped.file] = expected_of(
                self.bundle, self.manifest, shipped, self.work, self.order.timeout_seconds
            )
        return self.expected[shipped.file]


def attested(libraries: Mapping[str, tuple[str, ...]], progress: Progress, bundle: Path) -> dict[str, Any]:
    """The evidence on a finished bundle: a proof for each library, with the targets that ship it.

    Where this computer cannot do one, it says why, and the job goes on without.
    """
    proofs = []
    for library, targets in libraries.items():
        try:
            proofs.append(prove_bundle(bundle, prove_plan.ProofOrder(library=library, targets=targets), progress))
        except RunnerError as error:
            file = library_proof.ProvenLibrary(file=Path(library).name)
            proofs.append(
                library_proof.LibraryProof(
                    bundle="", library=file, not_run=error.reason, remedy=error.remedy, targets=targets
                )
            )
    return {library_proof.PROOFS: msgspec.to_builtins(proofs)} if proofs else {}
