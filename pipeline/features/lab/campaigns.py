"""Campaigns of a lab: submitted as data and files, planned again by each host, closed where their report is wanted.

What a host runs of a campaign that it was handed as data are the same functions of the same values as elsewhere.
"""

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from device_runner import build as runner_build
from device_runner import device as runner_device
from device_runner import files as runner_files
from device_runner.device import DeviceFacts
from pipeline.campaign import denied as campaign_denied
from pipeline.campaign import plan as planning
from pipeline.campaign import planned as campaign_planned
from pipeline.campaign import record as campaign_record
from pipeline.campaign import store as campaign_store
from pipeline.campaign.record import CampaignRecord
from pipeline.campaign.store import Store
from pipeline.config import Config
from pipeline.core import file_names
from pipeline.core import files as storage
from pipeline.core import groups as counting
from pipeline.core import progress as core_progress
from pipeline.core.errors import ConfigError, MissingError
from pipeline.core.progress import Progress
from pipeline.features.lab import checks as lab_checks
from pipeline.features.lab import content
from pipeline.features.lab import queue as lab_queue
from pipeline.job import assemble, campaigns, carrying, predicted
from pipeline.job import run as job_run
from pipeline.job import stored as job_stored

log = logging.getLogger(__name__)

COMPARED = ("onnxruntime", "probe")
"""Programs that must be of the same version on every host of a campaign: others would measure something else."""

NEEDS = "v0002"
"""The schema of the earliest agents that measure what this release submits: later where a host must know more of it."""


@cache
def lab_versions() -> dict[str, str]:
    """The versions of this host: of every program that has a part in an artifact, and of the probe's sources."""
    digest = hashlib.sha256(b"".join(unit.read_bytes() for unit in runner_build.units())).hexdigest()[:12]
    return {**campaigns.versions(), "probe": digest}


def other_versions(record: campaign_record.JobRecord) -> str:
    """Why this host may not measure a campaign, or ""."""
    versions = lab_versions()
    pairs = {name: (versions.get(name), record.versions.get(name)) for name in COMPARED}
    other = [f"{name} {at_host}, the campaign {there}" for name, (at_host, there) in pairs.items() if at_host != there]
    return f"this host has {'; '.join(other)}" if other else ""


def other_plan(
    record: campaign_record.JobRecord, facts: DeviceFacts, planned_runs: Iterable[campaign_planned.PlannedRun]
) -> str:
    """Why this host may not measure a device of a campaign, or "": another release may plan other runs."""
    made = record.versions.get("ort-mobile", "?")
    if made == lab_versions()["ort-mobile"]:
        return ""
    wanted = {run.id for run in record.planned if run.device == facts.name}
    lacking = len(wanted - {run.id for run in planned_runs})
    return f"ort-mobile {made} planned {len(wanted)} runs of it, of which {lacking} are unknown here" if lacking else ""


def carried_folder(campaign: str) -> Path:
    """Where this host has the files of a campaign; raises StoreError for an id that could lead elsewhere."""
    return (
        runner_files.cache_folder() / "lab" / content.checked_id(campaign).replace(":", "=")
    )  # no id has =, no Windows path has :


def carried_campaigns() -> list[str]:
    """The ids of campaigns whose files are on this host."""
    folder = runner_files.cache_folder() / "lab"
    return [path.name.replace("=", ":") for path in folder.iterdir()] if folder.is_dir() else []


def fetched(
    store: Store, campaign: CampaignRecord, folder: Path | None = None, ended: Callable[[], str] = str
) -> carrying.Carried:
    """A campaign with its files, by default in this user's cache; raises StoreError, DiskError and their like.

    All names are looked at before anything is written: who may submit could name any file of this computer. `ended`
    is as for `fetch_file`.
    """
    folder = folder or carried_folder(campaign.id)
    record, artifacts = campaign.job(), store.artifacts(campaign.id)
    by_chip = (name for context in record.contexts for name in (context.file, context.binary))
    for name in (*(name for artifact in artifacts for name in artifact.files), *by_chip):
        content.file_in(folder, f"{storage.ARTIFACTS}/{name}")
    by_name = {}
    for library in carrying.carried_libraries(record.config):
        content.file_in(
            folder, f"{storage.REFERENCES}/{library.place.partition('/')[2]}"
        )  # as strict about folder and name
        by_name[library.name] = folder / library.place
    for name in record.references:
        content.file_in(folder, f"{storage.REFERENCES}/{name}/any")
    files = content.files_of(store, campaign.id)
    paths = [by_name.get(file.name, content.file_in(folder, file.name)) for file in files]
    for file, path in zip(files, paths, strict=True):
        content.fetch_file(store, file, path, ended)
    return carrying.Carried(campaign=campaign, record=record, artifacts=artifacts, folder=folder)


