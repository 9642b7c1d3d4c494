"""Running a bundle and its contexts in the library that ships, and comparing with what they must compute there.

A context for a phone's NPU is opened here as there: by the Android library, through the plugin, from both files. The
functional simulator in Qualcomm's compiler takes the place of the NPU, so that no time of it means anything.
"""

import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from device_runner import files
from device_runner.android_host.device import AndroidHost, Phone, default_profile
from device_runner.android_host.inspection import CallSummary, read_calls, summarize
from device_runner.device import Device, DriverType, open_device
from device_runner.errors import RunnerError, pip_install
from device_runner.host_device import CPUS, check_host, common_cpus
from device_runner.library import LibraryFacts, archive_abis, is_archive, name_of, resolve
from device_runner.plugins import installed_plugin
from device_runner.providers import CHIPS, NNAPI_API_LEVEL, NNAPI_DEVICES_API_LEVEL, NNAPI_RELAXED_API_LEVEL
from device_runner.result import Failure, FailureKind, RunResult
from device_runner.spec import NnapiFlag, OptimizationLevel, RunOptions, RunSpec, TensorFile
from pipeline.check.compare import (
    Array,
    OutputCheck,
    OutputPrecision,
    Tolerance,
    compare_outputs,
    read_tensor,
    usual_tolerance,
)
from pipeline.check.library_proof import PROOFS, FindingKind, LibraryProof, ProofFinding, ProofRow, ProvenLibrary
from pipeline.check.reference import QUANTIZED, excused
from pipeline.compat.contexts import installed_qairt
from pipeline.convert.contexts import SIMULATED_SECONDS, simulated_tolerance
from pipeline.core.abis import ARM64, X86_64
from pipeline.core.errors import ConfigError, MissingError, ModelError, Severity
from pipeline.core.progress import Progress
from pipeline.core.providers import QNN
from pipeline.core.variant import in_precision
from pipeline.features.prove.plan import (
    ANDROID,
    NO_LEVEL,
    ProofOrder,
    ProofPlace,
    ProofTrial,
    explain_run,
    library_abis,
    library_system,
    loaded,
    not_compared,
    not_run,
    opened,
    places_of,
    tensor_files,
    trials_of,
    wanted_targets,
)
from pipeline.library.kernels import read_arm_code
from pipeline.model.ort_format import read_artifact
from pipeline.release.manifest import Manifest, Shipped, ShippedContext, verify_bundle
from pipeline.release.shipped import CHIP_API_LEVEL


def contexts_to_run(
    manifest: Manifest, order: ProofOrder, targets: Sequence[str]
) -> tuple[list[ShippedContext], list[str]]:
    """The contexts of some targets that can be run here, and in words why others are not.

    Raises ConfigError for a chip that is asked for and has no context, MissingError where the simulator for one that
    is asked for is not here.
    """
    contexts = [context for context in manifest.content.contexts if context.target in targets]
    chips = list(dict.fromkeys(context.chip for context in contexts))
    if unknown := [chip for chip in order.chips if chip not in chips]:
        raise ConfigError(
            f"the bundle has no context for {unknown[0]}",
            where="--chip",
            why=f"it has contexts for {', '.join(chips)}" if chips else "it has no contexts",
            remedy="write the chip to `contexts` in [variants] of the config, and make the bundle again",
        )
    chosen = [context for context in contexts if not order.chips or context.chip in order.chips]
    distinct = list({context.file: context for context in chosen}.values())
    can_run = [context for context in distinct if not context.not_run]
    left_out = [f"{context.file}: {context.not_run}" for context in distinct if context.not_run]
    problem = _problem(can_run, order.library)
    if problem and order.chips:
        raise problem
    return ([], [f"contexts were not run: {problem.text}", *left_out]) if problem else (can_run, left_out)


def _problem(contexts: Sequence[ShippedContext], library: str) -> MissingError | None:
    """Why no context can be run here, None where all can or there is none."""
    if not contexts:
        return None
    plugin = installed_plugin(QNN)
    if isinstance(plugin, Failure):
        return MissingError(plugin.message, why=plugin.cause, remedy=plugin.remedy)
    if X86_64 not in library_abis(library):
        return MissingError(
            "the simulator runs in a library for x86_64 only", where=library, why="this one has none for it",
            remedy="give the AAR with all ABIs, as ONNX Runtime publishes it",
        )  # fmt: skip
    installed = installed_qairt()
    for context in contexts:
        if installed != context.qairt:
            return MissingError(
                f"the contexts are for QAIRT {context.qairt}, and the simulator here is of {installed or 'another'}",
                where=context.file,
                why="another QAIRT than the app's may read and compute them otherwise",
                remedy=pip_install(f"onnxruntime-qnn=={context.plugin}"),
            )
    return None


