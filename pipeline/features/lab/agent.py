"""The agent of a host: which devices are there, what is to be done on them, and doing it, until it is told to stop.

One agent works for a host: its name is leased as devices are, since rows of hosts and devices are by that name. Phones
are asked through the adb server and not opened: a look takes no lease that a run could meet.
"""

import logging
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec

from device_runner import device as runner_device
from device_runner import files as runner_files
from device_runner import result as run_result
from device_runner.adb import link as adb_link
from device_runner.device import DeviceFacts
from device_runner.errors import RunnerError
from pipeline.campaign import measure as campaign_measure
from pipeline.campaign import store as campaign_store
from pipeline.campaign.store import Store, StoreError
from pipeline.core import groups as counting
from pipeline.core.errors import ConfigError
from pipeline.features.lab import campaigns, health, hooks, notices
from pipeline.features.lab import checks as lab_checks
from pipeline.features.lab import queue as lab_queue
from pipeline.features.lab.fence import Fence
from pipeline.job import bench as job_bench
from pipeline.job import campaign_plan as job_campaign_plan
from pipeline.job import carrying
from pipeline.job import run as job_run

log = logging.getLogger(__name__)

AGAIN_SECONDS = 30.0
"""After so long devices that were not ready are asked again, also where adb's servers say what they said."""

JOIN_SECONDS = (10.0, 600.0)
"""Between two tries to join a phone on the network that an adb server has lost: the first pause, which doubles, and
the longest."""

MOST_JOINED = 32
"""Phones that are joined at the same time."""


@dataclass(slots=True)
class Attached:
    """The devices that `names` mean: `facts` are of those that are ready, by their names among all hosts.

    `opens` has the names by which this host opens them, `notes` why others cannot be used. `lost` are phones on the
    network that their adb server had: when to join them again (monotonic), and the pause after that.
    """

    names: tuple[str, ...]
    facts: dict[str, DeviceFacts] = field(default_factory=dict)
    opens: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    seen: object = None
    asked: float = 0.0
    network: set[tuple[str, str]] = field(default_factory=set)
    lost: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    missing: frozenset[str] = frozenset()
    """Phones at work that their adb server does not have any more: nobody counts on them meanwhile."""

    def look(self, busy: Iterable[str] = ()) -> None:
        """Ask adb's servers what is there, which costs phones nothing; ask phones where that has changed.

        It takes as long as devices need to answer.
        """
        listed, notes, now = {}, [], time.monotonic()
        for address in sorted({runner_device.split_server(name)[1] for name in self.names if name.startswith("adb:")}):
            try:
                from device_runner.adb import server as adb_server  # adbutils takes half a second

                listed[address] = dict(adb_server.list_serials(adb_link.server_at(address)))
            except RunnerError as error:
                notes.append(f"adb {address or 'here'}: {error.reason}")
        # Join phones on the network again that were there: an adb server forgets one when it loses it
        for address, states in listed.items():
            ready = {
                (address, serial)
                for serial, state in states.items()
                if state == "device" and runner_device.on_network(serial)
            }
            self.network |= ready
            for back in ready & set(self.lost):
                del self.lost[back]
        absent = (phone for phone in self.network if phone[0] in listed and listed[phone[0]].get(phone[1]) != "device")
        due = [phone for phone in absent if self.lost.setdefault(phone, (now, JOIN_SECONDS[0]))[0] <= now]
        if due:  # all at once: each may take its server's whole time for an answer
            from device_runner.adb import server as adb_server

            with ThreadPoolExecutor(min(len(due), MOST_JOINED)) as pool:
                answers = pool.map(
                    adb_server.reconnect,
                    (adb_link.server_at(address) for address, _ in due),
                    (serial for _, serial in due),
                )
                for phone, answer in zip(due, answers, strict=True):
                    log.info("adb:%s: joined again: %s", phone[1], answer)
                    pause = self.lost[phone][1]
                    self.lost[phone] = time.monotonic() + pause, min(2 * pause, JOIN_SECONDS[1])
        at_work = [(name, *runner_device.split_server(self.opens[name])) for name in busy if name in self.opens]
        self.missing = frozenset(
            name
            for name, opens, address in at_work
            if opens.startswith("adb:") and listed.get(address, {}).get(opens.removeprefix("adb:")) != "device"
        )
        said = (listed, tuple(notes))
        waits = bool(self.notes) and time.monotonic() - self.asked > AGAIN_SECONDS
        if said != self.seen or waits:
            self.seen, self.asked = said, time.monotonic()
            # Ask every device that does not work at this moment; those that do are as they were
            facts = {name: facts_here for name, facts_here in self.facts.items() if name in set(busy)}
            opens = {name: self.opens[name] for name in facts}
            devices, silent = _answers(self.names, listed, set(opens.values()))
            notes += silent
            for device in (msgspec.structs.replace(device, host=run_result.host_name()) for device in devices):
                if device.readiness is runner_device.Readiness.READY:
                    facts[runner_device.identity(device)], opens[runner_device.identity(device)] = device, device.name
                else:
                    notes.append(f"{device.name}: {device.advice}")
            self.opens, self.facts, self.notes = {**self.opens, **opens}, facts, tuple(dict.fromkeys(notes))


