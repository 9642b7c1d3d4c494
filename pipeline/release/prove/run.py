"""Runs what a bundle ships in the Android library that ships, in processes of this computer, as the proof asks."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import msgspec

from device_runner.android_host.calls import CallSummary, read_calls, summarize
from device_runner.android_host.device import DEFAULT_API_LEVEL, AndroidHost, DriverProfile, Phone
from device_runner.android_host.processor import check_host
from device_runner.library_facts import LibraryFacts, archive_abis, is_archive
from device_runner.library_source import release_of, resolve
from device_runner.providers import NNAPI, NNAPI_API_LEVEL
from device_runner.result import RunResult
from device_runner.spec import RunOptions, RunSpec
from pipeline.campaign.options import options_name
from pipeline.check.compare import OutputCheck, read_tensor
from pipeline.check.library_proof import LibraryProof, ProofFinding, ProofRow, ProvenLibrary
from pipeline.core.errors import CheckFailed, ConfigError, Severity
from pipeline.core.progress import Progress
from pipeline.release.manifest import Content, Manifest, Shipped, verify_bundle
from pipeline.release.prove.expected import SEED, ExpectedOutputs, claims_nothing, effect, expected_of
from pipeline.release.prove.explain import explain_checks, explain_failure, not_compared

NEWEST_LEVEL = DEFAULT_API_LEVEL
"""The newest API level at which NNAPI behaves otherwise than below: from it on its runtime tells its own level."""
ANDROID = "android"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofOrder:
    """What to run a bundle with.

    `library` is an AAR, a libonnxruntime.so or a release; `targets` are names, () for all of Android's; `api_levels` ()
    are each target's lowest and the newest. `driver` is what NNAPI is on the phone that is played.
    """

    library: str
    targets: tuple[str, ...] = ()
    api_levels: tuple[int, ...] = ()
    driver: DriverProfile | None = None
    timeout_seconds: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofTrial:
    """An artifact, a way to run it, and an API level; `targets` are those that it ships to so."""

    shipped: Shipped
    options: RunOptions
    api_level: int
    targets: tuple[str, ...]
    chosen: bool

    @property
    def run(self) -> str:
        """The way to run it, as tables name it."""
        return options_name(self.options)


def wanted_targets(content: Content, order: ProofOrder) -> tuple[list[Shipped], list[str]]:
    """What of a bundle the library is for, and the names of the targets that are another platform's.

    Raises ConfigError when that is nothing, or a target that is asked for is not in the bundle; CheckFailed for an
    artifact that is none of the bundle's files.
    """
    files = {file.path for file in content.files}
    if strangers := [shipped.file for shipped in content.ships if shipped.file not in files]:
        why = "it ships what is none of its files, and so was never verified"
        raise CheckFailed(
            "the manifest contradicts itself", where=strangers[0], why=why, remedy="make the bundle again"
        )
    known = dict.fromkeys(shipped.target for shipped in content.ships)
    if unknown := [name for name in order.targets if name not in known]:
        raise ConfigError(f"the bundle has no target {unknown[0]!r}", remedy=f"it ships to {', '.join(known)}")
    asked = [shipped for shipped in content.ships if not order.targets or shipped.target in order.targets]
    wanted = [shipped for shipped in asked if shipped.platform == ANDROID]
    if not wanted:
        named = ", ".join(f"{shipped.target} ({shipped.platform})" for shipped in asked)
        raise ConfigError(
            "there is nothing for Android to prove",
            why=f"of the bundle's targets these were asked for: {named or 'none'}",
            remedy="prove it on a device of that platform (`ort-mobile run --device ...`)",
        )
    return wanted, list(dict.fromkeys(shipped.target for shipped in asked if shipped.platform != ANDROID))


def trials_of(wanted: list[Shipped], order: ProofOrder) -> list[ProofTrial]:
    """Every run, the lowest API level first; what several targets have in common is run once."""
    found: dict[bytes, ProofTrial] = {}
    for shipped in wanted:
        for trial in _trials(shipped, order):
            key = msgspec.json.encode((shipped.file, trial.options, trial.api_level), order="sorted")
            known = found.get(key, trial)
            targets = tuple(dict.fromkeys((*known.targets, shipped.target)))
            found[key] = replace(known, targets=targets, chosen=known.chosen or trial.chosen)
    return sorted(found.values(), key=lambda trial: trial.api_level)


def _trials(shipped: Shipped, order: ProofOrder) -> Iterator[ProofTrial]:
    for level in order.api_levels or levels_of(shipped):
        for number, options in enumerate(shipped.runs or (_chosen(shipped),)):
            yield ProofTrial(
                shipped=shipped, options=options, api_level=level, targets=(shipped.target,), chosen=number == 0
            )


def levels_of(shipped: Shipped) -> tuple[int, ...]:
    """The lowest API level of a target (NNAPI's first where the config names none), and the newest."""
    lowest = shipped.min_api_level or NNAPI_API_LEVEL
    return tuple(dict.fromkeys((lowest, max(lowest, NEWEST_LEVEL))))


def _chosen(shipped: Shipped) -> RunOptions:
    """The options of a manifest of version 1, which had no list of runs."""
    given = {"provider": shipped.provider, "provider_options": shipped.provider_options, "flags": shipped.flags,
             "session_config": shipped.session_config}  # fmt: skip
    try:
        return msgspec.convert(given, RunOptions)
    except msgspec.ValidationError as error:
        raise ConfigError("the manifest has run options that are none", where=shipped.file, why=str(error)) from error


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
        checks = expected.compared(actual, self.bundle / shipped.file)
        return ProofRun(result=result, checks=checks, calls=summarize(read_calls(calls)) if calls.is_file() else None)

    def _expected(self, shipped: Shipped) -> ExpectedOutputs:
        if shipped.file not in self.expected:
            with tempfile.TemporaryDirectory(dir=self.work) as folder:
                self.expected[shipped.file] = expected_of(
                    self.bundle, self.manifest, shipped, Path(folder), self.order.timeout_seconds
                )
        return self.expected[shipped.file]
