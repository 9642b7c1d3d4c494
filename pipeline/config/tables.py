"""What every table of a config is, and the tables of data, accuracy, runs and builds."""

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from device_runner import options as runner_options
from device_runner import spec as run_spec
from device_runner.spec import OptimizationLevel
from pipeline.config.settings import ConfigEntry, ConfigSwitch, OptionField, settings_of
from pipeline.core import documents

Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Rounds = Annotated[int, Meta(ge=1, le=10_000)]


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the config: strict, unchanging."""


Number: TypeAlias = bool | int | float


FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""The last part of a path that names a function; what stands before it is the folder to import from."""


def is_function(path: str) -> bool:
    """Whether a path names `module:function`, and not a file of such a name."""
    return bool(FUNCTION.fullmatch(Path(path).name)) and not Path(path).exists()


class Range(Table, frozen=True, kw_only=True):
    """Random numbers for one input: `low` and above, below `high`; whole numbers for integer inputs."""

    low: int | float
    """The least number."""
    high: int | float
    """The end of the range, itself not in it: for an embedding table of 178 rows, 178."""


InputValue: TypeAlias = Number | run_spec.Text | tuple[int | float, ...] | Range
"""A number (a text, of strings) for every element, the elements themselves, or a range to take random ones from."""


class Fit(StrEnum):
    """How an image becomes the size that `resize` asks for."""

    STRETCH = "stretch"
    COVER = "cover"
    PAD = "pad"


class ImageLayout(StrEnum):
    """Where the channels of an image stand."""

    NCHW = "NCHW"
    NHWC = "NHWC"


class Channels(StrEnum):
    """Channels of an image and their order."""

    RGB = "RGB"
    BGR = "BGR"
    GRAY = "GRAY"
    RGBA = "RGBA"


class PreprocessConfig(Table, frozen=True, kw_only=True):
    """How files of a folder of images or WAV recordings become the tensor that a model takes; the app must do the same.

    Images, in this order: resize, crop, channels, then (value - mean) * scale with values from 0 to 255, then layout.
    Recordings: mono, sample rate, length, then (value - mean) * scale with values from -1 to 1.
    """

    input: run_spec.Text | None = None
    """The input that gets them; by default the only one without a value in `inputs`."""
    resize: tuple[Count, Count] | None = None
    """Height and width that images are resized to, bilinearly with antialiasing (Pillow's)."""
    fit: Fit = Fit.STRETCH
    """stretch both sides to `resize`; cover keeps the proportions and fills it; pad keeps them and adds black."""
    crop: tuple[Count, Count] | None = None
    """Height and width cut out of the middle after resizing."""
    layout: ImageLayout = ImageLayout.NCHW
    """NCHW or NHWC."""
    channels: Channels = Channels.RGB
    """RGB, BGR, GRAY or RGBA."""
    mean: float | tuple[float, ...] = 0.0
    """Subtracted first: one number, or one for each channel."""
    scale: float | tuple[float, ...] = 1.0
    """Multiplied with then: one number, or one for each channel; 1/255 (0.0039215686) gives 0 to 1."""
    sample_rate: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    """Samples a second that recordings are resampled to; by default their own."""
    mono: bool = True
    """Average the channels of a recording."""
    length: Count | None = None
    """Samples of a recording: longer ones are cut, shorter ones padded with zeros; by default the input's size."""


class Step(Table, frozen=True, kw_only=True):
    """One pass over a model; `ort-mobile transform --list` shows all."""

    do: str
    """Name of the pass."""
    options: dict[str, Any] = {}
    """Options of the pass, by name."""

    @property
    def text(self) -> str:
        """As on the command line: `prune-outputs:outputs=logits`."""
        return ":".join([self.do, *(f"{key}={_plain(value)}" for key, value in sorted(self.options.items()))])


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return "+".join(f"{key}={setting}" for key, setting in value.items())
    return "+".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


