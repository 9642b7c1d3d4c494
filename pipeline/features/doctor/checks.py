"""The performance checklist: what its checks decide by, and what each proposes for a model on a device.

They look at a model's graph, the device, the library, and one profiled run.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from device_runner.device import DeviceFacts
from device_runner.local import PACKAGES, find_allocator, machine_abi
from device_runner.options import AFFINITY_KEY, BLOCK_KEY
from device_runner.providers import CPU, NNAPI, PROVIDERS, chip_of_phone
from device_runner.result import RunResult, Struct
from device_runner.spec import BIG_CORES, ExecutionMode, NnapiFlag, OptimizationLevel, RunOptions, cores_from_zero
from pipeline.campaign.plan import PREPACKING_KEY, SPINNING_KEYS, changed
from pipeline.check.compare import OutputPrecision
from pipeline.core.providers import PROVIDER_RULES, XNNPACK
from pipeline.core.releases import Release, line_of
from pipeline.model.signature import names_of, open_axes, own_inputs
from pipeline.model.sources import SourceModel
from pipeline.partition.answer import ModelAnswer, Optimize, Settings
from pipeline.partition.judge import PartitionRequest, judge
from pipeline.partition.qnn.kept import compiler_lacking, compiler_name
from pipeline.partition.subject import open_views, scratch_folder
from pipeline.passes.surgery import CONSTANT_INITIALIZERS, FIXED_DIMENSIONS

HEAVY = frozenset({
    "Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN", "Attention", "FusedConv", "QLinearConv",
    "QLinearMatMul", "ConvInteger", "MatMulInteger", "DynamicQuantizeMatMul", "MatMulNBits",
})  # fmt: skip
"""Operators that take time by computing: the others mostly move memory."""

QUANTIZED = frozenset({
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "ConvInteger",
    "MatMulInteger", "DynamicQuantizeMatMul", "MatMulNBits", "QGemm",
})  # fmt: skip


class Remedy(Struct, frozen=True, kw_only=True):
    """What is changed to see whether it helps.

    `settings` are keys of [[runs]] with their values; `level` is the optimization level of an .onnx file; `without` are
    session config keys that are left out; `steps` are passes as `ort-mobile transform --do` has them; `ort_format`
    converts to ORT format at level all. `lossy`: outputs are expected to differ by the precision of half floats.
    """

    name: str
    settings: dict[str, Any] = {}
    level: OptimizationLevel | None = None
    without: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    ort_format: bool = False
    lossy: bool = False

    @property
    def file_key(self) -> tuple[tuple[str, ...], bool]:
        """Remedies with the same key run the same file; that of the model itself is empty."""
        return self.steps, self.ort_format

    def options(self, start: RunOptions) -> RunOptions:
        """The run options with the remedy; a file in ORT format has no level of its own."""
        kept = {key: value for key, value in start.session_config.items() if key not in self.without}
        options = changed(msgspec.structs.replace(start, session_config=kept), self.settings)
        level = OptimizationLevel.ALL if self.ort_format else self.level or options.optimization_level
        return msgspec.structs.replace(options, optimization_level=level)


def together(remedies: Sequence[Remedy]) -> Remedy:
    """All remedies at once; where two set the same, the later one counts."""
    settings: dict[str, Any] = {}
    for remedy in remedies:
        for key, value in remedy.settings.items():
            settings[key] = {**settings.get(key, {}), **value} if isinstance(value, dict) else value
    return Remedy(
        name=" + ".join(remedy.name for remedy in remedies),
        settings=settings,
        level=next((remedy.level for remedy in reversed(remedies) if remedy.level), None),
        without=tuple(dict.fromkeys(key for remedy in remedies for key in remedy.without)),
        steps=tuple(dict.fromkeys(step for remedy in remedies for step in remedy.steps)),
        ort_format=any(remedy.ort_format for remedy in remedies),
        lossy=any(remedy.lossy for remedy in remedies),
    )


class ModelTraits(Struct, frozen=True, kw_only=True):
    """What of a graph matters to the checks.

    `width` is how many heavy operators can run at the same time at most; `open` are the names of dynamic dimensions;
    `overridable` counts initializers that are inputs, too. `answers` are by the provider's name in run options, of
    those that are in the library and have rules.
    """

    operators: dict[str, int] = {}
    width: int = 0
    open: tuple[str, ...] = ()
    overridable: int = 0
    half: bool = False
    answers: dict[str, ModelAnswer] = {}

    @property
    def precision(self) -> OutputPrecision:
        """What the model computes in."""
        if self.quantized:
            return OutputPrecision.QUANTIZED
        return OutputPrecision.FLOAT16 if self.half else OutputPrecision.FLOAT32

    @property
    def quantized(self) -> bool:
        """Whether any operator is a quantized one."""
        return not QUANTIZED.isdisjoint(self.operators)


def examine(path: str, settings: tuple[Settings, ...] = ()) -> ModelTraits:
    """Read a model's graph and ask the rules of the wanted providers; ModelError for what is no model. In a worker.

    Bodies of control flow are not looked into.
    """
    source = SourceModel(path=path)
    with scratch_folder(source) as folder:
        views = open_views(source, Optimize.NONE, folder, {})
        graph, *_ = views.of(Settings(provider=XNNPACK))
        names = tuple(names_of(open_axes(own_inputs(views.loaded.proto)))) if views.loaded else ()
    levels: dict[str, int] = {}
    heavy: Counter[int] = Counter()
    for index in graph.order:
        node = graph.nodes[index]
        level = max((levels.get(name, 0) for name in node.inputs), default=0) + (node.op_type in HEAVY)
        heavy[level] += node.op_type in HEAVY
        levels.update(dict.fromkeys(node.outputs, level))
    asked = (PartitionRequest(source=source, settings=row, likely=True) for row in settings)
    return ModelTraits(
        operators=dict(Counter(node.op_type for node in graph.nodes.values()).most_common()),
        width=max(heavy.values(), default=0),
        open=names,
        overridable=len(graph.overridable),
        half=any(graph.value(name).dtype == "f16" for node in graph.nodes.values() for name in node.outputs if name),
        answers={request.settings.rules.provider: judge(request) for request in asked},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminedModel:
    """Everything that a check may decide by. `usual` is a run of the start, `profiled` one with the profiler on.

    `sizes` are those that dynamic dimensions were given.
    """

    suffix: str
    start: RunOptions
    facts: DeviceFacts
    usual: RunResult
    profiled: RunResult
    traits: ModelTraits = field(default_factory=ModelTraits)
    sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_onnx(self) -> bool:
        """Whether the file is what sessions still optimize."""
        return self.suffix != ".ort"

    @property
    def release(self) -> Release:
        """The library's release."""
        return line_of(self.usual.ort_version)

    @property
    def cores(self) -> int:
        """The device's cores; 0 where it does not tell."""
        return len(self.facts.core_max_mhz)

    @property
    def fast_cores(self) -> tuple[int, ...]:
        """Numbers, from 1, of the cores that are not of the slowest kind; all where they are equal."""
        mhz = self.facts.core_max_mhz
        fast = tuple(number for number, speed in enumerate(mhz, 1) if speed > min(mhz))
        return fast or tuple(range(1, len(mhz) + 1))

    def share(self, *operators: str) -> float:
        """The share of operators in the time of the profiled run."""
        rows = self.profiled.profile.operators if self.profiled.profile else ()
        return sum(row.share for row in rows if row.operator in operators)

    def nodes(self, *operators: str) -> int:
        """How many nodes of operators the profiled run had."""
        rows = self.profiled.profile.operators if self.profiled.profile else ()
        return sum(row.nodes for row in rows if row.operator in operators)


