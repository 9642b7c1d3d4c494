"""What systems of continuous integration read of a campaign, and of what providers claim."""

from collections.abc import Iterable, Iterator, Sequence

from device_runner.result import Status
from pipeline.advice.verdict import AdvisedAnswer
from pipeline.campaign.record import FailureRow, place
from pipeline.core.errors import Finding, Severity
from pipeline.core.groups import grouped
from pipeline.partition.answer import ModelAnswer
from pipeline.report import proof as proof_texts
from pipeline.report import wording
from pipeline.report.ci import CiCase, CiDocument, CiFinding, bounded
from pipeline.report.decision import banner
from pipeline.report.layout import COLUMNS, choices, results, sections, warnings
from pipeline.report.model import CampaignReport, Row
from pipeline.report.wording import Listing

MOST_NODES = 10
"""Nodes that a finding names."""


def of_campaign(report: CampaignReport, more: Iterable[Finding] = ()) -> CiDocument:
    """Cases are rows of the report, failures and what was skipped; `more` speaks against shipping."""
    verdict = banner(report)
    headline = f"{report.name}: {verdict.headline}" if verdict else report.name
    return CiDocument(
        name=f"ort-mobile {report.name}",
        cases=tuple(_cases(report)),
        findings=tuple(_findings(report, more)),
        summary=bounded(headline, list(_tables(report)), list(sections(report)), "report.html"),
    )


def _tables(report: CampaignReport) -> Iterator[Listing]:
    """What ships first, then the results."""
    head = tuple(column.title for column in COLUMNS)
    shipped = choices(report)
    yield from [shipped] if shipped.rows else []
    for (model, device), rows in results(report).items():
        cells = tuple(tuple(column.text(row) for column in COLUMNS) for row in rows)
        yield Listing(title=f"{model} on {device}", head=head, rows=cells)


def _cases(report: CampaignReport) -> Iterator[CiCase]:
    """One for each row, failed ones with their reason; then failures and skipped runs that have no row."""
    failures = grouped(
        ((failure.device, failure.model, failure.variant, failure.run), failure) for failure in report.failures
    )
    for row in report.rows:
        yield _case(row, failures.pop((row.device, row.model, row.variant, row.run), []))
    for (device, model, variant, run), alike in failures.items():
        kinds = ", ".join(failure.kind for failure in alike)
        text = "\n".join(map(_failure_text, alike))
        yield CiCase(place=_dotted(device, model), name=_spaced(variant, run), kind="error", reason=kinds, text=text)
    for skipped in report.skipped:
        where, name = _dotted(skipped.device, skipped.model), _spaced(skipped.variant, skipped.run)
        yield CiCase(place=where, name=name, kind="skipped", reason="skipped", text=skipped.text)


def _case(row: Row, failures: Sequence[FailureRow]) -> CiCase:
    where, name = _dotted(row.device, row.model), _spaced(row.variant, row.run)
    if wrong := [check for check in row.checks if check.failed]:
        text = "; ".join(f"{check.output}: {check.reason or 'not what the original computes'}" for check in wrong)
        return CiCase(place=where, name=name, kind="failure", reason="outputs differ", text=text)
    text = "\n".join(map(_failure_text, failures))
    if row.status is Status.OK:
        median = wording.duration(row.statistics.median_ns) if row.statistics else ""
        return CiCase(place=where, name=name, text="\n".join(filter(None, (median and f"median {median}", text))))
    kind = "skipped" if row.status is Status.SKIPPED else "error"
    reason = ", ".join(failure.kind for failure in failures) or row.status.value
    return CiCase(place=where, name=name, kind=kind, reason=reason, text=text)


def _dotted(device: str, model: str) -> str:
    return ".".join(filter(None, (device, model))) or "campaign"


def _spaced(variant: str, run: str) -> str:
    return " ".join(filter(None, (variant, run))) or "all runs"


def _failure_text(failure: FailureRow) -> str:
    """What was said, why, what to do."""
    cause = "" if failure.cause in failure.message else failure.cause
    return "; ".join(part.strip().rstrip(".") for part in (failure.message, cause, failure.remedy) if part)