class PartConfig(Table, frozen=True, kw_only=True):
    """Data for one purpose: ranges of activations are taken from calibration data, accuracy is measured on evaluation
    data. Where only the model's `test_data` is given, its samples are divided between the two by their content.
    """

    test_data: str | None = None
    """Files or `module:function`, as the model's `test_data`, which is the default."""
    preprocess: PreprocessConfig | None = None
    """How images and recordings become the input; default: the model's `preprocess`."""
    labels: str | None = None
    """CSV file of labels, one line `file,label` for each sample. Not needed for folders by class (`0/a.png`), .npz
    files with an array `label`, one .npz with `inputs` and `labels`, and functions that give pairs."""
    samples: Count | None = None
    """At most so many samples; default: all."""


class MetricName(StrEnum):
    """The metrics that have a name; another is `module:function`."""

    TOP_1 = "top-1"
    TOP_5 = "top-5"
    F1 = "f1"
    MAP = "map"
    MIOU = "miou"
    WER = "wer"
    CER = "cer"
    AGREEMENT = "agreement"
    R2 = "r2"
    EQUAL = "equal"
    COSINE = "cosine"
    PSNR = "psnr"
    SQNR = "sqnr"
    MAX_ERROR = "max-error"


COMPARING = tuple(name.value for name in list(MetricName)[list(MetricName).index(MetricName.AGREEMENT) :])
"""Metrics that compare with the original model's outputs: any output may have its own."""
WITHOUT_DROP = (MetricName.PSNR.value, MetricName.SQNR.value, MetricName.MAX_ERROR.value)
"""Metrics whose value of the original itself is not a number."""

MaxDrop = Annotated[float, Meta(ge=0, le=1)]


class OutputBudget(Table, frozen=True, kw_only=True):
    """What one output must keep, where that is not what [accuracy] says of all."""

    metric: str | None = None
    """A metric that compares with the original model: agreement, r2, equal, cosine, psnr, sqnr, max-error."""
    max_drop: MaxDrop | None = None
    """Largest drop of this output; default: that of [accuracy]."""
    weight: Annotated[float, Meta(ge=0, le=1000)] = 1.0
    """How much its drop counts: times this it must keep to `max_drop`. 0: it is not judged, and reports say so."""


class AccuracyConfig(Table, frozen=True, kw_only=True):
    """The accuracy that artifacts must keep, measured on the evaluation data of each model. Every output is judged, and
    the worst decides.
    """

    metric: str | None = None
    """top-1, top-5, f1, map, miou, wer, cer (with labels); agreement, r2, equal, cosine, psnr, sqnr, max-error
    (compared with the original model); or a function as `module:function`. Default: top-1 with labels for the output
    that has classes; else, and for the other outputs, agreement for scores of classes, equal for whole numbers and
    texts, r2 for all others."""
    max_drop: MaxDrop | None = None
    """Largest drop from the original model, as in 0.01 for one percentage point. Artifacts whose 95 % interval does not
    exclude a larger drop are refused."""
    output: str | None = None
    """The only output that is judged, whatever the others do; default: every output (`map` and functions get all)."""
    outputs: dict[str, OutputBudget] = {}
    """Metric, budget and weight of single outputs, by their names: `[accuracy.outputs.boxes]`."""
    vocabulary: str | None = None
    """For wer and cer: text file with the symbol of each class, one a line, `<blank>` for the blank of CTC."""

    @property
    def has_budget(self) -> bool:
        """Whether any output has a largest drop."""
        return self.max_drop is not None or any(output.max_drop is not None for output in self.outputs.values())


T = TypeVar("T")
OneOrMore: TypeAlias = T | Annotated[tuple[T, ...], Meta(min_length=1)]
Threads = Annotated[int, Meta(ge=0, le=1024)]

ALL_FLAGS = "all"
"""In place of flags: every set of them."""