def context_rows(
    bundle: Path,
    manifest: Manifest,
    contexts: Sequence[ShippedContext],
    library: LibraryFacts,
    order: ProofOrder,
    work: Path,
) -> Iterator[ProofRow]:
    """A row for each context: opened and run by an Android library, its outputs compared with the original's."""
    with AndroidHost("android-host", library, order.phone(CHIP_API_LEVEL)) as device:
        for context in contexts:
            yield _row(bundle, manifest, context, library, order, device, work)


def _row(
    bundle: Path,
    manifest: Manifest,
    context: ShippedContext,
    library: LibraryFacts,
    order: ProofOrder,
    device: Device,
    work: Path,
) -> ProofRow:
    name = in_precision(context.model, context.variant.precision)
    reference = next((row for row in manifest.references if row.model == name), None)
    options = RunOptions(provider=QNN, provider_options={"soc_model": str(CHIPS[context.chip].soc_model)})
    file = bundle / context.file
    with tempfile.TemporaryDirectory(dir=work) as folder:
        result = device.run(
            RunSpec(
                id="prove",
                model=str(file),
                options=options,
                inputs=tensor_files(bundle, reference.inputs) if reference else (),
                warmup=0,
                min_runs=1,
                min_seconds=0.0,
                timeout_seconds=max(order.timeout_seconds, SIMULATED_SECONDS),
                outputs_folder=folder,
            )
        )
        actual = {tensor.name: read_tensor(tensor) for tensor in result.outputs}
    checks: tuple[OutputCheck, ...] = ()
    findings: tuple[ProofFinding, ...] = ()
    if reference and reference.outputs and not result.failure:
        expected = {tensor.name: read_tensor(tensor) for tensor in tensor_files(bundle, reference.outputs)}
        checks = tuple(compare_outputs(expected, actual, simulated_tolerance(reference.tolerance)))
    elif not result.failure:
        findings = (not_compared("the model cannot be run on a CPU here in its place"),)
    place = ProofPlace(abi=X86_64, cpu="", ships=(), deciding=frozenset({context.target}))
    findings += tuple(
        explain_run(
            result.failure, checks, file, options, (library, place), stock=name_of(order.library) is not None, origin=""
        )
    )
    return ProofRow(
        targets=tuple(dict.fromkeys(row.target for row in manifest.content.contexts if row.file == context.file)),
        model=context.model,
        variant=context.variant.name,
        file=context.file,
        run=QNN,
        options=options,
        api_level=CHIP_API_LEVEL,
        abi=X86_64,
        chip=context.chip,
        qairt=installed_qairt(),
        chosen=True,
        failed=any(finding.severity is Severity.ERROR for finding in findings),
        checks=checks,
        findings=findings,
    )


