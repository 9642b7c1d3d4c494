"""The sequence of the whole job, and what it leaves in its output folder."""

from dataclasses import dataclass
from pathlib import Path

from device_runner.minimize import Denied
from pipeline.campaign.measure import UnfinishedDevice
from pipeline.campaign.options import check_runs
from pipeline.campaign.store import open_store
from pipeline.config import Config
from pipeline.core.errors import ExitCode, Finding, errors
from pipeline.core.files import scratch
from pipeline.core.progress import Progress
from pipeline.job.accuracy import with_accuracy
from pipeline.job.assemble import Assembled, assemble
from pipeline.job.campaign import CampaignJob, JobOptions
from pipeline.job.folder import DATABASE, locked, write_operator_configs, write_reports
from pipeline.job.gate import (
    check_shipping,
    hold_against_targets,
    read_all,
    unshipped,
)
from pipeline.job.prepare import find, left_out, numbered, prepare, quick
from pipeline.job.record import (
    versions,
)
from pipeline.job.ship import proven, ship
from pipeline.job.targets import oldest_release
from pipeline.job.tune import measured
from pipeline.release.manifest import Content


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """What a job left: the report, its folder, the bundle's content (None: nothing may ship), how it ended."""

    assembled: Assembled
    folder: Path
    content: Content | None
    left: tuple[UnfinishedDevice, ...] = ()
    denied: tuple[Denied, ...] = ()
    findings: tuple[Finding, ...] = ()
    """What speaks against shipping; an error among it, and there is no bundle."""

    @property
    def exit_code(self) -> ExitCode:
        """4 when an output check, a constraint of a search or the library that ships says no, 0 when all is done.

        1 when anything else failed, or a search has no answer.
        """
        record, report = self.assembled.record, self.assembled.report
        checks = [c for variants in record.checks.values() for found in variants.values() for c in found]
        checks += [check for row in report.rows for check in row.checks]
        refused = any(proof.failed for proof in report.proofs) or bool(errors(self.findings))
        if report.tuned and (report.tuned.impossible or report.tuned.unanswered):
            return ExitCode.CHECK_FAILED if report.tuned.impossible else ExitCode.SOME_FAILED
        if refused or any(check.failed for check in checks):
            return ExitCode.CHECK_FAILED
        return ExitCode.SOME_FAILED if report.failures or self.left or not self.content else ExitCode.DONE


def output_folder(config: Config, options: JobOptions) -> Path:
    """Where results go: the command line goes before the config, the config before output/NAME."""
    return options.output or Path(config.output.folder or Path("output") / config.name)


def database_url(config: Config, folder: Path) -> str:
    """The database of a job: the config's, or a file in its output folder."""
    return config.output.database or f"sqlite:///{folder / DATABASE}"


def run_job(config: Config, options: JobOptions, progress: Progress) -> JobResult:
    """Do the whole job; raises PipelineError when nothing of it can be done."""
    check_runs(config.runs)
    hints: tuple[str, ...] = (left_out(config),) if options.quick else ()
    config = quick(config) if options.quick else config
    folder = output_folder(config, options)
    found = find(config)
    hints += numbered(found)
    with locked(folder), scratch(folder) as work:
        prepared, sets = prepare(config, found, folder, work, progress)
        prepared = with_accuracy(prepared, sets, config, folder, progress)
        artifacts = [artifact for one in prepared for artifact in one.artifacts]
        write_operator_configs(config, folder, artifacts)
        held = hold_against_targets(config, artifacts, read_all(artifacts, folder), versions()["onnxruntime"])
        with open_store(database_url(config, folder)) as store:
            job = CampaignJob(config, options, prepared, folder, store, held, oldest_release(config), hints)
            ended = measured(job, work, progress)
            assembled = assemble(store, ended.campaign)
        findings = check_shipping(assembled, folder)
        refused = bool(errors(findings))
        content = None if refused else ship(assembled, folder, library=options.library, progress=progress)
        assembled = unshipped(assembled, findings) if refused else proven(assembled, folder)
        write_reports(assembled, folder)
    return JobResult(
        assembled=assembled, folder=folder, content=content, left=ended.left, denied=ended.denied, findings=findings
    )
