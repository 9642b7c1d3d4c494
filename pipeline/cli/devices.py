"""`ort-mobile devices`: what there is to run on, and whether each is ready."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from pipeline.cli.options import json_option, write_json

if TYPE_CHECKING:
    from device_runner.device import DeviceFacts


@click.command()
@click.argument("selector", default="*")
@json_option
@click.option(
    "--profile",
    "profile_to",
    metavar="FILE",
    help="Ask NNAPI of the one device that SELECTOR means which operations its drivers support, and write that as a"
    " driver profile, which `android-host:LIBRARY?driver=FILE` replays.",
)
@click.pass_context
def devices(ctx: click.Context, selector: str, json_to: str | None, profile_to: str | None) -> None:
    """List this computer and the devices of the adb server, those that SELECTOR means (all by default).

    SELECTOR is a glob of serials, or conditions such as `model=Pixel*,abi=arm64-v8a,api=29-33`, which also stand
    behind `adb:` in a config. The exit code is 3 when a selector finds no device that is ready.
    """
    from device_runner.adb.device import list_devices
    from device_runner.adb.link import NoServer
    from device_runner.device import Readiness, open_device

    no_server = None
    try:
        found = list_devices(selector)
    except NoServer as error:
        found, no_server = [], error
    here = [open_device("local").facts()] if selector == "*" else []
    if json_to:
        write_json([*here, *found], json_to)
    if "-" not in (json_to, profile_to):
        from pipeline.report.devices import show_devices

        show_devices([*here, *found])
    if no_server:
        click.echo(f"adb      {no_server.what} at {no_server.where} ({no_server.why}); {no_server.remedy}", err=True)
    ready = [facts for facts in (*here, *found) if facts.readiness is Readiness.READY]
    if profile_to:
        _write_profile([facts for facts in ready if facts not in here], profile_to)
    ctx.exit(0 if ready else 3)


def _write_profile(ready: "Sequence[DeviceFacts]", profile_to: str) -> None:
    """The driver profile of the one device, to a file; raises ConfigError for none or several, MissingError."""
    from device_runner.adb.device import open_adb
    from device_runner.android_host.inspection import inspect_phone
    from pipeline.errors import ConfigError, MissingError

    if not ready:
        raise MissingError("no phone to make a profile of is ready", remedy="`ort-mobile devices` says what each needs")
    if len(ready) > 1:
        raise ConfigError(
            "--profile is about one phone",
            why=f"{', '.join(facts.name for facts in ready)} are ready",
            remedy="give its serial, as in `ort-mobile devices SERIAL --profile npu.json`",
        )
    with open_adb(ready[0].name.partition(":")[2]) as phone:
        profile = inspect_phone(phone)
    write_json(profile, profile_to)
    names = ", ".join(driver.name for driver in profile.devices) or "no device: NNAPI names them from API 29 on"
    click.echo(f"{profile_to}: {names}", err=True)
