"""Runs what a bundle ships in the Android library that ships, in processes of this computer."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import msgspec

from device_runner.android_host.build import check_host, check_imports
from device_runner.android_host.calls import CallSummary, read_calls, summarize
from device_runner.android_host.device import AndroidHost, Phone
from device_runner.library_facts import LibraryFacts, archive_abis, is_archive
from device_runner.library_source import release_of, resolve
from device_runner.providers import NNAPI
from device_runner.result import RunResult
from device_runner.spec import RunOptions, RunSpec
from pipeline.check.compare import compare_outputs, read_tensor
from pipeline.check.library_proof import LibraryProof, ProofFinding, ProofRow, ProvenLibrary
from pipeline.check.output import OutputCheck
from pipeline.core.errors import Severity
from pipeline.core.progress import Progress
from pipeline.release.manifest import Manifest, Shipped
from pipeline.release.prove.expected import SEED, ExpectedOutputs, claims_nothing, effect, expected_of
from pipeline.release.prove.explain import explain_checks, explain_failure, not_compared
from pipeline.release.prove.order import ProofOrder, ProofTrial, trials_of, wanted_targets
from pipeline.release.verify import verify_bundle


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofRun:
    """One run: its result, its outputs checked against what they must be, and what it asked of NNAPI."""

    result: RunResult
    checks: tuple[OutputCheck, ...] = ()
    calls: CallSummary | None = None


def prove_bundle(bundle: Path, order: ProofOrder, progress: Progress) -> LibraryProof:
    """Load and run every artifact in every way that ships, at every API level that is asked for.

    Raises CheckFailed for a bundle that was changed, ConfigError for one with nothing for Android, MissingError where
    the library cannot be run on this computer. What the library does is in the rows.
    """
    manifest = verify_bundle(bundle)
    wanted, left_out = wanted_targets(manifest.content, order)
    check_host()
    found = resolve(order.library)
    library = found.android()
    check_imports(library.imports, library.needed, where=library.path)
    trials = trials_of(wanted, order)
    with tempfile.TemporaryDirectory(prefix="ort-mobile-prove-") as work:
        prover = _Prover(bundle, manifest, library, order, Path(work))
        with progress.stage("prove", len(trials)) as stage:
            rows = []
            for row in prover.rows(trials):
                stage.at(f"{row.model} {row.variant} {row.run}, API level {row.api_level}")
                stage.done()
                rows.append(row)
    return LibraryProof(
        bundle=manifest.content_sha256,
        library=_proven(found.archive, library),
        rows=tuple(rows),
        left_out=tuple(left_out),
        notes=(*_release_notes(wanted, library), *prover.origins()),
    )


def _proven(archive: Path, library: LibraryFacts) -> ProvenLibrary:
    return ProvenLibrary(
        file=archive.name,
        release=library.release,
        commit=library.commit,
        sha256=library.sha256,
        abis=tuple(archive_abis(archive)) if is_archive(archive) else (library.abi,),
    )


def _release_notes(wanted: list[Shipped], library: LibraryFacts) -> Iterator[str]:
    """Targets whose release is not the library's."""
    for shipped in {shipped.target: shipped for shipped in wanted}.values():
        if library.release and library.release.split(".")[:2] != shipped.ort_release.split(".")[:2]:
            yield (
                f"{shipped.target} ships ONNX Runtime {shipped.ort_release} by its config, this library is "
                f"{library.release}: set `ort_release` of the target to what ships"
            )


