"""Whether an artifact will load and do what was measured on a release and build of ONNX Runtime: rules and preflight.

Sources: load matrix and limits measured with 26 stock wheels from 1.7.0 to 1.32.0; keys from the headers of those
releases; what a release opens, from its wheel (`release_table`).
"""

import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from device_runner import library as ort_library
from device_runner import options as runner_options
from device_runner import providers as runner_providers
from device_runner.device import Device
from device_runner.errors import RunnerError
from device_runner.spec import RunOptions
from pipeline import config as configs
from pipeline.compat.defects import (
    DEFECTS,
    REPLAY_NEEDS_KEY_SINCE,
    RUNTIME_STYLE_SINCE,
    ReadWeight,
    Runtime,
    marks_of,
    weight_reader,
)
from pipeline.compat.release_table import PARSED, Demand, DemandKind, release_table
from pipeline.config import tables as config_tables
from pipeline.core import errors as core_errors
from pipeline.core import providers as provider_rules
from pipeline.core import releases as ort_releases
from pipeline.core.errors import Finding, ModelError, Severity
from pipeline.core.releases import Release
from pipeline.model import onnx_view, ort_format
from pipeline.model import types as onnx_types

FULL_FORMATS: tuple[tuple[Release, frozenset[int]], ...] = (
    (Release(1, 5), frozenset({1})),
    (Release(1, 6), frozenset({2})),
    (Release(1, 7), frozenset({3})),
    (Release(1, 8), frozenset({4})),
    (Release(1, 13), frozenset({5})),
    (Release(1, 14), frozenset({1, 2, 3, 4, 5})),
    (Release(1, 16), frozenset({1, 2, 3, 4, 5, 6})),
)
"""ORT format versions that a full build loads, by release. Below 5, releases from 1.14 on upgrade in memory."""

MINIMAL_FORMATS: tuple[tuple[Release, frozenset[int]], ...] = (
    *FULL_FORMATS[:4],
    (Release(1, 13), frozenset({5})),
    (Release(1, 16), frozenset({5, 6})),
)
"""The same for minimal and extended builds, which never upgrade."""

WRITTEN_BY: Mapping[int, str] = {1: "1.5", 2: "1.6", 3: "1.7", 4: "1.8 to 1.12", 5: "1.13 to 1.15", 6: "1.16 and later"}
"""Releases that write each format version."""

OLD_OPSETS: tuple[tuple[Release, int], ...] = (
    (Release(1, 7), 13),
    (Release(1, 8), 14),
    (Release(1, 9), 15),
    (Release(1, 11), 16),
    (Release(1, 12), 17),
    (Release(1, 14), 18),
    (Release(1, 15), 19),
)
"""The highest opset of ai.onnx that a release from before the table takes (1.15 measured, others its Versioning.md)."""

NEVER_STORED = frozenset(range(21, 27))
"""Element types that the ORT format does not know, 4-bit integers first: they are written, and never loaded.

"Unsupported tensor data type '<unknown>'": measured with 1.31.1; the format's list of types ends at float8.
"""

GENERIC_COREML_SINCE = Release(1, 21)
"""CoreML takes options by name from here; before, "CoreML" is an unknown name to the generic call."""

_FLAG = "0|1"
_ANY = ".*"