SPINNING = ConfigSwitch(
    on=dict.fromkeys(runner_options.SPINNING_KEYS, "1"), off=dict.fromkeys(runner_options.SPINNING_KEYS, "0")
)
"""Always said: builds differ in their default. The defaults of the others are the same everywhere (1.21 to 1.31)."""
PREPACKING = ConfigSwitch(on={}, off={runner_options.PREPACKING_KEY: "1"})
STRICT = ConfigSwitch(on={runner_options.FALLBACK_KEY: "1"}, off={}, on_word="strict")


class RunConfig(Table, frozen=True, kw_only=True):
    """Session options to run with: an execution provider and its options, threads, and so on, for matching variants.
    A list of values means one run for each; several lists mean every combination of their values. Combinations that
    cannot work are skipped and reported with the reason.
    """

    # What a key sets in a session stands in its annotation (settings.py), which is all that a new one needs.

    provider: Annotated[OneOrMore[run_spec.Provider], OptionField("provider")] = "cpu"
    """Execution provider: {providers}, or any name that the library has."""
    variants: tuple[str, ...] = ("*",)
    """Glob patterns of variant names, as in `basic-*`."""
    options: dict[str, OneOrMore[str]] = {}
    """Provider options by name."""
    flags: str | tuple[str | tuple[str, ...], ...] = ()
    """NNAPI flags: a list of USE_FP16, USE_NCHW, CPU_DISABLED, CPU_ONLY; a list of such lists; or `all` for every
    combination."""
    threads: Annotated[OneOrMore[Threads], OptionField("intra_op_threads")] = 0
    """Intra-op threads; 0: chosen by ONNX Runtime."""
    inter_op_threads: Annotated[OneOrMore[Threads], OptionField("inter_op_threads")] = 0
    """Inter-op threads, for parallel execution mode; 0: chosen by ONNX Runtime."""
    execution_mode: Annotated[OneOrMore[run_spec.ExecutionMode], OptionField("execution_mode")] = (
        run_spec.ExecutionMode.SEQUENTIAL
    )
    """sequential, or parallel (independent nodes run concurrently)."""
    level: Annotated[OneOrMore[OptimizationLevel], OptionField("optimization_level")] = OptimizationLevel.ALL
    """Optimization level of the session: none, basic, extended, layout (from 1.23) or all. Of an ORT format file it
    decides what is left: recorded fusions are replayed from extended on, layouts of 8-bit nodes change from layout on.
    """
    spinning: Annotated[OneOrMore[bool] | None, SPINNING] = None
    """Whether idle threads spin: lower latency, more power. ONNX Runtime's default is yes."""
    affinities: Annotated[OneOrMore[str] | None, ConfigEntry(runner_options.AFFINITY_KEY)] = None
    """CPU affinities of all threads but the first, cores numbered from 1: `;` separates threads, `,` and `-`
    cores, as in `3;4`."""
    thread_cores: Annotated[OneOrMore[str], OptionField("thread_cores")] = ""
    """Cores that all threads but the first may run on: `big` (faster than the slowest), or numbers from 1 as in `5-8`;
    default: any. Android and Linux; apps in C++."""
    thread_nice: Annotated[OneOrMore[Annotated[int, Meta(ge=-20, le=19)]], OptionField("thread_nice")] = 0
    """Nice value of all threads but the first: below 0 they come before others. Android and Linux; apps in C++."""
    allocator: Annotated[OneOrMore[run_spec.Allocator], OptionField("allocator")] = run_spec.Allocator.DEFAULT
    """default (the C library's), mimalloc or jemalloc, where the library is installed. Linux hosts."""
    memory_arena: Annotated[OneOrMore[bool], OptionField("cpu_arena")] = True
    """Enable the CPU memory arena (keeps memory for the next inference)."""
    memory_pattern: Annotated[OneOrMore[bool], OptionField("memory_pattern")] = True
    """Enable memory patterns (pre-planned memory)."""
    device_tensors: Annotated[OneOrMore[bool], OptionField("device_tensors")] = False
    """Bind inputs and outputs in the memory of the provider's device (WebGPU, CUDA) and leave them there, as for a
    model between others on the GPU: no inference copies them. Apps in C++ and Python."""
    prepacking: Annotated[OneOrMore[bool], PREPACKING] = True
    """Enable prepacking of weights: faster, but needs memory for a second copy."""
    dynamic_block_base: Annotated[OneOrMore[Count] | None, ConfigEntry(runner_options.BLOCK_KEY)] = None
    """Dynamic block size base (session.dynamic_block_base), for example 4: less variance when cores are shared."""
    strict: Annotated[OneOrMore[bool], STRICT] = False
    """Fail if a node falls back to the CPU (session.disable_cpu_ep_fallback)."""
    session_config: dict[str, OneOrMore[str]] = {}
    """Session config entries by key."""

    @property
    def providers(self) -> tuple[str, ...]:
        """Every provider that it names."""
        return self.provider if isinstance(self.provider, tuple) else (self.provider,)


