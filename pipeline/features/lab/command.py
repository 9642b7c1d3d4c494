"""`ort-mobile lab`: campaigns on the hosts of a lab."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import click

from device_runner import safe_text
from pipeline.cli import command as cli_command
from pipeline.cli import options as cli_options
from pipeline.cli import outputs as cli_outputs
from pipeline.cli.outputs import Outputs
from pipeline.core import groups as counting

database_option = click.option(
    "--database",
    metavar="URL",
    envvar="ORT_MOBILE_DATABASE",
    help="PostgreSQL of the lab: postgresql://USER@HOST/DATABASE?sslmode=verify-full.  [env: ORT_MOBILE_DATABASE]",
)


priority_option = click.option(
    "--priority",
    type=click.IntRange(-1, 2),
    default=0,
    show_default=True,
    help="-1 when nothing else waits, 0, 1 before others, 2 before everything (the database's owner alone).",
)


@click.group(cls=cli_command.Group)
def lab() -> None:
    """Run campaigns on many hosts, with PostgreSQL as queue, lease of devices and store.

    Each host runs `lab work`; a campaign that was submitted needs the submitting computer no more.
    """


def _database(given: str | None, *, sqlite: bool = False) -> str:
    """The lab's database; SQLite is refused before a file of it would be made."""
    from pipeline.core.errors import ConfigError

    if not given:
        raise ConfigError(
            "no database is named",
            where="--database",
            why="a lab's queue is in its database",
            remedy="pass --database postgresql://USER@HOST/DATABASE, or set ORT_MOBILE_DATABASE",
        )
    if given.startswith("sqlite:") and not sqlite:
        raise ConfigError(
            "a lab needs PostgreSQL",
            where=given,
            why="its functions decide who may change what, and SQLite has none",
            remedy="pass --database postgresql://USER@HOST/DATABASE; "
            "`ort-mobile report` and `lab serve` read the results of `ort-mobile run`",
        )
    return given


@lab.command(
    "submit",
    examples=(
        "ort-mobile lab submit my.toml",
        "ort-mobile lab submit my.toml --priority 1",
    ),
)
@click.argument("config", type=click.Path(path_type=Path))
@database_option
@cli_options.devices_option
@cli_options.output_option
@priority_option
@click.option(
    "--notify",
    metavar="URL",
    default="",
    envvar="ORT_MOBILE_LAB_NOTIFY",
    help="Address (http or https) that a host of the lab sends a JSON document to when the campaign has ended.  "
    "[env: ORT_MOBILE_LAB_NOTIFY]",
)
@cli_outputs.json_option
def submit_command(
    config: Path,
    database: str | None,
    devices: tuple[str, ...],
    output: Path | None,
    priority: int,
    notify: str,
    outputs: Outputs,
) -> None:
    """Convert and check the models of CONFIG here, and put the campaign into the queue of a lab."""
    import msgspec

    from pipeline import config as configs
    from pipeline.features.lab.campaigns import submit
    from pipeline.job import run as job_run

    settings = configs.read_config(config, existing=True)
    if database:
        output_table = msgspec.structs.replace(settings.output, database=database)
        settings = msgspec.structs.replace(settings, output=output_table)
    _check_address(notify)
    job = job_run.JobOptions(output=output, devices=devices)
    done = submit(settings, job, cli_options.progress(), priority=priority, notify=notify)
    lines = (
        (
            f"{done['campaign']}: submitted for {counting.counted(len(done['devices']), 'device')}, at most "
            f"{done['runs']} runs"
        ),
        f"files: {done['files']}, {done['bytes']:,} bytes; this computer may be switched off",
    )
    outputs.show_lines(done, lines)


def _check_address(address: str) -> None:
    """Refuse what is no http or https address, before anything is converted."""
    import re

    from pipeline.core.errors import ConfigError
    from pipeline.features.lab.hooks import is_web_address

    if address and not (re.fullmatch(r"[!-~]{1,2000}", address) and is_web_address(address)):
        raise ConfigError(
            "this is no address to be told",
            where="--notify",
            why="it begins with http:// or https://, has no spaces, and at most 2,000 characters of ASCII",
            remedy="pass one as https://chat.example/hooks/…",
        )


