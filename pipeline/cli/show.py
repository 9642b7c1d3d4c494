"""What a job shows at its end, and findings as every command shows them."""

from collections.abc import Iterable
from typing import Any, NoReturn

import click

from device_runner.options import Denied
from pipeline.campaign.plan import deny_list, options_name
from pipeline.cli.outputs import Outputs
from pipeline.core.errors import Finding, Severity, errors
from pipeline.job.assemble import Assembled
from pipeline.job.ship import JobResult
from pipeline.release.manifest import content_digest
from pipeline.release.shipped import context_line
from pipeline.report.formats import of_campaign, show_report
from pipeline.report.layout import failed_lines
from pipeline.report.wording import visible


def show_denied(entries: Iterable[Denied]) -> None:
    """What was newly entered in the deny list, and where that is; on stderr."""
    for entry in entries:
        model = ", this model" if entry.model_sha256 else ""
        name = f"{options_name(entry.options)} on {entry.devices.chip}{model}"
        click.echo(f"denied from now on: {visible(name)} ({deny_list()})", err=True)


def nothing_ships(assembled: Assembled) -> str:
    """Why nothing is in a bundle, for each model once."""
    reasons = dict.fromkeys(f"{row.model}: {row.reason}" for row in assembled.report.withheld)
    return visible("no artifact may ship" + (f" ({'; '.join(reasons)})" if reasons else ": the config has no target"))


def job_document(result: JobResult) -> dict[str, Any]:
    """What a job left, for programs: the files, the bundle, and what speaks against shipping."""
    folder, content = result.folder, result.content
    bundle = (
        {
            "folder": str(folder / "bundle"),
            "digest": content_digest(content),
            "ships": content.ships,
            "contexts": content.contexts,
        }
        if content
        else None
    )
    return {
        "folder": str(folder),
        "results": str(folder / "results.json"),
        "reports": [str(folder / "report.html"), str(folder / "report.md")],
        "bundle": bundle,
        "findings": result.findings,
        "left": [{"device": device, "reason": reason} for device, reason in result.left.items()],
        "denied": result.denied,
        "exit_code": result.exit_code,
    }


def show_job(result: JobResult, outputs: Outputs) -> None:
    """The report and where everything is on stdout, unless there is to be no text; what went wrong on stderr."""
    if outputs.text:
        show_report(result.assembled.report)
    if result.exit_code:
        outputs.show_errors(failed_lines(result.assembled.report))
    for device, reason in result.left.items():
        click.echo(visible(f"{device} was left before the end: {reason}"), err=True)
    show_denied(result.denied)
    show_findings(result.findings)
    folder = result.folder
    if outputs.text:
        click.echo(f"report   {folder / 'report.html'}, {folder / 'report.md'}, {folder / 'results.json'}")
    if result.content and outputs.text:
        for context in result.content.contexts:
            click.echo(context_line(context))
        click.echo(f"bundle   {folder / 'bundle'} (digest {content_digest(result.content)[:16]})")
    elif not result.content:
        reason = "see the errors above" if errors(result.findings) else nothing_ships(result.assembled)
        click.echo(f"bundle   none: {reason}", err=True)


def finish_job(ctx: click.Context, result: JobResult, outputs: Outputs, **more: Any) -> NoReturn:
    """Write what a job left as JSON (with `more`) and for a CI, show it, and end the command."""
    outputs.write_json(job_document(result) | more)
    outputs.write_ci(of_campaign(result.assembled.report, result.findings))
    show_job(result, outputs)
    ctx.exit(result.exit_code)


def show_findings(findings: Iterable[Finding]) -> None:
    """Print findings to stderr; names of models and libraries in them cannot steer the terminal."""
    for finding in findings:
        color = "red" if finding.severity is Severity.ERROR else "yellow"
        place = f"{finding.where}: " if finding.where else ""
        click.echo(f"{click.style(finding.severity.value, fg=color)}: {visible(place + finding.what)}", err=True)
        for label, text in (("why", finding.why), ("remedy", finding.remedy)):
            if text:
                click.echo(f"  {label}: {visible(text)}", err=True)