class _Prover:
    """One proof: each file's reference is read once, each run is done once."""

    def __init__(self, bundle: Path, manifest: Manifest, library: LibraryFacts, order: ProofOrder, work: Path) -> None:
        self.bundle = bundle
        self.manifest = manifest
        self.library = library
        self.order = order
        self.work = work
        self.stock = release_of(order.library) is not None
        self.expected: dict[str, ExpectedOutputs] = {}
        self.seen: dict[tuple[str, bytes, int], ProofRun] = {}

    def rows(self, trials: list[ProofTrial]) -> Iterator[ProofRow]:
        """A row for each trial, in their order; trials are sorted by API level."""
        for level, group in groupby(trials, key=lambda trial: trial.api_level):
            calls = self.work / "calls.jsonl"
            phone = Phone(api_level=level, driver=self.order.driver, calls=calls)
            with AndroidHost("android-host", self.library, phone) as device:
                for trial in group:
                    yield self._row(device, trial, calls)

    def origins(self) -> Iterator[str]:
        """What outputs were compared with, where that was not the original model."""
        for file, expected in self.expected.items():
            if expected.origin and expected.outputs is not None:
                yield f"{file} was compared with {expected.origin}: the bundle keeps no reference of the original model"

    def _row(self, device: AndroidHost, trial: ProofTrial, calls: Path) -> ProofRow:
        observed = self._observe(device, trial, trial.options, calls)
        findings = tuple(self._findings(device, trial, observed, calls))
        summary = observed.calls
        return ProofRow(
            targets=trial.targets,
            model=trial.shipped.model,
            variant=trial.shipped.variant.name,
            file=trial.shipped.file,
            run=trial.run,
            options=trial.options,
            api_level=trial.api_level,
            chosen=trial.chosen,
            failed=any(finding.severity is Severity.ERROR for finding in findings),
            checks=observed.checks,
            partitions=tuple(map(len, summary.partitions)) if summary else None,
            findings=findings,
        )

    def _findings(
        self, device: AndroidHost, trial: ProofTrial, observed: ProofRun, calls: Path
    ) -> Iterator[ProofFinding]:
        options, failure = trial.options, observed.result.failure
        if failure:
            yield explain_failure(failure, self.bundle / trial.shipped.file, options.provider, stock=self.stock)
            return
        expected = self._expected(trial.shipped)
        if expected.outputs is None:
            yield not_compared(expected.origin)
        yield from explain_checks(observed.checks, options.provider, expected.origin)
        if options.provider != NNAPI:
            return
        if nothing := claims_nothing(observed.calls, trial.api_level):
            yield nothing
            return
        phone = Phone(api_level=trial.api_level, driver=self.order.driver)
        for flag in options.flags:
            rest = msgspec.structs.replace(options, flags=tuple(other for other in options.flags if other is not flag))
            without = self._observe(device, trial, rest, calls)
            if observed.calls and without.calls:
                yield from effect(flag, phone, observed.calls, without.calls)

    def _observe(self, device: AndroidHost, trial: ProofTrial, options: RunOptions, calls: Path) -> ProofRun:
        key = (trial.shipped.file, msgspec.json.encode(options, order="sorted"), trial.api_level)
        if key not in self.seen:
            self.seen[key] = self._run(device, trial.shipped, options, calls)
        return self.seen[key]

    def _run(self, device: AndroidHost, shipped: Shipped, options: RunOptions, calls: Path) -> ProofRun:
        expected = self._expected(shipped)
        calls.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(dir=self.work) as folder:
            result = device.run(
                RunSpec(
                    id="prove",
                    model=str(self.bundle / shipped.file),
                    options=options,
                    inputs=expected.inputs,
                    seed=SEED,
                    warmup=0,
                    min_runs=1,
                    min_seconds=0.0,
                    timeout_seconds=self.order.timeout_seconds,
                    outputs_folder=folder,
                )
            )
            if result.failure:
                return ProofRun(result=result)
            actual = {tensor.name: read_tensor(tensor) for tensor in result.outputs}
        checks = tuple(compare_outputs(expected.outputs or {}, actual, expected.tolerance))
        return ProofRun(result=result, checks=checks, calls=summarize(read_calls(calls)) if calls.is_file() else None)

    def _expected(self, shipped: Shipped) -> ExpectedOutputs:
        if shipped.file not in self.expected:
            with tempfile.TemporaryDirectory(dir=self.work) as folder:
                self.expected[shipped.file] = expected_of(
                    self.bundle, self.manifest, shipped, Path(folder), self.order.timeout_seconds
                )
        return self.expected[shipped.file]
