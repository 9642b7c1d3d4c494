"""Options that several commands share, those about execution providers among them, and outputs."""

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.command import AnyCommand, together
from pipeline.cli.outputs import quiet
from pipeline.cli.values import keys_of, one_value
from pipeline.core import providers as provider_rules

if TYPE_CHECKING:
    from pipeline import config as configs
    from pipeline.core.progress import Progress
    from pipeline.dataset import Dataset
    from pipeline.partition import answer as claim_answer


Callback = Callable[[click.Context, click.Parameter, Any], Any]

LEVELS = ("none", "basic", "extended", "layout", "all")
"""Optimization levels, as options name them."""

devices_option = click.option(
    "--device", "devices", multiple=True, help="local, adb:SERIAL or adb:*; overrides the config."
)
wait_option = click.option(
    "--wait",
    "lease_seconds",
    type=click.FloatRange(0, 604_800),
    default=0.0,
    metavar="SECONDS",
    help="Wait so long for devices that other processes of this computer use.  [default: 0]",
)
output_option = click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Output folder.  [default: output/NAME in the current folder]",
)

telemetry_option = click.option(
    "--telemetry",
    type=click.Choice(["default", "off"]),
    default="default",
    show_default=True,
    help="off: the classes switch ONNX Runtime's telemetry off before they open a model.",
)
signer_option = click.option(
    "--key", type=click.Path(path_type=Path), help="Public key, PEM, of who must have signed the bundle."
)
database_option = click.option(
    "--database", metavar="URL", help="SQLAlchemy URL of the results.  [default: what FOLDER was made with]"
)


def words(choices: tuple[str, ...] = ()) -> Callback:
    """A callback that splits `a,b` into a tuple, and refuses what is not among the choices, with a suggestion."""

    def split(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...]:
        given = tuple(dict.fromkeys(word.strip() for word in (value or "").split(",") if word.strip()))
        for word in given:
            if choices and word not in choices:
                close = difflib.get_close_matches(word, choices, n=1)
                hint = f"; did you mean {close[0]}?" if close else ""
                raise click.BadParameter(f"{word!r} is not one of {', '.join(choices)}{hint}", ctx, param)
        return given

    return split


def config_options(
    table: "type[configs.Table]", *keys: str, into: str, cls: type[click.Option] = click.Option, **names: str
) -> Callable[[AnyCommand], AnyCommand]:
    """Options that are keys of a config's table: type, bounds, default and help come from there.

    A command gets what they say as `GivenKeys`, by the name `into`. `names` are those of options that are called
    otherwise than their keys.
    """
    import msgspec

    from pipeline import config as configs

    fields = {field.name: field for field in msgspec.structs.fields(table)}
    texts = configs.key_texts(table)

    def add(command: AnyCommand) -> AnyCommand:
        command = one_value(into, lambda **answers: keys_of(table, answers), *keys)(command)
        for key in reversed(keys):
            field, text = fields[key], texts[key]
            kind, default = _kind_of(field.type), field.default
            if default not in (None, (), "") and "default" not in text and "is_flag" not in kind:
                switch = {True: "on", False: "off"}.get(default) if isinstance(default, bool) else None
                text += f"  [default: {switch or (f'{default:g}' if isinstance(default, float) else default)}]"
            name = f"--{names.get(key, key).replace('_', '-')}"
            command = click.option(name, key, cls=cls, help=text, **kind)(command)
        return command

    return add