def chosen_devices(
    names: Sequence[str], attached: Mapping[str, DeviceFacts], lost: Mapping[str, lab_queue.LostDevice] | None = None
) -> dict[str, DeviceFacts]:
    """The devices of a lab that a config means, under their names there; raises MissingError for a name of none.

    `lost` are devices that a host had before. `adb:*` and conditions mean every phone that fits, `local` that of every
    host, and NAME@HOST one of them.
    """
    fits = {
        name: runner_device.parse_selector(runner_device.split_server(name.removeprefix("adb:"))[0])
        for name in names
        if name.startswith("adb:") and runner_device.is_selector(name.removeprefix("adb:"))
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
            "no host of the lab has such a device",
            where=counting.few(of_nobody),
            why=f"{counting.few([*was, ''], '; ')}attached are: {counting.few(list(attached)) or 'none'}",
            remedy="attach it, and see in `ort-mobile lab status` that its host works; or leave it out: --device names "
            "those that are meant",
        )
    return {facts.name: facts for facts in named if any(means(name, facts) for name in names)}


def submit(
    config: Config, options: job_run.JobOptions, progress: Progress, *, priority: int = 0, notify: str = ""
) -> dict[str, Any]:
    """Prepare a campaign here, and put it with its files into the queue; nothing of this computer is needed then.

    `notify` is a URL that a host tells of the campaign's end.

    Gives what the command shows: the campaign, its devices, the most runs, and how many files of how many bytes.

    Raises ConfigError for a config without a database of a lab, MissingError where no host has such a device.
    """
    if not config.output.database:
        raise ConfigError(
            "no database is named",
            where="lab submit",
            why="a lab's queue is in its database",
            remedy="pass --database postgresql://USER@HOST/DATABASE, or set [output] database in the config",
        )
    by_name: dict[str, str] = {}
    for library in carrying.carried_libraries(config):
        if not Path(library.file).is_file():
            raise MissingError(
                "a library of the campaign is not here",
                where=library.file,
                why="there is no such file",
                remedy="correct its path in `custom_ops`, or in `plugins` of [measure]",
            )
        if (other := by_name.setdefault(library.name, library.file)) != library.file:
            raise ConfigError(
                "two libraries of the campaign have one name",
                where=library.file,
                remedy="rename one of them",
                why=f"{other} has it, too, and hosts of the lab have the files of a plugin in one folder",
            )
    with campaign_store.open_store(config.output.database) as store:
        lab_queue.refuse_other_database(store.engine)
        names, lost = options.devices or config.devices, lab_queue.lost_devices(store)
        facts = chosen_devices(names, lab_queue.attached_devices(store), lost)
        held = {
            name: quarantine["reason"] for name, quarantine in lab_checks.in_quarantine(store).items() if name in facts
        }
        for name, reason in held.items():
            log.warning("%s: left out, in quarantine: %s", name, reason)
        facts = {name: device for name, device in facts.items() if name not in held}
        if not facts:
            raise MissingError(
                "every device that is meant is in quarantine",
                where=", ".join(held),
                why="; ".join(dict.fromkeys(held.values())),
                remedy="`ort-mobile lab release DEVICE` gives one back, once it was looked at",
            )
    with job_run.prepared_job(config, replace(options, convert_only=True), progress) as (job, _):
        measurable = [a for prepared in job.prepared for a in prepared.artifacts if a.source in prepared.references]
        legal, skipped = planning.plan_runs(
            job.config.runs, measurable, list(facts.values()), campaign_denied.known_denied(), job.contexts
        )
        planned = planning.in_modes(legal, job.config.measure)
        _, placements = predicted.predict(planned, facts, job.config.targets, job.folder / storage.ARTIFACTS, progress)
        campaign = job.enter(facts, planned, skipped, more_versions=lab_versions(), placements=placements)
        references = campaign.job().references
        content.remove_old_files(job.store)
        carried = carrying.carried_files(job.folder, measurable, references, job.config, campaign.job().contexts)
        files = content.keep_files(job.store, carried)
        allowed = most_runs(campaign.job(), facts)
        lab_queue.submit_jobs(job.store, campaign.id, allowed, files, priority=priority, address=notify, needs=NEEDS)
    return {
        "campaign": campaign.id,
        "priority": priority,
        "devices": tuple(facts),
        "runs": len(planned) * config.measure.timed_rounds,
        "files": len(files),
        "bytes": sum(file.size_bytes for file in files),
    }


