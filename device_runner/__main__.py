"""`python -m device_runner SPEC --device NAME`: execute one RunSpec and write its RunResult."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from device_runner.device import open_device
from device_runner.errors import RunnerError, SpecError
from device_runner.files import replacing
from device_runner.result import Status
from device_runner.safe_text import visible_lines
from device_runner.spec import decode_spec, encode
from device_runner.untrusted_files import read_regular

EXIT_CODES = {Status.OK: 0, Status.FAILED: 1, Status.SKIPPED: 1}


def execute(arguments: Sequence[str] | None = None) -> int:
    """Run and write; the exit code. Raises RunnerError, KeyboardInterrupt."""
    parser = argparse.ArgumentParser(prog="python -m device_runner", description=__doc__)
    parser.add_argument("spec", type=Path, help="a RunSpec as JSON")
    parser.add_argument("--device", default="local", help="local (default), adb:SERIAL or adb:SERIAL@HOST:PORT")
    parser.add_argument("--output", type=Path, help="file for the RunResult; stdout by default")
    chosen = parser.parse_args(arguments)
    try:
        spec = decode_spec(read_regular(chosen.spec), str(chosen.spec))
    except OSError as error:
        raise SpecError(
            "the spec cannot be read", where=str(chosen.spec), why=error.strerror or str(error), remedy="check the path"
        ) from error
    with open_device(chosen.device) as device:
        result = device.run(spec)
    path: Path | None = chosen.output
    if path is None:
        sys.stdout.buffer.write(encode(result))
        sys.stdout.flush()
        return EXIT_CODES[result.status]
    try:
        with replacing(path) as part:
            part.write_bytes(encode(result))
    except OSError as error:
        raise SpecError("the result cannot be written", where=str(path), why=str(error)) from error
    return EXIT_CODES[result.status]


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
