"""What a CI reads, read back: JUnit XML by junitparser, SARIF by sarif-pydantic, annotations as the runner does."""

import gzip
import json
import re
from pathlib import Path

import jsonschema
import msgspec
import pytest

from pipeline.campaign.record import FailureRow
from pipeline.cli.outputs import Outputs
from pipeline.core.errors import Finding, Severity, warning
from pipeline.partition.answer import Decision, LoadForecast, ModelAnswer
from pipeline.report.ci import (
    MOST_ANNOTATIONS,
    MOST_RESULTS,
    SUMMARY_CHARACTERS,
    CiDocument,
    CiFinding,
    annotations,
    bounded,
    junit,
    sarif,
)
from pipeline.report.ci_parts import of_campaign, of_partition
from pipeline.report.model import CampaignReport
from pipeline.report.sections import sections
from pipeline.report.wording import Listing, ListingNote, Section
from tests.npm_packages import packed
from tests.report.test_proof import PROOF
from tests.report_samples import make_report

HOSTILE = "a%0A::error::b\n::error file=x::c\r\x1b[2J</testcase>]]>\ufffe\ud800|`<script>"
SARIF_SCHEMA = (
    "@microsoft/jest-sarif@1.0.0-beta.0",
    "sha512-A1fOhPd6Ic5iDk4F9YPw1qNB4XF+7+IviR7xl8r2F6QzQkx5cpY9LsGk2rExiFIEcBbjpVnSmwWGBukASkiQ9A==",
)
COMMAND = re.compile(r"^::(error|warning) ((?:[a-z]+=[^,:]*)(?:,[a-z]+=[^,:]*)*)::(.*)$")


def finding(text: str, place: str = "d / m", rule: str = "crash", file: str = "") -> CiFinding:
    return Finding(code=rule, severity=Severity.ERROR, where=place, what=text), file


def commands(findings: list[CiFinding]) -> list[tuple[str, dict[str, str], str]]:
    """Kind, properties and text of annotations, as the runner decodes them; each is one line of its own form."""
    found = []
    for line in annotations(findings):
        assert line.splitlines() == [line]
        assert "\x1b" not in line
        match = COMMAND.match(line)
        assert match, line
        texts = [match[3], *(pair.partition("=")[2] for pair in match[2].split(","))]
        for escape, char in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
            texts = [text.replace(escape, char) for text in texts]
        names = [pair.partition("=")[0] for pair in match[2].split(",")]
        found.append((match[1], dict(zip(names, texts[1:], strict=True)), texts[0]))
    return found


def test_each_run_is_a_test_case_with_its_failure_cause_and_remedy() -> None:
    junitparser = pytest.importorskip("junitparser", reason="junitparser is not installed")
    report = make_report()
    document = of_campaign(report)
    suites = junitparser.JUnitXml.fromstring(junit(document.name, document.cases))
    (suite,) = suites
    cases = {(case.classname, case.name): case for case in suite}
    assert suite.tests == len(list(suite)) == len(document.cases)
    kinds = [type(one).__name__ for case in suite for one in case.result]
    assert (suite.failures, suite.errors, suite.skipped) == tuple(map(kinds.count, ("Failure", "Error", "Skipped")))
    assert suite.failures
    assert suite.errors
    for row in report.rows:
        assert (f"{row.device}.{row.model}", f"{row.variant} {row.run}") in cases
    refused = [one for case in suite for one in case.result if one.type == "provider_refused"]
    assert refused
    assert all("the NNAPI driver refuses an operation" in one.text for one in refused)
    assert all("measure this model with USE_NCHW, or on the CPU" in one.text for one in refused)


