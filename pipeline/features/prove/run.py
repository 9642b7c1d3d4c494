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

from device_runner import device as runner_device
from device_runner import errors as runner_errors
from device_runner import files as runner_files
from device_runner import host_device, plugins
from device_runner import library as ort_library
from device_runner import providers as runner_providers
from device_runner import result as run_result
from device_runner import spec as run_spec
from device_runner.android_host import device as android_host_device
from device_runner.android_host import inspection
from device_runner.device import Device
from device_runner.errors import RunnerError
from device_runner.result import RunResult
from device_runner.spec import OptimizationLevel, RunOptions, RunSpec, TensorFile
from pipeline.check import compare as output_compare
from pipeline.check import library_proof
from pipeline.check import reference as check_reference
from pipeline.check.compare import Array, OutputCheck
from pipeline.compat import contexts as npu_contexts
from pipeline.convert import contexts as convert_contexts
from pipeline.core import abis as core_abis
from pipeline.core import providers as provider_rules
from pipeline.core import variant as core_variant
from pipeline.core.errors import ConfigError, MissingError, ModelError, Severity
from pipeline.core.progress import Progress
from pipeline.features.prove import plan as prove_plan
from pipeline.library import kernels
from pipeline.model import ort_format
from pipeline.release import chip_contexts
from pipeline.release import manifest as bundle_manifest


def contexts_to_run(
    manifest: bundle_manifest.Manifest, order: prove_plan.ProofOrder, targets: Sequence[str]
) -> tuple[list[bundle_manifest.ShippedContext], list[str]]:
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


def _problem(contexts: Sequence[bundle_manifest.ShippedContext], library: str) -> MissingError | None:
    """Why no context can be run here, None where all can or there is none."""
    if not contexts:
        return None
    plugin = plugins.installed_plugin(provider_rules.QNN)
    if isinstance(plugin, run_result.Failure):
        return MissingError.of(plugin)
    if core_abis.X86_64 not in prove_plan.library_abis(library):
        return MissingError(
            "the simulator runs in a library for x86_64 only",
            where=library,
            why="this one has none for it",
            remedy="give the AAR with all ABIs, as ONNX Runtime publishes it",
        )
    installed = npu_contexts.installed_qairt()
    for context in contexts:
        if installed != context.qairt:
            return MissingError(
                f"the contexts are for QAIRT {context.qairt}, and the simulator here is of {installed or 'another'}",
                where=context.file,
                why="another QAIRT than the app's may read and compute them otherwise",
                remedy=runner_errors.pip_install(f"onnxruntime-qnn=={context.plugin}"),
            )
    return None


def context_rows(
    bundle: Path,
    manifest: bundle_manifest.Manifest,
    contexts: Sequence[bundle_manifest.ShippedContext],
    library: ort_library.LibraryFacts,
    order: prove_plan.ProofOrder,
    work: Path,
) -> Iterator[library_proof.ProofRow]:
    """A row for each context: opened and run by an Android library, its outputs compared with the original's."""
    with android_host_device.AndroidHost("android-host", library, order.phone(chip_contexts.CHIP_API_LEVEL)) as device:
        for context in contexts:
            name = core_variant.in_precision(context.model, context.variant.precision)
            reference = next((row for row in manifest.references if row.model == name), None)
            options = RunOptions(
                provider=provider_rules.QNN,
                provider_options={"soc_model": str(runner_providers.CHIPS[context.chip].soc_model)},
            )
            file = bundle / context.file
            inputs = prove_plan.tensor_files(bundle, reference.inputs) if reference else ()
            seconds = max(order.timeout_seconds, convert_contexts.SIMULATED_SECONDS)
            result, actual = run_once(device, file, options, inputs, seconds, work)
            checks: tuple[OutputCheck, ...] = ()
            findings: list[library_proof.ProofFinding] = []
            if reference and reference.outputs and not result.failure:
                expected = {
                    tensor.name: output_compare.read_tensor(tensor)
                    for tensor in prove_plan.tensor_files(bundle, reference.outputs)
                }
                checks = tuple(
                    output_compare.compare_outputs(
                        expected, actual, convert_contexts.simulated_tolerance(reference.tolerance)
                    )
                )
            elif not result.failure:
                findings.append(prove_plan.not_compared("the model cannot be run on a CPU here in its place"))
            stock = ort_library.name_of(order.library) is not None
            findings += prove_plan.explain_run(
                result.failure, checks, file, options, (library, ""), stock=stock, origin=""
            )
            yield library_proof.ProofRow(
                targets=tuple(
                    dict.fromkeys(row.target for row in manifest.content.contexts if row.file == context.file)
                ),
                model=context.model,
                variant=context.variant.name,
                file=context.file,
                run=provider_rules.QNN,
                options=options,
                api_level=chip_contexts.CHIP_API_LEVEL,
                abi=core_abis.X86_64,
                chip=context.chip,
                qairt=npu_contexts.installed_qairt(),
                chosen=True,
                failed=any(finding.severity is Severity.ERROR for finding in findings),
                checks=checks,
                findings=tuple(findings),
            )


