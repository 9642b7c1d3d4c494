"""Commands whose help has options in sections and examples; `ort-mobile help`, `completion` and `schema`."""

import logging
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
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


def write_examples(formatter: click.HelpFormatter, examples: Sequence[str]) -> None:
    """Write examples as they can be pasted."""
    if examples:
        with formatter.section("Examples"):
            for line in examples:
                formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


class Command(click.Command):
    """A command with its options in sections and its examples below them; the options of all commands beside."""

    def __init__(self, *arguments: Any, examples: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.examples = examples
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
        """Write the examples."""
        write_examples(formatter, self.examples)


class Group(click.Group):
    """A group of such commands."""

    command_class = Command

    def __init__(self, *arguments: Any, examples: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.examples = examples
        self.params += global_options(hidden=self.name != "cli")

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples."""
        write_examples(formatter, self.examples)


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


@click.command(
    "help",
    cls=Command,
    examples=(
        "ort-mobile help run",
        "ort-mobile help commands",
        "ort-mobile help app-data",
    ),
)
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


@click.command(cls=Command, examples=('eval "$(ort-mobile completion bash)"',))
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


@click.command(cls=Command, examples=("ort-mobile schema > config.schema.json",))
def schema() -> None:
    """Print the JSON schema of config files."""
    import json

    from pipeline import config as configs
    from pipeline.passes import registry

    click.echo(json.dumps(configs.config_schema(tuple(registry.PASSES)), indent=2))
