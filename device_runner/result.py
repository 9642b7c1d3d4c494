"""RunResult: everything that one run gave, or why not, as plain data; whether it can be true; its warm-up."""

import math
import platform
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from itertools import accumulate, pairwise
from statistics import median, median_high, median_low

from msgspec import Struct, field

from device_runner.problem import Problem
from device_runner.spec import ELEMENT_BYTES, HardwareType, RunSpec, TensorFile, tensor_bytes

RESULT_VERSION = 1


class Status(StrEnum):
    """How a run ended. `skipped`: it was not possible here and nothing was started."""

    OK = "ok"
    FAILED = "failed"
    SKIPPED = "skipped"


class FailureKind(StrEnum):
    """What went wrong, one word a program can decide on; `Failure.what` has the original text."""

    CRASH = "crash"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    PROVIDER_MISSING = "provider_missing"
    PROVIDER_REFUSED = "provider_refused"
    MODEL_LOAD = "model_load"
    MISSING_LIBRARY = "missing_library"
    WRONG_LIBRARY = "wrong_library"
    BAD_INPUT = "bad_input"
    RUN_ERROR = "run_error"
    BAD_OPTIONS = "bad_options"
    GARBAGE = "garbage"
    LOST_DEVICE = "lost_device"
    NO_SPACE = "no_space"
    WRONG_DEVICE = "wrong_device"
    DEVICE_ERROR = "device_error"
    SET_UP = "set_up"
    """The device lets nobody store or execute files where they must lie: it will not, however often it is asked."""
    DENIED = "denied"


class Mark(StrEnum):
    """What a reader of the numbers must know."""

    NOT_A_PHONE = "not_a_phone"
    """A phone's library ran on another machine: these times rank nothing."""
    EMULATED = "emulated"
    """An emulator ran the library's code for another processor: times and memory are its own, and not reported."""
    SIMULATED = "simulated"
    """A plugin played a phone's accelerator on a computer: outputs are near its, times and memory are not."""
    SOFTWARE_GPU = "software_gpu"
    """A driver that computes on the CPU played a GPU: outputs are a GPU's, times and memory are not, nor reported."""
    THROTTLED = "throttled"
    CHARGING = "charging"
    SHORT = "short"
    """Stopped at max_seconds before min_runs."""
    CRASHED_AT_END = "crashed_at_end"
    """Measured in full, but the process crashed while it gave its memory back."""
    CPU_FALLBACK = "cpu_fallback"
    """Another provider was asked for, and the log says that the CPU took nodes."""
    WRONG_SHAPE = "wrong_shape"
    """An output does not have the shape that the model declares: each inference makes a new one."""
    UNSETTLED = "unsettled"
    """Inferences still became faster in the middle of what was timed: no end of the warm-up was found."""
    UNRECORDED = "unrecorded"
    """A plugin was loaded, and ONNX Runtime does not say what it took, as of any ORT format file."""
    QUARANTINED = "quarantined"
    """A lab took the device out, and this was measured since its last good check: whether it holds is not known."""
    REPORTED = "reported"
    """A package measured it on a device that nobody of us opened: outputs are compared, times are what was brought."""
    SHARED_PROCESS = "shared_process"
    """Other turns of a package ran in its process before: only inferences and outputs are its own, and kept."""
    PERF_TEST = "perf_test"
    """Measured by onnxruntime_perf_test: no outputs, and the first inference to the millisecond."""


class Failure(Problem, frozen=True, kw_only=True):
    """Why there is no measurement.

    The message is what ONNX Runtime, the linker or the device said, as it said it; `ort_code` its error code; `signal`
    the name of the signal that ended the process; cause and remedy are ours.
    """

    code: FailureKind = field(name="kind")
    what: str = field(name="message")
    why: str = field(default="", name="cause")
    signal: str | None = None
    ort_code: int | None = None
    stage: str = ""


class RailReading(Struct, frozen=True, kw_only=True):
    """What flowed through a power rail since the device started, and when it was read, since then, too."""

    at_ms: int
    microjoules: int