def run_once(
    device: Device, file: Path, options: RunOptions, inputs: tuple[TensorFile, ...], timeout_seconds: float, work: Path
) -> tuple[RunResult, dict[str, Array]]:
    """One run without a warm-up, of which no time counts, and its outputs; without `inputs` on those of `SEED`."""
    with tempfile.TemporaryDirectory(dir=work) as folder:
        spec = RunSpec(
            id="prove",
            model=str(file),
            options=options,
            inputs=inputs,
            seed=SEED,
            warmup=0,
            min_runs=1,
            min_seconds=0.0,
            timeout_seconds=timeout_seconds,
            outputs_folder=folder,
        )
        result = device.run(spec)
        outputs = () if result.failure else result.outputs
        return result, {tensor.name: output_compare.read_tensor(tensor) for tensor in outputs}


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
    tolerance: output_compare.Tolerance
    origin: str = ""

    def compared(self, actual: Mapping[str, Array], file: Path, cpu: str) -> tuple[OutputCheck, ...]:
        """The checks of what an artifact gave on this computer, or on a CPU ("" for its own) that an emulator played.

        None where nothing is expected. What this computer's own onnxruntime expects may be saturated itself.
        """
        checks = output_compare.compare_outputs(self.outputs or {}, actual, self.tolerance)
        return check_reference.excused(checks, file, "" if self.origin else cpu)


def expected_of(
    bundle: Path,
    manifest: bundle_manifest.Manifest,
    shipped: bundle_manifest.Shipped,
    work: Path,
    timeout_seconds: float,
) -> ExpectedOutputs:
    """What a bundle's artifact must give. `work` is a folder for raw tensors of this computer's own run."""
    name = core_variant.in_precision(shipped.model, shipped.variant.precision)
    kept = next((row for row in manifest.references if row.model == name), None)
    inputs = prove_plan.tensor_files(bundle, kept.inputs) if kept else ()
    if kept and kept.outputs:
        outputs = {
            tensor.name: output_compare.read_tensor(tensor) for tensor in prove_plan.tensor_files(bundle, kept.outputs)
        }
        return ExpectedOutputs(inputs=inputs, outputs=outputs, tolerance=kept.tolerance)
    tolerance = kept.tolerance if kept else output_compare.usual_tolerance(_precision(bundle / shipped.file))
    if not inputs:
        tolerance = msgspec.structs.replace(tolerance, random_inputs=True)
    # Nothing of the original was kept: the installed onnxruntime, without optimizations, stands for it.
    options = RunOptions(
        optimization_level=OptimizationLevel.NONE,
        session_config=shipped.runs[0].session_config,
        custom_ops=prove_plan.loaded(shipped, shipped.runs[0], bundle).custom_ops,
    )
    try:
        with runner_device.open_device("local") as device:
            result, outputs = run_once(device, bundle / shipped.file, options, inputs, timeout_seconds, work)
    except RunnerError as error:
        return ExpectedOutputs(inputs=inputs, outputs=None, tolerance=tolerance, origin=str(error))
    if result.failure:
        why = f"onnxruntime of this computer: {result.failure.what.partition(chr(10))[0][:300]}"
        return ExpectedOutputs(inputs=inputs, outputs=None, tolerance=tolerance, origin=why)
    origin = f"the artifact itself on onnxruntime {result.ort_version} of this computer"
    return ExpectedOutputs(inputs=inputs, outputs=outputs, tolerance=tolerance, origin=origin)


def _precision(file: Path) -> output_compare.OutputPrecision:
    """What an artifact computes in, judged by its operators and initializers."""
    try:
        graphs = list(ort_format.read_artifact(file).graph.walk())
    except ModelError:
        return output_compare.OutputPrecision.FLOAT32
    if any(re.search(check_reference.QUANTIZED, node.op_type) for graph in graphs for node in graph.nodes):
        return output_compare.OutputPrecision.QUANTIZED
    half = any(tensor.data_type in HALVES for graph in graphs for tensor in graph.initializers.values())
    return output_compare.OutputPrecision.FLOAT16 if half else output_compare.OutputPrecision.FLOAT32


