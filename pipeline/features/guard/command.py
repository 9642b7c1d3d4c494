"""`ort-mobile bundle deny`: what apps that are out must no longer try."""

import os
from pathlib import Path

import click

from pipeline.cli import command as cli_command
from pipeline.cli import outputs as cli_outputs
from pipeline.cli.outputs import Outputs

FILE = click.Path(path_type=Path)


@click.command(
    cls=cli_command.Command,
    examples=("ort-mobile bundle deny output/my/bundle --key key.pem --serial 2 --output deny.list",),
)
@click.argument("bundle", type=FILE)
@click.option("--output", type=FILE, required=True, help="File to write the list to.")
@click.option("--key", type=FILE, required=True, help="Private key, PEM, whose public one the app was made with.")
@click.option(
    "--serial", type=click.IntRange(1), required=True, help="Number of the list: phones take higher ones only."
)
@click.option("--from", "source", type=FILE, help="Deny list.  [default: that of this computer]")
@click.option("--days", type=click.IntRange(1, 3650), default=365, show_default=True, help="How long it holds.")
@cli_outputs.json_option
def deny(bundle: Path, output: Path, key: Path, serial: int, source: Path | None, days: int, outputs: Outputs) -> None:
    """Write a signed list of session options that apps with BUNDLE must not try on some phones.

    It has what crashed on devices here, and apps take it with `Guard.deny`; it can forbid and nothing else. A
    passphrase of the key comes from the environment variable ORT_MOBILE_PASSPHRASE. Needs the extra `sign`.
    """
    from device_runner import options as runner_options
    from pipeline.campaign import denied as campaign_denied
    from pipeline.core import files as storage
    from pipeline.features.guard.deny import signed_list
    from pipeline.release import manifest as bundle_manifest

    manifest = bundle_manifest.verify_bundle(bundle)
    entries = runner_options.read_denied(source) if source else campaign_denied.known_denied()
    content = signed_list(manifest, entries, key, os.environ.get("ORT_MOBILE_PASSPHRASE"), serial=serial, days=days)
    storage.write_bytes(output, content)
    lines = content.decode().splitlines()[1:-1]
    shown = [f"denied  {' '.join(line.split(chr(9))[:2])}" for line in lines]
    document = {"list": str(output), "size_bytes": len(content), "denied": len(lines), "serial": serial}
    outputs.show_lines(document, [*shown, f"list    {output}: {len(content):,} bytes, number {serial}"])