SEED = 0
"""Of the inputs that the probe makes where a bundle keeps none: the same on every device."""
HALVES = frozenset({10, 16})
"""float16 and bfloat16 by their numbers in ONNX's TensorProto."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedOutputs:
    """Inputs (none: those of `SEED`) and the outputs that must come of them, None where they cannot be known.

    `origin` says what they were computed with where that is not the original model, or why there are none.
    """

    inputs: tuple[TensorFile, ...] = ()
    outputs: Mapping[str, Array] | None
    tolerance: Tolerance
    origin: str = ""

    def compared(self, actual: Mapping[str, Array], file: Path, cpu: str) -> tuple[OutputCheck, ...]:
        """The checks of what an artifact gave on this computer, or on a CPU ("" for its own) that an emulator played.

        None where nothing is expected. What this computer's own onnxruntime expects may be saturated itself.
        """
        checks = compare_outputs(self.outputs or {}, actual, self.tolerance)
        return excused(checks, file, "" if self.origin else cpu)


def expected_of(
    bundle: Path, manifest: Manifest, shipped: Shipped, work: Path, timeout_seconds: float
) -> ExpectedOutputs:
    """What a bundle's artifact must give. `work` is a folder for raw tensors of this computer's own run."""
    name = in_precision(shipped.model, shipped.variant.precision)
    kept = next((row for row in manifest.references if row.model == name), None)
    inputs = tensor_files(bundle, kept.inputs) if kept else ()
    if kept and kept.outputs:
        outputs = {tensor.name: read_tensor(tensor) for tensor in tensor_files(bundle, kept.outputs)}
        return ExpectedOutputs(inputs=inputs, outputs=outputs, tolerance=kept.tolerance)
    tolerance = kept.tolerance if kept else usual_tolerance(_precision(bundle / shipped.file))
    if not inputs:
        tolerance = msgspec.structs.replace(tolerance, random_inputs=True)
    result = _run_here(bundle, shipped, inputs, work, timeout_seconds)
    if isinstance(result, str) or result.failure:
        why = result if isinstance(result, str) else f"onnxruntime of this computer: {_said(result)}"
        return ExpectedOutputs(inputs=inputs, outputs=None, tolerance=tolerance, origin=why)
    outputs = {tensor.name: read_tensor(tensor) for tensor in result.outputs}
    origin = f"the artifact itself on onnxruntime {result.ort_version} of this computer"
    return ExpectedOutputs(inputs=inputs, outputs=outputs, tolerance=tolerance, origin=origin)


def _run_here(
    bundle: Path, shipped: Shipped, inputs: tuple[TensorFile, ...], work: Path, timeout_seconds: float
) -> RunResult | str:
    """One run with the installed onnxruntime, unoptimized; why it cannot be, in words."""
    spec = RunSpec(
        id="expected",
        model=str(bundle / shipped.file),
        options=RunOptions(
            optimization_level=OptimizationLevel.NONE,
            session_config=shipped.runs[0].session_config,
            custom_ops=loaded(shipped, shipped.runs[0], bundle).custom_ops,
        ),
        inputs=inputs,
        seed=SEED,
        warmup=0,
        min_runs=1,
        min_seconds=0.0,
        timeout_seconds=timeout_seconds,
        outputs_folder=str(work),
    )
    try:
        with open_device("local") as device:
            return device.run(spec)
    except RunnerError as error:
        return str(error)


def _said(result: RunResult) -> str:
    return result.failure.message.partition("\n")[0][:300] if result.failure else ""


def _precision(file: Path) -> OutputPrecision:
    """What an artifact computes in, judged by its operators and initializers."""
    try:
        graphs = list(read_artifact(file).graph.walk())
    except ModelError:
        return OutputPrecision.FLOAT32
    if any(re.search(QUANTIZED, node.op_type) for graph in graphs for node in graph.nodes):
        return OutputPrecision.QUANTIZED
    half = any(tensor.data_type in HALVES for graph in graphs for tensor in graph.initializers.values())
    return OutputPrecision.FLOAT16 if half else OutputPrecision.FLOAT32


NEEDS: dict[NnapiFlag, tuple[int, str]] = {
    NnapiFlag.USE_FP16: (NNAPI_RELAXED_API_LEVEL, "NNAPI can be allowed half precision from API level 28 on"),
    NnapiFlag.USE_NCHW: (NNAPI_DEVICES_API_LEVEL, "NNAPI takes NCHW from API level 29 on"),
    NnapiFlag.CPU_DISABLED: (NNAPI_DEVICES_API_LEVEL, "NNAPI names its devices from API level 29 on"),
    NnapiFlag.CPU_ONLY: (NNAPI_DEVICES_API_LEVEL, "NNAPI names its devices from API level 29 on"),
}
"""The API level from which a flag can do anything, and why (recorded from 1.28.0 and 1.29.0: nnapi-calls.md)."""

NOT_KNOWN = "the library asked NNAPI for the same with and without it; the cause is not known"


def claims_nothing(summary: CallSummary | None, api_level: int) -> ProofFinding | None:
    """A finding when NNAPI was asked to take nothing at all."""
    if summary and summary.partitions:
        return None
    if api_level < NNAPI_API_LEVEL:
        why = f"NNAPI begins at API level {NNAPI_API_LEVEL}; below it everything runs on the CPU"
        remedy = "nothing to fix: phones of this level take no notice of the provider"
    else:
        why = "no node of this artifact is one that NNAPI takes; everything ran on the CPU"
        remedy = (
            "`ort-mobile partition FILE --ep nnapi` says why; ship level basic or a variant aware of nnapi, fix open "
            "dimensions, or leave nnapi out"
        )
    what = f"NNAPI takes nothing at API level {api_level}"
    return ProofFinding(severity=Severity.WARNING, kind=FindingKind.NOTHING_CLAIMED, what=what, why=why, remedy=remedy)


def effect(flag: NnapiFlag, phone: Phone, with_it: CallSummary, without_it: CallSummary) -> Iterator[ProofFinding]:
    """Findings on one flag: it changed nothing, or NNAPI takes less with it."""
    api_level = phone.api_level
    since, why = NEEDS[flag]
    remedy = f"leave {flag.value} out below API level {since}" if api_level < since else f"leave {flag.value} out"
    if _asked(with_it) == _asked(without_it):
        yield ProofFinding(
            severity=Severity.WARNING,
            kind=FindingKind.FLAG_WITHOUT_EFFECT,
            what=f"{flag.value} has no effect at API level {api_level}",
            why=why if api_level < since else _without_effect(flag, with_it, phone),
            remedy=remedy,
        )
    elif (less := work(with_it)) < (more := work(without_it)):
        yield ProofFinding(
            severity=Severity.WARNING,
            kind=FindingKind.FLAG_COSTS_NODES,
            what=f"with {flag.value} NNAPI takes {less} operations at API level {api_level}, {more} without it",
            why=f"{why}; {_refused(with_it, without_it)}" if api_level < since else _refused(with_it, without_it),
            remedy=remedy,
        )


def _without_effect(flag: NnapiFlag, calls: CallSummary, phone: Phone) -> str:
    """Why a flag did nothing at a level at which it could, as far as calls and the phone's devices show it."""
    devices = (phone.driver or default_profile(phone.api_level)).devices
    cpus = sum(device.type is DriverType.CPU for device in devices)
    shown = {
        NnapiFlag.USE_NCHW: calls.nchw is None and "NNAPI takes no convolution and no pool, whose layout it decides",
        NnapiFlag.CPU_DISABLED: (cpus == 0 and "NNAPI has no CPU device here that it could leave out")
        or (cpus == len(devices) and "no other device than a CPU is left to choose, so the system chooses"),
        NnapiFlag.CPU_ONLY: (cpus == 0 and "NNAPI has no CPU device here, so the system chooses")
        or (cpus == len(devices) and "NNAPI has CPU devices only here"),
    }
    return shown.get(flag) or NOT_KNOWN


