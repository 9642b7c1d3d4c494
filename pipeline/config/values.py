"""What a config file says, as frozen values.

Every path is relative to the folder of the config file. What may stand where is said once, by these types: the
reader, the error messages, the JSON schema for editors (docs/config.schema.json) and the reference come from them.
"""

import itertools
import sys
from collections.abc import Sequence
from enum import StrEnum
from functools import cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from device_runner import providers as runner_providers
from device_runner import spec as run_spec
from pipeline.config import app_data
from pipeline.config import flow as flow_tables
from pipeline.config.tables import (
    AccuracyConfig,
    AndroidRelease,
    AppleRelease,
    BuildConfig,
    Count,
    InputValue,
    OneOrMore,
    OutputBudget,
    PartConfig,
    PreprocessConfig,
    Range,
    ReleaseConfig,
    Rounds,
    RunConfig,
    Seconds,
    Step,
    Table,
    TuneConfig,
)
from pipeline.core import documents, json_schema
from pipeline.core import providers as provider_rules
from pipeline.core import variant as core_variant
from pipeline.core.documents import Release
from pipeline.core.variant import Level, Style

if TYPE_CHECKING:
    import ast


class Platform(StrEnum):
    """The platform of a target."""

    ANDROID = "android"
    IOS = "ios"
    LINUX = "linux"
    MACOS = "macos"


class Accelerator(StrEnum):
    """Execution providers for `compare`."""

    _ignore_ = "provider"
    for provider in provider_rules.on_any_chip():
        vars()[provider.replace("-", "_").upper()] = provider


class AwareReference(StrEnum):
    """Whose own session saves provider-aware variants.

    `auto` asks the target's Android library, or one of its release; `installed` the onnxruntime of this Python.
    """

    AUTO = "auto"
    NONE = "none"
    INSTALLED = "installed"


class MeasureMode(StrEnum):
    """What is measured: latency after warm-up, the first start of an app, or latency over minutes of load."""

    STEADY = "steady"
    COLD = "cold"
    SUSTAINED = "sustained"


class MeasureRule(StrEnum):
    """How long the steady state is measured: as the keys say, or as MLPerf's single-stream scenario does."""

    STANDARD = "standard"
    MLPERF = "mlperf"


