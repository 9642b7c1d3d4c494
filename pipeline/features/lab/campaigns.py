"""Campaigns of a lab: submitted as data and files, planned again by each host, closed where their report is wanted.

What a host runs of a campaign that it was handed as data are the same functions of the same values as elsewhere.
"""

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from device_runner.build import units
from device_runner.device import DeviceFacts, is_selector, parse_selector, split_server
from device_runner.files import cache_folder, decode_json, visible
from device_runner.providers import chip_of_phone
from device_runner.spec import TensorFile
from pipeline.campaign.measure import CampaignPlan
from pipeline.campaign.plan import PlannedRun, distinct, in_modes, inputs_of, known_denied, plan_runs, planned_id
from pipeline.campaign.record import FRESH_ROUNDS, CampaignRecord, JobRecord
from pipeline.campaign.store import Store, open_store
from pipeline.check.result import Reference
from pipeline.compat.contexts import NpuContext
from pipeline.config import Config, Target
from pipeline.core.errors import ConfigError, MissingError, PipelineError
from pipeline.core.files import ARTIFACTS, REFERENCES, safe_name
from pipeline.core.groups import counted, few
from pipeline.core.progress import NoProgress, Progress, StageLog, duration_text
from pipeline.core.variant import Artifact
from pipeline.features.lab import checks, queue
from pipeline.features.lab.progress import RunsLeft, progress_by_device
from pipeline.job.assemble import Assembled, close_job
from pipeline.job.bench import libraries_by_device, versions
from pipeline.job.prepare import oldest_release, predict
from pipeline.job.run import JobOptions, campaign_plan, prepared_job
from pipeline.job.stored import keep_campaign, locked

log = logging.getLogger(__name__)

LIBRARIES = "libraries"
"""The folder of libraries that targets name by a path, each by the digest of that path."""

CUSTOM_OPS, PLUGINS = "custom_ops", "plugins"
"""A host's folders of libraries by their own names: of custom operators each in one of its own, as a process loads the
first of a name, and of a plugin all in one, as its library loads the others beside it."""

COMPARED = ("onnxruntime", "probe")
"""Programs that must be of the same version on every host of a campaign: others would measure something else."""

NEEDS = "v0002"
"""The schema of the earliest agents that measure what this release submits: later where a host must know more of it."""


@cache
def lab_versions() -> dict[str, str]:
    """The versions of this host: of every program that has a part in an artifact, and of the probe's sources."""
    digest = hashlib.sha256(b"".join(unit.read_bytes() for unit in units())).hexdigest()[:12]
    return {**versions(), "probe": digest}


def other_versions(record: JobRecord) -> str:
    """Why this host may not measure a campaign, or ""."""
    versions = lab_versions()
    pairs = {name: (versions.get(name), record.versions.get(name)) for name in COMPARED}
    other = [f"{name} {at_host}, the campaign {there}" for name, (at_host, there) in pairs.items() if at_host != there]
    return f"this host has {'; '.join(other)}" if other else ""


def other_plan(record: JobRecord, facts: DeviceFacts, planned_runs: Iterable[PlannedRun]) -> str:
    """Why this host may not measure a device of a campaign, or "": another release may plan other runs."""
    made = record.versions.get("ort-mobile", "?")
    if made == lab_versions()["ort-mobile"]:
        return ""
    wanted = {run.id for run in record.planned if run.device == facts.name}
    lacking = len(wanted - {planned_id(run) for run in planned_runs})
    return f"ort-mobile {made} planned {len(wanted)} runs of it, of which {lacking} are unknown here" if lacking else ""