SESSION_SETTINGS = settings_of(RunConfig)
"""Every session setting, those that are fields of `RunOptions` and those that are session config entries."""


class Gate(StrEnum):
    """What must hold before a bundle is signed and packaged."""

    ACCURACY = "accuracy"
    PROOF = "proof"
    BUDGET = "budget"
    SIGNATURE = "signature"
    LICENSE = "license"


class Telemetry(StrEnum):
    """What the classes of a package do about ONNX Runtime's telemetry; off: they switch it off before they open."""

    DEFAULT = "default"
    OFF = "off"


class AndroidRelease(Table, frozen=True, kw_only=True):
    """The Android library of a release, as `ort-mobile release android` writes it."""

    group: str
    """Maven group, as in com.example."""
    artifact: str | None = None
    """Maven artifact; default: the name of the bundle with -models."""
    package: str | None = None
    """Java package of the classes; default: from group and artifact."""
    target: documents.Name | None = None
    """Target of the config; default: the only one for Android."""
    repository: str | None = None
    """Folder of the Maven repository; default: maven in the output folder."""
    telemetry: Telemetry = Telemetry.DEFAULT
    """off: the classes switch ONNX Runtime's telemetry off before they open a model."""
    guard: bool = True
    """Whether the classes try accelerators on the phone before they use them; false: they open what was released."""
    deny_key: str | None = None
    """Public key, PEM, of who may forbid session options on phones later (`bundle deny`); default: nobody may."""
    runtime: str | None = None
    """A build of ONNX Runtime (AAR, or an available release) to publish beside the models, in place of the published
    one; default: none."""
    ai_pack: str | None = None
    """Folder of a Play AI pack that gets the models instead of the library; its name is the pack's; default: none."""


class AppleRelease(Table, frozen=True, kw_only=True):
    """The Swift package of a release, as `ort-mobile release apple` writes it."""

    name: str | None = None
    """Name of package, product and module; default: the name of the bundle with Models."""
    target: documents.Name | None = None
    """Target of the config; default: the only one for iOS or macOS."""
    onnxruntime: str | None = None
    """Version of ONNX Runtime's Swift package; default: the newest known of the target's release."""
    folder: str | None = None
    """Folder of the package; default: swift in the output folder."""
    telemetry: Telemetry = Telemetry.DEFAULT
    """off: the classes switch ONNX Runtime's telemetry off before they open a model."""
    guard: bool = True
    """Whether the classes try accelerators on the device before they use them; false: they open what was released."""
    deny_key: str | None = None
    """Public key, PEM, of who may forbid session options on devices later (`bundle deny`); default: nobody may."""
    runtime: str | None = None
    """Build of ONNX Runtime to put into the package: xcframework, folder or ZIP; default: none."""
    runtime_url: str | None = None
    """Where apps get that build: the package then has address and checksum; default: it is in the package."""


