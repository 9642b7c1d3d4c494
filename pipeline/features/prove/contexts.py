"""A bundle's contexts, each run by the library that ships with the QNN plugin of this computer, in a simulator.

What runs on a phone's NPU is opened here as there: by the Android library, through the plugin, from both files. The
functional simulator in Qualcomm's compiler takes the place of the NPU, so that no time of it means anything.
"""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from device_runner.android_host.device import AndroidHost
from device_runner.chips import CHIPS
from device_runner.device import Device
from device_runner.library import LibraryFacts, name_of
from device_runner.plugins import installed_plugin
from device_runner.result import Failure
from device_runner.spec import RunOptions, RunSpec
from pipeline.check.compare import OutputCheck, compare_outputs, read_tensor
from pipeline.check.library_proof import ProofFinding, ProofRow
from pipeline.compat.contexts import installed_qairt
from pipeline.convert.contexts import SIMULATED_SECONDS, simulated_tolerance
from pipeline.core.abis import X86_64
from pipeline.core.errors import ConfigError, MissingError, Severity
from pipeline.core.providers import QNN
from pipeline.core.variant import in_precision
from pipeline.features.prove.plan import (
    ProofOrder,
    ProofPlace,
    explain_run,
    library_abis,
    not_compared,
    tensor_files,
)
from pipeline.release.contexts import CHIP_API_LEVEL
from pipeline.release.manifest import Manifest, ShippedContext


def contexts_to_run(
    manifest: Manifest, order: ProofOrder, targets: Sequence[str]
) -> tuple[list[ShippedContext], list[str]]:
    """The contexts of some targets that can be run here, and in words why others are not.

    Raises ConfigError for a chip that is asked for and has no context, MissingError where the simulator for one that
    is asked for is not here.
    """
    known = [context for context in manifest.content.contexts if context.target in targets]
    chips = list(dict.fromkeys(context.chip for context in known))
    if unknown := [chip for chip in order.chips if chip not in chips]:
        raise ConfigError(
            f"the bundle has no context for {unknown[0]}",
            where="--chip",
            why=f"it has contexts for {', '.join(chips)}" if chips else "it has no contexts",
            remedy="write the chip to `contexts` in [variants] of the config, and make the bundle again",
        )
    chosen = [context for context in known if not order.chips or context.chip in order.chips]
    distinct = list({context.file: context for context in chosen}.values())
    problem = _problem(distinct, order.library)
    if problem and order.chips:
        raise problem
    return ([], [f"contexts were not run: {problem.text}"]) if problem else (distinct, [])


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
                remedy=f"pip install onnxruntime-qnn=={context.plugin}",
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
    place = ProofPlace(abi=X86_64, cpu="", wanted=(), deciding=frozenset({context.target}))
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
