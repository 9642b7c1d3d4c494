"""The performance checklist: what each check proposes for a model that was `examined`."""

from collections.abc import Callable, Iterator

import msgspec

from device_runner import device as runner_device
from device_runner import local as local_device
from device_runner import options as runner_options
from device_runner import providers as runner_providers
from device_runner import spec as run_spec
from device_runner.spec import OptimizationLevel
from pipeline.core import providers as provider_rules
from pipeline.core.releases import Release
from pipeline.features.doctor.examined import ExaminedModel
from pipeline.features.doctor.finding import DoctorFinding, MeasuredRemedy, Outcome, Remedy
from pipeline.job import predicted
from pipeline.partition import kept
from pipeline.passes import surgery

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
    "enable_profiling",
    "session.debug_layout_transformation",
    "session.collect_node_memory_stats_to_file",
    "session.record_ep_graph_assignment_info",
)
"""Session config entries that serve to look for defects and cost time."""

WORTH_TELLING = 0.01
"""Operators with less than this share of the time are not worth a change."""

SLOW_FIRST_RUN = 2.0
"""From how many times the usual inference on the first one is worth a warm-up."""


Propose = Callable[[DoctorFinding, ExaminedModel], DoctorFinding]
"""Makes of a check's row in the table its finding on a model, with the remedies that are still to be measured."""


def _proposed(
    check: DoctorFinding, *remedies: Remedy, text: str = "", advice: str = "", share: float | None = None
) -> DoctorFinding:
    measured = tuple(MeasuredRemedy(remedy=remedy, run="") for remedy in remedies)
    return msgspec.structs.replace(check, what=text, remedy=advice, share=share, measured=measured)


def _not_applicable(check: DoctorFinding, why: str) -> DoctorFinding:
    return msgspec.structs.replace(check, outcome=Outcome.NOT_APPLICABLE, what=why)


def _setting(check: DoctorFinding, name: str, **settings: object) -> DoctorFinding:
    return _proposed(check, Remedy(name=name, settings=settings))


def _threads(check: DoctorFinding, model: ExaminedModel) -> DoctorFinding:
    """1, 2, the fast cores and all; 0 lets ONNX Runtime take the physical cores and pin its threads to them."""
    counts = {0, 1, 2, len(model.fast_cores), model.cores}
    thread_counts = sorted(
        n for n in counts if n != model.start.intra_op_threads and (n <= model.cores or not model.cores)
    )
    if runner_options.AFFINITY_KEY in model.start.session_config:
        return _not_applicable(check, f"{runner_options.AFFINITY_KEY} is set, which fixes the number of threads")
    named = (
        (n, f"threads={n}" if n else "threads=default") for n in thread_counts if n or model.start.intra_op_threads
    )
    cores, text, advice = runner_device.core_count(model.facts), "", ""
    if 0 < cores < model.start.intra_op_threads:
        text = predicted.crowded_text(model.start.intra_op_threads, cores)
        advice = f"set at most {cores}: a thread without a core stalls single inferences, which no median shows"
    return _proposed(
        check, *(Remedy(name=name, settings={"threads": n}) for n, name in named), text=text, advice=advice
    )


def _one_thread(model: ExaminedModel) -> str:
    return "one thread has nobody to wait for" if model.start.intra_op_threads == 1 or model.cores == 1 else ""


def _spinning(check: DoctorFinding, model: ExaminedModel) -> DoctorFinding:
    if reason := _one_thread(model):
        return _not_applicable(check, reason)
    off = model.start.session_config.get(runner_options.SPINNING_KEYS[0]) == "0"
    return _setting(check, f"spinning={'on' if off else 'off'}", spinning=off)


def _dynamic_block(check: DoctorFinding, model: ExaminedModel) -> DoctorFinding:
    if reason := _one_thread(model):
        return _not_applicable(check, reason)
    if runner_options.BLOCK_KEY in model.start.session_config:
        return _not_applicable(check, "it is set already")
    return _setting(check, "dynamic_block_base=4", dynamic_block_base=4)