def _refused(with_it: CallSummary, without_it: CallSummary) -> str:
    """The operations that the CPU has with a flag and NNAPI without it."""
    less, more = (Counter(name for names in answer.partitions for name in names) for answer in (with_it, without_it))
    gone = [f"{name} ({count})" for name, count in sorted((more - less).items()) if name != "TRANSPOSE"]
    return f"left to the CPU with it: {', '.join(gone)}"


def _asked(summary: CallSummary) -> tuple[object, ...]:
    return summary.partitions, summary.relaxed, summary.nchw, summary.compiled_for


def work(summary: CallSummary) -> int:
    """Operations that compute something: transposes come and go with the layout."""
    return sum(name != "TRANSPOSE" for names in summary.partitions for name in names)


ProofRun = tuple[Failure | None, tuple[OutputCheck, ...], CallSummary | None]
"""How one run failed, its outputs checked against what they must be, and what it asked of NNAPI."""


def prove_bundle(bundle: Path, order: ProofOrder, progress: Progress) -> LibraryProof:
    """Load and run every artifact in every way that ships, at every API level that is asked for.

    Raises CheckFailed for a bundle that was changed, ConfigError for one with nothing for the library's system,
    MissingError where the library cannot be run on this computer. What the library does is in the rows.
    """
    manifest = verify_bundle(bundle)
    check_host()
    ships, left_out = wanted_targets(manifest.content, order, library_system(order.library))
    places, notes = places_of(ships, order)
    libraries = {place.abi: resolve(order.library, place.abi) for place in places}
    linux = ships[0].platform != ANDROID
    facts = {abi: library.linux() if linux else library.android() for abi, library in libraries.items()}
    plan = [(place, trials_of(list(place.ships), order)) for place in places]
    contexts, not_simulated = contexts_to_run(manifest, order, [shipped.target for shipped in ships])
    expected: dict[str, ExpectedOutputs] = {}
    with files.scratch_folder() as work:
        rows = []
        plan = [(place, [trial for trial in trials if not (trial.on_gpu and place.cpu)]) for place, trials in plan]
        with progress.stage("prove", sum(len(trials) for _, trials in plan) + len(contexts)) as stage:
            for place, trials in plan:
                prover = _Prover(bundle, manifest, facts[place.abi], place, order, work, expected)
                for row in prover.rows(trials):
                    where = f"{row.abi} {row.cpu}".strip()
                    stage.at(f"{row.model} {row.variant} {row.run}, API level {row.api_level}, {where}")
                    stage.done()
                    rows.append(row)
            if contexts:
                android = resolve(order.library, X86_64).android()
                for row in context_rows(bundle, manifest, contexts, android, order, work):
                    stage.at(f"{row.model} {row.variant}, simulated")
                    stage.done()
                    rows.append(row)
    abi = next(place.abi for place in places if place.deciding)
    return LibraryProof(
        bundle=manifest.content_sha256,
        library=_proven(libraries[abi].archive, facts[abi]),
        rows=tuple(rows),
        left_out=tuple(left_out),
        notes=(
            *notes,
            *not_simulated,
            *by_kernel(rows),
            *_release_notes(ships, facts[abi]),
            *_origins(expected),
            *(_not_emulated(facts[ARM64]) if order.cpus == ("all",) and ARM64 in facts else ()),
        ),
    )


