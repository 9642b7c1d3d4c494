"""How the probe is told what to do, and what its answer means: a RunSpec to bytes, one JSON document to a RunResult."""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

import msgspec
from msgspec import convert

from device_runner import failures, untrusted_files
from device_runner import profile as ort_profile
from device_runner import providers as runner_providers
from device_runner import result as run_result
from device_runner import spec as run_spec
from device_runner.errors import SpecError
from device_runner.result import RunResult, Status
from device_runner.spec import OptimizationLevel, RunOptions, RunSpec, TensorFile

LEVEL_NUMBERS = {
    OptimizationLevel.NONE: 0,
    OptimizationLevel.BASIC: 1,
    OptimizationLevel.EXTENDED: 2,
    OptimizationLevel.LAYOUT: 3,
    OptimizationLevel.ALL: 99,
}
"""GraphOptimizationLevel of the C API; layout came with 1.23."""

FLAG_BITS = {
    run_spec.NnapiFlag.USE_FP16: 1,
    run_spec.NnapiFlag.USE_NCHW: 2,
    run_spec.NnapiFlag.CPU_DISABLED: 4,
    run_spec.NnapiFlag.CPU_ONLY: 8,
}
"""NNAPIFlags of nnapi_provider_factory.h; the same from 1.21 to 1.28."""

HARDWARE_NUMBERS = {run_spec.HardwareType.CPU: 0, run_spec.HardwareType.GPU: 1, run_spec.HardwareType.NPU: 2}
"""OrtHardwareDeviceType of the C API."""

HARDWARE_KINDS = {number: kind for kind, number in HARDWARE_NUMBERS.items()}

LOG_NUMBERS = {
    run_spec.LogLevel.VERBOSE: 0,
    run_spec.LogLevel.INFO: 1,
    run_spec.LogLevel.WARNING: 2,
    run_spec.LogLevel.ERROR: 3,
}


LOG_CHARACTERS = 512 * 1024
"""The most that the probe keeps of a log (LOG_BYTES of answer.h); a character has a byte or more."""

RUNS_KEPT = 10_000_000
"""The most latencies that the probe keeps (answer.h)."""

ANSWER_BYTES = 16 << 20
"""The most that an answer without its latencies has: the buffers of answer.h, each byte escaped as \\u00XX."""

BINS_KEPT, SAMPLES_KEPT = 300, 600
"""The most bins and samples of a sustained run (answer.h)."""

WARMUP_RUNS, WARMUP_SHARE = 5, 0.25
"""What the probe times beyond what a spec asks for where warm-up is to be found: inferences, and of its seconds."""

NO_FIT = "raise fits_mb, use weights where the file is mapped, or switch prepacking or the memory arena off"
"""What to do about a model that needs more private memory than it may have."""

COLD_SHARE = 0.01
"""A model counts as out of the page cache when at most so much of its file is still there."""

LATENCY_BYTES = 16
"""Digits and comma of a latency of up to 11 days."""


Settings = dict[str, str | int | None]
"""Values by their names in probe/request.c; None for what is left as it is."""


def _set(settings: Settings) -> Iterator[tuple[str, str, str]]:
    return (("set", name, str(value)) for name, value in settings.items() if value is not None)


def _entries(options: RunOptions) -> Iterator[tuple[str, str, str]]:
    yield from (("option", key, value) for key, value in options.provider_options.items())
    yield from (("config", key, value) for key, value in options.session_config.items())
    yield from (("custom_ops", library, "") for library in options.custom_ops)


def _option_settings(options: RunOptions) -> Settings:
    """What a session is made with, where the provider is no plugin."""
    cores = options.thread_cores
    if cores not in ("", run_spec.BIG_CORES):
        cores = ",".join(map(str, run_spec.cores_from_zero(cores)))
    return {
        "provider": runner_providers.provider_named(options.provider).append_name,
        "thread_cores": cores or None,
        "thread_nice": options.thread_nice or None,
        "flags": sum(FLAG_BITS[flag] for flag in set(options.flags)),
        "intra_threads": options.intra_op_threads,
        "inter_threads": options.inter_op_threads,
        "parallel": int(options.execution_mode is run_spec.ExecutionMode.PARALLEL),
        "level": LEVEL_NUMBERS[options.optimization_level],
        "arena": int(options.cpu_arena),
        "pattern": int(options.memory_pattern),
        "capture": 1 if options.captures_graph else None,
        "device_tensors": 1 if options.device_tensors else None,
    }


