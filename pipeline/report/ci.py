"""What systems of continuous integration read: JUnit XML, SARIF 2.1.0, GitHub's annotations, a bounded summary.

Names come from models, devices and drivers: they are cut, and nothing in them acts.
"""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree as ET

import msgspec

from device_runner.result import Status, Struct
from pipeline.advice.verdict import AdvisedAnswer
from pipeline.campaign.record import FailureRow, place
from pipeline.core.errors import Finding, Severity
from pipeline.core.groups import grouped
from pipeline.partition.answer import ModelAnswer
from pipeline.report import markdown, wording
from pipeline.report import proof as proof_texts
from pipeline.report.decision import banner
from pipeline.report.layout import COLUMNS, choices, results, sections, warnings
from pipeline.report.model import CampaignReport, Row
from pipeline.report.parts import Listing, ListingNote, Section
from pipeline.report.wording import visible

SUMMARY_CHARACTERS = 60_000
"""Of a summary or a comment: GitHub accepts 65,536 in a comment, and drops a step's summaries beyond 1 MiB whole."""
NAME_CHARACTERS = 200
"""Of a name."""
TEXT_CHARACTERS = 4_000
"""Of a message with cause and remedy."""
MOST_ANNOTATIONS = 10
"""Of one kind: GitHub shows no more of a step."""
MOST_RESULTS = 5_000
"""Of a SARIF file: GitHub reads that many of a run."""
NOT_IN_XML = re.compile("[\ufffe\uffff]|[^\t\n\r -\U0010ffff]")
"""What `visible` leaves and XML 1.0 cannot have."""


class CiCase(Struct, frozen=True, kw_only=True):
    """A test case: what ran, under the place where it ran; `kind` is "" (passed), failure, error or skipped."""

    place: str
    name: str
    kind: str = ""
    reason: str = ""
    text: str = ""


class CiFinding(Struct, frozen=True, kw_only=True):
    """What speaks against something: a stable rule, where (device, model, …), and the file, "" for none."""

    rule: str
    severity: Severity
    place: str
    text: str
    file: str = ""


class CiDocument(Struct, frozen=True, kw_only=True):
    """What a command has for a CI: `summary` is Markdown, "" for none."""

    name: str
    cases: tuple[CiCase, ...] = ()
    findings: tuple[CiFinding, ...] = ()
    summary: str = ""


def short(text: str, most: int = NAME_CHARACTERS) -> str:
    """A name or sentence of at most so many characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def junit(name: str, cases: Sequence[CiCase]) -> bytes:
    """JUnit XML: one suite, a test case for each."""
    kinds = [case.kind for case in cases]
    counts = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    attributes = {attribute: str(kinds.count(kind)) for attribute, kind in counts.items()}
    root = ET.Element("testsuites")
    suite = ET.SubElement(root, "testsuite", {"name": _xml(name), "tests": str(len(kinds)), **attributes})
    for case in cases:
        element = ET.SubElement(suite, "testcase", {"classname": _xml(case.place), "name": _xml(case.name)})
        if case.kind:
            reason = {"message": _xml(case.reason), "type": _xml(case.reason)}
            ET.SubElement(element, case.kind, reason).text = _xml(case.text, TEXT_CHARACTERS)
        elif case.text:
            ET.SubElement(element, "system-out").text = _xml(case.text, TEXT_CHARACTERS)
    ET.indent(root)
    document: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def _xml(text: str, most: int = NAME_CHARACTERS) -> str:
    return short(NOT_IN_XML.sub("?", visible(text)), most)


LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning"}
"""Severity to what SARIF calls a level, and GitHub the command of an annotation."""


def sarif(findings: Sequence[CiFinding], version: str) -> bytes:
    """SARIF 2.1.0: a result for each finding, by which a CI knows it again in the next run.

    `partialFingerprints` are of rule, place and text without its numbers, which are others in each run.
    """
    shown = sorted(findings, key=lambda finding: finding.severity is not Severity.ERROR)[:MOST_RESULTS]
    rules = list(dict.fromkeys(finding.rule for finding in shown))
    driver = {
        "name": "ort-mobile",
        "version": version,
        "rules": [{"id": rule, "shortDescription": {"text": rule.replace("_", " ")}} for rule in rules],
    }
    document = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": list(_results(shown, rules))}],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _results(findings: Sequence[CiFinding], rules: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Results with fingerprints; findings that differ in numbers alone are told apart by their order."""
    seen: Counter[str] = Counter()
    for finding in findings:
        text = re.sub(r"[0-9][0-9.,e+-]*", "#", finding.text)
        identity = "\0".join((finding.rule, finding.place, relative(finding.file), text))
        fingerprint = hashlib.sha256(f"{identity}\0{seen[identity]}".encode("utf-8", "replace")).hexdigest()
        seen[identity] += 1
        yield _result(finding, rules.index(finding.rule)) | {"partialFingerprints": {"ortMobile/v1": fingerprint}}