class ModelConfig(Table, frozen=True, kw_only=True):
    """One model: an ONNX file, a folder or a zip archive of them."""

    path: str
    """The ONNX file, a folder of them, or a zip archive."""
    source: str | None = None
    """What the file at `path` is made of, as `ort-mobile import` takes it, as in `train:model`: when it is not there,
    and again when the file of the source is newer."""
    name: documents.Name | None = None
    """Name of the model in tables and file names; default: the file name without its suffix."""
    test_data: str | None = None
    """What it is run on: ONNX's test_data_set_N folders, .npz, .npy, images or WAV files (file or folder), or a
    Python function as `module:function`. Random inputs without it."""
    inputs: dict[str, InputValue] = {}
    """Values of single inputs, by name: a number, a list of all elements, or a range `{ low = 0, high = 178 }`."""
    preprocess: PreprocessConfig | None = None
    """How images and recordings become the model's input; needed where `test_data` is such files."""
    takes: app_data.Takes | None = None
    """What the app has in place of the model's tensor, such as the bytes of an image: what makes one of the other
    becomes part of the model, behind its transforms, and stays float in every precision."""
    gives: app_data.Gives | None = None
    """What the app gets in place of the model's tensor, such as labels, likewise."""
    oracle: str | None = None
    """What `takes` and `gives` are proven against, on `test_data`, before anything is converted: a Python function as
    `module:function` that is given the app's data (bytes of an image [height, width, channels]; several inputs by name)
    and gives what the makers of the model get: values by the names of outputs. What it leaves out is not compared."""
    oracle_tolerance: Annotated[float, Meta(ge=0, lt=1)] = 1e-3
    """How far numbers may be from the oracle's: a share of the largest, or of 1 where all are smaller. Texts and whole
    numbers must be equal."""
    labels: str | None = None
    """Labels of `test_data`: a CSV file with a line `file,label` for each sample. Or a labelled evaluation set of its
    own: one .npz with `inputs` [N, ...] and `labels` [N]."""
    calibration: PartConfig | None = None
    """Data for calibration; default: a quarter of `test_data`, chosen by content."""
    evaluation: PartConfig | None = None
    """Data that accuracy is measured on; default: the .npz of `labels`, else the rest of `test_data`."""
    dimensions: dict[str, OneOrMore[Count]] = {}
    """Sizes of dynamic dimensions, by name: the files then take no other. One that is left out stays open, for the CPU
    only: NNAPI takes nothing whose shape is open. A list, as in `[224, 320]`, gives both: an open model, and where
    [[runs]] have NNAPI, CoreML or QNN one more for each size; several lists are read in step."""
    optional_inputs: tuple[str, ...] = ()
    """Inputs with a value in the model's file that stay inputs, so that apps can set them; all others become constants,
    which is faster, and what providers ask for."""
    padding: dict[str, int | float] = {}
    """By input, the number that the app's code fills up what is smaller than a size with, at the end of each axis; only
    inputs that are as large as a size go to it otherwise. Outputs are those of the size."""
    guessed: tuple[str, ...] = ()
    """Names in `dimensions` and `inputs` whose sizes and values nobody has confirmed: reports say so until they are
    removed from here."""
    state: dict[str, str] = {}
    """Outputs that become inputs of the next inference, as in `{ stateN = "state" }`: the model is checked and measured
    as a stream, which begins with zeros in these inputs where `inputs` gives them no value."""
    stream_steps: Annotated[int, Meta(ge=1, le=1_000_000)] = 100
    """Steps of that stream."""
    transforms: tuple[Step, ...] = ()
    """Passes to apply to the model before everything else, in this order."""
    precisions: tuple[str, ...] = ()
    """Precisions of this model; default: those of [variants]."""
    keep_float: tuple[str, ...] = ()
    """Names of nodes that stay float in every precision, such as those that overflow in half precision."""
    license: documents.License | None = None
    """Licence of the model, best as an SPDX expression, as in "Apache-2.0"; the bundle's bill of materials has it."""

    @property
    def own_name(self) -> str:
        """Its name, or that of its file."""
        return self.name or PurePosixPath(self.path).stem

    @property
    def sizes(self) -> dict[str, int]:
        """The dimensions that the files have fixed."""
        return {name: size for name, size in self.dimensions.items() if isinstance(size, int)}

    @property
    def lists(self) -> dict[str, tuple[int, ...]]:
        """The dimensions of several sizes, which stay open."""
        return {name: size for name, size in self.dimensions.items() if isinstance(size, tuple)}

    def sized(self, name: str) -> dict[str, dict[str, int]]:
        """The models of one size each that its lists make of a model of this name: by their names, all dimensions."""
        return {
            f"{name}-{'x'.join(map(str, sizes))}": {**self.sizes, **dict(zip(self.lists, sizes, strict=True))}
            for sizes in zip(*self.lists.values(), strict=True)
        }


class FeatureConfig(ModelConfig, frozen=True, kw_only=True):
    """Models that an app runs one after the other: they become one graph, which is treated as a model. Keys of
    [[models]] mean the same here.
    """

    path: str = ""
    """Where the graph is kept as an ONNX file; default: in the cache of ort-mobile."""
    name: documents.Name
    """Name of the feature in tables and file names."""
    flow: Annotated[tuple[flow_tables.FlowStage, ...], Meta(min_length=1, max_length=10)]
    """The stages, in the order in which they run."""
    until: flow_tables.Until | None = None
    """How the loop of stages with `when = "step"` ends: then the output is `tokens`."""
    outputs: dict[run_spec.Text, run_spec.Text] = {}
    """By the name that the app gets, `STAGE.OUTPUT`; default: the outputs of the last stage."""

    def as_model(self) -> ModelConfig:
        """The keys that it shares with a model: once its file is made, it is one."""
        return ModelConfig(**{key: getattr(self, key) for key in ModelConfig.__struct_fields__})


class Target(Table, frozen=True, kw_only=True):
    """A release target: platform, ABIs, minimum API level or OS version, ONNX Runtime release."""

    name: documents.Name
    """Name shown in tables and in the bundle."""
    platform: Platform
    """android, ios, linux or macos."""
    abis: tuple[str, ...] = ()
    """Android ABIs or machine architectures; default: the platform's most common one."""
    min_api_level: Annotated[int, Meta(ge=21, le=99)] | None = None
    """Lowest Android API level that the app supports; NNAPI requires 27."""
    min_os_version: documents.OsVersion | None = None
    """Lowest iOS or macOS version that the app supports."""
    ort_release: Release | None = None
    """ONNX Runtime release in the app, in quotes, as in "1.29"; default: that of the installed wheel, for iOS and macOS
    the newest of which a Swift package is known."""
    library: str | None = None
    """The libonnxruntime in the app: .so, .dylib, AAR or `android:RELEASE`. On x86-64 Linux the bundle is run in it."""
    qnn_runtime: Annotated[str, Meta(pattern=r"^\d{1,3}\.\d{1,3}\.\d{1,3}$")] | None = None
    """Version of com.qualcomm.qti:qnn-runtime in the app, as in "2.51.0"; default: that of the contexts."""
    library_license: documents.License | None = None
    """Licence of the library; default: MIT, ONNX Runtime's own, where the app uses a package of its release."""


