"""`ort-mobile devices`, those that can run models; `ort-mobile library`, ONNX Runtime's libraries by name."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from device_runner import safe_text
from pipeline.cli.command import Command, Group
from pipeline.cli.outputs import Outputs, json_option, quiet, write_result

if TYPE_CHECKING:
    from device_runner.device import DeviceFacts


@click.command(
    cls=Command,
    examples=(
        "ort-mobile devices",
        "ort-mobile devices 'model=Pixel*,api=29-33'",
        "ort-mobile devices SERIAL --profile npu.json",
    ),
)
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
    from device_runner import device as runner_device
    from device_runner.adb import device as adb_device
    from device_runner.adb.link import NoServer

    asked, address = runner_device.split_server(selector)
    connected: list[DeviceFacts] = []
    no_server = None
    try:
        connected = adb_device.list_devices(f"*@{address}" if address else "*")
    except NoServer as error:
        no_server = error
    matches = runner_device.parse_selector(asked)  # raises SpecError for one that makes no sense
    matching = [facts for facts in connected if matches(facts)]
    local = [runner_device.open_device("local").facts()] if selector == "*" else []
    outputs.write_json({"devices": [*local, *matching]})
    shown = Outputs("-" if profile_to == "-" else outputs.json_to)
    if shown.text and (local or matching):
        from pipeline.report import device_list
        from pipeline.report import show as terminal

        terminal.show([device_list.device_listing([*local, *matching])])
    if not matching:
        if connected:
            names = "; ".join(f"{facts.name} {facts.model}".strip() for facts in connected)
            what, why, remedy = f"no device matches {selector!r}", f"connected: {names}", "correct the selector"
        elif no_server:
            what, why = no_server.what, f"{no_server.where}: {no_server.why}"
            remedy = f"{no_server.remedy}; then {CONNECT}"
        else:
            what, why, remedy = "no phone is connected", "the adb server knows no device", CONNECT
        for label, text in (("adb", what), ("why", why), ("remedy", remedy)):
            click.echo(safe_text.visible(f"{label:<8} {text}"), err=True)
    ready = [facts for facts in (*local, *matching) if facts.readiness is runner_device.Readiness.READY]
    if matching and not ready:
        shown.show_errors(f"{facts.name}: {facts.advice or facts.readiness.value}" for facts in matching)
    if profile_to:
        _write_profile([facts for facts in ready if facts not in local], profile_to)
    ctx.exit(0 if ready else 3)


CONNECT = (
    "connect a phone by USB, turn on USB debugging in its developer options and accept the dialog on its screen;"
    " over Wi-Fi: `adb connect HOST:PORT`"
)


def _write_profile(ready: "Sequence[DeviceFacts]", profile_to: str) -> None:
    """The driver profile of the one device, to a file; raises ConfigError for none or several, MissingError."""
    import msgspec

    from device_runner.adb import device as adb_device
    from device_runner.android_host import inspection
    from pipeline.core.errors import ConfigError, MissingError

    if not ready:
        raise MissingError("no phone is ready to be profiled", remedy="see `ort-mobile devices`")
    if len(ready) > 1:
        raise ConfigError(
            "--profile is about one phone",
            why=f"{', '.join(facts.name for facts in ready)} are ready",
            remedy="give its serial, as in `ort-mobile devices SERIAL --profile npu.json`",
        )
    with adb_device.open_adb(ready[0].name.partition(":")[2]) as phone:
        profile = inspection.inspect_phone(phone)
    write_result(msgspec.json.encode(profile), profile_to)
    names = ", ".join(driver.name for driver in profile.devices) or "no device: NNAPI names them from API 29 on"
    click.echo(f"{profile_to}: {names}", err=True)


@click.group(cls=Group)
def library() -> None:
    """Download and inspect libraries of ONNX Runtime (AAR, JAR, libonnxruntime.so).

    Names are android:RELEASE (the AAR for phones), jvm:RELEASE (the JAR for desktops) and wheel:RELEASE (Linux).
    """


@library.command("list", examples=("ort-mobile library list --json -",))
@json_option
def list_libraries(outputs: Outputs) -> None:
    """List libraries that are available on this computer, and those that can be downloaded."""
    from pipeline.library import fetch

    libraries = fetch.known_libraries()
    lines = (
        f"{library.name:<16} {library.abi:<9} {'available' if library.at_hand else 'download '}  {library.place}"
        + (f"  [{library.licence}]" if library.licence else "")
        for library in libraries
    )
    outputs.show_lines({"libraries": libraries}, lines)


@library.command("get", examples=("ort-mobile library get android:1.29.0",))
@click.argument("name")
@click.option("--abi", help="Unpack the library of this ABI (arm64-v8a, x86_64, ...) and print its path.")
@json_option
@click.option("--accept-licence", is_flag=True, help="Accept the licence of a package that is not MIT.")
def get(name: str, abi: str | None, accept_licence: bool, outputs: Outputs) -> None:
    """Download an ONNX Runtime library such as `android:1.29.0`, or find it in a local cache, and print its path.

    Searched in this order: what was fetched before, the caches of Gradle and Maven, Maven Central (by `mvn`, then by
    HTTPS; ORT_MOBILE_MAVEN names another repository), and for Android npm packages that carry the library unchanged.
    Files are compared with the sha256 of the release; a warning says so where ort-mobile does not know it.
    """
    from device_runner import library as ort_library
    from pipeline.library import fetch

    def say(line: str) -> None:
        if not quiet():
            click.echo(safe_text.visible(line), err=True)

    library = fetch.get_library(name, accept_licence=accept_licence, abi=abi or "", say=say)
    file = ort_library.resolve(library.file, abi).facts.path if abi else library.file
    document = {"file": file, "release": library.release, "sha256": library.sha256, "source": library.source}
    outputs.show_lines(document, [file])
    say(f"release {library.release}, sha256 {library.sha256}, from {library.source}, licence {library.licence}")


@library.command("show", examples=("ort-mobile library show app.aar",))
@click.argument("name")
@json_option
def show(name: str, outputs: Outputs) -> None:
    """Show release, ABIs, kind of build, providers and page size of NAME (a release, an AAR, a JAR, a .so).

    Of arm64-v8a also which extensions its code uses (dot product to SME2), and what it asks of the processor before.
    """
    from pipeline.core import abis as core_abis
    from pipeline.library import fetch

    contents = fetch.show_library(name)
    lines = [contents.archive]
    for facts in contents.libraries:
        pages = ", 16 KB pages" if facts.page_bytes >= 16384 else f", {facts.page_bytes}-byte pages only"
        release = f"{facts.system} {facts.release or 'of unknown release'}"
        commit = f" (commit {facts.commit})" if facts.commit else ""
        kind = f"{facts.kind} build, {facts.size_bytes:,} bytes{pages if facts.system == 'android' else ''}"
        lines.append(f"  {facts.abi:<12} {release}{commit}, {kind}")
        lines.append(f"  {'':<12} providers {', '.join(facts.providers)}")
        lines.append(f"  {'':<12} sha256 {facts.sha256}")
        for code in contents.arm_code if facts.abi == core_abis.ARM64 else ():
            rows = [
                f"{extension.extension} {extension.functions} ({extension.instructions:,})"
                for extension in code.extensions
            ]
            lines.append(f"  {'':<12} functions (instructions) of extensions: {', '.join(rows) or 'none'}")
            queries = [f"{query.source} {' '.join(query.bits)}".strip() for query in code.queries]
            lines.append(f"  {'':<12} asks of the processor: {'; '.join(queries) or 'nothing'}")
    if contents.unknown_imports:
        lines.append(f"  android-host cannot run it: it imports {', '.join(contents.unknown_imports)}")
    outputs.show_lines(contents, lines)


@library.command("diff", examples=("ort-mobile library diff android:1.26.0 android:1.29.0",))
@click.argument("old")
@click.argument("new")
@click.option(
    "--abi", default="arm64-v8a", show_default=True, metavar="ABI", help="The ABI whose libraries are compared."
)
@json_option
def diff(old: str, new: str, abi: str, outputs: Outputs) -> None:
    """Show what differs between libraries OLD and NEW: releases, AARs or .so files.

    Providers, session config keys, functions, sizes and telemetry are read from the files. Operators and versions are
    asked of both, a session for each: by the libraries for x86_64 of the same packages, which run on this computer.
    """
    from device_runner import library as ort_library
    from device_runner.errors import UnavailableError
    from pipeline.core import abis as core_abis
    from pipeline.core import groups as counting
    from pipeline.library import difference as library_difference
    from pipeline.report import wording

    asked_abi = core_abis.read_abi(abi, "--abi")
    both = [
        next((library for library in ort_library.resolve_all(text) if library.abi == asked_abi), None)
        for text in (old, new)
    ]
    pair = [library or ort_library.resolve(text, asked_abi) for library, text in zip(both, (old, new), strict=True)]
    runs = None
    try:
        runs = ort_library.resolve(old, core_abis.X86_64), ort_library.resolve(new, core_abis.X86_64)
        _ = [library.facts for library in runs]
    except UnavailableError:
        runs = None
    difference = library_difference.compare_libraries(pair[0], pair[1], runs)
    names = [
        f"{library.system} {library.release or 'of unknown release'}, {library.abi}"
        for library in (difference.old, difference.new)
    ]
    parts: list[wording.Part] = [wording.Line((f"{names[0]} -> {names[1]}", "bold"))]
    if difference.changes:
        by_part = counting.grouped((change.part, change) for change in difference.changes)
        values = [rows[0] for rows in by_part.values() if not rows[0].name]
        tables = {"": values, **{part: rows for part, rows in by_part.items() if rows[0].name}}
        for part, rows in tables.items():
            if rows:
                cells = tuple((row.name or row.part, row.old or "-", row.new or "-") for row in rows)
                parts.append(wording.Listing(title=part.capitalize() or "Values", head=("", "Old", "New"), rows=cells))
        line = f"{difference.operators_asked} operators and versions were asked of both"
        not_asked = f"operators were not asked for: {difference.why_not_asked}"
        parts.append(wording.Line(line if difference.operators_asked else not_asked))
    else:
        parts.append(wording.Line("no difference in what is compared"))
    outputs.finish(difference, parts)
