"""What systems of continuous integration read: JUnit XML, SARIF 2.1.0, GitHub's annotations, a bounded summary.

Names come from models, devices and drivers: they are cut, and nothing in them acts.
"""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote
from xml.etree import ElementTree as ET

import msgspec

from device_runner import safe_text
from pipeline.core.errors import Finding, Severity
from pipeline.report import wording
from pipeline.report.wording import Line, Listing, ListingNote, Part, Section

SUMMARY_CHARACTERS = 60_000
"""Of a summary or a comment: GitHub accepts 65,536 in a comment, and drops a step's summaries beyond 1 MiB whole."""
NAME_CHARACTERS = 200
"""Of a name."""
TEXT_CHARACTERS = 4_000
"""Of a message with cause and remedy."""
LEAST_WHOLE = 21
"""Rows and notes of a part that a summary has room for, from which on its texts are whole."""
MOST_PLACES = 10
"""Of a note in a summary."""
MOST_ANNOTATIONS = 10
"""Of one kind: GitHub shows no more of a step."""
MOST_RESULTS = 5_000
"""Of a SARIF file: GitHub reads that many of a run."""
NOT_IN_XML = re.compile("[\ufffe\uffff]|[^\t\n\r -\U0010ffff]")
"""What `visible` leaves and XML 1.0 cannot have."""


CiFinding: TypeAlias = tuple[Finding, str]
"""What speaks against something by a stable rule, where (device, model, …), and the file that has it, "" for none."""


class CiDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What a command has for a CI: `cases` are those of `junit_case`, `summary` is Markdown, "" for none.

    `source` is the file or folder that findings without a file of their own stand at.
    """

    name: str
    source: str = ""
    cases: tuple[ET.Element, ...] = ()
    findings: tuple[CiFinding, ...] = ()
    summary: str = ""


def short(text: str, most: int = NAME_CHARACTERS) -> str:
    """A name or sentence of at most so many characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def junit_case(class_name: str, name: str, kind: str, reason: str, text: str) -> ET.Element:
    """A test case: what ran, under the place where it ran; `kind` is "" (passed), failure, error or skipped."""
    case = ET.Element("testcase", {"classname": _xml(class_name), "name": _xml(name)})
    if kind:
        ET.SubElement(case, kind, {"message": _xml(reason), "type": _xml(reason)}).text = _xml(text, TEXT_CHARACTERS)
    elif text:
        ET.SubElement(case, "system-out").text = _xml(text, TEXT_CHARACTERS)
    return case


def junit(name: str, cases: Sequence[ET.Element]) -> bytes:
    """JUnit XML: one suite of these test cases."""
    counts = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    attributes = {key: str(sum(case.find(kind) is not None for case in cases)) for key, kind in counts.items()}
    root = ET.Element("testsuites")
    suite = ET.SubElement(root, "testsuite", {"name": _xml(name), "tests": str(len(cases)), **attributes})
    suite.extend(cases)
    ET.indent(root)
    document: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def _xml(text: str, most: int = NAME_CHARACTERS) -> str:
    return short(NOT_IN_XML.sub("?", safe_text.visible(text)), most)


LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning"}
"""Severity to what SARIF calls a level, and GitHub the command of an annotation."""


NO_FILE = "ort-mobile"
"""Where a finding stands for whose document no file is known."""