def carried_files(
    folder: Path,
    artifacts: Iterable[Artifact],
    references: Mapping[str, Reference],
    config: Config,
    contexts: Iterable[NpuContext],
) -> dict[str, Path]:
    """The files that other hosts need of a campaign, by their names in any output folder."""
    by_chip = [name for context in contexts for name in (context.file, context.binary)]
    paths = {f"{ARTIFACTS}/{name}": folder / ARTIFACTS / name for name in by_chip}
    files = (name for artifact in artifacts for name in artifact.files)
    paths |= {f"{ARTIFACTS}/{name}": folder / ARTIFACTS / name for name in files}
    for name, reference in references.items():
        for tensor in _tensors(reference):
            file = Path(tensor.file).name
            paths[f"{REFERENCES}/{name}/{file}"] = folder / REFERENCES / name / file
    for target in config.targets:
        if target.library and Path(target.library).is_file():
            paths[_library_name(target.library)] = Path(target.library)
    return paths | {name: Path(file) for name, file, _ in _libraries(config)}


def _libraries(config: Config) -> list[tuple[str, str, str]]:
    """A config's custom operators and plugins: name in the database, file, and path in the campaign's folder here."""
    rows = [(str(number), CUSTOM_OPS, file) for number, file in enumerate(config.custom_ops)]
    rows += [(name, PLUGINS, file) for name, files in config.measure.plugins.items() for file in files]
    return [
        (f"{LIBRARIES}/{key}-{Path(file).name}", file, f"{kind}/{key}/{Path(file).name}") for key, kind, file in rows
    ]


def _library_name(library: str) -> str:
    return f"{LIBRARIES}/{hashlib.sha256(library.encode()).hexdigest()[:12]}-{Path(library).name}"


