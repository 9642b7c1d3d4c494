"""Contexts of a bundle in the simulator of their chips.

A context for a phone's NPU is opened here as there: by the Android library, through the plugin, from both files. The
functional simulator in Qualcomm's compiler takes the place of the NPU, so that no time of it means anything.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from device_runner import errors as runner_errors
from device_runner import library as ort_library
from device_runner import plugins
from device_runner import providers as runner_providers
from device_runner import result as run_result
from device_runner.android_host import device as android_host_device
from device_runner.spec import RunOptions
from pipeline.check import compare as output_compare
from pipeline.check import library_proof
from pipeline.check.compare import OutputCheck
from pipeline.compat import contexts as npu_contexts
from pipeline.convert import contexts as convert_contexts
from pipeline.core import abis as core_abis
from pipeline.core import providers as provider_rules
from pipeline.core import variant as core_variant
from pipeline.core.errors import ConfigError, MissingError, Severity
from pipeline.features.prove import plan as prove_plan
from pipeline.features.prove.expected import run_once
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
            reference = next((reference for reference in manifest.references if reference.model == name), None)
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
                    dict.fromkeys(other.target for other in manifest.content.contexts if other.file == context.file)
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
