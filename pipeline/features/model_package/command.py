"""`ort-mobile bundle package`: a bundle as a model package of ONNX Runtime."""

from pathlib import Path

import click

from device_runner import safe_text
from pipeline.cli import command as cli_command
from pipeline.cli import options as cli_options
from pipeline.cli import outputs as cli_outputs
from pipeline.cli.outputs import Outputs

PLATFORMS = ("android", "ios", "linux", "macos")


@click.command(
    cls=cli_command.Command,
    examples=("ort-mobile bundle package output/my/bundle --output package --target ios",),
)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--output", type=click.Path(path_type=Path), required=True, help="Folder of the package; a new one.")
@click.option("--target", metavar="NAME", help="Target of the config.  [default: the only one]")
@cli_options.signer_option
@cli_outputs.json_option
def package(bundle: Path, output: Path, target: str | None, key: Path | None, outputs: Outputs) -> None:
    """Write what BUNDLE ships to a target as a model package, which ONNX Runtime from 1.32 on opens by itself.

    A component for each model has a variant for each provider, with the options that it was released with: a session
    gets the variant of the first provider that it was given. Each file is there once. What a package cannot have is
    said. The bundle is verified first: give the maker's public key (--key) for one that is not your own.
    """
    from pipeline.features.model_package.writer import model_package, write_package
    from pipeline.release import signature, target_choice

    manifest = signature.verified_bundle(bundle, key)
    name = target_choice.target_of(bundle, manifest, PLATFORMS, "model packages", target)
    made = model_package(bundle, manifest, name)
    write_package(made, output)
    for line in made.lost:
        click.echo(safe_text.visible(f"warning: {line}"), err=True)
    document = {"package": str(output), "target": name, "variants": made.variants, "lost": made.lost}
    outputs.show_lines(document, (*(f"variant  {variant}" for variant in made.variants), f"package  {output}"))