def _answers(names: Iterable[str], addresses: Iterable[str], skip: set[str]) -> tuple[list[DeviceFacts], list[str]]:
    """Facts of the devices that names mean, why others give none; those in `skip` are not asked."""
    from device_runner.adb import device as adb_device

    phones: dict[str, DeviceFacts] = {}
    silent = []
    selectors = [runner_device.split_server(name.removeprefix("adb:")) for name in names if name.startswith("adb:")]
    for address in addresses:
        fits = [runner_device.parse_selector(text) for text, at in selectors if at == address]
        try:
            listed = adb_device.list_devices(f"*@{address}" if address else "*", skip)
        except RunnerError as error:
            silent.append(f"adb {address or 'here'}: {error.reason}")
        else:
            phones.update({facts.name: facts for facts in listed if any(fit(facts) for fit in fits)})
    for name in names:
        if not name.startswith("adb:") and name not in skip:
            try:
                with runner_device.open_device(name) as device:
                    phones[name] = device.facts()
            except RunnerError as error:
                silent.append(f"{name}: {error.text}")
    return list(phones.values()), silent


SIGN_SECONDS = 2.0
PAUSE_SECONDS = 1.0
"""Between two tries to open a session."""

MOST_NAMES = 8
"""Devices that are named in a line."""

NAME_SECONDS = 30.0
"""For how long an agent that begins waits for the session of an earlier one of its host to end."""


class HostTakenError(ConfigError):
    """Another agent of this host's name is at work."""


@dataclass(slots=True)
class Agent:
    """What an agent knows: `busy` are devices with a thread, `refused` campaigns that this host may not measure.

    `working` has the campaigns of busy devices, `said` what was said last of those that are attached.
    """

    store: Store
    attached: Attached
    stop: threading.Event
    host: str
    say: Callable[[str], None]
    shown: str = ""
    busy: dict[str, Future[None]] = field(default_factory=dict)
    working: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    resting: dict[str, float] = field(default_factory=dict)
    carried: dict[str, carrying.Carried] = field(default_factory=dict)
    fetching: threading.Lock = field(default_factory=threading.Lock)
    tidied: float = float("-inf")
    reservations: hooks.Reservations = field(default_factory=lambda: hooks.Reservations(""))
    key: str = field(default_factory=lambda: secrets.token_hex(8))
    """What tells this agent from another of the same host's name."""


