"""`ort-mobile help`, `completion` and `schema`; the pages of help that are about no single command."""

from collections.abc import Callable

import click

from pipeline.cli.command import Command


def write_commands(formatter: click.HelpFormatter) -> None:
    """Every command with its line."""
    from pipeline.cli.main import FIRST_PAGE, MORE, list_commands

    list_commands(formatter, FIRST_PAGE | MORE)


def write_session_options(formatter: click.HelpFormatter) -> None:
    """The options that `run_settings` gives to commands."""
    from pipeline.cli.run import run_settings

    command = run_settings(click.Command("session-options"))
    formatter.write_text(
        "Options of the session that measures a model. Several values of one (`--threads 1,2,4`) measure every "
        "combination. A config has them as keys of [[runs]]."
    )
    context = click.Context(command)
    records = [param.get_help_record(context) for param in reversed(command.params)]  # click adds the last one first
    with formatter.section("Session options"):
        formatter.write_dl([record for record in records if record])


TOPICS: dict[str, Callable[[click.HelpFormatter], None]] = {
    "commands": write_commands,
    "session-options": write_session_options,
}
"""Pages of help by the name that stands behind `ort-mobile help`."""

SHELLS = ("bash", "zsh", "fish")


@click.command("help", cls=Command)
@click.argument("command", nargs=-1)
@click.pass_context
def show_help(ctx: click.Context, command: tuple[str, ...]) -> None:
    """Show the help of COMMAND, as `ort-mobile COMMAND --help` does; without one, of ort-mobile itself.

    `help commands` lists every command, and `help session-options` the options of ONNX Runtime's sessions.
    """
    context = ctx.find_root()
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

    from pipeline.config import config_schema
    from pipeline.passes.registry import PASSES

    click.echo(json.dumps(config_schema(tuple(PASSES)), indent=2))