def _kind_of(annotation: Any) -> dict[str, Any]:
    """What click needs to know of a key's type; of several values of one, they are given as `a,b`."""
    from msgspec import inspect

    info = inspect.type_info(annotation)
    kinds = list(info.types) if isinstance(info, inspect.UnionType) else [info]
    several = any(isinstance(kind, inspect.VarTupleType) for kind in kinds)
    texts = [str(text) for kind in kinds if isinstance(kind, inspect.LiteralType) for text in kind.values]
    kind = next(kind for kind in kinds if not isinstance(kind, (inspect.VarTupleType, inspect.NoneType)))
    if texts:
        kind = next(kind for kind in kinds if isinstance(kind, inspect.IntType))
        return {"callback": numbers(kind.ge or 0, kind.le, texts), "metavar": "|".join(("N", *texts))}
    if isinstance(kind, inspect.EnumType):
        choices = tuple(member.value for member in kind.cls)
        return {"callback": words(choices), "metavar": "NAME,…"} if several else {"type": click.Choice(choices)}
    if isinstance(kind, inspect.BoolType):
        return {"callback": switches, "metavar": "on,off"} if several else {"is_flag": True}
    if isinstance(kind, inspect.IntType):
        if several:
            return {"callback": numbers(kind.ge or 0, kind.le), "metavar": "N,…"}
        return {"type": click.IntRange(kind.ge, kind.le), "metavar": "N"}
    if isinstance(kind, inspect.FloatType):
        least, most = (kind.ge if kind.gt is None else kind.gt), (kind.le if kind.lt is None else kind.lt)
        bounds = click.FloatRange(least, most, min_open=kind.gt is not None, max_open=kind.lt is not None)
        return {"type": bounds, "metavar": "N"}
    return {"metavar": "TEXT"}


def numbers(least: int, most: int | None, texts: Sequence[str] = ()) -> Callback:
    """A callback that splits `1,2,4` into whole numbers; with `texts` for one number, or one of these words."""
    most = 2**63 - 1 if most is None else most  # TOML's integers end there

    def read(ctx: click.Context, param: click.Parameter, value: str | None) -> Any:
        if value is None or value in texts:
            return value if texts else ()
        given = (value,) if texts else words()(ctx, param, value)
        for word in given:
            digits = word.removeprefix("-") if least < 0 else word
            if not (digits.isascii() and digits.isdigit() and len(digits) < 20 and least <= int(word) <= most):
                what = f"neither a number nor {' or '.join(texts)}" if texts else f"no number from {least} to {most}"
                raise click.BadParameter(f"{word!r} is {what}", ctx, param)
        return int(value) if texts else tuple(map(int, given))

    return read