def sessions_of(agent: Agent) -> Generator[lab_queue.LabSession]:
    """Sessions with the database, the next when one was lost, until the agent stops; what hinders the first raises."""
    begun, opened, hindered = time.monotonic(), False, ""
    while not agent.stop.is_set():
        try:
            session = _opened(agent)
        except (RunnerError, lab_queue.SessionLost) as error:
            waits = isinstance(error, lab_queue.SessionLost) or (
                isinstance(error, HostTakenError) and time.monotonic() - begun < NAME_SECONDS
            )
            if not opened and not waits:
                raise
            if str(error) != hindered:
                hindered = str(error)
                log.warning("waits: %s", hindered)
        else:
            if hindered:
                agent.say("has a session with the database")
            opened, hindered = True, ""
            try:
                yield session
            finally:
                session.close()
        agent.stop.wait(PAUSE_SECONDS)


def _opened(agent: Agent) -> lab_queue.LabSession:
    """A session that has this host's name: rows of hosts and devices are by that name."""
    session = lab_queue.LabSession(agent.store.engine, agent.host, agent.key)
    if session.has_name:
        return session
    session.close()
    raise HostTakenError(
        "another agent of this host's name is at work",
        where=agent.host,
        why="an agent works on all devices of its host, and a lab knows hosts by their names",
        remedy="name all devices to one agent (`--device` is repeatable); give each computer a name of its own",
    )


@contextmanager
def alive(agent: Agent, session: lab_queue.LabSession) -> Iterator[None]:
    """Signs of life beside what is done meanwhile; then what is attached is withdrawn, so that nobody counts on it."""
    over = threading.Event()
    versions = msgspec.json.encode(campaigns.lab_versions()).decode()

    def live() -> None:
        """Give signs of life, and say what is attached, until the session is over or lost."""
        elsewhere: tuple[str, ...] = ()
        try:
            while True:
                reasons = (*agent.refused.values(), *agent.reservations.troubles.values())
                note = "; ".join((*agent.attached.notes, *dict.fromkeys(reasons)))
                documents = {
                    name: msgspec.json.encode(facts).decode()
                    for name, facts in dict(agent.attached.facts).items()
                    if name not in agent.attached.missing
                }
                others = session.sign_of_life(versions, note, documents)
                if others != elsewhere:
                    elsewhere = others
                    at = "at hosts of other logins, which are alive"
                    agent.say(
                        f"{at}: {counting.few(others, most=MOST_NAMES)}" if others else f"nothing is {at}, any more"
                    )
                if over.wait(SIGN_SECONDS):
                    return
        except lab_queue.SessionLost as error:
            log.info("signs of life end: %s", error)

    signs = threading.Thread(target=live, daemon=True, name="signs")
    signs.start()
    try:
        yield
    finally:
        over.set()
        signs.join()
        with suppress(lab_queue.SessionLost):
            session.end()


def _look(agent: Agent) -> None:
    """Look at what is attached until the agent stops. Not between signs of life: phones may take long to answer."""
    while not agent.stop.wait(SIGN_SECONDS):
        try:
            agent.attached.look(list(agent.busy))
            _say_attached(agent)
        except (RunnerError, OSError) as error:
            log.warning("devices could not be looked at: %s", error)


def _say_attached(agent: Agent) -> None:
    """Say which devices this host has, and why others cannot be used, where that has changed."""
    names = sorted(agent.attached.facts)
    listed = f"devices of {agent.host}: {counting.few(names, most=MOST_NAMES) or 'none'}"
    if (lines := "\n".join((listed, *agent.attached.notes))) != agent.shown:
        agent.shown = lines
        agent.say(listed)
        for note in agent.attached.notes:
            log.warning("%s", note)


TICK_SECONDS = 1.0
REST_SECONDS = 5.0
"""For how long a device that was left is not taken again."""