def _alike(model: ExaminedModel) -> str:
    return "all cores are equally fast" if model.cores else "the device does not tell the speed of its cores"


def _affinities(check: DoctorFinding, model: ExaminedModel) -> DoctorFinding:
    fast = model.fast_cores
    if len(fast) == model.cores:
        return _not_applicable(check, _alike(model))
    if len(fast) == 1:
        return _not_applicable(check, "there is one fast core, and the first thread is the app's own")
    groups = ";".join(str(number) for number in fast[1:])
    return _setting(check, "affinities=fast cores", threads=len(fast), affinities=groups)


def _placed(model: ExaminedModel) -> str:
    """Why the cores of threads are not to be chosen."""
    if runner_options.AFFINITY_KEY in model.start.session_config or model.start.thread_cores:
        return "the cores of threads are set already"
    system = model.facts.platform
    return "" if system in ("linux", "android") else f"{system} has neither core masks nor nice values of threads"


def _thread_cores(check: DoctorFinding, model: ExaminedModel) -> DoctorFinding:
    if reason := _placed(model):
        return _not_applicable(check, reason)
    if len(model.fast_cores) == model.cores:
        return _not_applicable(check, _alike(model))
    if len(model.fast_cores) == 1:
        return _not_applicable(check, "there is one fast core: see the number of threads")
    return _setting(check, "thread_cores=big", threads=len(model.fast_cores), thread_cores=run_spec.BIG_CORES)


def _thread_nice(check: DoctorFinding, model: ExaminedModel) -> DoctorFinding:
    """Android lets apps do that, Linux root."""
    reason = _one_thread(model) or ("it is set already" if model.start.thread_nice else "")
    if reason or model.facts.platform not in ("linux", "android"):
        return _not_applicable(check, reason or _placed(model))
    return _setting(check, "thread_nice=-4", thread_nice=-4)


def _numa(check: DoctorFinding, model: ExaminedModel) -> DoctorFinding:
    """The threads of the pool on the first node; the calling thread and its memory are the app's to bind."""
    nodes = model.facts.numa_nodes
    if len(nodes) < 2:
        return _not_applicable(
            check, "all cores are on one NUMA node" if nodes else "the device tells of no NUMA nodes"
        )
    cores = run_spec.cores_from_zero(nodes[0])
    note = f"{len(nodes)} NUMA nodes, of which the first has cores {nodes[0]}"
    advice = "start the app with numactl --cpunodebind=0 --membind=0"
    if (reason := _placed(model)) or not 1 < len(cores) <= max(cores) + 1 <= 64:
        note_alone = _not_applicable(check, reason) if reason else _proposed(check, text=note)
        return msgspec.structs.replace(note_alone, remedy=advice)
    remedy = Remedy(name="threads of one NUMA node", settings={"threads": len(cores), "thread_cores": nodes[0]})
    return _proposed(check, remedy, text=note, advice=advice)


def _allocator(check: DoctorFinding, model: ExaminedModel) -> DoctorFinding:
    """Those that are installed on this computer; an emulated processor's code would not get them."""
    if model.facts.platform != "linux" or model.facts.abis[:1] != (local_device.machine_abi(),):
        return _not_applicable(check, "an allocator is put in the C library's place on Linux hosts only")
    others = {
        name: bool(local_device.find_allocator(name))
        for name in local_device.PACKAGES
        if name is not model.start.allocator
    }
    missing = [name for name, present in others.items() if not present]
    lacking = "; ".join(f"{name} is not installed (apt-get install {local_device.PACKAGES[name]})" for name in missing)
    named = ((f"allocator={name}", name) for name, present in others.items() if present)
    remedies = [Remedy(name=title, settings={"allocator": name}) for title, name in named]
    return _proposed(check, *remedies, text=lacking) if remedies else _not_applicable(check, lacking)