def _findings(report: CampaignReport, more: Iterable[Finding]) -> Iterator[CiFinding]:
    """Errors and warnings of a campaign, with the file of the model that they concern."""
    files = {model.name: model.file for model in report.models}
    for model in report.models:
        if model.error:
            text = "; ".join(filter(None, (model.error, model.remedy)))
            yield CiFinding(rule="model", severity=Severity.ERROR, place=model.name, text=text, file=model.file)
    for failure in report.failures:
        where = place(failure.device, failure.model, failure.variant, failure.run)
        text, file = _failure_text(failure), files.get(failure.model, "")
        yield CiFinding(rule=failure.kind, severity=Severity.ERROR, place=where, text=text, file=file)
    for name, where, text in _wrong(report):
        file = files.get(name, "")
        yield CiFinding(rule="outputs_differ", severity=Severity.ERROR, place=where, text=text, file=file)
    for held in report.withheld:
        where, file = place(held.target, held.model), files.get(held.model, "")
        yield CiFinding(rule="withheld", severity=Severity.ERROR, place=where, text=held.reason, file=file)
    for proof in report.proofs:
        severity = Severity.ERROR if proof.failed else Severity.WARNING
        for row, finding in proof_texts.findings(proof):
            text = "; ".join(filter(None, (finding.what, proof_texts.reason(finding), finding.remedy)))
            where, file = proof_texts.where(row), files.get(row.model, "")
            yield CiFinding(rule="proof", severity=severity, place=where, text=text, file=file)
    for against in more:
        yield CiFinding(
            rule=against.rule or "release", severity=against.severity, place=against.where, text=against.text
        )
    for note in warnings(report):
        where = ", ".join(note.places[:3]) or report.name
        yield CiFinding(rule="warning", severity=Severity.WARNING, place=where, text=note.text)


def _wrong(report: CampaignReport) -> Iterator[tuple[str, str, str]]:
    """Model, place and text of outputs that differ."""
    for row in report.rows:
        for check in row.checks:
            if check.failed:
                where = place(row.device, row.model, row.variant, row.run)
                reason = check.reason or "not what the original computes"
                yield row.model, where, f"{check.output}: {reason}"


def of_partition(answers: Iterable[ModelAnswer]) -> CiDocument:
    """Findings are models without an answer, sessions that will fail, nodes that fall back to the CPU, and advice."""
    return CiDocument(
        name="ort-mobile partition", findings=tuple(finding for answer in answers for finding in _claims(answer))
    )


def _claims(answer: ModelAnswer) -> Iterator[CiFinding]:
    where = place(f"{answer.ep} {answer.chip}".strip(), answer.path)

    def finding(rule: str, text: str, severity: Severity = Severity.WARNING) -> CiFinding:
        return CiFinding(rule=rule, severity=severity, place=where, text=text, file=answer.path)

    if answer.error:
        yield finding("model", str(answer.error), Severity.ERROR)
    if answer.load and answer.load.error:
        text = "; ".join(filter(None, (answer.load.error, answer.load.remedy)))
        yield finding("session_fails", text, Severity.ERROR)
    if answer.simulated and answer.simulated.passed is False:
        at = f"{answer.simulated.op_type} '{answer.simulated.first}': " if answer.simulated.first else ""
        text = "; ".join(filter(None, (f"{at}{answer.simulated.reason}", answer.simulated.remedy)))
        yield finding("computed_otherwise", f"simulated: {text}", Severity.ERROR)
    refused = grouped(
        ((node.code or "unsupported", node.op_type, node.reason or "", node.remedy or ""), node)
        for node in answer.decisions
        if not node.claimed
    )
    for (code, operator, reason, remedy), nodes in refused.items():
        names = ", ".join(node.name or node.outputs[0] for node in nodes[:MOST_NODES] if node.name or node.outputs)
        rest = f" and {len(nodes) - MOST_NODES} more" if len(nodes) > MOST_NODES else ""
        text = "; ".join(filter(None, (reason, remedy)))
        yield finding(f"{answer.ep}/{code}", f"{operator} falls back to the CPU: {text} (nodes: {names}{rest})")
    if isinstance(answer, AdvisedAnswer) and answer.advice.verdict:
        verdict = answer.advice.verdict
        yield finding("advice", f"{verdict.choice.value}: {verdict.reason}")
