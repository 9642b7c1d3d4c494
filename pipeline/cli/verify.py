"""`ort-mobile verify`: checks every byte of a bundle, offline."""

import re
from pathlib import Path

import click

from pipeline.cli.command import Command
from pipeline.cli.options import json_option, shows_text, write_json


def _digest(_ctx: click.Context, _parameter: click.Parameter, text: str) -> str:
    if text and not re.fullmatch(r"[0-9a-fA-F]{64}", text):
        raise click.BadParameter("a digest has 64 hexadecimal digits; `ort-mobile verify BUNDLE` prints it")
    return text


@click.command(cls=Command)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--digest", metavar="HEX", default="", callback=_digest, help="The digest that the maker of the bundle names."
)
@json_option
def verify(bundle: Path, digest: str, json_to: str | None) -> None:
    """Check that every byte of BUNDLE matches its manifest; exit code 4 names what was changed, is missing or added,
    or failed in the library that ships.

    A manifest is not signed. Only the digest, compared with the one that the bundle's maker names (--digest), proves
    where a bundle comes from.
    """
    from device_runner.text import visible
    from pipeline.release.verify import refuse_unproven, verify_bundle

    manifest = verify_bundle(bundle, digest)
    refuse_unproven(bundle, manifest)
    if json_to:
        document = {"bundle": str(bundle), "files": len(manifest.files), "digest": manifest.content_sha256}
        write_json(document, json_to)
    if not shows_text(json_to):
        return
    click.echo(f"OK: {len(manifest.files)} files of {visible(str(bundle))} match the manifest")
    click.echo(f"digest {manifest.content_sha256}" + (" (as expected)" if digest else ""))
    if not digest:
        click.echo("compare the digest with its maker's (--digest): only that proves where it is from", err=True)
