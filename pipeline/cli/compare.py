"""`ort-mobile compare`: two campaigns beside each other."""

from pathlib import Path

import click

from pipeline.cli.command import Command
from pipeline.cli.options import json_option, shows_text, write_json

markdown_option = click.option(
    "--markdown", "markdown_to", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="Write the result as Markdown, as for a comment on a pull request.",
)  # fmt: skip


@click.command(cls=Command)
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option(
    "--run-a", default="", metavar="VARIANT[/RUN]", help="Compare this run of A.  [default: those of B's names]"
)
@click.option(
    "--run-b", default="", metavar="VARIANT[/RUN]", help="Compare this run of B.  [default: those of A's names]"
)
@markdown_option
@json_option
def compare(a: str, b: str, run_a: str, run_b: str, markdown_to: Path | None, json_to: str | None) -> None:
    """Compare the latencies of campaign B with those of A, and name what changed between the two.

    A and B are results.json (also of `perf --json`), results.sqlite, an output folder, a bundle, or a database URL.
    `#CAMPAIGN` behind it names a stored campaign, `#previous` the one before the newest; else it is the newest.

    Runs of one campaign are compared in pairs of rounds. Two campaigns were measured at different times: `gate`
    measures both again, in alternating rounds.
    """
    from pipeline.core.files import write_text
    from pipeline.job.sides import read_side
    from pipeline.report import comparison, markdown
    from pipeline.report.terminal import open_console, show_parts

    found = comparison.compare_sides(read_side(a, run_a), read_side(b, run_b))
    parts = ((comparison.listing(found),), comparison.sections(found))
    if markdown_to:
        write_text(markdown_to, markdown.render_parts("Comparison", *parts))
    if json_to:
        write_json(found, json_to)
    if shows_text(json_to):
        show_parts(*parts, open_console())
