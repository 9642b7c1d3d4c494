"""A campaign, and claims of providers, as what systems of continuous integration read."""

from collections.abc import Iterable, Iterator, Sequence

from device_runner.result import Status
from pipeline.advice.verdict import AdvisedAnswer
from pipeline.campaign.record import FailureRow
from pipeline.core.errors import Finding, Severity
from pipeline.partition.answer import Decision, ModelAnswer
from pipeline.report import proof as proof_texts
from pipeline.report import wording
from pipeline.report.ci import CiCase, CiDocument, CiFinding, bounded
from pipeline.report.decision import banner
from pipeline.report.layout import COLUMNS, Listing, choices, place, results, sections
from pipeline.report.model import CampaignReport, Row

MOST_NODES = 10
"""Nodes that a finding names."""


def of_campaign(report: CampaignReport, more: Iterable[Finding] = ()) -> CiDocument:
    """Cases are rows of the report, failures and what was skipped; `more` speaks against shipping."""
    found = banner(report)
    headline = f"{report.name}: {found.headline}" if found else report.name
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
    for found in results(report):
        rows = tuple(tuple(column.text(row) for column in COLUMNS) for row in found.rows)
        yield Listing(title=f"{found.model} on {found.device}", head=head, rows=rows)


def _cases(report: CampaignReport) -> Iterator[CiCase]:
    """One for each row, failed ones with their reason; then failures and skipped runs that have no row."""
    failures: dict[tuple[str, ...], list[FailureRow]] = {}
    for failure in report.failures:
        failures.setdefault((failure.device, failure.model, failure.variant, failure.run), []).append(failure)
    for row in report.rows:
        own = failures.pop((row.device, row.model, row.variant, row.run), [])
        yield _case(row, own)
    for (device, model, variant, run), own in failures.items():
        kinds = ", ".join(one.kind for one in own)
        text = "\n".join(map(_failure_text, own))
        yield CiCase(place=_dotted(device, model), name=_spaced(variant, run), kind="error", reason=kinds, text=text)
    for one in report.skipped:
        name = _spaced(one.variant, one.run)
        yield CiCase(place=_dotted(one.device, one.model), name=name, kind="skipped", reason="skipped", text=one.text)


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
    reason = ", ".join(one.kind for one in failures) or row.status.value
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
    for one in report.failures:
        where, file = place(one.device, one.model, one.variant, one.run), files.get(one.model, "")
        yield CiFinding(rule=one.kind, severity=Severity.ERROR, place=where, text=_failure_text(one), file=file)
    for name, where, text in _wrong(report):
        file = files.get(name, "")
        yield CiFinding(rule="outputs_differ", severity=Severity.ERROR, place=where, text=text, file=file)
    for held in report.withheld:
        where, file = place(held.target, held.model), files.get(held.model, "")
        yield CiFinding(rule="withheld", severity=Severity.ERROR, place=where, text=held.reason, file=file)
    for proof in report.proofs:
        severity = Severity.ERROR if proof.failed else Severity.WARNING
        for title, said, remedy, where in proof_texts.findings(proof):
            text = "; ".join(filter(None, (title, said, remedy)))
            file = files.get(where.partition(" / ")[0], "")
            yield CiFinding(rule="proof", severity=severity, place=where, text=text, file=file)
    for against in more:
        yield CiFinding(rule="release", severity=against.severity, place=against.where, text=against.text)
    for warning in report.warnings:
        yield CiFinding(rule="warning", severity=Severity.WARNING, place=report.name, text=warning)


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
    return CiDocument(name="ort-mobile partition", findings=tuple(one for answer in answers for one in _claims(answer)))


def _claims(answer: ModelAnswer) -> Iterator[CiFinding]:
    where = place(answer.ep, answer.path)

    def finding(rule: str, text: str, severity: Severity = Severity.WARNING) -> CiFinding:
        return CiFinding(rule=rule, severity=severity, place=where, text=text, file=answer.path)

    if answer.error:
        yield finding("model", str(answer.error), Severity.ERROR)
    if answer.load and answer.load.error:
        text = "; ".join(filter(None, (answer.load.error, answer.load.remedy)))
        yield finding("session_fails", text, Severity.ERROR)
    alike: dict[tuple[str, ...], list[Decision]] = {}
    for one in answer.decisions:
        if not one.claimed:
            key = (one.code or "unsupported", one.op_type, one.reason or "", one.remedy or "")
            alike.setdefault(key, []).append(one)
    for (code, operator, reason, remedy), nodes in alike.items():
        names = ", ".join(one.name or one.outputs[0] for one in nodes[:MOST_NODES] if one.name or one.outputs)
        rest = f" and {len(nodes) - MOST_NODES} more" if len(nodes) > MOST_NODES else ""
        said = "; ".join(filter(None, (reason, remedy)))
        yield finding(f"{answer.ep}/{code}", f"{operator} falls back to the CPU: {said} (nodes: {names}{rest})")
    if isinstance(answer, AdvisedAnswer) and answer.advice.verdict:
        verdict = answer.advice.verdict
        yield finding("advice", f"{verdict.choice.value}: {verdict.reason}")
