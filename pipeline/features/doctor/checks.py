"""The checklist: each row is one piece of advice of ONNX Runtime's documentation, and how it is tested on a model.

Sources are pages below onnxruntime.ai/docs/, and docs/facts/ where something else was measured. What a row proposes is
measured by the engine of campaigns; a row that cannot apply says why.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from device_runner.options import AFFINITY_KEY, BLOCK_KEY
from device_runner.providers import CPU, NNAPI, PROVIDERS
from device_runner.spec import ExecutionMode, NnapiFlag, OptimizationLevel
from pipeline.campaign.options import PREPACKING_KEY, SPINNING_KEYS
from pipeline.core.providers import PROVIDER_RULES
from pipeline.core.releases import Release
from pipeline.features.doctor.subject import ExaminedModel, Remedy
from pipeline.passes.surgery import CONSTANT_INITIALIZERS, FIXED_DIMENSIONS

THREADING = "performance/tune-performance/threading.html"
MEMORY = "performance/tune-performance/memory.html"
TROUBLE = "performance/tune-performance/troubleshooting.html"
LEVELS = "performance/model-optimizations/graph-optimizations.html"
ORT_FORMAT = "performance/model-optimizations/ort-format-models.html"
QUANTIZATION = "performance/model-optimizations/quantization.html"
MOBILE = "tutorials/mobile/helpers/model-usability-checker.html"
XNNPACK_PAGE = "execution-providers/Xnnpack-ExecutionProvider.html"
PROFILING = "performance/tune-performance/profiling-tools.html"

DENORMAL_KEY = "session.set_denormal_as_zero"
CAST_KEY = "optimization.enable_cast_chain_elimination"
CAST_CHAINS_SINCE = Release(1, 23)
MAPPED = {"session.use_memory_mapped_ort_model": "1", "session.use_ort_model_bytes_for_initializers": "1"}
MAPPED_SINCE = Release(1, 26)
DIAGNOSTIC_KEYS = (
    "enable_profiling", "session.debug_layout_transformation", "session.collect_node_memory_stats_to_file",
    "session.record_ep_graph_assignment_info",
)  # fmt: skip
"""Session config entries that serve to look for defects and cost time."""

WORTH_TELLING = 0.01
"""Operators with less than this share of the time are not worth a change."""

SLOW_FIRST_RUN = 2.0
"""From how many times the usual inference on the first one is worth a warm-up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckProposal:
    """What a check wants for a model: remedies to measure, or what is known without that.

    `why_not`: it does not apply, and why. `note` is what was found, `advice` what to do that is no setting to be
    measured here; `share` the share of the time that it concerns, and so the most that can be gained.
    """

    remedies: tuple[Remedy, ...] = ()
    why_not: str = ""
    note: str = ""
    advice: str = ""
    share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorCheck:
    """One row: its name, what is checked, how, where the advice comes from, and what it proposes for a model."""

    id: str
    title: str
    how: str
    source: str
    propose: Callable[[ExaminedModel], CheckProposal]


def _setting(name: str, **settings: object) -> CheckProposal:
    return CheckProposal(remedies=(Remedy(name=name, settings=settings),))


def _threads(model: ExaminedModel) -> CheckProposal:
    """1, 2, the fast cores and all; 0 lets ONNX Runtime take the physical cores and pin its threads to them."""
    counts = {0, 1, 2, len(model.fast_cores), model.cores}
    wanted = sorted(n for n in counts if n != model.start.intra_op_threads and (n <= model.cores or not model.cores))
    if AFFINITY_KEY in model.start.session_config:
        return CheckProposal(why_not=f"{AFFINITY_KEY} is set, which fixes the number of threads")
    named = ((n, f"threads={n}" if n else "threads=default") for n in wanted if n or model.start.intra_op_threads)
    return CheckProposal(remedies=tuple(Remedy(name=name, settings={"threads": n}) for n, name in named))