def _result(finding: CiFinding, rule: int) -> dict[str, Any]:
    place = short(visible(finding.place)) or "ort-mobile"
    where: dict[str, Any] = {"logicalLocations": [{"fullyQualifiedName": place}]}
    if finding.file:
        uri = quote(relative(finding.file), safe="/")
        where["physicalLocation"] = {"artifactLocation": {"uri": uri}, "region": {"startLine": 1}}
    return {
        "ruleId": finding.rule,
        "ruleIndex": rule,
        "level": LEVELS[finding.severity],
        "message": {"text": f"{place}: {short(visible(finding.text), TEXT_CHARACTERS)}"},
        "locations": [where],
    }


def relative(file: str) -> str:
    """A file as a CI names it: from the current folder where it lies in it, else its name alone; "" stays."""
    if not file:
        return ""
    path = Path(os.path.abspath(file))  # noqa: PTH100  # `resolve` would follow links
    here = Path.cwd()
    return (
        (path.relative_to(here).as_posix() if path.is_relative_to(here) else path.name)
        .encode("utf-8", "replace")
        .decode()
    )


def annotations(findings: Sequence[CiFinding]) -> Iterator[str]:
    """Workflow commands of GitHub Actions, errors first, and one that says how many are left out of a kind."""
    for severity, level in LEVELS.items():
        of_level = [finding for finding in findings if finding.severity is severity]
        for finding in of_level[: MOST_ANNOTATIONS if len(of_level) <= MOST_ANNOTATIONS else MOST_ANNOTATIONS - 1]:
            file = f"file={_property(relative(finding.file))},line=1," if finding.file else ""
            title = _property(short(f"{finding.rule.replace('_', ' ')}: {finding.place}"))
            yield f"::{level} {file}title={title}::{_data(short(finding.text, TEXT_CHARACTERS))}"
        if len(of_level) > MOST_ANNOTATIONS:
            yield f"::{level} title=ort-mobile::{len(of_level) - MOST_ANNOTATIONS + 1} more: see the report"


def _data(text: str) -> str:
    """Text of a workflow command: one line, in which nothing begins another command."""
    return visible(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def bounded(title: str, tables: Sequence[Listing], notes: Sequence[Section], rest: str) -> str:
    """Markdown of at most SUMMARY_CHARACTERS: rows at the end of tables are left out; `rest` says where they are."""
    kept = max(1, len(tables), *(len(table.rows) for table in tables), *(len(section.notes) for section in notes))
    while True:
        text = markdown.render_parts(short(title), *_kept(tables, notes, kept, rest))
        if len(text) <= SUMMARY_CHARACTERS or kept == 0:
            return text
        kept //= 2


def _kept(
    tables: Sequence[Listing], notes: Sequence[Section], kept: int, rest: str
) -> tuple[list[Listing], list[Section]]:
    whole = tables[: max(3, kept)]
    left = len(tables) - len(whole)
    more = ListingNote(title="", text=f"{left} more tables: see {rest}")
    about = [Section(title="Left out", notes=(more,))] if left else []
    return [_cut(table, kept, rest) for table in whole], [*about, *(_cut_section(note, kept, rest) for note in notes)]


def _cut(listing: Listing, kept: int, rest: str) -> Listing:
    rows = tuple(tuple(short(cell) for cell in row) for row in listing.rows[:kept])
    left = len(listing.rows) - len(rows)
    more = ((f"{left} more: see {rest}", *[""] * (len(listing.head) - 1)),) if left else ()
    return Listing(title=short(listing.title), head=listing.head, rows=(*rows, *more))


def _cut_section(section: Section, kept: int, rest: str) -> Section:
    notes = tuple(
        ListingNote(title=short(note.title), text=short(note.text, TEXT_CHARACTERS if kept > 20 else NAME_CHARACTERS),
                    remedy=short(note.remedy), places=tuple(short(where) for where in note.places[:10]))
        for note in section.notes[:kept]
    )  # fmt: skip
    left = len(section.notes) - len(notes)
    more = (ListingNote(title="", text=f"{left} more: see {rest}"),) if left else ()
    return Section(title=section.title, notes=(*notes, *more))


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
    for table in results(report):
        rows = tuple(tuple(column.text(row) for column in COLUMNS) for row in table.rows)
        yield Listing(title=f"{table.model} on {table.device}", head=head, rows=rows)


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
    where = place(answer.ep, answer.path)

    def finding(rule: str, text: str, severity: Severity = Severity.WARNING) -> CiFinding:
        return CiFinding(rule=rule, severity=severity, place=where, text=text, file=answer.path)

    if answer.error:
        yield finding("model", str(answer.error), Severity.ERROR)
    if answer.load and answer.load.error:
        text = "; ".join(filter(None, (answer.load.error, answer.load.remedy)))
        yield finding("session_fails", text, Severity.ERROR)
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
