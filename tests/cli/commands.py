"""The command line in this process: as fast as a function call, with streams like pipes."""

import contextlib
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click

from pipeline.cli.main import COMMANDS, cli, main


class Done(NamedTuple):
    """What a command left."""

    code: int
    out: str
    err: str

    def document(self) -> Any:
        """The JSON that stdout is."""
        return json.loads(self.out)


@contextlib.contextmanager
def _streams(encoding: str) -> Iterator[tuple[io.BytesIO, io.BytesIO]]:
    """Stdout and stderr as pipes of an encoding."""
    before, pipes = (sys.stdout, sys.stderr), (io.BytesIO(), io.BytesIO())
    texts = [io.TextIOWrapper(pipe, encoding=encoding, write_through=True) for pipe in pipes]
    sys.stdout, sys.stderr = texts
    try:
        yield pipes
    finally:
        sys.stdout, sys.stderr = before
        for text in texts:
            text.detach()


def ort_mobile(*arguments: str | Path, cwd: Path, encoding: str = "utf-8") -> Done:
    """`ort-mobile ARGUMENTS` run in a folder."""
    with contextlib.chdir(cwd), _streams(encoding) as (out, err):
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 0
    return Done(code, out.getvalue().decode(encoding), err.getvalue().decode(encoding))


def leaves() -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, with its name: `op-config check`."""
    root = click.Context(cli, info_name="ort-mobile")
    for name in COMMANDS:
        command = cli.get_command(root, name)
        assert command is not None
        if isinstance(command, click.Group):
            context = click.Context(command, parent=root, info_name=name)
            for sub in command.list_commands(context):
                child = command.get_command(context, sub)
                assert child is not None
                yield f"{name} {sub}", child
        else:
            yield name, command