RESERVE_SECONDS = 60.0
"""For how long a device is not asked for again that could not be reserved: somebody works with it."""

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
    called: hooks.Hooks | None = None,
) -> None:
    """Work for a lab until `stop`; with `once` until nothing is left to do for the devices of this host.

    `say` is given a line for what is attached, and for each job that begins or ends. Raises PipelineError for a
    database that cannot be used when it begins, HostTakenError where another agent of this host goes on working; later
    the absence of the database is waited for.
    """
    with (
        campaign_store.open_store(database) as store,
        ThreadPoolExecutor(MOST_DEVICES, thread_name_prefix="lab") as pool,
    ):
        name = host or run_result.host_name()
        reservations = hooks.Reservations(name, called or hooks.Hooks())
        agent = Agent(store, Attached(devices), stop, name, say, reservations=reservations)
        for prefix in (WORK_PREFIX, runner_files.RUN_PREFIX):
            runner_files.remove_abandoned(prefix)
        with closing(sessions_of(agent)) as sessions:
            try:
                for session in sessions:
                    if not agent.shown:
                        # Look at what is attached, say it, and go on looking in a thread
                        agent.attached.look()
                        _say_attached(agent)
                        threading.Thread(target=_look, args=(agent,), daemon=True, name="look").start()
                    with alive(agent, session):
                        if _until_lost(agent, session, pool, once=once):
                            return
            finally:
                stop.set()


def _until_lost(agent: Agent, session: lab_queue.LabSession, pool: ThreadPoolExecutor, *, once: bool) -> bool:
    """Take jobs until the session is lost, or the agent is to stop; True at the end of all work with `once`.

    An agent that stops keeps its leases until the runs that its devices are in have ended.
    """
    try:
        while not agent.stop.wait(TICK_SECONDS):
            _forget_done(agent)
            session.keep(agent.busy)
            if tidies := time.monotonic() - agent.tidied > TIDY_SECONDS:
                _give_back_left(agent, pool)
            jobs = session.ask(lambda connection: lab_queue.open_jobs(connection, list(agent.attached.facts)))
            _take(agent, session, pool, jobs)
            _give_back_idle(agent, pool)
            for campaign in session.ask(lab_queue.stages_to_end):
                lease = f"campaign {campaign}"
                if lease not in agent.busy and session.take(lease):
                    agent.busy[lease] = pool.submit(_confirm, agent, session, campaign)
            _tell(agent, session, pool)
            over = once and not jobs and not agent.busy
            if over or tidies:
                _tidy(agent, session)
            if over:
                return True
        if agent.busy:
            agent.say(f"stops when runs in progress have ended: {counting.few(sorted(agent.busy), most=MOST_NAMES)}")
        wait(agent.busy.values())
    except lab_queue.SessionLost as error:
        log.warning("the session with the database was lost: %s", error)
    _forget_done(agent)
    _give_back_idle(agent, pool)
    return False


def _forget_done(agent: Agent) -> None:
    """Forget threads that have ended, and log what they should not have raised."""
    for name in [name for name, future in agent.busy.items() if future.done()]:
        agent.working.pop(name, None)
        if (error := agent.busy.pop(name).exception()) is not None:
            log.error("%s: %s", name, error)


def _give_back_idle(agent: Agent, pool: ThreadPoolExecutor) -> None:
    """Give reserved devices back that have ended their part of a campaign and did not go on with another."""
    for name in [name for name in agent.reservations.idle if name not in agent.busy]:
        agent.busy[name] = pool.submit(agent.reservations.give_back, name)


def _give_back_left(agent: Agent, pool: ThreadPoolExecutor) -> None:
    """Give devices back that were reserved and not given back, by an agent that was killed or a hook that failed."""
    for name in agent.reservations.left():
        if name not in agent.busy:
            agent.say(f"{name}: is given back: it was left reserved")
            agent.busy[name] = pool.submit(agent.reservations.give_back, name)


def _tidy(agent: Agent, session: lab_queue.LabSession) -> None:
    """Forget campaigns that have ended, and remove their files, also those of an agent that was here before."""
    agent.tidied = time.monotonic()
    with suppress(OSError):  # a folder that cannot be read
        ended = session.ask(partial(lab_queue.ended_campaigns, names=campaigns.carried_campaigns()))
        for campaign in ended - set(agent.working.values()):
            agent.carried.pop(campaign, None)
            agent.refused.pop(campaign, None)
            shutil.rmtree(campaigns.carried_folder(campaign), ignore_errors=True)


