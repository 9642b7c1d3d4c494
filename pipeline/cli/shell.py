"""`ort-mobile help`, `completion` and `schema`: what shells and editors ask."""

import click

from pipeline.cli.command import Command

SHELLS = ("bash", "zsh", "fish")


@click.command("help", cls=Command)
@click.argument("command", nargs=-1)
@click.pass_context
def show_help(ctx: click.Context, command: tuple[str, ...]) -> None:
    """Show the help of COMMAND, as `ort-mobile COMMAND --help` does; without one, of ort-mobile itself."""
    found = ctx.find_root()
    for name in command:
        group = found.command
        if not isinstance(group, click.Group):
            raise click.UsageError(f"{found.command_path} has no commands of its own", ctx)
        _, child, _ = group.resolve_command(found, [name])
        if child is None:
            raise click.UsageError(f"No such command '{name}'.", ctx)
        found = click.Context(child, parent=found, info_name=name)
    click.echo(found.get_help())


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