SESSION_KEYS: Mapping[str, tuple[Release, str]] = {
    "session.load_model_format": (Release(1, 5), "ORT|ONNX"),
    "session.save_model_format": (Release(1, 5), "ORT|ONNX"),
    "session.disable_prepacking": (Release(1, 5), _FLAG),
    "session.use_env_allocators": (Release(1, 5), _FLAG),
    "session.set_denormal_as_zero": (Release(1, 6), _FLAG),
    "session.use_device_allocator_for_initializers": (Release(1, 8), _FLAG),
    **dict.fromkeys(runner_options.SPINNING_KEYS, (Release(1, 8), _FLAG)),
    "session.disable_quant_qdq": (Release(1, 8), _FLAG),
    "optimization.enable_gelu_approximation": (Release(1, 8), _FLAG),
    "session.use_ort_model_bytes_directly": (Release(1, 9), _FLAG),
    "ep.nnapi.partitioning_stop_ops": (Release(1, 9), _ANY),
    "session.qdqisint8allowed": (Release(1, 11), _FLAG),
    "session.enable_quant_qdq_cleanup": (Release(1, 11), _FLAG),
    "session.dynamic_block_base": (Release(1, 11), r"-?\d+"),
    "optimization.minimal_build_optimizations": (Release(1, 11), "save|apply|"),
    "session.force_spinning_stop": (Release(1, 12), _FLAG),
    "session.strict_shape_type_inference": (Release(1, 12), _FLAG),
    "session.x64quantprecision": (Release(1, 13), _FLAG),
    "session.use_ort_model_bytes_for_initializers": (Release(1, 13), _FLAG),
    "session.disable_double_qdq_remover": (Release(1, 14), _FLAG),
    "session.intra_op_thread_affinities": (Release(1, 14), r"[\d,;-]*"),
    "session.node_partition_config_file": (Release(1, 14), _ANY),
    "session.debug_layout_transformation": (Release(1, 15), _FLAG),
    "session.allow_released_opsets_only": (Release(1, 16), _FLAG),
    "session.disable_cpu_ep_fallback": (Release(1, 16), _FLAG),
    "session.disable_aot_function_inlining": (Release(1, 17), _FLAG),
    "ep.context_enable": (Release(1, 17), _FLAG),
    "ep.context_file_path": (Release(1, 17), _ANY),
    "ep.context_embed_mode": (Release(1, 17), _FLAG),
    "optimization.disable_specified_optimizers": (Release(1, 18), _ANY),
    "mlas.enable_gemm_fastmath_arm64_bfloat16": (Release(1, 18), _FLAG),
    "ep.context_node_name_prefix": (Release(1, 19), _ANY),
    "session.qdq_matmulnbits_accuracy_level": (Release(1, 19), r"\d"),
    "ep.share_ep_contexts": (Release(1, 20), _FLAG),
    "ep.dynamic.workload_type": (Release(1, 20), "Default|Efficient"),
    "session.model_external_initializers_file_folder_path": (Release(1, 21), _ANY),
    "session.collect_node_memory_stats_to_file": (Release(1, 21), _ANY),
    "session.disable_model_compile": (Release(1, 22), _FLAG),
    "ep.stop_share_ep_contexts": (Release(1, 22), _FLAG),
    "session.graph_optimizations_loop_level": (Release(1, 23), "0|1|2"),
    "optimization.enable_cast_chain_elimination": (Release(1, 23), _FLAG),
    "session.record_ep_graph_assignment_info": (Release(1, 24), _FLAG),
    "mlas.use_lut_gemm": (Release(1, 24), _FLAG),
    "mlas.disable_kleidiai": (Release(1, 25), _FLAG),
    "session.use_memory_mapped_ort_model": (Release(1, 26), _FLAG),
    "session.disable_qdq_constant_folding": (Release(1, 26), _FLAG),
    "session.intra_op.spin_duration_us": (Release(1, 26), r"\d+"),
    "session.inter_op.spin_duration_us": (Release(1, 26), r"\d+"),
    "session.intra_op.spin_backoff_max": (Release(1, 26), r"\d{1,2}"),
    "session.inter_op.spin_backoff_max": (Release(1, 26), r"\d{1,2}"),
    "optimization.constant_folding_max_output_size_in_bytes": (Release(1, 27), r"\d+"),
    configs.REPLAY_KEY: (Release(1, 30), _FLAG),
    "session.prepack.enable_parallel": (Release(1, 31), _FLAG),
}
"""Session config entries that matter on devices: the release from which they are known, and the values they take.

ONNX Runtime takes unknown keys and most wrong values without a word.
"""


class ArtifactFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What of an artifact depends on the release: `opset` is that of ai.onnx, `demands` what some release lacks.

    `unjudged` is what could not be asked: `having` has the releases for which that makes no difference. `replays`: it
    holds saved runtime optimizations; `small` names initializers of types that ORT format files cannot hold; `defects`
    are those of `compat.defects` that it may meet. `claims_asked`: the demands name the provider that takes all nodes
    that ask for a kernel, where one does.
    """

    name: str
    format_version: str
    opset: int
    replays: bool
    demands: tuple[Demand, ...] = ()
    unjudged: tuple[Demand, ...] = ()
    small: tuple[str, ...] = ()
    defects: Mapping[str, str] = {}
    claims_asked: bool = False
    file: str = ""
    """Where it lies, for questions that depend on how it is run; "" where it is gone."""


DEFAULT_USE = RunOptions()


def use_of(options: RunOptions, session_options: Mapping[str, str]) -> RunOptions:
    """How run options use a library: an artifact's own session options come with it."""
    return msgspec.structs.replace(options, session_config={**session_options, **options.session_config})


