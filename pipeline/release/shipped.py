"""The library that an app loads artifacts with on a target, what an app needs for a bundle, and whether it fits.

What the library is comes from itself where it is available, else from the config: a target with a [build] table of its
own gets that build, every other one the release's own full package. A newer bundle that does not fit an app is refused
before it takes the old one's place (docs/facts/release_consumers.md, R.12).
"""

import hashlib
import logging
import re
import struct
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import msgspec

from device_runner.custom_ops import SYMBOL, CustomLibrary, fitting
from device_runner.device import DeviceFacts
from device_runner.errors import RunnerError
from device_runner.library import (
    PAGE_BYTES,
    find_archive,
    is_archive,
    name_of,
    release_of,
    resolve_all,
    small_pages,
)
from device_runner.options import AFFINITY_KEY, BLOCK_KEY
from device_runner.probe.elf import read_elf
from device_runner.providers import CHIPS
from device_runner.spec import TYPES_BY_CODE, ElementType, RunOptions, TensorFile, tensor_bytes
from pipeline.campaign.plan import plan_runs
from pipeline.campaign.run_options import PREPACKING_KEY, SPINNING_KEYS
from pipeline.check.compare import OutputCheck, sound
from pipeline.check.many import tolerance_for
from pipeline.check.result import Reference
from pipeline.compat.contexts import NO_NPU, PLUGINS, Loading, NpuContext, built_for, loader_answer
from pipeline.compat.defects import Runtime
from pipeline.compat.rules import runtime_of
from pipeline.config import (
    APPLE,
    BuildConfig,
    BuildKind,
    CheckConfig,
    Config,
    ModelConfig,
    Platform,
    Target,
    takes_package,
)
from pipeline.convert.many import config_texts
from pipeline.convert.onnx_needs import needs_of_one
from pipeline.core.abis import ARM64, abi_of, abis_of_target
from pipeline.core.documents import FILE_PATH
from pipeline.core.errors import BUDGET, CheckFailed, ConfigError, Finding, Severity, finding_of
from pipeline.core.files import TYPED_CONFIG_FILE, sha256_of
from pipeline.core.releases import SWIFT_PACKAGES, Release, installed_release, line_of, numbers_of, range_of
from pipeline.dataset import preprocess_of
from pipeline.library.fetch import known_libraries
from pipeline.library.xcframework import opened
from pipeline.model.ort_format import OrtGraph, TensorType, read_artifact
from pipeline.model.signature import TensorInfo
from pipeline.ort_build.request import campaign_digest, kind_of, providers_of
from pipeline.ort_build.run import build_of, check_budget, newest_build, operators_of, sizes_of_record
from pipeline.release.app_code import identifiers, rows_of
from pipeline.release.choose import Choice
from pipeline.release.manifest import (
    AppRule,
    Content,
    Fallback,
    KeptReference,
    KeptTensor,
    Manifest,
    ModelSignature,
    Shipped,
    ShippedContext,
)
from pipeline.release.source_code import Code, code
from pipeline.required_ops import RequiredOps, covers, read_config
from pipeline.required_ops.value import KNOWN_DOMAINS

log = logging.getLogger(__name__)
ELF_PLATFORMS = frozenset({Platform.ANDROID, Platform.LINUX})


WIDE_ABIS = frozenset({"arm64-v8a", "x86_64"})