def _tensors(value: object) -> Iterator[TensorFile]:
    """Every raw file that a reference, or a part of one, names: hosts judge outputs by all of them."""
    if isinstance(value, TensorFile):
        yield value
    elif isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            yield from _tensors(getattr(value, field))
    elif isinstance(value, tuple | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _tensors(part)


def _moved(value: Any, folder: Path) -> Any:
    """A reference, or a part of one, with its raw files in a folder."""
    if isinstance(value, TensorFile):
        return msgspec.structs.replace(value, file=str(folder / Path(value.file).name))
    if isinstance(value, msgspec.Struct):
        parts = {field: _moved(getattr(value, field), folder) for field in value.__struct_fields__}
        return msgspec.structs.replace(value, **parts)
    if isinstance(value, dict):
        return {key: _moved(part, folder) for key, part in value.items()}
    return tuple(_moved(part, folder) for part in value) if isinstance(value, tuple) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """A campaign with its files in a folder of this host."""

    campaign: CampaignRecord
    record: JobRecord
    artifacts: tuple[Artifact, ...]
    folder: Path

    @property
    def references(self) -> dict[str, Reference]:
        """The references with their files where they lie here."""
        folder = self.folder / REFERENCES
        return {name: _moved(reference, folder / name) for name, reference in self.record.references.items()}

    def targets(self) -> tuple[Target, ...]:
        """The targets of the config, with libraries that were files where these lie here."""
        targets = []
        for target in self.record.config.targets:
            path = self.folder / _library_name(target.library) if target.library else None
            is_here = path is not None and path.is_file()
            targets.append(msgspec.structs.replace(target, library=str(path)) if is_here else target)
        return tuple(targets)

    @property
    def config(self) -> Config:
        """The config with its custom operators and plugins where they lie here."""
        config = self.record.config
        paths = {file: str(self.folder / place) for _, file, place in _libraries(config)}
        plugins = {name: tuple(paths[file] for file in files) for name, files in config.measure.plugins.items()}
        return msgspec.structs.replace(
            config,
            custom_ops=tuple(paths[file] for file in config.custom_ops),
            measure=msgspec.structs.replace(config.measure, plugins=plugins),
        )


def carried_folder(campaign: str) -> Path:
    """Where this host has the files of a campaign; raises StoreError for an id that could lead elsewhere."""
    return cache_folder() / "lab" / queue.checked_id(campaign).replace(":", "=")  # no id has =, no Windows path has :


def carried_campaigns() -> list[str]:
    """The ids of campaigns whose files are on this host."""
    folder = cache_folder() / "lab"
    return [path.name.replace("=", ":") for path in folder.iterdir()] if folder.is_dir() else []


def fetched(
    store: Store, campaign: CampaignRecord, folder: Path | None = None, ended: Callable[[], str] = str
) -> Carried:
    """A campaign with its files, by default in this user's cache; raises StoreError, DiskError and their like.

    All names are looked at before anything is written: who may submit could name any file of this computer. `ended`
    is as for `fetch_file`.
    """
    folder = folder or carried_folder(campaign.id)
    record, artifacts = campaign.job(), store.artifacts(campaign.id)
    by_chip = (name for context in record.contexts for name in (context.file, context.binary))
    for name in (*(name for artifact in artifacts for name in artifact.files), *by_chip):
        queue.file_in(folder, f"{ARTIFACTS}/{name}")
    by_name = {}
    for name, _, place in _libraries(record.config):
        queue.file_in(folder, f"{REFERENCES}/{place.partition('/')[2]}")  # as strict about folder and name
        by_name[name] = folder / place
    for name in record.references:
        queue.file_in(folder, f"{REFERENCES}/{name}/any")
    files = queue.files_of(store, campaign.id)
    paths = [by_name.get(file.name, queue.file_in(folder, file.name)) for file in files]
    for file, path in zip(files, paths, strict=True):
        queue.fetch_file(store, file, path, ended)
    return Carried(campaign=campaign, record=record, artifacts=artifacts, folder=folder)


def planned_here(carried: Carried, facts: DeviceFacts) -> list[PlannedRun]:
    """What the campaign planned for a device, in its order: that decides which of equal runs counts.

    Custom operators are those that came with it, before any of the same name that an agent was started with.
    """
    record = carried.record
    place = {run.id: number for number, run in enumerate(record.planned) if run.device == facts.name}
    measurable = [artifact for artifact in carried.artifacts if artifact.source in record.references]
    legal, _ = plan_runs(record.config.runs, measurable, [facts], contexts=record.contexts, advised=False)
    runs = [
        replace(run, options=msgspec.structs.replace(run.options, custom_ops=carried.config.custom_ops))
        for run in in_modes(legal, record.config.measure)
        if planned_id(run) in place
    ]
    return sorted(runs, key=lambda run: place[planned_id(run)])


def plan_here(carried: Carried, planned_runs: list[PlannedRun], facts: DeviceFacts) -> CampaignPlan:
    """The plan of a device, with files where they lie on this host."""
    config, references = carried.config, carried.references
    models = {artifact.source: artifact.model for artifact in carried.artifacts}
    tables = carried.record.tables
    inputs = {}
    for source, reference in references.items():
        model = models.get(source, source)
        dimensions = tables[model].sizes if model in tables else {}
        inputs[source] = inputs_of(references.get(model, reference), dimensions)
    predictions, _ = predict(
        planned_runs, {facts.name: facts}, oldest_release(config), carried.folder / ARTIFACTS, NoProgress()
    )
    return campaign_plan(
        config,
        carried.campaign.id,
        distinct(planned_runs),
        carried.folder,
        references=references,
        inputs=inputs,
        libraries=libraries_by_device({facts.name: facts}, carried.targets(), None),
        predictions=predictions,
    )


def chosen_devices(
    names: Sequence[str], attached: Mapping[str, DeviceFacts], lost: Mapping[str, queue.LostDevice] | None = None
) -> dict[str, DeviceFacts]:
    """The devices of a lab that a config means, under their names there; raises MissingError for a name of none.

    `lost` are devices that a host had before. `adb:*` and conditions mean every phone that fits, `local` that of every
    host, and NAME@HOST one of them.
    """
    fits = {
        name: parse_selector(split_server(name.removeprefix("adb:"))[0])
        for name in names
        if name.startswith("adb:") and is_selector(name.removeprefix("adb:"))
    }

    def means(name: str, facts: DeviceFacts) -> bool:
        if name in fits:
            return facts.name.startswith("adb:") and fits[name](facts)
        return facts.name == name or facts.name.startswith(f"{name}@")

    named = [msgspec.structs.replace(facts, name=name) for name, facts in attached.items()]
    of_nobody = [name for name in names if not any(means(name, facts) for facts in named)]
    if of_nobody:
        was = [
            f"{name} was at {device.host} until {device.since}"
            for name, device in (lost or {}).items()
            if any(other in (name, name.partition("@")[0]) for other in of_nobody)
        ]
        raise MissingError(
            "no host of the lab has such a device", where=few(of_nobody),
            why=f"{few([*was, ''], '; ')}attached are: {few(list(attached)) or 'none'}",
            remedy="attach it, and see in `ort-mobile lab status` that its host works; or leave it out: --device names "
            "those that are meant",
        )  # fmt: skip
    return {facts.name: facts for facts in named if any(means(name, facts) for name in names)}


def submit(
    config: Config, options: JobOptions, progress: Progress, *, priority: int = 0, notify: str = ""
) -> dict[str, Any]:
    """Prepare a campaign here, and put it with its files into the queue; nothing of this computer is needed then.

    `notify` is a URL that a host tells of the campaign's end.

    Gives what the command shows: the campaign, its devices, the most runs, and how many files of how many bytes.

    Raises ConfigError for a config without a database of a lab, MissingError where no host has such a device.
    """
    if not config.output.database:
        raise ConfigError(
            "no database is named", where="lab submit", why="a lab's queue is in its database",
            remedy="pass --database postgresql://USER@HOST/DATABASE, or set [output] database in the config",
        )  # fmt: skip
    by_name: dict[str, str] = {}
    for name, file, _ in _libraries(config):
        if not Path(file).is_file():
            raise MissingError(
                "a library of the campaign is not here", where=file, why="there is no such file",
                remedy="correct its path in `custom_ops`, or in `plugins` of [measure]",
            )  # fmt: skip
        if (other := by_name.setdefault(name, file)) != file:
            raise ConfigError(
                "two libraries of the campaign have one name", where=file, why=f"{other} has it, too, and hosts of the "
                "lab have the files of a plugin in one folder", remedy="rename one of them",
            )  # fmt: skip
    with open_store(config.output.database) as store:
        queue.refuse_other_database(store.engine)
        names, lost = options.devices or config.devices, queue.lost_devices(store)
        facts = chosen_devices(names, queue.attached_devices(store), lost)
        held = {name: row["reason"] for name, row in checks.in_quarantine(store).items() if name in facts}
        for name, reason in held.items():
            log.warning("%s: left out, in quarantine: %s", name, reason)
        facts = {name: device for name, device in facts.items() if name not in held}
        if not facts:
            raise MissingError(
                "every device that is meant is in quarantine", where=", ".join(held),
                why="; ".join(dict.fromkeys(held.values())),
                remedy="`ort-mobile lab release DEVICE` gives one back, once it was looked at",
            )  # fmt: skip
    with prepared_job(config, replace(options, convert_only=True), progress) as (job, _):
        measurable = [a for prepared in job.prepared for a in prepared.artifacts if a.source in prepared.references]
        legal, skipped = plan_runs(job.config.runs, measurable, list(facts.values()), known_denied(), job.contexts)
        planned = in_modes(legal, job.config.measure)
        _, placements = predict(planned, facts, oldest_release(job.config), job.folder / ARTIFACTS, progress)
        campaign = job.enter(facts, planned, skipped, versions=lab_versions(), placements=placements)
        references = campaign.job().references
        queue.remove_old_files(job.store)
        carried = carried_files(job.folder, measurable, references, job.config, campaign.job().contexts)
        files = queue.keep_files(job.store, carried)
        allowed = most_runs(campaign.job(), facts)
        queue.submit_jobs(job.store, campaign.id, allowed, files, priority=priority, address=notify, needs=NEEDS)
    return {
        "campaign": campaign.id, "priority": priority, "devices": tuple(facts),
        "runs": len(planned) * config.measure.timed_rounds, "files": len(files),
        "bytes": sum(file.size_bytes for file in files),
    }  # fmt: skip


def store_golden(store: Store, url: str, config: Config, options: JobOptions, progress: Progress) -> str:
    """Store a config's model with its files, and check devices with it; the id of its campaign, which has no devices.

    Raises ConfigError for another number of models than one, PipelineError where nothing of it can be run.
    """
    queue.refuse_other_database(store.engine)
    where = "[[models]]"
    if len(config.models) != 1:
        raise ConfigError(
            f"the config of a golden model has {len(config.models)} models", where=where,
            why="a check is one small model", remedy="name one",
        )  # fmt: skip
    config = msgspec.structs.replace(config, output=msgspec.structs.replace(config.output, database=url))
    with prepared_job(config, replace(options, convert_only=True), progress) as (job, _):
        measurable = [a for prepared in job.prepared for a in prepared.artifacts if a.source in prepared.references]
        if not measurable:
            errors = (error for prepared in job.prepared for error in prepared.errors)
            raise next(errors, None) or ConfigError(
                "the golden model has no outputs to compare with", where=where, remedy="name another model"
            )
        campaign = job.enter({}, [], [], versions=lab_versions())
        record = campaign.job()
        files = carried_files(job.folder, measurable, record.references, job.config, record.contexts)
        checks.set_golden(store, campaign.id, queue.keep_files(store, files))
    return campaign.id


MOST_AGAIN, SPARE_RUNS = 3, 30
"""How many times what is planned, and how many more, a device's results may be: failures are stored and repeated."""

RESULT_BYTES = 1 << 20
"""Of a result without its latencies; one of a profile has the times of every node."""

MOST_INFERENCES = 100_000
"""In a second, of a process: more than a model of one node does."""


def most_runs(record: JobRecord, devices: Iterable[str]) -> dict[str, queue.Allowed]:
    """What the database takes of each device: so much that no honest host meets the bounds."""
    measure = record.config.measure
    rounds = measure.timed_rounds + measure.profile + FRESH_ROUNDS
    planned = Counter(run.device for run in record.planned)
    runs = {device: planned[device] * rounds * MOST_AGAIN + SPARE_RUNS for device in devices}
    seconds = max(measure.seconds_of(mode, 0.0) for mode in measure.modes)
    size = RESULT_BYTES + 8 * int(measure.min_runs + MOST_INFERENCES * seconds)
    return {device: queue.Allowed(count, count * size) for device, count in runs.items()}


def found_campaign(store: Store, asked: str | None) -> CampaignRecord:
    """The lab's campaign of that id or name, the newest by default; raises ConfigError for none."""
    submitted = {job.campaign_id for job in queue.jobs_of(store)}
    titles = {name: title for name, title in store.names().items() if name in submitted}
    fitting = [name for name, title in titles.items() if asked in (None, name, title)]
    if not fitting:
        raise ConfigError(
            f"no campaign {asked!r} was submitted" if asked else "no campaign was submitted", where=store.where,
            why=f"submitted are: {few(list(reversed(titles))) or 'none'}", remedy="see `ort-mobile lab status`",
        )  # fmt: skip
    return store.campaign(fitting[-1])


def close(database: str, asked: str | None, output: Path | None, progress: Progress) -> Assembled:
    """Choose, bundle and report what a lab has measured, in a folder of this computer.

    Raises ConfigError while devices are at work: a report of half a campaign looks like one of a whole.
    """
    with open_store(database) as store:
        campaign = found_campaign(store, asked)
        jobs = queue.jobs_of(store, campaign.id)
        if working := [job.device for job in jobs if job.state in (*queue.OPEN, queue.MEASURED)]:
            raise ConfigError(
                f"{len(working)} of {len(jobs)} devices are not done", where=campaign.id,
                why=f"left are {few(working)}",
                remedy="wait for them (`ort-mobile lab status`), or give them up with `ort-mobile lab cancel`",
            )  # fmt: skip
        # not the folder that the config names: whoever submitted it did so for another computer
        folder = output or Path("output") / safe_name(campaign.name)
        with locked(folder):
            keep_campaign(folder, campaign.id, database=database)
            carried = fetched(store, campaign, folder)
            document = msgspec.structs.replace(carried.record, config=carried.config)
            campaign = msgspec.structs.replace(campaign, document=document)
            left = {job.device: job.reason for job in jobs if job.state in queue.ENDED and job.reason}
            return close_job(store, folder, (campaign, left, ()), None, StageLog(progress), only_reads=True)


MOST_REASONS = 5
"""Of one campaign in the terminal; --json has all."""


def lab_status(database: str, campaign: str | None = None) -> dict[str, Any]:
    """The state of the lab whose database is at a URL; see `state_of`."""
    with open_store(database) as store:
        return state_of(store, campaign)


def state_of(store: Store, campaign: str | None = None) -> dict[str, Any]:
    """Hosts, devices and campaigns of a lab; with `campaign` that campaign alone. Times are the database's."""
    names = (
        [found_campaign(store, campaign).id] if campaign else sorted({job.campaign_id for job in queue.jobs_of(store)})
    )
    titles, hosts, devices = store.names(), [], []
    for row in queue.lab_hosts(store):
        versions: dict[str, str] = {}
        with suppress(msgspec.DecodeError):  # what a host wrote that is none of ours
            versions = decode_json(row["versions"], dict[str, str])
        state = "silent" if row["silent_seconds"] > queue.SILENT_SECONDS else "working"
        hosts.append({**row, "versions": versions, "state": state})
    for name, facts in queue.attached_devices(store).items():
        chip = chip_of_phone(facts.soc.rpartition(" ")[2])
        title = f"{chip.name} ({chip.title})" if chip else ""
        devices.append({"name": name, "host": facts.host, "model": facts.model, "soc": facts.soc, "chip": title})
    lost = queue.lost_devices(store)
    silent = {host["name"]: host["silent_seconds"] for host in hosts if host["state"] == "silent"}
    campaigns = [campaign_state(store, name, titles[name]) for name in names]
    for job in (job for campaign in campaigns for job in campaign["jobs"] if job["state"] in queue.OPEN):
        # Why a device does not go on, which no host says that is dead or does not see it
        device, host = lost.get(job["device"]), silent.get(job["host"])
        if host is not None and job["state"] == queue.RUNNING:
            job["note"] = f"nothing heard of {job['host']} for {duration_text(host)}"
        elif device:
            job["note"] = f"lost: at {device.host} until {device.since}, {duration_text(device.seconds)} ago"
    return {
        "version": 1, "hosts": hosts, "devices": devices, "campaigns": campaigns,
        "golden": store.read(checks.golden_of), "quarantine": checks.in_quarantine(store),
        "lost": [
            {"name": name, "host": device.host, "since": device.since, "seconds": device.seconds}
            for name, device in lost.items()
        ],
    }  # fmt: skip


def campaign_state(store: Store, campaign: str, name: str) -> dict[str, Any]:
    """One campaign of `state_of`: its jobs, and how far each device is; no progress of one that has ended."""
    jobs = queue.jobs_of(store, campaign)
    progress: dict[str, RunsLeft] = {}
    if any(job.state not in queue.ENDED for job in jobs):
        with suppress(PipelineError):  # a plan that this release cannot read, which `lab close` says
            progress = progress_by_device(store, store.campaign(campaign), queue.again_of_all(store, campaign))
    rows = []
    for job in jobs:
        row = {key: value for key, value in job._mapping.items() if key != "campaign_id"}
        rows.append({**row, "note": "", "progress": msgspec.to_builtins(progress.get(job.device))})
    left = {job.device: progress[job.device] for job in jobs if job.device in progress and job.state in queue.OPEN}
    known = {device: row.seconds_left for device, row in left.items() if row.seconds_left is not None}
    together = {
        "stored": sum(row.stored for row in progress.values()), "failed": sum(row.failed for row in progress.values()),
        "at_most": sum(row.at_most for row in progress.values()), "seconds_left": max(known.values(), default=None),
        "slowest": max(known, key=lambda device: known[device] or 0.0, default=""),
        "unknown": sorted(left.keys() - known.keys()),
    }  # fmt: skip
    return {
        "campaign": campaign, "name": name, "priority": max((job.priority for job in jobs), default=0),
        "runs": len(store.finished(campaign)), "devices": dict(sorted(Counter(job.state for job in jobs).items())),
        "progress": together if progress else None, "jobs": rows,
    }  # fmt: skip


def status_lines(state: dict[str, Any]) -> Iterator[str]:
    """The state of a lab for a terminal, which nothing in it can steer: others wrote it."""
    yield from map(visible, _lines(state))


def _lines(state: dict[str, Any]) -> Iterator[str]:
    yield f"hosts: {len(state['hosts'])}"
    for host in state["hosts"]:
        is_silent = host["state"] == "silent"
        silent = f"nothing heard for {duration_text(host['silent_seconds'])}"
        names = [device["name"] for device in state.get("devices", ()) if device["host"] == host["name"]]
        listed = f" ({few(names)})" if names else ""
        has = f", {'worked' if is_silent else 'works'} on {few(host['leases'])}" if host["leases"] else ""
        note = f"{has}; {host['note']}" if host["note"] else has
        count = f"{counted(host['devices'], 'device')}{listed}"
        yield f"  {host['name']}: {silent if is_silent else 'working'}, {count}{note}"
    lost = state.get("lost", ())
    for device in lost[:MOST_REASONS]:
        when = f"until {device['since']}, {duration_text(device['seconds'])} ago"
        yield f"lost: {device['name']}, at {device['host']} {when}"
    if len(lost) > MOST_REASONS:
        yield f"lost: {len(lost) - MOST_REASONS} more: --json - lists all"
    for device, row in state.get("quarantine", {}).items():
        yield f"in quarantine: {device}, since {row['since'][:16].replace('T', ' ')}, by {row['host']}: {row['reason']}"
        yield f"  once it was looked at: ort-mobile lab release {device}"
    for campaign in state["campaigns"]:
        states = ", ".join(f"{number} {state}" for state, number in campaign["devices"].items())
        first = f" (priority {campaign['priority']})" if campaign["priority"] else ""
        yield f"{campaign['campaign']} {campaign['name']}{first}: {progress_text(campaign)}; devices: {states}"
        reasons = [(job, "; ".join(filter(None, (job["note"], job["reason"])))) for job in campaign["jobs"]]
        said = [f"  {job['device']} {job['state']}: {reason}" for job, reason in reasons if reason]
        yield from said[:MOST_REASONS]
        if len(said) > MOST_REASONS:
            yield f"  and {len(said) - MOST_REASONS} more: --json - lists all"


def progress_text(campaign: dict[str, Any]) -> str:
    """How far a campaign of `campaign_state` is, in words."""
    progress = campaign["progress"]
    if progress is None:
        return f"{campaign['runs']} runs stored"
    parts = [f"{progress['stored']:,} of at most {progress['at_most']:,} runs stored"]
    parts += [f"{progress['failed']:,} failed"] if progress["failed"] else []
    if progress["seconds_left"]:
        parts.append(f"about {duration_text(progress['seconds_left'])} of {progress['slowest']}'s time left")
    if progress["unknown"]:
        parts.append(f"not known yet how long {few(progress['unknown'])} takes")
    return ", ".join(parts)