def runtime_of(facts: ort_library.LibraryFacts, *others: ort_library.LibraryFacts) -> Runtime | None:
    """What a library can load and has; None for one that does not tell its release. `others` are of further ABIs."""
    if not facts.release:
        return None
    return Runtime(
        release=ort_releases.line_of(facts.release),
        kind=config_tables.BuildKind(facts.kind),
        providers=frozenset(facts.providers),
        system=facts.system,
        abis=tuple(library.abi for library in (facts, *others)),
    )


def runtime_on(device: Device, library: str | None, plugins: Collection[str] = ()) -> Runtime | None:
    """What a device will load files with, as far as it is known before anything runs; None where it is not.

    `plugins` are providers that it is given beside those of its library. A library that cannot be read is left to the
    device, which says what is wrong with it.
    """
    try:
        runtime = runtime_of(device.library_for(library).facts)
        plugged = device.plugins | set(plugins)
        return runtime and msgspec.structs.replace(runtime, plugins=plugged, shader_f16=device.shader_f16)
    except (RunnerError, OSError) as error:
        log.info("%s: its library is not known before it runs: %s", device.name, error)
        return None


def facts_of(model: ort_format.OrtModel, name: str, read: ReadWeight | None = None) -> ArtifactFacts:
    """What of a parsed artifact depends on the release; without `read`, its int8 weights are not looked at."""
    graphs = list(model.graph.walk())
    imports, asked = model.opset_import, release_table().file_demands(model)
    return ArtifactFacts(
        name=name,
        format_version=model.format_version,
        opset=imports.get("", imports.get(ort_format.DEFAULT_DOMAIN, 1)),
        replays=any(graph.runtime_optimizations for graph in graphs),
        demands=asked.demands,
        unjudged=asked.unjudged,
        small=tuple(
            f"{name} ({onnx_types.ORT_NAMES.get(tensor.data_type, tensor.data_type)})"
            for graph in graphs
            for name, tensor in graph.initializers.items()
            if tensor.data_type in NEVER_STORED
        ),
        defects=marks_of(model, read),
    )


def check_artifact(artifact: ArtifactFacts, runtime: Runtime, use: RunOptions = DEFAULT_USE) -> tuple[Finding, ...]:
    """Everything that speaks against loading this artifact with this library in this way; empty when nothing does."""
    rules = _ONNX_RULES if artifact.format_version == onnx_view.ONNX_FORMAT else _ARTIFACT_RULES
    return tuple(finding for rule in rules for finding in rule(artifact, runtime, use))


def check_onnx(model: ArtifactFacts, runtime: Runtime, use: RunOptions = DEFAULT_USE) -> tuple[Finding, ...]:
    """As `check_artifact`, of a model in ONNX format, whose opset and demands count."""
    if runtime.kind is not config_tables.BuildKind.FULL:
        what = f"this library ({runtime.kind} build of {runtime.release}) does not load ONNX models"
        why, remedy = "it knows the ORT format alone", "convert the model (`ort-mobile convert`), or ship a full build"
        return (_error(what, model.name, why, remedy),)
    return tuple(finding for rule in _ONNX_RULES[1:] for finding in rule(model, runtime, use))


def check_opening(artifact: ArtifactFacts, runtime: Runtime, use: RunOptions = DEFAULT_USE) -> tuple[Finding, ...]:
    """Of `check_artifact` what keeps a library from opening the file at all."""
    return tuple(finding for rule in (_format, _before_table, _demands) for finding in rule(artifact, runtime, use))


def check_use(use: RunOptions, runtime: Runtime, where: str = "") -> tuple[Finding, ...]:
    """Everything that speaks against running anything in this way with this library, whatever the artifact."""
    return tuple(finding for rule in _USE_RULES for finding in rule(use, runtime, where))


