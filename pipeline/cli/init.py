"""`ort-mobile init`: a commented config to start from."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.cli.command import Command
from pipeline.cli.data_options import data_options, dimension_option
from pipeline.cli.outputs import Outputs, json_option

if TYPE_CHECKING:
    from pipeline.dataset import Dataset


@click.command(cls=Command, examples=("ort-mobile init my.onnx",))
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="File to write.  [default: MODEL's name with .toml, in this folder]",
)
@click.option(
    "--android",
    metavar="RELEASE",
    default="",
    help="Write the target for an app with the Android library of this release, as 1.29.0.",
)
@click.option("--ios", is_flag=True, help="Write a target for iOS, too.")
@data_options
@dimension_option
@json_option
@click.option("--force", is_flag=True, help="Replace an existing file.")
def init(
    model: Path,
    output: Path | None,
    android: str,
    ios: bool,
    data: "Dataset",
    dimensions: dict[str, int],
    force: bool,
    outputs: Outputs,
) -> None:
    """Write a commented config for MODEL (an .onnx file), with its inputs and dynamic dimensions filled in.

    Sizes come from test data, from what the graph requires, or are the usual ones for such a model, tried by running
    it; guesses are marked # GUESSED in the file. Where no size is found, or a text is needed, the line to fill in is
    marked # FILL IN.

    Where Transformers put its files beside the model, what an app has and gets in place of tensors is written, too (a
    picture, labels): docs/app-data.md.
    """
    from pipeline.core import files as storage
    from pipeline.core import releases as ort_releases
    from pipeline.core.errors import ConfigError
    from pipeline.job import attachment as job_attachment
    from pipeline.job import template
    from pipeline.model import sources as model_sources

    ships = template.Ships(android=android, ios=ios)
    if android:
        ort_releases.read_release(android, "--android")
    model_sources.require_model_file(model)
    path = output or Path(f"{model.stem}.toml")
    if path.exists() and not force:
        raise ConfigError(
            "there is a file already", where=str(path), remedy="choose another with --output, or pass --force"
        )
    data = template.data_beside(model, data)
    guess = template.guess_for(model, data, dimensions)
    tables = job_attachment.tables_beside(model, guess)
    files = {path.parent / name: text for name, text in tables.files.items()}
    if not force and (file := next((file for file in files if file.exists()), None)):
        raise ConfigError("there is a file already", where=str(file), remedy="move it away, or pass --force")
    for file, text in files.items():
        storage.write_text(file, text)
    storage.write_text(path, template.config_text(model, path.parent, guess, data, ships, tables))
    outputs.write_json({"config": str(path), "model": str(model), "inputs": guess, "files": [*map(str, files)]})
    if outputs.text:
        click.echo("inputs:")
        guessed = [] if tables.attached else template.guessed_lines(guess)  # sizes are those of the app's images
        for line in (*map(str, guess.inputs), *(f"guessed: {line}" for line in guessed)):
            click.echo(f"  {template.safe_line(line)}")
    if (left := template.left_to_user(guess)) and not tables.attached:
        raise ConfigError(
            left,
            where=f"{path}:{template.line_to_fill_in(path)}",
            why=f"the model does not run with any usual size: {guess.why}" if guess.missing else "no text is guessed",
            remedy="the config is written: fill in what ends in # FILL IN, then run it",
        )
    if outputs.text:
        if (name := template.campaign_name(model)) != model.stem:
            click.echo(f"called {name} in the config and in file names, which take A to Z, a to z, 0 to 9 and ._- only")
        shown = shlex.quote(
            f"./{path}" if str(path).startswith("-") else str(path)
        )  # no command takes it for an option
        fetch = "" if ships.at_hand else f"fetch the library with `ort-mobile library get {ships.library}`, then "
        click.echo(f"{path}: written; {fetch}run it with `ort-mobile run {shown}`")
