"""`ort-mobile build-probe`: the probe for this computer, for Linux, or for Android."""

import shutil
from pathlib import Path

import click

from pipeline.cli.command import Command
from pipeline.cli.options import json_option, shows_text, write_json


@click.command(cls=Command)
@click.argument("targets", nargs=-1, metavar="[TARGET]...")
@click.option("--api-level", type=click.IntRange(21, 99), default=27, show_default=True, help="Android API level.")
@json_option
@click.option("--output", type=click.Path(path_type=Path), help="Folder to copy the programs to, as probe-TARGET.")
def build_probe(targets: tuple[str, ...], api_level: int, output: Path | None, json_to: str | None) -> None:
    """Build the probe, the program that measures, for each TARGET.

    TARGET is host (default), an Android ABI (arm64-v8a, x86_64, ...), or linux-aarch64.

    Android builds use the NDK of ANDROID_NDK_HOME, or the package ziglang alone for 64-bit ABIs. Builds are
    cached.
    """
    from device_runner.probe.build import build_probe as build

    built = []
    for target in targets or ("host",):
        path = build(target, api_level=api_level)
        if output:
            output.mkdir(parents=True, exist_ok=True)
            path = Path(shutil.copy2(path, output / f"probe-{target}"))
        built.append({"target": target, "file": str(path), "size_bytes": path.stat().st_size})
    if json_to:
        write_json({"probes": built}, json_to)
    for probe in built if shows_text(json_to) else ():
        click.echo(f"{probe['target']:<14} {probe['size_bytes']:>7} bytes  {probe['file']}")