def loadable_by(format_version: int, kind: config_tables.BuildKind) -> tuple[str, ...]:
    """The release lines that load a format version, as `1.16 and later` or `1.8 to 1.12`."""
    rows = FULL_FORMATS if kind is config_tables.BuildKind.FULL else MINIMAL_FORMATS
    spans = []
    for at, (since, formats) in enumerate(rows):
        if format_version in formats:
            until = rows[at + 1][0].minor - 1 if at + 1 < len(rows) else None
            spans.append(f"1.{since.minor} and later" if until is None else f"1.{since.minor} to 1.{until}")
    return tuple(spans)


def _finding(severity: Severity, what: str, where: str, why: str, remedy: str) -> Finding:
    return Finding(severity=severity, what=what, where=where, why=why, remedy=remedy)


_error, _warning = partial(_finding, Severity.ERROR), partial(_finding, Severity.WARNING)


def _format(artifact: ArtifactFacts, runtime: Runtime, use: RunOptions) -> Iterator[Finding]:
    if artifact.format_version == onnx_view.ONNX_FORMAT:
        if runtime.kind is not config_tables.BuildKind.FULL:
            yield _error(
                f"ONNX Runtime {runtime.release} ({runtime.kind}) loads no ONNX files",
                artifact.name,
                "a minimal build has no parser of them",
                "ship a full library, or style fixed (ORT format)",
            )
        return
    if not re.fullmatch(r"[1-9]\d{0,3}", artifact.format_version):
        yield _error(
            f"ORT format version {artifact.format_version!r} is none",
            artifact.name,
            "the file says so of itself",
            "convert the model again",
        )
        return
    version = int(artifact.format_version)
    formats: frozenset[int] = ort_releases.at_release(
        FULL_FORMATS if runtime.kind is config_tables.BuildKind.FULL else MINIMAL_FORMATS, runtime.release
    )
    if version not in formats and (runtime.release <= ort_releases.NEWEST_KNOWN or version <= max(formats)):
        writers = WRITTEN_BY.get(version, "a later release")
        able = [f"ONNX Runtime {span}" for span in loadable_by(version, runtime.kind)]
        if version == max(WRITTEN_BY):  # written since the table begins: it knows what else the file asks
            able = [release_table().first(_having_all(artifact, runtime, use))]
        yield _error(
            f"ONNX Runtime {runtime.release} ({runtime.kind}) does not load ORT format version {version}",
            artifact.name,
            f"it loads {', '.join(map(str, sorted(formats)))}; {writers} wrote this one",
            f"convert again with onnxruntime {WRITTEN_BY[max(formats)]}"
            + (f", or ship {' or '.join(able)}" if able else ""),
        )


def _before_table(artifact: ArtifactFacts, runtime: Runtime, use: RunOptions) -> Iterator[Finding]:
    """Of a release from before the table only the opset is known."""
    if release_table().bit(runtime.release) or runtime.kind is not config_tables.BuildKind.FULL:
        return
    highest = ort_releases.at_release(OLD_OPSETS, runtime.release)
    able = release_table().first(_having_all(artifact, runtime, use))
    if artifact.opset > highest:
        yield _error(
            f"ONNX Runtime {runtime.release} does not take opset {artifact.opset}",
            artifact.name,
            f"a full build checks the model's opset even where all operators are older; it takes {highest}",
            f"export the model with opset {highest} or lower, or ship {able}",
        )
    elif artifact.format_version in ("", onnx_view.ONNX_FORMAT):
        oldest = release_table().releases[0].line
        yield _warning(
            f"whether ONNX Runtime {runtime.release} opens this was not judged",
            artifact.name,
            f"its IR version, operators and kernels are known from {oldest} on",
            f"ship {able}, or try it",
        )


