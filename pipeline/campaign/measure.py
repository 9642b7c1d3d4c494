"""Runs a campaign on open devices, round by round, waits until they are fit, and stores every result as it comes.

One worker a device. What was stored is not run again, so a campaign that was interrupted goes on where it stopped.
With `rounds = "auto"` rounds end when every comparison is decided: what is decided at a look is not run any more. That
follows from the runs that are stored, so a campaign that goes on decides the same.
"""

import logging
import math
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import msgspec

from device_runner import device as runner_device
from device_runner import local as local_device
from device_runner import options as runner_options
from device_runner import profile as ort_profile
from device_runner import result as run_result
from device_runner.device import Device, DeviceFacts
from device_runner.errors import RunnerError
from device_runner.result import RunResult, Status
from device_runner.spec import RunSpec
from pipeline import config as configs
from pipeline.campaign import store as campaign_store
from pipeline.campaign.denied import blame
from pipeline.campaign.plan import baselines, decision_rule, order_of_round
from pipeline.campaign.planned import Inputs, PlannedRun
from pipeline.campaign.record import FRESH_FROM, CampaignRecord, Prediction, RunRecord, Skipped, rounds_of
from pipeline.campaign.specs import spec_of
from pipeline.campaign.statistics import compare as run_compare
from pipeline.campaign.statistics import groups as run_groups
from pipeline.campaign.statistics import sustained as sustained_load
from pipeline.campaign.store import Store
from pipeline.check.compare import OutputCheck
from pipeline.core import file_names
from pipeline.core import groups as counting
from pipeline.core import progress as core_progress
from pipeline.core.progress import Progress

POLL_SECONDS = 5.0
"""Heat and charge change slowly."""


def unfit(limits: configs.ConditionsConfig, now: run_result.Conditions) -> list[str]:
    """What is beyond the limits; what a device does not tell counts as it should be."""
    reasons = []
    if (now.thermal_status or 0) > limits.max_thermal_status:
        reasons.append(f"thermal status {now.thermal_status}, at most {limits.max_thermal_status} is wanted")
    most = limits.max_battery_celsius
    if most is not None and now.battery_celsius is not None and now.battery_celsius > most:
        reasons.append(f"battery at {now.battery_celsius:g} °C, at most {most:g} is wanted")
    if now.battery_percent is not None and now.battery_percent < limits.min_battery_percent:
        reasons.append(f"battery at {now.battery_percent} %, at least {limits.min_battery_percent} is wanted")
    if limits.charging is not None and now.charging not in (None, limits.charging):
        advice = "not charging: plug it in" if limits.charging else "charging: unplug it, or join it over the network"
        reasons.append(advice)
    return reasons


def wait_until_fit(
    device: runner_device.Conditioned,
    limits: configs.ConditionsConfig,
    stop: threading.Event,
    poll_seconds: float = POLL_SECONDS,
) -> str:
    """Wait for the conditions, or `stop`; why the device must be left alone when they do not come in time, else "".

    A device that does not answer is for the next run to tell.
    """
    deadline = time.monotonic() + limits.wait_seconds
    warned = False
    while not stop.is_set():
        try:
            reasons = unfit(limits, device.conditions())
        except RunnerError:
            return ""
        if not reasons:
            return ""
        if time.monotonic() >= deadline:
            return f"not fit for runs within {limits.wait_seconds:g} s: {'; '.join(reasons)}"
        if not warned:
            log.warning("%s: waits: %s", device.name, "; ".join(reasons))
        warned = True
        stop.wait(min(poll_seconds, max(0.0, deadline - time.monotonic())))
    return ""


log = logging.getLogger(__name__)

PAUSES_SECONDS = (0.5, 5.0)
"""Waits before the second and third try of a run: a device on the network is back after some 4 s."""

TRIED_AGAIN = (run_result.FailureKind.LOST_DEVICE, run_result.FailureKind.GARBAGE, run_result.FailureKind.DEVICE_ERROR)
"""Failures on the way to or from a device: the same run may well succeed a moment later."""

