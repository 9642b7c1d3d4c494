"""`ort-mobile devices`: the devices that can run models and whether each is ready."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from pipeline.cli.command import Command
from pipeline.cli.outputs import Outputs, json_option, write_result

if TYPE_CHECKING:
    from device_runner.adb.link import NoServer
    from device_runner.device import DeviceFacts


@click.command(cls=Command)
@click.argument("selector", default="*")
@json_option
@click.option(
    "--profile",
    "profile_to",
    metavar="FILE",
    help="Ask NNAPI of the one device that SELECTOR matches which operations its drivers support, and write them as a"
    " driver profile for `android-host:LIBRARY?driver=FILE`.",
)
@click.pass_context
def devices(ctx: click.Context, selector: str, outputs: Outputs, profile_to: str | None) -> None:
    """List this computer and the devices of the adb server, or those that SELECTOR matches.

    SELECTOR is a glob of serials, or conditions such as `model=Pixel*,abi=arm64-v8a,api=29-33`; a config takes the
    same after `adb:`. The exit code is 3 when no matching device is ready.
    """
    from device_runner.device import Readiness, open_device

    connected, no_server = _connected(selector)
    matching = _matching(connected, selector)
    here = [open_device("local").facts()] if selector == "*" else []
    outputs.write_json({"devices": [*here, *matching]})
    shown = Outputs("-" if profile_to == "-" else outputs.json_to)
    if shown.text and (here or matching):
        from pipeline.report.show import show
        from pipeline.report.terminal import device_listing

        show([device_listing([*here, *matching])])
    if not matching:
        _explain_none(selector, connected, no_server)
    ready = [facts for facts in (*here, *matching) if facts.readiness is Readiness.READY]
    if matching and not ready:
        shown.show_errors(f"{facts.name}: {facts.advice or facts.readiness.value}" for facts in matching)
    if profile_to:
        _write_profile([facts for facts in ready if facts not in here], profile_to)
    ctx.exit(0 if ready else 3)


def _connected(selector: str) -> "tuple[list[DeviceFacts], NoServer | None]":
    """Every device of the adb server that SELECTOR names; none, and why, where there is no server."""
    from device_runner.adb.device import list_devices
    from device_runner.adb.link import NoServer
    from device_runner.device import split_server

    address = split_server(selector)[1]
    try:
        return list_devices(f"*@{address}" if address else "*"), None
    except NoServer as error:
        return [], error


def _matching(connected: "Sequence[DeviceFacts]", selector: str) -> "list[DeviceFacts]":
    """Those that SELECTOR matches; raises SpecError for one that makes no sense."""
    from device_runner.device import parse_selector, split_server

    matches = parse_selector(split_server(selector)[0])
    return [facts for facts in connected if matches(facts)]


CONNECT = (
    "connect a phone by USB, turn on USB debugging in its developer options and accept the dialog on its screen;"
    " over Wi-Fi: `adb connect HOST:PORT`"
)


def _explain_none(selector: str, connected: "Sequence[DeviceFacts]", no_server: "NoServer | None") -> None:
    """Why no phone is listed, and what helps; on stderr."""
    from device_runner.files import visible

    if connected:
        names = "; ".join(f"{facts.name} {facts.model}".strip() for facts in connected)
        what, why, remedy = f"no device matches {selector!r}", f"connected: {names}", "correct the selector"
    elif no_server:
        what, why, remedy = no_server.what, f"{no_server.where}: {no_server.why}", f"{no_server.remedy}; then {CONNECT}"
    else:
        what, why, remedy = "no phone is connected", "the adb server knows no device", CONNECT
    for label, text in (("adb", what), ("why", why), ("remedy", remedy)):
        click.echo(visible(f"{label:<8} {text}"), err=True)


def _write_profile(ready: "Sequence[DeviceFacts]", profile_to: str) -> None:
    """The driver profile of the one device, to a file; raises ConfigError for none or several, MissingError."""
    import msgspec

    from device_runner.adb.device import open_adb
    from device_runner.android_host.inspection import inspect_phone
    from pipeline.core.errors import ConfigError, MissingError

    if not ready:
        raise MissingError("no phone is ready to be profiled", remedy="see `ort-mobile devices`")
    if len(ready) > 1:
        raise ConfigError(
            "--profile is about one phone",
            why=f"{', '.join(facts.name for facts in ready)} are ready",
            remedy="give its serial, as in `ort-mobile devices SERIAL --profile npu.json`",
        )
    with open_adb(ready[0].name.partition(":")[2]) as phone:
        profile = inspect_phone(phone)
    write_result(msgspec.json.encode(profile), profile_to)
    names = ", ".join(driver.name for driver in profile.devices) or "no device: NNAPI names them from API 29 on"
    click.echo(f"{profile_to}: {names}", err=True)
