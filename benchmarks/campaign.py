"""What a campaign adds to its runs: on one device, and with 1 to 200 at once that only sleep.

The devices that sleep take 5 s a run, as a phone does; the ideal is that any number of them takes as long as one.
`added` is the time of a run on this computer beyond what the probe spent on loading and on inferences.
"""

import statistics
import tempfile
import time
from pathlib import Path

from device_runner.device import DeviceFacts
from device_runner.local import LocalDevice
from device_runner.probe.build import build_probe
from device_runner.result import RunResult, Status, utc_now
from device_runner.spec import RunOptions, RunSpec
from pipeline.campaign.measure import CampaignPlan, measure
from pipeline.campaign.plan import Inputs, run_of
from pipeline.campaign.record import CampaignRecord
from pipeline.campaign.store import open_store
from pipeline.config import MeasureConfig
from pipeline.core.variant import Artifact, Level, Variant

EXAMPLE = Path(__file__).resolve().parent.parent / "build_configs" / "examples" / "mnist" / "mnist.onnx"
SLEEP_SECONDS = 5.0
ROUNDS = 3


class SleepingDevice(LocalDevice):
    """Sleeps for each run and gives 200 latencies."""

    def __init__(self, name: str) -> None:
        super().__init__(Path())
        self.name = name

    def facts(self) -> DeviceFacts:
        """Nothing but its name."""
        return DeviceFacts(name=self.name, platform="linux")

    def run(self, spec: RunSpec) -> RunResult:
        """Sleep, and say that it went well."""
        time.sleep(SLEEP_SECONDS)
        latencies = tuple(range(1000, 1200))
        return RunResult(
            spec_id=spec.id, device=self.name, status=Status.OK, latencies_ns=latencies, started_at=utc_now()
        )


def seconds_of(count: int, folder: Path) -> float:
    """How long a campaign on so many sleeping devices takes."""
    artifact = Artifact(
        model="m", variant=Variant(level=Level.BASIC), file="m.ort", size_bytes=1, sha256="a" * 64,
        semantic_digest="b" * 64, operators={}, source_operators={},
    )  # fmt: skip
    devices = {f"sleeping:{number}": SleepingDevice(f"sleeping:{number}") for number in range(count)}
    plan = CampaignPlan(
        campaign="c",
        planned_runs=[run_of(name, artifact, RunOptions()) for name in devices],
        measure=MeasureConfig(rounds=ROUNDS),
        artifacts=folder,
        inputs={"m": Inputs(dimensions={})},
        libraries={},
        judge=lambda *_: (),
    )
    with open_store(f"sqlite:///{folder / f'{count}.sqlite'}") as store:
        store.start(CampaignRecord(id="c", name="c", created_at=utc_now()))
        started = time.perf_counter()
        measure(plan, devices, store, folder)
        return time.perf_counter() - started


def added_seconds(folder: Path, runs: int = 15) -> float:
    """Median over runs of what is neither loading nor inference."""
    device, added = LocalDevice(build_probe()), []
    for number in range(runs):
        spec = RunSpec(
            id=str(number), model=str(EXAMPLE), warmup=0, min_runs=50, min_seconds=0.0, outputs_folder=str(folder / "o")
        )
        started = time.perf_counter()
        result = device.run(spec)
        wall = time.perf_counter() - started
        added.append(wall - (result.load_ns + result.first_run_ns + sum(result.latencies_ns)) / 1e9)
    return statistics.median(added)


def main() -> None:
    """Print both tables."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print(f"added to a run on this computer: {1e3 * added_seconds(folder):.0f} ms\n")
        print("| sleeping devices | seconds | over the ideal |\n| --- | --- | --- |")
        ideal = ROUNDS * SLEEP_SECONDS
        for count in (1, 50, 200):
            seconds = seconds_of(count, folder)
            print(f"| {count} | {seconds:.2f} | {100 * (seconds / ideal - 1):.1f} % |", flush=True)
