"""Runs start on devices that are as the config wants them, wait for those that become so, and leave the others."""

import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from device_runner.device import Conditioned
from device_runner.errors import UnavailableError
from device_runner.result import Conditions, RunResult
from device_runner.spec import RunSpec
from pipeline.campaign.measure import measure, unfit, wait_until_fit
from pipeline.campaign.store import open_store
from pipeline.config import ConditionsConfig, MeasureMode
from tests.command import ort_mobile
from tests.scripted_devices import CAMPAIGN, ScriptedDevice, lanes_of, plan_of

DEFAULT = ConditionsConfig()


@pytest.mark.parametrize(
    ("wanted", "now", "told"),
    [
        (DEFAULT, Conditions(), ""),
        (DEFAULT, Conditions(thermal_status=1), "thermal status 1"),
        (ConditionsConfig(max_thermal_status=1), Conditions(thermal_status=1), ""),
        (DEFAULT, Conditions(battery_percent=19), "battery at 19 %"),
        (DEFAULT, Conditions(battery_percent=20, battery_celsius=60.0), ""),
        (ConditionsConfig(max_battery_celsius=38.5), Conditions(battery_celsius=39.0), "39 °C, at most 38.5"),
        (ConditionsConfig(charging=True), Conditions(charging=False), "plug it in"),
        (ConditionsConfig(charging=False), Conditions(charging=True), "unplug it"),
        (ConditionsConfig(charging=False), Conditions(), ""),
    ],
)
def test_rules(wanted: ConditionsConfig, now: Conditions, told: str) -> None:
    reasons = unfit(wanted, now)
    assert told in "".join(reasons)
    assert len(reasons) == bool(told)


class Warm(ScriptedDevice):
    """A device with conditions, one of those given at each question, the last for ever."""

    def __init__(self, name: str, *, states: list[Conditions]) -> None:
        super().__init__(name)
        self.states = states
        self.asked: dict[str, bool] = {}

    def conditions(self) -> Conditions:
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]

    def arrange(self, *, fixed_performance: bool, screen_on: bool) -> list[str]:
        self.asked = {"stable": fixed_performance, "screen": screen_on}
        return ["no such mode"]


HOT, COOL = Conditions(thermal_status=3), Conditions(thermal_status=0)


def test_it_waits_until_the_device_has_cooled_down() -> None:
    device = Warm("w", states=[HOT, HOT, COOL])
    assert isinstance(device, Conditioned)
    assert wait_until_fit(device, DEFAULT, threading.Event(), poll_seconds=0.001) == ""
    assert device.states == [COOL]


def interrupt(stop: threading.Event) -> Conditions:
    stop.set()
    return HOT


def silent(_: threading.Event) -> Conditions:
    raise UnavailableError("it does not answer")


@pytest.mark.parametrize("answer", [interrupt, silent])
def test_ctrl_c_and_silence_end_the_wait(
    answer: Callable[[threading.Event], Conditions], monkeypatch: pytest.MonkeyPatch
) -> None:
    device, stop = Warm("w", states=[HOT]), threading.Event()
    monkeypatch.setattr(device, "conditions", lambda: answer(stop))
    assert wait_until_fit(device, DEFAULT, stop, poll_seconds=60.0) == ""


def test_a_campaign_leaves_a_device_that_stays_hot_and_arranges_the_others(tmp_path: Path) -> None:
    hot, cool = Warm("hot", states=[HOT]), Warm("cool", states=[COOL])
    plan = plan_of(lanes_of(["hot", "cool"], 2), 1, ConditionsConfig(stable=True, wait_seconds=0.001))
    with open_store(f"sqlite:///{tmp_path / 'results.sqlite'}") as store:
        store.start(CAMPAIGN)
        left = measure(plan, {"hot": hot, "cool": cool}, store, tmp_path)
        assert {run.result.device for run in store.runs(CAMPAIGN.id)} == {"cool"}
    assert list(left) == ["hot"]
    assert "not fit for runs within 0.001 s: thermal status 3, at most 0" in left["hot"]
    assert cool.asked == {"stable": True, "screen": False}


asked_of: list[Warm] = []


def open_warm(_: str, _waiting: object) -> Warm:
    asked_of.append(Warm("warm:x", states=[HOT, COOL] if len(asked_of) % 2 == 0 else [HOT]))
    return asked_of[-1]


def test_perf_waits_and_arranges_where_it_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:

    from device_runner.device import OPENERS

    monkeypatch.setitem(OPENERS, "warm", f"{__name__}:open_warm")
    model = tmp_path / "m.onnx"
    model.write_bytes(b"x")

    def said(*more: str) -> tuple[int, str]:
        arguments = [str(model), "--device", "warm:x", "--rounds", "1", *more]
        ended = ort_mobile("perf", *arguments, code=None)
        return ended.code, " ".join(ended.text.split())

    assert said("--stable", "--wait-seconds", "0.05")[0] == 0
    assert asked_of[-1].asked == {"stable": True, "screen": False}
    assert asked_of[-1].states == [COOL]
    code, text = said("--max-thermal-status", "1", "--wait-seconds", "0.01")
    assert code == 1
    assert "thermal status 3, at most 1 is wanted" in text
    assert said()[0] == 0, "without a wish a hot device is measured"
    assert asked_of[-1].asked == {}


class Heating(Warm):
    """A device whose runs say at what temperature they began."""

    def run(self, spec: RunSpec) -> RunResult:
        return msgspec.structs.replace(super().run(spec), before=self.states[0])


def at(celsius: float) -> Conditions:
    return Conditions(battery_celsius=celsius)


@pytest.mark.parametrize(
    ("states", "begins"),
    [([at(30), at(41), at(31)], [30, 31]), ([at(30), at(41)], [30, 41])],
    ids=["it cools", "it does not and is measured nevertheless"],
)
def test_sustained_runs_wait_for_the_temperature_of_the_first(
    states: list[Conditions], begins: list[int], tmp_path: Path
) -> None:
    device = Heating("w", states=[states[0], *states])
    lanes = [dataclasses.replace(lane, mode=MeasureMode.SUSTAINED) for lane in lanes_of(["w"], 2)]
    plan = plan_of(lanes, 1, ConditionsConfig(wait_seconds=0.2))
    with open_store(f"sqlite:///{tmp_path}/r.sqlite") as store:
        store.start(CAMPAIGN, [device.facts()])
        assert measure(plan, {"w": device}, store, tmp_path) == {}
        runs = store.runs(CAMPAIGN.id)
    assert sorted(run.result.before.battery_celsius or 0 for run in runs) == begins
