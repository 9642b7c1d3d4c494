"""What the newest releases do otherwise than our rules say: the monthly routine, `nox -s releases_watch`.

As a program: `python -m tests.releases_watch [--library android:1.29.0] [--every N]`, in an environment with the newest
onnxruntime that the package index serves; without `--library` the newest Android library that can be had is fetched.
Prints a table; exit status 1 where something differs, with what to look at.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from device_runner.errors import UnavailableError
from device_runner.library import LibraryFacts, resolve
from device_runner.local import wheel_library
from pipeline.compat.release_table import release_table
from pipeline.compat.rules import SESSION_KEYS
from pipeline.core.abis import X86_64
from pipeline.core.releases import NEWEST_KNOWN, NEWEST_RULES, line_of
from pipeline.library.difference import CONFIG_KEY
from pipeline.library.fetch import get_library, known_libraries
from tests.arm64_agreement import ARCHIVES, SETTINGS, compare, members
from tests.command import ROOT
from tests.partition.fuzzing import differing

EXAMPLE = ROOT / "build_configs" / "examples" / "mnist"
ODD_GRAPHS = 200


class WatchRow(NamedTuple):
    """One line of the table; `differs` says what to look at, "" where all is as our rules say."""

    what: str
    rules: str
    newest: str
    differs: str = ""


def newest_library() -> LibraryFacts:
    """The newest Android library that is here or that a registry carries under its own licence."""
    names = {row.name for row in known_libraries() if row.name.startswith("android:") and row.licence in ("", "MIT")}
    name = max(names, key=lambda text: tuple(map(int, text.partition(":")[2].split("."))))
    file = get_library(name, say=print).file
    return resolve(file, X86_64).android()


def releases(library: LibraryFacts) -> Iterator[WatchRow]:
    """Whether the tables know the newest lines."""
    wheel, line = metadata.version("onnxruntime"), line_of(metadata.version("onnxruntime"))
    newer = "NEWEST_KNOWN (pipeline/core/releases.py)" if line > NEWEST_KNOWN else ""
    yield WatchRow("newest wheel", f"known up to {NEWEST_KNOWN}", wheel, newer)
    newer = "NEWEST_RULES, once its claims are the same" if line_of(library.release) > NEWEST_RULES else ""
    yield WatchRow("newest Android library", f"rules up to {NEWEST_RULES}", library.release, newer)


def wheel_tables() -> Iterator[WatchRow]:
    """The highest opset, and session config keys that no row of ours has."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    known = release_table().highest_opset(line_of(metadata.version("onnxruntime")))
    highest = max(row.since_version for row in state.get_all_operator_schema() if row.domain == "")
    differs = "releases.json (nox -s release_tables)" if highest > known else ""
    yield WatchRow("highest opset with a change", f"takes {known}", str(highest), differs)
    keys = {key.decode("ascii") for key in CONFIG_KEY.findall(wheel_library().read_bytes())}
    young = sorted(key for key in keys - SESSION_KEYS.keys() if re.match(r"session\.|optimization\.|mlas\.", key))
    yield WatchRow("session config keys without a row", "0", str(len(young)), ", ".join(young))


def release_rows() -> Iterator[WatchRow]:
    """Whether the installed wheel has its row, and says what stands there."""
    table, wheel = release_table(), metadata.version("onnxruntime")
    row = table.row(line_of(wheel))
    known = row is not None and row.line == line_of(wheel)
    differs = "" if known else "releases.json lacks it: nox -s release_tables"
    yield WatchRow("row of the newest wheel", row.wheel if row else "none", wheel, differs)


def claims(library: LibraryFacts, every: int) -> Iterator[WatchRow]:
    """Claims of each so-many-th model of the ground truth, and of odd graphs, by our rules and by the library."""
    for archive in ARCHIVES:
        for provider, level in SETTINGS:
            compared = compare(library, members(archive, every), provider, level)
            yield _claims_row(f"claims of {provider} {level}, {archive}", *compared)
    yield _claims_row("claims of odd graphs", *differing(library, range(ODD_GRAPHS)))


def _claims_row(what: str, counts: Counter[str], different: list[str]) -> WatchRow:
    answers = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
    return WatchRow(what, "all the same", answers, "; ".join(different[:3])[:300])


def pipeline(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pipeline", *words], cwd=cwd, capture_output=True, text=True, check=False
    )


def conversion_and_proof(library: LibraryFacts) -> Iterator[WatchRow]:
    """MNIST in every variant with outputs compared, and its bundle run in the library."""
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        model = str(EXAMPLE / "mnist.onnx")
        done = pipeline("convert", model, "--output", "out", "--check", "--json", "-", cwd=folder)
        rows = json.loads(done.stdout)["artifacts"] if done.stdout else []
        good = sum(row["error"] is None for row in rows)
        differs = done.stderr.strip()[-300:] if done.returncode else ""
        yield WatchRow("conversions of MNIST", "all, with equal outputs", f"{good} of {len(rows)}", differs)
        pipeline("init", model, "--output", "my.toml", cwd=folder)
        pipeline("run", "my.toml", "--convert-only", "--output", "run", cwd=folder)
        done = pipeline("prove", "run/bundle", "--library", library.path, "--abi", X86_64, "--json", "-", cwd=folder)
        passed = "passes" if done.returncode == 0 else f"exit code {done.returncode}"
        yield WatchRow(
            "proof of MNIST in the library", "passes", passed, done.stderr.strip()[-300:] * bool(done.returncode)
        )


def main() -> int:
    """Print the table; 1 where something differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", help="an Android library; default: the newest that can be had")
    parser.add_argument("--every", type=int, default=20, help="each so-many-th model of an archive")
    chosen = parser.parse_args()
    try:
        library = resolve(chosen.library, X86_64).android() if chosen.library else newest_library()
    except UnavailableError as error:
        print(f"no library: {error}", file=sys.stderr)
        return 3
    rows = [
        *releases(library),
        *release_rows(),
        *wheel_tables(),
        *claims(library, chosen.every),
        *conversion_and_proof(library),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in (WatchRow("what", "our rules", "newest", "look at"), *rows):
        print("  ".join(f"{text:<{width}}" for text, width in zip(row, (*widths, 0), strict=True)).rstrip())
    return 1 if any(row.differs for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