def _one_thread(model: ExaminedModel) -> str:
    return "one thread has nobody to wait for" if model.start.intra_op_threads == 1 or model.cores == 1 else ""


def _spinning(model: ExaminedModel) -> CheckProposal:
    if reason := _one_thread(model):
        return CheckProposal(why_not=reason)
    off = model.start.session_config.get(SPINNING_KEYS[0]) == "0"
    return _setting(f"spinning={'on' if off else 'off'}", spinning=off)


def _dynamic_block(model: ExaminedModel) -> CheckProposal:
    if reason := _one_thread(model):
        return CheckProposal(why_not=reason)
    if BLOCK_KEY in model.start.session_config:
        return CheckProposal(why_not="it is set already")
    return _setting("dynamic_block_base=4", dynamic_block_base=4)


def _affinities(model: ExaminedModel) -> CheckProposal:
    fast = model.fast_cores
    if len(fast) == model.cores:
        why = "all cores are equally fast" if model.cores else "the device does not tell the speed of its cores"
        return CheckProposal(why_not=why)
    if len(fast) == 1:
        return CheckProposal(why_not="there is one fast core, and the first thread is the app's own")
    groups = ";".join(str(number) for number in fast[1:])
    return _setting("affinities=fast cores", threads=len(fast), affinities=groups)


def _execution_mode(model: ExaminedModel) -> CheckProposal:
    if model.start.execution_mode is ExecutionMode.PARALLEL:
        return _setting("execution_mode=sequential", execution_mode=ExecutionMode.SEQUENTIAL, inter_op_threads=0)
    if model.traits.width < 2:
        return CheckProposal(why_not="the graph has no two operators that could run at the same time and take time")
    return _setting("execution_mode=parallel", execution_mode=ExecutionMode.PARALLEL, inter_op_threads=2)


def _arena(model: ExaminedModel) -> CheckProposal:
    on = not model.start.cpu_arena
    return _setting(f"memory_arena={'on' if on else 'off'}", memory_arena=on)


def _pattern(model: ExaminedModel) -> CheckProposal:
    if model.start.execution_mode is ExecutionMode.PARALLEL:
        return CheckProposal(why_not="memory is planned in sequential execution only")
    on = not model.start.memory_pattern
    return _setting(f"memory_pattern={'on' if on else 'off'}", memory_pattern=on)


def _prepacking(model: ExaminedModel) -> CheckProposal:
    if model.start.session_config.get(PREPACKING_KEY) == "1":
        return CheckProposal(remedies=(Remedy(name="prepacking=on", without=(PREPACKING_KEY,)),))
    return _setting("prepacking=off", prepacking=False)


WITHOUT_LAYOUTS = Remedy(name="level=extended", level=OptimizationLevel.EXTENDED)


def _level(model: ExaminedModel) -> CheckProposal:
    if not model.is_onnx:
        return CheckProposal(
            why_not="levels have no effect on an ORT format file: its level was chosen when it was converted"
        )
    if model.start.optimization_level is not OptimizationLevel.ALL:
        return CheckProposal(remedies=(Remedy(name="level=all", level=OptimizationLevel.ALL),))
    return CheckProposal(remedies=(WITHOUT_LAYOUTS,))


def _ort_format(model: ExaminedModel) -> CheckProposal:
    if not model.is_onnx:
        return CheckProposal(why_not="the file is in ORT format already")
    return CheckProposal(remedies=(Remedy(name="ORT format", ort_format=True),))


def _mapping(model: ExaminedModel) -> CheckProposal:
    if model.is_onnx:
        return CheckProposal(why_not="only files in ORT format are mapped")
    if model.release < MAPPED_SINCE:
        return CheckProposal(why_not=f"ONNX Runtime maps files from {MAPPED_SINCE} on")
    return _setting("memory mapping", session_config=MAPPED)


def _denormals(model: ExaminedModel) -> CheckProposal:
    if model.start.session_config.get(DENORMAL_KEY) == "1":
        return CheckProposal(why_not="they are set to zero already")
    return _setting("denormals=zero", session_config={DENORMAL_KEY: "1"})