NEEDS: dict[run_spec.NnapiFlag, tuple[int, str]] = {
    run_spec.NnapiFlag.USE_FP16: (
        runner_providers.NNAPI_RELAXED_API_LEVEL,
        "NNAPI can be allowed half precision from API level 28 on",
    ),
    run_spec.NnapiFlag.USE_NCHW: (runner_providers.NNAPI_DEVICES_API_LEVEL, "NNAPI takes NCHW from API level 29 on"),
    run_spec.NnapiFlag.CPU_DISABLED: (
        runner_providers.NNAPI_DEVICES_API_LEVEL,
        "NNAPI names its devices from API level 29 on",
    ),
    run_spec.NnapiFlag.CPU_ONLY: (
        runner_providers.NNAPI_DEVICES_API_LEVEL,
        "NNAPI names its devices from API level 29 on",
    ),
}
"""The API level from which a flag can do anything, and why (recorded from 1.28.0 and 1.29.0: nnapi-calls.md)."""

NOT_CHOSEN = (
    "it is not what was chosen to ship: write [[runs]] in the config without it where your app never runs it so"
)
NOT_KNOWN = "the library asked NNAPI for the same with and without it; the cause is not known"


def claims_nothing(summary: inspection.CallSummary | None, api_level: int) -> library_proof.ProofFinding | None:
    """A finding when NNAPI was asked to take nothing at all."""
    if summary and summary.partitions:
        return None
    if api_level < runner_providers.NNAPI_API_LEVEL:
        why = f"NNAPI begins at API level {runner_providers.NNAPI_API_LEVEL}; below it everything runs on the CPU"
        remedy = "nothing to fix: phones of this level take no notice of the provider"
    else:
        why = "no node of this artifact is one that NNAPI takes; everything ran on the CPU"
        remedy = (
            "`ort-mobile partition FILE --ep nnapi` says why; ship level basic or a variant aware of nnapi, fix open "
            "dimensions, or leave nnapi out"
        )
    what = f"NNAPI takes nothing at API level {api_level}"
    return library_proof.ProofFinding(
        severity=Severity.WARNING, code=library_proof.FindingKind.NOTHING_CLAIMED, what=what, why=why, remedy=remedy
    )


def effect(
    flag: run_spec.NnapiFlag,
    phone: android_host_device.Phone,
    with_it: inspection.CallSummary,
    without_it: inspection.CallSummary,
) -> Iterator[library_proof.ProofFinding]:
    """Findings on one flag: it changed nothing, or NNAPI takes less with it."""
    api_level = phone.api_level
    since, why = NEEDS[flag]
    early = api_level < since
    remedy = f"leave {flag.value} out below API level {since}" if early else f"leave {flag.value} out"
    asked = [(row.partitions, row.relaxed, row.nchw, row.compiled_for) for row in (with_it, without_it)]
    # Operations that compute something: transposes come and go with the layout.
    less, more = (
        Counter(name for names in row.partitions for name in names if name != "TRANSPOSE")
        for row in (with_it, without_it)
    )
    if asked[0] == asked[1]:
        # At a level at which it could do something, calls and the phone's devices may show why it did not.
        devices = (phone.driver or android_host_device.default_profile(api_level)).devices
        cpus = sum(device.type is runner_device.DriverType.CPU for device in devices)
        shown = {
            run_spec.NnapiFlag.USE_NCHW: with_it.nchw is None
            and "NNAPI takes no convolution and no pool, whose layout it decides",
            run_spec.NnapiFlag.CPU_DISABLED: (cpus == 0 and "NNAPI has no CPU device here that it could leave out")
            or (cpus == len(devices) and "no other device than a CPU is left to choose, so the system chooses"),
            run_spec.NnapiFlag.CPU_ONLY: (cpus == 0 and "NNAPI has no CPU device here, so the system chooses")
            or (cpus == len(devices) and "NNAPI has CPU devices only here"),
        }
        yield library_proof.ProofFinding(
            severity=Severity.WARNING,
            code=library_proof.FindingKind.FLAG_WITHOUT_EFFECT,
            what=f"{flag.value} has no effect at API level {api_level}",
            why=why if early else shown.get(flag) or NOT_KNOWN,
            remedy=remedy,
        )
    elif less.total() < more.total():
        gone = ", ".join(f"{name} ({count})" for name, count in sorted((more - less).items()))
        left = f"left to the CPU with it: {gone}"
        yield library_proof.ProofFinding(
            severity=Severity.WARNING,
            code=library_proof.FindingKind.FLAG_COSTS_NODES,
            what=f"with {flag.value} NNAPI takes {less.total()} operations at API level {api_level}, "
            f"{more.total()} without it",
            why=f"{why}; {left}" if early else left,
            remedy=remedy,
        )


