"""Campaigns on 1 and 16 real adbd devices of this computer: what a run costs beside its probe, and their share.

Time in probes is the life of their processes, by the clock of the device; all else counts as overhead, opening and
closing the devices, too. Phones have processors of their own; here probes run at the lowest priority, so that they take
from each other and not from what is measured. The campaign is run before, so that nothing needs pushing.
"""

import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from device_runner.adb.device import AdbDevice
from device_runner.adb.link import Link, server_at
from device_runner.adb.tools import Tools
from device_runner.local import wheel_library
from device_runner.probe.build import build_probe
from device_runner.result import Status, utc_now
from device_runner.spec import RunOptions, RunSpec
from pipeline.campaign.measure import CampaignPlan, measure
from pipeline.campaign.plan import Inputs, run_of
from pipeline.campaign.record import CampaignRecord
from pipeline.campaign.store import Store, open_store
from pipeline.config import MeasureConfig
from pipeline.core.files import sha256_of
from pipeline.core.variant import Artifact, Level, Variant
from tests.device.adb_farm import PHONE_PROPERTIES, Farm, Phone, farm_in

EXAMPLE = Path(__file__).resolve().parent.parent / "build_configs" / "examples" / "mnist" / "mnist.onnx"
COUNTS = (1, 16)
MEASURE = MeasureConfig(rounds=20, min_seconds=1.0)
LANES = 2


PROBE = """#!/bin/bash
begin=$EPOCHREALTIME
setsid -w nice -n 19 sh -c 'echo 19 > /proc/self/autogroup; exec "$0" "$@"' {probe} "$@" 2>/dev/null
code=$?
echo "$begin $EPOCHREALTIME" >> "$PHONE/times"
exit $code
"""
"""Linux shares out processors by session first (autogroup), and by priority within one."""


def probe_seconds(phones: Sequence[Phone]) -> list[float]:
    """How long each probe's process lived on these phones since this was asked last."""
    found = []
    for phone in phones:
        path = phone.folder / "times"
        lines = path.read_text().splitlines() if path.exists() else []
        found += [float(end) - float(begin) for begin, end in map(str.split, lines)]
        path.unlink(missing_ok=True)
    return found


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as name, farm_in(Path(name)) as farm:
        phones = [farm.phone(PHONE_PROPERTIES) for _ in range(max(COUNTS))]
        probe = Path(name) / "probe"
        probe.write_text(PROBE.format(probe=build_probe()))
        tools = Tools(probe, wheel_library())
        print(f"alone, nothing to push: {1e3 * alone(farm, phones[0], tools):.0f} ms a run beside the probe (median)\n")
        print("| devices | runs | pushed before, bytes | pushed, bytes | in probes | beside them, a run |")
        print("| --- | --- | --- | --- | --- | --- |")
        for count in COUNTS:
            print(row(farm, phones[:count], tools), flush=True)


def alone(farm: Farm, phone: Phone, tools: Tools, runs: int = 40) -> float:
    """Median seconds of a run of a device by itself beyond what its probe says."""
    beside = []
    with opened(farm, phone, tools) as device:
        for number in range(runs + 1):
            started = time.perf_counter()
            device.run(RunSpec(id=str(number), model=str(EXAMPLE), warmup=0, min_runs=50, min_seconds=1e-9))
            beside.append(time.perf_counter() - started - sum(probe_seconds([phone])))
    return statistics.median(beside[1:])


def opened(farm: Farm, phone: Phone, tools: Tools) -> AdbDevice:
    """The device of a phone; its files lie in the phone's own folder."""
    return AdbDevice(Link(server_at(f"127.0.0.1:{farm.port}"), phone.serial), root=phone.root, tools=tools)


def row(farm: Farm, phones: Sequence[Phone], tools: Tools) -> str:
    """A campaign without pushes on these phones, as a line of the table."""
    with tempfile.TemporaryDirectory() as name, open_store(f"sqlite:///{name}/results.sqlite") as store:
        before, _ = campaign(farm, phones, tools, store, MeasureConfig(rounds=1, min_seconds=1e-9), Path(name))
        probe_seconds(phones)
        pushed, seconds = campaign(farm, phones, tools, store, MEASURE, Path(name))
        runs = store.runs(f"of {MEASURE.rounds}")
    assert all(run.result.status is Status.OK for run in runs)
    inside, all_time = sum(probe_seconds(phones)), seconds * len(phones)
    beside = 1e3 * (all_time - inside) / len(runs)
    share = f"{100 * inside / all_time:.1f} %"
    return f"| {len(phones)} | {len(runs)} | {before:,} | {pushed:,} | {share} | {beside:.0f} ms |"


def campaign(
    farm: Farm, phones: Sequence[Phone], tools: Tools, store: Store, wanted: MeasureConfig, work: Path
) -> tuple[int, float]:
    """Bytes pushed and seconds taken, from opening the devices to closing them."""
    started = time.perf_counter()
    record = CampaignRecord(id=f"of {wanted.rounds}", name="farm", created_at=utc_now())
    store.start(record)
    with ExitStack() as stack:
        devices = {d.name: stack.enter_context(d) for d in (opened(farm, phone, tools) for phone in phones)}
        assert measure(plan(list(devices), record.id, wanted), devices, store, work) == []
        pushed = sum(device.pushed_bytes for device in devices.values())
    return pushed, time.perf_counter() - started


def plan(devices: Sequence[str], identity: str, wanted: MeasureConfig) -> CampaignPlan:
    """One model with different threads on each device."""
    artifact = Artifact(
        model="mnist", variant=Variant(level=Level.BASIC), file=EXAMPLE.name, size_bytes=EXAMPLE.stat().st_size,
        sha256=sha256_of(EXAMPLE), semantic_digest="0" * 64, operators={}, source_operators={},
    )  # fmt: skip
    options = [RunOptions(intra_op_threads=1, inter_op_threads=number) for number in range(LANES)]
    return CampaignPlan(
        campaign=identity,
        planned_runs=[run_of(device, artifact, one) for device in devices for one in options],
        measure=wanted,
        artifacts=EXAMPLE.parent,
        inputs={"mnist": Inputs(dimensions={})},
        libraries={},
        judge=lambda *_: (),
    )
