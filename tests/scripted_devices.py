"""Devices that fail where a script says, for campaigns: the pipeline's own code around them, no probe behind."""

import hashlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from device_runner.device import Device, DeviceFacts
from device_runner.errors import UnavailableError
from device_runner.library import Library
from device_runner.result import Failure, FailureKind, RunResult, Status, utc_now, without_measurement
from device_runner.spec import RunOptions, RunSpec
from pipeline.campaign.measure import CampaignPlan
from pipeline.campaign.planned import Inputs, PlannedRun, run_of
from pipeline.campaign.record import CampaignRecord
from pipeline.campaign.store import Store, open_store
from pipeline.config import ConditionsConfig, MeasureConfig
from pipeline.core.variant import Artifact, Level, Variant

CAMPAIGN = CampaignRecord(id="c1", name="scripted", created_at="2026-01-01T00:00:00.000Z")
DEFAULT_CONDITIONS = ConditionsConfig()
ARTIFACT = Artifact(
    model="m", variant=Variant(level=Level.BASIC), file="m.ort", size_bytes=1, sha256="a" * 64,
    semantic_digest="b" * 64, operators={}, source_operators={},
)  # fmt: skip


def opened(folder: Path) -> Store:
    """A database with the campaign."""
    store = open_store(f"sqlite:///{folder / 'results.sqlite'}")
    store.start(CAMPAIGN)
    return store


def latencies_of(device: str, spec_id: str) -> tuple[int, ...]:
    """Numbers that only this device gives for only this run."""
    digest = hashlib.sha256(f"{device}\0{spec_id}".encode()).digest()
    return tuple(digest[:8])


class ScriptedDevice(Device):
    """Runs take so many seconds and fail as `script` says (None: they succeed); each start is a line of the journal."""

    def __init__(
        self,
        name: str,
        script: Callable[[RunSpec], FailureKind | None] = lambda _: None,
        *,
        seconds: float = 0.0,
        journal: Path | None = None,
    ) -> None:
        super().__init__(name)
        self._script = script
        self._seconds = seconds
        self._journal = journal

    def facts(self) -> DeviceFacts:
        return DeviceFacts(name=self.name, platform="linux", abis=("x86_64",))

    def library_for(self, given: str | None) -> Library:
        raise UnavailableError("it has no library")

    def run(self, spec: RunSpec) -> RunResult:
        if self._journal:
            with self._journal.open("a") as file:
                file.write(f"{spec.id}\n")
        time.sleep(self._seconds)
        kind = self._script(spec)
        if kind is not None:
            return without_measurement(spec, self.name, Failure(code=kind, what="as scripted"))
        latencies_ns = latencies_of(self.name, spec.id)
        return RunResult(
            spec_id=spec.id, device=self.name, status=Status.OK, latencies_ns=latencies_ns, started_at=utc_now()
        )


def lanes_of(devices: Iterable[str], count: int) -> list[PlannedRun]:
    """So many lanes on each device, of one model with different threads."""
    return [
        run_of(device, ARTIFACT, RunOptions(intra_op_threads=number + 1))
        for device in devices
        for number in range(count)
    ]


def plan_of(lanes: list[PlannedRun], rounds: int, conditions: ConditionsConfig = DEFAULT_CONDITIONS) -> CampaignPlan:
    """A plan whose tries follow each other at once."""
    return CampaignPlan(
        campaign=CAMPAIGN.id,
        planned_runs=lanes,
        measure=MeasureConfig(rounds=rounds),
        conditions=conditions,
        artifacts=Path("artifacts"),
        inputs={"m": Inputs(dimensions={})},
        libraries={},
        check=lambda *_: (),
        pauses_seconds=(0.0, 0.0),
        quarantine_seconds=(),
    )


def check_attribution(store: Store) -> None:
    """Every stored run that went well has the numbers of its own device and spec."""
    for run in store.runs(CAMPAIGN.id):
        assert run.spec.id.startswith(f"{run.result.device}/")
        assert run.spec.id == run.result.spec_id
        if run.result.status is Status.OK:
            assert run.result.latencies_ns == latencies_of(run.result.device, run.spec.id)
