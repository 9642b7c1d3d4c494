"""Commands whose help has options in sections and examples; `ort-mobile help`, `completion` and `schema`."""

import logging
import math
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from pipeline.core.features import Place

AnyCommand = TypeVar("AnyCommand", bound=Callable[..., Any])

SECTIONS: dict[str, frozenset[str]] = {
    "Provider options": frozenset({
        "--ep", "--provider", "--nnapi-flags", "--provider-option", "--api-level", "--coreml-version",
        "--coreml-options", "--webgpu-options", "--stop-ops", "--safe", "--plugin", "--context", "--chip",
        "--share-weights",
    }),
    "Measurement": frozenset({
        "--mode", "--sustained-seconds", "--sustained-rounds", "--warmup", "--rule", "--rounds", "--min-runs",
        "--min-seconds", "--concurrent", "--batch", "--stream", "--state", "--original", "--least", "--profile",
        "--blame", "--timeout", "--perf-test", "--plan", "--percent", "--fits-mb",
    }),
    "State of the phone": frozenset({
        "--stable", "--keep-screen-on", "--max-thermal-status", "--max-battery-celsius", "--min-battery-percent",
        "--wait", "--wait-seconds",
    }),
    "Fixes": frozenset({"--advise", "--fix"}),
    "Inputs": frozenset({
        "--test-data", "--input", "--dimension", "--labels", "--preprocess", "--part", "--samples", "--optional-input",
    }),
    "Output": frozenset({
        "--junit", "--sarif", "--html", "--markdown", "--json", "--svg", "--fail-on", "--show-changes", "--help",
    }),
}  # fmt: skip
"""Options by the title under which help lists them, in that order; the others come first."""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "ort-mobile": (
        "ort-mobile init my.onnx && ort-mobile run my.toml",
        "ort-mobile help convert",
    ),
    "ort-mobile run": (
        "ort-mobile run my.toml",
        "ort-mobile run --model my.onnx --convert-only",
        "ort-mobile run my.toml --device 'adb:*' --resume",
        "ort-mobile run my.toml --device adb:SERIAL --plan",
    ),
    "ort-mobile init": ("ort-mobile init my.onnx",),
    "ort-mobile check": (
        "ort-mobile check my.onnx",
        "ort-mobile check my.onnx --dimension height=320 --dimension width=320",
    ),
    "ort-mobile transform": (
        "ort-mobile transform my.onnx out.onnx --do opset:version=21",
        "ort-mobile transform my.onnx out.onnx --do opset:version=21 --do external-data --json -",
    ),
    "ort-mobile convert": (
        "ort-mobile convert my.onnx --output out --check",
        "ort-mobile convert my.onnx --level basic,all --style fixed --output out",
        "ort-mobile convert my.onnx --ep nnapi,coreml-mlprogram --output out",
    ),
    "ort-mobile import": ("ort-mobile import train:model my.onnx", "ort-mobile import my.pt2 my.onnx --opset 20"),
    "ort-mobile diff": ("ort-mobile diff my.onnx out/my.all-fixed.ort --svg changes.svg",),
    "ort-mobile partition": (
        "ort-mobile partition my.onnx --ep nnapi",
        "ort-mobile partition my.onnx --ep coreml-mlprogram --advise --json claims.json",
    ),
    "ort-mobile export": (
        "ort-mobile export my.toml",
        "ort-mobile export my.toml --abi arm64-v8a --library android:1.29.0 --to package",
        "ort-mobile export my.toml --rest --to rest",
        "ort-mobile export my.toml --confirm --device farm:pixel9 --to confirm",
    ),
    "ort-mobile collect": (
        "ort-mobile collect session",
        "ort-mobile collect first.zip second.zip",
        "ort-mobile collect session --name farm:pixel9",
    ),
    "ort-mobile doctor": (
        "ort-mobile doctor my.onnx",
        "ort-mobile doctor my.toml --minutes 10 --markdown doctor.md",
    ),
    "ort-mobile op-config": (
        "ort-mobile op-config create out/ --output required_operators.config",
        "ort-mobile op-config check required_operators.config out/",
    ),
    "ort-mobile op-config create": (
        "ort-mobile op-config create out/ --provider nnapi --output required_operators.config",
    ),
    "ort-mobile op-config merge": ("ort-mobile op-config merge a.config b.config --output both.config",),
    "ort-mobile op-config check": (
        "ort-mobile op-config check required_operators.config out/",
        "ort-mobile op-config check required_operators.config out/ --from-log logcat.txt --json -",
    ),
    "ort-mobile op-config explain": ("ort-mobile op-config explain out/ --operator Conv",),
    "ort-mobile op-config diff": ("ort-mobile op-config diff old.config new.config out/",),
    "ort-mobile accuracy": ("ort-mobile accuracy int8.onnx --reference my.onnx --test-data samples --max-drop 0.01",),
    "ort-mobile perf": (
        "ort-mobile perf a.ort b.ort",
        "ort-mobile perf a.ort --threads 1,2 --rounds 7 --json numbers.json",
        "ort-mobile perf a.ort b.ort --concurrent 1,2,4:own",
        "ort-mobile perf a.ort --device adb:SERIAL --provider cpu,nnapi --nnapi-flags USE_FP16",
        "ort-mobile perf a.ort --device adb:SERIAL --mode steady,cold,sustained --sustained-seconds 600",
    ),
    "ort-mobile tune": ("ort-mobile tune my.toml --device adb:SERIAL --minutes 20 --goal latency",),
    "ort-mobile compare": (
        "ort-mobile compare 'output/my#previous' output/my",
        "ort-mobile compare before.json after.json --markdown comparison.md",
        "ort-mobile compare output/my output/my --run-a all-fixed/cpu --run-b basic-fixed/cpu",
    ),
    "ort-mobile gate": (
        "ort-mobile gate before/bundle after/bundle --device adb:SERIAL --junit gate.xml --markdown comment.md",
        "ort-mobile gate my.ort my.ort --base-library wheel:1.21.0 --library wheel:1.31.1",
        "ort-mobile gate --history output/my",
        "ort-mobile gate --bisect monday.ort tuesday.ort wednesday.ort",
        "ort-mobile gate --bisect my.ort --library wheel:1.21.0 --library wheel:1.23.2 --library wheel:1.31.1",
    ),
    "ort-mobile devices": (
        "ort-mobile devices",
        "ort-mobile devices 'model=Pixel*,api=29-33'",
        "ort-mobile devices SERIAL --profile npu.json",
    ),
    "ort-mobile lab submit": ("ort-mobile lab submit my.toml", "ort-mobile lab submit my.toml --priority 1"),
    "ort-mobile lab wait": ("ort-mobile lab wait my --timeout 3600",),
    "ort-mobile lab history": ("ort-mobile lab history adb:SERIAL",),
    "ort-mobile lab priority": ("ort-mobile lab priority my 1",),
    "ort-mobile lab work": ("ort-mobile lab work --device 'adb:*' --device local",),
    "ort-mobile lab status": ("ort-mobile lab status --json -",),
    "ort-mobile lab cancel": ("ort-mobile lab cancel my",),
    "ort-mobile lab golden": ("ort-mobile lab golden build_configs/lab/golden.toml", "ort-mobile lab golden --off"),
    "ort-mobile lab release": ("ort-mobile lab release adb:SERIAL --sound",),
    "ort-mobile lab close": ("ort-mobile lab close my --output output/my",),
    "ort-mobile lab serve": (
        "ort-mobile lab serve --database sqlite:///output/my/results.sqlite",
        "ort-mobile lab serve --host 0.0.0.0 --token-file token",
    ),
    "ort-mobile app": (
        "ort-mobile app app.apk",
        "ort-mobile app app.aar --fail-on error --fail-on finding:telemetry --sarif app.sarif",
    ),
    "ort-mobile library list": ("ort-mobile library list --json -",),
    "ort-mobile library get": ("ort-mobile library get android:1.29.0",),
    "ort-mobile library show": ("ort-mobile library show app.aar",),
    "ort-mobile library diff": ("ort-mobile library diff android:1.26.0 android:1.29.0",),
    "ort-mobile report": ("ort-mobile report output/my",),
    "ort-mobile release": (
        "ort-mobile release my.toml --key key.pem",
        "ort-mobile release android output/my/bundle --output models-repo --group com.example --version 1.0",
        "ort-mobile release apple output/my/bundle --output MyModels",
    ),
    "ort-mobile release all": ("ort-mobile release all my.toml --key key.pem --version 1.0",),
    "ort-mobile release android": (
        "ort-mobile release android output/my/bundle --output models-repo --group com.example --version 1.0",
    ),
    "ort-mobile release apple": ("ort-mobile release apple output/my/bundle --output MyModels --name MyModels",),
    "ort-mobile release snippet": ("ort-mobile release snippet output/my/bundle --for react-native",),
    "ort-mobile build plan": ("ort-mobile build plan my.toml --target android-arm64",),
    "ort-mobile build doctor": ("ort-mobile build doctor --target linux-x86_64",),
    "ort-mobile build run": ("ort-mobile build run my.toml --target android-arm64 --source onnxruntime",),
    "ort-mobile build size": ("ort-mobile build size before.aar after.aar",),
    "ort-mobile build probe": ("ort-mobile build probe arm64-v8a --output probes",),
    "ort-mobile prove": ("ort-mobile prove output/my/bundle --library app.aar",),
    "ort-mobile bundle rebuild": ("ort-mobile bundle rebuild output/my",),
    "ort-mobile bundle delta": ("ort-mobile bundle delta old/bundle output/my/bundle --output update.delta",),
    "ort-mobile bundle apply": (
        "ort-mobile bundle apply update.delta old/bundle",
        "ort-mobile bundle apply update.delta old/bundle --key key.pub --runtime 1.29.0 --keep old/previous",
    ),
    "ort-mobile bundle deny": ("ort-mobile bundle deny output/my/bundle --key key.pem --serial 2 --output deny.list",),
    "ort-mobile bundle replay": (
        "ort-mobile bundle replay output/my/bundle",
        "ort-mobile bundle replay output/my/bundle --device android-host:android:1.29.0",
    ),
    "ort-mobile bundle package": ("ort-mobile bundle package output/my/bundle --output package --target ios",),
    "ort-mobile bundle sign": ("ort-mobile bundle sign output/my/bundle --key key.pem",),
    "ort-mobile bundle verify": (
        "ort-mobile bundle verify output/my/bundle",
        "ort-mobile bundle verify output/my/bundle --key key.pub",
    ),
    "ort-mobile schema": ("ort-mobile schema > config.schema.json",),
    "ort-mobile help": ("ort-mobile help run", "ort-mobile help commands", "ort-mobile help app-data"),
    "ort-mobile completion": ('eval "$(ort-mobile completion bash)"',),
}
"""Examples by command."""