OF_THE_DEVICE = (*TRIED_AGAIN, run_result.FailureKind.NO_SPACE, run_result.FailureKind.SET_UP)
"""Failures for which a device is left alone when it has nothing else for several runs."""

QUARANTINE_SECONDS = (10.0, 30.0, 60.0)
"""How long a device that fails is left in peace, time after time, until it is left for good: phones start in 60 s."""

GIVE_UP_AFTER = 3
"""Runs in a row, each tried again where that helps, that fail for the device's sake until it is left alone."""


class Schedule(Protocol):
    """What one device runs, one after the other, decided by what came of its runs before. Called from one thread."""

    def due(self) -> tuple[PlannedRun, int] | None:
        """The next planned run and its number; the same again until it was learned; None at the end."""

    def learn(self, run: RunRecord) -> None:
        """What came of a run that is not done again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignPlan:
    """What is to be measured. `libraries` are by device, `inputs` by the source of a run, for runs that name none.

    `check` compares a run's outputs with the original's; with None they are not kept.
    """

    campaign: str
    planned_runs: Sequence[PlannedRun]
    measure: configs.MeasureConfig
    artifacts: Path = Path()
    """The folder in which the files lie that have no path of their own."""
    inputs: Mapping[str, Inputs] = field(default_factory=dict)
    libraries: Mapping[str, str | None] = field(default_factory=dict)
    check: Callable[[PlannedRun, RunResult], tuple[OutputCheck, ...]] | None = None
    predictions: Mapping[str, Prediction] = field(default_factory=dict)
    """Planned run id to what is expected of it."""
    conditions: configs.ConditionsConfig | None = field(default_factory=configs.ConditionsConfig)
    """The state of a device in which runs start, and what is set on it meanwhile; None asks for nothing."""
    pauses_seconds: Sequence[float] = PAUSES_SECONDS
    quarantine_seconds: Sequence[float] = QUARANTINE_SECONDS
    profiles: Path = Path("profiles")
    """The folder for traces of profile runs."""
    schedules: Mapping[str, Schedule] = field(default_factory=dict)
    """By device, what it runs in place of rounds of `planned_runs`."""
    fence: Callable[[str, int], str] | None = None
    """Asked before each run with the device's name and the run's round: why it may not run any more, or "". None: it
    always may."""
    host: str = field(default_factory=run_result.host_name)
    """The name of this computer in results."""

    def turns(self, planned_runs: Sequence[PlannedRun]) -> Iterator[tuple[PlannedRun, int]]:
        """Runs with their rounds, in order: what heats the device for minutes comes last."""
        lasting = [planned for planned in planned_runs if planned.mode is configs.MeasureMode.SUSTAINED]
        others = [planned for planned in planned_runs if planned.mode is not configs.MeasureMode.SUSTAINED]
        # Where runs are profiled there is one more round: its times are compared with nothing.
        for number in range(self.measure.timed_rounds + self.measure.profile):
            for planned in order_of_round(others, number):
                if planned.mode is configs.MeasureMode.STEADY or not self.is_profiled(number):
                    yield planned, number
        for number in range(self.measure.sustained_rounds):
            yield from ((planned, number) for planned in order_of_round(lasting, number))

    def spec(self, planned: PlannedRun, number: int) -> RunSpec:
        """What a planned run runs in a round; its outputs are not kept."""
        return spec_of(
            planned,
            number,
            model_file=str(self.artifacts / planned.file),
            library=planned.library or self.libraries.get(planned.device),
            inputs=planned.inputs or self.inputs[planned.source],
            measure=self.measure,
        )

    def is_profiled(self, number: int) -> bool:
        """Whether this round is the one with the profiler on."""
        return self.measure.profile and self.measure.timed_rounds <= number < FRESH_FROM

    def round_name(self, number: int) -> str:
        """How people call a round."""
        if number >= FRESH_FROM:
            return f"fresh round {number - FRESH_FROM + 1}"
        return "profile" if self.is_profiled(number) else f"round {number + 1}"


OnRun = Callable[[str, PlannedRun, int], None]
"""Called with the device's name, the planned run and the round before each run; from the devices' threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPlan:
    """Everything that is stored of a plan, by the id of the planned run, and why devices were left, by their names."""

    records: dict[str, list[RunRecord]]
    left: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Open devices with a store of what they measured."""

    devices: dict[str, Device]
    facts: dict[str, DeviceFacts]
    unusable: tuple[Skipped, ...]
    store: Store
    work: Path
    progress: Progress

    def measure(self, campaign: CampaignRecord, plan: CampaignPlan) -> MeasuredPlan:
        """Run what of a plan is not stored yet."""
        self.store.start(campaign, self.facts.values())
        left = self.run(plan) if plan.planned_runs else {}
        records = counting.grouped((record.planned, record) for record in self.store.runs(campaign.id))
        return MeasuredPlan(records=records, left=left)

    def run(self, plan: CampaignPlan, shorter: str = "", here_seconds: float | None = None) -> dict[str, str]:
        """Run everything of a plan that is not stored yet, as `measure` does, and show it: a line for each device.

        `shorter` is how to measure less, said with the estimate where much is left: after a device's first run, on
        this computer before it, where `here_seconds` is how long one is expected to take here.
        """
        measured = {run.device for run in plan.planned_runs}
        devices = {name: device for name, device in self.devices.items() if name in measured}
        to_do = runs_left(plan, self.store)
        begun: set[str] = set()
        with self.progress.stage("measure", to_do.total()) as stage:
            lines = {
                name: stage.part(name, to_do[name], shorter, here_seconds if name == "local" else None)
                for name in devices
            }

            def show(device: str, run: PlannedRun, number: int) -> None:
                if device in begun:  # one has ended when the next begins
                    lines[device].done()
                begun.add(device)
                lines[device].at(f"{plan.round_name(number)}: {run.model}/{run.way}")

            left = measure(plan, devices, self.store, self.work, show)
            for device in begun - left.keys():
                lines[device].done()
            return left

    def blame(self, plan: CampaignPlan) -> tuple[runner_options.Denied, ...]:
        """What is newly denied for runs that crashed in any round, also before this process; one device at a time."""
        crashes = {
            run.planned: run.result
            for run in self.store.runs(plan.campaign)
            if run.result.failure and run.result.failure.code is run_result.FailureKind.CRASH
        }
        crashed = [run for run in plan.planned_runs if run.id in crashes and run.device in self.devices]
        denied = []
        with self.progress.stage("blame", len(crashed)) as stage:
            for run in crashed:
                stage.at(run.text)
                device, facts = self.devices[run.device], self.facts[run.device]
                entry = blame(device, facts, plan.spec(run, 0), crashes[run.id])
                denied += [entry] if entry else []
                stage.done()
        return tuple(denied)

    def away(self, campaign: CampaignRecord) -> dict[str, str]:
        """Why devices of a resumed campaign could not be opened this time; another host's are its own concern."""
        reasons = {skipped.device: skipped.text for skipped in self.unusable}
        hosts = {facts.name: facts.host for facts in self.store.devices(campaign.id)}
        return {
            name: reasons.get(name, "it is not connected")
            for name in sorted({run.device for run in campaign.job().planned})
            if name not in self.devices
            and not runner_device.is_reported(name)
            and hosts.get(name, "") in ("", run_result.host_name())
        }