def by_kernel(rows: Sequence[ProofRow]) -> Iterator[str]:
    """In words which runs hold on one CPU and give wrong outputs on another: the library's kernels differ."""
    ways: dict[tuple[str, str, str, str], tuple[set[str], set[str]]] = {}
    for row in rows:
        differs = any(finding.kind is FindingKind.OUTPUTS_DIFFER for finding in row.findings)
        if row.cpu and (differs or not row.failed):
            ways.setdefault((row.model, row.variant, row.run, row.abi), (set(), set()))[differs].add(row.cpu)
    for (model, variant, run, abi), (right, wrong) in ways.items():
        if right and wrong - right:
            yield (
                f"{model} {variant} ({run}): outputs are right on {', '.join(sorted(right))} and wrong on "
                f"{', '.join(sorted(wrong))} of {abi}: the library has other kernels for each"
            )


def _not_emulated(library: LibraryFacts) -> Iterator[str]:
    """Processors of phones that no run of `--cpu all` stood for, and what the library's code has for them."""
    lacking = [name for name, row in CPUS.items() if row.common and name not in common_cpus(ARM64)]
    if lacking:
        yield f"{', '.join(lacking)} was not run: this QEMU has no such core, and a newer one does"
    code = read_arm_code(Path(library.path).read_bytes())
    asks = ", ".join(f"{row.source} {' '.join(row.bits)}".strip() for row in code.queries) or "nothing"
    for row in code.extensions:
        if row.extension == "sme2":
            yield (
                f"SME2 was not run, which no emulator has: {row.functions} functions of this library are for it, "
                f"and it asks {asks} of the processor"
            )
    yield "chips whose cores differ in extensions were not run: a run has cores of one kind"


def _proven(archive: Path, library: LibraryFacts) -> ProvenLibrary:
    return ProvenLibrary(
        file=archive.name,
        release=library.release,
        commit=library.commit,
        sha256=library.sha256,
        abis=tuple(archive_abis(archive)) if is_archive(archive) else (library.abi,),
    )


def _release_notes(ships: list[Shipped], library: LibraryFacts) -> Iterator[str]:
    """Targets whose release is not the library's."""
    for shipped in {shipped.target: shipped for shipped in ships}.values():
        if library.release and library.release.split(".")[:2] != shipped.ort_release.split(".")[:2]:
            yield (
                f"{shipped.target} ships ONNX Runtime {shipped.ort_release} by its config, this library is "
                f"{library.release}: set `ort_release` of the target to what ships"
            )


def _origins(references: Mapping[str, ExpectedOutputs]) -> Iterator[str]:
    """What outputs were compared with, where that was not the original model."""
    for file, expected in references.items():
        if expected.origin and expected.outputs is not None:
            yield f"{file} was compared with {expected.origin}: the bundle keeps no reference of the original model"


def _not_chosen(finding: ProofFinding) -> ProofFinding:
    """A finding on a way to run that the bundle does not advise: it keeps nothing from shipping."""
    if finding.severity is not Severity.ERROR:
        return finding
    other = "it is not what was chosen to ship: write [[runs]] in the config without it where your app never runs it so"
    remedy = "; ".join(part for part in (finding.remedy, other) if part)
    return msgspec.structs.replace(finding, severity=Severity.WARNING, remedy=remedy)