def _demands(artifact: ArtifactFacts, runtime: Runtime, use: RunOptions) -> Iterator[Finding]:
    """What the release that runs it does not have of what the file asks.

    The release that a remedy names has all that the file asks and that keeps this library from running it.
    """
    table = release_table()
    bit = table.bit(runtime.release) if runtime.release <= ort_releases.NEWEST_KNOWN else 0
    asked, having = _asked(artifact, runtime), _having_all(artifact, runtime, use)
    lacking = [demand for demand in asked if bit and not demand.having & bit]
    kinds = {demand.kind for demand in lacking}
    said = {DemandKind.OPSET} if DemandKind.OPERATOR in kinds else set()  # a missing operator says more
    for patch, its_bit in table.earlier(runtime.release).items() if bit else ():
        for demand in asked:
            if demand not in lacking and not demand.having & its_bit and not demand.taken_by:
                yield _warning(
                    f"ONNX Runtime {patch} {demand.what}",
                    artifact.name,
                    f"{demand.why}; a later patch of {runtime.release} has it",
                    ", or ".join(filter(None, [demand.remedy, f"ship {table.first(demand.having & having)}"])),
                )
    for demand in lacking:
        if demand.kind in said:
            continue
        taker = _taker(demand, artifact, use)
        yield (_warning if taker else _error)(
            f"ONNX Runtime {runtime.release} {demand.what}",
            artifact.name,
            demand.why + (f"; it runs only where {taker} takes the node" if taker else ""),
            ", or ".join(filter(None, [demand.remedy, f"ship {table.first(demand.having & having)}"])),
        )


def _asked(artifact: ArtifactFacts, runtime: Runtime) -> list[Demand]:
    """The demands that this kind of library looks at."""
    return [
        demand
        for demand in artifact.demands
        if demand.kind not in PARSED or runtime.kind is config_tables.BuildKind.FULL
    ]


def _having_all(artifact: ArtifactFacts, runtime: Runtime, use: RunOptions) -> int:
    """The bits of the releases that have all that the file asks of them, but for kernels of nodes that others take."""
    having = release_table().everywhere
    for demand in _asked(artifact, runtime):
        having &= having if _taker(demand, artifact, use) else demand.having
    return having


def _taker(demand: Demand, artifact: ArtifactFacts, use: RunOptions) -> str:
    """The provider that may take the nodes which ask for a kernel of the CPU; "" where none does."""
    if demand.kind is not DemandKind.KERNEL:
        return ""
    return demand.taken_by or (use.provider if not use.on_cpu and not artifact.claims_asked else "")


def _unjudged(artifact: ArtifactFacts, runtime: Runtime, _use: RunOptions) -> Iterator[Finding]:
    """What of the file was not asked, where the release may lack it."""
    bit = release_table().bit(runtime.release) if runtime.release <= ort_releases.NEWEST_KNOWN else 0
    told = [demand.what for demand in artifact.unjudged if bit and not demand.having & bit]
    if told:
        yield _warning(
            f"whether ONNX Runtime {runtime.release} has kernels for all of the file was not judged",
            artifact.name,
            f"not known are {', '.join(told[:4])}" + f" and {len(told) - 4} more" * (len(told) > 4),
            "convert it with --ort-release, which infers types and inlines functions, or try it in that release",
        )


def _small(artifact: ArtifactFacts, _runtime: Runtime, _use: RunOptions) -> Iterator[Finding]:
    if artifact.small:
        yield _error(
            "ONNX Runtime cannot load this file: the ORT format has no initializers of these types",
            artifact.name,
            f"it holds {', '.join(artifact.small[:3])}{' and more' * (len(artifact.small) > 3)}",
            "use level all, where the optimizer can pack 4-bit weights into MatMulNBits, quantize to 8 bits, or ship "
            "the ONNX model",
        )


def _replay(artifact: ArtifactFacts, runtime: Runtime, use: RunOptions) -> Iterator[Finding]:
    if not artifact.replays:
        return
    release = str(runtime.release)
    if runtime.release < RUNTIME_STYLE_SINCE:
        yield _warning(
            f"ONNX Runtime {release} ignores saved runtime optimizations",
            artifact.name,
            "they came with 1.11",
            "ship fixed style",
        )
    elif runtime.kind is config_tables.BuildKind.MINIMAL:
        yield _warning(
            "a minimal build ignores saved runtime optimizations",
            artifact.name,
            "only extended and full replay them",
            'build with kind = "extended", or ship fixed style',
        )
    elif runtime.release >= REPLAY_NEEDS_KEY_SINCE and (lost := artifact.defects.get("unreplayable")):
        yield _warning(
            f"ONNX Runtime {release} runs the file without its saved runtime optimizations",
            artifact.name,
            f"the default changed with 1.30, and with {configs.REPLAY_KEY} the file does not open: the saved fusions "
            f"of {lost} "
            "lack what they produce",
            "ship fixed style",
        )
    elif runtime.release >= REPLAY_NEEDS_KEY_SINCE and use.session_config.get(configs.REPLAY_KEY) != "1":
        yield _warning(
            f"ONNX Runtime {release} ignores saved runtime optimizations unless the app asks for them",
            artifact.name,
            "the default changed with 1.30 (pull request 32077)",
            f'set {configs.REPLAY_KEY} = "1" in the app',
        )