ProofRun = tuple[run_result.Failure | None, tuple[OutputCheck, ...], inspection.CallSummary | None]
"""How one run failed, its outputs checked against what they must be, and what it asked of NNAPI."""


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
    libraries = {abi: ort_library.resolve(order.library, abi) for abi, _, _ in places}
    linux = ships[0].platform != prove_plan.ANDROID
    facts = {abi: library.linux() if linux else library.android() for abi, library in libraries.items()}
    contexts, not_simulated = contexts_to_run(manifest, order, [shipped.target for shipped in ships])
    expected: dict[str, ExpectedOutputs] = {}
    with runner_files.scratch_folder() as work:
        rows = []
        with progress.stage("prove", sum(len(trials) for _, _, trials in places) + len(contexts)) as stage:
            for abi, deciding, trials in places:
                prover = _Prover(bundle, manifest, facts[abi], deciding, order, work, expected)
                for row in prover.rows(trials):
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
    abi = next(abi for abi, deciding, _ in places if deciding)
    archive, library = libraries[abi].archive, facts[abi]
    notes += [*not_simulated, *by_kernel(rows)]
    for shipped in {shipped.target: shipped for shipped in ships}.values():
        if library.release and library.release.split(".")[:2] != shipped.ort_release.split(".")[:2]:
            notes.append(
                f"{shipped.target} ships ONNX Runtime {shipped.ort_release} by its config, this library is "
                f"{library.release}: set `ort_release` of the target to what ships"
            )
    notes += [
        f"{file} was compared with {row.origin}: the bundle keeps no reference of the original model"
        for file, row in expected.items()
        if row.origin and row.outputs is not None
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
    ways: dict[tuple[str, str, str, str], tuple[set[str], set[str]]] = {}
    for row in rows:
        differs = any(finding.code is library_proof.FindingKind.OUTPUTS_DIFFER for finding in row.findings)
        if row.cpu and (differs or not row.failed):
            ways.setdefault((row.model, row.variant, row.run, row.abi), (set(), set()))[differs].add(row.cpu)
    for (model, variant, run, abi), (right, wrong) in ways.items():
        if right and wrong - right:
            yield (
                f"{model} {variant} ({run}): outputs are right on {', '.join(sorted(right))} and wrong on "
                f"{', '.join(sorted(wrong))} of {abi}: the library has other kernels for each"
            )


def _not_emulated(library: ort_library.LibraryFacts) -> Iterator[str]:
    """Processors of phones that no run of `--cpu all` stood for, and what the library's code has for them."""
    lacking = [
        name
        for name, row in host_device.CPUS.items()
        if row.common and name not in host_device.common_cpus(core_abis.ARM64)
    ]
    if lacking:
        yield f"{', '.join(lacking)} was not run: this QEMU has no such core, and a newer one does"
    code = kernels.read_arm_code(Path(library.path).read_bytes())
    asks = ", ".join(f"{row.source} {' '.join(row.bits)}".strip() for row in code.queries) or "nothing"
    for row in code.extensions:
        if row.extension == "sme2":
            yield (
                f"SME2 was not run, which no emulator has: {row.functions} functions of this library are for it, "
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
        for place, finding in enumerate(findings):
            if finding.severity is Severity.ERROR and (first_look or not trial.chosen):
                # A way to run that the bundle does not advise keeps nothing from shipping.
                parts = (finding.remedy,) if first_look else (finding.remedy, NOT_CHOSEN)
                findings[place] = msgspec.structs.replace(
                    finding, severity=Severity.WARNING, remedy="; ".join(filter(None, parts))
                )
        _, checks, summary = observed
        return msgspec.structs.replace(
            trial,
            failed=any(finding.severity is Severity.ERROR for finding in findings),
            checks=checks,
            partitions=tuple(map(len, summary.partitions)) if summary else None,
            findings=tuple(findings),
        )

    def _findings(
        self, device: Device, trial: library_proof.ProofRow, observed: ProofRun, calls: Path
    ) -> Iterator[library_proof.ProofFinding]:
        (failure, checks, summary), shipped = observed, self.ships[trial.file, trial.targets[0]]
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
            checks,
            self.bundle / trial.file,
            prove_plan.loaded(shipped, options, self.bundle),
            (self.library, trial.cpu),
            stock=self.stock,
            origin=expected.origin,
        )
        if failure or options.provider != runner_providers.NNAPI:
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
                self.seen[key] = result.failure, (), None
            else:
                summary = inspection.summarize(inspection.read_calls(calls)) if calls.is_file() else None
                self.seen[key] = None, expected.compared(actual, file, result.cpu), summary
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