QUIET, VERBOSE, DEBUG = "ort-mobile.quiet", "ort-mobile.verbose", "ort-mobile.debug"
"""Keys of what the options of all commands say, in the `meta` that the contexts of a command line share."""

LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)
"""Of the log, by the number of -v."""


def log_level(meta: dict[str, Any]) -> int:
    """What is logged."""
    if meta.get(DEBUG):
        return logging.DEBUG
    return logging.ERROR if meta.get(QUIET) else LEVELS[min(meta.get(VERBOSE, 0), len(LEVELS) - 1)]


def _set(key: str) -> Any:
    """A callback that keeps an option of all commands, which may stand before a command and behind it."""

    def kept(ctx: click.Context, _param: click.Parameter, value: int) -> None:
        if value:
            ctx.meta[key] = ctx.meta.get(key, 0) + value
            logging.getLogger().setLevel(log_level(ctx.meta))

    return kept


def global_options(*, hidden: bool = True) -> list[click.Parameter]:
    """The options of all commands; help has them once."""
    rows = (
        (("--verbose", "-v"), VERBOSE, {"count": True}, "Log what is done; -vv logs everything."),
        (("--quiet", "-q"), QUIET, {"is_flag": True}, "No tables and no progress; errors only."),
        (("--debug",), DEBUG, {"is_flag": True}, "Log everything and show tracebacks."),
    )
    return [
        click.Option(names, callback=_set(key), expose_value=False, hidden=hidden, help=text, **kind)
        for names, key, kind, text in rows
    ]