def option_triples(options: RunOptions) -> tuple[tuple[str, str, str], ...]:
    """The part of a request that has session options, for who adds library, model and inputs."""
    return (*_set(_option_settings(options)), *_entries(options))


def encode_request(spec: RunSpec, *, watch_stdin: bool = False, prefix: str | None = None) -> bytes:
    """The request file for a run: NUL-ended strings in threes (probe/request.h). Raises SpecError for a NUL within.

    Paths in the spec are those that the probe sees; its `outputs_folder` is the folder of the run, or with a `prefix`
    the names of the run's files begin with that instead.
    """
    files = f"{spec.outputs_folder}/" if prefix is None else prefix
    options, plugin, provider = spec.options, spec.plugin, runner_providers.provider_named(spec.options.provider)
    found_later = spec.warmup == run_spec.AUTO and bool(spec.min_runs or spec.min_seconds)
    settings: Settings = {
        "library": spec.library or "",
        "model": spec.model,
        **_option_settings(options),
        **({"provider": provider.ort_name or provider.name} if plugin else {}),
        "plugin": plugin.library if plugin else None,
        "plugin_name": (plugin and plugin.name) or None,
        "device_type": HARDWARE_NUMBERS[plugin.device_type] if plugin and plugin.device_type else None,
        "labelled": spec.labelled.file if spec.labelled else None,
        "outputs": None if spec.outputs_folder is None else f"{files}output_",
        "profile": f"{files}profile" if spec.profile else None,
        "log_level": LOG_NUMBERS[spec.log_level],
        "seed": spec.seed,
        "warmup": 0 if spec.warmup == run_spec.AUTO else spec.warmup,
        "min_runs": spec.min_runs + WARMUP_RUNS * found_later,
        "min_ns": round(spec.min_seconds * 1e9 * (1 + WARMUP_SHARE * found_later)),
        "max_ns": round(spec.max_seconds * 1e9),
        "timeout_ms": round(spec.timeout_seconds * 1e3),
        "cold": int(spec.cold),
        "sustain_ns": round(spec.sustain_seconds * 1e9),
        "data_limit": spec.data_limit_bytes or None,
        "watch_stdin": int(watch_stdin),
        "steps": spec.stream.steps if spec.stream else None,
    }
    if spec.concurrent:
        settings |= {
            "callers": spec.concurrent.callers,
            "own_sessions": int(spec.concurrent.own_sessions),
            "shared_arena": int(spec.concurrent.shared_arena),
            "global_threads": int(spec.concurrent.global_threads),
            "concurrent_ns": round(spec.concurrent.seconds * 1e9),
        }
    triples = [*_set(settings), *_entries(options)]
    triples += [("dimension", name, str(size)) for name, size in spec.dimensions.items()]
    triples += [("beside", model, "") for model in (spec.concurrent.beside if spec.concurrent else ())]
    if spec.stream:
        triples += [("state", given, taken) for given, taken in spec.stream.states.items()]
        triples += [("sequence", tensor.name, tensor.file) for tensor in spec.stream.sequences]
        triples += [("track", name, "") for name in spec.stream.tracked]
    for tensor in spec.inputs:
        triples.append(("input", tensor.name, tensor.file))
        triples.append(("shape", str(run_spec.ONNX_CODES[tensor.dtype]), ",".join(map(str, tensor.shape))))
    return _join(triples)


def encode_inspection(
    questions: Iterable[tuple[str, str, str]] = (), *, limit_seconds: float, watch_stdin: bool = False
) -> bytes:
    """The request that asks a system's NNAPI for its devices, and which of them supports what (probe/inspect.h)."""
    settings = {"mode": "inspect", "timeout_ms": str(round(limit_seconds * 1e3)), "watch_stdin": str(int(watch_stdin))}
    return _join([*(("set", name, value) for name, value in settings.items()), *questions])


def _join(triples: Sequence[tuple[str, str, str]]) -> bytes:
    strings = [text for triple in triples for text in triple]
    for text in strings:
        if "\0" in text:
            raise SpecError("a value has a NUL in it", where=repr(text[:80]), remedy="remove it; no name needs one")
    body = b"".join(text.encode("utf-8", "surrogateescape") + b"\0" for text in strings)
    return body + b"check\0crc32\0%d\0" % zlib.crc32(body)