THREADING = "performance/tune-performance/threading.html"
MEMORY = "performance/tune-performance/memory.html"
TROUBLE = "performance/tune-performance/troubleshooting.html"
LEVELS = "performance/model-optimizations/graph-optimizations.html"
ORT_FORMAT = "performance/model-optimizations/ort-format-models.html"
QUANTIZATION = "performance/model-optimizations/quantization.html"
QNN_PAGE = "execution-providers/QNN-ExecutionProvider.html"
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
    thread_counts = sorted(
        n for n in counts if n != model.start.intra_op_threads and (n <= model.cores or not model.cores)
    )
    if AFFINITY_KEY in model.start.session_config:
        return CheckProposal(why_not=f"{AFFINITY_KEY} is set, which fixes the number of threads")
    named = (
        (n, f"threads={n}" if n else "threads=default") for n in thread_counts if n or model.start.intra_op_threads
    )
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


def _alike(model: ExaminedModel) -> str:
    return "all cores are equally fast" if model.cores else "the device does not tell the speed of its cores"


def _affinities(model: ExaminedModel) -> CheckProposal:
    fast = model.fast_cores
    if len(fast) == model.cores:
        return CheckProposal(why_not=_alike(model))
    if len(fast) == 1:
        return CheckProposal(why_not="there is one fast core, and the first thread is the app's own")
    groups = ";".join(str(number) for number in fast[1:])
    return _setting("affinities=fast cores", threads=len(fast), affinities=groups)


def _placed(model: ExaminedModel) -> str:
    """Why the cores of threads are not to be chosen."""
    if AFFINITY_KEY in model.start.session_config or model.start.thread_cores:
        return "the cores of threads are set already"
    system = model.facts.platform
    return "" if system in ("linux", "android") else f"{system} has neither core masks nor nice values of threads"


def _thread_cores(model: ExaminedModel) -> CheckProposal:
    if reason := _placed(model):
        return CheckProposal(why_not=reason)
    if len(model.fast_cores) == model.cores:
        return CheckProposal(why_not=_alike(model))
    if len(model.fast_cores) == 1:
        return CheckProposal(why_not="there is one fast core: see the number of threads")
    return _setting("thread_cores=big", threads=len(model.fast_cores), thread_cores=BIG_CORES)