RARE = frozenset({
    "--custom-ops", "--plugin", "--blame", "--timeout", "--perf-test", "--concurrent", "--batch", "--stream", "--state",
    "--original", "--share-weights", "--show-changes", "--webgpu-options", "--coreml-options", "--context",
    "--keep-float", "--stop-ops", "--safe", "--reference", "--build-kind", "--max-battery-celsius",
    "--min-battery-percent", "--simulate", "--sarif", "--junit", "--base-library", "--optional-input", "--fits-mb",
    "--sustained-rounds",
})  # fmt: skip
"""Options that `COMMAND --help` only names: `help COMMAND` explains them."""
FULL = "ort-mobile.full"
"""Key of whether all are explained, in the `meta` of a context."""

REST = "Options"
FEW = 9
"""Up to so many options are listed without sections."""


def together(*options: Callable[[Any], Any]) -> Callable[[AnyCommand], AnyCommand]:
    """Several options and arguments as one decorator, listed in their order."""

    def add(command: AnyCommand) -> AnyCommand:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def refuse_nan(ctx: click.Context, param: click.Parameter, value: object) -> None:
    """Raise BadParameter for nan among numbers: every bound of a range lets it pass."""
    numbers = value if isinstance(value, tuple) else (value,)
    if any(isinstance(number, float) and math.isnan(number) for number in numbers):
        raise click.BadParameter("nan is not a number", ctx, param)


