"""`ort-mobile schema`: the JSON schema of configs, for editors."""

import click

from pipeline.cli.command import Command


@click.command(cls=Command)
def schema() -> None:
    """Print the JSON schema of config files."""
    import json

    from pipeline.config import config_schema

    click.echo(json.dumps(config_schema(), indent=2))
