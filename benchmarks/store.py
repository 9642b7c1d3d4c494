"""A lab's store of millions of runs (--runs N): how long `report` of one campaign and `gate --history` take.

A real campaign of the example is stored again and again with SQL: 30 times in full under one name, all over the store,
each with 25 devices, 4 variants and 5 rounds. The rest are campaigns of others with as many runs, which nobody reads:
theirs have everything but the texts of spec, result and checks, so that 10 million fit on a disk. The file lies in
--folder and is removed afterwards.
"""

import argparse
import resource
import sqlite3
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Table

from pipeline.campaign.record import RecordedRun, RunRecord
from pipeline.campaign.store import open_store
from pipeline.campaign.store.tables import campaigns, latencies, row_digest, runs
from pipeline.campaign.store.writer import run_columns

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
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        (folder / "nightly.toml").write_text(CONFIG)
        ort_mobile("run", folder / "nightly.toml", "--output", folder / "out")
        path = folder / "lab.sqlite"
        count = fill(path, folder / "out" / "results.sqlite", given.runs)
        megabytes = path.stat().st_size / 1e6
        print(f"{count:,} runs, {megabytes:,.0f} MB\n")
        print(
            "| command | first s | median s | smallest s | processor s |\n| --- | --- | --- | --- | --- |", flush=True
        )
        database = f"sqlite:///{path}"
        newest = f"nightly-{NIGHTLY - 1:02}"
        measured = {
            "report": ("report", folder / "out", "--database", database, "--campaign", newest),
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


def fill(path: Path, source: Path, wanted: int) -> int:
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
    total = max(NIGHTLY, wanted // len(full))
    nightly = {round(place * (total - 1) / (NIGHTLY - 1)): f"nightly-{place:02}" for place in range(NIGHTLY)}
    with open_store(f"sqlite:///{path}") as store:
        for name in nightly.values():
            store.start(msgspec.structs.replace(real, id=name, document=document), devices, made)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA synchronous=OFF")
    for number in range(total):
        name = nightly.get(number, f"other-{number:06}")
        with connection:
            if number not in nightly:
                enter_other(connection, name, number)
            enter_runs(connection, name, full if number in nightly else small, number * len(full))
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
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


def enter_other(connection: sqlite3.Connection, name: str, number: int) -> None:
    """A campaign without a plan, of one of 200 names."""
    row: Row = {"id": name, "name": f"app-{number % 200}", "created_at": "2026-01-01T00:00:00.000Z",
                "sequence": NIGHTLY + 1 + number, "document": "null"}  # fmt: skip
    connection.execute(insert_into(campaigns), {**row, "digest": row_digest("campaigns", row)})


def enter_runs(connection: sqlite3.Connection, campaign: str, rows: Sequence[Row], last: int) -> None:
    """Rows as runs of a campaign, under the keys that follow the last one."""
    own = [{**row, "campaign_id": campaign, "id": last + n, "run_id": last + n} for n, row in enumerate(rows, start=1)]
    for row in own:
        row["digest"] = row_digest("runs", row)
    connection.executemany(insert_into(runs), own)
    connection.executemany(insert_into(latencies), own)


def insert_into(table: Table) -> str:
    """The statement for rows that have all columns by name."""
    names = list(table.columns.keys())
    return f"INSERT INTO {table.name} ({', '.join(names)}) VALUES (:{', :'.join(names)})"


if __name__ == "__main__":
    main()