def _transposes(model: ExaminedModel) -> CheckProposal:
    """Those of the model, and those that ONNX Runtime puts in where an operator wants another layout."""
    borders, transposed = model.share("ReorderInput", "ReorderOutput"), model.share("Transpose")
    if transposed + borders < WORTH_TELLING:
        return CheckProposal(why_not=f"they take {transposed + borders:.1%} of the time")
    note = f"{transposed:.1%} of the time in {model.nodes('Transpose')} Transpose nodes"
    note += f", {borders:.1%} in changes of layout that ONNX Runtime added" if borders else ""
    remedies = []
    if model.start.provider == NNAPI and NnapiFlag.USE_NCHW not in model.start.flags:
        flags = (*(flag.value for flag in model.start.flags), NnapiFlag.USE_NCHW.value)
        remedies.append(Remedy(name="USE_NCHW", settings={"flags": flags}))
    if borders >= WORTH_TELLING and model.is_onnx and model.start.optimization_level is OptimizationLevel.ALL:
        remedies.append(WITHOUT_LAYOUTS)
    advice = "" if transposed < WORTH_TELLING else "export the model with channels first (tf2onnx --inputs-as-nchw)"
    if not (remedies or advice):
        advice = "convert the model again at level extended, and compare"
    return CheckProposal(remedies=tuple(remedies), note=note, advice=advice, share=transposed + borders)


def _casts(model: ExaminedModel) -> CheckProposal:
    share, count = model.share("Cast"), model.nodes("Cast")
    if share < WORTH_TELLING:
        return CheckProposal(
            why_not=f"{count} Cast nodes take {share:.1%} of the time" if count else "no Cast node is left"
        )
    note = f"{share:.1%} of the time in {count} Cast nodes"
    advice = "the CPU computes half floats as float: ship the float model for it" if model.traits.half else (
        "remove the Casts where the model is exported"
    )  # fmt: skip
    remedies: tuple[Remedy, ...] = ()
    if model.is_onnx and model.release >= CAST_CHAINS_SINCE:
        remedies = (Remedy(name="cast chains off", settings={"session_config": {CAST_KEY: "1"}}),)
    return CheckProposal(remedies=remedies, note=note, advice=advice, share=share)


def _dimensions(model: ExaminedModel) -> CheckProposal:
    if not model.traits.open:
        return CheckProposal(
            why_not="every input dimension has a size" if model.is_onnx else "only .onnx files are changed"
        )
    sizes = {name: model.sizes.get(name, 0) for name in model.traits.open}
    if not all(sizes.values()):
        return CheckProposal(why_not="the sizes of the dynamic dimensions come from the test data")
    blocked = [
        f"{PROVIDERS[name].title} claims {answer.claimed} of {answer.nodes} nodes, with sizes {answer.fixed.claimed}"
        for name, answer in model.answers.items()
        if answer.fixed and answer.fixed.claimed > answer.claimed
    ]
    step = f"{FIXED_DIMENSIONS.name}:sizes=" + "+".join(f"{name}={size}" for name, size in sizes.items())
    return CheckProposal(remedies=(Remedy(name="fixed dimensions", steps=(step,)),), note="; ".join(blocked))


def _overridable(model: ExaminedModel) -> CheckProposal:
    if not model.is_onnx or not model.traits.overridable:
        return CheckProposal(why_not="no initializer is an input")
    remedy = Remedy(name="constant initializers", steps=(CONSTANT_INITIALIZERS.name,))
    return CheckProposal(
        remedies=(remedy,), note=f"{model.traits.overridable} initializers are inputs, and so not constant"
    )


