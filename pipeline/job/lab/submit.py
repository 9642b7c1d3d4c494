"""Submitting a campaign to a lab: it is prepared here, and needs this computer no more."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from device_runner.device import DeviceFacts, is_selector, parse_selector, split_server
from pipeline.campaign.deny_list import known_denied
from pipeline.campaign.lab.queue import (
    attached_devices,
    keep_files,
    remove_old_files,
    submit_jobs,
    uploading,
)
from pipeline.campaign.lab.session import LabSession
from pipeline.campaign.plan import in_modes, plan_runs
from pipeline.campaign.record import JobRecord
from pipeline.campaign.store import open_store
from pipeline.config import Config
from pipeline.core.errors import ConfigError, MissingError
from pipeline.core.progress import Progress
from pipeline.job.campaign import JobOptions
from pipeline.job.lab.carry import carried_files, lab_versions
from pipeline.job.predict import Predicted, predict
from pipeline.job.prepare import ARTIFACTS
from pipeline.job.run import prepared_job


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """A campaign in the queue of a lab."""

    campaign: str
    devices: tuple[str, ...]
    runs: int
    files: int
    bytes: int


def chosen_devices(names: Sequence[str], attached: Mapping[str, DeviceFacts]) -> dict[str, DeviceFacts]:
    """The devices of a lab that a config means, under their names there; raises MissingError for none.

    `adb:*` and conditions mean every phone that fits, `local` that of every host, and NAME@HOST one of them.
    """
    tests = [_test(name) for name in names]
    found = {
        name: msgspec.structs.replace(facts, name=name)
        for name, facts in attached.items()
        if any(test(msgspec.structs.replace(facts, name=name)) for test in tests)
    }
    if not found:
        raise MissingError(
            "no host of the lab has such a device", where=", ".join(names),
            why=f"attached are: {', '.join(attached) or 'none'}",
            remedy="start `ort-mobile lab work` on the hosts; `ort-mobile lab status` lists what they have",
        )  # fmt: skip
    return found


def _test(name: str) -> Callable[[DeviceFacts], bool]:
    scheme, _, rest = name.partition(":")
    if scheme == "adb" and is_selector(rest):
        fits = parse_selector(split_server(rest)[0])
        return lambda facts: facts.name.startswith("adb:") and fits(facts)
    return lambda facts: facts.name == name or facts.name.startswith(f"{name}@")


def submit(config: Config, options: JobOptions, progress: Progress) -> Submitted:
    """Prepare a campaign here, and put it with its files into the queue; nothing of this computer is needed then.

    Raises ConfigError for a config without a database of a lab, MissingError where no host has such a device.
    """
    if not config.output.database:
        raise ConfigError(
            "no database is named", where="lab submit", why="a lab's queue is in its database",
            remedy="pass --database postgresql://USER@HOST/DATABASE, or set [output] database in the config",
        )  # fmt: skip
    with open_store(config.output.database) as store:
        LabSession(store.engine, "submit").close()
        facts = chosen_devices(options.devices or config.devices, attached_devices(store))
    with prepared_job(config, options, progress) as (job, _):
        measurable = [a for one in job.prepared for a in one.artifacts if a.source in one.references]
        legal, skipped = plan_runs(job.config.runs, measurable, list(facts.values()), known_denied())
        planned = in_modes(legal, job.config.measure)
        predicted = predict(planned, facts, job.checked.release, job.folder / ARTIFACTS, progress)
        campaign = job.enter(facts, planned, skipped, partial(_for_lab, predicted=predicted))
        references = campaign.job().references
        remove_old_files(job.store)
        with uploading(job.store):
            made = keep_files(job.store, carried_files(job.folder, measurable, references, job.config.targets))
            submit_jobs(job.store, campaign.id, facts, made)
    return Submitted(
        campaign=campaign.id, devices=tuple(facts), runs=len(planned) * config.measure.timed_rounds, files=len(made),
        bytes=sum(one.size_bytes for one in made),
    )  # fmt: skip


def _for_lab(record: JobRecord, predicted: Predicted) -> JobRecord:
    """What is stored of a campaign of a lab: its hosts compare the versions of more programs."""
    return msgspec.structs.replace(record, versions=lab_versions(), placements=predicted.placements)
