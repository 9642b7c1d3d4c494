"""Closing a campaign that a lab has measured: choice, bundle and report, wherever somebody wants them."""

from collections.abc import Sequence
from pathlib import Path

from pipeline.campaign.lab.queue import ENDED, MEASURED, OPEN, LabJob, files_of, jobs_of
from pipeline.campaign.measure import UnfinishedDevice
from pipeline.campaign.record import CampaignRecord
from pipeline.campaign.store import Store, open_store
from pipeline.core.errors import ConfigError
from pipeline.core.progress import Progress, StageLog
from pipeline.job.campaign import JobOptions
from pipeline.job.devices import EndedCampaign
from pipeline.job.folder import locked
from pipeline.job.lab.carry import fetched
from pipeline.job.result import JobResult, close_job
from pipeline.job.run import output_folder
from pipeline.job.stored import keep_campaign


def found_campaign(store: Store, wanted: str | None) -> CampaignRecord:
    """The lab's campaign of that id or name, the newest by default; raises ConfigError for none."""
    submitted = {job.campaign for job in jobs_of(store)}
    known = [one for one in store.campaigns() if one.id in submitted]
    fitting = [one for one in known if wanted in (None, one.id, one.name)]
    if not fitting:
        raise ConfigError(
            f"no campaign {wanted!r} was submitted" if wanted else "no campaign was submitted", where=store.where,
            why=f"submitted are: {', '.join(one.id for one in known) or 'none'}", remedy="see `ort-mobile lab status`",
        )  # fmt: skip
    return fitting[-1]


def close(database: str, wanted: str | None, output: Path | None, progress: Progress) -> JobResult:
    """Choose, bundle and report what a lab has measured, in a folder of this computer.

    Raises ConfigError while devices are at work: a report of half a campaign looks like one of a whole.
    """
    with open_store(database) as store:
        campaign = found_campaign(store, wanted)
        record, jobs = campaign.job(), jobs_of(store, campaign.id)
        if working := [job.device for job in jobs if job.state in (*OPEN, MEASURED)]:
            raise ConfigError(
                f"{len(working)} of {len(jobs)} devices are not done", where=campaign.id,
                why=f"left are {', '.join(working[:5])}{' and more' if len(working) > 5 else ''}",
                remedy="wait for them (`ort-mobile lab status`), or give them up with `ort-mobile lab cancel`",
            )  # fmt: skip
        folder = output_folder(record.config, JobOptions(output=output))
        with locked(folder):
            keep_campaign(folder, campaign.id, database=database)
            fetched(store, campaign, files_of(store, campaign.id), folder)
            ended = EndedCampaign(campaign=campaign, left=tuple(_unfinished(jobs)))
            return close_job(store, folder, ended, None, StageLog(progress))


def _unfinished(jobs: Sequence[LabJob]) -> list[UnfinishedDevice]:
    return [
        UnfinishedDevice(device=job.device, reason=job.reason or job.state)
        for job in jobs
        if job.state in ENDED and job.reason
    ]
