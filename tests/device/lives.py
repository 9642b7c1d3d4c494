"""A small campaign on real adbd programs that lives in a process of its own, may be killed, and goes on in the next.

Every lane has a model that gives numbers of its own, so that a result shows which run it is of; every phone tells a
battery level of its own, and notes the requests that its probe was started with.
"""

import os
import sys
import threading
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from onnx import TensorProto

from device_runner import device as runner_device
from device_runner.adb import device, store
from device_runner.adb.device import AdbDevice
from device_runner.adb.link import Link
from device_runner.device import Waiting
from device_runner.result import RunResult, utc_now
from device_runner.spec import RunOptions
from pipeline.campaign.measure import CampaignPlan, measure
from pipeline.campaign.planned import Inputs, PlannedRun, run_of
from pipeline.campaign.record import CampaignRecord, RunRecord
from pipeline.campaign.store import Store, open_store
from pipeline.check.compare import OutputCheck
from pipeline.config import MeasureConfig
from pipeline.core.errors import MissingError
from pipeline.core.files import sha256_of
from pipeline.core.variant import Artifact, Level, Variant
from pipeline.job.bench import opened
from tests.onnx_samples import parsed_nodes
from tests.probe_models import save_model

MIN_RUNS = 3
RUN_LIMIT_SECONDS = 1.5
GRACE_SECONDS = 1.0
PROBE = """#!/bin/sh
mkdir -p "$PHONE/ran" && cp "$1" "$PHONE/ran/$$"
fault="$PHONE/fault.$$"
mv "$PHONE/fault" "$fault" 2>/dev/null && . "$fault"
exec "{probe}" "$@"
"""
"""Before the real probe: note the request, and do once what stands in the phone's file `fault`."""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A phone in a campaign: its serial, its folder for files of ours, the battery level that it tells."""

    serial: str
    root: str
    battery_percent: int

    @property
    def name(self) -> str:
        """How results call it."""
        return f"adb:{self.serial}"


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """All that a process needs to live a part of the campaign."""

    folder: str
    members: tuple[Member, ...]
    environment: dict[str, str]
    probe: str
    library: str
    lanes: int
    rounds: int
    values: int
    """Numbers in each model, and in its output: float32."""
    seed: int = 0
    wait_seconds: tuple[float, ...] = (0.1, 0.6)


CAMPAIGN = CampaignRecord(id="c1", name="lives", created_at="2026-01-01T00:00:00.000Z")


def numbers_of(ground: Ground, member: int, lane: int) -> "np.ndarray[tuple[int], np.dtype[np.float32]]":
    """What the model of that lane gives, and no other."""
    chance = np.random.default_rng([ground.seed, member, lane])
    return chance.standard_normal(ground.values, dtype=np.float32)


def save_lane_models(ground: Ground) -> None:
    """The models of all lanes: y = 0 * x + numbers, so that nothing can be folded away."""
    for member in range(len(ground.members)):
        for lane in range(ground.lanes):
            save_model(
                Path(ground.folder) / f"{member}-{lane}.onnx",
                parsed_nodes("n = Mul (x, zero)  y = Add (n, w)"),
                {"x": (TensorProto.FLOAT, [1])},
                {"y": (TensorProto.FLOAT, [ground.values])},
                {"w": numbers_of(ground, member, lane), "zero": np.zeros(1, np.float32)},
            )


def lanes_of(ground: Ground) -> list[PlannedRun]:
    """One lane for each model, on its phone."""
    found = []
    for number, member in enumerate(ground.members):
        for lane in range(ground.lanes):
            path = Path(ground.folder) / f"{number}-{lane}.onnx"
            artifact = Artifact(
                model=f"{number}-{lane}", variant=Variant(level=Level.BASIC), file=path.name,
                size_bytes=path.stat().st_size, sha256=sha256_of(path), semantic_digest="0" * 64,
                operators={}, source_operators={},
            )  # fmt: skip
            found.append(run_of(member.name, artifact, RunOptions(intra_op_threads=1)))
    return found


@dataclass(frozen=True, slots=True)
class LaneCheck:
    """Whether the numbers are those of the lane."""

    ground: Ground

    def __call__(self, lane: PlannedRun, result: RunResult) -> tuple[OutputCheck, ...]:
        member, _, number = lane.model.partition("-")
        (output,) = result.outputs
        got = np.fromfile(output.file, np.float32)
        wanted = numbers_of(self.ground, int(member), int(number))
        return (OutputCheck(output="y", passed=bool(np.array_equal(got, wanted))),)


def plan_of(ground: Ground, lanes: Sequence[PlannedRun]) -> CampaignPlan:
    """The campaign of the ground, with short waits."""
    return CampaignPlan(
        campaign=CAMPAIGN.id,
        planned_runs=lanes,
        measure=MeasureConfig(
            rounds=ground.rounds, warmup=0, min_runs=MIN_RUNS, min_seconds=1e-9, timeout_seconds=RUN_LIMIT_SECONDS
        ),
        artifacts=Path(ground.folder),
        inputs={lane.source: Inputs(dimensions={}) for lane in lanes},
        libraries={},
        check=LaneCheck(ground),
        pauses_seconds=ground.wait_seconds,
        quarantine_seconds=(0.5,),
    )


class NotedStore(Store):
    """Writes a line to a file, which a kill does not undo, for every run after it was said to be stored."""

    journal: Path

    def add_run(self, run: RunRecord, stop: threading.Event | None = None) -> bool:
        entered = super().add_run(run, stop)
        failure = run.result.failure
        line = f"{run.planned}\t{run.round}\t{failure.code.value if failure else ''}\n"
        descriptor = os.open(self.journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, line.encode())
        os.close(descriptor)
        return entered


def journal_of(folder: str) -> list[tuple[str, int, str]]:
    """Spec, round and kind of failure of every run that was said to be stored."""
    path = Path(folder) / "journal"
    lines = path.read_text().splitlines() if path.exists() else []
    parts = (line.split("\t") for line in lines)
    return [(spec, int(number), kind) for spec, number, kind in parts]


def noted_store(ground: Ground) -> NotedStore:
    """The store of the campaign; its file is in the ground's folder."""
    plain = open_store(f"sqlite:///{ground.folder}/results.sqlite")
    noted = NotedStore(plain.engine, plain.where)
    noted.journal = Path(ground.folder) / "journal"
    noted.start(CAMPAIGN)
    return noted