class VariantsConfig(Table, frozen=True, kw_only=True):
    """Which variants to create: every combination of these that the ONNX Runtime releases support."""

    levels: tuple[Level, ...] = (Level.NONE, Level.BASIC, Level.EXTENDED, Level.ALL)
    """Optimization levels: none, basic, extended, layout, all."""
    styles: tuple[Style, ...] = (Style.FIXED, Style.RUNTIME)
    """fixed and runtime."""
    aware: tuple[str, ...] = ()
    """EP-aware variants in addition: {aware}, or several joined by +."""
    precisions: tuple[str, ...] = (core_variant.OWN_PRECISION,)
    """float (the model as it is), fp16, int8, int8-nnapi, other names of docs/reference/precisions.md, or auto: what
    suits the providers of the targets."""
    contexts: tuple[str, ...] = ()
    """Snapdragon chips, such as SM8650, whose NPU gets contexts: each model compiled for it, in the first of
    `precisions` that the chip can have. Needs the extra qnn. [docs/npu.md](../npu.md) lists the chips."""
    share_weights: bool = False
    """Whether contexts of the sizes of one model (a dimension that is a list) have one binary for each chip, with the
    weights once. No computer runs such a context: it ships without having been compared. ONNX files of sizes (style
    onnx) have their weights once in any case, in a file beside them."""
    reference: AwareReference = AwareReference.AUTO
    """What creates EP-aware variants: auto (the target's Android library, or an available one of its release),
    installed (the onnxruntime of this Python), or none (claims of our rules)."""


class MeasureConfig(Table, frozen=True, kw_only=True):
    """How long and how often to measure."""

    rounds: Rounds | Literal["auto"] = 5
    """Number of rounds. In each round every variant runs once in a new process, so that drift affects all of them
    equally. "auto": until every comparison with the baseline is decided, looking after 5, 8, 12, 16, 20, 30, 45, 70,
    100 and 150 rounds up to most_rounds; what is decided is not run any more."""
    most_rounds: Rounds = 30
    """Maximum number of rounds with rounds = "auto": 30 find 3 % where processes differ by up to 2 %; `ort-mobile run
    --plan` says how many a device needs."""
    mode: MeasureMode | Annotated[tuple[MeasureMode, ...], Meta(min_length=1)] = MeasureMode.STEADY
    """steady (latency after warm-up), cold (load and first run with the files out of the page cache, every round in a
    new process), sustained (minutes of back-to-back inference, after everything else), or a list of them."""
    warmup: Annotated[int, Meta(ge=0, le=2**31 - 1)] | Literal["auto"] = "auto"
    """Untimed inferences before the timed ones, or "auto": the first ones are left out as long as they are slower than
    the rest."""
    rule: MeasureRule = MeasureRule.STANDARD
    """standard, or mlperf: at least 1024 inferences and 60 s per process, and p90 as MLPerf's LoadGen computes it."""
    sustained_seconds: Annotated[float, Meta(ge=1, le=43_200)] = 300.0
    """Duration of a sustained run, in seconds."""
    sustained_rounds: Annotated[int, Meta(ge=1, le=100)] = 1
    """Sustained runs of each variant, in alternating order, each from a start as cool as the first's where a device
    tells: from 4 on it is decided whether what is fastest when fresh is so at the end."""
    min_runs: Count = 20
    """Minimum number of timed inferences per process."""
    min_seconds: Seconds = 0.2
    """Minimum duration of the timed inferences per process, in seconds."""
    max_seconds: Seconds = 60.0
    """Maximum duration of the timed inferences per process, in seconds, even below min_runs."""
    timeout_seconds: Seconds = 300.0
    """Seconds after which a process is considered hung and is killed."""
    margin_percent: Annotated[float, Meta(gt=0, lt=100)] = 5.0
    """Runs whose difference is shown to be below this percentage are reported as "same"."""
    least_percent: Annotated[float, Meta(ge=0, lt=100)] = 1.0
    """The smallest difference that matters, in percent: smaller ones are never reported as "faster" or "slower"."""
    profile: bool = False
    """Profile every variant once more after the rounds: times by operator, and a trace file."""
    fits_mb: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    """Private memory that each process may have, in MB (1,000,000 bytes): what needs more fails as out of memory, and
    what does not has been shown to fit. Weights in a file beside an .onnx file count. Linux and Android."""
    perf_test: str | None = None
    """Path of onnxruntime_perf_test, to measure with instead of ort-mobile's program; outputs are not compared then."""
    plugins: dict[str, Annotated[tuple[str, ...], Meta(min_length=1)]] = {}
    """Plugins by the execution provider that each has: path of its library, and of further files that it loads."""
    baseline: str | None = None
    """The run that the others are compared with, as `VARIANT` or `VARIANT/PROVIDER`; default: the first."""

    @property
    def modes(self) -> tuple[MeasureMode, ...]:
        """What is measured, each once, the steady state first and the sustained load last."""
        asked = (self.mode,) if isinstance(self.mode, MeasureMode) else self.mode
        return tuple(mode for mode in MeasureMode if mode in asked)

    @property
    def timed_rounds(self) -> int:
        """The rounds at most."""
        return self.most_rounds if self.rounds == "auto" else self.rounds

    def seconds_of(self, mode: MeasureMode, inference: float) -> float:
        """How long a process at least infers, of a model whose inferences take so many seconds."""
        if mode is not MeasureMode.STEADY:
            return self.sustained_seconds if mode is MeasureMode.SUSTAINED else inference
        before = 0 if self.warmup == "auto" else self.warmup
        return before * inference + min(max(self.min_runs * inference, self.min_seconds), self.max_seconds)


