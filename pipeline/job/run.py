"""The sequence of the whole job, and what it leaves in its output folder."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec

from pipeline.campaign.options import check_runs
from pipeline.campaign.store import open_store
from pipeline.config import Config
from pipeline.core.files import scratch
from pipeline.core.output import ARTIFACTS, DATABASE
from pipeline.core.progress import Progress, StageLog
from pipeline.job.bench import require_devices
from pipeline.job.campaign import CampaignJob, JobOptions
from pipeline.job.prepare import find, left_out, numbered, prepare, quick, with_accuracy
from pipeline.job.ship import EndedCampaign, JobResult, check_against_targets, close_job, write_operator_configs
from pipeline.job.stored import keep_campaign, kept_campaigns, locked


def output_folder(config: Config, options: JobOptions) -> Path:
    """Where results go: the command line goes before the config, the config before output/NAME."""
    return options.output or Path(config.output.folder or Path("output") / config.name)


def database_url(config: Config, folder: Path) -> str:
    """The database of a job: the config's, or a file in its output folder."""
    return config.output.database or f"sqlite:///{folder / DATABASE}"


def _with_kept_database(config: Config, folder: Path) -> Config:
    """The config with the database that the folder keeps, where it names none itself: there is what is to go on."""
    database = config.output.database or kept_campaigns(folder).database
    return msgspec.structs.replace(config, output=msgspec.structs.replace(config.output, database=database))


Measure = Callable[[CampaignJob, Path, Progress], EndedCampaign]
"""How a prepared job is measured, with a folder for what is left of its runs."""


def run_job(config: Config, options: JobOptions, shown: Progress, measure: Measure = CampaignJob.measure) -> JobResult:
    """Do the whole job; raises PipelineError when nothing of it can be done."""
    progress = StageLog(shown)
    with prepared_job(config, options, progress) as (job, work):
        return close_job(job.store, job.folder, measure(job, work, progress), options.library, progress)


@contextlib.contextmanager
def prepared_job(config: Config, options: JobOptions, progress: Progress) -> Iterator[tuple[CampaignJob, Path]]:
    """The job with everything before its first run done, and a folder for what is left of runs."""
    check_runs(config.runs)
    hints: tuple[str, ...] = (left_out(config),) if options.quick else ()
    config = quick(config) if options.quick else config
    folder = output_folder(config, options)
    config = _with_kept_database(config, folder) if options.resume else config
    models = find(config)
    hints += numbered(models)
    if not (options.convert_only or options.resume):  # to go on costs no conversion, and the store knows more devices
        require_devices(options.devices or config.devices, options.library, options.wait_seconds)
    with locked(folder), scratch(folder) as work:
        prepared, sets = prepare(config, models, folder, work, progress)
        prepared = with_accuracy(prepared, sets, config, folder, progress)
        artifacts = [artifact for model in prepared for artifact in model.artifacts]
        write_operator_configs(config, folder, [folder / ARTIFACTS / artifact.file for artifact in artifacts])
        checked = check_against_targets(config, artifacts, folder)
        entered = partial(keep_campaign, folder, database=config.output.database)
        with open_store(database_url(config, folder)) as store:
            yield CampaignJob(config, options, prepared, folder, store, checked, hints, entered), work
