"""`ort-mobile init`: writes a commented config to start from."""

from pathlib import Path
from typing import Any

import click

from pipeline.cli.command import Command
from pipeline.cli.options import as_argument, data_options, dataset_from, json_option, shows_text, write_json


@click.command(cls=Command)
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="File to write.  [default: MODEL's name with .toml, in this folder]",
)
@data_options
@json_option
@click.option("--force", is_flag=True, help="Replace an existing file.")
def init(
    model: Path,
    output: Path | None,
    test_data: str | None,
    input_values: dict[str, Any],
    force: bool,
    json_to: str | None,
) -> None:
    """Write a commented config for MODEL (an .onnx file), with its inputs and dynamic dimensions filled in.

    Sizes come from test data, from what the graph requires, or are the usual ones for such a model, tried by running
    it; guesses are marked # GUESSED in the file. Where no size is found, the line to fill in is marked # FILL IN.
    """
    from pipeline.core.errors import ConfigError
    from pipeline.core.files import write_text
    from pipeline.job.template import config_text, data_beside, guess_for, guessed_lines, line_to_fill_in, safe_line

    if not model.is_file():
        raise ConfigError("no such model file", where=str(model), remedy="check the path")
    path = output or Path(f"{model.stem}.toml")
    if path.exists() and not force:
        raise ConfigError(
            "there is a file already", where=str(path), remedy="choose another with --output, or pass --force"
        )
    data = data_beside(model, dataset_from(test_data, input_values))
    guess = guess_for(model, data)
    write_text(path, config_text(model, path.parent, guess, data))
    if json_to:
        write_json({"config": str(path), "model": str(model), "inputs": guess}, json_to)
    if shows_text(json_to):
        click.echo("inputs:")
        for line in (*map(str, guess.inputs), *(f"guessed: {line}" for line in guessed_lines(guess))):
            click.echo(f"  {safe_line(line)}")
    if guess.missing:
        raise ConfigError(
            f"no size was found for {safe_line(', '.join(guess.missing))}", where=f"{path}:{line_to_fill_in(path)}",
            why=f"the model does not run with any usual size: {guess.why}",
            remedy="the config is written: fill in the line that ends in # FILL IN, then run it",
        )  # fmt: skip
    if shows_text(json_to):
        click.echo(f"{path}: written; run it with `ort-mobile run {as_argument(path)}`")