class ReleaseConfig(Table, frozen=True, kw_only=True):
    """What `ort-mobile release all` makes of the bundle, and what must hold before it does."""

    gates: tuple[Gate, ...] = tuple(Gate)
    """What must hold. accuracy: no output differs, and other precisions keep to `max_drop`; proof: each Android target
    ran in its library; budget: no library exceeds `max_library_bytes`; signature: there is a key; license: the licence
    of each model and library is known."""
    key: str | None = None
    """Private key, PEM, that signs the bundle; `--key` and ORT_MOBILE_KEY go before it."""
    version: str | None = None
    """Version of the packages; `--version` goes before it."""
    vectors: bool = True
    """Whether the bundle keeps test vectors of models with `takes` or `gives`, and of features: a few small samples,
    and what the file that ships gives for each. `ort-mobile bundle replay` gives them again."""
    android: AndroidRelease | None = None
    """The Android library; default: none."""
    apple: AppleRelease | None = None
    """The Swift package; default: none."""


class BuildKind(StrEnum):
    """How much of ONNX Runtime a build contains.

    `full` loads ONNX and ORT format models, `minimal` ORT format only, `extended` is minimal with what providers that
    compile and saved runtime optimizations need. `auto` is the smallest that the runs allow.
    """

    AUTO = "auto"
    FULL = "full"
    EXTENDED = "extended"
    MINIMAL = "minimal"


class Dependencies(StrEnum):
    """Where the libraries come from that ONNX Runtime is built upon: downloads, or packages of this system."""

    DOWNLOAD = "download"
    SYSTEM = "system"


class Configuration(StrEnum):
    """CMake's build types, as `--config` of ONNX Runtime's scripts takes them."""

    MIN_SIZE_REL = "MinSizeRel"
    RELEASE = "Release"
    REL_WITH_DEB_INFO = "RelWithDebInfo"
    DEBUG = "Debug"


class BuildConfig(Table, frozen=True, kw_only=True):
    """How to build ONNX Runtime for the targets."""

    kind: BuildKind = BuildKind.AUTO
    """auto, full, extended or minimal; auto: the smallest that the providers and styles allow."""
    configuration: Configuration = Configuration.MIN_SIZE_REL
    """MinSizeRel, Release, RelWithDebInfo or Debug."""
    providers: tuple[str, ...] | None = None
    """Execution providers of the library in addition to the CPU; default: those of [[runs]] that the platform
    supports."""
    reduce_types: bool = True
    """Exclude types that the operator config does not list."""
    ml_ops: bool | None = None
    """Include the operators of ai.onnx.ml; default: if the operator config lists one."""
    contrib_ops: bool = True
    """Include the operators of com.microsoft; optimized models require them."""
    lto: bool = True
    """Link-time optimization: a smaller library, a slower build."""
    exceptions: bool = True
    """Build with C++ exceptions. Without them (minimal builds only) the library is smaller, and an error aborts
    the process."""
    wheel: bool = False
    """Build a Python wheel for this computer; always a full build."""
    dependencies: Dependencies = Dependencies.DOWNLOAD
    """Source of the libraries that ONNX Runtime depends on: download, or system packages."""
    onnx_source: str | None = None
    """Unpacked source of the ONNX release named in the source tree's cmake/deps.txt; required with system
    dependencies."""
    defines: dict[str, str] = {}
    """Additional CMake definitions by name."""
    jobs: Count | None = None
    """Parallel compiler processes; default: one per processor."""
    max_library_bytes: dict[str, Count] = {}
    """Size budget by ABI: a release with a larger library fails."""


class Goal(StrEnum):
    """What a search makes small; all but `size` are measured."""

    LATENCY = "latency"
    P90 = "p90"
    MEMORY = "memory"
    PRIVATE_MEMORY = "private-memory"
    SIZE = "size"
    SUSTAINED = "sustained"


class TuneStrategy(StrEnum):
    """How a search chooses what to measure: by a model of what was measured, or everything."""

    RIDGE = "ridge"
    GRID = "grid"


Limit = Annotated[float, Meta(gt=0)]
Percent = Annotated[float, Meta(ge=0, lt=100)]


