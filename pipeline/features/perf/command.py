"""`ort-mobile perf`: measures model files as they are."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.cli import command as cli_command
from pipeline.cli import data_options, session_options
from pipeline.cli import options as cli_options
from pipeline.cli import outputs as cli_outputs
from pipeline.cli import run as cli_run
from pipeline.cli.outputs import Outputs

if TYPE_CHECKING:
    from device_runner import spec as run_spec
    from pipeline import config as configs
    from pipeline.cli import values as cli_values
    from pipeline.dataset import Dataset
    from pipeline.job import file_runs


def counts(_ctx: click.Context, _param: click.Parameter, text: str) -> tuple[int, ...]:
    """Whole numbers from 1 to 4096 with commas between."""
    parts = text.split(",") if text else []
    if not all(part.isdecimal() and 1 <= int(part) <= 4096 for part in parts):
        raise click.BadParameter(f"{text!r} is no list of whole numbers from 1 to 4096, as in 1,2,4,8")
    return tuple(map(int, parts))


def stream_of(steps: int | None, states: tuple[str, ...]) -> "run_spec.Stream | None":
    """The stream that is asked for; UsageError for states without steps, ConfigError for what is no state."""
    from device_runner import spec as run_spec
    from pipeline.features.perf import streams as perf_streams

    if states and not steps:
        raise click.UsageError("--state is for --stream N; add it")
    return run_spec.Stream(steps=steps, states=perf_streams.parse_states(states)) if steps else None


def require_possible(order: "file_runs.PerfOrder") -> None:
    """Say what is wrong with an order before anything runs: UsageError, ConfigError, ModelError."""
    from pipeline.features.perf import callers as perf_callers

    if order.least_memory and order.measure.perf_test:
        raise click.UsageError("--least-memory limits the probe's memory; leave out --perf-test")
    if order.concurrent:
        perf_callers.parse_concurrent(order.concurrent, order.files)
    for file in order.files if order.batches else ():
        perf_callers.open_batch(file)


@click.command(
    cls=cli_command.Command,
    examples=(
        "ort-mobile perf a.ort b.ort",
        "ort-mobile perf a.ort --threads 1,2 --rounds 7 --json numbers.json",
        "ort-mobile perf a.ort b.ort --concurrent 1,2,4:own",
        "ort-mobile perf a.ort --device adb:SERIAL --provider cpu,nnapi --nnapi-flags USE_FP16",
        "ort-mobile perf a.ort --device adb:SERIAL --mode steady,cold,sustained --sustained-seconds 600",
    ),
)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="MODEL...")
@click.option(
    "--device",
    default="local",
    show_default=True,
    help="local, adb:SERIAL, android-host:LIBRARY or linux-host:LIBRARY.",
)
@cli_options.wait_option
@cli_options.library_option
@session_options.run_settings
@data_options.dimension_option
@data_options.data_options
@click.option("--rounds", type=click.IntRange(1, 10_000), default=5, show_default=True, help="New processes per file.")
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
    "--timeout",
    "timeout_seconds",
    type=click.FloatRange(0, 86_400, min_open=True),
    default=300,
    show_default=True,
    help="Seconds after which a process has hung and is killed.",
)
@click.option("--quick", is_flag=True, help="Measure less: 3 rounds of some 5 inferences. For a first look.")
@cli_run.measure_options
@click.option(
    "--profile",
    "profiles",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Profile one more run of each file: times by operator, and a trace in DIR that opens in Perfetto.",
)
@click.option(
    "--blame",
    is_flag=True,
    help="Find the fewest options that crash a device, and skip them on such devices from now on (deny list).",
)
@click.option(
    "--concurrent",
    default="",
    metavar="N,…[:WORD]…",
    help="Throughput with N threads that call one session; :own gives each a session, :together calls the first file "
    "with the others beside it, :arena and :pool share memory and threads.",
)
@click.option(
    "--batch", "batches", callback=counts, metavar="N,…", default="", help="Throughput with these batch sizes."
)
@click.option(
    "--least-memory",
    is_flag=True,
    help="Find the least private memory that each file runs with (--fits-mb), by halving.",
)
@click.option("--stream", "steps", type=click.IntRange(1, 1_000_000), metavar="N", help="Run N steps with --state.")
@click.option(
    "--state",
    "states",
    multiple=True,
    metavar="OUTPUT=INPUT",
    help="This output of a step is that input of the next; repeatable.",
)
@click.option(
    "--original",
    type=click.Path(path_type=Path, dir_okay=False),
    help="ONNX model whose outputs after --stream must be the same.  [default: the first file]",
)
@cli_run.run_conditions
@cli_options.perf_test_option
@cli_options.custom_ops_option
@cli_options.plugin_option
@cli_outputs.fail_on_option(("memory",))
@cli_outputs.json_option
@click.pass_context
def perf(
    ctx: click.Context,
    /,
    files: tuple[Path, ...],
    device: str,
    device_wait_seconds: float,
    library: str | None,
    dimensions: dict[str, int],
    data: "Dataset",
    rounds: int,
    min_runs: int,
    min_seconds: float,
    timeout_seconds: float,
    quick: bool,
    profiles: Path | None,
    blame: bool,
    concurrent: str,
    batches: tuple[int, ...],
    least_memory: bool,
    steps: int | None,
    states: tuple[str, ...],
    original: Path | None,
    perf_test: str | None,
    plugins: dict[str, tuple[str, ...]],
    fail_on: tuple[cli_outputs.Condition, ...],
    options: "tuple[run_spec.RunOptions, ...]",
    measure: "cli_values.GivenKeys[configs.MeasureConfig]",
    conditions: "configs.ConditionsConfig | None",
    outputs: Outputs,
) -> None:
    """Measure .ort or .onnx files on a device, with random inputs by default, and compare them with the first.

    Nothing is converted or stored: `ort-mobile run` does that. Each round measures every file once in a new
    process, so that heat and noise affect all of them equally.
    """
    import msgspec

    from pipeline import config as configs
    from pipeline.features.perf import callers as perf_callers
    from pipeline.features.perf import job as perf_job
    from pipeline.features.perf import least_memory as memory_search
    from pipeline.features.perf import streams as perf_streams
    from pipeline.job import file_runs
    from pipeline.job import quick as job_quick
    from pipeline.report import formats, sections, wording
    from pipeline.report import profiles as report_profiles
    from pipeline.report import show as terminal

    settings = measure.over(configs.MeasureConfig(
        rounds=rounds, min_runs=min_runs, min_seconds=min_seconds, timeout_seconds=timeout_seconds,
        perf_test=perf_test, plugins=plugins,
    ))  # fmt: skip
    order = file_runs.PerfOrder(
        files=files,
        options=options,
        device=device,
        library=library,
        dimensions=dimensions,
        data=data,
        measure=job_quick.shorter(settings) if quick else settings,
        conditions=conditions,
        profiles=profiles,
        blame=blame,
        concurrent=concurrent,
        batches=batches,
        least_memory=least_memory,
        stream=stream_of(steps, states),
        original=original,
        wait_seconds=device_wait_seconds,
    )
    require_possible(order)
    measured = perf_job.measure_files(order, cli_options.progress())
    report, profiled = measured.report, measured.profiles
    if profiles:
        cli_outputs.write_result(msgspec.json.encode(profiled), str(profiles / "profiles.json"))
    failed = perf_job.failed_notes(measured.others, report)
    outputs.write_json(measured.document)
    if outputs.text:
        formats.show_report(report)
        terminal.show(report_profiles.profile_parts(profiled))
        terminal.show(
            [
                *perf_callers.callers_parts(measured.callers),
                *memory_search.least_memory_parts(measured.least_memory),
                *perf_streams.stream_parts(measured.streams),
                *wording.sections_of({"What failed": failed}),
            ]
        )
    if code := measured.exit_code:
        without = [
            f"no profile of {profile.name}, {profile.run}: {profile.failure}" for profile in profiled if profile.failure
        ]
        outputs.show_errors(
            [*sections.failed_lines(report), *(f"{note.title}: {note.text}" for note in failed), *without]
        )
    cli_run.show_denied(measured.denied)
    peaks = [(row.variant, row.memory_peak_bytes) for row in report.rows]
    peaks += [(" beside ".join((callers.file, *callers.beside)), callers.memory_bytes) for callers in measured.callers]
    ctx.exit(
        cli_outputs.end(
            fail_on,
            [cli_outputs.Watched(name, measures={"memory": peak / 1e6}) for name, peak in peaks if peak],
            code,
        )
    )
