"""Devices that drift, fail or compute otherwise are quarantined, healthy ones are not; marks reach reports."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from device_runner.result import Mark, host_name
from pipeline.campaign.statistics.groups import Doubt
from pipeline.campaign.statistics.level import UsualLevel
from pipeline.campaign.store import Store
from pipeline.core.errors import ConfigError
from pipeline.core.progress import NoProgress
from pipeline.features.lab import checks, health, tables
from pipeline.features.lab.campaigns import close, lab_versions
from pipeline.features.lab.queue import DONE, FAILED, attached_devices, jobs_of
from pipeline.features.lab.status import lab_status, status_lines
from pipeline.job.assemble import assemble
from tests.command import ROOT, ort_mobile
from tests.features.lab.farm import (
    HEALTH,
    NOISE,
    RECORDED,
    agent,
    all_in,
    check_stored,
    golden_stored,
    rigs,
    submitted,
    until,
)

LEVEL = UsualLevel(1000.0, 40.0)


def outcome(level: UsualLevel | None, *values: int) -> health.CheckOutcome:
    """What a check comes to whose groups have these values; more of them are an error."""
    left = list(values)
    judged = health.judged(lambda: left.pop(0), level)
    assert left == []
    return judged


def test_a_check_is_out_where_no_group_lies_within_what_is_usual() -> None:
    assert outcome(LEVEL, 1040).is_out is False
    assert outcome(LEVEL, 1100, 1090, 1039).is_out is False
    assert outcome(LEVEL, 1100, 1090, 900).is_out is False, "on both sides of what is usual"
    slow = outcome(LEVEL, 1100, 1090, 1300, 1080, 1200, 1150)
    assert (slow.is_out, slow.nearest_ns, slow.ratio) == (True, 1080, 1.08)
    assert outcome(LEVEL, 950, 940, 930, 920, 910, 900).ratio == 0.95
    assert outcome(None, 1300, 1000) == health.CheckOutcome(values_ns=(1300, 1000), nearest_ns=1000)


def test_two_of_three_checks_in_one_direction_are_a_drift() -> None:
    slow = health.CheckOutcome(ratio=1.1, is_out=True)
    assert health.is_drift(slow, [1.2])
    assert health.is_drift(slow, [None, 1.2])
    assert not health.is_drift(slow, [None, None, 1.2])
    assert not health.is_drift(slow, [0.8, None])
    assert not health.is_drift(slow, [])
    assert not health.is_drift(health.CheckOutcome(ratio=1.01), [1.2, 1.2])


def test_too_few_checks_say_nothing() -> None:
    assert health.usual([1000.0] * 7) is None
    assert health.usual([1000.0] * 8) == UsualLevel(1000.0, 40.0)
    assert health.usual([1e6] * 60 + [1000.0] * 40) == UsualLevel(1000.0, 40.0)


class Simulated:
    """A device whose groups take what was recorded, from places in time that are like those of batches."""

    def __init__(self, values: list[int], random: np.random.Generator) -> None:
        self.values, self.random, self.place = values, random, 0
        self.good: dict[str, list[float]] = {"before": [], "after": []}
        self.ratios: list[float | None] = []

    def check(self, moment: str, factor: float = 1.0) -> bool:
        """Whether a check finds a drift."""
        before = moment == "before"  # the check after a batch comes minutes later
        self.place = int(self.random.integers(len(self.values)) if before else self.place + self.random.integers(5, 60))

        def group() -> int:
            self.place += 2
            return int(self.values[self.place % len(self.values)] * factor)

        result = health.judged(group, health.usual(self.good[moment]))
        found = health.is_drift(result, self.ratios[::-1])
        self.ratios.append(result.ratio if result.is_out else None)
        if not result.is_out and result.nearest_ns:
            self.good[moment].append(result.nearest_ns)
        return found


def simulated(name: str, random: np.random.Generator) -> Simulated:
    """A device that has had 30 batches."""
    device = Simulated(RECORDED if name == "quiet" else NOISE[name], random)
    for _ in range(30):
        device.check("before")
        device.check("after")
    return device


@pytest.mark.parametrize(("name", "least"), [("quiet", 0.97), ("conv", 0.84), ("mnist", 0.97)])
def test_days_of_recorded_noise(name: str, least: float) -> None:
    """Healthy days of 24 batches, and 10 % that begin before or within a batch, found by the end of the second.

    All of `conv` and `mnist` are of a computer with several times as much to do as it can do at once; `quiet` has what
    nothing disturbed.
    """
    random, days = np.random.default_rng(51), 250
    false = found = 0
    for number in range(days):
        device = simulated(name, random)
        false += any(device.check(moment) for _ in range(24) for moment in ("before", "after"))
        device = simulated(name, random)
        at = number % 2  # the first check that sees it
        found += any(device.check(moment, 1.1 if place >= at else 1.0) for place, moment in enumerate(MOMENTS))
    assert false <= days / 100
    assert found >= least * days


MOMENTS = ("before", "after") * 2


# --- with a database --------------------------------------------------------------------------------------------------


@pytest.fixture
def ill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of what is wrong with rigs."""
    path = tmp_path / "health.json"
    path.write_text("{}")
    monkeypatch.setenv(HEALTH, str(path))
    monkeypatch.setattr(health, "PAUSE_SECONDS", 0.01)
    return path


