"""The command line for tests: in this process, as fast as a function call, with streams like pipes; or in its own."""

import contextlib
import io
import json
import logging
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import click

from pipeline.cli.main import COMMANDS, cli, main

ROOT = Path(__file__).resolve().parent.parent


class Done(NamedTuple):
    """What a command left."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        """What both streams have."""
        return self.out + self.err

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


def ort_mobile(
    *words: object, cwd: Path | None = None, code: int | None = 0, encoding: str = "utf-8", process: bool = False,
    **env: str,
) -> Done:  # fmt: skip
    """`ort-mobile WORDS` in a folder, with these variables beside those of the environment.

    It must end with `code` (None: with any), and shows no traceback unless that is asked for. It runs in this process,
    unless that is what a test is about: signals, an empty home, what is imported.
    """
    line = list(map(str, words))
    if process:
        done = _in_process(["-m", "pipeline", *line], cwd, encoding, env)
    else:
        done = _in_this_process(line, cwd, encoding, env)
    assert code in (None, done.code), f"exit code {done.code}\n{done.text}"
    assert "--debug" in line or "Traceback" not in done.err, done.err
    return done


def python(*words: object, cwd: Path = ROOT, path: Path = ROOT, code: int | None = 0, **env: str) -> Done:
    """`python WORDS` in a folder, with the modules of `path` before this project's; it must end with `code`."""
    done = _in_process(list(map(str, words)), cwd, "utf-8", {"PYTHONPATH": f"{path}{os.pathsep}{ROOT}", **env})
    assert code in (None, done.code), f"exit code {done.code}\n{done.text}"
    return done


def _in_process(words: list[str], cwd: Path | None, encoding: str, env: dict[str, str]) -> Done:
    ended = subprocess.run(
        [sys.executable, *words], cwd=cwd, capture_output=True, encoding=encoding, check=False,
        timeout=600, stdin=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(ROOT), **env},
    )  # fmt: skip
    return Done(ended.returncode, ended.stdout, ended.stderr)


def _in_this_process(line: list[str], cwd: Path | None, encoding: str, env: dict[str, str]) -> Done:
    level = logging.getLogger().level
    with contextlib.chdir(cwd or "."), mock.patch.dict(os.environ, env), _streams(encoding) as (out, err):
        try:
            main(line)
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 0
        finally:
            logging.getLogger().setLevel(level)
    return Done(code, out.getvalue().decode(encoding), err.getvalue().decode(encoding))


def stored_runs(folder: Path) -> int:
    """How many runs a job has stored so far that may be at work with the output folder `folder`/out."""
    try:
        with sqlite3.connect(f"file:{folder / 'out/results.sqlite'}?mode=ro", uri=True, timeout=5) as connection:
            return int(connection.execute("SELECT count(*) FROM runs").fetchone()[0])
    except sqlite3.OperationalError:
        return 0


def leaves() -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, with its name: `op-config check`."""
    root = click.Context(cli, info_name="ort-mobile", **cli.context_settings)
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