class ConditionsConfig(Table, frozen=True, kw_only=True):
    """Conditions under which a run starts. Values that a device does not report (a computer reports none) are
    considered good.
    """

    max_thermal_status: Annotated[int, Meta(ge=0, le=6)] = 0
    """Maximum thermal status to start a run: 0 none, 1 light, 2 moderate (throttled), up to 6 shutdown. Reported
    from API level 29 on."""
    max_battery_celsius: Annotated[float, Meta(gt=0, le=100)] | None = None
    """Maximum battery temperature to start a run, in °C, for phones that report no thermal status."""
    min_battery_percent: Annotated[int, Meta(ge=0, le=100)] = 20
    """Minimum battery charge to start a run, in percent."""
    charging: bool | None = None
    """true: run only while the phone is charging; false: only while it is not. Default: in both cases, with a
    warning while charging."""
    keep_screen_on: bool = False
    """Keep the screen on during the run."""
    stable: bool = False
    """Use Android's fixed performance mode (API level 30) during the run: slower, with less variance."""
    wait_seconds: Seconds = 600.0
    """Maximum wait for these conditions, in seconds; the device is skipped after that."""


class CheckConfig(Table, frozen=True, kw_only=True):
    """Tolerances when an artifact's outputs are compared with the original model's; the guide has the defaults by
    element type.
    """

    max_relative_error: Annotated[float, Meta(gt=0)] | None = None
    """Maximum error relative to the output's range."""
    min_top1_agreement: Annotated[float, Meta(ge=0, le=1)] | None = None
    """Minimum share of the labelled set, 0 to 1, on which top-1 equals the original model's."""


class OutputConfig(Table, frozen=True, kw_only=True):
    """Where results are written."""

    folder: str | None = None
    """Output folder; default: `output/NAME` in the current folder."""
    database: str | None = None
    """SQLAlchemy URL of the results; default: results.sqlite in the output folder."""