def request_crc32(request: bytes) -> int:
    """The checksum that a request ends with, and that its answer names."""
    return int(request.split(b"\0")[-2])


Word = Annotated[str, msgspec.Meta(max_length=64)]
Path = Annotated[str, msgspec.Meta(max_length=4096)]
Message = Annotated[str, msgspec.Meta(max_length=16 * 1024)]
Line = Annotated[str, msgspec.Meta(max_length=LOG_CHARACTERS)]
Crc32 = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
Number = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
Nanoseconds = Annotated[int, msgspec.Meta(ge=0, le=10**15)]
"""Up to 11 days: a run ends within one."""


class ProbeOutput(msgspec.Struct, frozen=True):
    """One output as the probe notes it; `file` is empty for what has no raw form."""

    name: Annotated[str, msgspec.Meta(max_length=65_536)]
    type: Number
    file: Path
    shape: Annotated[list[Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]], msgspec.Meta(max_length=32)]
    crc32: Crc32


class NnapiDeviceAnswer(msgspec.Struct, frozen=True):
    """A device of NNAPI's own list; types: 0 unknown, 1 other, 2 CPU, 3 GPU, 4 accelerator.

    `answers` has one letter for each question: y supported, n refused, x no such model can be made, e an error.
    """

    name: Annotated[str, msgspec.Meta(max_length=300)]
    version: Annotated[str, msgspec.Meta(max_length=300)]
    type: Number
    level: Annotated[int, msgspec.Meta(ge=0, le=2_000_000_000)]
    answers: Annotated[str, msgspec.Meta(pattern="^[ynxe]{0,1024}$")]


class NnapiAnswer(msgspec.Struct, frozen=True):
    """What a system's NNAPI says of itself: whether it is there, its runtime's level (0: not told), its devices."""

    is_there: bool = msgspec.field(name="found")
    level: Annotated[int, msgspec.Meta(ge=0, le=2_000_000_000)]
    devices: Annotated[tuple[NnapiDeviceAnswer, ...], msgspec.Meta(max_length=16)]


Size = Annotated[int, msgspec.Meta(ge=-1, le=1 << 44)]


DroppedFile = tuple[Size, Size, Annotated[str, msgspec.Meta(max_length=256)]]
"""A file that was to leave the page cache: its bytes, those that stayed, what went wrong; -1 for unknown."""

Bin = Annotated[list[Nanoseconds], msgspec.Meta(min_length=6, max_length=6)]
Reading = Annotated[int, msgspec.Meta(ge=0, le=200_000)]
Sample = tuple[Nanoseconds, Reading, Reading]


Name = Annotated[str, msgspec.Meta(max_length=300)]


CallerAnswer = tuple[
    tuple[Count, Nanoseconds, Nanoseconds], Annotated[list[Count], msgspec.Meta(min_length=20, max_length=20)]
]
"""Inferences, median and 95th percentile, then the inferences of each slice."""


class ProbeAnswer(msgspec.Struct, frozen=True):
    """The document that the probe prints. What is out of these ranges cannot come from it."""

    probe: Number
    status: Status
    stage: Word
    kind: Word
    message: Message
    ort_code: Number
    signal: Word
    ort_version: Word
    stop: Word
    profile: Path
    available_providers: Annotated[list[Annotated[str, msgspec.Meta(max_length=1024)]], msgspec.Meta(max_length=256)]
    log: list[Line]
    open_ns: Nanoseconds
    load_ns: Nanoseconds
    first_run_ns: Nanoseconds
    memory_before_load_bytes: run_spec.Bytes
    memory_after_load_bytes: run_spec.Bytes
    memory_peak_bytes: run_spec.Bytes
    log_dropped: Count
    latencies_ns: Annotated[list[Nanoseconds], msgspec.Meta(max_length=RUNS_KEPT)]
    nnapi: NnapiAnswer
    outputs: Annotated[list[ProbeOutput], msgspec.Meta(max_length=4096)]
    crc32: Crc32
    request: Crc32 = 0
    """The checksum of the request that it answers, 0 where that could not be read."""
    began_ms: Count = 0
    ended_ms: Count = 0
    """When the probe began and ended: milliseconds since 1970 by the device's clock."""
    memory_private_bytes: run_spec.Bytes = 0
    model_pages: DroppedFile | None = None
    library_pages: DroppedFile | None = None
    bins: Annotated[list[Bin], msgspec.Meta(max_length=BINS_KEPT)] = []
    samples: Annotated[list[Sample], msgspec.Meta(max_length=SAMPLES_KEPT)] = []
    callers: Annotated[list[CallerAnswer], msgspec.Meta(max_length=64)] = []
    wrong_shapes: Count = 0
    ep_devices: Annotated[list[tuple[Name, Name, Number]], msgspec.Meta(max_length=32)] = []
    ep_shares: Annotated[list[tuple[Name, Count, Count]], msgspec.Meta(max_length=8)] = []


