"""RunSpec: everything that one measured run needs, as plain data with JSON both ways."""

import math
from enum import StrEnum
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from device_runner.errors import SpecError
from device_runner.providers import on_cpu, provider_named
from device_runner.untrusted_files import decode_json

SPEC_VERSION = 1

Count = Annotated[int, Meta(ge=0, le=10_000_000)]
Seconds = Annotated[float, Meta(ge=0, le=86_400)]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]
"""Where a line end behind it is none: `$` alone takes one."""
Text = Annotated[str, Meta(max_length=65_536)]
Provider = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:+-]{0,127}$(?!\n)")]
"""An execution provider, as ONNX Runtime's generic append call names it."""
OptionName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:|/+-]{0,255}$(?!\n)")]
"""Of a provider's option or of a session config entry."""
CORE = r"[1-9][0-9]?(-[1-9][0-9]?)?"
Cores = Annotated[str, Meta(pattern=rf"^(big|{CORE}(,{CORE}){{0,99}})?$(?!\n)")]
LibraryPath = Annotated[str, Meta(pattern=r"^[^\x00-\x1f\x7f]{1,4096}$(?!\n)")]
"""Of a library of custom operators; in a bundle, its name."""
Bytes = Annotated[int, Meta(ge=0, le=1 << 44)]

OUTPUTS_LIMIT_BYTES = 1 << 31
"""The most that the outputs of a run may have where a spec does not say less."""


class ElementType(StrEnum):
    """Element types of tensors by their usual names; values of the ONNX enum are in `ONNX_CODES`."""

    FLOAT32 = "float32"
    UINT8 = "uint8"
    INT8 = "int8"
    UINT16 = "uint16"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    STRING = "string"
    BOOL = "bool"
    FLOAT16 = "float16"
    FLOAT64 = "float64"
    UINT32 = "uint32"
    UINT64 = "uint64"
    BFLOAT16 = "bfloat16"


ONNX_CODES: dict[ElementType, int] = {
    **{kind: code for code, kind in enumerate(list(ElementType)[:13], start=1)},
    ElementType.BFLOAT16: 16,
}
"""Element type to the number that ONNX's TensorProto and ONNX Runtime's C API give it."""

TYPES_BY_CODE = {code: kind for kind, code in ONNX_CODES.items()}

ELEMENT_BYTES: dict[ElementType, int] = {
    ElementType.FLOAT32: 4,
    ElementType.UINT8: 1,
    ElementType.INT8: 1,
    ElementType.UINT16: 2,
    ElementType.INT16: 2,
    ElementType.INT32: 4,
    ElementType.INT64: 8,
    ElementType.BOOL: 1,
    ElementType.FLOAT16: 2,
    ElementType.FLOAT64: 8,
    ElementType.UINT32: 4,
    ElementType.UINT64: 8,
    ElementType.BFLOAT16: 2,
}
"""Bytes of one element as it lies in a raw file; strings have no fixed size."""


class ExecutionMode(StrEnum):
    """Whether independent nodes may run at the same time (`inter_op_threads` of them)."""

    SEQUENTIAL = "sequential"
    PARALLEL = "parallel"


class OptimizationLevel(StrEnum):
    """What the session may change in the graph; of ORT format files it replays fusions and changes layouts alone."""

    NONE = "none"
    BASIC = "basic"
    EXTENDED = "extended"
    LAYOUT = "layout"
    ALL = "all"


class LogLevel(StrEnum):
    """What of ONNX Runtime's log the result keeps; what NNAPI claims is said at `info`, node by node at `verbose`."""

    VERBOSE = "verbose"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class NnapiFlag(StrEnum):
    """Flags of the NNAPI provider, by the names of ONNX Runtime without their prefix."""

    USE_FP16 = "USE_FP16"
    USE_NCHW = "USE_NCHW"
    CPU_DISABLED = "CPU_DISABLED"
    CPU_ONLY = "CPU_ONLY"


class Allocator(StrEnum):
    """What gives a process its memory, beside ONNX Runtime's arena: the C library, or a library in its place."""

    DEFAULT = "default"
    MIMALLOC = "mimalloc"
    JEMALLOC = "jemalloc"


class HardwareType(StrEnum):
    """What a device of a plugin is, as ONNX Runtime sorts hardware."""

    CPU = "cpu"
    GPU = "gpu"
    NPU = "npu"


