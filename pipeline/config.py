"""The TOML that a user writes, as frozen values. Unknown keys are refused with a suggestion.

Every path is relative to the folder of the config file. What may stand where is said once, by these types: the
reader, the error messages, the JSON schema for editors (docs/config.schema.json) and the reference come from them.
"""

import difflib
import fnmatch
import itertools
import re
import tomllib
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Meta

from pipeline.errors import ConfigError
from pipeline.variant import Level, Style, Variant

T = TypeVar("T")

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Count = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0)]
Release = Annotated[str, Meta(pattern=r"^1\.\d{1,2}(\.\d{1,2})?$")]


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


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the config: strict, unchanging."""


class ModelConfig(Table, frozen=True, kw_only=True):
    """One model: an ONNX file, a folder or a zip archive of them."""

    path: str
    """The ONNX file, a folder of them, or a zip archive."""
    name: Name | None = None
    """How the model is called in tables and file names; the file's stem by default."""
    test_data: str | None = None
    """A folder with test_data_set_N/{input,output}_K.pb in it, ONNX's own layout; random inputs without it."""
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
    """libonnxruntime that ships: a .so, .dylib, or an AAR; this computer's wheel serves where that can run."""


class VariantsConfig(Table, frozen=True, kw_only=True):
    """Which variants to make: every combination of these, less those that the releases do not have."""

    levels: tuple[Level, ...] = (Level.NONE, Level.BASIC, Level.EXTENDED, Level.ALL)
    """Optimization levels: none, basic, extended, layout, all."""
    styles: tuple[Style, ...] = (Style.FIXED, Style.RUNTIME)
    """fixed and runtime."""
    aware: tuple[str, ...] = ()
    """Provider-aware variants beside the plain ones: nnapi, coreml-nn, coreml-mlprogram, or several joined by +."""


class RunConfig(Table, frozen=True, kw_only=True):
    """One way to run: a provider with its options, threads and session config, on the variants that match."""

    provider: str = "cpu"
    """cpu, nnapi, xnnpack, coreml, qnn, webgpu, or any name that the library knows."""
    variants: tuple[str, ...] = ("*",)
    """Globs over variant names, as in `basic-*`."""
    options: dict[str, str] = {}
    """Provider options by name."""
    flags: tuple[str, ...] = ()
    """NNAPI flags: USE_FP16, USE_NCHW, CPU_DISABLED, CPU_ONLY."""
    threads: Annotated[int, Meta(ge=0)] = 0
    """Intra-op threads; 0 leaves the choice to ONNX Runtime."""
    session_config: dict[str, str] = {}
    """Session config entries, key by key."""


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
    output: OutputConfig = OutputConfig()
    """Where results go."""


TABLES: dict[str, type[Table]] = {
    "Top level": Config,
    "[[models]]": ModelConfig,
    "[[targets]]": Target,
    "[variants]": VariantsConfig,
    "[[runs]]": RunConfig,
    "[measure]": MeasureConfig,
    "[conditions]": ConditionsConfig,
    "[check]": CheckConfig,
    "[output]": OutputConfig,
}
"""Every table by its heading in the file."""

DEFAULT_TARGET = Target(name="android-arm64", platform=Platform.ANDROID, abis=("arm64-v8a",), min_api_level=27)

ADVISED_RUNS = (
    RunConfig(provider="nnapi", variants=("basic-*", "*-nnapi*")),
    RunConfig(provider="cpu", variants=("none-*", "basic-*", "extended-*", "layout-*", "all-*")),
)
"""ONNX Runtime's documentation: the NNAPI provider with basic, the CPU with extended or all; `none` as baseline."""


REPLAY_KEY = "session.enable_saved_runtime_optimizations"
"""Session config entry from 1.30 on: replay the fusions that runtime style recorded."""