def _thread_nice(model: ExaminedModel) -> CheckProposal:
    """Android lets apps do that, Linux root."""
    reason = _one_thread(model) or ("it is set already" if model.start.thread_nice else "")
    if reason or model.facts.platform not in ("linux", "android"):
        return CheckProposal(why_not=reason or _placed(model))
    return _setting("thread_nice=-4", thread_nice=-4)


def _numa(model: ExaminedModel) -> CheckProposal:
    """The threads of the pool on the first node; the calling thread and its memory are the app's to bind."""
    nodes = model.facts.numa_nodes
    if len(nodes) < 2:
        return CheckProposal(why_not="all cores are on one NUMA node" if nodes else "the device tells of no NUMA nodes")
    cores = cores_from_zero(nodes[0])
    note = f"{len(nodes)} NUMA nodes, of which the first has cores {nodes[0]}"
    advice = "start the app with numactl --cpunodebind=0 --membind=0"
    if (reason := _placed(model)) or not 1 < len(cores) <= max(cores) + 1 <= 64:
        return CheckProposal(note=note, advice=advice, why_not=reason)
    remedy = Remedy(name="threads of one NUMA node", settings={"threads": len(cores), "thread_cores": nodes[0]})
    return CheckProposal(remedies=(remedy,), note=note, advice=advice)


def _allocator(model: ExaminedModel) -> CheckProposal:
    """Those that are installed on this computer; an emulated processor's code would not get them."""
    if model.facts.platform != "linux" or model.facts.abis[:1] != (machine_abi(),):
        return CheckProposal(why_not="an allocator is put in the C library's place on Linux hosts only")
    others = {name: bool(find_allocator(name)) for name in PACKAGES if name is not model.start.allocator}
    missing = [name for name, present in others.items() if not present]
    lacking = "; ".join(f"{name} is not installed (apt-get install {PACKAGES[name]})" for name in missing)
    named = ((f"allocator={name}", name) for name, present in others.items() if present)
    remedies = tuple(Remedy(name=title, settings={"allocator": name}) for title, name in named)
    return CheckProposal(remedies=remedies, note=lacking) if remedies else CheckProposal(why_not=lacking)


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
        for name, answer in model.traits.answers.items()
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
    refused = [
        name for name in there if (answer := model.traits.answers.get(name)) and (answer.error or not answer.claimed)
    ]
    remedies = [
        remedy for name in there if name not in refused and name != model.start.provider for remedy in _on(name, model)
    ]
    if model.start.provider != CPU:
        remedies.insert(0, Remedy(name="provider=cpu", settings={"provider": CPU, "flags": ()}))
    reasons = {PROVIDERS[name].title: model.traits.answers[name] for name in refused}
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


def _npu(model: ExaminedModel) -> CheckProposal:
    chip = chip_of_phone(model.facts.soc.rpartition(" ")[2])
    if chip is None:
        return CheckProposal(why_not="the device has no Snapdragon whose NPU is known (docs/npu.md)")
    if not model.is_onnx:
        return CheckProposal(why_not="only the .onnx file that this one was converted from can be asked about")
    there = f"it has the NPU of {chip.name} ({chip.title}), which computes {'floats and ' * chip.floats}integers"
    lacking = compiler_lacking()
    command = f"ort-mobile partition MODEL --ep qnn --chip {chip.name} --advise --simulate"
    if lacking:
        return CheckProposal(note=f"{there}; it cannot be asked here: {lacking.text}", advice=lacking.remedy)
    return CheckProposal(note=f"{there}; {compiler_name()} is asked about it", advice=command)


FEW_NODES = 3.0
"""Nodes a partition, on average, below which borders tend to cost more than an accelerator gains."""


def _partitions(model: ExaminedModel) -> CheckProposal:
    claims = {name: answer for name, answer in model.traits.answers.items() if answer.claimed and not answer.error}
    answers = {name: answer for name, answer in claims.items() if not PROVIDER_RULES[answer.ep].on_cpu}
    answers = {name: answer for name, answer in answers.items() if answer.copies is None}
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
        id="thread-cores", title="Threads kept to the fast cores", how="thread_cores=big, which may move among them",
        source=THREADING, propose=_thread_cores,
    ),
    DoctorCheck(
        id="thread-nice", title="Priority of threads", how="thread_nice=-4: they come before others", source=THREADING,
        propose=_thread_nice,
    ),
    DoctorCheck(
        id="numa", title="NUMA nodes", how="the threads kept to the cores of the first", source=THREADING,
        propose=_numa,
    ),
    DoctorCheck(
        id="allocator", title="Allocator", how="mimalloc and jemalloc, where they are installed", source=MEMORY,
        propose=_allocator,
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
        id="npu", title="The NPU of a Snapdragon", how="chip of the phone, compiler on this computer", source=QNN_PAGE,
        propose=_npu,
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