def _execution_mode(check: DoctorFinding, model: ExaminedModel) -> DoctorFinding:
    if model.start.execution_mode is run_spec.ExecutionMode.PARALLEL:
        return _setting(
            check, "execution_mode=sequential", execution_mode=run_spec.ExecutionMode.SEQUENTIAL, inter_op_threads=0
        )
    if model.width < 2:
        return _not_applicable(check, "the graph has no two operators that could run at the same time and take time")
    return _setting(
        check, "execution_mode=parallel", execution_mode=run_spec.ExecutionMode.PARALLEL, inter_op_threads=2
    )


def _arena(check: DoctorFinding, model: ExaminedModel) -> DoctorFinding:
    on = not model.start.cpu_arena
    return _setting(check, f"memory_arena={'on' if on else 'off'}", memory_arena=on)


def _pattern(check: DoctorFinding, model: ExaminedModel) -> DoctorFinding:
    if model.start.execution_mode is run_spec.ExecutionMode.PARALLEL:
        return _not_applicable(check, "memory is planned in sequential execution only")
    on = not model.start.memory_pattern
    return _setting(check, f"memory_pattern={'on' if on else 'off'}", memory_pattern=on)


def _prepacking(check: DoctorFinding, model: ExaminedModel) -> DoctorFinding:
    if model.start.session_config.get(runner_options.PREPACKING_KEY) == "1":
        return _proposed(check, Remedy(name="prepacking=on", without=(runner_options.PREPACKING_KEY,)))
    return _setting(check, "prepacking=off", prepacking=False)


WITHOUT_LAYOUTS = Remedy(name="level=extended", level=OptimizationLevel.EXTENDED)


def _level(check: DoctorFinding, model: ExaminedModel) -> DoctorFinding:
    if not model.is_onnx:
        return _not_applicable(
            check,
            "the level of an ORT format file was chosen when it was converted; `perf --level` measures the session's",
        )
    if model.start.optimization_level is not OptimizationLevel.ALL:
        return _proposed(check, Remedy(name="level=all", level=OptimizationLevel.ALL))
    return _proposed(check, WITHOUT_LAYOUTS)


def _ort_format(check: DoctorFinding, model: ExaminedModel) -> DoctorFinding:
    if not model.is_onnx:
        return _not_applicable(check, "the file is in ORT format already")
    return _proposed(check, Remedy(name="ORT format", ort_format=True))


def _mapping(check: DoctorFinding, model: ExaminedModel) -> DoctorFinding:
    if model.is_onnx:
        return _not_applicable(check, "only files in ORT format are mapped")
    if model.release < MAPPED_SINCE:
        return _not_applicable(check, f"ONNX Runtime maps files from {MAPPED_SINCE} on")
    return _setting(check, "memory mapping", session_config=MAPPED)


def _denormals(check: DoctorFinding, model: ExaminedModel) -> DoctorFinding:
    if model.start.session_config.get(DENORMAL_KEY) == "1":
        return _not_applicable(check, "they are set to zero already")
    return _setting(check, "denormals=zero", session_config={DENORMAL_KEY: "1"})


def _transposes(check: DoctorFinding, model: ExaminedModel) -> DoctorFinding:
    """Those of the model, and those that ONNX Runtime puts in where an operator wants another layout."""
    borders, transposed = model.share("ReorderInput", "ReorderOutput"), model.share("Transpose")
    if transposed + borders < WORTH_TELLING:
        return _not_applicable(check, f"they take {transposed + borders:.1%} of the time")
    note = f"{transposed:.1%} of the time in {model.nodes('Transpose')} Transpose nodes"
    note += f", {borders:.1%} in changes of layout that ONNX Runtime added" if borders else ""
    remedies = []
    if (
        runner_providers.provider_named(model.start.provider).nnapi
        and run_spec.NnapiFlag.USE_NCHW not in model.start.flags
    ):
        flags = (*(flag.value for flag in model.start.flags), run_spec.NnapiFlag.USE_NCHW.value)
        remedies.append(Remedy(name="USE_NCHW", settings={"flags": flags}))
    if borders >= WORTH_TELLING and model.is_onnx and model.start.optimization_level is OptimizationLevel.ALL:
        remedies.append(WITHOUT_LAYOUTS)
    advice = "" if transposed < WORTH_TELLING else "export the model with channels first (tf2onnx --inputs-as-nchw)"
    if not (remedies or advice):
        advice = "convert the model again at level extended, and compare"
    return _proposed(check, *remedies, text=note, advice=advice, share=transposed + borders)