def answer_limit(spec: RunSpec) -> int:
    """The most bytes that the probe prints for a spec; what says more is not the probe."""
    seconds = spec.min_seconds * (1 + WARMUP_SHARE)
    most_runs = max(spec.min_runs + WARMUP_RUNS, round(seconds * 1e9 / run_result.FASTEST_NS))
    return ANSWER_BYTES + LATENCY_BYTES * min(most_runs, RUNS_KEPT)


def decode_answer(stdout: bytes) -> ProbeAnswer | run_result.Failure:
    """The probe's document, or a `garbage` Failure for anything else."""
    try:
        answer = untrusted_files.decode_json(stdout, ProbeAnswer)
        if answer.crc32 != zlib.crc32(stdout[: stdout.rfind(b',"crc32":')]):
            raise msgspec.ValidationError("its checksum is wrong")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        start = stdout[:500].decode("utf-8", "replace")
        return run_result.Failure(
            code=run_result.FailureKind.GARBAGE,
            what=f"{error}; it begins: {start!r}" if stdout else "it printed nothing",
            why="what came back is not a document of the probe",
            remedy="run it once more; if it stays, look at the log of the device and build the probe again",
        )
    # What a document that parses may still not say.
    doubt = ""
    strange = [output.type for output in answer.outputs if output.type not in run_spec.TYPES_BY_CODE and output.file]
    if answer.status is not Status.OK and answer.kind not in set(run_result.FailureKind):
        doubt = f"a failure of unknown kind {answer.kind!r}"
    elif strange:
        doubt = f"an output of unknown type {strange[0]}"
    elif sum(map(len, answer.log)) > LOG_CHARACTERS:
        doubt = f"a log of more than {LOG_CHARACTERS} characters"
    return run_result.Failure(code=run_result.FailureKind.GARBAGE, what=doubt) if doubt else answer


def to_result(spec: RunSpec, device: str, answer: ProbeAnswer) -> RunResult:
    """What a document of the probe means for its spec; output files still have the names that the probe gave them.

    Numbers that cannot be true make it a `garbage` failure, of which nothing else is kept.
    """
    failure = None if answer.status is Status.OK else _failure_of(spec, answer)
    dropped = (f"({answer.log_dropped} more lines did not fit)",) if answer.log_dropped else ()
    warmup = None
    if answer.latencies_ns and isinstance(spec.warmup, int):
        warmup = run_result.WarmUp(inferences=spec.warmup, why="as many as were asked for, not timed")
    elif answer.latencies_ns:
        warmup = run_result.find_warmup(answer.latencies_ns)
    first = warmup.inferences if warmup and spec.warmup == run_spec.AUTO else 0
    tensors = [
        TensorFile(
            name=output.name,
            dtype=run_spec.TYPES_BY_CODE[output.type],
            shape=tuple(output.shape),
            file=output.file,
            crc32=output.crc32,
        )
        for output in answer.outputs
        if output.file
    ]
    labelled = [tensor for tensor in tensors if tensor.file.endswith("labelled.raw")]
    shares = tuple(
        run_result.EpShare(provider=name, nodes=nodes, subgraphs=parts) for name, nodes, parts in answer.ep_shares
    )
    sustained = None
    if answer.bins:
        sustained = run_result.SustainedRun(
            bins=convert(answer.bins, tuple[run_result.LatencyBin, ...]),
            samples=convert(answer.samples, tuple[run_result.DeviceSample, ...]),
        )
    result = RunResult(
        spec_id=spec.id,
        device=device,
        status=run_result.status_of(failure),
        failure=failure,
        ort_version=answer.ort_version,
        available_providers=tuple(answer.available_providers),
        open_ns=answer.open_ns,
        load_ns=answer.load_ns,
        first_run_ns=answer.first_run_ns,
        latencies_ns=tuple(answer.latencies_ns[first:]),
        warmup_ns=tuple(answer.latencies_ns[:first]),
        warmup=warmup,
        cold=_cold(answer),
        sustained=sustained,
        concurrent=_concurrent(spec, answer),
        memory_before_load_bytes=answer.memory_before_load_bytes,
        memory_after_load_bytes=answer.memory_after_load_bytes,
        memory_peak_bytes=answer.memory_peak_bytes,
        memory_private_bytes=answer.memory_private_bytes,
        outputs=tuple(tensor for tensor in tensors if tensor not in labelled),
        labelled_outputs=next(iter(labelled), None),
        profile_file=answer.profile or None,
        ep_devices=tuple(
            run_result.EpDevice(provider=provider, vendor=vendor, type=HARDWARE_KINDS.get(number))
            for provider, vendor, number in answer.ep_devices
        ),
        ep_shares=shares,
        log=(*answer.log, *dropped),
        marks=_marks(spec, answer, warmup, shares),
    )
    untrue = run_result.implausible(spec, result)
    return run_result.without_measurement(spec, device, untrue) if untrue else result