def is_ill(path: Path, **rows: Mapping[str, Any]) -> None:
    """Rigs by number, as rig0."""
    path.with_suffix(".new").write_text(json.dumps({f"rig:{name[3:]}": row for name, row in rows.items()}))
    path.with_suffix(".new").replace(path)


def with_history(store: Store, names: tuple[str, ...], golden: str) -> None:
    """Thirty good checks of each device and moment, as recorded."""
    setting = f"; onnxruntime {lab_versions()['onnxruntime']}; probe {lab_versions()['probe']}"
    random = np.random.default_rng(3)
    rows = [
        {"device": name, "host": "h1", "at": sa.func.now(), "golden": golden, "moment": moment, "setting": setting,
         "value_ns": int(random.choice(RECORDED)), "good": True, "last_run": 0}
        for name in names for moment in ("before", "after") for _ in range(30)
    ]  # fmt: skip
    store.write(lambda connection: [connection.execute(tables.checks.insert().values(row)) for row in rows])


pg = pytest.mark.postgresql


@pg
def test_one_of_eight_devices_drifts(url: str, store: Store, tmp_path: Path, ill: Path) -> None:
    """It is quarantined within two batches; what it measured since its last good check is marked, in reports, too."""
    names = rigs(8)
    golden = golden_stored(store, tmp_path / "golden")
    with_history(store, names, golden)
    first = submitted(store, tmp_path, names, 2)
    with agent(url, "h1", names):
        until(all_in(store, DONE))
        assert checks.in_quarantine(store) == {}
        is_ill(ill, rig3={"factor": 1.1})
        batches = []
        for name in ("c2", "c3"):
            batches.append(submitted(store, tmp_path, names, 2, name))
            until(all_in(store, DONE, FAILED))
    (held,) = checks.in_quarantine(store).items()
    assert held[0] == "rig:3"
    assert "slower than usual" in held[1]["reason"]
    assert f"in quarantine: rig:3, since {held[1]['since'][:10]}" in "\n".join(status_lines(lab_status(url)))
    failed = [job for job in jobs_of(store) if job.state == FAILED]
    assert failed
    assert {(job.device, job.reason) for job in failed} == {("rig:3", f"in quarantine: {held[1]['reason']}")}
    check_stored(store, first, 2)
    assert not any(Mark.QUARANTINED in run.result.marks for run in store.runs("c1"))
    marked = [run for name in ("c2", "c3") for run in store.runs(name) if Mark.QUARANTINED in run.result.marks]
    assert {run.result.device for run in marked} == {"rig:3"}
    assert len(marked) == sum(run.result.device == "rig:3" for name in ("c2", "c3") for run in store.runs(name)) > 0
    campaign = marked[0].campaign
    report = assemble(store, store.campaign(campaign)).report
    doubted = {row.device for row in report.rows for caution in row.cautions if caution.code is Doubt.QUARANTINED}
    assert doubted == {"rig:3"}
    assert all(row.comparison is None for row in report.rows if row.device == "rig:3")
    assert any(row.comparison for row in report.rows if row.device == "rig:4")
    query = sa.text("SELECT DISTINCT device FROM run_summary WHERE in_doubt")
    assert store.read(lambda connection: list(connection.scalars(query))) == ["rig:3"]
    # an operator gives it back: repaired, or sound after all
    late = submitted(store, tmp_path, names[3:4], 1, "late")
    assert [job.state for job in jobs_of(store, late.id)] == [FAILED]
    with pytest.raises(ConfigError, match="no device 'rig:4' is in quarantine") as refused:
        checks.release(store, "rig:4", sound=False)
    assert "rig:3" in refused.value.why
    ort_mobile("lab", "release", "rig:3", "--database", url)
    assert checks.in_quarantine(store) == {}
    assert any(Mark.QUARANTINED in run.result.marks for run in store.runs(campaign))
    is_ill(ill)
    again = submitted(store, tmp_path, names[3:4], 1, "again")
    with agent(url, "h1", names[3:4]):
        until(lambda: [job.state for job in jobs_of(store, again.id)] == [DONE])
    assert not any(Mark.QUARANTINED in run.result.marks for run in store.runs("again"))


@pg
def test_what_a_sound_device_measured_counts_again(url: str, store: Store, tmp_path: Path, ill: Path) -> None:
    names = rigs(1)
    golden_stored(store, tmp_path / "golden")
    is_ill(ill, rig0={"wrong": True})
    submitted(store, tmp_path, names, 1)
    with agent(url, "h1", names):
        until(all_in(store, FAILED))
    (row,) = checks.in_quarantine(store).values()
    assert "the golden model gives other outputs: scores" in row["reason"]
    assert store.runs("c1") == (), "nothing was measured on it"
    ort_mobile("lab", "release", "rig:0", "--sound", "--database", url)
    assert checks.in_quarantine(store) == {}