def _casts(check: DoctorFinding, model: ExaminedModel) -> DoctorFinding:
    share, count = model.share("Cast"), model.nodes("Cast")
    if share < WORTH_TELLING:
        return _not_applicable(
            check, f"{count} Cast nodes take {share:.1%} of the time" if count else "no Cast node is left"
        )
    note = f"{share:.1%} of the time in {count} Cast nodes"
    advice = (
        "the CPU computes half floats as float: ship the float model for it"
        if model.half
        else ("remove the Casts where the model is exported")
    )
    without = Remedy(name="cast chains off", settings={"session_config": {CAST_KEY: "1"}})
    remedies = [without] if model.is_onnx and model.release >= CAST_CHAINS_SINCE else []
    return _proposed(check, *remedies, text=note, advice=advice, share=share)


def _dimensions(check: DoctorFinding, model: ExaminedModel) -> DoctorFinding:
    if not model.open:
        return _not_applicable(
            check, "every input dimension has a size" if model.is_onnx else "only .onnx files are changed"
        )
    sizes = {name: model.sizes.get(name, 0) for name in model.open}
    if not all(sizes.values()):
        return _not_applicable(check, "the sizes of the dynamic dimensions come from the test data")
    blocked = [
        (
            f"{runner_providers.PROVIDERS[name].title} claims {answer.claimed} of {answer.nodes} nodes, with sizes "
            f"{answer.fixed.claimed}"
        )
        for name, answer in model.answers.items()
        if answer.fixed and answer.fixed.claimed > answer.claimed
    ]
    step = f"{surgery.FIXED_DIMENSIONS.name}:sizes=" + "+".join(f"{name}={size}" for name, size in sizes.items())
    return _proposed(check, Remedy(name="fixed dimensions", steps=(step,)), text="; ".join(blocked))


def _overridable(check: DoctorFinding, model: ExaminedModel) -> DoctorFinding:
    if not model.is_onnx or not model.overridable:
        return _not_applicable(check, "no initializer is an input")
    remedy = Remedy(name="constant initializers", steps=(surgery.CONSTANT_INITIALIZERS.name,))
    note = f"{model.overridable} initializers are inputs, and so not constant"
    return _proposed(check, remedy, text=note)


def _providers(check: DoctorFinding, model: ExaminedModel) -> DoctorFinding:
    """Every provider of the library that claims something; a model that runs on one is also tried on the CPU."""
    library = model.usual.available_providers
    known = runner_providers.PROVIDERS
    there = [name for name, provider in known.items() if provider.ort_name in library and not provider.fallback]
    refused = [name for name in there if (answer := model.answers.get(name)) and (answer.error or not answer.claimed)]
    remedies = [
        remedy for name in there if name not in refused and name != model.start.provider for remedy in _on(name, model)
    ]
    if not runner_providers.on_cpu(model.start.provider):
        remedies.insert(0, Remedy(name="provider=cpu", settings={"provider": runner_providers.CPU, "flags": ()}))
    reasons = {runner_providers.PROVIDERS[name].title: model.answers[name] for name in refused}
    note = "; ".join(f"{title}: {a.error or f'claims none of {a.nodes} nodes'}" for title, a in reasons.items())
    if not remedies:
        return _not_applicable(check, note or "the library has no other execution provider")
    return _proposed(check, *remedies, text=note)


