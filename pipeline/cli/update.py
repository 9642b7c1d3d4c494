"""`ort-mobile delta` and `apply`: updates of bundles as small files."""

from pathlib import Path

import click

from pipeline.cli.command import Command
from pipeline.cli.options import json_option, shows_text, write_json

FILE = click.Path(path_type=Path)


@click.command(cls=Command)
@click.argument("old", type=FILE)
@click.argument("new", type=FILE)
@click.option("--output", type=FILE, required=True, help="File to write the delta to.")
@json_option
def delta(old: Path, new: Path, output: Path, json_to: str | None) -> None:
    """Write the delta that turns bundle OLD into bundle NEW.

    Both are verified first. Each file of NEW that OLD does not have is stored in the smallest form: alone, as a patch
    of a file of OLD, or as differences of its numbers. Needs the extra `delta`.
    """
    from pipeline.release.delta import write_delta

    made = write_delta(old, new, output)
    size, whole = output.stat().st_size, sum(file.size_bytes for file in made.files)
    if json_to:
        write_json({"delta": str(output), "size_bytes": size, "bundle_bytes": whole, "files": made.files}, json_to)
    if shows_text(json_to):
        for file in made.files:
            if file.how != "kept":
                click.echo(f"{file.size_bytes:>13,}  {file.how:<6} {file.path}")
        click.echo(f"delta   {output}: {size:,} bytes for a bundle of {whole:,} (digest {made.new_digest[:16]})")


@click.command(cls=Command)
@click.argument("delta", type=FILE)
@click.argument("bundle", type=FILE)
@click.option("--key", type=FILE, help="Public key, PEM, of who must have signed the new bundle.")
@json_option
def apply(delta: Path, bundle: Path, key: Path | None, json_to: str | None) -> None:
    """Turn BUNDLE into the newer one of DELTA, at once and whole.

    BUNDLE stays as it is where it is not the one that DELTA was made for (exit code 4), where a byte is wrong, and when
    this command is interrupted. Needs the extra `delta`.
    """
    from pipeline.release.delta import apply_delta

    done = apply_delta(delta, bundle, key)
    if json_to:
        write_json({"bundle": str(bundle), "digest": done.new_digest}, json_to)
    if shows_text(json_to):
        click.echo(f"bundle  {bundle} (digest {done.new_digest})")