class _Prover:
    """The proof in one place: each file's reference is read once in all of them, each run is done once."""

    def __init__(
        self,
        bundle: Path,
        manifest: Manifest,
        library: LibraryFacts,
        place: ProofPlace,
        order: ProofOrder,
        work: Path,
        expected: dict[str, ExpectedOutputs],
    ) -> None:
        self.bundle = bundle
        self.manifest = manifest
        self.library = library
        self.place = place
        self.order = order
        self.work = work
        self.stock = name_of(order.library) is not None
        self.expected = expected
        self.seen: dict[tuple[str, bytes, int], ProofRun] = {}

    def rows(self, trials: list[ProofTrial]) -> Iterator[ProofRow]:
        """A row for each trial, in their order; trials are sorted by API level."""
        for level, group in groupby(trials, key=lambda trial: trial.api_level):
            calls = self.work / "calls.jsonl"
            with opened(self.library, self.order.phone(level, self.place.cpu, calls)) as device:
                for trial in group:
                    yield self._row(device, trial, calls)

    def _row(self, device: Device, trial: ProofTrial, calls: Path) -> ProofRow:
        observed = self._observe(device, trial, trial.options, calls)
        findings = tuple(self._findings(device, trial, observed, calls))
        # What a GPU computes does not depend on the processor beside it: this computer's first look decides.
        if self.place.deciding.isdisjoint(trial.targets) and not trial.on_gpu:
            findings = tuple(msgspec.structs.replace(finding, severity=Severity.WARNING) for finding in findings)
        elif not trial.chosen:
            findings = tuple(map(_not_chosen, findings))
        _, checks, summary = observed
        return ProofRow(
            targets=trial.targets,
            model=trial.shipped.model,
            variant=trial.shipped.variant.name,
            file=trial.shipped.file,
            run=trial.run,
            options=trial.options,
            api_level=trial.api_level,
            abi=self.place.abi,
            cpu=self.place.cpu,
            chosen=trial.chosen,
            failed=any(finding.severity is Severity.ERROR for finding in findings),
            checks=checks,
            partitions=tuple(map(len, summary.partitions)) if summary else None,
            findings=findings,
        )

    def _findings(self, device: Device, trial: ProofTrial, observed: ProofRun, calls: Path) -> Iterator[ProofFinding]:
        (failure, checks, summary), expected = observed, self._expected(trial.shipped)
        options = trial.options
        if failure and failure.kind is FailureKind.WRONG_DEVICE:
            yield not_run(failure)
            return
        if expected.outputs is None and not failure:
            yield not_compared(expected.origin)
        yield from explain_run(
            failure, checks, self.bundle / trial.shipped.file, loaded(trial.shipped, options, self.bundle),
            (self.library, self.place), stock=self.stock, origin=expected.origin,
        )  # fmt: skip
        if failure or not trial.asks_nnapi:
            return
        if nothing := claims_nothing(summary, trial.api_level):
            yield nothing
            return
        phone = self.order.phone(trial.api_level)
        for flag in options.flags:
            rest = msgspec.structs.replace(options, flags=tuple(other for other in options.flags if other is not flag))
            _, _, without = self._observe(device, trial, rest, calls)
            if summary and without:
                yield from effect(flag, phone, summary, without)

    def _observe(self, device: Device, trial: ProofTrial, options: RunOptions, calls: Path) -> ProofRun:
        level = NO_LEVEL if trial.on_gpu else trial.api_level
        key = (trial.shipped.file, msgspec.json.encode(options, order="sorted"), level)
        if key not in self.seen:
            self.seen[key] = self._run(device, trial.shipped, options, calls)
        return self.seen[key]

    def _run(self, device: Device, shipped: Shipped, options: RunOptions, calls: Path) -> ProofRun:
        expected = self._expected(shipped)
        calls.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(dir=self.work) as folder:
            result = device.run(
                RunSpec(
                    id="prove",
                    model=str(self.bundle / shipped.file),
                    options=loaded(shipped, options, self.bundle),
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
                return result.failure, (), None
            actual = {tensor.name: read_tensor(tensor) for tensor in result.outputs}
        checks = expected.compared(actual, self.bundle / shipped.file, result.cpu)
        return None, checks, summarize(read_calls(calls)) if calls.is_file() else None

    def _expected(self, shipped: Shipped) -> ExpectedOutputs:
        if shipped.file not in self.expected:
            with tempfile.TemporaryDirectory(dir=self.work) as folder:
                self.expected[shipped.file] = expected_of(
                    self.bundle, self.manifest, shipped, Path(folder), self.order.timeout_seconds
                )
        return self.expected[shipped.file]


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
        return LibraryProof(bundle="", library=file, not_run=error.reason, remedy=error.remedy, targets=targets)
