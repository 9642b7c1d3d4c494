"""`python -m device_runner SPEC --device NAME`: execute one RunSpec and write its RunResult."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from device_runner.device import open_device
from device_runner.errors import RunnerError, SpecError
from device_runner.files import visible_lines
from device_runner.result import RunResult, Status
from device_runner.spec import encode, read_spec

EXIT_CODES = {Status.OK: 0, Status.FAILED: 1, Status.SKIPPED: 1}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    arguments = argparse.ArgumentParser(prog="python -m device_runner", description=__doc__)
    arguments.add_argument("spec", type=Path, help="a RunSpec as JSON")
    arguments.add_argument("--device", default="local", help="local (default), adb:SERIAL or adb:SERIAL@HOST:PORT")
    arguments.add_argument("--output", type=Path, help="file for the RunResult; stdout by default")
    return arguments


def execute(arguments: Sequence[str] | None = None) -> int:
    """Run and write; the exit code. Raises RunnerError, KeyboardInterrupt."""
    chosen = parser().parse_args(arguments)
    spec = read_spec(chosen.spec)
    with open_device(chosen.device) as device:
        result = device.run(spec)
    write(result, chosen.output)
    return EXIT_CODES[result.status]


def write(result: RunResult, path: Path | None) -> None:
    """The result as JSON, to stdout or in one step into a file; raises SpecError when it cannot be written."""
    if path is None:
        sys.stdout.buffer.write(encode(result))
        sys.stdout.flush()
        return
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(encode(result))
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise SpecError("the result cannot be written", where=str(path), why=str(error)) from error


def main() -> int:
    """As a program: errors without a traceback, exit codes as in docs/guide.md."""
    try:
        return execute()
    except RunnerError as error:
        for label, text in error.lines():
            sys.stderr.write(f"{label}: {visible_lines(text)}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
