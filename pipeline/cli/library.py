"""`ort-mobile library`: libraries of ONNX Runtime by name: list, download and inspect them."""

from typing import TYPE_CHECKING

import click

from pipeline.cli.command import Group
from pipeline.cli.outputs import Outputs, json_option, quiet

if TYPE_CHECKING:
    from pipeline.library.fetch import Contents


@click.group(cls=Group)
def library() -> None:
    """Download and inspect libraries of ONNX Runtime (AAR, JAR, libonnxruntime.so).

    Names are android:RELEASE (the AAR for phones), jvm:RELEASE (the JAR for desktops) and wheel:RELEASE (Linux).
    """


@library.command("list")
@json_option
def list_libraries(outputs: Outputs) -> None:
    """List libraries that are available on this computer, and those that can be downloaded."""
    from pipeline.library.fetch import known_libraries

    known = known_libraries()
    outputs.write_json({"libraries": known})
    for item in known if outputs.text else ():
        state = "available" if item.at_hand else "download "
        licence = f"  [{item.licence}]" if item.licence else ""
        click.echo(f"{item.name:<16} {item.abi:<9} {state}  {item.place}{licence}")


@library.command("get")
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
    from device_runner.library import resolve
    from device_runner.reading import visible
    from pipeline.library.fetch import get_library

    def say(line: str) -> None:
        if not quiet():
            click.echo(visible(line), err=True)

    entry = get_library(name, accept_licence=accept_licence, abi=abi or "", say=say)
    file = resolve(entry.file, abi).facts.path if abi else entry.file
    outputs.write_json({"file": file, "release": entry.release, "sha256": entry.sha256, "source": entry.source})
    if outputs.text:
        click.echo(file)
    say(f"release {entry.release}, sha256 {entry.sha256}, from {entry.source}, licence {entry.licence}")


@library.command("show")
@click.argument("name")
@json_option
def show(name: str, outputs: Outputs) -> None:
    """Show release, ABIs, kind of build, providers and page size of NAME (a release, an AAR, a JAR, a .so)."""
    from pipeline.library.fetch import show_library

    contents = show_library(name)
    outputs.write_json(contents)
    if outputs.text:
        _show(contents)


def _show(contents: "Contents") -> None:
    from device_runner.reading import visible

    click.echo(visible(contents.archive))
    for facts in contents.libraries:
        pages = ", 16 KB pages" if facts.page_bytes >= 16384 else f", {facts.page_bytes}-byte pages only"
        pages = pages if facts.system == "android" else ""
        release = f"{facts.system} {facts.release or 'of unknown release'}"
        commit = f" (commit {facts.commit})" if facts.commit else ""
        kind = f"{facts.kind} build, {facts.size_bytes:,} bytes{pages}"
        click.echo(visible(f"  {facts.abi:<12} {release}{commit}, {kind}"))
        click.echo(visible(f"  {'':<12} providers {', '.join(facts.providers)}"))
        click.echo(f"  {'':<12} sha256 {facts.sha256}")
    if contents.unknown_imports:
        click.echo(visible(f"  android-host cannot run it: it imports {', '.join(contents.unknown_imports)}"))
