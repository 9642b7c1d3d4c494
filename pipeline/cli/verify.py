"""`ort-mobile verify`: checks every byte of a bundle, offline."""

from pathlib import Path

import click

from pipeline.cli.command import Command
from pipeline.cli.options import json_option, shows_text, write_json


@click.command(cls=Command)
@click.argument("bundle", type=click.Path(path_type=Path))
@json_option
def verify(bundle: Path, json_to: str | None) -> None:
    """Check that BUNDLE is byte for byte as it was made; exit code 4 names what was changed, is missing or added."""
    from device_runner.text import visible
    from pipeline.release.verify import verify_bundle

    manifest = verify_bundle(bundle)
    if json_to:
        document = {"bundle": str(bundle), "files": len(manifest.files), "digest": manifest.content_sha256}
        write_json(document, json_to)
    if shows_text(json_to):
        click.echo(f"OK: {len(manifest.files)} files of {visible(str(bundle))} match the manifest")
        click.echo(f"digest {manifest.content_sha256}")
