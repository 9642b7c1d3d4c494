"""`ort-mobile export` and `ort-mobile collect`: measure on phones that no cable reaches."""

from pathlib import Path
from typing import Any, NoReturn

import click

from pipeline.cli import command as cli_command
from pipeline.cli import options as cli_options
from pipeline.cli import outputs as cli_outputs
from pipeline.cli.outputs import Outputs
from pipeline.features.away.runner_kinds import TITLES, Runner


@click.command(
    cls=cli_command.Command,
    examples=(
        "ort-mobile export my.toml",
        "ort-mobile export my.toml --abi arm64-v8a --library android:1.29.0 --to package",
        "ort-mobile export my.toml --rest --to rest",
        "ort-mobile export my.toml --confirm --device farm:pixel9 --to confirm",
    ),
)
@click.argument("config", type=click.Path(path_type=Path))
@click.option(
    "--for",
    "runner",
    type=click.Choice([kind.value for kind in Runner]),
    default=Runner.SHELL.value,
    show_default=True,
    help=f"What runs the package: {'; '.join(TITLES.values())}.",
)
@click.option(
    "--to",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the package.  [default: in the output folder]",
)
@cli_options.output_option
@click.option("--platform", type=click.Choice(["android", "ios", "linux"]), help="[default: that of the first target]")
@click.option("--abi", default="", metavar="ABI", help="arm64-v8a, x86_64, …  [default: the target's first]")
@cli_options.library_option
@click.option("--rest", is_flag=True, help="Only turns that are not stored yet of a device that was collected.")
@click.option(
    "--confirm",
    is_flag=True,
    help="Only fresh rounds of what was chosen by collected devices: they choose nothing.",
)
@click.option("--device", "devices", multiple=True, metavar="NAME", help="With --rest or --confirm: of this one alone.")
@cli_outputs.json_option
def export(
    config: Path,
    runner: str,
    folder: Path | None,
    output: Path | None,
    platform: str | None,
    abi: str,
    library: str | None,
    rest: bool,
    confirm: bool,
    devices: tuple[str, ...],
    outputs: Outputs,
) -> None:
    """Make a package of CONFIG's campaign that runs where no cable reaches: a farm's phone, a colleague's, a board.

    A package is a folder with the probe, the library, model files and one request for each run. `sh run.sh` there runs
    all in alternating rounds, waits itself until the device is fit, and may be killed and started again. For iPhones
    it is an app. Bring its folder `session` home and collect it. Equal configs give packages of equal bytes.
    """
    from pipeline import config as configs
    from pipeline.features.away import runners
    from pipeline.features.away.package import ExportOrder
    from pipeline.features.away.package import export as make_package

    if devices and not (rest or confirm):
        raise click.UsageError("--device is for --rest and --confirm: a package does not know its device")
    order = ExportOrder(
        output=output,
        folder=folder,
        platform=platform or "",
        abi=abi,
        library=library,
        runner=Runner(runner),
        rest=rest,
        confirm=confirm,
        devices=devices,
    )
    made = make_package(configs.read_config(config, existing=True), order, cli_options.progress())
    size = f"{made.files} files of {made.bytes / 1e6:.1f} MB"
    lines = [
        f"{made.folder}: {made.turns} turns for {made.platform} on {made.abi}, {size}, package {made.package[:12]}",
        *dict.fromkeys(f"not in it: {run.text}" for run in made.skipped),
        f"run it:  {runners.command_of(order.runner, configs.Platform(made.platform), made.folder)}",
        f"then:    ort-mobile collect {runners.session_of(order.runner, configs.Platform(made.platform), made.folder)}",
    ]
    outputs.show_lines(made, lines)


@click.command(
    cls=cli_command.Command,
    examples=(
        "ort-mobile collect session",
        "ort-mobile collect first.zip second.zip",
        "ort-mobile collect session --name farm:pixel9",
    ),
)
@click.argument("sessions", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="SESSION...")
@cli_options.output_option
@click.option(
    "--name", default="", metavar="farm:NAME", help="What the device is called, so that later sessions of it join."
)
@click.option("--no-proof", is_flag=True, help="Do not run the bundle in the libraries that ship.")
@cli_outputs.json_option
@click.pass_context
def collect(
    ctx: click.Context,
    /,
    sessions: tuple[Path, ...],
    output: Path | None,
    name: str,
    no_proof: bool,
    outputs: Outputs,
) -> NoReturn:
    """Bring the results of packages home: compare outputs, store each run once, choose and report.

    SESSION is the folder `session` of a package, a folder or a ZIP archive with one or several of them. Each is a
    device of its own. What was stored stays: a session that was cut is completed by the next.
    """
    from pipeline.cli import run as cli_run
    from pipeline.features.away.collect import CollectOrder
    from pipeline.features.away.collect import collect as collect_sessions

    order = CollectOrder(sessions=sessions, output=output, name=name, prove=not no_proof)
    collected, assembled = collect_sessions(order, cli_options.progress())
    document: dict[str, Any] = {"version": 1, "collected": collected, **cli_run.job_document(assembled)}
    if outputs.text:
        for session in collected:
            counts = f"{session.new} runs are new, {session.known} were known, {session.failed} failed"
            click.echo(f"{session.device}: {counts}, {session.left} are left")
    outputs.write_json(document)
    cli_run.show_job(assembled, outputs)
    ctx.exit(assembled.exit_code)
