"""`ort-mobile verify`: checks every byte of a bundle, offline."""

from pathlib import Path

import click


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
def verify(bundle: Path) -> None:
    """Check that BUNDLE is byte for byte as it was made; exit code 4 names what was changed, is missing or added."""
    from device_runner.text import visible
    from pipeline.release.verify import verify_bundle

    manifest = verify_bundle(bundle)
    click.echo(f"{visible(str(bundle))}: {len(manifest.files)} files are as they were made")
    click.echo(f"digest {manifest.content_sha256}")