def measure(
    plan: CampaignPlan, devices: Mapping[str, Device], store: Store, work: Path, progress: OnRun = lambda *_: None
) -> dict[str, str]:
    """Run everything that is not stored yet; returns why devices had to be left before the end.

    Ctrl-C, and an error of the store, stop the workers after the run that each is in; what they had is stored. A second
    Ctrl-C ends the runs on this computer, too: they are not stored.
    """
    stop = threading.Event()
    name = next(iter(devices)) if len(devices) == 1 else None
    finished, failed = store.finished(plan.campaign, name), store.failed(plan.campaign, name)
    workers = [_Worker(plan, device, store, finished, failed, work, progress, stop) for device in devices.values()]
    pool = ThreadPoolExecutor(max_workers=max(1, len(workers)), thread_name_prefix="device")
    futures = [pool.submit(worker.run) for worker in workers]
    patient = True
    try:
        reasons = zip(devices, [future.result() for future in futures], strict=True)
        return {device: reason for device, reason in reasons if reason}
    except KeyboardInterrupt:
        longest = core_progress.duration_text(plan.measure.timeout_seconds)
        core_progress.say(
            f"interrupted: finishing the runs in progress, for at most {longest}; Ctrl-C again ends them at once"
        )
        stop.set()
        try:
            wait(futures)
        except KeyboardInterrupt:
            patient = False
            local_device.end_runs()
            wait(futures, ENDED_SECONDS)  # each thread removes the folder of its run
            raise
        raise
    finally:
        stop.set()
        pool.shutdown(wait=patient)