def _defects(artifact: ArtifactFacts, runtime: Runtime, use: RunOptions) -> Iterator[Finding]:
    in_session = msgspec.structs.replace(runtime, asks_replay=use.session_config.get(configs.REPLAY_KEY) == "1")
    for defect in DEFECTS:
        mark = artifact.defects.get(defect.name, "")
        if mark and defect.shows(in_session) and not defect.avoided(use):
            elsewhere = defect.onnx and not use.on_cpu  # another provider may take the nodes
            sure = defect.measured is None or runtime.release in defect.measured
            tried = "" if sure else f" (measured with {', '.join(map(str, sorted(defect.measured or ())))})"
            yield (_error if sure and not (defect.depends or elsewhere) else _warning)(
                defect.what.format(mark=mark), artifact.name, f"{defect.why.format(mark=mark)}{tried}", defect.remedy
            )


def _gpu(artifact: ArtifactFacts, runtime: Runtime, use: RunOptions) -> Iterator[Finding]:
    """What a GPU would load and then fail on: asked of the file itself, as it depends on the options.

    Releases from before the rules have no WebGPU, which is a finding of its own or shows at the run.
    """
    if (
        artifact.file
        and runtime.release >= ort_releases.OLDEST_RULES
        and runner_providers.provider_named(use.provider).gpu
    ):
        from pipeline.compat.gpu import gpu_findings  # the rules of a provider: who runs on the CPU needs none

        yield from gpu_findings(
            Path(artifact.file), runtime.release, use.provider_options, artifact.name, half=runtime.shader_f16
        )


CHANGING = frozenset({"NonZero", "NonMaxSuppression", "Unique", "Compress", "StringSplit"})
"""Operators whose outputs have as many elements as the values of their inputs want."""


def _captured(artifact: ArtifactFacts, _runtime: Runtime, use: RunOptions) -> Iterator[Finding]:
    """Conditions of a captured CUDA graph that the file shows; the session looks for nodes on another provider, the
    probe for outputs that are no tensors, binds all in the GPU's memory, and has one thread call the session.
    """
    if not (artifact.file and use.captures_graph) or runner_providers.provider_named(use.provider).gpu:
        return
    from pipeline.model import ort_format

    nodes = [node for graph in ort_format.read_artifact(Path(artifact.file)).graph.walk() for node in graph.nodes]
    for operators, why in (
        ({"If", "Loop", "Scan"}, "a captured graph has no control flow"),
        (CHANGING, "shapes of a captured graph cannot change from run to run"),
    ):
        if names := [f"{node.op_type} '{node.name or node.outputs[0]}'" for node in nodes if node.op_type in operators]:
            key = runner_providers.provider_named(use.provider).capture
            yield _error(f"{key} cannot capture {', '.join(names[:4])}", artifact.name, why, f"leave {key} out")


def _provider(use: RunOptions, runtime: Runtime, where: str) -> Iterator[Finding]:
    if runtime.providers is not None and use.provider not in runtime.providers | runtime.plugins | {
        runner_providers.CPU
    }:
        built = provider_rules.BUILD_PROVIDERS.get(use.provider)
        remedy = runner_providers.provider_named(use.provider).remedy  # of what no build can have
        elsewhere = (built.elsewhere if runtime.system in built.converting_only else "") if built else remedy
        if not elsewhere and (package := runner_providers.provider_named(use.provider).plugin):
            elsewhere = (
                f"give its plugin: --plugin {use.provider}={package.library},…, or `plugins` in [measure]; "
                f"or take a library with {use.provider}"
            )
        yield _error(
            f"this library has no {use.provider}",
            where,
            f"it has: {', '.join(sorted(runtime.providers | {runner_providers.CPU}))}",
            elsewhere or f"build it in ([build] providers), or take a library with {use.provider}",
        )
    provider = runner_providers.provider_named(use.provider)
    if use.provider_options and runtime.release < provider.named_since:
        yield _error(
            f"{provider.title} of ONNX Runtime {runtime.release} takes no options by name",
            where,
            "they came with 1.21; before, there are flags only",
            "ship ONNX Runtime 1.21 or later, or use no options",
        )