def store_golden(store: Store, url: str, config: Config, options: job_run.JobOptions, progress: Progress) -> str:
    """Store a config's model with its files, and check devices with it; the id of its campaign, which has no devices.

    Raises ConfigError for another number of models than one, PipelineError where nothing of it can be run.
    """
    lab_queue.refuse_other_database(store.engine)
    where = "[[models]]"
    if len(config.shipped) != 1:
        raise ConfigError(
            f"the config of a golden model has {len(config.shipped)} models",
            where=where,
            why="a check is one small model",
            remedy="name one",
        )
    config = msgspec.structs.replace(config, output=msgspec.structs.replace(config.output, database=url))
    with job_run.prepared_job(config, replace(options, convert_only=True), progress) as (job, _):
        measurable = [a for prepared in job.prepared for a in prepared.artifacts if a.source in prepared.references]
        if not measurable:
            errors = (error for prepared in job.prepared for error in prepared.errors)
            raise next(errors, None) or ConfigError(
                "the golden model has no outputs to compare with", where=where, remedy="name another model"
            )
        campaign = job.enter({}, [], [], more_versions=lab_versions())
        record = campaign.job()
        files = carrying.carried_files(job.folder, measurable, record.references, job.config, record.contexts)
        lab_checks.set_golden(store, campaign.id, content.keep_files(store, files))
    return campaign.id


MOST_AGAIN, SPARE_RUNS = 3, 30
"""How many times what is planned, and how many more, a device's results may be: failures are stored and repeated."""

RESULT_BYTES = 1 << 20
"""Of a result without its latencies; one of a profile has the times of every node."""

MOST_INFERENCES = 100_000
"""In a second, of a process: more than a model of one node does."""


def most_runs(record: campaign_record.JobRecord, devices: Iterable[str]) -> dict[str, lab_queue.Allowed]:
    """What the database takes of each device: so much that no honest host meets the bounds."""
    measure = record.config.measure
    rounds = measure.timed_rounds + measure.profile + campaign_record.FRESH_ROUNDS
    planned = Counter(run.device for run in record.planned)
    runs = {device: planned[device] * rounds * MOST_AGAIN + SPARE_RUNS for device in devices}
    seconds = max(measure.seconds_of(mode, 0.0) for mode in measure.modes)
    size = RESULT_BYTES + 8 * int(measure.min_runs + MOST_INFERENCES * seconds)
    return {device: lab_queue.Allowed(count, count * size) for device, count in runs.items()}


def found_campaign(store: Store, asked: str | None) -> CampaignRecord:
    """The lab's campaign of that id or name, the newest by default; raises ConfigError for none."""
    submitted = {job.campaign_id for job in lab_queue.jobs_of(store)}
    titles = {name: title for name, title in store.names().items() if name in submitted}
    fitting = [name for name, title in titles.items() if asked in (None, name, title)]
    if not fitting:
        raise ConfigError(
            f"no campaign {asked!r} was submitted" if asked else "no campaign was submitted",
            where=store.where,
            why=f"submitted are: {counting.few(list(reversed(titles))) or 'none'}",
            remedy="see `ort-mobile lab status`",
        )
    return store.campaign(fitting[-1])


def close(database: str, asked: str | None, output: Path | None, progress: Progress) -> assemble.Assembled:
    """Choose, bundle and report what a lab has measured, in a folder of this computer.

    Raises ConfigError while devices are at work: a report of half a campaign looks like one of a whole.
    """
    with campaign_store.open_store(database) as store:
        campaign = found_campaign(store, asked)
        jobs = lab_queue.jobs_of(store, campaign.id)
        if working := [job.device for job in jobs if job.state in (*lab_queue.OPEN, lab_queue.MEASURED)]:
            raise ConfigError(
                f"{len(working)} of {len(jobs)} devices are not done",
                where=campaign.id,
                why=f"left are {counting.few(working)}",
                remedy="wait for them (`ort-mobile lab status`), or give them up with `ort-mobile lab cancel`",
            )
        # not the folder that the config names: whoever submitted it did so for another computer
        folder = output or Path("output") / file_names.safe_name(campaign.name)
        with job_stored.locked(folder):
            job_stored.keep_campaign(folder, campaign.id, database=database)
            carried = fetched(store, campaign, folder)
            document = msgspec.structs.replace(carried.record, config=carried.config)
            campaign = msgspec.structs.replace(campaign, document=document)
            left = {job.device: job.reason for job in jobs if job.state in lab_queue.ENDED and job.reason}
            ended = assemble.EndedCampaign(campaign=campaign, left=left)
            return assemble.close_job(store, folder, ended, None, core_progress.StageLog(progress), only_reads=True)