def _on(name: str, model: ExaminedModel) -> Iterator[Remedy]:
    threads = len(model.fast_cores) or 2
    if runner_providers.PROVIDERS[name].own_threads:  # ONNX Runtime's pool would spin beside it
        settings = {"provider": name, "threads": 1, "options": {"intra_op_num_threads": str(threads)}}
        yield Remedy(name=f"provider={name} with {threads} threads", settings=settings)
        return
    yield Remedy(name=f"provider={name}", settings={"provider": name})
    if runner_providers.PROVIDERS[name].has_flags:
        yield Remedy(
            name=f"provider={name} USE_FP16",
            settings={"provider": name, "flags": (run_spec.NnapiFlag.USE_FP16.value,)},
            lossy=True,
        )


def _npu(check: DoctorFinding, model: ExaminedModel) -> DoctorFinding:
    chip = runner_providers.chip_of_phone(model.facts.soc.rpartition(" ")[2])
    if chip is None:
        return _not_applicable(check, "the device has no Snapdragon whose NPU is known (docs/npu.md)")
    if not model.is_onnx:
        return _not_applicable(check, "only the .onnx file that this one was converted from can be asked about")
    there = f"it has the NPU of {chip.name} ({chip.title}), which computes {'floats and ' * chip.floats}integers"
    lacking = kept.compiler_lacking()
    command = f"ort-mobile partition MODEL --ep qnn --chip {chip.name} --advise --simulate"
    if lacking:
        return _proposed(check, text=f"{there}; it cannot be asked here: {lacking.text}", advice=lacking.remedy)
    return _proposed(check, text=f"{there}; {kept.compiler_name()} is asked about it", advice=command)


FEW_NODES = 3.0
"""Nodes a partition, on average, below which borders tend to cost more than an accelerator gains."""


def _partitions(check: DoctorFinding, model: ExaminedModel) -> DoctorFinding:
    claims = {name: answer for name, answer in model.answers.items() if answer.claimed and not answer.error}
    answers = {name: answer for name, answer in claims.items() if not provider_rules.PROVIDER_RULES[answer.ep].on_cpu}
    answers = {name: answer for name, answer in answers.items() if answer.copies is None}
    if not answers:
        return _not_applicable(check, "no accelerator of the library claims a node")
    small = {n: a for n, a in answers.items() if len(a.partitions) > 1 and a.claimed / len(a.partitions) < FEW_NODES}
    if not small:
        texts = (
            f"{runner_providers.PROVIDERS[n].title} {len(a.partitions)} for {a.claimed} nodes"
            for n, a in answers.items()
        )
        return _not_applicable(check, f"partitions are few or large: {', '.join(texts)}")
    note = "; ".join(
        f"{runner_providers.PROVIDERS[n].title}: {a.claimed} nodes in {len(a.partitions)} partitions"
        for n, a in small.items()
    )
    names = ",".join(answer.ep for answer in small.values())
    return _proposed(check, text=note, advice=f"ort-mobile partition MODEL --ep {names} --advise")


def _precision(check: DoctorFinding, model: ExaminedModel) -> DoctorFinding:
    if model.quantized:
        return _not_applicable(check, "the model is quantized already")
    heavy = {name: count for name, count in model.operators.items() if name in ("Conv", "Gemm", "MatMul")}
    if not heavy:
        return _not_applicable(check, "it has no Conv, Gemm or MatMul, which gain most by 8-bit integers")
    note = f"{sum(heavy.values())} of its nodes have 8-bit forms: {', '.join(heavy)}"
    if not model.is_onnx:
        return _proposed(check, text=note, advice="quantize the .onnx file that this one was converted from")
    return _proposed(check, text=note, advice="ort-mobile run --model MODEL --precision float,auto --test-data DATA")


def _diagnostics(check: DoctorFinding, model: ExaminedModel) -> DoctorFinding:
    keys = tuple(key for key in DIAGNOSTIC_KEYS if model.start.session_config.get(key, "0") not in ("", "0"))
    if not keys:
        apps = "telemetry is off in these runs, but not in your app (docs/privacy.md)"
        return _not_applicable(check, f"no such entry is set; {apps}")
    return _proposed(check, Remedy(name="diagnostics off", without=keys), text=f"set: {', '.join(keys)}")