def _tell(agent: Agent, session: lab_queue.LabSession, pool: ThreadPoolExecutor) -> None:
    """Take a notice of a campaign that has ended, and give it in a thread."""
    ended = agent.reservations.hooks.ended
    if notice := notices.taken_notice(session, [notices.URL, *[notices.PROGRAM] * bool(ended)]):
        agent.busy[str(notice)] = pool.submit(notices.tell, agent.store, session, notice, ended, agent.say)


def _take(
    agent: Agent, session: lab_queue.LabSession, pool: ThreadPoolExecutor, jobs: Iterable[lab_queue.LabJob]
) -> None:
    """Begin on devices that have nothing to do and something left, with the job that the database hands out."""
    now, refused = time.monotonic(), list(agent.refused)
    for device, left in counting.grouped(
        (job.device, job) for job in jobs if job.campaign_id not in agent.refused
    ).items():
        name = agent.attached.opens.get(device)
        rests = agent.resting.get(device, 0.0) > now
        if not name or rests or device in agent.busy or len(agent.busy) >= MOST_DEVICES:
            continue
        campaign = session.next_job(device, refused)
        for job in left:  # one that was submitted since is taken at the next look
            if job.campaign_id == campaign:
                agent.working[device] = campaign
                agent.busy[device] = pool.submit(_work_on, agent, session, job, name)


def _work_on(agent: Agent, session: lab_queue.LabSession, job: lab_queue.LabJob, name: str) -> None:
    """Measure one device of a campaign, whose lease this host has and which it opens by `name`."""
    try:
        if session.state_of(job.campaign_id, job.device) not in lab_queue.OPEN:
            return  # it ended between being listed and being leased
        try:
            with agent.reservations.of(job.device):
                fence = Fence(session, job, agent.stop, agent.refused)
                _say_ended(agent, fence, _measured(agent, fence, name))
        except RunnerError as error:  # of the reservation: it counts as no attempt
            log.warning("%s: not taken: %s", job.device, error)
            agent.resting[job.device] = time.monotonic() + RESERVE_SECONDS
            lab_queue.change_job(session, job, lab_queue.WAITING, f"{agent.host}: {error.reason}")
    except lab_queue.SessionLost as error:
        log.warning("%s: left for now: %s", job.device, error)


def _measured(agent: Agent, fence: Fence, name: str) -> str | None:
    """Run what is left of a job; why it was left before the end, or "". None where this host may not measure it."""
    session, job = fence.session, fence.job
    try:
        carried = _carried(agent, fence, job.campaign_id)
        golden = session.ask(lab_checks.golden_of)
        checked_with = _carried(agent, fence, golden) if golden else None
        if refusal := campaigns.other_versions(carried.record):
            _refuse(agent, fence, refusal)
            return None
        lab_queue.change_job(session, job, lab_queue.RUNNING, job.reason)
        agent.say(f"{job.campaign_id}: {job.device}: begins{' fresh rounds' if job.stage == lab_queue.FRESH else ''}")
        with (
            job_bench.opened([name], OPEN_SECONDS) as ready,
            runner_files.scratch_folder(WORK_PREFIX) as work,
        ):
            device, now = next(iter(ready.devices.values())), next(iter(ready.facts.values()))
            device.name = job.device  # as results of all hosts call it
            facts = msgspec.structs.replace(now, name=job.device, host=agent.host)
            planned = carrying.planned_here(carried, facts)
            if refusal := campaigns.other_plan(carried.record, facts, planned):
                _refuse(agent, fence, refusal)
                return None
            plan = replace(carrying.plan_here(carried, planned, facts), host=agent.host, fence=fence)
            if job.stage == lab_queue.FRESH:
                again = lab_queue.again_of(agent.store, job)
                plan = job_campaign_plan.fresh_plan(
                    plan, [run for run in plan.planned_runs if run.id in again], agent.store
                )
            else:
                plan = campaign_measure.with_looks(plan, planned, agent.store)
            examiner = checked_with and health.Examiner(session, checked_with, device, facts, agent.stop)
            reason = examiner.examine("before") if examiner else ""
            if not reason:
                reason = campaign_measure.measure(plan, {job.device: device}, agent.store, work).get(job.device, "")
                reason = reason or (examiner.examine("after") if examiner else "")
            return reason
    except lab_queue.SessionLost:
        raise
    except (RunnerError, OSError) as error:
        return str(error)
    except Exception as error:  # a device that is left unsaid would be taken again for ever
        log.debug("%s", job.device, exc_info=True)
        return f"internal error: {type(error).__name__}: {error}"