def use_ground(ground: Ground) -> None:
    """In this process phones have folders of their own, our probe, and short limits."""
    roots: Mapping[str, str] = {member.serial: member.root for member in ground.members}
    tools = (Path(ground.probe), Path(ground.library))

    class GroundDevice(AdbDevice):
        def __init__(self, link: Link, *, name: str, waiting: Waiting) -> None:
            super().__init__(link, name=name, root=roots[link.serial], tools=tools, waiting=waiting)

    device.AdbDevice = GroundDevice  # type: ignore[misc, assignment]  # for this process only
    runner_device.GRACE_SECONDS = GRACE_SECONDS
    store.SLOWEST_BYTES_PER_SECOND = 4_000_000
    os.environ.update(ground.environment)


def live(ground: Ground) -> None:
    """A process's whole life: open what can be opened, run what is not stored; exits with 0 when nothing is left."""
    os.setsid()
    sys.stderr = (Path(ground.folder) / "stderr").open("a")
    use_ground(ground)
    names = [member.name for member in ground.members]
    work = Path(ground.folder) / f"work-{os.getpid()}-{utc_now()}"
    work.mkdir()
    with noted_store(ground) as noted:
        try:
            with opened(names) as ready:
                left = measure(plan_of(ground, lanes_of(ground)), ready.devices, noted, work)
                sys.exit(1 if left or ready.unusable else 0)
        except MissingError:
            sys.exit(3)


def whole_requests(folder: Path) -> list[bytes]:
    """Requests that a phone's probe was started with and that arrived whole."""
    found = []
    for path in folder.glob("ran/*"):
        body, _, number = path.read_bytes().rpartition(b"check\0crc32\0")
        if number == b"%d\0" % zlib.crc32(body):
            found.append(body)
    return found
