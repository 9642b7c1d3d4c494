"""`ort-mobile compare`, `gate` and `gate --bisect`: campaigns beside each other, regressions, and where they began."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from pipeline.cli import callbacks, data_options, session_options
from pipeline.cli import command as cli_command
from pipeline.cli import options as cli_options
from pipeline.cli import outputs as cli_outputs
from pipeline.cli.outputs import Outputs

if TYPE_CHECKING:
    from device_runner.spec import RunOptions
    from pipeline import config as configs
    from pipeline.dataset import Dataset
    from pipeline.features.pairs import report as pairs_report
    from pipeline.features.pairs.history import History
    from pipeline.job import file_runs


def library_names(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """A callback for libraries: each a file that is there, or a name such as android:1.29.0."""
    return tuple(callbacks.library_name(ctx, param, value) or "" for value in values)


@click.command(
    cls=cli_command.Command,
    examples=(
        "ort-mobile compare 'output/my#previous' output/my",
        "ort-mobile compare before.json after.json --markdown comparison.md",
        "ort-mobile compare output/my output/my --run-a all-fixed/cpu --run-b basic-fixed/cpu",
    ),
)
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option(
    "--run-a", default="", metavar="VARIANT[/RUN]", help="Compare this run of A.  [default: all, or that of --run-b]"
)
@click.option(
    "--run-b", default="", metavar="VARIANT[/RUN]", help="Compare this run of B.  [default: all, or that of --run-a]"
)
@cli_outputs.markdown_option
@cli_outputs.json_option
def compare(a: str, b: str, run_a: str, run_b: str, outputs: Outputs) -> None:
    """Compare the latencies of campaign B with those of A, and name what changed between the two.

    A and B are results.json (also of `perf --json`), results.sqlite, an output folder, a bundle, or a database URL.
    `#CAMPAIGN` behind it names a stored campaign, `#previous` the one before the newest; else it is the newest.

    Runs of one campaign are compared in pairs of rounds. Two campaigns were measured at different times: `gate`
    measures both again, in alternating rounds. A difference is no error; exit code 1 if nothing could be compared.
    """
    from pipeline.campaign.store import refusals
    from pipeline.features.pairs import comparison

    sources = refusals.hidden(a), refusals.hidden(b)
    compared = comparison.compare_sides(
        comparison.read_side(a), comparison.read_side(b), sources=sources, runs=(run_a, run_b)
    )
    code = compared.exit_code
    outputs.finish(
        compared,
        [comparison.listing(compared), *comparison.sections(compared)],
        code=code,
        title="Comparison",
        failed=comparison.failed_lines(compared) if code else (),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GateOrder:
    """What `gate` is asked for, with and without --bisect."""

    paths: tuple[Path, ...]
    history: str
    devices: tuple[str, ...]
    wait_seconds: float
    libraries: tuple[str, ...]
    base_library: str | None
    model: str
    least: float
    folder: Path | None
    measure: "configs.MeasureConfig"
    files: "file_runs.FilesOnData"
    """The model files among the paths, and their inputs."""
    options: "tuple[RunOptions, ...]"
    """Those that model files are run with."""


@click.command(
    cls=cli_command.Command,
    examples=(
        "ort-mobile gate before/bundle after/bundle --device adb:SERIAL --junit gate.xml --markdown comment.md",
        "ort-mobile gate my.ort my.ort --base-library wheel:1.21.0 --library wheel:1.31.1",
        "ort-mobile gate --history output/my",
        "ort-mobile gate --bisect monday.ort tuesday.ort wednesday.ort",
        "ort-mobile gate --bisect my.ort --library wheel:1.21.0 --library wheel:1.23.2 --library wheel:1.31.1",
    ),
)
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path), metavar="[BASE CANDIDATE]...")
@click.option(
    "--bisect",
    "bisecting",
    is_flag=True,
    help="Find the first of several paths, or of several libraries, that is slower than the first.",
)
@click.option("--history", metavar="PATH|URL", default="", help="Measure only what the campaigns stored here suspect.")
@click.option("--device", "devices", multiple=True, help="local, adb:SERIAL or adb:*; repeatable.  [default: local]")
@cli_options.wait_option
@click.option(
    "--library",
    "libraries",
    callback=library_names,
    metavar="FILE|NAME",
    multiple=True,
    help="libonnxruntime to run with (.so, AAR, or a release such as android:1.29.0), instead of the device's default. "
    "With --bisect repeatable, the good one first.",
)
@click.option(
    "--base-library",
    callback=callbacks.library_name,
    metavar="FILE|NAME",
    help="libonnxruntime of the base.  [default: --library]",
)
@click.option("--model", default="", help="With --bisect: which model of bundles and output folders with several.")
@click.option(
    "--rounds", type=click.IntRange(min=8, max=500), default=20, show_default=True, help="New processes of each side."
)
@click.option(
    "--min-runs",
    type=click.IntRange(1, 2**31 - 1),
    default=20,
    show_default=True,
    help="Minimum inferences per process.",
)
@click.option(
    "--min-seconds",
    type=click.FloatRange(0, 86_400, min_open=True),
    default=0.2,
    show_default=True,
    help="Minimum seconds of inferences per process.",
)
@click.option(
    "--least",
    type=click.FloatRange(min=0, max=100),
    default=1.0,
    show_default=True,
    metavar="PERCENT",
    help="Smallest slowdown that counts.",
)
@click.option(
    "--sustained-seconds",
    type=click.FloatRange(1, 43_200),
    help="Compare the ends of runs of so many seconds of load, too.  [default: not]",
)
@click.option(
    "--sustained-rounds",
    type=click.IntRange(4, 100),
    default=4,
    show_default=True,
    help="Such runs of each side, from equal starts.",
)
@session_options.run_settings
@click.option(
    "--dimension",
    "dimensions",
    callback=callbacks.sizes,
    metavar="NAME=N",
    multiple=True,
    help="Size of a dynamic dimension of model files, by its name or as INPUT[AXIS]; repeatable.",
)
@data_options.data_options
@cli_options.custom_ops_option
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the database of paired runs: the same is not measured twice.  "
    "[default: output/gate, with --bisect output/bisect]",
)
@cli_outputs.ci_options
@cli_outputs.json_option
@click.pass_context
def gate(
    ctx: click.Context,
    /,
    paths: tuple[Path, ...],
    bisecting: bool,
    history: str,
    devices: tuple[str, ...],
    device_wait_seconds: float,
    libraries: tuple[str, ...],
    base_library: str | None,
    model: str,
    output: Path | None,
    least: float,
    rounds: int,
    min_runs: int,
    min_seconds: float,
    sustained_seconds: float | None,
    sustained_rounds: int,
    options: "tuple[RunOptions, ...]",
    dimensions: dict[str, int],
    data: "Dataset",
    outputs: Outputs,
) -> None:
    """Measure CANDIDATE and BASE in alternating rounds; exit code 4 if the candidate is slower.

    Both are model files, bundles or output folders. A regression is a 99 % interval of the ratio of medians, for all
    comparisons together, that lies above 1 by more than --least, or a mean or 90th percentile shown to be 5 % larger.
    With --sustained-seconds the ends of runs of minutes are compared likewise; where their interval reaches above 1.05
    there is no verdict.
    With --history only runs are measured whose last three campaigns were all slower than usual; without BASE and
    CANDIDATE it shows the history. A suspicion that nothing was measured for has no verdict: exit code 1.

    With --bisect any number of paths, the good one first. With several libraries the way goes from the first path with
    the first library to the last path, and then to the last library. Each step is measured in pairs with the first;
    what cannot be measured is skipped. A slower one is the answer there: the exit code stays 0.
    """
    import msgspec

    from pipeline import config as configs
    from pipeline.features.pairs.sources import model_files
    from pipeline.job import file_runs

    measure = configs.MeasureConfig(rounds=rounds, min_runs=min_runs, min_seconds=min_seconds)
    if sustained_seconds is not None:
        measure = msgspec.structs.replace(
            measure,
            mode=(configs.MeasureMode.STEADY, configs.MeasureMode.SUSTAINED),
            sustained_seconds=sustained_seconds,
            sustained_rounds=sustained_rounds,
        )
    order = GateOrder(
        paths=paths,
        history=history,
        devices=devices,
        wait_seconds=device_wait_seconds,
        libraries=libraries,
        base_library=base_library,
        model=model,
        least=least / 100,
        folder=output,
        measure=measure,
        files=file_runs.FilesOnData(files=model_files(paths), dimensions=dimensions, data=data),
        options=options,
    )
    if bisecting:
        _bisect(ctx, order, outputs)
    else:
        _gate(ctx, order, outputs)


def _gate(ctx: click.Context, order: GateOrder, outputs: Outputs) -> NoReturn:
    """Base and candidate, or what histories suspect."""
    from pipeline.features.pairs import report as pairs_report
    from pipeline.features.pairs.history import read_histories
    from pipeline.report import wording

    if len(order.paths) not in (0, 2) or not (order.paths or order.history):
        count = len(order.paths)
        raise click.UsageError(f"name BASE and CANDIDATE, or a --history, or all three; paths: {count}", ctx)
    if order.libraries[1:] or order.model:
        raise click.UsageError("several --library, and --model, are for --bisect", ctx)
    histories = read_histories(order.history) if order.history else None
    if order.paths:
        report = _measured(order, histories)
    else:
        report = pairs_report.GateReport(
            least=order.least,
            confidence=1 - pairs_report.ALARMS,
            histories=histories or (),
            rows=tuple(
                pairs_report.unconfirmed(history, "no BASE and CANDIDATE are named to measure")
                for history in histories or ()
                if history.suspicion
            ),
        )
    headline = wording.Line(pairs_report.headline(report), wrap=False)
    code = report.exit_code
    outputs.finish(
        report,
        [*pairs_report.listings(report), *pairs_report.sections(report), headline],
        code=code,
        failed=pairs_report.failed_lines(report) if code else (),
        ci=pairs_report.document(report),
    )


def _measured(order: GateOrder, histories: "Sequence[History] | None") -> "pairs_report.GateReport":
    from pipeline.core import files as storage
    from pipeline.features.pairs.gating import run_gate
    from pipeline.features.pairs.sources import read_sources

    library = order.libraries[0] if order.libraries else None
    with storage.scratch() as work:
        base, candidate = read_sources(order.paths, order.files, order.options, work)
        return run_gate(
            replace(base, library=order.base_library or library),
            replace(candidate, library=library),
            histories,
            order.measure,
            least=order.least,
            folder=order.folder or Path("output/gate"),
            devices=order.devices,
            progress=cli_options.progress(),
            wait_seconds=order.wait_seconds,
        )


def _bisect(ctx: click.Context, order: GateOrder, outputs: Outputs) -> NoReturn:
    """The first of the paths, or of the libraries, that is slower than the first."""
    from pipeline.core import files as storage
    from pipeline.features.pairs import bisection_report
    from pipeline.features.pairs.bisection import run_bisection
    from pipeline.features.pairs.sources import read_sources

    refused = {
        "--history": order.history,
        "--base-library": order.base_library,
        "a second --device": order.devices[1:],
        "--sustained-seconds": order.measure.modes[1:],
        "--wait": order.wait_seconds,
        "--junit": outputs.junit_to,
        "--sarif": outputs.sarif_to,
    }
    if given := [option for option, value in refused.items() if value]:
        raise click.UsageError(f"--bisect has one device and no verdict: leave {', '.join(given)} out", ctx)
    if not order.paths:
        raise click.UsageError("name the paths to bisect, the good one first", ctx)
    with storage.scratch() as work:
        bisection = run_bisection(
            read_sources(order.paths, order.files, order.options, work),
            order.libraries or (None,),
            order.measure,
            least=order.least,
            device=order.devices[0] if order.devices else "local",
            folder=order.folder or Path("output/bisect"),
            progress=cli_options.progress(),
            model=order.model,
        )
    headline, code = bisection_report.bisection_headline(bisection), bisection.exit_code
    outputs.finish(
        bisection,
        bisection_report.bisection_parts(bisection),
        code=code,
        failed=[headline] if code else (),
        title=headline,
    )
