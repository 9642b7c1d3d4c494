"""Commands whose help has groups of options and examples, from the tables of pipeline.cli.help."""

import click

from pipeline.cli.help import EXAMPLES, SECTIONS

REST = "Options"
FEW = 9
"""Up to so many options are listed without sections."""


class JsonOrFlag(click.Option):
    """`--json FILE|-` of a command where `--json` alone has meant stdout; both forms are accepted for a release."""


class Command(click.Command):
    """A command with its options in sections and its examples below them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does it, with a destination put behind `--json` where a flag is accepted, too."""
        if any(isinstance(param, JsonOrFlag) for param in self.params):
            args = with_destination(args)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write options section by section, those that no section names last."""
        found: dict[str, list[tuple[str, str]]] = {title: [] for title in (REST, *SECTIONS)}
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        for param in options:
            if (record := param.get_help_record(ctx)) is not None:
                found[section_of(param) if len(options) > FEW else REST].append(record)
        for title, records in found.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples as they can be pasted."""
        if examples := EXAMPLES.get(ctx.command_path):
            with formatter.section("Examples"):
                for line in examples:
                    formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


class Group(click.Group):
    """A group of such commands."""

    command_class = Command
    format_epilog = Command.format_epilog


def section_of(param: click.Parameter) -> str:
    """The title under which an option stands."""
    names = {*param.opts, *param.secondary_opts}
    return next((title for title, options in SECTIONS.items() if names & options), REST)


def with_destination(args: list[str]) -> list[str]:
    """The arguments with `-` behind each `--json` that no destination follows.

    A word is a destination when it is `-`, ends in `.json`, or names nothing that exists: the files that these
    commands read exist, and are operator configs, TOML or models.
    """
    found: list[str] = []
    for place, word in enumerate(args):
        found.append(word)
        after = args[place + 1] if place + 1 < len(args) else ""
        if word == "--json" and not _is_destination(after):
            found.append("-")
    return found


def _is_destination(word: str) -> bool:
    from pathlib import Path

    if not word or word.startswith("-"):
        return word == "-"
    return word.endswith(".json") or not Path(word).exists()
