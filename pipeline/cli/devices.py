"""`ort-mobile devices`: what there is to run on, and whether each is ready."""

import click

from pipeline.cli.options import json_option, write_json


@click.command()
@click.argument("selector", default="*")
@json_option
@click.pass_context
def devices(ctx: click.Context, selector: str, json_to: str | None) -> None:
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
    if json_to != "-":
        from pipeline.report.devices import show_devices

        show_devices([*here, *found])
    if no_server:
        click.echo(f"adb      {no_server.what} at {no_server.where} ({no_server.why}); {no_server.remedy}", err=True)
    ready = any(facts.readiness is Readiness.READY for facts in (*here, *found))
    ctx.exit(0 if ready else 3)
