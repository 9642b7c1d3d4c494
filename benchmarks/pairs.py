"""Equal and slightly different runs through the real engine: how often a verdict is wrong, and how often 3 % is found.

Equal: eight lanes of the example's model, rounds of short processes; every two lanes are a pair, so pairs of a campaign
are not independent. Different: chains of 100 and 103 equal MatMuls, 3 % more work, measured until a look decides.
`--minutes N` bounds each half by N / 2 minutes (10 by default): a campaign that has begun is finished.
"""

import argparse
import itertools
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from benchmarks.campaign import EXAMPLE
from benchmarks.simulate.verdicts import markdown
from device_runner.files import sha256
from device_runner.local import LocalDevice
from device_runner.probe.build import build_probe
from device_runner.result import Status, utc_now
from device_runner.spec import RunOptions
from pipeline.campaign.looks import looking
from pipeline.campaign.measure import CampaignPlan, measure
from pipeline.campaign.plan import Inputs, PlannedRun, decision_rule, planned_id
from pipeline.campaign.record import CampaignRecord
from pipeline.campaign.statistics import DEFAULT_RULE, DecisionRule, Round, RunGroup, Verdict, compare
from pipeline.campaign.store import open_store
from pipeline.config import MeasureConfig

LANES, ROUNDS, FEWER = 8, 8, 5
SIDE, WORK = 128, (100, 103)
EQUAL = MeasureConfig(rounds=ROUNDS, warmup=3, min_runs=20, min_seconds=0.05)
DIFFERENT = MeasureConfig(rounds="auto", most_rounds=30, warmup=3, min_runs=10, min_seconds=0.1)


@dataclass(slots=True)
class Tally:
    """What came of pairs: verdicts, intervals that hold 1 (or 1.03), seconds and log round medians' deviations."""

    verdicts: list[Verdict] = field(default_factory=list)
    held: list[bool] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    deviations: list[float] = field(default_factory=list)

    def add(self, ours: RunGroup, baseline: RunGroup, rule: DecisionRule, true: float) -> None:
        """Judge one pair."""
        found = compare(ours, baseline, rule)
        if found is not None and found.low is not None and found.high is not None:
            self.verdicts.append(found.verdict)
            self.held.append(found.low <= true <= found.high)
            self.rounds.append(found.rounds)

    def share(self, *verdicts: Verdict) -> float:
        """How many pairs were called so, in per cent."""
        return 100 * sum(one in verdicts for one in self.verdicts) / max(1, len(self.verdicts))


