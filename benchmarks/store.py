"""A lab's store of millions of runs (--runs N): how long `report` of one campaign and `gate --history` take.

A real campaign of the example is stored 30 times in full under one name, all over the store, each with 25 devices, 4
variants and 5 rounds. The rest are campaigns of others with as many runs, which nobody reads: the database copies them,
without the texts of spec, result and checks, so that 10 million fit on a disk. An SQLite file lies in --folder; with
--postgresql a server of its own has the store. Both are removed afterwards.
"""

import argparse
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, text

from pipeline.campaign.record import RecordedRun, RunRecord
from pipeline.campaign.store import open_store
from pipeline.campaign.store.tables import latencies, row_digest, runs
from pipeline.campaign.store.writer import run_columns
from tests.postgres import own_server

EXAMPLE = Path(__file__).resolve().parent.parent / "build_configs" / "examples" / "mnist" / "mnist.onnx"
CONFIG = f"""
name = "nightly"
devices = ["local"]
[[models]]
path = "{EXAMPLE}"
[variants]
levels = ["none", "basic", "extended", "all"]
[measure]
rounds = 5
warmup = 3
min_runs = 20
min_seconds = 0.001
"""
DEVICES = 25
OTHERS = "other-"
COPIED_AT_ONCE = 200
NIGHTLY = 30
"""Campaigns of the name that is read."""
TIMES = 5

Row = dict[str, Any]


class Taken(NamedTuple):
    """Seconds by the clock, and of processors: on a machine with other work the second is the one that counts."""

    wall: float
    processor: float


def main() -> None:
    """Print how large the store is, and the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--folder", default=None, help="where there is room: some 0.6 KB for each run")
    parser.add_argument("--postgresql", action="store_true", help="in a server of its own")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        (folder / "nightly.toml").write_text(CONFIG)
        ort_mobile("run", folder / "nightly.toml", "--output", folder / "out")
        source, kind = folder / "out" / "results.sqlite", "PostgreSQL" if given.postgresql else "SQLite"
        with own_server() if given.postgresql else nullcontext() as server:
            database = server.url if server else f"sqlite:///{folder}/lab.sqlite"
            print(f"{fill(database, source, given.runs):,} runs in {kind}\n")
            table(folder / "out", database)


def table(folder: Path, database: str) -> None:
    """Print what both commands take, each in processes of its own."""
    print("| command | first s | median s | smallest s | processor s |\n| --- | --- | --- | --- | --- |", flush=True)
    newest = f"nightly-{NIGHTLY - 1:02}"
    measured = {
        "report": ("report", folder, "--database", database, "--campaign", newest),
        "gate --history": ("gate", "--history", f"{database}#nightly"),
    }
    for command, arguments in measured.items():
        taken = [ort_mobile(*arguments) for _ in range(TIMES)]
        walls, processor = [one.wall for one in taken], statistics.median(one.processor for one in taken)
        times = walls[0], statistics.median(walls), min(walls), processor
        print(f"| {command} | {' | '.join(f'{seconds:.2f}' for seconds in times)} |", flush=True)


def ort_mobile(*arguments: object) -> Taken:
    """What a command of a fresh process takes. Raises SystemExit with its error where it fails."""
    command = [sys.executable, "-m", "pipeline", *map(str, arguments)]
    start, used = time.perf_counter(), processor_seconds()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    taken = Taken(time.perf_counter() - start, processor_seconds() - used)
    if done.returncode:
        raise SystemExit(done.stderr)
    return taken


def processor_seconds() -> float:
    """What ended child processes have used of processors."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def fill(url: str, source: Path, wanted: int) -> int:
    """Make the store of about so many runs from the one campaign of `source`; how many it has."""
    with open_store(f"sqlite:///{source}") as store:
        (real,) = store.campaigns()
        measured, (facts,), made = store.runs(real.id), store.devices(real.id), store.artifacts(real.id)
    devices = [msgspec.structs.replace(facts, name=f"phone-{number:02}") for number in range(DEVICES)]
    record = real.job()
    planned = tuple(placed(one, device.name) for device in devices for one in record.planned)
    document = msgspec.structs.replace(record, planned=planned)
    full = [row_of(on_device(run, device.name)) for run in measured for device in devices]
    small = [{**row, "spec": "{}", "result": "{}", "checks": "[]"} for row in full]
    total = max(NIGHTLY + 2, wanted // len(full))
    nightly = {round(2 + place * (total - 2) / (NIGHTLY - 1)): f"nightly-{place:02}" for place in range(NIGHTLY)}
    with open_store(url) as store:
        for name in nightly.values():
            store.start(msgspec.structs.replace(real, id=name, document=document), devices, made)
        with store.engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text("SET LOCAL synchronous_commit = off"))
            enter_others(connection, 1, 1)
            enter_runs(connection, f"{OTHERS}1", small, len(full))
        done = 1
        for number, name in nightly.items():
            for first in range(done + 1, number, COPIED_AT_ONCE):
                with store.engine.begin() as connection:
                    copy_others(connection, first, min(first + COPIED_AT_ONCE, number) - 1, len(full))
            with store.engine.begin() as connection:
                enter_runs(connection, name, full, number * len(full))
            done = number
        with store.engine.begin() as connection:
            connection.execute(text("ANALYZE" if connection.dialect.name == "postgresql" else "PRAGMA optimize"))
    return total * len(full)