def _refuse(agent: Agent, fence: Fence, refusal: str) -> None:
    """Leave a campaign to hosts that can measure it."""
    job = fence.job
    agent.refused[job.campaign_id] = f"{job.campaign_id} is refused: {refusal}"
    log.warning("%s", agent.refused[job.campaign_id])
    lab_queue.change_job(fence.session, job, lab_queue.WAITING, f"{agent.host} is refused: {refusal}")


def _carried(agent: Agent, fence: Fence, campaign: str) -> carrying.Carried:
    """A campaign with its files here, fetched once for all devices of this host."""
    with agent.fetching:
        if campaign not in agent.carried:
            agent.carried[campaign] = campaigns.fetched(agent.store, agent.store.campaign(campaign), ended=fence)
        return agent.carried[campaign]


def _say_ended(agent: Agent, fence: Fence, reason: str | None) -> None:
    """Say in the queue how a job ended, or why it was left: by a host whose lease still holds, and nobody else."""
    session, job = fence.session, fence.job
    if reason is None or session.state_of(job.campaign_id, job.device) not in lab_queue.OPEN:
        return
    if not reason:
        state = lab_queue.DONE if job.stage == lab_queue.FRESH else lab_queue.MEASURED
        lab_queue.change_job(session, job, state)
        agent.say(f"{job.campaign_id}: {job.device}: {state}")
    elif agent.stop.is_set() or fence.gives_way:
        lab_queue.change_job(session, job, lab_queue.WAITING)
        agent.say(f"{job.campaign_id}: {job.device}: {reason}")
    else:
        log.warning("%s: left: %s", job.device, reason)
        attempts = job.attempts + 1
        agent.resting[job.device] = time.monotonic() + REST_SECONDS
        state = lab_queue.FAILED if attempts >= lab_queue.MOST_ATTEMPTS else lab_queue.WAITING
        lab_queue.change_job(session, job, state, f"{agent.host}: {reason}", attempts)


def _confirm(agent: Agent, session: lab_queue.LabSession, campaign: str) -> None:
    """After the rounds of all devices: choose, and enter the fresh rounds of what was chosen. One host does it."""
    jobs = lab_queue.jobs_of(agent.store, campaign)
    if any(job.state in lab_queue.OPEN for job in jobs) or not any(job.state == lab_queue.MEASURED for job in jobs):
        return
    chosen, reason = {}, ""
    try:
        chosen = job_run.to_confirm(agent.store.campaign(campaign), agent.store)
    except (ArithmeticError, LookupError, TypeError, ValueError, StoreError) as error:
        reason = f"{agent.host}: nothing can be chosen for fresh rounds: {type(error).__name__}: {error}"
        log.error("%s: %s", campaign, reason)  # noqa: TRY400 # one line, as everywhere
    try:
        lab_queue.end_stage(session, campaign, chosen, reason)
    except lab_queue.SessionLost as error:
        log.warning("%s: the choice is left for another: %s", campaign, error)
        return
    for job in jobs:
        if job.state == lab_queue.MEASURED and job.device not in chosen.values():
            agent.say(f"{campaign}: {job.device}: {lab_queue.FAILED if reason else lab_queue.DONE}")