NO_RELEASE = Release(0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedLibrary:
    """What an app loads artifacts with on a target; sizes by ABI where they are known, findings on the library.

    `operators` are those of a build that this computer made, None where they are not known.
    """

    runtime: Runtime
    sizes: Mapping[str, int]
    findings: tuple[Finding, ...] = ()
    operators: RequiredOps | None = None


def shipped_library(target: Target, config: Config, installed: str) -> ShippedLibrary:
    """The library of a target, from itself where the config names one; one that is not available is a warning."""
    planned = planned_runtime(target, config, installed)
    if target.library and target.platform in ELF_PLATFORMS:
        return _from_file(target, planned)
    build = newest_build(target.name, planned.release, campaign_digest(config, target))
    if build is None:
        findings = (
            [
                Finding(
                    severity=Severity.WARNING,
                    rule=BUDGET,
                    what=f"no library of target {target.name} is known",
                    where="[build] max_library_bytes",
                    why="the target names none, and none was built for it here",
                    remedy="write `library` in the target, or build it with `ort-mobile build run`",
                )
            ]
            if config.build.max_library_bytes
            else []
        )
        findings += _unpublished(target, planned.release, config)
        return ShippedLibrary(runtime=planned, sizes={}, findings=tuple(findings))
    log.warning("target %s is checked against build %s of this computer", target.name, build.digest[:12])
    return ShippedLibrary(runtime=planned, sizes=sizes_of_record(build), operators=operators_of(build))


def _unpublished(target: Target, release: Release, config: Config) -> tuple[Finding, ...]:
    """A release of which no package is known, where apps take the published one."""
    if not takes_package(target, config):
        return ()
    apple = config.release.apple
    if target.platform in APPLE and release not in SWIFT_PACKAGES and not (apple and apple.onnxruntime):
        package, newest = "Swift package", max(SWIFT_PACKAGES)
        why = f"there are packages of {', '.join(map(str, SWIFT_PACKAGES))}"
        other = f'; a package that was published since is named in [release.apple], as in onnxruntime = "{release}.0"'
    elif target.platform is Platform.ANDROID and release > (newest := newest_android()):
        package, why = "Android package (AAR)", f"the newest that ort-mobile knows or this computer has is {newest}"
        other = (
            f", or see whether `ort-mobile library get android:{release}.0` finds it, and write "
            f'library = "android:{release}.0"'
        )
    else:
        return ()
    finding = Finding(
        severity=Severity.WARNING, what=f"no {package} of ONNX Runtime {release} is known",
        where=f"target {target.name}: ort_release", why=why,
        remedy=f'write ort_release = "{newest}" in the target{other}',
    )  # fmt: skip
    return (finding,)


def newest_android() -> Release:
    """The newest release line of which an AAR is known or in a cache of this computer."""
    names = [name for library in known_libraries() if (name := name_of(library.name)) and name.scheme == "android"]
    return max(line_of(name.release) for name in names)


def planned_runtime(target: Target, config: Config, installed: str) -> Runtime:
    """What the config alone says of a target's library; without a [build] table it is the release's full package."""
    release = line_of(target.ort_release or installed)
    abis = abis_of_target(target.platform, target.abis)
    if config.build == BuildConfig(max_library_bytes=config.build.max_library_bytes):
        return Runtime(release=release, abis=abis, system=target.platform)
    kind, providers = planned_build(target, config)
    return Runtime(
        release=release, kind=kind, providers=frozenset(providers) | {"cpu"}, abis=abis, system=target.platform
    )


def planned_build(target: Target, config: Config) -> tuple[BuildKind, tuple[str, ...]]:
    """The kind and the providers of the library that `ort-mobile build` makes for a target."""
    runs = tuple(provider for run in config.runs for provider in run.providers)
    providers = providers_of(config.build, target.platform, runs)
    return kind_of(config.build, providers, config.variants.styles), providers


def release_for(target: Target) -> str:
    """The release that a bundle names for a target: the config's, its library's, or the installed one."""
    return target.ort_release or library_release(target) or str(installed_release())


def library_release(target: Target) -> str:
    """The release line of the library that a target names, "" where there is none or it does not tell."""
    if not target.library or target.platform not in ELF_PLATFORMS:
        return ""
    library = _from_file(target, Runtime(release=NO_RELEASE))
    return "" if library.runtime.release == NO_RELEASE else str(library.runtime.release)


def _from_file(target: Target, planned: Runtime) -> ShippedLibrary:
    where = f"target {target.name}: library"
    try:
        archive = find_archive(target.library or "")
    except RunnerError as error:
        return ShippedLibrary(runtime=planned, sizes={}, findings=(finding_of(error, where, Severity.WARNING),))
    try:
        facts_of = {library.abi: library.facts for library in resolve_all(target.library or "")}
    except RunnerError as error:
        return ShippedLibrary(runtime=planned, sizes={}, findings=(finding_of(error, where),))
    target_abis = [abi_of(abi) for abi in target.abis] or list(facts_of)
    missing = [abi for abi in target_abis if abi not in facts_of]
    shipping = [facts_of[abi] for abi in target_abis if abi in facts_of]
    findings = []
    if missing:
        findings.append(
            Finding(
                severity=Severity.ERROR,
                what=f"the library that ships has nothing for {', '.join(missing)}",
                where=where,
                why=f"{target.library} has: {', '.join(facts_of)}",
                remedy="build those ABIs too, or take them out of the target's abis",
            )
        )
    # Beside that its release, its system, and pages that keep an app from 64-bit phones
    for facts in shipping:
        release = target.ort_release
        if release and facts.release and facts.release.split(".")[: release.count(".") + 1] != release.split("."):
            findings.append(
                Finding(
                    severity=Severity.ERROR, where=where,
                    what=f"the library that ships is ONNX Runtime {facts.release}, not {release}",
                    why=f"the target's ort_release is {release}",
                    remedy=f'write ort_release = "{facts.release}", or name the library of {release}',
                )
            )  # fmt: skip
        if target.platform is Platform.ANDROID and facts.system != "android":
            findings.append(
                Finding(
                    severity=Severity.ERROR, what=f"the library that ships was built for {facts.system}", where=where,
                    why="it does not need Android's libc.so", remedy="name an AAR, or libonnxruntime.so from one",
                )
            )  # fmt: skip
    if target.platform is Platform.ANDROID:
        narrow = any(facts.abi in WIDE_ABIS and 0 < facts.page_bytes < PAGE_BYTES for facts in shipping)
        small = [archive.name] if narrow and all(facts.system == "android" for facts in shipping) else []
        if is_archive(archive):  # in which the Java library counts as well
            abis = {facts.abi for facts in shipping}
            small = [name for name in small_pages(archive) if name.split("/")[1] in abis]
        if small:
            findings.append(
                Finding(
                    severity=Severity.WARNING, what=f"{', '.join(small)} cannot be loaded on phones with 16 KB pages",
                    where=where, why=f"segments are aligned to less than {PAGE_BYTES} bytes",
                    remedy="take ONNX Runtime 1.23 or later (its C library alone: 1.20), or build it with "
                    "`ort-mobile build`, which sets the linker's flag",
                )
            )  # fmt: skip
    runtime = runtime_of(shipping[0], *shipping[1:]) if shipping else None
    build = build_of({facts.sha256 for facts in shipping})
    return ShippedLibrary(
        runtime=runtime or planned,
        sizes={facts.abi: facts.size_bytes for facts in shipping},
        findings=tuple(findings),
        operators=operators_of(build) if build else None,
    )


def budget_findings(libraries: Iterable[ShippedLibrary], config: Config) -> tuple[Finding, ...]:
    """What is over the budget of [build] max_library_bytes, or was held to none; of an ABI the largest counts."""
    sizes: dict[str, int] = {}
    for library in libraries:
        for abi, size in library.sizes.items():
            sizes[abi] = max(size, sizes.get(abi, 0))
    return check_budget(sizes, config.build.max_library_bytes)


ROLLBACK = tuple(Fallback)
"""The order of every bundle: another way to open the same file first, the app's own models last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """What is known of an app: the target that it is of, its ONNX Runtime's release and providers, and the operator
    config that a reduced library was built from. What is "", empty or None is not checked.
    """

    target: str = ""
    release: str = ""
    providers: tuple[str, ...] = ()
    operators: Path | None = None


def operator_configs(config: Config, artifacts: Sequence[Path]) -> dict[str, str]:
    """Both operator configs that the builds of all targets need to run some artifacts in every way of the config."""
    builds = [planned_build(target, config) for target in config.targets]
    return config_texts(
        artifacts,
        providers=sorted({name for _, providers in builds for name in providers} - {"cpu"}),
        extended=any(kind is not BuildKind.MINIMAL for kind, _ in builds),
        abis=[abi for target in config.targets for abi in abis_of_target(target.platform, target.abis)],
    )


LIBRARY_LICENSE = "MIT"
"""ONNX Runtime's own."""


def library_licenses(targets: Sequence[Target]) -> dict[str, str]:
    """The licence of each target's library: as the config has it; of ONNX Runtime's own packages and builds MIT."""
    published = {target.name: LIBRARY_LICENSE for target in targets if not target.library or release_of(target.library)}
    return published | {target.name: target.library_license for target in targets if target.library_license}


def requirements(
    ships: Sequence[Shipped],
    models: Sequence[ModelSignature],
    files: Mapping[str, Path],
    operators: Mapping[str, str],
    licenses: Mapping[str, str],
) -> Iterator[AppRule]:
    """What apps need, for each target of `ships`, whose files are `files`.

    `operators` are operator configs by their file names, `licenses` those of the targets' libraries.
    """
    typed = hashlib.sha256(operators[TYPED_CONFIG_FILE].encode()).hexdigest()
    for target in dict.fromkeys(shipped.target for shipped in ships):
        of_target = [shipped for shipped in ships if shipped.target == target]
        read = [read_artifact(files[name]) for name in dict.fromkeys(shipped.file for shipped in of_target)]
        lowest, below = range_of(release_of(of_target[0].library) or of_target[0].ort_release)
        domains = {node.domain for model in read for graph in model.graph.walk() for node in graph.nodes}
        names = {shipped.model for shipped in of_target}
        yield AppRule(
            target=target,
            lowest_release=lowest,
            below_release=below,
            format_version=max(int(model.format_version) if model.format_version.isdigit() else 0 for model in read),
            providers=tuple(sorted({shipped.runs[0].provider for shipped in of_target})),
            custom_domains=tuple(sorted(domains - KNOWN_DOMAINS - {""})),
            operators_sha256=typed,
            signature_sha256=signature_digest([model for model in models if model.model in names]),
            library_license=licenses.get(target, ""),
        )


def signature_digest(models: Sequence[ModelSignature]) -> str:
    """The sha256 of the names, types and shapes of inputs and outputs: what the app's code was written for."""
    parts = [(model.model, model.inputs, model.outputs) for model in sorted(models, key=lambda model: model.model)]
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()


def refuse_misfit(app: App, old: Manifest, new: Manifest, folder: Path) -> None:
    """Raise CheckFailed where the bundle in `folder` is not for an app that has the old one, as far as it is known."""
    if not (app.target or app.release or app.providers or app.operators):
        return
    if objections := list(_objections(app, old.content, new.content, folder)):
        targets = [] if app.target else [row.target for row in new.content.requires]
        fits = [
            target
            for target in targets
            if not any(_objections(replace(app, target=target), old.content, new.content, folder))
        ]
        raise CheckFailed(
            "this update is not for this app",
            where=f"bundle {new.content_sha256[:16]}",
            why="; ".join(dict.fromkeys(objections)),
            remedy=f"name the app's target: --target {' or --target '.join(fits)}"
            if fits
            else "keep the old bundle, and ship the new one with an app that has what it requires",
        )


def _objections(app: App, old: Content, new: Content, folder: Path) -> Iterator[str]:
    if not new.requires:
        yield "it does not say what it requires of apps"
        return
    rows = [row for row in new.requires if app.target in ("", row.target)]
    if not rows:
        yield f"it has nothing for target {app.target}; it has {', '.join(row.target for row in new.requires)}"
    for row in rows:
        lowest, below = numbers_of(row.lowest_release), numbers_of(row.below_release)
        if app.release and not lowest <= numbers_of(app.release) < below:
            yield (
                f"target {row.target} needs ONNX Runtime {row.lowest_release} or later and below {row.below_release}; "
                f"the app has {app.release}"
            )
        if app.providers and (missing := [name for name in row.providers if name not in {*app.providers, "cpu"}]):
            yield f"target {row.target} needs the execution provider {', '.join(missing)}"
        if app.operators is not None:  # what the artifacts need that the app's operator config does not list
            has = read_config(app.operators)
            for shipped in (shipped for shipped in new.ships if shipped.target == row.target):
                providers = sorted({shipped.runs[0].provider} - {"cpu"})
                extended = shipped.library_kind != BuildKind.MINIMAL
                needs, error = needs_of_one(folder / shipped.file, providers=providers, extended=extended)
                if error:
                    yield f"{shipped.file}: {error.what}"
                yield from (
                    f"the app's library has no {lack.domain}:{lack.op} ({lack.line})"
                    for lack in covers(has, needs or {})
                )
        before = next((rule for rule in old.requires if rule.target == row.target), None)
        if before:
            if before.signature_sha256 != row.signature_sha256:
                yield (
                    f"target {row.target}: names, types or shapes of inputs or outputs are others than in the old "
                    "bundle"
                )
            if domains := sorted({*row.custom_domains} - {*before.custom_domains}):
                yield f"target {row.target} needs custom operators of {', '.join(domains)}"


CHIP_API_LEVEL = 31
"""From here on Android names a phone's chip (Build.SOC_MODEL), as Google Play does."""

SOC_MANUFACTURER = "QTI"
"""What phones with a Snapdragon have as Build.SOC_MANUFACTURER."""

PLUGIN = ("com.qualcomm.qti", "onnxruntime-android-qnn")
RUNTIME = ("com.qualcomm.qti", "qnn-runtime")
"""Group and artifact of the provider, and of the libraries that it runs on, for Gradle."""


def takes_contexts(target: Target) -> bool:
    """Whether a target has phones with a Snapdragon: its libraries are for arm64-v8a alone."""
    return target.platform is Platform.ANDROID and ARM64 in abis_of_target(target.platform, target.abis)


def chosen_contexts(
    contexts: Iterable[NpuContext], checks: Mapping[str, Mapping[str, tuple[OutputCheck, ...]]]
) -> tuple[NpuContext, ...]:
    """For each model and chip the first context whose outputs in the simulator are not wrong, or that it cannot run.

    They come in the order of the precisions that were asked for.
    """
    chosen: dict[tuple[str, str], NpuContext] = {}
    for context in contexts:
        if context.not_run or sound(checks.get(context.model, {}).get(context.variant.name, ())):
            chosen.setdefault((context.model, context.chip.name), context)
    return tuple(chosen.values())


def context_findings(
    contexts: Sequence[NpuContext], target: Target, kind: BuildKind, release: str
) -> Iterator[Finding]:
    """What speaks against contexts in a target, whose ONNX Runtime is of a kind and a release."""
    if not contexts or not takes_contexts(target):
        return
    where = f"target {target.name}"
    if kind is not BuildKind.FULL:
        yield Finding(
            severity=Severity.ERROR, what="contexts cannot be opened by this library", where=where,
            why=f"a {kind.value} build of ONNX Runtime loads no plugins, and QNN is one",
            remedy="ship a full build (one with an operator config may be full, too), or leave `contexts` out of "
            "[variants]",
        )  # fmt: skip
    for context in contexts:
        plugin, lowest = PLUGINS.get(context.qairt, ("", ""))
        if plugin and line_of(release) < line_of(lowest):
            yield Finding(
                severity=Severity.ERROR, what=f"{context.variant.name} needs ONNX Runtime {lowest} or later",
                where=f"{where}: {context.model}", why=f"the plugin {plugin} does, and the target has {release}",
                remedy=f"set the target's `ort_release` or `library` to {lowest} or later",
            )  # fmt: skip
        if context.plugin in NO_NPU:
            yield Finding(
                severity=Severity.ERROR, what=f"phones find no NPU for {context.variant.name}",
                where=f"{where}: {context.model}",
                why=f"its plugin {context.plugin} lists /dev, which Android lets no app do",
                remedy="make it again with another release of onnxruntime-qnn (pip install -U onnxruntime-qnn)",
            )  # fmt: skip
        built = built_for(context.compatibility)
        loading, why, remedy = loader_answer(built, context.chip, target.qnn_runtime or "")
        if loading is Loading.REFUSED:
            yield Finding(
                severity=Severity.ERROR, what=f"phones will refuse {context.variant.name}",
                where=f"{where}: {context.model}", why=why, remedy=remedy,
            )  # fmt: skip


def shipped_context(
    context: NpuContext, target: Target, model_sha256: str, folder: str, ort_release: str
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
    chip = f"{context.chip} ({CHIPS[context.chip].title})" if context.chip in CHIPS else context.chip
    text = f"context  {context.target}: {context.model} {context.variant.name} for {chip}, QAIRT {context.qairt}"
    return f"{text}; {context.not_run}" if context.not_run else text


def gradle_notations(contexts: Iterable[ShippedContext]) -> tuple[str, ...]:
    """The plugin and the runtime that apps need for contexts, as Gradle writes them."""
    newest = max(contexts, key=lambda context: (numbers_of(context.plugin), numbers_of(context.qairt)))
    return f"{':'.join(PLUGIN)}:{newest.plugin}", f"{':'.join(RUNTIME)}:{newest.qairt}"


def shipped_files(contexts: Iterable[ShippedContext]) -> dict[str, ShippedContext]:
    """The files of contexts by their paths in the bundle, each once."""
    return {path: context for context in contexts for path in context.files}


def other_phones(context: ShippedContext) -> Mapping[Loading, tuple[str, ...]]:
    """What the loaders of phones with other chips say to a context, in the order of their generations."""
    built = built_for(context.compatibility)
    answers: dict[Loading, tuple[str, ...]] = {}
    for chip in CHIPS.values():
        loading, _, _ = loader_answer(built, chip, context.qairt)
        answers[loading] = (*answers.get(loading, ()), chip.name)
    return answers


KEPT_FOLDER = "evidence/reference"
"""Where a bundle has raw tensors of the original models, in one folder for each model."""
MOST_KEPT_BYTES = 8 << 20
"""A model's inputs, or its outputs, that are larger than this do not go into the bundle."""
SPEED_KEYS = frozenset({*SPINNING_KEYS, PREPACKING_KEY, AFFINITY_KEY, BLOCK_KEY})
"""Session config entries that change times and nothing that is computed."""


def signature_of(
    model: str, file: Path, table: ModelConfig, *, size_of: str = "", constant_inputs: tuple[str, ...] = ()
) -> ModelSignature:
    """The inputs and outputs of a model as its ORT format file declares them, with what the config says of them."""
    graph = read_artifact(file).graph
    return ModelSignature(
        model=model,
        inputs=tuple(_tensor(name, graph) for name in graph.inputs if name not in graph.initializers),
        outputs=tuple(_tensor(name, graph) for name in graph.outputs),
        dimensions=table.sizes,
        guessed=tuple(name for name in table.guessed if name in table.dimensions),
        preprocess=preprocess_of(table),
        values=dict(table.inputs),
        size_of=size_of,
        padding=table.padding,
        license=table.license or "",
        optional_inputs=tuple(_tensor(name, graph) for name in graph.inputs if name in graph.initializers),
        constant_inputs=constant_inputs,
    )


def _tensor(name: str, graph: OrtGraph) -> TensorInfo:
    value_type = graph.node_args.get(name)
    if not isinstance(value_type, TensorType):
        return TensorInfo(name=name, dtype=None, shape=None)
    dtype: ElementType | None = TYPES_BY_CODE.get(value_type.elem_type)
    return TensorInfo(name=name, dtype=dtype, shape=value_type.shape)


def keep_reference(model: str, reference: Reference, folder: Path, check: CheckConfig) -> KeptReference:
    """What a bundle keeps of a reference whose raw tensors lie in `folder`: outputs only beside their inputs.

    Raises CheckFailed for a tensor that is not what the campaign recorded.
    """
    inputs = _tensors(model, reference.inputs, folder)
    outputs = _tensors(model, reference.outputs, folder) if inputs or not reference.inputs else ()
    return KeptReference(
        model=model,
        inputs=inputs,
        outputs=outputs,
        tolerance=tolerance_for(reference, check),
    )


def _tensors(model: str, tensors: Sequence[TensorFile], folder: Path) -> tuple[KeptTensor, ...]:
    """Tensors with what their files are; none where all together are large, or a text that may be is not there."""
    files = [folder / Path(tensor.file).name for tensor in tensors]
    strings = [file for tensor, file in zip(tensors, files, strict=True) if tensor.dtype is ElementType.STRING]
    sizes = (tensor_bytes(tensor) for tensor in tensors if tensor.dtype is not ElementType.STRING)
    if sum(sizes) > MOST_KEPT_BYTES or not all(file.is_file() for file in strings):
        return ()
    for tensor, file in zip(tensors, files, strict=True):
        if not file.is_file():
            raise _unrecorded(file, "it is not there")
        if tensor.crc32 is not None and zlib.crc32(file.read_bytes()) != tensor.crc32:
            raise _unrecorded(file, "its checksum is another one than that which the campaign recorded")
    if sum(file.stat().st_size for file in files) > MOST_KEPT_BYTES:
        return ()
    return tuple(
        KeptTensor(
            path=f"{KEPT_FOLDER}/{model}/{file.name}",
            size_bytes=file.stat().st_size,
            sha256=sha256_of(file),
            name=tensor.name,
            dtype=tensor.dtype,
            shape=tensor.shape,
        )
        for tensor, file in zip(tensors, files, strict=True)
    )


def _unrecorded(file: Path, why: str) -> CheckFailed:
    return CheckFailed(
        "a reference is not what the original model computed",
        where=str(file),
        why=f"{why}, and an app would judge its outputs by it",
        remedy="run the campaign again (unchanged models are not converted anew); where only the bundle was changed, "
        "make it again: `ort-mobile bundle rebuild FOLDER`",
    )


def library_name(target: Target) -> str:
    """How the bundle calls the library that a target names: a release as it is, a file without its folder."""
    given = target.library or ""
    return given if name_of(given) else Path(given).name


def libraries_of(targets: Iterable[Target], given: str | None) -> dict[str, tuple[str, ...]]:
    """The libraries for Android and Linux to prove, each with the targets that ship it.

    A library of the command line may be any computer's: it counts where it is an AAR or a release, of the platform that
    the release is for.
    """
    name = name_of(given or "")
    spare = {
        Platform.ANDROID: given if given and (given.endswith(".aar") or release_of(given)) else None,
        Platform.LINUX: given if name and name.scheme in ("jvm", "wheel") else None,
    }
    libraries: dict[str, tuple[str, ...]] = {}
    for target in dict.fromkeys(targets):
        library = target.library or spare.get(target.platform)
        if target.platform in spare and library:
            libraries[library] = (*libraries.get(library, ()), target.name)
    return libraries


ALL_ABIS = "all"
"""What stands for the ABIs of an xcframework."""


def custom_libraries(config: Config, target: Target) -> tuple[CustomLibrary, ...]:
    """Libraries of custom operators that ship to a target; UnavailableError where one for an ABI of it is missing.

    Apps of Apple's systems link one for all ABIs: ConfigError for more, CheckFailed for one that they cannot link.
    ConfigError for a name that no bundle has.
    """
    platform, linked = target.platform.value, target.platform in APPLE
    abis = abis_of_target(platform, target.abis)
    rows = tuple(row for abi in abis for row in fitting(config.custom_ops, platform, abi, linked=linked))
    if odd := next((row.path.name for row in rows if not re.match(FILE_PATH, row.path.name)), ""):
        raise ConfigError(
            f"a bundle cannot have a file named {odd!r}",
            where=f"target {target.name}: custom_ops",
            why="the name has characters that shells and languages read as their own",
            remedy="give the library a name of letters, digits, dots and dashes",
        )
    if not linked:
        return rows
    if len(files := {row.path for row in rows}) > 1:
        raise ConfigError(
            f"an app for {platform} can link one library of custom operators, and {len(files)} fit",
            where=f"target {target.name}: custom_ops",
            why=f"each defines the function {SYMBOL}",
            remedy=f"link them into one, which has a {SYMBOL} that calls those of all",
        )
    return tuple(row._replace(abi=ALL_ABIS) for row in rows[:1])


def custom_findings(config: Config, target: Target) -> Iterator[Finding]:
    """What speaks against those libraries: pages of 16 KB of phones, and app stores; raises as above."""
    for row in custom_libraries(config, target):
        where = f"target {target.name}: custom_ops"
        if target.platform is Platform.ANDROID and row.abi in WIDE_ABIS and read_elf(row.path).page_bytes < PAGE_BYTES:
            yield Finding(
                severity=Severity.WARNING, what=f"{row.path.name} for {row.abi} cannot be loaded on phones with 16 KB "
                "pages", where=where,
                why=f"its segments are aligned to less than {PAGE_BYTES} bytes; Google Play refuses such apps",
                remedy="build it with NDK r28 or later, or with -Wl,-z,max-page-size=16384; or take a newer release",
            )  # fmt: skip
        if target.platform in APPLE:
            with opened(row.path, SYMBOL, target.platform.value) as framework:
                embedded = framework.static and any(part.path.endswith(".framework") for part in framework.slices)
            if embedded:
                yield Finding(
                    severity=Severity.WARNING, what=f"{row.path.name} has its static code in .framework folders",
                    where=where, why="Xcode puts such a folder into the app, and the App Store refuses apps with one "
                    "that has no MinimumOSVersion (onnxruntime issue 27396)",
                    remedy="make an xcframework of the libraries alone: xcodebuild -create-xcframework -library",
                )  # fmt: skip


def runs_of(config: Config, choice: Choice) -> tuple[RunOptions, ...]:
    """The chosen way to run an artifact, then every other that the config has for it and that is legal there.

    Ways that differ in speed alone count once. Whatever depends on the phone's API level is left in: the proof says
    where it has no effect.
    """
    target, artifact = choice.target, choice.artifact
    place = DeviceFacts(name=target.name, platform=target.platform.value, abis=target.abis)
    planned_runs, _ = plan_runs(config.runs, [artifact], [place], advised=False)
    ways: dict[bytes, RunOptions] = {}
    names = tuple(dict.fromkeys(row.path.name for row in custom_libraries(config, target)))
    for options in (choice.options, *(planned.options for planned in planned_runs)):
        session_config = artifact.session_options | options.session_config
        whole = msgspec.structs.replace(options, session_config=session_config, custom_ops=names)
        computed = {key: value for key, value in session_config.items() if key not in SPEED_KEYS}
        parts = (whole.provider, whole.provider_options, whole.flags, computed)
        ways.setdefault(msgspec.json.encode(parts, order="sorted"), whole)
    return tuple(ways.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedInput:
    """An input of a model of several sizes: its shape in each, and what fills up smaller ones, if anything."""

    identifier: str
    dtype: ElementType | None
    shapes: tuple[tuple[int | str | None, ...], ...]
    padding: int | float | None

    @property
    def filled(self) -> bool:
        """Whether smaller ones are filled up."""
        return self.padding is not None

    @property
    def number(self) -> Code:
        """The padding as the languages write numbers."""
        return code((float if self.dtype and "float" in self.dtype else int)(self.padding or 0))

    @property
    def jvm_number(self) -> Code:
        """The same in Java and Kotlin, which have 16-bit floats by their bits, as integers."""
        packed = {ElementType.FLOAT16: "<e", ElementType.BFLOAT16: "<f"}.get(self.dtype or ElementType.FLOAT32)
        if packed:
            bits = int.from_bytes(struct.pack(packed, self.padding)[-2:], "little")
            return Code("{}L").format(bits)
        return self.number if "." in self.number or "e" in self.number else Code("{}L").format(self.number)


def sizes_of(content: Content, target: str) -> list[tuple[ModelSignature, ...]]:
    """The models of a target that apps have the choice of several sizes of.

    For each its sizes, those of the fewest elements first, and then the model of open sizes.
    """

    def elements(model: ModelSignature) -> int:
        return sum(prod(axis for axis in tensor.shape or () if isinstance(axis, int)) for tensor in model.inputs)

    ships = rows_of(content, target)
    shipped = {row.model: row for row in content.models if row.model in ships}
    fixed = [row for row in shipped.values() if all(tensor.fixed for tensor in row.inputs)]
    by_model = {name: sorted((row for row in fixed if row.size_of == name), key=elements) for name in shipped}
    return [(*sizes, shipped[name]) for name, sizes in by_model.items() if sizes]


def sized_inputs(sizes: Sequence[ModelSignature], taken: Collection[str]) -> Iterator[SizedInput]:
    """The inputs whose shape decides on one of `sizes_of`, with identifiers as `identifiers` gives them."""
    *fixed, model = sizes
    for tensor, identifier in identifiers(model.inputs, taken):
        if not tensor.fixed:
            rows = (row for size in fixed for row in size.inputs if row.name == tensor.name)
            yield SizedInput(
                identifier=identifier,
                dtype=tensor.dtype,
                shapes=tuple(row.shape or () for row in rows),
                padding=model.padding.get(tensor.name),
            )
