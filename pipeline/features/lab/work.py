"""The agent of a host: takes jobs of devices that are attached to it, one thread for each, until it is told to stop.

Its session with the database is its lease of every device. What may happen at any moment (a kill, a cable pulled, the
database restarted, this process stopped for a while) ends the session; then workers stop before their next run, the
agent opens a new session, and goes on with what nobody else has taken.
"""

import logging
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial

import msgspec

from device_runner.errors import RunnerError
from device_runner.files import RUN_PREFIX, remove_abandoned, scratch_folder
from device_runner.result import host_name
from pipeline.campaign.measure import measure
from pipeline.campaign.plan import planned_id
from pipeline.campaign.store import StoreError, open_store
from pipeline.features.lab.agent import MOST_NAMES, Agent, Attached, alive, begin_looking, sessions_of
from pipeline.features.lab.carry import (
    Carried,
    carried_campaigns,
    carried_folder,
    fetched,
    other_versions,
    plan_here,
    planned_here,
)
from pipeline.features.lab.queue import (
    DONE,
    FAILED,
    FRESH,
    MEASURED,
    MOST_ATTEMPTS,
    OPEN,
    RUNNING,
    WAITING,
    LabJob,
    again_of,
    change_job,
    end_stage,
    ended_campaigns,
    jobs_of,
    open_jobs,
    stages_to_end,
)
from pipeline.features.lab.session import LabSession, SessionLost
from pipeline.job.bench import opened
from pipeline.job.campaign import fresh_plan, to_confirm, with_looks

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
REST_SECONDS = 5.0
"""For how long a device that was left is not taken again."""

OPEN_SECONDS = 10.0
"""For how long a device is waited for that another process of this host has, as when one was killed that ends now."""

TIDY_SECONDS = 60.0
"""Between two looks for files of campaigns that have ended."""

WORK_PREFIX = "ort-mobile-lab-"

MOST_DEVICES = 512
"""Of one host: each has a thread while it works."""


def work(
    database: str,
    devices: tuple[str, ...],
    stop: threading.Event,
    *,
    once: bool = False,
    host: str = "",
    say: Callable[[str], None] = log.info,
) -> None:
    """Work for a lab until `stop`; with `once` until nothing is left to do for the devices of this host.

    `say` is given a line for what is attached, and for each job that begins or ends. Raises PipelineError for a
    database that cannot be used when it begins, HostTakenError where another agent of this host goes on working; later
    the absence of the database is waited for.
    """
    with open_store(database) as store, ThreadPoolExecutor(MOST_DEVICES, thread_name_prefix="lab") as pool:
        agent = Agent(store, Attached(devices), stop, host or host_name(), say)
        for prefix in (WORK_PREFIX, RUN_PREFIX):
            remove_abandoned(prefix)
        with closing(sessions_of(agent)) as sessions:
            try:
                for session in sessions:
                    if not agent.shown:
                        begin_looking(agent)
                    with alive(agent, session):
                        if _until_lost(agent, session, pool, once=once):
                            return
            finally:
                stop.set()


def _until_lost(agent: Agent, session: LabSession, pool: ThreadPoolExecutor, *, once: bool) -> bool:
    """Take jobs until the session is lost, or the agent is to stop; True at the end of all work with `once`.

    An agent that stops keeps its leases until the runs that its devices are in have ended.
    """
    try:
        while not agent.stop.wait(TICK_SECONDS):
            for name in [name for name, future in agent.busy.items() if future.done()]:
                agent.working.pop(name, None)
                if (error := agent.busy.pop(name).exception()) is not None:
                    log.error("%s: %s", name, error)
            session.keep(agent.busy)
            jobs = session.ask(lambda connection: open_jobs(connection, list(agent.attached.facts)))
            for job in jobs:
                _take(agent, session, pool, job)
            for campaign in session.ask(stages_to_end):
                lease = f"campaign {campaign}"
                if lease not in agent.busy and session.take(lease):
                    agent.busy[lease] = pool.submit(_confirm, agent, session, campaign)
            over = once and not jobs and not agent.busy
            if over or time.monotonic() - agent.tidied > TIDY_SECONDS:
                _tidy(agent, session)
            if over:
                return True
        if agent.busy:
            agent.say(f"stops when runs in progress have ended: {', '.join(sorted(agent.busy)[:MOST_NAMES])}")
        wait(agent.busy.values())
    except SessionLost as error:
        log.warning("the session with the database was lost: %s", error)
    return False


def _tidy(agent: Agent, session: LabSession) -> None:
    """Forget campaigns that have ended, and remove their files, also those of an agent that was here before."""
    agent.tidied = time.monotonic()
    with suppress(OSError):  # a folder that cannot be read
        names = carried_campaigns()
        for campaign in session.ask(partial(ended_campaigns, names=names)) - set(agent.working.values()):
            agent.carried.pop(campaign, None)
            agent.refused.pop(campaign, None)
            shutil.rmtree(carried_folder(campaign), ignore_errors=True)