@lab.command("work", examples=("ort-mobile lab work --device 'adb:*' --device local",))
@database_option
@click.option(
    "--device",
    "devices",
    multiple=True,
    default=("adb:*",),
    show_default=True,
    help="Devices of this host to work on: adb:*, adb:SERIAL, local, android-host:LIBRARY; repeatable.",
)
@click.option("--once", is_flag=True, help="End when nothing is left to do for the devices of this host.")
@click.option(
    "--hooks",
    "hooks_file",
    type=click.Path(path_type=Path),
    envvar="ORT_MOBILE_LAB_HOOKS",
    help="TOML with what to call before a device is taken and after it is given back.  [env: ORT_MOBILE_LAB_HOOKS]",
)
def work_command(database: str | None, devices: tuple[str, ...], once: bool, hooks_file: Path | None) -> None:
    """Measure what is submitted on the devices of this host, until it is stopped.

    On SIGTERM or Ctrl-C each device finishes its run; what is left is taken up again by this host or another. A second
    Ctrl-C ends the runs, too.
    """
    import threading

    from device_runner import local as local_device
    from pipeline.core import errors as core_errors
    from pipeline.features.lab.agent import work
    from pipeline.features.lab.hooks import read_hooks

    called = read_hooks(hooks_file) if hooks_file else None
    stop = threading.Event()

    def stopped(number: int, _frame: object) -> None:
        if number == signal.SIGINT and stop.is_set():
            local_device.end_runs()
            os._exit(core_errors.ExitCode.INTERRUPTED)  # as a kill: what is stored stays, and devices are taken again
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stopped)
    say = (lambda _line: None) if cli_outputs.quiet() else (lambda line: click.echo(safe_text.visible(line), err=True))
    work(_database(database), devices, stop, once=once, say=say, called=called)


@lab.command("status", examples=("ort-mobile lab status --json -",))
@click.argument("campaign", required=False)
@database_option
@cli_outputs.json_option
def status_command(campaign: str | None, database: str | None, outputs: Outputs) -> None:
    """Show the hosts of a lab, their devices, and what is left of submitted campaigns, or of one CAMPAIGN."""
    from pipeline.features.lab.status import lab_status, status_lines

    state = lab_status(_database(database), campaign)
    outputs.show_lines(state, status_lines(state))


@lab.command("wait", examples=("ort-mobile lab wait my --timeout 3600",))
@click.argument("campaigns", nargs=-1, required=True)
@database_option
@click.option(
    "--timeout", metavar="SECONDS", type=click.FloatRange(0), help="Wait so long at most; then exit with 124."
)
@cli_outputs.json_option
@click.pass_context
def wait_command(
    ctx: click.Context, /, campaigns: tuple[str, ...], database: str | None, timeout: float | None, outputs: Outputs
) -> None:
    """Wait until CAMPAIGNS (ids or names) have ended. Ctrl-C ends the waiting, and no campaign.

    Exits with 0 where every device of all of them is done, 1 where one failed or was cancelled, 124 where --timeout was
    over before.
    """
    import threading

    from pipeline.features.lab.waiting import ended_lines, exit_code_of, wait_for

    def say(line: str) -> None:
        if not cli_outputs.quiet():
            click.echo(safe_text.visible(line), err=True)

    try:
        ends = wait_for(_database(database), campaigns, timeout, threading.Event(), say)
    except KeyboardInterrupt:
        say("the waiting ends; the campaigns go on (`ort-mobile lab cancel` gives one up)")
        raise
    outputs.show_lines({"campaigns": ends}, ended_lines(ends))
    ctx.exit(exit_code_of(ends))


@lab.command("history", examples=("ort-mobile lab history adb:SERIAL",))
@click.argument("device")
@database_option
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="Campaigns, the newest.")
@cli_outputs.json_option
def history_command(device: str, database: str | None, limit: int, outputs: Outputs) -> None:
    """Show what was run on DEVICE, campaign by campaign: when, how it went, in which state it was, and how fast.

    Reads results of `ort-mobile run`, too: --database sqlite:///output/my/results.sqlite.
    """
    from pipeline.features.lab.history import device_history, history_lines

    history = device_history(_database(database, sqlite=True), device, limit)
    outputs.show_lines(history, history_lines(history))


@lab.command(
    "priority", context_settings={"ignore_unknown_options": True}, examples=("ort-mobile lab priority my 1",)
)  # -1 is no option
@click.argument("campaign")
@click.argument("priority", type=click.IntRange(-1, 2))
@database_option
def priority_command(campaign: str, priority: int, database: str | None) -> None:
    """Give what is left of CAMPAIGN (its id or name) another PRIORITY, -1 to 2, as of `lab submit`.

    The login that submitted it may, and the owner of the database.
    """
    from pipeline.campaign import store as campaign_store
    from pipeline.features.lab.campaigns import found_campaign
    from pipeline.features.lab.queue import prefer

    with campaign_store.open_store(_database(database)) as store:
        record = found_campaign(store, campaign)
        count = prefer(store, record.id, priority)
        done = f"priority {priority} on {counting.counted(count, 'device')}"
        click.echo(safe_text.visible(f"{record.id}: {done if count else 'nothing is left to do'}"))