class StrictStruct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A strict, unchanging value."""


BIG_CORES: Final = "big"
"""In place of numbers: the cores that are faster than the slowest."""


def cores_from_zero(text: str) -> list[int]:
    """Cores in the way of `thread_cores`, numbers from 1 with ranges, counted from 0."""
    ranges = (part.partition("-") for part in text.split(",") if part)
    return [core - 1 for low, _, high in ranges for core in range(int(low), int(high or low) + 1)]


class RunOptions(StrictStruct, frozen=True, kw_only=True):
    """How to run: provider with options and flags, threads, session settings.

    `provider` is cpu, nnapi, coreml, xnnpack, qnn, webgpu or any name that the library's generic append call knows.
    `session_config` goes to AddSessionConfigEntry as it is. 0 threads leaves the number to ONNX Runtime. `custom_ops`
    are libraries of custom operators (.so, .dylib, or AARs of them), of which those for the device's system and ABI
    are registered; in a bundle, their names. `thread_cores` (from 1, as in 5-8, or big) and `thread_nice` are of the
    pool's threads, which the calling thread is none of. `allocator` stands in for the C library's on Linux hosts.
    With `device_tensors` inputs and outputs are bound in the memory of the provider's device, and stay there.
    """

    provider: Provider = "cpu"
    provider_options: dict[OptionName, Text] = {}
    flags: tuple[NnapiFlag, ...] = ()
    intra_op_threads: Annotated[int, Meta(ge=0, le=1024)] = 0
    inter_op_threads: Annotated[int, Meta(ge=0, le=1024)] = 0
    execution_mode: ExecutionMode = ExecutionMode.SEQUENTIAL
    optimization_level: OptimizationLevel = OptimizationLevel.ALL
    cpu_arena: bool = True
    memory_pattern: bool = True
    session_config: dict[OptionName, Text] = {}
    thread_cores: Cores = ""
    thread_nice: Annotated[int, Meta(ge=-20, le=19)] = 0
    custom_ops: Annotated[tuple[LibraryPath, ...], Meta(max_length=64)] = ()
    allocator: Allocator = Allocator.DEFAULT
    device_tensors: bool = False

    @property
    def on_cpu(self) -> bool:
        """Whether the CPU is asked for, and no other provider."""
        return on_cpu(self.provider)

    @property
    def captures_graph(self) -> bool:
        """Whether the session captures its graph on a GPU, for which inputs and outputs have to be bound there."""
        facts = provider_named(self.provider)
        key = f"ep.{facts.ort_name.lower()}.{facts.capture}"
        return bool(facts.capture) and "1" in (self.provider_options.get(facts.capture), self.session_config.get(key))


class Plugin(StrictStruct, frozen=True, kw_only=True):
    """The library of a plugin execution provider, which ONNX Runtime of 1.24 or later loads; paths are the host's.

    `name` is what it is registered by, "" for the name of the provider itself. The first device of `device_type` is
    taken, None for any. `files` are further libraries that it loads: on a phone they lie in one folder with it, by
    their names, where the linker and the DSP look for them. A provider option that is the path of one of all these
    gets its path on the device.
    """

    library: Annotated[str, Meta(min_length=1)]
    name: Annotated[str, Meta(max_length=128)] = ""
    device_type: HardwareType | None = None
    files: Annotated[tuple[str, ...], Meta(max_length=64)] = ()


AUTO: Final = "auto"
"""Warm-up that is found in the latencies instead of counted."""


class TensorFile(StrictStruct, frozen=True, kw_only=True):
    """A tensor in a file: raw little-endian elements in C order, nothing else; strings of an input each end with a NUL.

    `crc32` is zlib's checksum of the file, where it was noted as the file was written.
    """

    name: Text
    dtype: ElementType
    shape: tuple[Annotated[int, Meta(ge=0)], ...]
    file: str
    crc32: int | None = None


MOST_STRING_BYTES = 16 << 20
"""Of an output's strings, each with a NUL behind; the probe brings no more back."""


def tensor_bytes(tensor: TensorFile) -> int:
    """How long the raw file of a tensor must be; of strings, how long it may be."""
    if tensor.dtype is ElementType.STRING:
        return MOST_STRING_BYTES
    return math.prod(tensor.shape) * ELEMENT_BYTES.get(tensor.dtype, 0)


class Concurrency(StrictStruct, frozen=True, kw_only=True):
    """Several callers after the timed loop: threads that call one session, or each a session of its own.

    `beside` are other models' files, each with a session and a caller more. `global_threads` gives all sessions one
    pool of threads, `shared_arena` one arena of memory; both hold for the timed loop before, too.
    """

    callers: Annotated[int, Meta(ge=1, le=64)] = 1
    own_sessions: bool = False
    beside: Annotated[tuple[str, ...], Meta(max_length=16)] = ()
    shared_arena: bool = False
    global_threads: bool = False
    seconds: Annotated[float, Meta(gt=0, le=3600)] = 1.0