def _providers(model: ExaminedModel) -> CheckProposal:
    """Every provider of the library that claims something; a model that runs on one is also tried on the CPU."""
    library = model.usual.available_providers
    there = [name for name, row in PROVIDERS.items() if row.ort_name in library and name != CPU]
    refused = [name for name in there if (answer := model.answers.get(name)) and (answer.error or not answer.claimed)]
    remedies = [
        remedy for name in there if name not in refused and name != model.start.provider for remedy in _on(name, model)
    ]
    if model.start.provider != CPU:
        remedies.insert(0, Remedy(name="provider=cpu", settings={"provider": CPU, "flags": ()}))
    reasons = {PROVIDERS[name].title: model.answers[name] for name in refused}
    note = "; ".join(f"{title}: {a.error or f'claims none of {a.nodes} nodes'}" for title, a in reasons.items())
    if not remedies:
        return CheckProposal(why_not=note or "the library has no other execution provider")
    return CheckProposal(remedies=tuple(remedies), note=note)


def _on(name: str, model: ExaminedModel) -> Iterator[Remedy]:
    threads = len(model.fast_cores) or 2
    if name == "xnnpack":  # its own pool of threads: ONNX Runtime's would spin beside it
        settings = {"provider": name, "threads": 1, "options": {"intra_op_num_threads": str(threads)}}
        yield Remedy(name=f"provider=xnnpack with {threads} threads", settings=settings)
        return
    yield Remedy(name=f"provider={name}", settings={"provider": name})
    if PROVIDERS[name].has_flags:
        yield Remedy(
            name=f"provider={name} USE_FP16", settings={"provider": name, "flags": (NnapiFlag.USE_FP16.value,)},
            lossy=True,
        )  # fmt: skip


FEW_NODES = 3.0
"""Nodes a partition, on average, below which borders tend to cost more than an accelerator gains."""


def _partitions(model: ExaminedModel) -> CheckProposal:
    claims = {name: answer for name, answer in model.answers.items() if answer.claimed and not answer.error}
    answers = {name: answer for name, answer in claims.items() if not PROVIDER_RULES[answer.ep].on_cpu}
    if not answers:
        return CheckProposal(why_not="no accelerator of the library claims a node")
    small = {n: a for n, a in answers.items() if len(a.partitions) > 1 and a.claimed / len(a.partitions) < FEW_NODES}
    if not small:
        texts = (f"{PROVIDERS[n].title} {len(a.partitions)} for {a.claimed} nodes" for n, a in answers.items())
        return CheckProposal(why_not=f"partitions are few or large: {', '.join(texts)}")
    note = "; ".join(
        f"{PROVIDERS[n].title}: {a.claimed} nodes in {len(a.partitions)} partitions" for n, a in small.items()
    )
    names = ",".join(answer.ep for answer in small.values())
    return CheckProposal(note=note, advice=f"ort-mobile partition MODEL --ep {names} --advise")


def _precision(model: ExaminedModel) -> CheckProposal:
    if model.traits.quantized:
        return CheckProposal(why_not="the model is quantized already")
    heavy = {name: count for name, count in model.traits.operators.items() if name in ("Conv", "Gemm", "MatMul")}
    if not heavy:
        return CheckProposal(why_not="it has no Conv, Gemm or MatMul, which gain most by 8-bit integers")
    note = f"{sum(heavy.values())} of its nodes have 8-bit forms: {', '.join(heavy)}"
    if not model.is_onnx:
        return CheckProposal(note=note, advice="quantize the .onnx file that this one was converted from")
    return CheckProposal(note=note, advice="ort-mobile run --model MODEL --precision float,auto --test-data DATA")


def _diagnostics(model: ExaminedModel) -> CheckProposal:
    keys = tuple(key for key in DIAGNOSTIC_KEYS if model.start.session_config.get(key, "0") not in ("", "0"))
    if not keys:
        apps = "telemetry is off in these runs, but not in your app (docs/privacy.md)"
        return CheckProposal(why_not=f"no such entry is set; {apps}")
    return CheckProposal(remedies=(Remedy(name="diagnostics off", without=keys),), note=f"set: {', '.join(keys)}")