@lab.command("cancel", examples=("ort-mobile lab cancel my",))
@click.argument("campaign")
@database_option
def cancel_command(campaign: str, database: str | None) -> None:
    """Give up what is left of CAMPAIGN (its id or name); what was measured stays, and `lab close` reports it."""
    from pipeline.campaign import store as campaign_store
    from pipeline.features.lab.campaigns import found_campaign
    from pipeline.features.lab.queue import cancel_jobs

    with campaign_store.open_store(_database(database)) as store:
        record = found_campaign(store, campaign)
        count = cancel_jobs(store, record.id)
        done = f"{counting.counted(count, 'device')} cancelled; each stops after the run that it is in"
        click.echo(safe_text.visible(f"{record.id}: {done if count else 'nothing was left to cancel'}"))


@lab.command(
    "golden",
    examples=(
        "ort-mobile lab golden build_configs/lab/golden.toml",
        "ort-mobile lab golden --off",
    ),
)
@click.argument("config", type=click.Path(path_type=Path), required=False)
@click.option("--off", is_flag=True, help="Check devices with nothing from now on.")
@database_option
@cli_options.output_option
def golden_command(config: Path | None, off: bool, database: str | None, output: Path | None) -> None:
    """Check the devices of a lab with the model of CONFIG, before and after each batch of runs.

    A device that drifts, fails or gives other outputs is quarantined: build_configs/lab/golden.toml has a small model.
    For who has the role ort_mobile_operator, or owns the database.
    """
    from pipeline import config as configs
    from pipeline.campaign import store as campaign_store
    from pipeline.core.errors import ConfigError
    from pipeline.features.lab.campaigns import store_golden
    from pipeline.features.lab.checks import set_golden
    from pipeline.job import run as job_run

    if off == bool(config):
        raise ConfigError(
            "name the config of a golden model, or --off",
            where="lab golden",
            why="it is one of both",
            remedy="ort-mobile lab golden build_configs/lab/golden.toml",
        )
    url, settings = _database(database), config and configs.read_config(config, existing=True)
    with campaign_store.open_store(url) as store:
        if settings:
            campaign = store_golden(store, url, settings, job_run.JobOptions(output=output), cli_options.progress())
            click.echo(f"{campaign}: devices are checked with it")
        else:
            set_golden(store, "")
            click.echo("devices are checked with nothing")


@lab.command("release", examples=("ort-mobile lab release adb:SERIAL --sound",))
@click.argument("device")
@click.option("--sound", is_flag=True, help="The device was sound: what it measured counts after all.")
@database_option
def release_command(device: str, sound: bool, database: str | None) -> None:
    """Give DEVICE, which is in quarantine, back to the lab.

    Without --sound its checks begin anew, as of a device that was repaired, and what it measured stays in doubt.
    """
    from pipeline.campaign import store as campaign_store
    from pipeline.features.lab.checks import release

    with campaign_store.open_store(_database(database)) as store:
        release(store, device, sound=sound)
        what = "what it measured counts" if sound else "what it measured since its last good check stays in doubt"
        click.echo(safe_text.visible(f"{device}: given back to the lab; {what}"))


@lab.command("close", examples=("ort-mobile lab close my --output output/my",))
@click.argument("campaign", required=False)
@database_option
@cli_options.output_option
@cli_outputs.json_option
@click.pass_context
def close_command(
    ctx: click.Context, /, campaign: str | None, database: str | None, output: Path | None, outputs: Outputs
) -> Any:
    """Choose, bundle and report what the lab measured of CAMPAIGN (by default the newest), on this computer.

    Without --output it writes to output/NAME here, whatever folder the submitted config names.
    """
    from pipeline.cli import run as cli_run
    from pipeline.features.lab.campaigns import close

    result = close(_database(database), campaign, output, cli_options.progress())
    outputs.write_json(cli_run.job_document(result))
    cli_run.show_job(result, outputs)
    sys.stdout.flush()
    ctx.exit(result.exit_code)


@lab.command(
    "serve",
    examples=(
        "ort-mobile lab serve --database sqlite:///output/my/results.sqlite",
        "ort-mobile lab serve --host 0.0.0.0 --token-file token",
    ),
)
@database_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; others need a token.")
@click.option("--port", type=click.IntRange(0, 65535), default=8700, show_default=True, help="0 finds a free one.")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    help="File with the token that readers must have.  [env: ORT_MOBILE_LAB_TOKEN has the token itself]",
)
def serve_command(database: str | None, host: str, port: int, token_file: Path | None) -> None:
    """Show campaigns, their progress and reports, and the lab as web pages and JSON; nothing can be changed there.

    Browsers ask for the token as a password (any user name); programs send it as `Authorization: Bearer TOKEN`.
    /openapi.json describes what is served. Ctrl-C ends it.
    """
    from pipeline.features.lab.serve import read_token, serve

    url, token = _database(database, sqlite=True), read_token(token_file)
    serve(url, host, port, token, lambda address: click.echo(f"serving {address} - Ctrl-C ends it"))