class SessionOption(click.Option):
    """An option of sessions: `ort-mobile help session-options` explains all of them, commands only name them."""


def write_names(formatter: click.HelpFormatter, text: str) -> None:
    """Write a paragraph in which `--memory-arena` and `op-config` stay whole; click breaks at hyphens."""
    indent = " " * formatter.current_indent
    lines = textwrap.wrap(
        text, formatter.width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )
    formatter.write("".join(f"{line}\n" for line in lines))


class Command(click.Command):
    """A command with its options in sections and its examples below them; the options of all commands beside."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.params += global_options()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does it, without nan."""
        left = super().parse_args(ctx, args)
        for param in self.params:
            refuse_nan(ctx, param, ctx.params.get(param.name or ""))
        return left

    def invoke(self, ctx: click.Context) -> Any:
        """As click does it, with the libraries of --custom-ops in use until it ends."""
        if files := ctx.params.pop("custom_ops", ()):
            from pipeline.core import custom_ops as core_custom_ops

            ctx.with_resource(core_custom_ops.custom_operators(files, "--custom-ops"))
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write options section by section, those that no section names first."""
        records: dict[str, list[tuple[str, str]]] = {title: [] for title in (REST, *SECTIONS)}
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option) and not param.hidden]
        few = len(options) <= FEW
        rare = [] if few or ctx.meta.get(FULL) else [param.opts[0] for param in options if param.opts[0] in RARE]
        options = [param for param in options if param.opts[0] not in rare]
        of_sessions = [param.opts[0] for param in options if isinstance(param, SessionOption)]
        for param in options:
            if param.opts[0] not in of_sessions and (record := param.get_help_record(ctx)) is not None:
                records[REST if few else section_of(param)].append(record)
        for title, rows in records.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
        if of_sessions:
            with formatter.section("Session options"):
                write_names(formatter, f"{', '.join(of_sessions)}: see `ort-mobile help session-options`.")
        if rare:
            with formatter.section("More options"):
                write_names(formatter, f"{', '.join(rare)}: see `ort-mobile help {ctx.info_name}`.")

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples as they can be pasted."""
        if examples := EXAMPLES.get(ctx.command_path):
            with formatter.section("Examples"):
                for line in examples:
                    formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


class Group(click.Group):
    """A group of such commands."""

    command_class = Command

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.params += global_options(hidden=self.name != "cli")

    format_epilog = Command.format_epilog