class Conditions(Struct, frozen=True, kw_only=True):
    """State of the device around a run; None where it does not tell."""

    thermal_status: int | None = None
    battery_percent: int | None = None
    battery_celsius: float | None = None
    charging: bool | None = None
    screen_on: bool | None = None
    low_power: bool | None = None
    """Whether iOS saved power, by slower clocks."""
    quality_of_service: int | None = None
    """The class of the thread that ran, by which Apple's systems schedule: 25 is what a user waits for."""
    fixed_performance: bool | None = None
    """Whether we had set Android's fixed performance mode."""
    cpu_mhz: tuple[int, ...] = ()
    zones_celsius: dict[str, float] = {}
    """Temperature by the name of the thermal zone; the highest where several have one name."""
    rails: dict[str, RailReading] = {}
    """Energy by the name of the power rail, around sustained runs."""


THROTTLES_FROM = 2
"""Heat from `moderate` on throttles."""


def condition_marks(before: Conditions) -> tuple[Mark, ...]:
    """What a reader of the numbers must know of the state in which a run began."""
    marks = {
        Mark.THROTTLED: (before.thermal_status or 0) >= THROTTLES_FROM or bool(before.low_power),
        Mark.CHARGING: before.charging,
    }
    return tuple(mark for mark, applies in marks.items() if applies)


class WarmUp(Struct, frozen=True, kw_only=True):
    """Which inferences at the beginning count as warm-up, and why; not `settled` where their end was not found."""

    inferences: int
    settled: bool = True
    why: str = ""


class ColdStart(Struct, frozen=True, kw_only=True):
    """Whether the model's file was out of the page cache when it was loaded, and how that is known.

    Resident bytes were counted after the pages had been dropped, before anything was opened; None where the system does
    not say. A library that other processes have mapped stays in memory.
    """

    cold: bool
    how: str
    model_bytes: int | None = None
    model_resident_bytes: int | None = None
    library_bytes: int | None = None
    library_resident_bytes: int | None = None


class LatencyBin(Struct, frozen=True, kw_only=True, array_like=True):
    """Inferences of a sustained run that began in the same stretch of time: `start_ns` counts from the first one."""

    start_ns: int
    inferences: int
    total_ns: int
    min_ns: int
    median_ns: int
    max_ns: int


class DeviceSample(Struct, frozen=True, kw_only=True, array_like=True):
    """The device `at_ns` into a sustained run: mean clock of its processors, temperature; 0 where it does not say."""

    at_ns: int
    mhz: int = 0
    millidegrees: int = 0


class SustainedRun(Struct, frozen=True, kw_only=True):
    """Latency over minutes of back-to-back inferences, and what the device said of itself meanwhile."""

    bins: tuple[LatencyBin, ...]
    samples: tuple[DeviceSample, ...] = ()


class Caller(Struct, frozen=True, kw_only=True):
    """What one of several callers did: inferences, their median and the latency that 19 of 20 keep.

    `slices` has the inferences that ended in each of equal parts of the time.
    """

    inferences: int
    median_ns: int
    high_ns: int
    slices: tuple[int, ...]


class ConcurrentRun(Struct, frozen=True, kw_only=True):
    """Several callers at once, for `length_ns`: those of the model first, then one for each model beside it."""

    length_ns: int
    callers: tuple[Caller, ...]


class EpDevice(Struct, frozen=True, kw_only=True):
    """A device that an execution provider offers after its plugin was loaded; `type` None for a kind without a name."""

    provider: str
    vendor: str = ""
    type: HardwareType | None = None


class EpShare(Struct, frozen=True, kw_only=True):
    """What an execution provider took of a session's graph, as it was after level basic and changes of layout."""

    provider: str
    nodes: int
    subgraphs: int


class OperatorTime(Struct, frozen=True, kw_only=True):
    """All nodes of one operator on one provider; `nanoseconds` is their usual time in one inference."""

    operator: str
    provider: str
    nodes: int
    nanoseconds: float
    share: float


class NodeTime(Struct, frozen=True, kw_only=True):
    """One node by the name that ONNX Runtime gave it; `nanoseconds` is its usual time in one inference."""

    name: str
    operator: str
    provider: str
    nanoseconds: float


class ValueCopy(Struct, frozen=True, kw_only=True):
    """A value that one inference copies between the memories of the CPU (the host) and of another provider.

    `value` is "" where the log does not say it. A copy to the host waits for all that the provider has to do before it:
    `nanoseconds` has that, too.
    """

    value: str
    to_host: bool
    size_bytes: int
    nanoseconds: float


