"""`ort-mobile compare`, `gate` and `bisect`: campaigns beside each other, regressions, and where they began."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pipeline.cli.ci import write_ci
from pipeline.cli.command import Command
from pipeline.cli.options import (
    ci_options,
    data_options,
    dataset_from,
    json_option,
    library_name,
    library_option,
    markdown_option,
    progress,
    shows_text,
    sizes,
    wait_option,
    write_json,
)
from pipeline.cli.run import options_of, run_settings

if TYPE_CHECKING:
    from pipeline.job.pairs import PairOrder
    from pipeline.job.perf_files import PerfOrder
    from pipeline.report import regression

Function = TypeVar("Function", bound=Callable[..., Any])


def library_names(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """A callback for libraries: each a file that is there, or a name such as android:1.29.0."""
    return tuple(library_name(ctx, param, value) or "" for value in values)


@click.command(cls=Command)
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option(
    "--run-a", default="", metavar="VARIANT[/RUN]", help="Compare this run of A.  [default: all, or that of --run-b]"
)
@click.option(
    "--run-b", default="", metavar="VARIANT[/RUN]", help="Compare this run of B.  [default: all, or that of --run-a]"
)
@markdown_option
@json_option
@click.pass_context
def compare(
    ctx: click.Context, /, a: str, b: str, run_a: str, run_b: str, markdown_to: Path | None, json_to: str | None
) -> None:
    """Compare the latencies of campaign B with those of A, and name what changed between the two.

    A and B are results.json (also of `perf --json`), results.sqlite, an output folder, a bundle, or a database URL.
    `#CAMPAIGN` behind it names a stored campaign, `#previous` the one before the newest; else it is the newest.

    Runs of one campaign are compared in pairs of rounds. Two campaigns were measured at different times: `gate`
    measures both again, in alternating rounds. A difference is no error; exit code 1 if nothing could be compared.
    """
    from pipeline.core.files import write_text
    from pipeline.job.sides import read_side
    from pipeline.report import comparison, markdown
    from pipeline.report.terminal import show_parts

    found = comparison.compare_sides(read_side(a, run_a), read_side(b, run_b))
    parts = ((comparison.listing(found),), comparison.sections(found))
    if markdown_to:
        write_text(markdown_to, markdown.render_parts("Comparison", *parts))
    if json_to:
        write_json(found, json_to)
    if shows_text(json_to):
        show_parts(*parts)
    ctx.exit(comparison.exit_code(found))


def pair_options(command: Function) -> Function:
    """Add how pairs are measured to a command, which gets the values as keywords for `_orders`."""
    for option in (
        data_options,
        click.option(
            "--dimension", "dimensions", callback=sizes, metavar="NAME=N", multiple=True,
            help="Size of a dynamic dimension of model files, by its name or as INPUT[AXIS]; repeatable.",
        ),
        run_settings,
        click.option(
            "--least", type=click.FloatRange(min=0, max=100), default=1.0, show_default=True, metavar="PERCENT",
            help="Smallest slowdown that counts.",
        ),
        click.option(
            "--min-seconds", type=click.FloatRange(min=0, min_open=True), default=0.2, show_default=True,
            help="Minimum seconds of inferences per process.",
        ),
        click.option(
            "--min-runs", type=click.IntRange(min=1), default=20, show_default=True,
            help="Minimum inferences per process.",
        ),
        click.option(
            "--rounds", type=click.IntRange(min=8, max=500), default=20, show_default=True,
            help="New processes of each side.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def _orders(paths: Sequence[Path], answers: dict[str, Any]) -> "tuple[PairOrder, PerfOrder]":
    """How pairs, and how the model files among some paths are measured."""
    from pipeline.config import MeasureConfig
    from pipeline.job.pairs import PairOrder
    from pipeline.job.perf_files import PerfOrder
    from pipeline.job.read_subjects import model_files

    measure = MeasureConfig(rounds=answers["rounds"], min_runs=answers["min_runs"], min_seconds=answers["min_seconds"])
    files = PerfOrder(
        files=model_files(paths),
        options=options_of(answers),
        device="",
        library=None,
        dimensions=answers["dimensions"],
        measure=measure,
        data=dataset_from(answers["test_data"], answers["input_values"]),
    )
    return PairOrder(measure=measure, least=answers["least"] / 100), files


@click.command(cls=Command)
@click.argument("base", required=False, type=click.Path(path_type=Path))
@click.argument("candidate", required=False, type=click.Path(path_type=Path))
@click.option("--history", metavar="PATH|URL", default="", help="Measure only what the campaigns stored here suspect.")
@click.option("--device", "devices", multiple=True, help="local, adb:SERIAL or adb:*; repeatable.  [default: local]")
@wait_option
@library_option
@click.option(
    "--base-library",
    callback=library_name,
    metavar="FILE|NAME",
    help="libonnxruntime of the base.  [default: --library]",
)
@pair_options
@click.option(
    "--output", type=click.Path(path_type=Path, file_okay=False), default=Path("output/gate"), show_default=True,
    help="Folder of the database of paired runs: the same is not measured twice.",
)  # fmt: skip
@ci_options
@click.option(
    "--svg", "svg_to", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Draw the history."
)
@json_option
@click.pass_context
def gate(
    ctx: click.Context,
    /,
    base: Path | None,
    candidate: Path | None,
    history: str,
    devices: tuple[str, ...],
    lease_seconds: float,
    library: str | None,
    base_library: str | None,
    output: Path,
    junit_to: Path | None,
    sarif_to: Path | None,
    markdown_to: Path | None,
    svg_to: Path | None,
    json_to: str | None,
    **answers: Any,
) -> None:
    """Measure CANDIDATE and BASE in alternating rounds; exit code 4 if the candidate is slower.

    Both are model files, bundles or output folders. A regression is a 99 % interval of the ratio, for all comparisons
    together, that lies above 1 by more than --least. With --history only runs are measured whose last three campaigns
    were all slower than usual; without BASE and CANDIDATE it shows the history.
    """
    from pipeline.core.files import write_text
    from pipeline.job.regression import exit_code, history_report
    from pipeline.report import regression
    from pipeline.report.history_plot import history_svg
    from pipeline.report.terminal import show_parts

    if (base is None) is not (candidate is None) or not (base or history):
        raise click.UsageError("name BASE and CANDIDATE, or a --history, or all three", ctx)
    if base and candidate:
        places = {"folder": output, "history": history, "devices": devices, "wait_seconds": lease_seconds}
        report = _measured_gate((base, base_library or library), (candidate, library), answers, places)
    else:
        report = history_report(history, answers["least"] / 100)
    write_ci(regression.document(report), junit_to=junit_to, sarif_to=sarif_to, markdown_to=markdown_to)
    if svg_to:
        write_text(svg_to, history_svg(report.histories))
    if json_to:
        write_json(report, json_to)
    if shows_text(json_to):
        show_parts(regression.listings(report), regression.sections(report))
        click.echo(regression.headline(report))
    ctx.exit(exit_code(report))


def _measured_gate(
    base: tuple[Path, str | None], candidate: tuple[Path, str | None], answers: dict[str, Any], places: dict[str, Any]
) -> "regression.GateReport":
    """The report on two paths, each with its library; `places` are the other fields of a GateOrder."""
    from pipeline.job.read_subjects import read_sources
    from pipeline.job.regression import GateOrder, run_gate

    pairs, files = _orders([base[0], candidate[0]], answers)
    with tempfile.TemporaryDirectory() as work:
        sides = read_sources([base[0], candidate[0]], files, Path(work))
        before, after = (side.with_library(given[1]) for side, given in zip(sides, (base, candidate), strict=True))
        return run_gate(GateOrder(pairs=pairs, base=before, candidate=after, **places), progress())


@click.command(cls=Command)
@click.argument("artifacts", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="ARTIFACT...")
@click.option(
    "--library", "libraries", callback=library_names, metavar="FILE|NAME", multiple=True,
    help="libonnxruntime to run with, the good one first; repeatable.  [default: the device's]",
)  # fmt: skip
@click.option("--device", default="local", show_default=True, help="local or adb:SERIAL.")
@click.option("--model", default="", help="Which model of bundles and output folders with several.")
@pair_options
@click.option(
    "--output", type=click.Path(path_type=Path, file_okay=False), default=Path("output/bisect"), show_default=True,
    help="Folder of the database of paired runs: the same is not measured twice.",
)  # fmt: skip
@markdown_option
@json_option
@click.pass_context
def bisect(
    ctx: click.Context,
    /,
    artifacts: tuple[Path, ...],
    libraries: tuple[str, ...],
    device: str,
    model: str,
    output: Path,
    markdown_to: Path | None,
    json_to: str | None,
    **answers: Any,
) -> None:
    """Find the first of several ARTIFACTs, or of several libraries, that is slower than the first.

    ARTIFACTs are model files, bundles or output folders, the good one first. With several libraries the way goes
    from the first artifact with the first library to the last artifact, and then to the last library. Each step is
    measured in pairs with the first, as `gate` does. What cannot be measured is skipped.
    """
    from pipeline.core.files import write_text
    from pipeline.job.bisect import BisectOrder, exit_code, run_bisect
    from pipeline.job.read_subjects import read_sources
    from pipeline.report import bisection, markdown
    from pipeline.report.terminal import show_parts

    pairs, files = _orders(artifacts, answers)
    with tempfile.TemporaryDirectory() as work:
        sources = read_sources(artifacts, files, Path(work))
        order = BisectOrder(
            sources=sources, libraries=libraries or (None,), device=device, folder=output, pairs=pairs, model=model
        )
        report = run_bisect(order, progress())
    parts = ((bisection.listing(report),), bisection.sections(report))
    if markdown_to:
        write_text(markdown_to, markdown.render_parts(bisection.headline(report), *parts))
    if json_to:
        write_json(report, json_to)
    if shows_text(json_to):
        show_parts(*parts)
    ctx.exit(exit_code(report))
