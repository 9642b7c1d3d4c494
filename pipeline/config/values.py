"""What a config file says, as frozen values.

Every path is relative to the folder of the config file. What may stand where is said once, by these types: the
reader, the error messages, the JSON schema for editors (docs/config.schema.json) and the reference come from them.
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from pipeline.config.build import BuildConfig
from pipeline.config.data import InputValue, PreprocessConfig, Range
from pipeline.config.runs import RunConfig
from pipeline.config.table import Count, Name, Release, Seconds, Table
from pipeline.variant import Level, Style


class Platform(StrEnum):
    """Where a bundle ships."""

    ANDROID = "android"
    IOS = "ios"
    LINUX = "linux"
    MACOS = "macos"


class Accelerator(StrEnum):
    """Execution providers that `compare` takes."""

    NNAPI = "nnapi"
    COREML_NN = "coreml-nn"
    COREML_MLPROGRAM = "coreml-mlprogram"
    XNNPACK = "xnnpack"


class AwareReference(StrEnum):
    """Whose own session saves provider-aware variants.

    `auto` asks the target's Android library, or one of its release at hand; `installed` the onnxruntime of this Python.
    """

    AUTO = "auto"
    NONE = "none"
    INSTALLED = "installed"


class ModelConfig(Table, frozen=True, kw_only=True):
    """One model: an ONNX file, a folder or a zip archive of them."""

    path: str
    """The ONNX file, a folder of them, or a zip archive."""
    name: Name | None = None
    """How the model is called in tables and file names; the file's stem by default."""
    test_data: str | None = None
    """What it is run on: ONNX's test_data_set_N folders, .npz, .npy, images or WAV files (file or folder), or a
    Python function as `module:function`. Random inputs without it."""
    inputs: dict[str, InputValue] = {}
    """Values of single inputs, by name: a number, a list of all elements, or a range `{ low = 0, high = 178 }`."""
    preprocess: PreprocessConfig | None = None
    """How images and recordings become the model's input; needed where `test_data` is such files."""
    labels: str | None = None
    """A labelled evaluation set (.npz with `inputs` and `labels`) for top-1 agreement."""
    dimensions: dict[str, Count] = {}
    """Values for symbolic dimensions, by name."""


class Target(Table, frozen=True, kw_only=True):
    """Where it ships: platform, ABIs, minimum API level or OS version, ONNX Runtime release."""

    name: Name
    """How the target is called in tables and in the bundle."""
    platform: Platform
    """android, ios, linux or macos."""
    abis: tuple[str, ...] = ()
    """Android ABIs or machine architectures; the platform's usual one by default."""
    min_api_level: Annotated[int, Meta(ge=21, le=99)] | None = None
    """Lowest Android API level that the app supports; NNAPI needs 27."""
    min_os_version: Annotated[str, Meta(pattern=r"^\d+(\.\d+)*$")] | None = None
    """Lowest iOS or macOS version that the app supports."""
    ort_release: Release | None = None
    """ONNX Runtime release in the app; that of the installed wheel by default."""
    library: str | None = None
    """libonnxruntime that ships: .so, .dylib, AAR or `android:RELEASE`; Android's prove the bundle on x86-64 Linux."""


class VariantsConfig(Table, frozen=True, kw_only=True):
    """Which variants to make: every combination of these, less those that the releases do not have."""

    levels: tuple[Level, ...] = (Level.NONE, Level.BASIC, Level.EXTENDED, Level.ALL)
    """Optimization levels: none, basic, extended, layout, all."""
    styles: tuple[Style, ...] = (Style.FIXED, Style.RUNTIME)
    """fixed and runtime."""
    aware: tuple[str, ...] = ()
    """Provider-aware variants beside the plain ones: nnapi, coreml-nn, coreml-mlprogram, or several joined by +."""
    reference: AwareReference = AwareReference.AUTO
    """Who saves these: auto (the target's Android library, or one of its release at hand), installed, or none."""