class Stream(StrictStruct, frozen=True, kw_only=True):
    """A model with state, run step by step in place of the timed loop.

    `states` has by each output the input that it becomes in the next step; these begin as the spec's inputs are.
    `sequences` have the elements of the other inputs for all steps, stacked along a first axis; an input without one is
    the same in each step. Outputs in `tracked` come back so, too; of the others there is what the last step gave.
    """

    steps: Annotated[int, Meta(ge=1, le=1_000_000)]
    states: dict[str, str]
    sequences: tuple[TensorFile, ...] = ()
    tracked: Annotated[tuple[Text, ...], Meta(max_length=256)] = ()


class RunSpec(StrictStruct, frozen=True, kw_only=True):
    """One measured run. Paths are the host's; a device takes care of what it needs from there.

    `library` is libonnxruntime to run with; None takes the device's default. `plugin` has the provider of the options;
    None takes the one of an installed package where the library lacks it. Without `inputs` the probe makes random
    ones from `seed`; `dimensions` gives symbolic dimensions of the model their sizes. The timed loop ends when
    `min_runs` and `min_seconds` are both reached, or at `max_seconds`; after `timeout_seconds` in all (loading
    included) the process is killed. `warmup` inferences come before it, or with "auto" those at its beginning that are
    found to be slower than the rest are left out. `cold` drops the files of model and library from the page cache
    before they are opened. `sustain_seconds` above 0 runs for so long in place of the timed loop. `labelled` are
    samples for the model's only input, stacked along a first axis: after the timed loop each is run once and the first
    output kept. `outputs_folder` is where outputs and the profile
    are put; None wants none. `outputs_limit_bytes` is the most that its outputs may have together, those for the
    labelled set included: a device that announces more is not believed, and nothing is fetched. `perf_test` is
    onnxruntime_perf_test to measure with in place of the probe.
    """

    id: Annotated[str, Meta(min_length=1, max_length=256)]
    model: str
    model_sha256: Sha256 | None = None
    library: str | None = None
    options: RunOptions = RunOptions()
    plugin: Plugin | None = None
    inputs: tuple[TensorFile, ...] = ()
    labelled: TensorFile | None = None
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    dimensions: dict[str, Annotated[int, Meta(ge=1)]] = {}
    warmup: Count | Literal["auto"] = 3
    min_runs: Count = 20
    min_seconds: Seconds = 0.2
    max_seconds: Seconds = 60.0
    timeout_seconds: Annotated[float, Meta(gt=0, le=86_400)] = 300.0
    cold: bool = False
    sustain_seconds: Seconds = 0.0
    concurrent: Concurrency | None = None
    """Callers after the timed loop; None for the one of that."""
    stream: Stream | None = None
    """Steps of a model with state in place of the timed loop; the outputs are those of its steps."""
    outputs_folder: str | None = None
    outputs_limit_bytes: Bytes = OUTPUTS_LIMIT_BYTES
    profile: bool = False
    data_limit_bytes: Annotated[int, Meta(ge=0, le=2**50)] = 0
    """The most private memory that the process may have, 0 for any: what needs more fails. Linux and Android."""
    perf_test: str | None = None
    log_level: LogLevel = LogLevel.WARNING
    version: int = SPEC_VERSION

    def __post_init__(self) -> None:
        """Refuse what cannot be meant (ValueError; on decoding, part of the message)."""
        if self.profile and self.outputs_folder is None:
            raise ValueError("`profile` needs an `outputs_folder` to put it in")
        if self.sustain_seconds >= self.timeout_seconds:
            raise ValueError("`timeout_seconds` must be longer than `sustain_seconds`")
        others = self.cold or self.sustain_seconds or self.concurrent or self.stream or self.data_limit_bytes
        if self.perf_test is not None and others:
            raise ValueError(
                "`perf_test` measures neither cold starts, sustained runs, callers nor streams, and has no limit of "
                "memory: leave it out"
            )


def decode_spec(text: bytes | str, where: str = "") -> RunSpec:
    """A RunSpec from JSON; raises SpecError for what is not one, naming the key, or for another version's."""
    try:
        spec = decode_json(text, RunSpec)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        remedy = f"write a RunSpec of version {SPEC_VERSION}; docs/run-spec.schema.json describes it"
        raise SpecError("this is not a RunSpec", where=where, why=str(error), remedy=remedy) from error
    if spec.version != SPEC_VERSION:
        raise SpecError(
            f"this RunSpec has version {spec.version}",
            where=where,
            why=f"this release reads version {SPEC_VERSION}",
            remedy="write the spec again with this release",
        )
    return spec


def encode(value: msgspec.Struct) -> bytes:
    """A spec or result as one line of JSON."""
    return msgspec.json.encode(value) + b"\n"