def _failure_of(spec: RunSpec, answer: ProbeAnswer) -> run_result.Failure:
    """What a document says of failing, with its cause; what runs out of a limit that was asked for does not fit."""
    failure = failures.explain(
        run_result.Failure(
            code=run_result.FailureKind(answer.kind),
            what=answer.message,
            signal=answer.signal or None,
            ort_code=answer.ort_code or None,
            stage=answer.stage,
        )
    )
    if not spec.data_limit_bytes or failure.code is not run_result.FailureKind.OUT_OF_MEMORY:
        return failure
    most = f"{spec.data_limit_bytes / 1e6:g} MB"
    return msgspec.structs.replace(failure, why=f"it does not fit into {most} of private memory", remedy=NO_FIT)


def _concurrent(spec: RunSpec, answer: ProbeAnswer) -> run_result.ConcurrentRun | None:
    if not spec.concurrent or not answer.callers:
        return None
    return run_result.ConcurrentRun(
        length_ns=round(spec.concurrent.seconds * 1e9),
        callers=tuple(
            run_result.Caller(inferences=runs, median_ns=middle, high_ns=high, slices=tuple(slices))
            for (runs, middle, high), slices in answer.callers
        ),
    )


def _marks(
    spec: RunSpec,
    answer: ProbeAnswer,
    warmup: run_result.WarmUp | None,
    shares: Sequence[run_result.EpShare],
) -> tuple[run_result.Mark, ...]:
    """What a reader of the numbers has to know of the run."""
    marks = {
        run_result.Mark.SHORT: answer.stop == "max_seconds" and len(answer.latencies_ns) < spec.min_runs,
        run_result.Mark.UNSETTLED: warmup and not warmup.settled,
        run_result.Mark.CPU_FALLBACK: not spec.options.on_cpu
        and (
            ort_profile.fell_back(answer.log)
            or any(share.provider == runner_providers.provider_named(runner_providers.CPU).ort_name for share in shares)
        ),
        run_result.Mark.UNRECORDED: spec.plugin and answer.status is Status.OK and not shares,
        run_result.Mark.WRONG_SHAPE: answer.wrong_shapes,
        run_result.Mark.CRASHED_AT_END: answer.status is Status.OK and answer.signal,
    }
    return tuple(mark for mark, applies in marks.items() if applies)


def _cold(answer: ProbeAnswer) -> run_result.ColdStart | None:
    if answer.model_pages is None:
        return None
    size, resident, error = answer.model_pages
    library_size, library_resident, _ = answer.library_pages or (-1, -1, "")
    cold = 0 <= resident <= COLD_SHARE * size
    if resident < 0:
        how = "the system does not say what of its file is in memory"
    elif cold:
        how = "its pages were dropped from memory"
    else:
        how = f"{resident} of {size} bytes of its file stayed in memory"
    sizes = [None if number < 0 else number for number in (size, resident, library_size, library_resident)]
    return run_result.ColdStart(
        cold=cold,
        how=f"{how} ({error})" if error else how,
        model_bytes=sizes[0],
        model_resident_bytes=sizes[1],
        library_bytes=sizes[2],
        library_resident_bytes=sizes[3],
    )