def _keys(use: RunOptions, runtime: Runtime, where: str) -> Iterator[Finding]:
    import difflib

    for key, value in sorted(use.session_config.items()):
        if key not in SESSION_KEYS:
            if close := difflib.get_close_matches(key, SESSION_KEYS, n=1, cutoff=0.85):
                yield _warning(
                    f"{key} is unknown",
                    where,
                    "ONNX Runtime takes unknown keys without a word",
                    f"did you mean {close[0]}?",
                )
            continue
        since, values = SESSION_KEYS[key]
        if runtime.release < since:
            yield _warning(
                f"{key} has no effect in ONNX Runtime {runtime.release}",
                where,
                f"it came with {since}",
                "remove it, or ship that release",
            )
        if not re.fullmatch(values, value):
            yield _warning(
                f"{key} does not take {value!r}",
                where,
                "ONNX Runtime takes wrong values without a word",
                f"it takes {values.replace('|', ' or ')}",
            )


_ARTIFACT_RULES: Sequence[Callable[[ArtifactFacts, Runtime, RunOptions], Iterator[Finding]]] = (
    _format,
    _before_table,
    _demands,
    _unjudged,
    _small,
    _replay,
    _defects,
    _gpu,
    _captured,
)
_ONNX_RULES: Sequence[Callable[[ArtifactFacts, Runtime, RunOptions], Iterator[Finding]]] = (
    _format,
    _before_table,
    _demands,
    _unjudged,
    _defects,
    _gpu,
    _captured,
)
_USE_RULES: Sequence[Callable[[RunOptions, Runtime, str], Iterator[Finding]]] = (_provider, _keys)

log = logging.getLogger(__name__)

ReadArtifacts = Mapping[str, ArtifactFacts | Finding]
"""By name what could be read of artifacts, and what is wrong with the others."""


def read_artifacts(files: Mapping[str, Path]) -> ReadArtifacts:
    """Read artifacts (ORT format files by name); equal files are read once. Files of another format are left out."""
    from pipeline.model import ort_format

    facts_by_file: dict[tuple[int, int], ArtifactFacts] = {}
    read: dict[str, ArtifactFacts | Finding] = {}
    for name, file in files.items():
        if file.suffix.lower() not in (".ort", ".onnx"):
            continue
        try:
            identity = (file.stat().st_dev, file.stat().st_ino)
            if identity not in facts_by_file:
                reader = weight_reader(file) if file.suffix.lower() == ".ort" else None
                model = ort_format.read_artifact(file) if reader else onnx_view.read_onnx(file, whole=True)
                facts_by_file[identity] = facts_of(model, name, reader)
            read[name] = msgspec.structs.replace(facts_by_file[identity], name=name, file=str(file))
        except ModelError as error:
            if file.suffix.lower() == ".ort":  # of an ONNX file ONNX Runtime itself says what is wrong
                read[name] = core_errors.finding_of(error, name)
        except OSError as error:
            if file.suffix.lower() == ".onnx":
                continue
            read[name] = core_errors.finding_of(ModelError("the file cannot be read", why=str(error)), name)
    return read


def findings_for(read: ReadArtifacts, name: str, runtime: Runtime, use: RunOptions) -> tuple[Finding, ...]:
    """All that speaks against running one artifact in this way; one that cannot be read has that as its error."""
    facts = read.get(name)
    if isinstance(facts, Finding):
        return (facts,)
    return (*(check_artifact(facts, runtime, use) if facts else ()), *check_use(use, runtime, name))


def first_error(findings: Iterable[Finding]) -> str:
    """The first thing that will not work on one line, "" where nothing speaks against it."""
    return next((finding.text for finding in core_errors.errors(findings)), "")
