"""`ort-mobile init`: writes a commented config to start from."""

from pathlib import Path

import click

from pipeline.cli.command import Command
from pipeline.cli.options import as_argument, json_option, shows_text, write_json


@click.command(cls=Command)
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="File to write.  [default: MODEL's name with .toml, in this folder]",
)
@json_option
@click.option("--force", is_flag=True, help="Replace an existing file.")
def init(model: Path, output: Path | None, force: bool, json_to: str | None) -> None:
    """Write a commented config for MODEL (an .onnx file), with its inputs and dynamic dimensions filled in."""
    from pipeline.config_template import config_text
    from pipeline.errors import ConfigError
    from pipeline.files import write_text

    if not model.is_file():
        raise ConfigError("no such model file", where=str(model), remedy="check the path")
    path = output or Path(f"{model.stem}.toml")
    if path.exists() and not force:
        raise ConfigError(
            "there is a file already", where=str(path), remedy="choose another with --output, or pass --force"
        )
    write_text(path, config_text(model, path.parent))
    if json_to:
        write_json({"config": str(path), "model": str(model)}, json_to)
    if shows_text(json_to):
        click.echo(f"{path}: written; run it with `ort-mobile run {as_argument(path)}`")
