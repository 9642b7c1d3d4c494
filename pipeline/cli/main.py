"""The command `ort-mobile`: finds a command's module when it is called, and shows every error in one way.

Modules of commands are imported late, so that `--help` needs nothing but click (docs/architecture.md: conventions).
"""

import codecs
import importlib
import io
import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from device_runner import safe_text
from device_runner.errors import RunnerError
from pipeline import __version__
from pipeline.cli.command import Group, log_level, write_names
from pipeline.core import errors as core_errors

ASCII = {"→": "->", "…": "...", "·": "-", "±": "+/-", "≤": "<=", "≥": ">=", "≠": "!=", "µ": "u", "✓": "ok"}
"""Characters that our own texts use, in ASCII."""

HANDLER = "ort-mobile-ascii"


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    r"""The handler of codecs: a character in ASCII, or escaped as in \u1234."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    plain = (ASCII.get(char) or char.encode("ascii", "backslashreplace").decode() for char in lacking)
    return "".join(plain), error.end


FIRST_PAGE: dict[str, dict[str, tuple[str, str]]] = {
    "From a model to a release": {
        "check": ("cli.partition:check", "Show what NNAPI, CoreML, XNNPACK and GPUs support of a model."),
        "init": ("cli.init:init", "Write a commented config for a model."),
        "run": ("cli.run:run", "The whole job: convert, check, measure, choose, report."),
        "report": ("cli.bundle:report", "Write the report of stored results again."),
        "prove": ("features.prove:prove", "Test a release in your app's Android library, without a phone."),
        "release": ("features.packages:release", "Run a config, sign the chosen models, make packages for apps."),
        "bundle": ("cli.bundle:bundle", "Sign, verify, update or rebuild a bundle of chosen models."),
    },
    "Single steps": {
        "convert": ("cli.convert:convert", "Convert models to ORT format."),
        "perf": ("features.perf:perf", "Measure model files on a device, without converting."),
        "tune": ("features.tune:tune", "Search for the best model file and session options on devices."),
        "gate": ("features.pairs:gate", "Measure a new version beside the old one; fail if it is slower."),
        "devices": ("cli.devices:devices", "List devices and whether each is ready."),
    },
}
MORE: dict[str, dict[str, tuple[str, str]]] = {
    "Models": {
        "import": ("features.imports:import_model", "Export a trained PyTorch, scikit-learn or TensorFlow model."),
        "partition": ("cli.partition:partition", "Show which nodes a provider supports, why not others, and fixes."),
        "accuracy": ("cli.accuracy:accuracy", "Measure how much accuracy a changed model has lost."),
        "diff": ("features.diff:diff", "Show what changed between two model files, by which optimizer."),
        "transform": ("cli.transform:transform", "Change a model by steps, and check its outputs."),
    },
    "Measurement": {
        "compare": ("features.pairs:compare", "Compare two stored results, and name what changed."),
        "doctor": ("features.doctor:doctor", "Try ONNX Runtime's performance advice on a model, each measured."),
        "export": ("features.away:export", "Package a campaign for a phone that no cable reaches."),
        "collect": ("features.away:collect", "Read the results that packages brought, choose and report."),
        "lab": ("features.lab:lab", "Measure on devices of many hosts, with PostgreSQL as queue."),
    },
    "Apps and libraries of ONNX Runtime": {
        "app": ("features.app:app", "Show what of an app's libraries and models breaks on phones."),
        "library": ("cli.devices:library", "Download and inspect libraries of ONNX Runtime."),
        "op-config": ("cli.op_config:op_config", "Create and check operator configs of reduced builds."),
        "build": ("cli.build:build", "Plan and run custom builds of ONNX Runtime."),
    },
    "Help": {
        "help": ("cli.command:show_help", "Show the help of a command, all commands, or session options."),
        "completion": ("cli.command:completion", "Print the completion script of a shell."),
        "schema": ("cli.command:schema", "Print the JSON schema of config files, for editors."),
    },
}
"""Commands by the title under which help lists them: where in pipeline each is, and its line there.

`--help` lists the first page and names the others; `help commands` lists both. A feature has its commands in its
module `command`.
"""

COMMANDS = {
    name: entry_point for section in (*FIRST_PAGE.values(), *MORE.values()) for name, entry_point in section.items()
}


def load(entry_point: str) -> click.Command:
    """Import the command that a row of COMMANDS names."""
    module, _, attribute = entry_point.partition(":")
    within = ".command" if module.startswith("features.") else ""
    command: click.Command = getattr(importlib.import_module(f"pipeline.{module}{within}"), attribute)
    return command


def list_commands(formatter: click.HelpFormatter, sections: dict[str, dict[str, tuple[str, str]]]) -> None:
    """Write commands with their lines, section by section."""
    width = max(map(len, COMMANDS))
    for title, commands in sections.items():
        with formatter.section(title):
            formatter.write_dl([(f"{name:<{width}}", text) for name, (_, text) in commands.items()])


class LateGroup(Group):
    """A group that imports a command's module only when that command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table, which is the order of use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of one command."""
        if cmd_name not in COMMANDS:
            return None
        return load(COMMANDS[cmd_name][0])

    def invoke(self, ctx: click.Context) -> Any:
        """As click does it, with errors of our own for broken pipes: click ends with 1 and says nothing."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            import select

            # Whether the standard output is a pipe that nobody reads
            closed = not hasattr(select, "poll")
            if not closed:
                waiting = select.poll()
                waiting.register(1, 0)
                closed = any(event & (select.POLLERR | select.POLLHUP) for _, event in waiting.poll(0))
            if closed:
                raise _ReaderGoneError from error
            raise RunnerError("a connection broke", why=str(error), remedy="try again") from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from the table, so that no module is imported for it."""
        list_commands(formatter, FIRST_PAGE)
        with formatter.section("More commands"):
            names = ", ".join(name for section in MORE.values() for name in section)
            write_names(formatter, f"{names}: `ort-mobile help commands` lists all.")

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it, with a suggestion for a misspelt name, or for one that is a part of another command."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            groups = {name: self.get_command(ctx, name) for name in COMMANDS}
            parts = {
                part: f"{name} {part}"
                for name, group in groups.items()
                if isinstance(group, click.Group)
                for part in group.list_commands(ctx)
            }
            close = difflib.get_close_matches(args[0], [*COMMANDS, *parts], n=1)
            hint = f" Did you mean '{parts[close[0]] if close[0] not in COMMANDS else close[0]}'?" if close else ""
            raise click.UsageError(f"No such command '{args[0]}'.{hint}", ctx) from error