ENDED_SECONDS = 5.0
"""For what is left of a run that was killed; one on a phone may take longer and is not waited for."""


def runs_left(plan: CampaignPlan, store: Store) -> Counter[str]:
    """How many runs of each device are not stored yet."""
    finished, failed = store.finished(plan.campaign), store.failed(plan.campaign)
    scheduled = [
        turn for schedule in plan.schedules.values() if isinstance(schedule, OpenTurns) for turn in schedule.turns
    ]
    return Counter(
        planned.device
        for planned, number in scheduled or plan.turns(plan.planned_runs)
        if planned.id not in failed and (planned.id, number) not in finished
    )


class _Worker:
    """The rounds of one device."""

    def __init__(
        self,
        plan: CampaignPlan,
        device: Device,
        store: Store,
        finished: Iterable[tuple[str, int]],
        failed: Iterable[str],
        work: Path,
        progress: OnRun,
        stop: threading.Event,
    ) -> None:
        self.plan = plan
        self.device = device
        self.store = store
        self.work = work
        self.progress = progress
        self.stop = stop
        self.schedule = plan.schedules.get(device.name)
        self.planned_runs = [planned for planned in plan.planned_runs if planned.device == device.name]
        self.finished = set(finished)
        self.given_up = set(failed)
        self.failures_in_a_row = 0
        self.may_come_back = False
        self.start_celsius: float | None = None
        """The battery's temperature when the first sustained run began."""
        self.quarantines = iter(plan.quarantine_seconds)

    def run(self) -> str:
        """Everything that is left to run; why the device had to be left before the end, or ""."""
        try:
            if self.plan.conditions and isinstance(
                self.device, runner_device.Conditioned
            ):  # it restores all when it is closed
                limits = self.plan.conditions
                for lack in self.device.arrange(fixed_performance=limits.stable, screen_on=limits.keep_screen_on):
                    log.warning("%s: %s", self.device.name, lack)
            while True:
                # What is due, as the schedule decides or else what is left of the rounds
                reason = ""
                for planned, number in (
                    iter(self.schedule.due, None) if self.schedule else self.plan.turns(self.planned_runs)
                ):
                    name = planned.id
                    if self.schedule or not (name in self.given_up or (name, number) in self.finished):
                        reason = self._run_one(planned, number)
                    if reason:
                        break
                seconds = next(self.quarantines, None) if reason and self.may_come_back else None
                if seconds is None or self.stop.is_set():
                    return reason
                log.warning("%s: in quarantine for %g s: %s", self.device.name, seconds, reason)
                self.failures_in_a_row, self.may_come_back = 0, False
                if self.stop.wait(seconds):
                    return reason
        except BaseException:
            self.stop.set()
            raise

    def _wait_until_fit(
        self, device: runner_device.Conditioned, limits: configs.ConditionsConfig, planned: PlannedRun
    ) -> str:
        """Wait for the conditions, a sustained run also until the device is as cool as when the first of them began.

        One that does not cool so far is measured nevertheless: its run is compared with none then.
        """
        if planned.mode is configs.MeasureMode.SUSTAINED and self.start_celsius is not None:
            most = min(limits.max_battery_celsius or math.inf, self.start_celsius + sustained_load.START_ROOM_CELSIUS)
            wait_until_fit(device, msgspec.structs.replace(limits, max_battery_celsius=most), self.stop)
        return wait_until_fit(device, limits, self.stop)

    def _run_one(self, planned: PlannedRun, number: int) -> str:
        """Wait for the conditions, run one spec and store what it gave; why no further run may begin, or ""."""
        reason = ""
        if self.plan.conditions and isinstance(self.device, runner_device.Conditioned):
            reason = self._wait_until_fit(self.device, self.plan.conditions, planned)
        if not reason and self.stop.is_set():
            reason = "interrupted"
        if not reason and self.plan.fence:
            reason = self.plan.fence(self.device.name, number)
        if reason:
            return reason
        self.progress(self.device.name, planned, number)
        with tempfile.TemporaryDirectory(dir=self.work, prefix="run.") as folder:
            spec = self.plan.spec(planned, number)
            if self.plan.is_profiled(number):
                spec = ort_profile.with_profiler(spec, folder)
            elif self.plan.check:
                spec = msgspec.structs.replace(spec, outputs_folder=folder)
            # The first try that the way to the device did not spoil, else the last; with its times
            started, begun = run_result.utc_now(), time.monotonic_ns()
            result = self.device.run(spec)
            for seconds in self.plan.pauses_seconds:
                failure = result.failure
                if failure is None or failure.code not in TRIED_AGAIN or self.stop.wait(seconds):
                    break
                log.info("%s: again after %s: %s", self.device.name, failure.code.value, failure.what)
                started, begun = run_result.utc_now(), time.monotonic_ns()
                result = self.device.run(spec)
            elapsed_ns = time.monotonic_ns() - begun
            if planned.mode is configs.MeasureMode.SUSTAINED and self.start_celsius is None:
                self.start_celsius = result.before.battery_celsius
            result = msgspec.structs.replace(result, started_at=started, elapsed_ns=elapsed_ns, host=self.plan.host)
            has_outputs = result.status is Status.OK and spec.perf_test is None
            checks = self.plan.check(planned, result) if self.plan.check and has_outputs else ()
            if spec.profile:
                result = ort_profile.with_profile(
                    result, self.plan.profiles / f"{file_names.safe_name(planned.text)}.json.gz"
                )
        name = planned.id
        expected = self.plan.predictions.get(name)
        record = RunRecord(
            campaign=self.plan.campaign,
            planned=name,
            round=number,
            model=planned.model,
            variant=planned.variant,
            spec=spec,
            result=result,
            checks=checks,
            prediction=expected if expected is None or spec.profile else expected.brief,
        )
        self.store.add_run(record, self.stop)
        reason = self._learn(planned, number, result)
        if self.schedule and ((name, number) in self.finished or name in self.given_up):
            self.schedule.learn(record)
        return reason

    def _learn(self, planned: PlannedRun, number: int, result: RunResult) -> str:
        """A run that cannot work is not tried in later rounds; a device that fails again and again is left alone."""
        failure = result.failure
        if failure is None or failure.code not in campaign_store.REPEATED:
            self.finished.add((planned.id, number))
        of_the_run = failure and failure.code is not run_result.FailureKind.LOST_DEVICE and self.failures_in_a_row == 0
        if failure and (failure.code not in campaign_store.REPEATED or of_the_run):
            self.given_up.add(planned.id)  # where the device had just answered, until the campaign goes on
        if failure is None or failure.code not in OF_THE_DEVICE:
            self.failures_in_a_row = 0
            self.quarantines = iter(self.plan.quarantine_seconds)
            return ""
        self.failures_in_a_row += 1
        log.warning("%s: %s: %s", self.device.name, failure.code.value, failure.what)
        if failure.code is run_result.FailureKind.LOST_DEVICE or self.failures_in_a_row >= GIVE_UP_AFTER:
            self.may_come_back = failure.code in TRIED_AGAIN
            return failure.what or failure.code.value
        return ""


