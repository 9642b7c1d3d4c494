"""The end of a job: choice, bundle and report of what was measured, and the exit code that says how it ended."""

from dataclasses import dataclass
from pathlib import Path

from device_runner.options import Denied
from pipeline.campaign.measure import UnfinishedDevice
from pipeline.campaign.store import Store
from pipeline.core.errors import ExitCode, Finding, errors
from pipeline.core.progress import StageLog
from pipeline.job.assemble import Assembled, assemble, with_earlier
from pipeline.job.devices import EndedCampaign
from pipeline.job.ship import ship_or_refuse
from pipeline.job.stored import with_stages, write_reports
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
        """4 when an output check, a budget that leaves a model without an artifact, a constraint of a search or the
        library that ships says no, 0 when all is done.

        1 when anything else failed, or a search has no answer.
        """
        record, report = self.assembled.record, self.assembled.report
        checks = [c for variants in record.checks.values() for found in variants.values() for c in found]
        checks += [check for row in report.rows for check in row.checks]
        refused = any(proof.failed for proof in report.proofs) or bool(errors(self.findings))
        if report.tuned and (report.tuned.impossible or report.tuned.unanswered):
            return ExitCode.CHECK_FAILED if report.tuned.impossible else ExitCode.SOME_FAILED
        refused |= any(one.result and one.result.not_finite for one in record.accuracy)
        over = {one.model for one in record.accuracy if one.refused(record.config.accuracy.max_drop)}
        refused |= any(one.model in over for one in report.withheld)
        if refused or any(check.failed for check in checks):
            return ExitCode.CHECK_FAILED
        return ExitCode.SOME_FAILED if report.failures or self.left or not self.content else ExitCode.DONE


def close_job(
    store: Store,
    folder: Path,
    ended: EndedCampaign,
    library: str | None,
    progress: StageLog,
    *,
    only_reads: bool = False,
) -> JobResult:
    """Choose, bundle and report what a campaign measured; the times of the job's stages are stored, too."""
    assembled = with_earlier(assemble(store, ended.campaign), store)
    assembled, content, findings = ship_or_refuse(assembled, folder, library=library, progress=progress)
    assembled = with_stages(assembled, None if only_reads else store, progress.stages)
    write_reports(assembled, folder)
    return JobResult(
        assembled=assembled, folder=folder, content=content, left=ended.left, denied=ended.denied, findings=findings
    )
