"""`ort-mobile perf`: measures model files as they are."""

from pathlib import Path
from typing import Any

import click

from pipeline.cli.command import Command
from pipeline.cli.options import (
    data_options,
    dataset_from,
    json_option,
    library_option,
    perf_test_option,
    progress,
    shows_text,
    sizes,
    write_json,
    write_result,
)
from pipeline.cli.run_conditions import conditions_of, run_conditions
from pipeline.cli.run_settings import options_of, run_settings


@click.command(cls=Command)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="MODEL...")
@click.option("--device", default="local", show_default=True, help="local or adb:SERIAL.")
@library_option
@run_settings
@click.option(
    "--dimension",
    "dimensions",
    callback=sizes,
    metavar="NAME=N",
    multiple=True,
    help="Size of a dynamic dimension, by its name or as INPUT[AXIS]; repeatable.",
)
@data_options
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="New processes per file.")
@click.option(
    "--min-runs", type=click.IntRange(min=1), default=20, show_default=True, help="Minimum inferences per process."
)
@click.option(
    "--min-seconds", type=click.FloatRange(min=0, min_open=True), default=0.2, show_default=True,
    help="Minimum seconds of inferences per process.",
)  # fmt: skip
@click.option(
    "--profile", "profiles", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
    help="Profile one more run of each file: times by operator, and a trace in DIR that opens in Perfetto.",
)  # fmt: skip
@click.option(
    "--blame", is_flag=True,
    help="Reduce options that crash to a minimal set, and add it to the deny list.",
)  # fmt: skip
@run_conditions
@perf_test_option
@json_option
@click.pass_context
def perf(
    ctx: click.Context,
    /,
    files: tuple[Path, ...],
    device: str,
    library: str | None,
    dimensions: dict[str, int],
    test_data: str | None,
    input_values: dict[str, Any],
    rounds: int,
    min_runs: int,
    min_seconds: float,
    profiles: Path | None,
    blame: bool,
    perf_test: str | None,
    json_to: str | None,
    **answers: Any,
) -> None:
    """Measure .ort or .onnx files on a device, with random inputs by default, and compare them with the first.

    Nothing is converted or stored: `ort-mobile run` does that. Each round measures every file once in a new
    process, so that heat and noise affect all of them equally.
    """
    import msgspec

    from pipeline.cli.show import show_denied
    from pipeline.config import MeasureConfig
    from pipeline.job.perf import PerfOrder, exit_code, measure_files
    from pipeline.report import terminal
    from pipeline.report.console import open_console
    from pipeline.report.profile import show_profiles

    order = PerfOrder(
        files=files,
        options=options_of(answers),
        device=device,
        library=library,
        dimensions=dimensions,
        data=dataset_from(test_data, input_values),
        measure=MeasureConfig(rounds=rounds, min_runs=min_runs, min_seconds=min_seconds, perf_test=perf_test),
        conditions=conditions_of(answers),
        profiles=profiles,
        blame=blame,
    )
    measured = measure_files(order, progress())
    if profiles:
        write_result(msgspec.json.encode(measured.profiled), str(profiles / "profiles.json"))
    if json_to:
        write_json(measured.report, json_to)
    if shows_text(json_to):
        console = open_console()
        terminal.show(measured.report, console)
        show_profiles(measured.profiled, console)
    show_denied(measured.denied)
    ctx.exit(exit_code(measured.report))