Turn = tuple[PlannedRun, int]
"""A planned run and the number of its round."""


def with_looks(plan: CampaignPlan, planned_runs: Sequence[PlannedRun], store: Store) -> CampaignPlan:
    """The plan with schedules that end rounds early, where that is asked for; `planned_runs` are all, also those that
    run the same as another.
    """
    if plan.measure.rounds != "auto":
        return plan
    compared = baselines(planned_runs, plan.measure.baseline)
    stored = [run for run in store.runs(plan.campaign) if run.result.failure is None]
    devices = {planned.device for planned in plan.planned_runs}
    return replace(plan, schedules={name: RoundsWithLooks(plan, name, compared, stored, store) for name in devices})


class OpenTurns:
    """The turns of one device that are not stored yet, in their order; a run that failed has no more of them."""

    def __init__(self, turns: Iterable[Turn], store: Store, campaign: str) -> None:
        self.turns = tuple(turns)
        self.done = set(store.finished(campaign))
        self.given_up = set(store.failed(campaign))

    def is_open(self, planned: PlannedRun, number: int) -> bool:
        """Whether a turn is to be run, as far as is known now."""
        name = planned.id
        return name not in self.given_up and (name, number) not in self.done

    def due(self) -> Turn | None:
        """The first turn that is open."""
        return next((turn for turn in self.turns if self.is_open(*turn)), None)

    def learn(self, run: RunRecord) -> None:
        """A run that failed is not due again."""
        self.done.add((run.planned, run.round))
        if run.result.failure is not None:
            self.given_up.add(run.planned)

    def pass_over(self, run: RunRecord) -> None:
        """A turn that was spoilt is not due again, and says nothing of the others of its run."""
        self.done.add((run.planned, run.round))