class Profile(Struct, frozen=True, kw_only=True):
    """What a profile says. `inferences` are those counted: all but the first, which fills caches and memory.

    `partitions` is by provider without the CPU's: what a provider took appears as one node for each partition.
    Providers with kernels of their own (XNNPACK) appear node by node. `nodes` are in the order of their first run;
    reports are made from them and leave them out. `inference_ns` is an inference with the profiler on, and
    `overhead_ns` what of it is outside of nodes. All times are means of the middle half of what was measured: an
    interruption does not count. `written_bytes` are the outputs of all nodes in one inference, `copied_bytes` those
    that went to another memory (`copies`, value by value), `peak_bytes` the most that values took of the arena,
    `arena_bytes` the arena: 0 where the library does not say (1.28 does, 1.23 does not).
    """

    inferences: int
    operators: tuple[OperatorTime, ...]
    partitions: dict[str, int]
    nodes: tuple[NodeTime, ...] = ()
    inference_ns: float = 0.0
    overhead_ns: float = 0.0
    written_bytes: int = 0
    copied_bytes: int = 0
    copies: tuple[ValueCopy, ...] = ()
    peak_bytes: int = 0
    arena_bytes: int = 0


class RunResult(Struct, frozen=True, kw_only=True):
    """What one run gave. Times are nanoseconds of CLOCK_MONOTONIC; `latencies_ns` has every timed inference.

    `warmup_ns` are those before them that count as warm-up, where they were recorded, and `warmup` says why these.
    `open_ns` is the loading of the library, `load_ns` the creation of the session, `first_run_ns` the first inference.
    Memory is the resident set of the probe's process after loading, and its peak (the runtime and everything in it,
    not the model alone); private is what of it no file is behind, when the inferences end: a system that is short of
    memory can take back the rest. `started_at` and `elapsed_ns` are the whole run as its caller saw it, copying and
    starting included; 0 where nobody looked. `push_ns` of it went into bringing files to the device, or seeing that
    they are there. `host` is the name of the computer that ran it or drove the device.
    `labelled_outputs` is the first output for each sample of the spec's labelled set, stacked along a first axis.
    `ep_devices` and `ep_shares` are of runs with a plugin. `profile` is what `profile_file` says,
    where that was read. `cpu` is the profile of an emulated processor.
    """

    spec_id: str
    device: str
    status: Status
    failure: Failure | None = None
    ort_version: str = ""
    available_providers: tuple[str, ...] = ()
    cpu: str = ""
    open_ns: int = 0
    load_ns: int = 0
    first_run_ns: int = 0
    latencies_ns: tuple[int, ...] = ()
    warmup_ns: tuple[int, ...] = ()
    warmup: WarmUp | None = None
    cold: ColdStart | None = None
    sustained: SustainedRun | None = None
    concurrent: ConcurrentRun | None = None
    memory_before_load_bytes: int = 0
    memory_after_load_bytes: int = 0
    memory_peak_bytes: int = 0
    memory_private_bytes: int = 0
    outputs: tuple[TensorFile, ...] = ()
    labelled_outputs: TensorFile | None = None
    profile_file: str | None = None
    profile: Profile | None = None
    ep_devices: tuple[EpDevice, ...] = ()
    ep_shares: tuple[EpShare, ...] = ()
    log: tuple[str, ...] = ()
    started_at: str = ""
    elapsed_ns: int = 0
    push_ns: int = 0
    host: str = ""
    before: Conditions = Conditions()
    after: Conditions = Conditions()
    marks: tuple[Mark, ...] = ()
    version: int = RESULT_VERSION

    @property
    def median_ns(self) -> int | None:
        """The median latency, of an even number the mean of the middle two; None where no inference was timed."""
        if not self.latencies_ns:
            return None
        return (median_low(self.latencies_ns) + median_high(self.latencies_ns)) // 2  # exact, also beyond 2**53


IMPOSSIBLE_HERE = frozenset({FailureKind.PROVIDER_MISSING, FailureKind.WRONG_DEVICE, FailureKind.DENIED})
"""Kinds that make a run `skipped`: nothing went wrong, it just cannot be done on this device or with this library."""


def status_of(failure: Failure | None) -> Status:
    """`ok` without a failure; else `skipped` where it could not be done here, and `failed`."""
    if failure is None:
        return Status.OK
    return Status.SKIPPED if failure.code in IMPOSSIBLE_HERE else Status.FAILED


def without_measurement(spec: RunSpec, device: str, failure: Failure) -> RunResult:
    """The result of a run of which nothing is known but why."""
    return RunResult(spec_id=spec.id, device=device, status=status_of(failure), failure=failure, started_at=utc_now())