def test_messages_that_end_with_a_line_break_go_on_without_it() -> None:
    """ONNX Runtime's do: it would stand there as backslash and n."""
    report = make_report()
    failure = msgspec.structs.replace(report.failures[0], what="Schema was not found. SinceVersion:11.\n", why="x")
    broken = msgspec.structs.replace(report, failures=(failure,))
    text = next(row.text for row, _ in of_campaign(broken).findings if row.code == failure.code)
    assert text.startswith("Schema was not found. SinceVersion:11; x")
    note = next(one for section in sections(broken) if section.title == "What failed" for one in section.notes)
    assert note.text == "Schema was not found. SinceVersion:11; x"


def test_a_model_that_cannot_be_used_is_one_case_and_one_finding() -> None:
    report = make_report()
    failure = FailureRow(code="preparation", what="not an ONNX file", why="it is empty", model="broken")
    (model,) = [msgspec.structs.replace(row, error=failure.what) for row in report.models if row.error]
    again = msgspec.structs.replace(failure, what="it has no reference either")
    document = of_campaign(msgspec.structs.replace(report, models=(model,), failures=(failure, again)))
    (case,) = [case for case in document.cases if case.get("classname") == model.name]
    assert [error.get("type") for error in case.iter("error")] == ["preparation"]
    texts = [finding.what for finding, _ in document.findings if finding.where == model.name]
    assert texts == ["not an ONNX file; it is empty", "it has no reference either; it is empty"]


def test_findings_are_sarif_that_another_program_reads() -> None:
    reader = pytest.importorskip("sarif_pydantic", reason="sarif-pydantic is not installed")
    more = Finding(severity=Severity.WARNING, what="too large", where="app.aar", remedy="leave out what is not needed")
    document = of_campaign(make_report(), [more])
    (run,) = reader.Sarif.model_validate_json(sarif(document.findings, "1.2")).runs
    assert run.tool.driver.version == "1.2"
    assert len(run.results) == len(document.findings)
    ids = [rule.id for rule in run.tool.driver.rules]
    assert [ids[result.rule_index] for result in run.results] == [result.rule_id for result in run.results]
    assert {result.level.value for result in run.results} == {"error", "warning"}
    assert any("too large; leave out what is not needed" in result.message.text for result in run.results)


