"""Contexts of NPUs in a bundle: which are chosen, what speaks against them, for which chips."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from device_runner import providers as runner_providers
from pipeline import config as configs
from pipeline.check import compare as output_compare
from pipeline.check.compare import OutputCheck
from pipeline.compat import contexts as npu_contexts
from pipeline.core import abis as core_abis
from pipeline.core import releases as ort_releases
from pipeline.core.errors import Finding, Severity
from pipeline.release.manifest import ShippedContext

CHIP_API_LEVEL = 31
"""From here on Android names a phone's chip (Build.SOC_MODEL), as Google Play does."""

SOC_MANUFACTURER = "QTI"
"""What phones with a Snapdragon have as Build.SOC_MANUFACTURER."""

PLUGIN = ("com.qualcomm.qti", "onnxruntime-android-qnn")

RUNTIME = ("com.qualcomm.qti", "qnn-runtime")
"""Group and artifact of the provider, and of the libraries that it runs on, for Gradle."""


def takes_contexts(target: configs.Target) -> bool:
    """Whether a target has phones with a Snapdragon: its libraries are for arm64-v8a alone."""
    return target.platform is configs.Platform.ANDROID and core_abis.ARM64 in core_abis.abis_of_target(
        target.platform, target.abis
    )


def chosen_contexts(
    contexts: Iterable[npu_contexts.NpuContext], checks: Mapping[str, Mapping[str, tuple[OutputCheck, ...]]]
) -> tuple[npu_contexts.NpuContext, ...]:
    """For each model and chip the first context whose outputs in the simulator are not wrong, or that it cannot run.

    They come in the order of the precisions that were asked for.
    """
    chosen: dict[tuple[str, str], npu_contexts.NpuContext] = {}
    for context in contexts:
        if context.not_run or output_compare.sound(checks.get(context.model, {}).get(context.variant.name, ())):
            chosen.setdefault((context.model, context.chip.name), context)
    return tuple(chosen.values())


def context_findings(
    contexts: Sequence[npu_contexts.NpuContext], target: configs.Target, kind: configs.BuildKind, release: str
) -> Iterator[Finding]:
    """What speaks against contexts in a target, whose ONNX Runtime is of a kind and a release."""
    if not contexts or not takes_contexts(target):
        return
    where = f"target {target.name}"
    if kind is not configs.BuildKind.FULL:
        yield Finding(
            severity=Severity.ERROR,
            what="contexts cannot be opened by this library",
            where=where,
            why=f"a {kind.value} build of ONNX Runtime loads no plugins, and QNN is one",
            remedy="ship a full build (one with an operator config may be full, too), or leave `contexts` out of "
            "[variants]",
        )
    for context in contexts:
        plugin, lowest = npu_contexts.PLUGINS.get(context.qairt, ("", ""))
        if plugin and ort_releases.line_of(release) < ort_releases.line_of(lowest):
            yield Finding(
                severity=Severity.ERROR,
                what=f"{context.variant.name} needs ONNX Runtime {lowest} or later",
                where=f"{where}: {context.model}",
                why=f"the plugin {plugin} does, and the target has {release}",
                remedy=f"set the target's `ort_release` or `library` to {lowest} or later",
            )
        if context.plugin in npu_contexts.NO_NPU:
            yield Finding(
                severity=Severity.ERROR,
                what=f"phones find no NPU for {context.variant.name}",
                where=f"{where}: {context.model}",
                why=f"its plugin {context.plugin} lists /dev, which Android lets no app do",
                remedy="make it again with another release of onnxruntime-qnn (pip install -U onnxruntime-qnn)",
            )
        built = npu_contexts.built_for(context.compatibility)
        loading, why, remedy = npu_contexts.loader_answer(built, context.chip, target.qnn_runtime or "")
        if loading is npu_contexts.Loading.REFUSED:
            yield Finding(
                severity=Severity.ERROR,
                what=f"phones will refuse {context.variant.name}",
                where=f"{where}: {context.model}",
                why=why,
                remedy=remedy,
            )


def shipped_context(
    context: npu_contexts.NpuContext, target: configs.Target, model_sha256: str, folder: str, ort_release: str
) -> ShippedContext:
    """A context as the manifest has it; `folder` is the one of models in the bundle."""
    return ShippedContext(
        target=target.name,
        model=context.model,
        model_sha256=model_sha256,
        variant=context.variant,
        chip=context.chip.name,
        file=folder + context.file,
        binary=folder + context.binary,
        compatibility=context.compatibility,
        qairt=target.qnn_runtime or context.qairt,
        plugin=context.plugin,
        ort_release=ort_release,
        min_api_level=max(target.min_api_level or 0, CHIP_API_LEVEL),
        steps=context.steps,
        not_run=context.not_run,
    )


def context_line(context: ShippedContext) -> str:
    """What ships to phones with a chip, as commands show it."""
    chip = (
        f"{context.chip} ({runner_providers.CHIPS[context.chip].title})"
        if context.chip in runner_providers.CHIPS
        else context.chip
    )
    text = f"context  {context.target}: {context.model} {context.variant.name} for {chip}, QAIRT {context.qairt}"
    return f"{text}; {context.not_run}" if context.not_run else text


def gradle_notations(contexts: Iterable[ShippedContext]) -> tuple[str, ...]:
    """The plugin and the runtime that apps need for contexts, as Gradle writes them."""
    newest = max(
        contexts, key=lambda context: (ort_releases.numbers_of(context.plugin), ort_releases.numbers_of(context.qairt))
    )
    return f"{':'.join(PLUGIN)}:{newest.plugin}", f"{':'.join(RUNTIME)}:{newest.qairt}"


def shipped_files(contexts: Iterable[ShippedContext]) -> dict[str, ShippedContext]:
    """The files of contexts by their paths in the bundle, each once."""
    return {path: context for context in contexts for path in context.files}


def other_phones(context: ShippedContext) -> Mapping[npu_contexts.Loading, tuple[str, ...]]:
    """What the loaders of phones with other chips say to a context, in the order of their generations."""
    built = npu_contexts.built_for(context.compatibility)
    answers: dict[npu_contexts.Loading, tuple[str, ...]] = {}
    for chip in runner_providers.CHIPS.values():
        loading, _, _ = npu_contexts.loader_answer(built, chip, context.qairt)
        answers[loading] = (*answers.get(loading, ()), chip.name)
    return answers