def _first_run(check: DoctorFinding, model: ExaminedModel) -> DoctorFinding:
    median = model.usual.median_ns
    times = model.usual.first_run_ns / median if median else 0.0
    if times < SLOW_FIRST_RUN:
        return _not_applicable(check, f"the first inference takes {times:.1f} times the usual one")
    return _proposed(
        check,
        text=f"the first inference takes {times:.1f} times the usual one",
        advice="after loading, run one inference on zeros in the background, before the user waits for one",
    )


def _check(name: str, title: str, how: str, source: str, propose: Propose) -> tuple[DoctorFinding, Propose]:
    finding = DoctorFinding(code=name, title=title, how=how, source=source, outcome=Outcome.UNTESTED)
    return finding, propose


CHECKS = (
    _check("threads", "Number of intra-op threads", "1, 2, the fast cores and all cores, each measured",
           THREADING, _threads),
    _check("spinning", "Spinning of idle threads", "turned the other way round", THREADING, _spinning),
    _check("dynamic-block", "Dynamic block size", "session.dynamic_block_base set to 4", THREADING, _dynamic_block),
    _check("affinities", "Threads pinned to fast cores", "threads for the fast cores only, one on each",
           THREADING, _affinities),
    _check("thread-cores", "Threads kept to the fast cores", "thread_cores=big, which may move among them",
           THREADING, _thread_cores),
    _check("thread-nice", "Priority of threads", "thread_nice=-4: they come before others", THREADING, _thread_nice),
    _check("numa", "NUMA nodes", "the threads kept to the cores of the first", THREADING, _numa),
    _check("allocator", "Allocator", "mimalloc and jemalloc, where they are installed", MEMORY, _allocator),
    _check("execution-mode", "Execution mode", "the other one of sequential and parallel", THREADING, _execution_mode),
    _check("arena", "Memory arena", "turned the other way round", MEMORY, _arena),
    _check("memory-pattern", "Planned memory", "turned the other way round", MEMORY, _pattern),
    _check("prepacking", "Prepacked weights", "turned the other way round", MEMORY, _prepacking),
    _check("level", "Graph optimization level", "all, or extended (no change of layout) where it is all",
           LEVELS, _level),
    _check("ort-format", "ORT format", "converted at level all, compared also in loading", ORT_FORMAT, _ort_format),
    _check("mapping", "Memory-mapped weights", "weights used from the mapped file", ORT_FORMAT, _mapping),
    _check("denormals", "Denormal numbers", "session.set_denormal_as_zero set", THREADING, _denormals),
    _check("initializers", "Initializers that are inputs", "made constant by a pass", TROUBLE, _overridable),
    _check("dimensions", "Dynamic dimensions", "given their sizes by a pass", MOBILE, _dimensions),
    _check("transposes", "Transposes at layout boundaries", "their share of the profile; NNAPI's USE_NCHW",
           TROUBLE, _transposes),
    _check("casts", "Casts", "their share of the profile; chains of them removed", TROUBLE, _casts),
    _check("providers", "Execution providers", "those of the library that claim nodes, and the CPU",
           XNNPACK_PAGE, _providers),
    _check("partitions", "Small partitions", "nodes for each partition, by the provider's rules", MOBILE, _partitions),
    _check("npu", "The NPU of a Snapdragon", "chip of the phone, compiler on this computer", QNN_PAGE, _npu),
    _check("precision", "8-bit forms", "counted, not measured: accuracy needs data", QUANTIZATION, _precision),
    _check("diagnostics", "Telemetry and profiling left on", "such session config entries left out",
           PROFILING, _diagnostics),
    _check("first-run", "First inference", "compared with the usual one", MEMORY, _first_run),
)  # fmt: skip
"""Every check, before it found anything, with what makes its finding; in the order of the report."""