def test_each_finding_has_a_file_or_github_refuses_them_all() -> None:
    def places(findings: list[CiFinding], source: str) -> list[str]:
        results = json.loads(sarif(findings, "1", source))["runs"][0]["results"]
        return [row["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for row in results]

    of_no_file = finding("not a finding of a file")
    assert places([finding("x", file="a/m.onnx"), of_no_file], "new/b.onnx") == ["a/m.onnx", "new/b.onnx"]
    assert all(places([of_no_file], ""))
    assert of_campaign(make_report()).source


@pytest.mark.network
def test_findings_keep_to_the_schema_of_oasis_and_the_limits_of_github() -> None:
    """The standard's own schema, as an npm package of Microsoft's has it; GitHub refuses files over its limits."""
    schema = json.loads(packed(*SARIF_SCHEMA)["lib/schemas/sarif-2.1.0-rtm.5.json"])
    assert schema["title"].startswith("Static Analysis Results Format (SARIF) Version 2.1.0")
    validator = jsonschema.validators.validator_for(schema)(schema, format_checker=jsonschema.FormatChecker())
    hostile = [finding(HOSTILE, HOSTILE, f"rule {n}", f"/a b/{HOSTILE}") for n in range(3)]
    many = [finding(f"{'node ' * 9000}{n}", f"d{n} / m") for n in range(MOST_RESULTS + 3)]
    for findings in (of_campaign(make_report()).findings, [], hostile, many):
        text = sarif(findings, "1.2")
        document = json.loads(text)
        assert [error.message for error in validator.iter_errors(document)] == []
        assert len(document["runs"][0]["results"]) == min(len(findings), MOST_RESULTS)
        assert len(gzip.compress(text)) < 10 << 20
    assert MOST_RESULTS <= 5000
    broken = json.loads(sarif(hostile, "1.2"))
    broken["runs"][0]["results"][0]["level"] = "bad"
    assert list(validator.iter_errors(broken))


def prints(findings: list[CiFinding]) -> list[str]:
    results = json.loads(sarif(findings, "1"))["runs"][0]["results"]
    return [result["partialFingerprints"]["ortMobile/v1"] for result in results]


def test_fingerprints_stay_when_numbers_change_and_tell_findings_apart() -> None:
    first = prints([finding("killed after 300 s"), finding("killed after 300 s", "e / m"), finding("lost")])
    assert first == prints([finding("killed after 12.5 s"), finding("killed after 7 s", "e / m"), finding("lost")])
    twice = prints([finding("node 1 falls back"), finding("node 2 falls back")])
    assert len({*first, *twice}) == 5
    assert prints([finding("x", file="a/m.onnx")]) != prints([finding("x", file="b/m.onnx")])


def test_claims_name_the_file_the_nodes_and_what_helps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    nodes = tuple(
        Decision(name=f"relu{n}", op_type="Relu", domain="", since_version=6, outputs=(f"r{n}",), claimed=n > 11,
                 code="op", reason="Relu is not supported", remedy="none")
        for n in range(14)
    )  # fmt: skip
    answers = [
        ModelAnswer(path=str(tmp_path / "a b" / "m.onnx"), ep="nnapi", ort_release="1.20", decisions=nodes),
        ModelAnswer(path="/elsewhere/n.onnx", ep="nnapi", ort_release="1.20", load=LoadForecast(error="it aborts")),
        ModelAnswer(path="x.onnx", ep="nnapi", ort_release="1.20", error="not a model"),
    ]
    findings = of_partition(answers).findings
    assert [(row.code, row.severity.value) for row, _ in findings] == [
        ("nnapi/op", "warning"), ("session_fails", "error"), ("model", "error"),
    ]  # fmt: skip
    assert "relu9 and 2 more" in findings[0][0].text
    results = json.loads(sarif(findings, "1"))["runs"][0]["results"]
    uris = [one["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for one in results]
    assert uris == ["n.onnx", "x.onnx", "a%20b/m.onnx"]


def test_a_session_that_is_not_made_is_one_finding_that_counts_its_nodes() -> None:
    codes = {"Conv": "unknown", "Add": "float", "Relu": "float", "Einsum": "operator"}
    nodes = tuple(
        Decision(name=name, op_type=name, domain="", since_version=6, outputs=(name,), claimed=False, code=code)
        for name, code in codes.items()
    )
    load = LoadForecast(error="Add computes floats", code="float", remedy="quantize")
    answer = ModelAnswer(path="m.onnx", ep="qnn", ort_release="1.32", decisions=nodes, nodes=4, load=load)
    (first, _), (other, _) = of_partition([answer]).findings
    assert (first.code, first.severity.value) == ("session_fails", "error")
    assert first.text == (
        "Add computes floats; quantize; it is so of 2 of 4 nodes (Add, Relu); it is not known of 1 of 4 nodes (Conv)"
    )
    assert other.code == "qnn/operator"


def test_annotations_are_one_command_each_and_no_more_than_github_shows() -> None:
    (kind, properties, text), *rest = commands([finding("lost: 100 %, again", "adb:1,2 / m", file="m,1.onnx")])
    assert (kind, rest) == ("error", [])
    assert (properties["file"], properties["title"]) == ("m,1.onnx", "crash: adb:1,2 / m")
    assert text == "lost: 100 %, again"
    many = commands([finding(f"n{n}") for n in range(MOST_ANNOTATIONS + 5)])
    assert len(many) == MOST_ANNOTATIONS
    assert many[-1][2] == "6 more: see the report"


def hostile() -> CampaignReport:
    """A report whose every text is one that would act."""
    report = make_report()
    rows = tuple(msgspec.structs.replace(row, device=HOSTILE, model=HOSTILE, variant=HOSTILE) for row in report.rows)
    failures = tuple(msgspec.structs.replace(one, what=HOSTILE, device=HOSTILE) for one in report.failures)
    return msgspec.structs.replace(
        report, name=HOSTILE, rows=rows, failures=failures, warnings=(warning(HOSTILE, HOSTILE),)
    )


def test_hostile_names_are_text_in_every_format() -> None:
    from xml.etree import ElementTree as ET

    document = of_campaign(hostile())
    assert {element.tag for element in ET.fromstring(junit(document.name, document.cases)).iter()} <= {
        "testsuites", "testsuite", "testcase", "failure", "error", "skipped", "system-out",
    }  # fmt: skip
    assert json.loads(sarif(document.findings, "1"))["version"] == "2.1.0"
    assert commands(list(document.findings))
    assert "<script>" not in document.summary
    assert "\x1b" not in document.summary
    document.summary.encode()


@pytest.mark.parametrize("rows", [0, 300])
def test_a_summary_is_bounded_begins_with_what_ships_and_breaks_no_table(rows: int) -> None:
    report = make_report()
    names = [f"{HOSTILE} model {n} " * 4 for n in range(rows)]
    more = tuple(msgspec.structs.replace(report.rows[0], model=name) for name in names)
    choices = tuple(msgspec.structs.replace(report.choices[0], model=name) for name in names)
    large = msgspec.structs.replace(
        report, rows=(*report.rows, *more), choices=(*report.choices, *choices), warnings=tuple(map(warning, names))
    )
    text = of_campaign(large).summary
    assert len(text) <= SUMMARY_CHARACTERS
    assert text.index("Ships:") < 1000
    assert ("more: see report.html" in text) is bool(rows)
    tables = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    assert tables
    for lines in (table.splitlines() for table in tables):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1


def test_of_tables_that_are_alike_the_first_stay_in_a_summary() -> None:
    table = Listing(title="t", head=("a",), rows=(("x" * 200,),) * 5)
    text = bounded("title", [table] * 400, "the JSON")
    assert text.count("\n## t\n") == 50
    assert "350 more tables: see the JSON" in text


def test_the_texts_of_a_short_summary_are_whole() -> None:
    note = ListingNote(title="t", text="a" * 300, remedy="b" * 300)
    text = bounded("title", [Section(title="s", notes=(note,))], "the JSON")
    assert f"- **t**: {note.text} *{note.remedy}*" in text


def test_github_gets_annotations_and_a_summary_where_it_is_github(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    document = CiDocument(name="x", findings=(finding("it broke"),), summary="# x\n")
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    Outputs().write_ci(document)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    (tmp_path / "summary.md").write_text("before\n")
    outputs = Outputs(junit_to=tmp_path / "j.xml", sarif_to=tmp_path / "s.sarif", markdown_to=tmp_path / "m.md")
    outputs.write_ci(document)
    assert capsys.readouterr() == ("", "::error title=crash%3A d / m::it broke\n")
    assert (tmp_path / "summary.md").read_text() == "before\n# x\n\n"
    assert {path.name for path in tmp_path.iterdir()} == {"summary.md", "j.xml", "s.sarif", "m.md"}
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))
    Outputs().write_ci(document)
    assert "the step's summary was not written" in capsys.readouterr().err


def test_findings_of_a_proof_and_warnings_stand_where_they_hold_whatever_the_names() -> None:
    name = "a / b: c"
    rows = tuple(msgspec.structs.replace(one, model=name) for one in PROOF.rows)
    told = (warning("as told: twice", name), warning("as told: twice", "m"), warning("of all: nothing"))
    report = msgspec.structs.replace(
        make_report(model=name), proofs=(msgspec.structs.replace(PROOF, rows=rows),), warnings=told
    )
    found = of_campaign(report).findings
    assert {file for row, file in found if row.code == "proof"} == {f"examples/{name}.onnx"}
    assert [(row.where, row.text) for row, _ in found if row.code == "warning"] == [
        (f"{name}, m", "as told: twice"), (report.name, "of all: nothing"),
    ]  # fmt: skip