ACCELERATOR_OPTIONS: dict[Accelerator, tuple[str, dict[str, str]]] = {
    Accelerator.NNAPI: ("nnapi", {}),
    Accelerator.COREML_NN: ("coreml", {"ModelFormat": "NeuralNetwork"}),
    Accelerator.COREML_MLPROGRAM: ("coreml", {"ModelFormat": "MLProgram"}),
    Accelerator.XNNPACK: ("xnnpack", {}),
}
"""The provider and its options that each accelerator means."""


def read_config(path: Path) -> Config:
    """Read and check a config file; raises ConfigError with file, line where known, key and remedy."""
    text = _read_text(path)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            "this is not valid TOML",
            where=str(path),
            why=str(error),
            remedy="mend the line; see docs/reference/config.md",
        ) from error
    try:
        config = msgspec.convert(document, Config)
    except msgspec.ValidationError as error:
        raise _explain(path, text, str(error)) from error
    return with_defaults(resolved(config, path.parent))


def with_defaults(config: Config) -> Config:
    """Fill in the target and the runs that the documentation advises where the config names none.

    `compare` becomes aware variants and runs. Raises ConfigError when there are both `compare` and `runs`.
    """
    if config.compare and config.runs:
        raise ConfigError(
            "`compare` and [[runs]] exclude each other", remedy="leave out `compare`, or write all runs as [[runs]]"
        )
    _check_patterns(config)
    aware = [name.value for name in config.compare if name is not Accelerator.XNNPACK]
    variants = msgspec.structs.replace(config.variants, aware=tuple(dict.fromkeys((*config.variants.aware, *aware))))
    return msgspec.structs.replace(
        config,
        targets=config.targets or (DEFAULT_TARGET,),
        variants=variants if config.compare else config.variants,
        compare=(),
        runs=config.runs or comparing_runs(config.compare) or ADVISED_RUNS,
    )


def _check_patterns(config: Config) -> None:
    """Raise ConfigError for a written [[runs]] that matches no variant of the config: nobody means that."""
    names = [variant.name for variant in wanted_variants(config.variants)]
    for run in config.runs:
        if not any(fnmatch.filter(names, pattern) for pattern in run.variants):
            raise ConfigError(
                f"no variant is called {' or '.join(map(repr, run.variants))}",
                where=f"[[runs]] provider = {run.provider!r}",
                remedy=f"variants of this config: {', '.join(names)}",
            )


def comparing_runs(accelerators: tuple[Accelerator, ...]) -> tuple[RunConfig, ...]:
    """Each accelerator on basic and on what is aware of it, on runtime style with and without replay; and the CPU."""
    runs = []
    for accelerator in accelerators:
        provider, options = ACCELERATOR_OPTIONS[accelerator]
        plain = RunConfig(provider=provider, options=options, variants=("basic-fixed", f"*-fixed-{accelerator}*"))
        runs.append(plain)
        runs += [
            RunConfig(provider=provider, options=options, variants=("*-runtime",), session_config={REPLAY_KEY: replay})
            for replay in ("0", "1")
        ]
    return (*runs, RunConfig(provider="cpu", variants=("*-fixed",))) if runs else ()


def resolved(config: Config, folder: Path) -> Config:
    """The config with its paths made relative to the current folder instead of the config's own."""

    def place(path: str | None) -> str | None:
        return None if path is None else str(folder / path)

    models = tuple(
        msgspec.structs.replace(m, path=str(folder / m.path), test_data=place(m.test_data), labels=place(m.labels))
        for m in config.models
    )
    targets = tuple(msgspec.structs.replace(t, library=place(t.library)) for t in config.targets)
    return msgspec.structs.replace(config, models=models, targets=targets)


def wanted_variants(config: VariantsConfig) -> list[Variant]:
    """Every variant that the config asks for, in the order of its lists; provider-aware ones after the plain ones."""
    plain = [Variant(level=level, style=style) for style in config.styles for level in config.levels]
    aware = [
        Variant(level=level, providers=tuple(providers.split("+")))
        for providers in config.aware
        for level in config.levels
        if level is not Level.NONE
    ]
    return plain + aware