class OpenGroup(Group):
    """A group in which features have commands, too; they are imported when help lists them or one is called."""

    def __init__(self, *arguments: Any, place: Place[click.Command], **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.place = place

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Commands of the engine first."""
        return [*self.commands, *(str(command.name) for command in self.place)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of the engine, or else of a feature."""
        offered = (command for command in self.place if command.name == cmd_name)
        return self.commands.get(cmd_name) or next(offered, None)


def section_of(param: click.Parameter) -> str:
    """The title under which an option stands."""
    if isinstance(param, SessionOption):
        return "Session options"
    names = {*param.opts, *param.secondary_opts}
    return next((title for title, options in SECTIONS.items() if names & options), REST)


def write_commands(formatter: click.HelpFormatter) -> None:
    """Every command with its line."""
    from pipeline.cli.main import FIRST_PAGE, MORE, list_commands

    list_commands(formatter, FIRST_PAGE | MORE)


def write_session_options(formatter: click.HelpFormatter) -> None:
    """The options that `run_settings` gives to commands."""
    from pipeline.cli.session_options import run_settings

    command = run_settings(click.Command("session-options"))
    formatter.write_text(
        "Options of the session that measures a model. Several values of one (`--threads 1,2,4`) measure every "
        "combination. A config has them as keys of [[runs]]."
    )
    context = click.Context(command)
    records = [param.get_help_record(context) for param in reversed(command.params)]  # click adds the last one first
    with formatter.section("Session options"):
        formatter.write_dl([record for record in records if record])


def write_app_data(formatter: click.HelpFormatter) -> None:
    """The tables of a config by which a model takes and gives the app's own data."""
    _write_tables(
        formatter,
        "What an app has (a picture, sound, a text) and what it gets (labels, boxes, text), as part of a model: two "
        "tables of [[models]] in a config, for every file that is made. docs/app-data.md has examples.",
        {"takes": "[models.takes]", "gives": "[models.gives]"},
    )


def write_features(formatter: click.HelpFormatter) -> None:
    """The tables of a config by which several models become one."""
    _write_tables(
        formatter,
        "Models that an app runs one after the other, as one graph: chains with windows, and loops over tokens. Beside "
        "these, a table [[features]] has the keys of [[models]]. docs/features.md has examples.",
        {"flow": "[[features.flow]]", "flow.inputs.NAME": "[features.flow.inputs.NAME]", "until": "[features.until]"},
    )


def _write_tables(formatter: click.HelpFormatter, text: str, tables: Mapping[str, str]) -> None:
    """A text, and the keys of tables of the config: by title, the heading of each."""
    from pipeline import config as configs

    formatter.write_text(text)
    for title, heading in tables.items():
        with formatter.section(title):
            formatter.write_dl(list(configs.key_texts(configs.TABLES[heading]).items()))


TOPICS: dict[str, Callable[[click.HelpFormatter], None]] = {
    "commands": write_commands,
    "session-options": write_session_options,
    "app-data": write_app_data,
    "features": write_features,
}
"""Pages of help by the name that stands behind `ort-mobile help`."""

SHELLS = ("bash", "zsh", "fish")


@click.command("help", cls=Command)
@click.argument("command", nargs=-1)
@click.pass_context
def show_help(ctx: click.Context, command: tuple[str, ...]) -> None:
    """Show the help of COMMAND, with options that `ort-mobile COMMAND --help` only names; without one, of ort-mobile.

    `help commands` lists every command, `help session-options` the options of ONNX Runtime's sessions, `help app-data`
    what makes a model take pictures, sound or text, and `help features` how several models become one.
    """
    context = ctx.find_root()
    context.meta[FULL] = True
    if len(command) == 1 and command[0] in TOPICS:
        formatter = context.make_formatter()
        TOPICS[command[0]](formatter)
        click.echo(formatter.getvalue().rstrip("\n"))
        return
    for name in command:
        group = context.command
        if not isinstance(group, click.Group):
            raise click.UsageError(f"{context.command_path} has no commands of its own", ctx)
        _, child, _ = group.resolve_command(context, [name])
        if child is None:
            raise click.UsageError(f"No such command '{name}'.", ctx)
        context = click.Context(child, parent=context, info_name=name)
    click.echo(context.get_help())


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that makes SHELL complete commands and options.

    For bash, add to ~/.bashrc:  eval "$(ort-mobile completion bash)"

    For zsh, add to ~/.zshrc:  eval "$(ort-mobile completion zsh)"

    For fish:  ort-mobile completion fish > ~/.config/fish/completions/ort-mobile.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, shell  # noqa: S101 # SHELLS are those that click has
    click.echo(kind(ctx.find_root().command, {}, "ort-mobile", "_ORT_MOBILE_COMPLETE").source())


@click.command(cls=Command)
def schema() -> None:
    """Print the JSON schema of config files."""
    import json

    from pipeline import config as configs
    from pipeline.passes import registry

    click.echo(json.dumps(configs.config_schema(tuple(registry.PASSES)), indent=2))