def placed(planned: RecordedRun, device: str) -> RecordedRun:
    """A planned run on another device."""
    same_as = planned.same_as and f"{device}/{planned.same_as}"
    return msgspec.structs.replace(planned, id=f"{device}/{planned.id}", device=device, same_as=same_as)


def on_device(run: RunRecord, device: str) -> RunRecord:
    """A run as another device would have given it."""
    planned = f"{device}/{run.planned}"
    name = f"{planned}#{run.round}"
    spec = msgspec.structs.replace(run.spec, id=name)
    result = msgspec.structs.replace(run.result, spec_id=name, device=device, latencies_ns=run.result.latencies_ns[:20])
    return msgspec.structs.replace(run, planned=planned, spec=spec, result=result)


def row_of(run: RunRecord) -> Row:
    """The columns of a run and its latencies."""
    times = run.result.latencies_ns
    return {**run_columns(run), "samples": len(times), "nanoseconds": struct.pack(f"<{len(times)}q", *times)}


def counted(first: int, last: int) -> str:
    """SQL for a table n of the numbers i from `first` to `last`."""
    return f"WITH RECURSIVE n(i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM n WHERE i < {last})"


def enter_others(connection: Connection, first: int, last: int) -> None:
    """Campaigns without a plan or a digest, of 200 names."""
    connection.execute(text(
        f"INSERT INTO campaigns (id, name, created_at, sequence, document) {counted(first, last)} "
        f"SELECT '{OTHERS}' || i, 'app-' || (i % 200), '2026-01-01T00:00:00.000Z', i + {NIGHTLY}, 'null' FROM n"
    ))  # fmt: skip


def copy_others(connection: Connection, first: int, last: int, count: int) -> None:
    """The runs of the first campaign of others as those of more; the database copies them, digests and all."""
    enter_others(connection, first, last)
    for table, key in ((runs, "id"), (latencies, "run_id")):
        changed = {key: f"{table.name}.{key} + (i - 1) * {count}", "campaign_id": f"'{OTHERS}' || i"}
        names = list(table.columns.keys())
        values = ", ".join(changed.get(name, f"{table.name}.{name}") for name in names)
        connection.execute(text(
            f"INSERT INTO {table.name} ({', '.join(names)}) {counted(first, last)} SELECT {values} FROM n "
            f"CROSS JOIN {table.name} WHERE {table.name}.{key} BETWEEN {count + 1} AND {2 * count}"
        ))  # fmt: skip


def enter_runs(connection: Connection, campaign: str, rows: Sequence[Row], last: int) -> None:
    """Rows as runs of a campaign, under the keys that follow the last one."""
    own = [{**row, "campaign_id": campaign, "id": last + n, "run_id": last + n} for n, row in enumerate(rows, start=1)]
    for row in own:
        row["digest"] = row_digest("runs", row)
    for table in (runs, latencies):
        names = set(table.columns.keys())
        connection.execute(table.insert(), [{name: row[name] for name in names} for row in own])


if __name__ == "__main__":
    main()