def config_schema() -> dict[str, Any]:
    """JSON schema of the config, for editors; the docstrings under the keys become descriptions."""
    (schema,), components = msgspec.json.schema_components([Config], ref_template="#/$defs/{name}")
    for table in TABLES.values():
        for key, text in key_texts(table).items():
            components[table.__name__]["properties"][key].setdefault("description", text)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "$defs": null_last(components)}


def null_last(schema: Any) -> Any:
    """The same JSON schema with `null` as the last of alternatives: releases of msgspec order them differently."""
    if isinstance(schema, list):
        return [null_last(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    ordered = {key: null_last(value) for key, value in schema.items()}
    if "anyOf" in ordered:
        ordered["anyOf"] = sorted(ordered["anyOf"], key=lambda option: option.get("type") == "null")
    return ordered


def key_texts(table: type[Table]) -> dict[str, str]:
    """What each key of a table means: the string under it in the source."""
    import ast
    import inspect
    import textwrap

    body = ast.parse(textwrap.dedent(inspect.getsource(table))).body[0]
    lines = body.body if isinstance(body, ast.ClassDef) else []
    texts = {}
    for statement, following in itertools.pairwise(lines):
        if isinstance(statement, ast.AnnAssign) and isinstance(following, ast.Expr):
            texts[ast.unparse(statement.target)] = str(ast.literal_eval(following.value))
    return texts


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(
            "no such config file", where=str(path), remedy="check the path, or make one with `ort-mobile init MODEL`"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("the config file cannot be read", where=str(path), why=str(error)) from error


def _explain(path: Path, text: str, message: str) -> ConfigError:
    """Turn a message of msgspec into ours: key, line, and what was most likely meant."""
    reason, _, place = message.partition(" - at `")
    keys = re.findall(r"\.(\w+)", place)
    unknown = re.search(r"unknown field `(.*)`", reason)
    line = _line_of(text, unknown.group(1) if unknown else keys[-1] if keys else "")
    where = f"{path}:{line}" if line else str(path)
    if unknown:
        return _unknown_key(unknown.group(1), where, _hint_at(keys)[0])
    allowed = ", ".join(str(value) for value in _hint_at(keys)[1])
    return ConfigError(
        f"the value of `{place.rstrip('`').removeprefix('$.') or 'the document'}` is not allowed",
        where=where,
        why=reason,
        remedy=f"it takes one of: {allowed}" if allowed else "see docs/reference/config.md for what it takes",
    )


def _unknown_key(key: str, where: str, table: type[Table]) -> ConfigError:
    keys = list(table.__struct_fields__)
    close = difflib.get_close_matches(key, keys, n=1)
    return ConfigError(
        f"unknown key `{key}`",
        where=where,
        why=f"this table takes: {', '.join(keys)}",
        remedy=f"did you mean `{close[0]}`?" if close else "remove it, or see docs/reference/config.md",
    )


def _hint_at(keys: list[str]) -> tuple[type[Table], tuple[StrEnum, ...]]:
    """The table that a path of keys leads to, and the values that its last key takes where these are few."""
    table: type[Table] = Config
    values: tuple[StrEnum, ...] = ()
    for key in keys:
        hint = get_type_hints(table).get(key)
        table = _type_in(hint, Table) or table
        values = tuple(_type_in(hint, StrEnum) or ())
    return table, values


def _type_in(hint: object, base: type[T]) -> type[T] | None:
    """The first type below `base` inside a type hint such as `tuple[Level, ...]`."""
    if isinstance(hint, type) and issubclass(hint, base):
        return hint
    return next((found for part in get_args(hint) if (found := _type_in(part, base))), None)


def _line_of(text: str, key: str) -> int | None:
    """The line of a key when it stands once in the file (tomllib gives lines for syntax errors only)."""
    pattern = re.compile(rf"^\s*(\[+\s*)?[\"']?{re.escape(key)}[\"']?\s*(=|\])|[{{,]\s*{re.escape(key)}\s*=")
    lines = [number for number, line in enumerate(text.splitlines(), 1) if pattern.search(line)]
    return lines[0] if len(lines) == 1 else None