def _first_run(model: ExaminedModel) -> CheckProposal:
    median = model.usual.median_ns
    times = model.usual.first_run_ns / median if median else 0.0
    if times < SLOW_FIRST_RUN:
        return CheckProposal(why_not=f"the first inference takes {times:.1f} times the usual one")
    return CheckProposal(
        note=f"the first inference takes {times:.1f} times the usual one",
        advice="after loading, run one inference on zeros in the background, before the user waits for one",
    )


CHECKS = (
    DoctorCheck(
        id="threads", title="Number of intra-op threads", how="1, 2, the fast cores and all cores, each measured",
        source=THREADING, propose=_threads,
    ),
    DoctorCheck(
        id="spinning", title="Spinning of idle threads", how="turned the other way round", source=THREADING,
        propose=_spinning,
    ),
    DoctorCheck(
        id="dynamic-block", title="Dynamic block size", how="session.dynamic_block_base set to 4", source=THREADING,
        propose=_dynamic_block,
    ),
    DoctorCheck(
        id="affinities", title="Threads pinned to fast cores", how="threads for the fast cores only, one on each",
        source=THREADING, propose=_affinities,
    ),
    DoctorCheck(
        id="execution-mode", title="Execution mode", how="the other one of sequential and parallel", source=THREADING,
        propose=_execution_mode,
    ),
    DoctorCheck(
        id="arena", title="Memory arena", how="turned the other way round", source=MEMORY, propose=_arena
    ),
    DoctorCheck(
        id="memory-pattern", title="Planned memory", how="turned the other way round", source=MEMORY, propose=_pattern
    ),
    DoctorCheck(
        id="prepacking", title="Prepacked weights", how="turned the other way round", source=MEMORY,
        propose=_prepacking,
    ),
    DoctorCheck(
        id="level", title="Graph optimization level", how="all, or extended (no change of layout) where it is all",
        source=LEVELS, propose=_level,
    ),
    DoctorCheck(
        id="ort-format", title="ORT format", how="converted at level all, compared also in loading", source=ORT_FORMAT,
        propose=_ort_format,
    ),
    DoctorCheck(
        id="mapping", title="Memory-mapped weights", how="weights used from the mapped file", source=ORT_FORMAT,
        propose=_mapping,
    ),
    DoctorCheck(
        id="denormals", title="Denormal numbers", how="session.set_denormal_as_zero set", source=THREADING,
        propose=_denormals,
    ),
    DoctorCheck(
        id="initializers", title="Initializers that are inputs", how="made constant by a pass", source=TROUBLE,
        propose=_overridable,
    ),
    DoctorCheck(
        id="dimensions", title="Dynamic dimensions", how="given their sizes by a pass", source=MOBILE,
        propose=_dimensions,
    ),
    DoctorCheck(
        id="transposes", title="Transposes at layout boundaries", how="their share of the profile; NNAPI's USE_NCHW",
        source=TROUBLE, propose=_transposes,
    ),
    DoctorCheck(
        id="casts", title="Casts", how="their share of the profile; chains of them removed", source=TROUBLE,
        propose=_casts,
    ),
    DoctorCheck(
        id="providers", title="Execution providers", how="those of the library that claim nodes, and the CPU",
        source=XNNPACK_PAGE, propose=_providers,
    ),
    DoctorCheck(
        id="partitions", title="Small partitions", how="nodes for each partition, by the provider's rules",
        source=MOBILE, propose=_partitions,
    ),
    DoctorCheck(
        id="precision", title="8-bit forms", how="counted, not measured: accuracy needs data", source=QUANTIZATION,
        propose=_precision,
    ),
    DoctorCheck(
        id="diagnostics", title="Telemetry and profiling left on", how="such session config entries left out",
        source=PROFILING, propose=_diagnostics,
    ),
    DoctorCheck(
        id="first-run", title="First inference", how="compared with the usual one", source=MEMORY, propose=_first_run,
    ),
)  # fmt: skip
"""Every check, in the order of the report."""