class TuneConfig(Table, frozen=True, kw_only=True):
    """Search for the best configuration (`ort-mobile tune`): artifacts with providers and flags as in [[runs]], and
    every combination of the lists here that [[runs]] leaves at its default. What cannot work or has no effect on a
    device is left out with the reason.
    """

    minutes: Annotated[float, Meta(gt=0, le=10_000)] = 20.0
    """Time for runs on each device; waiting for a device to cool does not count."""
    goals: OneOrMore[Goal] = Goal.LATENCY
    """What is made small: latency (median), p90, memory (peak, files that are mapped with it), private-memory (what no
    file is behind, which a system that is short of memory cannot take back), size (of the artifact). Of several the
    first decides what ships; all together give the Pareto front. Or sustained alone: latency at the end of
    `sustained_seconds` of load, by runs of the last two or three candidates in at least four rounds, which are part of
    `minutes`."""
    max_latency_ms: Limit | None = None
    """Constraint: median latency, in milliseconds."""
    max_p90_ms: Limit | None = None
    """Constraint: 90th percentile of latency, in milliseconds."""
    max_memory_mb: Limit | None = None
    """Constraint: peak memory of the process, mapped files with it, in MB (1,000,000 bytes)."""
    max_private_mb: Limit | None = None
    """Constraint: private memory of the process (no file behind it) when its inferences end, in MB."""
    max_size_mb: Limit | None = None
    """Constraint: size of the artifact, in MB. (Accuracy has its budget in [accuracy].)"""
    strategy: TuneStrategy = TuneStrategy.RIDGE
    """ridge (a model of the logarithm of what was measured proposes what is next), or grid (measure everything)."""
    seed: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    """Of the random part of the search."""
    share_percent: Percent = 2.0
    """Classes of devices share one configuration where it costs each of them less than this."""
    threads: OneOrMore[Threads] | None = None
    """Intra-op threads; default: ONNX Runtime's choice, and 1 to the number of cores."""
    inter_op_threads: OneOrMore[Threads] | None = None
    """Inter-op threads, for parallel execution mode; default: as in [[runs]]."""
    execution_mode: OneOrMore[run_spec.ExecutionMode] | None = None
    """sequential, parallel; default: as in [[runs]]."""
    spinning: OneOrMore[bool] | None = None
    """Whether idle threads spin; default: both."""
    affinities: OneOrMore[str] | None = None
    """CPU affinities; default: as in [[runs]]."""
    memory_arena: OneOrMore[bool] | None = None
    """CPU memory arena; default: both."""
    memory_pattern: OneOrMore[bool] | None = None
    """Memory patterns; default: both where memory is a goal, else as in [[runs]]."""
    prepacking: OneOrMore[bool] | None = None
    """Prepacking of weights; default: both where memory is a goal, else as in [[runs]]."""
    dynamic_block_base: OneOrMore[Count] | None = None
    """Dynamic block size bases; default: as in [[runs]]."""
    flags: str | tuple[tuple[str, ...], ...] | None = None
    """NNAPI flags: a list of sets, or `all`; default: every set without CPU_ONLY."""

    @property
    def goal_list(self) -> tuple[Goal, ...]:
        """The goals, each once, the first the one that decides."""
        return tuple(dict.fromkeys(self.goals if isinstance(self.goals, tuple) else (self.goals,)))


SPACE_KEYS = tuple(key for key in TuneConfig.__struct_fields__ if key in RunConfig.__struct_fields__)
"""Keys of [tune] that are keys of [[runs]] by the same name."""

RUN_DEFAULTS = {key: getattr(RunConfig(), key) for key in SPACE_KEYS}


def widened(run: RunConfig, lists: dict[str, object]) -> RunConfig:
    """A [[runs]] table with lists in the place of what it leaves at its default: what it says itself stays."""
    return msgspec.structs.replace(
        run, **{key: value for key, value in lists.items() if getattr(run, key) == RUN_DEFAULTS[key]}
    )