def chain(count: int, path: Path) -> Path:
    """A model of so many equal MatMuls, one after the other."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weight = np.random.default_rng(0).standard_normal((SIDE, SIDE)).astype(np.float32) * np.float32(SIDE**-0.5)
    nodes = [helper.make_node("MatMul", [f"v{n}", "w"], [f"v{n + 1}"]) for n in range(count)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [SIDE, SIDE]) for name in ("v0", f"v{count}")]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], [numpy_helper.from_array(weight, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save_model(model, str(path))
    return path


def lane(name: str, file: Path) -> PlannedRun:
    """A file under a name, on one thread."""
    return PlannedRun(
        device="local", model="m", variant=name, source="m", file=str(file), sha256=sha256(file),
        size_bytes=file.stat().st_size, options=RunOptions(intra_op_threads=1),
    )  # fmt: skip


def campaign(lanes: Sequence[PlannedRun], config: MeasureConfig, device: LocalDevice, folder: Path) -> list[RunGroup]:
    """The rounds of each lane, measured by the engine with a store of its own."""
    plan = CampaignPlan(
        campaign="c", planned_runs=lanes, measure=config, artifacts=Path(), inputs={"m": Inputs(dimensions={})},
        libraries={}, judge=None, conditions=None,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(dir=folder) as name, open_store(f"sqlite:///{name}/results.sqlite") as store:
        store.start(CampaignRecord(id="c", name="c", created_at=utc_now()))
        if config.rounds == "auto":
            plan = replace(plan, schedules=looking(plan, lanes, store))
        measure(plan, {device.name: device}, store, Path(name))
        runs = store.runs("c")
    failed = [run.result.failure for run in runs if run.result.status is not Status.OK]
    if failed:
        raise SystemExit(f"a run failed: {failed[0]}")
    return [
        RunGroup(key=one.variant, rounds=tuple(Round(number=run.round, latencies_ns=run.result.latencies_ns)
                                               for run in runs if run.planned == planned_id(one)))
        for one in lanes
    ]  # fmt: skip


def until(minutes: float) -> Iterator[float]:
    """When the last one ended, until time is up; at least once."""
    end = time.monotonic() + 60 * minutes
    while True:
        yield time.monotonic()
        if time.monotonic() >= end:
            return


def deviation(groups: Sequence[RunGroup]) -> float:
    """Of the logarithms of round medians, in per cent, the mean of the lanes."""
    logs = [np.log([np.median(timed.latencies_ns) for timed in one.rounds]) for one in groups]
    return 100 * float(np.mean([values.std(ddof=1) for values in logs]))


def equal_pairs(device: LocalDevice, folder: Path, minutes: float) -> dict[int, Tally]:
    """Pairs of equal lanes, judged after FEWER and after all rounds."""
    found = {FEWER: Tally(), ROUNDS: Tally()}
    for begun in until(minutes):
        groups = campaign([lane(f"lane-{n}", EXAMPLE) for n in range(LANES)], EQUAL, device, folder)
        pairs = list(itertools.combinations(groups, 2))
        for count, tally in found.items():
            kept = {one.key: RunGroup(key=one.key, rounds=one.rounds[:count]) for one in groups}
            for ours, baseline in pairs:
                tally.add(kept[ours.key], kept[baseline.key], DEFAULT_RULE, 1.0)
            tally.seconds.append((time.monotonic() - begun) / len(pairs))
            tally.deviations.append(deviation(list(kept.values())))
    return found


def different_pairs(device: LocalDevice, folder: Path, minutes: float) -> Tally:
    """Pairs of which one has 3 % more work."""
    files = [chain(count, folder / f"chain-{count}.onnx") for count in WORK]
    tally = Tally()
    for begun in until(minutes):
        baseline, ours = campaign([lane(file.stem, file) for file in files], DIFFERENT, device, folder)
        tally.add(ours, baseline, decision_rule(DIFFERENT), WORK[1] / WORK[0])
        tally.seconds.append(time.monotonic() - begun)
        tally.deviations.append(deviation([baseline, ours]))
    return tally


def row(name: str, tally: Tally) -> tuple[str, ...]:
    """The cells of a line."""
    return (
        name, str(len(tally.verdicts)), f"{np.mean(tally.rounds or [0]):.1f}",
        f"{np.median(tally.deviations or [0]):.1f} %", f"{tally.share(Verdict.FASTER):.2f}",
        f"{tally.share(Verdict.SLOWER):.2f}", f"{tally.share(Verdict.SAME):.1f}",
        f"{tally.share(Verdict.NOT_SHOWN):.1f}", f"{100 * np.mean(tally.held or [False]):.1f}",
        f"{np.mean(tally.seconds or [0]):.1f}, at most {max(tally.seconds, default=0):.1f}",
    )  # fmt: skip


def main() -> None:
    """Print one line for each kind of pair."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=10.0)
    minutes = parser.parse_args().minutes
    head = ("pair", "pairs", "rounds", "sd of log round medians", "faster %", "slower %", "same %",
            "no difference shown %", "95 % interval holds the truth %", "seconds a pair")  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        device, folder = LocalDevice(build_probe()), Path(name)
        rows = [row(f"equal, {n} rounds", one) for n, one in equal_pairs(device, folder, minutes / 2).items()]
        rows.append(row("3 % more work, looks until 30 rounds", different_pairs(device, folder, minutes / 2)))
    print(markdown(head, rows))