def utc_now() -> str:
    """The instant as ISO 8601 in UTC with milliseconds, as in 2026-01-31T08:15:30.123Z."""
    return _utc_text(datetime.now(UTC))


def utc_at(milliseconds: int) -> str:
    """An instant given in milliseconds since 1970, in the same way."""
    return _utc_text(datetime.fromtimestamp(milliseconds / 1000, UTC))


def _utc_text(instant: datetime) -> str:
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def epoch_ms(instant: str) -> int | None:
    """Milliseconds since 1970 of an instant as `utc_now` writes it; None for what is none."""
    try:
        return round(datetime.fromisoformat(instant).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


def host_name() -> str:
    """The name of this computer in its network, at most 256 printable characters; "" where it has none."""
    return "".join(char for char in platform.node() if char.isprintable())[:256]


FASTEST_NS = 100
"""No inference is faster: entering and leaving ONNX Runtime's Run alone takes longer on any processor."""

OVERTIME_NS = 30_000_000_000
"""What the parts of a run may take beyond its time limit, in which it is killed."""


LEAST_PEAK = 0.9
"""Of what a process has after loading, its peak is more: Linux counts pages for each thread, and adds up late."""
LEAST_TIME = 0.5
"""Of `max_seconds`, inferences have taken more where that ended them before there were `min_runs`."""


def _too_few(spec: RunSpec, result: RunResult) -> Iterator[str]:
    """That a timed loop ended before it had the inferences that were asked for, and before its time was over."""
    looped = not (spec.sustain_seconds or spec.cold or spec.stream or spec.perf_test)
    count = len(result.latencies_ns) + (len(result.warmup_ns) if spec.warmup == "auto" else 0)
    seconds = sum((*result.latencies_ns, *result.warmup_ns)) / 1e9
    if looped and 0 < count < spec.min_runs and seconds < LEAST_TIME * spec.max_seconds:
        yield f"{count} timed inferences in {seconds:.3g} s, and {spec.min_runs} were asked for"


def implausible(spec: RunSpec, result: RunResult) -> Failure | None:
    """A `garbage` failure for numbers and outputs that no run of the spec can give; None for a result to keep."""
    reasons = []
    if result.status is Status.OK:
        bins = result.sustained.bins if result.sustained else ()
        total = sum((*result.latencies_ns, *result.warmup_ns, result.load_ns, result.first_run_ns))
        total += sum(part.total_ns for part in bins)
        callers = result.concurrent.callers if result.concurrent else ()
        if any(sum(caller.slices) > caller.inferences or caller.median_ns > caller.high_ns for caller in callers):
            reasons.append("a caller with more inferences in parts than in all, or a median over its higher latencies")
        if total > spec.timeout_seconds * 1e9 + OVERTIME_NS:
            reasons.append(f"{total / 1e9:.3g} s of work in a run that is limited to {spec.timeout_seconds:g} s")
        if result.latencies_ns and median_low(result.latencies_ns) < FASTEST_NS:
            reasons.append(f"half of its {len(result.latencies_ns)} inferences took less than {FASTEST_NS} ns")
        timed = bool(
            result.latencies_ns or bins or {Mark.EMULATED, Mark.SIMULATED, Mark.SOFTWARE_GPU} & set(result.marks)
        )
        if not timed and (spec.sustain_seconds or (spec.min_runs and spec.max_seconds)):
            reasons.append("it ended well, and timed no inference")
        reasons += _too_few(spec, result)
        peak, loaded = result.memory_peak_bytes, result.memory_after_load_bytes
        if 0 < peak < LEAST_PEAK * loaded:
            reasons.append(f"a peak of {peak:,} bytes, and {loaded:,} after loading")
        if any(not part.min_ns <= part.median_ns <= part.max_ns or not part.inferences for part in bins):
            reasons.append("a stretch of the sustained run whose median is not between its extremes")
    tensors = [*result.outputs, *([result.labelled_outputs] if result.labelled_outputs else [])]
    # An empty dimension counts as one: arrays of none may not be endless in another direction.
    sizes = (
        max(tensor_bytes(tensor), math.prod(max(1, size) for size in tensor.shape) * ELEMENT_BYTES.get(tensor.dtype, 1))
        for tensor in tensors
    )
    if sum(sizes) > spec.outputs_limit_bytes:
        reasons.append(f"outputs of more than {spec.outputs_limit_bytes} bytes, the most that this model has")
    names = Counter(tensor.name for tensor in result.outputs) + Counter(tensor.file for tensor in tensors)
    if twice := [name for name, count in names.items() if count > 1]:
        reasons.append(f"an output twice: {twice[0][:100]!r}")
    if not reasons:
        return None
    return Failure(
        code=FailureKind.GARBAGE,
        what=f"the device reports what cannot be: {'; '.join(reasons)}",
        why="the device, its driver or the library is broken, or something answers in its place",
        remedy="run it again; if it stays, exclude this device and look at its log",
    )


FEWEST = 12
"""With fewer latencies no change can be told from noise: `LEFT_OUT` are left out, as a fixed count would."""

LEFT_OUT = 3

BINS = 200
"""A long series is looked at as medians of so many stretches, then its beginning one by one."""

LIMIT = 7.0
"""What the cumulative sum must exceed. Of independent noise it does so with a probability of about exp(-LIMIT)."""

LEAST_CHANGE = 0.01
"""Inferences that are less than 1 % slower than later ones are no warm-up that matters."""

CLIPPED = 5.0
"""Standard deviations that one value counts for at most: a single interruption is no warm-up."""


def find_warmup(latencies_ns: Sequence[int]) -> WarmUp:
    """How many inferences at the beginning are slower than those after, by Page's cumulative sum; half at most.

    A long series is looked at as medians of stretches first. Being faster at first is no warm-up.
    """
    count = len(latencies_ns)
    if count < FEWEST:
        few = min(LEFT_OUT, count // 2)
        return WarmUp(inferences=few, why=f"{count} inferences are too few to find a change: the first {few} left out")
    size = math.ceil(count / BINS)
    medians = [median(latencies_ns[at : at + size]) for at in range(0, count - size + 1, size)]
    slow = change_point(medians) * size or change_point(latencies_ns[:BINS])
    if not slow:
        return WarmUp(inferences=0, why="none: the first inferences are as fast as the later ones")
    settled = slow < (len(medians) // 2) * size
    ratio = median_low(latencies_ns[:slow]) / max(1, median_low(latencies_ns[slow:]))
    end = "" if settled else "; it had not settled by the middle, up to which it was looked for"
    why = f"the first {slow} of {count} inferences take {ratio:.3g} times as long as the later ones{end}"
    return WarmUp(inferences=slow, settled=settled, why=why)


def change_point(values: Sequence[float]) -> int:
    """How many of the first values lie higher than the second half; 0 where none can be told to, half at most.

    The sum adds by how much each lies over the median of the second half, less an allowance, in that half's standard
    deviations. Where it exceeds its limit there is a change, whose place is the most likely one for a shift of that
    size; what is left of the first half is looked at again, since a warm-up may fall in steps or slowly.
    """
    middle = len(values) // 2
    logs = [math.log(max(value, 1.0)) for value in values]
    later = sorted(logs[middle:])
    level, high = later[len(later) // 2], later[int(0.9 * (len(later) - 1))]
    deviation = 1.4826 * median(abs(value - level) for value in later)
    # That above the median, from the 90th percentile, so that a second mode counts as noise.
    scale = max((high - level) / 1.2816, deviation, LEAST_CHANGE / 20)
    over = [(value - level) / scale for value in logs[:middle]]
    allowance = max(0.5, LEAST_CHANGE / scale)
    # Values that follow their neighbours enlarge a sum of them, by (1 + r) / (1 - r) for a lag-1 r.
    centred = [value - level for value in logs[middle:]]
    square = sum(value * value for value in centred)
    lag = sum(earlier * after for earlier, after in pairwise(centred)) / square if square else 0.0
    lag = min(max(lag, 0.0), 0.9)
    limit = LIMIT * (1 + lag) / (1 - lag)
    start = 0
    while (end := start + _highest(over[start:], allowance, limit)) > start:
        shift = median(over[start:end])
        start += _highest(over[start:end], max(allowance, shift / 2), 0.0) or end - start
    return start


def _highest(over: Sequence[float], allowance: float, limit: float) -> int:
    """How many values the cumulative sum has where it is highest; 0 where it stays below its limit."""
    clipped = (min(max(value - allowance, -CLIPPED), CLIPPED) for value in over)
    best = max(enumerate(accumulate(clipped), start=1), key=lambda pair: pair[1], default=(0, 0.0))
    return best[0] if best[1] > limit else 0
