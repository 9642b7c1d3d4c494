"""What a job left, and the exit code that says how it ended."""

from dataclasses import dataclass
from pathlib import Path

from device_runner.minimize import Denied
from pipeline.campaign.measure import UnfinishedDevice
from pipeline.core.errors import ExitCode, Finding, errors
from pipeline.job.assemble import Assembled
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