def switches(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[bool, ...]:
    """A callback that splits `on,off`."""
    return tuple(word == "on" for word in words(("on", "off"))(ctx, param, value))


def sizes(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, int]:
    """A callback for NAME=N given any number of times; names may hold a `=` themselves."""
    given = {}
    for value in values:
        name, _, number = value.rpartition("=")
        if not name or not (number.isascii() and number.isdigit() and int(number) > 0):
            raise click.BadParameter(f"{value!r} is not NAME=N, as in batch=1", ctx, param)
        given[name] = int(number)
    return given


def input_values(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    """A callback for NAME=VALUE, NAME=LOW:HIGH and NAME="TEXT" given any number of times; names may hold a `=`."""
    given: dict[str, Any] = {}
    for value in values:
        name, quote, text = value.partition('="')
        if name and quote and text.endswith('"'):
            given[name] = text[:-1]
            continue
        name, _, text = value.rpartition("=")
        ends = [_number(part) for part in text.split(":")]
        if not name or not 1 <= len(ends) <= 2 or None in ends:
            raise click.BadParameter(f"{value!r} is not NAME=VALUE or NAME=LOW:HIGH, as in sr=16000", ctx, param)
        given[name] = ends[0] if len(ends) == 1 else {"low": ends[0], "high": ends[1]}
    return given


def _number(text: str) -> bool | int | float | None:
    if text in ("true", "false"):
        return text == "true"
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return None


def dataset_from(test_data: str | None, input_values: dict[str, Any]) -> "Dataset":
    """What --test-data and --input say to run models on."""
    import msgspec

    from pipeline import config as configs
    from pipeline import dataset as datasets

    inputs = msgspec.convert(input_values, dict[str, configs.InputValue])
    return datasets.Dataset(test_data=test_data or "", inputs=inputs)


def preprocessed(data: "Dataset", preprocess: "configs.PreprocessConfig | None") -> "Dataset":
    """The data with --preprocess."""
    import msgspec

    return msgspec.structs.replace(data, preprocess=preprocess)


def sampled(data: "Dataset", part: str, samples: int | None) -> "Dataset":
    """The data with --part and --samples."""
    import msgspec

    from pipeline import dataset as datasets

    return msgspec.structs.replace(data, part=datasets.Part(part), limit=samples or 0)


def labelled(data: "Dataset", labels: str | None) -> "Dataset":
    """The data with --labels."""
    import msgspec

    return msgspec.structs.replace(data, labels=labels or "")


data_words = together(
    click.option(
        "--test-data",
        metavar="PATH",
        help="Inputs to run on: test_data_set folders, .npz, .npy, or module:function.  [default: random numbers]",
    ),
    click.option(
        "--input",
        "input_values",
        callback=input_values,
        multiple=True,
        metavar="NAME=VALUE|NAME=LOW:HIGH",
        help='Value of an input ("TEXT" of strings), or a range for random numbers below HIGH; repeatable.',
    ),
)
"""--test-data and --input, as they are given."""

data_options = together(data_words, one_value("data", dataset_from, "test_data", "input_values"))
"""The same: a command gets `data`, the Dataset that a model is run on."""

dimension_option = click.option(
    "--dimension",
    "dimensions",
    callback=sizes,
    metavar="NAME=N",
    multiple=True,
    help="Size of a dynamic dimension, by its name or as INPUT[AXIS]; repeatable.",
)


def preprocess_table(
    _ctx: click.Context, param: click.Parameter, text: str | None
) -> "configs.PreprocessConfig | None":
    """A callback for the keys of [models.preprocess], as in `resize = [224, 224], scale = 0.0039`."""
    if not text:
        return None
    import msgspec

    from pipeline import config as configs
    from pipeline.core import toml as core_toml
    from pipeline.core.errors import ConfigError

    where = f"{param.opts[0]} {text}"
    remedy = "write keys of [models.preprocess] as in a config: resize = [224, 224], scale = 0.0039"
    try:
        return msgspec.convert(
            core_toml.read_toml(f"table = {{ {text} }}", where, remedy)["table"], configs.PreprocessConfig
        )
    except msgspec.ValidationError as error:
        raise ConfigError("this is no preprocessing", where=where, why=str(error), remedy=remedy) from error


preprocess_option = together(
    click.option(
        "--preprocess",
        callback=preprocess_table,
        metavar="KEYS",
        help="How images and recordings become the input, as in a config: 'resize = [224, 224], scale = 0.0039'.",
    ),
    one_value("data", preprocessed, "data", "preprocess"),
)
"""Below `data_options`, which it refines."""

sample_options = together(
    preprocess_option,
    click.option(
        "--part",
        type=click.Choice(["all", "calibration", "evaluation"]),
        default="all",
        show_default=True,
        help="Which samples: all, or those for one purpose. They are divided by their content, one in four for "
        "calibration, the same in every command.",
    ),
    click.option("--samples", type=click.IntRange(1, 2**31 - 1), help="At most so many samples.  [default: all]"),
    one_value("data", sampled, "data", "part", "samples"),
)
"""--preprocess, --part and --samples, below `data_options`, which they refine."""


def labels_option(text: str) -> Callable[[AnyCommand], AnyCommand]:
    """--labels, below `data_options`, which it refines."""
    return together(click.option("--labels", metavar="FILE", help=text), one_value("data", labelled, "data", "labels"))


def pairs(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """A callback for KEY=VALUE given any number of times; values may hold a `=`."""
    given = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not key or not equals:
            raise click.BadParameter(f"{value!r} is not KEY=VALUE", ctx, param)
        given[key] = text
    return given


def release(_ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    """A callback for a release of ONNX Runtime; ConfigError for what is none."""
    if not value:
        return ""
    from pipeline.core import releases as ort_releases

    ort_releases.read_release(value, param.opts[0])
    return value


def progress() -> "Progress":
    """How a command shows its progress."""
    from pipeline.core import progress as core_progress

    return core_progress.progress_for(quiet=quiet())


def library_name(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """A callback for a library: a file that is there, or a name such as android:1.29.0."""
    from device_runner import library as ort_library

    if value and ort_library.name_of(value) is None and not Path(value).exists():
        raise click.BadParameter(f"{value!r} is neither a file nor a release such as android:1.29.0", ctx, param)
    return value


library_option = click.option(
    "--library",
    callback=library_name,
    metavar="FILE|NAME",
    help="libonnxruntime to run with (.so, AAR, or a release such as android:1.29.0), instead of the device's default.",
)

perf_test_option = click.option(
    "--perf-test",
    type=click.Path(exists=True, dir_okay=False),
    metavar="PROGRAM",
    help="Measure with this onnxruntime_perf_test instead of ort-mobile's program.",
)

plugin_option = click.option(
    "--plugin",
    "plugins",
    metavar="NAME=FILE,…",
    multiple=True,
    callback=lambda *given: {name: tuple(files.split(",")) for name, files in pairs(*given).items()},
    help="Library of a plugin execution provider, and further files that it loads; repeatable. `qnn` on Linux x86-64 "
    "needs none: the extra `qnn` installs it.",
)

custom_ops_option = click.option(
    "--custom-ops",
    multiple=True,
    metavar="LIBRARY",
    help="Library of custom operators, an AAR or xcframework (ZIP) of them; repeatable: those for this computer, and "
    "for the device, are registered.",
)
"""`Command` registers them; no function gets the value."""

precision_option = click.option(
    "--precision",
    "precisions",
    callback=words(),
    metavar="NAME,…",
    help="Precisions: float (the model as it is), fp16, int8, int8-nnapi, or auto for what suits the providers. Those "
    "of 8 bits take ranges from --test-data; docs/reference/precisions.md has all names.  [default: float]",
)

keep_float_option = click.option(
    "--keep-float",
    callback=words(),
    metavar="NODE,…",
    help="Names of nodes that stay float in every precision, such as those that overflow in half precision.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderWords:
    """What options say of providers with rules, in words; what is left out has ONNX Runtime's own default."""

    abi: str
    api_level: int | None
    coreml_version: int | None
    coreml_options: tuple[str, ...]
    webgpu_options: tuple[str, ...]
    nnapi_flags: tuple[str, ...]
    stop_ops: str | None

    def of_oldest(self) -> "ProviderWords":
        """With the oldest API level and version of Core ML that are judged, where none is given."""
        from pipeline.partition import answer as claim_answer

        return replace(
            self,
            api_level=self.api_level or claim_answer.OLDEST["api_level"],
            coreml_version=self.coreml_version or claim_answer.OLDEST["coreml_version"],
        )

    def settings(
        self, providers: tuple[str, ...], release: str, chips: Sequence[str] = ()
    ) -> tuple["claim_answer.Settings", ...]:
        """The settings of each provider in an app's library, of one by chip for each of the chips.

        ConfigError for values that it would refuse itself.
        """
        from pipeline.core import abis as core_abis
        from pipeline.partition import answer as claim_answer

        given = {**asdict(self), "abi": self.abi or core_abis.ARM64}
        given["options"] = {name: given.pop(f"{name}_options") for name in ("coreml", "webgpu")}
        named = chips_named(chips, "--chip") or ("",)
        return tuple(
            claim_answer.make_settings(provider, release=release, chip=chip, android=True, **given)
            for provider in providers
            for chip in (named if provider_rules.PROVIDER_RULES[provider].by_chip else ("",))
        )


provider_options = together(
    click.option(
        "--abi",
        default="",
        metavar="ABI",
        help="Android ABI of the library in the app: providers run a few quantized nodes on ARM or x86 only, XNNPACK "
        "half precision on ARM only.  [default: arm64-v8a]",
    ),
    click.option(
        "--api-level", type=click.IntRange(min=1), help="NNAPI feature level (Android API level).  [default: 31]"
    ),
    click.option(
        "--coreml-version",
        type=click.IntRange(min=3),
        help="CoreML version: 5 for iOS 15, 6 for 16, 7 for 17, 8 for 18.  [default: 7]",
    ),
    click.option("--coreml-options", callback=words(), metavar="KEY=VALUE,...", help="Options of the CoreML provider."),
    click.option("--webgpu-options", callback=words(), metavar="KEY=VALUE,...", help="Options of the WebGPU provider."),
    click.option("--nnapi-flags", callback=words(), metavar="FLAG,...", help="NNAPI flags, such as USE_NCHW."),
    click.option(
        "--stop-ops",
        metavar="OP,...",
        help="Leave these operators and all nodes after them to the CPU.  [default: NonMaxSuppression]",
    ),
    one_value("rules", ProviderWords, *(field.name for field in fields(ProviderWords))),
)
"""The options of execution providers: a command gets `rules`, the ProviderWords."""

chip_option = click.option(
    "--chip",
    "chips",
    callback=words(),
    metavar="CHIP,…",
    help="Snapdragons whose NPU is asked about, by Android's Build.SOC_MODEL, such as SM8650; docs/npu.md lists them.",
)


def provider_names(choices: Iterable[str]) -> Callback:
    """A callback for providers with rules, given as `a,b`, repeatedly, or in capitals.

    The name of a run's provider means all its formats, as `coreml` does.
    """
    formats: dict[str, tuple[str, ...]] = {name: (name,) for name in choices}
    for name in tuple(formats):
        run = provider_rules.PROVIDER_RULES[name].provider
        formats[run] = tuple(dict.fromkeys((*formats.get(run, ()), name)))
    split = words(tuple(formats))

    def names(ctx: click.Context, param: click.Parameter, value: str | tuple[str, ...] | None) -> tuple[str, ...]:
        text = ",".join(value) if isinstance(value, tuple) else value or ""
        given = split(ctx, param, text.lower())
        return tuple(dict.fromkeys(provider for name in given for provider in formats[name]))

    return names


def provider_words() -> list[str]:
    """The names of all providers with rules; behind the formats of one, its own name for all of them."""
    texts: list[str] = []
    for rules in provider_rules.PROVIDER_RULES.values():
        texts.append(rules.name)
        formats = [other.name for other in provider_rules.PROVIDER_RULES.values() if other.provider == rules.provider]
        if len(formats) > 1 and rules.name == formats[-1]:
            texts.append(f"{rules.provider} for {'both' if len(formats) == 2 else 'all'} formats")
    return texts


def either(names: Sequence[str], last: str = " or ") -> str:
    """Names as in `a, b or c`."""
    return last.join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


def refuse_divided(providers: Sequence[str], ctx: click.Context) -> None:
    """UsageError for providers that one file cannot serve."""
    alone = provider_rules.with_copies(providers)
    if alone and len(providers) > 1:
        others = ",".join(name for name in providers if name not in alone)
        raise click.UsageError(
            f"--ep {alone[0]} makes files of its own: the copies between GPU and CPU in them divide what others take; "
            f"run the command twice, with --ep {alone[0]} and with --ep {others}",
            ctx,
        )


def chips_named(texts: Sequence[str], where: str) -> tuple[str, ...]:
    """The names of chips, each once; ConfigError for one that is not known."""
    from device_runner import providers as runner_providers
    from device_runner.errors import SpecError
    from pipeline.core.errors import ConfigError

    if together := next((text for text in texts if "+" in text), None):
        raise ConfigError(
            f"{together}: contexts of several chips in one file are not made",
            where=where,
            why="its bytes differ each time, and nothing on a computer loads it, so that no release could vouch for it",
            remedy=f"a file for each: {together.replace('+', ',')}",
        )
    try:
        return tuple(dict.fromkeys(runner_providers.chip_named(text).name for text in texts))
    except SpecError as error:
        raise ConfigError.of(error.problem, where=where) from error