class _VisibleFormatter(logging.Formatter):
    """Messages quote devices, drivers and file names: their control characters are written out.

    Warnings read as those of commands do; where more is asked for, the module of each message stands before it.
    """

    def __init__(self, *, modules: bool) -> None:
        super().__init__("%(levelname)s %(name)s: %(message)s" if modules else "%(level)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """The record; lines of a traceback, and those that a message should not have, are marked as such."""
        record.level = record.levelname.lower()
        return safe_text.visible_lines(super().format(record))


@click.group(
    cls=LateGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    examples=(
        "ort-mobile init my.onnx && ort-mobile run my.toml",
        "ort-mobile help convert",
    ),
)
@click.version_option(__version__, prog_name="ort-mobile")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Turn ONNX models into releases for Android and iOS: convert, check, measure on devices, bundle.

    Results go to stdout, messages to stderr. In a pipe tables are plain text, one line a row; `--json FILE|-` of a
    command writes its result as JSON. Options of this list may stand behind a command, too. Exit codes: 0 done, 1 some
    models or runs failed, 2 wrong command line or config, 3 something is missing on this computer, 4 a check failed,
    130 interrupted.
    """
    handler = logging.StreamHandler(sys.stderr)
    level = log_level(ctx.meta)
    handler.setFormatter(_VisibleFormatter(modules=level < logging.WARNING))
    logging.basicConfig(level=level, handlers=[handler])
    # What SQLAlchemy's pool raises is shown as our errors are; that a signal met it as it closes is no error.
    logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)


def show_error(error: BaseException) -> None:
    """Print the four parts of an error to stderr."""
    internal = (
        ("error", "Internal error"),
        ("why", f"{type(error).__name__}: {error}"),
        ("remedy", "run it again with `ort-mobile --debug` and report what it prints: this is a defect of ort-mobile"),
    )
    for label, text in error.lines() if isinstance(error, RunnerError) else internal:
        head = click.style(f"{label}:", fg="red" if label == "error" else "cyan", bold=True)
        click.echo(f"{head} {safe_text.visible_lines(text)}", err=True)


class _ReaderGoneError(Exception):
    """Nobody reads the standard output any more, as in `| head`. Click takes a BrokenPipeError for a failure."""


def _leave(code: int) -> NoReturn:
    """Exit at once; a reader of the output that has gone (as in `| head`) is no error, a full disk is one."""
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the interpreter flushes once more
        if not isinstance(error, BrokenPipeError):
            recognized = _known(error)
            show_error(recognized)
            code = code or getattr(recognized, "exit_code", core_errors.ExitCode.SOME_FAILED)
    sys.exit(code)


def _known(error: Exception) -> Exception:
    """An error of the operating system as one of ours; any other as it is."""
    if not isinstance(error, OSError):
        return error
    from pipeline.core import files as storage

    return storage.os_error(error)


def _fill_missing_streams() -> None:
    """Give a process that was started without standard streams (`>&-`) the null device in their place.

    Else the next file that is opened gets the number 1 or 2, and output of a library goes there.
    """
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number is this one
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - for good


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with the codes of `ExitCode`."""
    _fill_missing_streams()
    if arguments is None:
        # SIGTERM (a cancelled CI job) and SIGHUP (a closed terminal) end a command as Ctrl-C; `nohup` stays in
        # force.
        for name in ("SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number and signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, signal.default_int_handler)
    debug = "--debug" in (sys.argv[1:] if arguments is None else arguments)
    codecs.register_error(HANDLER, _in_ascii)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # not so where there is none, or a test has its own
            stream.reconfigure(errors=HANDLER)
    try:
        code = cli.main(args=arguments, prog_name="ort-mobile", standalone_mode=False)
        # `code` is what a command gave to ctx.exit; 0 where it returned.
        _leave(code if isinstance(code, int) else core_errors.ExitCode.DONE)
    except click.ClickException as error:
        error.show()
        _leave(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        _leave(core_errors.ExitCode.INTERRUPTED)
    except _ReaderGoneError:
        _leave(core_errors.ExitCode.DONE)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is shown
        if debug:
            import traceback

            click.echo(safe_text.visible_lines(traceback.format_exc()), err=True)  # it quotes names out of models, too
            _leave(core_errors.ExitCode.SOME_FAILED)
        recognized = _known(error)
        show_error(recognized)
        _leave(getattr(recognized, "exit_code", core_errors.ExitCode.SOME_FAILED))