@pg
def test_a_device_that_fails_after_a_batch_is_quarantined(
    url: str, store: Store, tmp_path: Path, ill: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = rigs(2)
    golden_stored(store, tmp_path / "golden")
    examine = health.Examiner.examine

    def broken_meanwhile(self: health.Examiner, moment: health.Moment) -> str:
        if moment == "after":
            is_ill(ill, rig1={"fails": "crash"})
        return examine(self, moment)

    monkeypatch.setattr(health.Examiner, "examine", broken_meanwhile)
    campaign = submitted(store, tmp_path, names, 1)
    with agent(url, "h1", names):
        until(all_in(store, DONE, FAILED))
    assert {job.device: job.state for job in jobs_of(store)} == {"rig:0": DONE, "rig:1": FAILED}
    assert {run.result.device for run in store.runs("c1") if Mark.QUARANTINED in run.result.marks} == {"rig:1"}
    (row,) = checks.in_quarantine(store).values()
    assert "the golden model fails: as scripted: it is broken" in row["reason"]
    close(url, campaign.id, tmp_path / "closed", NoProgress())
    assert "quarantined" in (tmp_path / "closed/report.html").read_text()


@pg
def test_a_golden_model_that_a_device_cannot_run_is_one_error_and_stops_no_other(
    url: str, store: Store, tmp_path: Path, ill: Path
) -> None:
    names = rigs(2)
    golden_stored(store, tmp_path / "golden")
    is_ill(ill, rig0={"fails": "model_load"})
    submitted(store, tmp_path, names, 1)
    with agent(url, "h1", names):
        until(all_in(store, DONE, FAILED))
    job, other = jobs_of(store)
    assert (job.state, other.state) == (FAILED, DONE)
    assert "the golden model does not run on this device: the golden model fails: as scripted" in job.reason
    assert checks.in_quarantine(store) == {}
    checks.set_golden(store, "")
    submitted(store, tmp_path, names, 1, "c2")
    with agent(url, "h1", names):
        until(lambda: [job.state for job in jobs_of(store, "c2")] == [DONE, DONE])


@pg
def test_a_device_that_is_lost_in_a_check_is_not_quarantined(url: str, store: Store, tmp_path: Path, ill: Path) -> None:
    golden_stored(store, tmp_path / "golden")
    is_ill(ill, rig0={"fails": "lost_device"})
    submitted(store, tmp_path, rigs(1), 1)
    with agent(url, "h1", rigs(1)):
        until(all_in(store, FAILED))
    assert "no check of the device's health: as scripted" in jobs_of(store)[0].reason
    assert checks.in_quarantine(store) == {}


@pg
@pytest.mark.long
def test_the_golden_model_of_the_repository_on_this_computer(url: str, store: Store, tmp_path: Path) -> None:
    folder = ROOT / "build_configs/lab"
    shutil.copy(folder / "golden.onnx", tmp_path)
    text = (folder / "golden.toml").read_text()
    (tmp_path / "golden.toml").write_text(
        text[: text.index("[[targets]]")] + '[[targets]]\nname = "hosts"\nplatform = "linux"\n'
    )  # no phone's library here
    done = ort_mobile("lab", "golden", "golden.toml", "--database", url, cwd=tmp_path, process=True)
    assert "devices are checked with it" in done.out
    (tmp_path / "my.toml").write_text(
        'name = "my"\ndevices = ["local"]\nmodels = [{ path = "golden.onnx" }]\n'
        'targets = [{ name = "linux", platform = "linux" }]\nvariants = { levels = ["basic"], styles = ["fixed"] }\n'
        "runs = [{ threads = 1 }]\nmeasure = { rounds = 1, min_runs = 2, min_seconds = 0.001 }\n"
    )
    with agent(url, host_name(), ("local",)):
        until(lambda: bool(attached_devices(store)))
        ort_mobile("lab", "submit", "my.toml", "--database", url, cwd=tmp_path, process=True)
        until(all_in(store, DONE, FAILED))
    assert [(job.state, job.reason) for job in jobs_of(store)] == [(DONE, "")]
    rows = store.read(lambda connection: connection.execute(sa.select(tables.checks)).all())
    assert [row.moment for row in rows][:2] == ["before", "after"]
    assert all(row.good and row.value_ns for row in rows)
    assert state_has(url, store.read(checks.golden_of))


def state_has(url: str, golden: str) -> bool:
    return bool(golden) and lab_status(url)["golden"] == golden


@pg
def test_every_device_in_quarantine_is_said_when_submitting(url: str, store: Store, tmp_path: Path, ill: Path) -> None:
    golden_stored(store, tmp_path / "golden")
    is_ill(ill, rig0={"wrong": True})
    submitted(store, tmp_path, rigs(1), 1)
    with agent(url, "h1", rigs(1)):
        until(all_in(store, FAILED))
        folder = ROOT / "build_configs"
        said = ort_mobile("lab", "submit", folder / "mnist.toml", "--device", "rig:0", "--database", url, code=3).err
    assert "every device that is meant is in quarantine" in said
    assert "lab release DEVICE" in said