class Config(Table, frozen=True, kw_only=True):
    """A whole config file."""

    name: documents.Name
    """Name of the campaign, that is, of the runs of this config."""
    models: Annotated[tuple[ModelConfig, ...], Meta(min_length=1)]
    """The models, one table for each."""
    features: tuple[FeatureConfig, ...] = ()
    """Models that an app runs one after the other, as one graph."""
    custom_ops: tuple[str, ...] = ()
    """Libraries of custom operators, or AARs of them: those for this computer are used in conversion and checks, those
    for a device in its runs, and those for a target's ABIs are in the bundle. `--custom-ops` goes before it."""
    targets: tuple[Target, ...] = ()
    """Release targets; default: Android arm64."""
    variants: VariantsConfig = VariantsConfig()
    """Which variants to create."""
    compare: tuple[Accelerator, ...] = ()
    """Accelerators to compare with the CPU, instead of `runs`: on level basic, EP-aware and runtime style variants;
    GPUs on level basic and ONNX files, in both layouts."""
    runs: tuple[RunConfig, ...] = ()
    """Session options to run with; default: NNAPI on level basic, CPU on the highest level, as ONNX Runtime's
    documentation advises, and WebGPU on basic-fixed on devices that name their GPU."""
    devices: tuple[str, ...] = ("local",)
    """Devices to run on: local, adb:SERIAL, adb:* for every ready phone."""
    measure: MeasureConfig = MeasureConfig()
    """How long and how often to measure."""
    conditions: ConditionsConfig = ConditionsConfig()
    """Conditions under which a run starts."""
    check: CheckConfig = CheckConfig()
    """Tolerances of the output check."""
    accuracy: AccuracyConfig = AccuracyConfig()
    """The accuracy that artifacts must keep."""
    build: BuildConfig = BuildConfig()
    """How to build ONNX Runtime for the targets, and size budgets."""
    release: ReleaseConfig = ReleaseConfig()
    """What to release, and what must hold for it."""
    output: OutputConfig = OutputConfig()
    """Where results are written."""
    tune: TuneConfig = TuneConfig()
    """What `ort-mobile tune` searches for, among what, and for how long."""

    @property
    def shipped(self) -> "tuple[ModelConfig, ...]":
        """What is converted and shipped: models that are no stage of a feature, and the features."""
        stages = {stage.run for feature in self.features for stage in feature.flow}
        return (*(model for model in self.models if model.own_name not in stages), *self.features)


TABLES: dict[str, type[Table]] = {
    "Top level": Config,
    "[[models]]": ModelConfig,
    "[[features]]": FeatureConfig,
    "[[features.flow]]": flow_tables.FlowStage,
    "[features.flow.inputs.NAME]": flow_tables.Feed,
    "[features.until]": flow_tables.Until,
    "[models.preprocess]": PreprocessConfig,
    "[models.takes]": app_data.Takes,
    "[models.gives]": app_data.Gives,
    "[models.inputs.NAME]": Range,
    "[models.calibration], [models.evaluation]": PartConfig,
    "[[models.transforms]]": Step,
    "[[targets]]": Target,
    "[variants]": VariantsConfig,
    "[[runs]]": RunConfig,
    "[measure]": MeasureConfig,
    "[tune]": TuneConfig,
    "[conditions]": ConditionsConfig,
    "[check]": CheckConfig,
    "[accuracy]": AccuracyConfig,
    "[accuracy.outputs.NAME]": OutputBudget,
    "[build]": BuildConfig,
    "[release]": ReleaseConfig,
    "[release.android]": AndroidRelease,
    "[release.apple]": AppleRelease,
    "[output]": OutputConfig,
}
"""Every table by its heading in the file."""


def config_schema(passes: Sequence[str] = ()) -> dict[str, Any]:
    """JSON schema of the config, for editors; the docstrings under the keys become descriptions.

    `passes` are the names that `do` of a transform may have; any where none are given.
    """
    (schema,), components = msgspec.json.schema_components([Config], ref_template="#/$defs/{name}")
    for table in TABLES.values():
        for key, text in key_texts(table).items():
            components[table.__name__]["properties"][key].setdefault("description", text)
    if passes:
        components[Step.__name__]["properties"]["do"]["enum"] = list(passes)
    return {"$schema": json_schema.SCHEMA, **schema, "$defs": json_schema.one_form(components)}


def key_texts(table: type[msgspec.Struct]) -> dict[str, str]:
    """What each key of a table means: the string under it in the source, of its base classes too."""
    import ast

    texts = {}
    for owner in reversed([kind for kind in table.__mro__ if kind.__module__.partition(".")[0] != "msgspec"][:-1]):
        for statement, following in itertools.pairwise(_classes(owner.__module__)[owner.__name__].body):
            if isinstance(statement, ast.AnnAssign) and isinstance(following, ast.Expr):
                texts[ast.unparse(statement.target)] = _filled(" ".join(ast.literal_eval(following.value).split()))
    written = {field.name: field.encode_name for field in msgspec.structs.fields(table)}
    return {written[name]: text for name, text in texts.items() if name in written}


@cache
def _classes(module: str) -> "dict[str, ast.ClassDef]":
    """The classes of a module's source; `inspect.getsource` of a class parses the whole module each time."""
    import ast
    import inspect

    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def _filled(text: str) -> str:
    """The text with the names of the registries."""
    return text.replace("{providers}", ", ".join(runner_providers.PROVIDERS)).replace(
        "{aware}", ", ".join(provider_rules.aware_names())
    )