def _take(agent: Agent, session: LabSession, pool: ThreadPoolExecutor, job: LabJob) -> None:
    rests = agent.resting.get(job.device, 0.0) > time.monotonic()
    if job.device in agent.busy or job.campaign in agent.refused or rests or len(agent.busy) >= MOST_DEVICES:
        return
    name = agent.attached.opens.get(job.device)
    if name and session.take(job.device):
        agent.working[job.device] = job.campaign
        agent.busy[job.device] = pool.submit(_work_on, agent, session, job, name)


def _work_on(agent: Agent, session: LabSession, job: LabJob, name: str) -> None:
    """Measure one device of a campaign, whose lease this host has and which it opens by `name`."""
    try:
        if session.state_of(job.campaign, job.device) not in OPEN:
            return  # it ended between being listed and being leased
        reason = ""
        try:
            carried = _carried(agent, job.campaign, partial(_stopped, agent, session, job))
            refusal = other_versions(carried.record)
            if refusal:
                agent.refused[job.campaign] = f"{job.campaign} is refused: {refusal}"
                log.warning("%s", agent.refused[job.campaign])
                change_job(session, job, WAITING, f"{agent.host} is refused: {refusal}")
                return
            change_job(session, job, RUNNING, job.reason)
            agent.say(f"{job.campaign}: {job.device}: begins{' fresh rounds' if job.stage == FRESH else ''}")
            reason = _measured(agent, session, job, name, carried)
        except SessionLost:
            raise
        except (RunnerError, OSError) as error:
            reason = str(error)
        except Exception as error:  # a device that is left unsaid would be taken again for ever
            log.debug("%s", job.device, exc_info=True)
            reason = f"internal error: {type(error).__name__}: {error}"
        _note(agent, session, job, reason)
    except SessionLost as error:
        log.warning("%s: left for now: %s", job.device, error)


def _carried(agent: Agent, campaign: str, ended: Callable[[], str]) -> Carried:
    """The campaign with its files; fetched once for all devices of this host."""
    with agent.fetching:
        if campaign not in agent.carried:
            agent.carried[campaign] = fetched(agent.store, agent.store.campaign(campaign), ended=ended)
        return agent.carried[campaign]


def _stopped(agent: Agent, session: LabSession, job: LabJob) -> str:
    """Why a device may not go on with its job, or ""."""
    if agent.stop.is_set():
        return "interrupted"
    try:
        state = session.state_of(job.campaign, job.device)
    except SessionLost as error:
        return f"the lease was lost: {error}"
    return "" if state in OPEN else f"the job is {state or 'gone'}"


def _measured(agent: Agent, session: LabSession, job: LabJob, name: str, carried: Carried) -> str:
    """Run what is left of a job; why it was left before the end, or ""."""
    with opened([name], OPEN_SECONDS) as (devices, known, _), scratch_folder(WORK_PREFIX) as work:
        device, now = next(iter(devices.values())), next(iter(known.values()))
        device.name = job.device  # as results of all hosts call it
        facts = msgspec.structs.replace(now, name=job.device, host=agent.host)
        planned = planned_here(carried, facts)
        plan = replace(
            plan_here(carried, planned, facts), host=agent.host, fence=lambda _device: _stopped(agent, session, job)
        )
        if job.stage == FRESH:
            again = again_of(agent.store, job)
            plan = fresh_plan(plan, [run for run in plan.planned_runs if planned_id(run) in again], agent.store)
        else:
            plan = with_looks(plan, planned, agent.store)
        left = measure(plan, {job.device: device}, agent.store, work)
    return left[0].reason if left else ""


def _note(agent: Agent, session: LabSession, job: LabJob, reason: str) -> None:
    """Say in the queue how a job ended, or why it was left: by a host whose lease still holds, and nobody else."""
    if session.state_of(job.campaign, job.device) not in OPEN:
        return
    if not reason:
        state = DONE if job.stage == FRESH else MEASURED
        change_job(session, job, state)
        agent.say(f"{job.campaign}: {job.device}: {state}")
    elif agent.stop.is_set():
        change_job(session, job, WAITING)
    else:
        log.warning("%s: left: %s", job.device, reason)
        attempts = job.attempts + 1
        agent.resting[job.device] = time.monotonic() + REST_SECONDS
        state = FAILED if attempts >= MOST_ATTEMPTS else WAITING
        change_job(session, job, state, f"{agent.host}: {reason}", attempts)


def _confirm(agent: Agent, session: LabSession, campaign: str) -> None:
    """After the rounds of all devices: choose, and enter the fresh rounds of what was chosen. One host does it."""
    jobs = jobs_of(agent.store, campaign)
    if any(job.state in OPEN for job in jobs) or not any(job.state == MEASURED for job in jobs):
        return
    chosen, reason = {}, ""
    try:
        chosen = to_confirm(agent.store.campaign(campaign), agent.store)
    except (ArithmeticError, LookupError, TypeError, ValueError, StoreError) as error:
        reason = f"{agent.host}: nothing can be chosen for fresh rounds: {type(error).__name__}: {error}"
        log.error("%s: %s", campaign, reason)  # noqa: TRY400 # one line, as everywhere
    try:
        end_stage(session, campaign, chosen, reason)
    except SessionLost as error:
        log.warning("%s: the choice is left for another: %s", campaign, error)
        return
    for job in jobs:
        if job.state == MEASURED and job.device not in chosen.values():
            agent.say(f"{campaign}: {job.device}: {FAILED if reason else DONE}")