class MeasureConfig(Table, frozen=True, kw_only=True):
    """How long and how often to measure."""

    rounds: Count = 5
    """Rounds; in each, every variant runs once in a fresh process, so that drift meets all alike."""
    warmup: Annotated[int, Meta(ge=0)] = 3
    """Runs before the clock counts."""
    min_runs: Count = 20
    """Timed runs of a process, at least."""
    min_seconds: Seconds = 0.2
    """Seconds of timed runs of a process, at least."""
    max_seconds: Seconds = 60.0
    """Seconds after which a process stops even short of min_runs."""
    timeout_seconds: Seconds = 300.0
    """Seconds after which a process counts as hung and is killed."""
    margin_percent: Annotated[float, Meta(gt=0, lt=100)] = 5.0
    """Two variants within this margin are the same."""
    profile: bool = False
    """After the rounds, run everything once more with ONNX Runtime's profiler: times by operator, and a trace each."""
    perf_test: str | None = None
    """A program onnxruntime_perf_test to measure with in place of the probe; it gives latencies and no outputs."""
    baseline: str | None = None
    """The run that others are compared with, as `VARIANT` or `VARIANT/PROVIDER`; the first by default."""


class ConditionsConfig(Table, frozen=True, kw_only=True):
    """In which state of a phone runs start. What a device does not tell (a computer: nothing) counts as good."""

    max_thermal_status: Annotated[int, Meta(ge=0, le=6)] = 0
    """Highest thermal status: 0 none, 1 light, 2 moderate (clocks fall), to 6 shutdown. Told from API 29 on."""
    max_battery_celsius: Annotated[float, Meta(gt=0, lt=100)] | None = None
    """Highest temperature of the battery, for phones that tell no thermal status."""
    min_battery_percent: Annotated[int, Meta(ge=0, le=100)] = 20
    """Lowest charge of the battery."""
    charging: bool | None = None
    """true: only while it charges; false: only while it does not; either way by default, and marked."""
    keep_screen_on: bool = False
    """Keep the screen on during the campaign."""
    stable: bool = False
    """Android's fixed performance mode (API 30) during the campaign: slower, and less apart from run to run."""
    wait_seconds: Seconds = 600.0
    """How long a device may take to come into this state before it is left alone."""


class CheckConfig(Table, frozen=True, kw_only=True):
    """How far an artifact's outputs may be from the original model's; defaults by element type are in the guide."""

    max_relative_error: Annotated[float, Meta(gt=0)] | None = None
    """Largest error relative to the output's range."""
    min_top1_agreement: Annotated[float, Meta(ge=0, le=1)] | None = None
    """Smallest share of the labelled set on which the answer is the original model's."""


class OutputConfig(Table, frozen=True, kw_only=True):
    """Where results go."""

    folder: str | None = None
    """Output folder; `output/NAME` in the current folder by default."""
    database: str | None = None
    """SQLAlchemy URL of the results; results.sqlite in the output folder by default."""


class Config(Table, frozen=True, kw_only=True):
    """A whole config file."""

    name: Name
    """How the campaign is called."""
    models: Annotated[tuple[ModelConfig, ...], Meta(min_length=1)]
    """The models, one table each."""
    targets: tuple[Target, ...] = ()
    """Where it ships; Android arm64 by default."""
    variants: VariantsConfig = VariantsConfig()
    """Which variants to make."""
    compare: tuple[Accelerator, ...] = ()
    """Accelerators to compare with the CPU in every sensible way, in place of `runs`: basic, aware, runtime style."""
    runs: tuple[RunConfig, ...] = ()
    """How to run them; the documentation's advice by default (NNAPI on basic, CPU on the most optimized)."""
    devices: tuple[str, ...] = ("local",)
    """Where to run: local, adb:SERIAL, adb:* for every ready phone."""
    measure: MeasureConfig = MeasureConfig()
    """How long and how often to measure."""
    conditions: ConditionsConfig = ConditionsConfig()
    """In which state of a phone runs start."""
    check: CheckConfig = CheckConfig()
    """How far outputs may differ."""
    build: BuildConfig = BuildConfig()
    """How to build ONNX Runtime for the targets, and how large its library may be."""
    output: OutputConfig = OutputConfig()
    """Where results go."""


TABLES: dict[str, type[Table]] = {
    "Top level": Config,
    "[[models]]": ModelConfig,
    "[models.preprocess]": PreprocessConfig,
    "[models.inputs.NAME]": Range,
    "[[targets]]": Target,
    "[variants]": VariantsConfig,
    "[[runs]]": RunConfig,
    "[measure]": MeasureConfig,
    "[conditions]": ConditionsConfig,
    "[check]": CheckConfig,
    "[build]": BuildConfig,
    "[output]": OutputConfig,
}
"""Every table by its heading in the file."""
