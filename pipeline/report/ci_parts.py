"""A campaign and the claims of models as cases and findings for CI."""

from collections.abc import Iterable, Iterator
from xml.etree import ElementTree as ET

import msgspec

from device_runner.result import Status
from pipeline.advice import verdict as advice_verdict
from pipeline.campaign import record as campaign_record
from pipeline.campaign import tuned as campaign_tuned
from pipeline.core import groups as counting
from pipeline.core.errors import Finding, Severity
from pipeline.partition import answer as claim_answer
from pipeline.report import proofs as report_proofs
from pipeline.report import wording
from pipeline.report.ci import CiDocument, CiFinding, bounded, junit_case
from pipeline.report.decision import banner
from pipeline.report.first_lines import first_lines
from pipeline.report.formats import result_tables
from pipeline.report.layout import choices
from pipeline.report.model import CampaignReport
from pipeline.report.sections import sections, warnings

MOST_NODES = 10
"""Nodes that a finding names."""

DIFFERS = "not what the original computes"


def of_campaign(report: CampaignReport, more: Iterable[Finding] = ()) -> CiDocument:
    """Cases are rows of the report, failed ones with their reason, then failures and what was skipped that have no row;
    `more` speaks against shipping.
    """
    failures = counting.grouped((failure.key.names, failure) for failure in report.failures)
    cases = []
    for row in report.rows:
        of_row = failures.pop(row.names, [])
        kind, reason, text = "", "", "\n".join(failure.text for failure in of_row)
        if wrong := [check for check in row.checks if check.failed]:
            kind, reason = "failure", "outputs differ"
            text = "; ".join(f"{check.output}: {check.reason or DIFFERS}" for check in wrong)
        elif row.status is Status.OK:
            median = f"median {wording.duration(row.statistics.median_ns)}" if row.statistics else ""
            text = "\n".join(filter(None, (median, text)))
        else:
            kind = "skipped" if row.status is Status.SKIPPED else "error"
            reason = ", ".join(dict.fromkeys(failure.code for failure in of_row)) or row.status.value
        cases.append(_case(row.names, kind, reason, text))
    for names, alike in failures.items():
        kinds = ", ".join(dict.fromkeys(failure.code for failure in alike))
        cases.append(_case(names, "error", kinds, "\n".join(failure.text for failure in alike)))
    cases += [
        _case((answer.search.device, answer.search.model, "", "search"), *kind, answer.why_none)
        for answer, kind in _unanswered(report)
    ]
    cases += [
        _case((skipped.device, skipped.model, skipped.variant, skipped.run), "skipped", "skipped", skipped.text)
        for skipped in report.skipped
    ]
    verdict = banner(report)
    return CiDocument(
        name=f"ort-mobile {report.name}",
        source=next((model.file for model in report.models if model.file), ""),
        cases=tuple(cases),
        findings=tuple(_findings(report, more)),
        summary=bounded(
            f"{report.name}: {verdict.headline}" if verdict else report.name,
            [*first_lines(report), choices(report), *result_tables(report), *sections(report)],
            "report.html",
        ),
    )


def _unanswered(report: CampaignReport) -> Iterator[tuple[campaign_tuned.TuneAnswer, tuple[str, str]]]:
    """Searches without a winner, each with what JUnit calls it: a failure where nothing keeps to the constraints."""
    for answer in report.tuned.answers if report.tuned else ():
        if answer.why_none:
            outcome = answer.search.outcome
            yield answer, ("failure" if outcome is campaign_tuned.TuneOutcome.NONE_POSSIBLE else "error", outcome.value)


def _case(names: tuple[str, str, str, str], kind: str, reason: str, text: str) -> ET.Element:
    """Of a row by its device, model, variant and run; names that are "" are left out."""
    class_name, name = ".".join(filter(None, names[:2])) or "campaign", " ".join(filter(None, names[2:])) or "all runs"
    return junit_case(class_name, name, kind, reason, text)


