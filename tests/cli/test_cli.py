"""The command line: help without heavy imports, errors without tracebacks, exit codes as documented."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.config import ModelConfig
from tests import command
from tests.command import Done, python

ROOT = Path(__file__).resolve().parents[2]


def ort_mobile(*words: str, folder: Path = ROOT, code: int | None = 0) -> Done:
    """In a process with an empty environment."""
    return command.ort_mobile(*words, cwd=folder, process=True, HOME=str(folder), LC_ALL="C.UTF-8", code=code)


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from pipeline.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'onnx', 'onnxruntime', 'numpy', 'sqlalchemy', 'rich', 'adbutils', 'jinja2'} & set(sys.modules)\n"
        "sys.exit(', '.join(heavy) or 0)"
    )
    assert "From a model to a release:" in python("-c", code).out


def test_a_history_is_read_without_what_converts_measures_or_draws() -> None:
    code = (
        "import sys; import pipeline.features.pairs.history, pipeline.features.pairs.report\n"
        "wrong = {'onnx', 'onnxruntime', 'jinja2', 'pipeline.convert', 'pipeline.job.assemble'}\n"
        "sys.exit(', '.join(wrong & set(sys.modules)) or 0)"
    )
    python("-c", code)


def test_errors_show_their_four_parts_and_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('name = "a"\n[[models]]\npaht = "m.onnx"\n')
    done = ort_mobile("run", "c.toml", folder=tmp_path, code=2)
    assert done.err.splitlines() == [
        "error: unknown key `paht`",
        "where: c.toml:3",
        f"why: this table takes: {', '.join(ModelConfig.__struct_fields__)}",
        "remedy: did you mean `path`?",
    ]


HOSTILE_NAME = "\x1b[2J\x1b[H9 files are as they were made\nremedy: none\x9b31m\u202e"


def test_control_characters_in_an_error_are_written_out_and_newlines_forge_no_line(tmp_path: Path) -> None:
    done = ort_mobile("bundle", "verify", str(tmp_path / HOSTILE_NAME), code=2)
    assert r"\x1b[2J\x1b[H9 files" in done.err
    assert "  | remedy: none" in done.err
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", done.err)
    assert [line for line in done.err.splitlines() if line.startswith("remedy: none")] == []


def test_control_characters_in_the_log_are_written_out() -> None:
    code = (
        "import logging; from pipeline.cli.main import cli\n"
        "cli.main(['schema'], standalone_mode=False)\n"
        f"logging.getLogger('device').warning('%s: lost', {HOSTILE_NAME!r})"
    )
    assert python("-c", code).err.splitlines() == [
        r"warning: \x1b[2J\x1b[H9 files are as they were made", r"  | remedy: none\x9b31m\u202e: lost",
    ]  # fmt: skip


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = ort_mobile("--debug", "bundle", "verify", str(tmp_path), code=1)
    assert "Traceback" in done.err
    assert "ConfigError" in done.err


def test_control_characters_in_a_traceback_are_written_out() -> None:
    done = ort_mobile("--debug", "bundle", "verify", HOSTILE_NAME, code=1)
    assert r"\x1b[2J\x1b[H9 files are as they were made" in done.err
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", done.err)


@pytest.mark.parametrize(
    ("arguments", "code"), [(["bundle", "verify", "nowhere"], 2), (["--version"], 0), (["run", "--nope"], 2)]
)
def test_exit_codes(arguments: list[str], code: int) -> None:
    ort_mobile(*arguments, code=code)


@pytest.mark.parametrize("command", ["schema", "long"])
def test_a_reader_that_has_gone_is_no_error(command: str, tmp_path: Path) -> None:
    """Neither at the last flush (little output) nor in the middle of it (more than a buffer)."""
    code = (
        "import sys, click; from pipeline.cli import main\n"
        "@click.command()\n"
        "def long(): click.echo('x' * 500_000); click.echo('more')\n"
        "main.COMMANDS['long'] = ('sys.modules:none', '')\n"
        "main.LateGroup.get_command = lambda self, ctx, name: long if name == 'long' else None\n"
        "main.main(['long'])"
    )
    program = ["-c", code] if command == "long" else ["-m", "pipeline", command]
    child = subprocess.Popen([sys.executable, *program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
    assert child.stdout is not None
    child.stdout.close()
    _, errors = child.communicate(timeout=60)
    assert (errors, child.returncode) == (b"", 0)


def test_a_connection_that_breaks_is_an_error(tmp_path: Path) -> None:
    """Only the reader of the output may go without a word: a broken connection is another matter."""
    code = (
        "import click; from pipeline.cli import main\n"
        "@click.command()\n"
        "def broken(): raise BrokenPipeError(32, 'Broken pipe')\n"
        "main.LateGroup.get_command = lambda self, ctx, name: broken\n"
        "main.main(['broken'])"
    )
    assert "a connection broke" in python("-c", code, code=1).err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_under_the_output_is_an_error() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "pipeline", "schema"], stdout=full, stderr=subprocess.PIPE, cwd=ROOT, check=False
        )
    assert done.returncode == 3
    assert done.stderr.splitlines()[0] == b"error: cannot write"
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="shells there cannot close a stream")
@pytest.mark.parametrize("closing", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_no_error(closing: str) -> None:
    command = f"exec {shlex.quote(sys.executable)} -m pipeline schema {closing}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_small_limit_of_open_files_is_named(tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", f"ulimit -n 8; exec {shlex.quote(sys.executable)} -m pipeline convert x.onnx --output o"],
        capture_output=True, text=True, cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    assert "did not foresee" not in done.stderr