class RoundsWithLooks(OpenTurns):
    """The rounds of one device, of which fewer and fewer runs are left."""

    def __init__(
        self,
        plan: CampaignPlan,
        device: str,
        compared: Mapping[str, str],
        stored: Iterable[RunRecord],
        store: Store,
    ) -> None:
        super().__init__(plan.turns([run for run in plan.planned_runs if run.device == device]), store, plan.campaign)
        self.plan = plan
        self.device = device
        self.compared = compared
        self.runs = {run.id: run for run in plan.planned_runs if run.device == device}
        self.records: dict[str, list[RunRecord]] = {name: [] for name in self.runs}
        self.open: dict[int, set[str]] = {}
        for run in stored:
            if run.planned in self.runs:
                self._keep(run)

    def is_open(self, planned: PlannedRun, number: int) -> bool:
        """Whether a turn is to be run, and the last look has not decided it.

        Before the first look and with the profiler all runs are wanted, else those whose comparison more rounds may
        decide, and their baselines. Cold starts have no more rounds: nothing is decided by them.
        """
        if not super().is_open(planned, number):
            return False
        rule = decision_rule(self.plan.measure)
        look = max((look for look in rule.looks if look <= number), default=0)
        if not look or self.plan.is_profiled(number):
            return planned.id in self.runs
        if look not in self.open:
            left: set[str] = set()
            count = 0
            steady = [name for name, run in self.runs.items() if run.mode is configs.MeasureMode.STEADY]
            for baseline in dict.fromkeys(self.compared[name] for name in steady):
                others = [name for name in steady if name != baseline and self.compared[name] == baseline]
                groups = [self._group(name, look) for name in others if name not in self.given_up]
                open_groups = run_compare.undecided(groups, self._group(baseline, look), rule)
                open_names = {group.key for group in open_groups} if baseline not in self.given_up else set()
                left |= open_names | ({baseline} if open_names else set())
                count += len(open_names)
            if count:  # said once
                most = self.plan.measure.timed_rounds
                log.warning("%s: %d comparisons are open after %d rounds of at most %d", self.device, count, look, most)
            self.open[look] = left
        return planned.id in self.open[look]

    def learn(self, run: RunRecord) -> None:
        """What a run measured counts at the next look."""
        super().learn(run)
        if run.result.failure is None:
            self._keep(run)

    def _keep(self, run: RunRecord) -> None:
        if run.result.status is Status.OK and not run.spec.profile:
            self.records[run.planned].append(run)

    def _group(self, name: str, look: int) -> run_groups.RunGroup:
        return rounds_of((run for run in self.records[name] if run.round < look), name)