def sarif(findings: Sequence[CiFinding], version: str, source: str = "") -> bytes:
    """SARIF 2.1.0: a result for each finding, by which a CI knows it again in the next run.

    Each has a physical location, without which GitHub's code scanning refuses the whole file ("expected a physical
    location"): that of its own file, else of `source`.

    `partialFingerprints` are of rule, place and text without its numbers, which are others in each run; findings that
    differ in numbers alone are told apart by their order.
    """
    shown = sorted(findings, key=lambda pair: pair[0].severity is not Severity.ERROR)[:MOST_RESULTS]
    rules = list(dict.fromkeys(finding.code for finding, _ in shown))
    results, seen = [], Counter[str]()
    for finding, file in shown:
        text = re.sub(r"[0-9][0-9.,e+-]*", "#", finding.text)
        identity = "\0".join((finding.code, finding.where, relative(file), text))
        fingerprint = hashlib.sha256(f"{identity}\0{seen[identity]}".encode("utf-8", "replace")).hexdigest()
        seen[identity] += 1
        location = short(safe_text.visible(finding.where)) or "ort-mobile"
        uri = quote(relative(file or source) or NO_FILE, safe="/")
        where = {
            "logicalLocations": [{"fullyQualifiedName": location}],
            "physicalLocation": {"artifactLocation": {"uri": uri}, "region": {"startLine": 1}},
        }
        results.append(
            {
                "ruleId": finding.code,
                "ruleIndex": rules.index(finding.code),
                "level": LEVELS[finding.severity],
                "message": {"text": f"{location}: {short(safe_text.visible(finding.text), TEXT_CHARACTERS)}"},
                "locations": [where],
                "partialFingerprints": {"ortMobile/v1": fingerprint},
            }
        )
    driver = {
        "name": "ort-mobile",
        "version": version,
        "rules": [{"id": rule, "shortDescription": {"text": rule.replace("_", " ")}} for rule in rules],
    }
    document = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def relative(file: str) -> str:
    """A file as a CI names it: from the current folder where it lies in it, else its name alone; "" stays."""
    if not file:
        return ""
    path = Path(os.path.abspath(file))  # noqa: PTH100  # `resolve` would follow links
    folder = Path.cwd()
    return (
        (path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.name)
        .encode("utf-8", "replace")
        .decode()
    )


def annotations(findings: Sequence[CiFinding]) -> Iterator[str]:
    """Workflow commands of GitHub Actions, errors first, and one that says how many are left out of a kind."""
    for severity, level in LEVELS.items():
        of_level = [finding for finding in findings if finding[0].severity is severity]
        most = MOST_ANNOTATIONS if len(of_level) <= MOST_ANNOTATIONS else MOST_ANNOTATIONS - 1
        for finding, file in of_level[:most]:
            at = f"file={_property(relative(file))},line=1," if file else ""
            title = _property(short(f"{finding.code.replace('_', ' ')}: {finding.where}"))
            yield f"::{level} {at}title={title}::{_data(short(finding.text, TEXT_CHARACTERS))}"
        if len(of_level) > MOST_ANNOTATIONS:
            yield f"::{level} title=ort-mobile::{len(of_level) - MOST_ANNOTATIONS + 1} more: see the report"


def _data(text: str) -> str:
    """Text of a workflow command: one line, in which nothing begins another command."""
    return safe_text.visible(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def bounded(title: str, parts: Iterable[Part], rest: str) -> str:
    """Markdown of at most SUMMARY_CHARACTERS: rows at the end of tables are left out; `rest` says where they are."""
    parts = [part for part in parts if not isinstance(part, Listing) or part.rows]
    sizes = [
        len(part.rows if isinstance(part, Listing) else part.notes) for part in parts if not isinstance(part, Line)
    ]
    kept = max(LEAST_WHOLE, len(parts), *sizes)
    while True:
        text = wording.markdown(short(title), _kept(parts, kept, rest))
        if len(text) <= SUMMARY_CHARACTERS or kept == 0:
            return text
        kept //= 2


def _kept(parts: Sequence[Part], kept: int, rest: str) -> Iterator[Part]:
    """At most so many rows of each table and notes of each section, with names, places and texts cut."""
    tables, most, text_most = 0, max(3, kept), TEXT_CHARACTERS if kept >= LEAST_WHOLE else NAME_CHARACTERS
    for part in parts:
        if isinstance(part, Listing):
            tables += 1
            if tables <= most:
                rows = [tuple(map(short, row)) for row in part.rows[:kept]]
                if left := len(part.rows) - len(rows):
                    rows.append((f"{left} more: see {rest}", *[""] * (len(part.head) - 1)))
                yield replace(part, title=short(part.title), rows=tuple(rows))
        elif isinstance(part, Section):
            notes = []
            for note in part.notes[:kept]:
                places = [*map(short, note.places[:MOST_PLACES])]
                if len(note.places) > MOST_PLACES:
                    places.append(f"{len(note.places) - MOST_PLACES} more: see {rest}")
                text, remedy = short(note.text, text_most), short(note.remedy, text_most)
                notes.append(replace(note, title=short(note.title), text=text, remedy=remedy, places=tuple(places)))
            if left := len(part.notes) - len(notes):
                notes.append(ListingNote(title="", text=f"{left} more: see {rest}"))
            yield Section(title=part.title, notes=tuple(notes))
        else:
            yield part
    if tables > most:
        more = ListingNote(title="", text=f"{tables - most} more tables: see {rest}")
        yield Section(title="Left out", notes=(more,))