def _findings(report: CampaignReport, more: Iterable[Finding]) -> Iterator[CiFinding]:
    """Errors and warnings of a campaign, with the file of the model that they concern."""
    files = {model.name: model.file for model in report.models}
    failed = {(failure.model, failure.what) for failure in report.failures}  # those say the cause, too
    for model in report.models:
        if model.error and (model.name, model.error) not in failed:
            text = "; ".join(filter(None, (model.error, model.remedy)))
            yield Finding(code="model", severity=Severity.ERROR, where=model.name, what=text), model.file
    for failure in report.failures:
        text, file = failure.text, files.get(failure.model, "")
        yield Finding(code=failure.code, severity=Severity.ERROR, where=failure.key.place, what=text), file
    for measured in report.rows:
        for check in (check for check in measured.checks if check.failed):
            text, file = f"{check.output}: {check.reason or DIFFERS}", files.get(measured.model, "")
            yield Finding(code="outputs_differ", severity=Severity.ERROR, where=measured.place, what=text), file
    unanswered = {answer.why_none: answer.search for answer, _ in _unanswered(report)}
    for text, search in unanswered.items():
        where, file = campaign_record.place(search.device, search.model), files.get(search.model, "")
        yield Finding(code="search", severity=Severity.ERROR, where=where, what=text), file
    for held in (held for held in report.withheld if held.what not in unanswered):
        where, file = campaign_record.place(held.target, held.model), files.get(held.model, "")
        yield Finding(code="withheld", severity=Severity.ERROR, where=where, what=held.what), file
    for proof in report.proofs:
        severity = Severity.ERROR if proof.failed else Severity.WARNING
        for run, finding in report_proofs.findings(proof):
            text = "; ".join(filter(None, (finding.what, report_proofs.reason(finding), finding.remedy)))
            where, file = report_proofs.where(run), files.get(run.model, "")
            yield Finding(code="proof", severity=severity, where=where, what=text), file
    yield from ((msgspec.structs.replace(finding, code=finding.code or "release"), "") for finding in more)
    for note in warnings(report):
        where = ", ".join(note.places[:3]) or report.name
        yield Finding(code="warning", severity=Severity.WARNING, where=where, what=note.text), ""


def of_partition(answers: Iterable[claim_answer.ModelAnswer]) -> CiDocument:
    """Findings are models without an answer, sessions that will fail, nodes that fall back to the CPU, and advice."""
    findings = [finding for answer in answers for finding in _claims(answer)]
    return CiDocument(name="ort-mobile partition", findings=tuple(findings))


def _claims(answer: claim_answer.ModelAnswer) -> Iterator[CiFinding]:
    where = campaign_record.place(f"{answer.ep} {answer.chip}".strip(), answer.path)

    def finding(rule: str, text: str, severity: Severity = Severity.WARNING) -> CiFinding:
        return Finding(code=rule, severity=severity, where=where, what=text), answer.path

    if answer.error:
        yield finding("model", str(answer.error), Severity.ERROR)
    left = [node for node in answer.decisions if not node.claimed]
    if answer.load and answer.load.error:
        # Nothing falls back where no session is made: what that is about, and what is not known then, is counted
        codes = {answer.load.code or "load": "it is so", "unknown": "it is not known"}
        rows = [(text, [node for node in left if node.code == code]) for code, text in codes.items()]
        left = [node for node in left if node.code not in codes]
        counts = (f"{text} of {len(nodes)} of {answer.nodes} nodes ({_types(nodes)})" for text, nodes in rows if nodes)
        text = "; ".join(filter(None, (answer.load.error, answer.load.remedy, *counts)))
        yield finding("session_fails", text, Severity.ERROR)
    if answer.simulated and answer.simulated.passed is False:
        at = f"{answer.simulated.op_type} '{answer.simulated.first}': " if answer.simulated.first else ""
        text = "; ".join(filter(None, (f"{at}{answer.simulated.reason}", answer.simulated.remedy)))
        yield finding("computed_otherwise", f"simulated: {text}", Severity.ERROR)
    refused = counting.grouped(
        ((node.code or "unsupported", node.op_type, node.reason or "", node.remedy or ""), node) for node in left
    )
    for (code, operator, reason, remedy), nodes in refused.items():
        names = ", ".join(node.name or node.outputs[0] for node in nodes[:MOST_NODES] if node.name or node.outputs)
        rest = f" and {len(nodes) - MOST_NODES} more" if len(nodes) > MOST_NODES else ""
        text = "; ".join(filter(None, (reason, remedy)))
        yield finding(f"{answer.ep}/{code}", f"{operator} falls back to the CPU: {text} (nodes: {names}{rest})")
    if isinstance(answer, advice_verdict.AdvisedAnswer) and answer.advice.verdict:
        verdict = answer.advice.verdict
        yield finding("advice", f"{verdict.choice.value}: {verdict.reason}")


def _types(nodes: Iterable[claim_answer.Decision]) -> str:
    return ", ".join(dict.fromkeys(node.op_type for node in nodes))
