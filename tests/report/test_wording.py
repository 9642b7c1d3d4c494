"""Units, accuracy and failures in words, text that cannot act, and results.json, which keeps to its schema."""

import json
import unicodedata
from pathlib import Path

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_runner.safe_text import visible
from pipeline.accuracy.result import AccuracyResult, ArtifactAccuracy, DropVerdict, OutputDrift
from pipeline.campaign.record import FailureRow, Host
from pipeline.check.compare import OutputCheck
from pipeline.core.errors import PipelineError
from pipeline.report import model, wording
from pipeline.report.accuracies import REPORT_HEAD, accuracies, accuracy_parts, report_cells
from pipeline.report.model import ArtifactCheck, CampaignReport
from pipeline.report.sections import NOT_MEASURED, sections
from pipeline.report.wording import Listing
from tests.report_samples import make_report


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (None, "-"), (0, "0 ns"), (17, "17 ns"), (999, "999 ns"), (999.6, "1.00 µs"), (1234, "1.23 µs"),
        (99_949, "99.9 µs"), (99_951, "100 µs"), (999_600, "1.00 ms"), (12_345_678, "12.3 ms"),
        (1e9, "1.00 s"), (3.6e12, "3600 s"),
    ],
)  # fmt: skip
def test_durations(nanoseconds: float | None, text: str) -> None:
    assert wording.duration(nanoseconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "-"), (1023, "1023 B"), (1024, "1.0 KiB"), (26_000, "25.4 KiB"), (3 << 30, "3.0 GiB")]
)
def test_sizes(count: int, text: str) -> None:
    assert wording.size(count) == text


@given(st.text())
def test_visible_text_has_no_control_and_no_format_characters_that_hide(text: str) -> None:
    shown = visible(text)
    assert not any(unicodedata.category(char) in {"Cc", "Zl", "Zp", "Cs"} for char in shown)
    assert not any(unicodedata.bidirectional(char) in {"RLO", "LRO", "RLE", "LRE", "PDF", "RLI", "LRI", "FSI", "PDI"}
                   for char in shown)  # fmt: skip
    shown.encode("utf-8")


@pytest.mark.parametrize(
    ("text", "shown"), [("a\x1b[31mb", r"a\x1b[31mb"), ("a\nb", r"a\nb"), ("\u202etxt", r"\u202etxt"), ("é漢", "é漢")]
)
def test_invisible_characters_are_written_out(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_words_for_rows() -> None:
    rows = make_report().rows[:7]
    assert [wording.verdict(row) for row in rows] == [
        "baseline", "faster", "same within 5 %", "no difference shown (7.7 % would show)", "slower", "faster", "failed",
    ]  # fmt: skip
    assert [wording.outputs(row.checks) for row in rows[4:]] == ["ok 4.2e-07", "differ 2.4e-01 top-1 84.0%", "-"]
    assert [wording.status(row) for row in rows[4:]] == ["1 of 6 rounds failed", "ok", "failed"]


def test_another_precision_stands_beside_its_distance_from_the_float_original() -> None:
    one = OutputCheck(output="a", passed=True, max_rel_error=1e-4, sqnr_db=19.34)
    other = OutputCheck(output="b", passed=True, max_rel_error=2e-4, sqnr_db=None, random_inputs=True)
    assert wording.outputs([one]) == "ok 1.0e-04, 19.3 dB from float"
    assert wording.outputs([one, other]) == "ok 2.0e-04, 19.3 dB from float on random inputs"
    assert wording.outputs([other]) == "ok 2.0e-04, equal to float on random inputs"
    assert wording.check_numbers(one).endswith("top-1 -, 19.3 dB from float")


def test_a_tiny_output_has_its_absolute_error_beside_the_relative_one() -> None:
    tiny = OutputCheck(output="a", passed=True, max_rel_error=1.3e-3, max_abs_error=4e-8)
    usual = OutputCheck(output="b", passed=True, max_rel_error=1e-4, max_abs_error=2e-4)
    assert wording.outputs([usual, tiny]) == "ok 1.3e-03 (absolute 4.0e-08)"
    assert wording.outputs([usual]) == "ok 1.0e-04"


def test_a_phones_outputs_stand_beside_the_simulators() -> None:
    equal = OutputCheck(output="a", passed=True, max_rel_error=1e-4, from_simulator=0.0)
    near = OutputCheck(output="b", passed=True, max_rel_error=1e-4, from_simulator=3e-3)
    assert wording.outputs([equal]) == "ok 1.0e-04, equal to simulated"
    assert wording.outputs([equal, near]) == "ok 1.0e-04, 3.0e-03 from simulated"
    assert wording.check_numbers(near).endswith("top-1 -, 3.0e-03 from simulated")


def test_checks_without_numbers_are_worded() -> None:
    assert wording.check_numbers(OutputCheck(output="o", passed=False)) == "max abs -, max rel -, cosine -, top-1 -"


@pytest.mark.parametrize(
    ("message", "cause", "text"),
    [
        ("no library: it was not fetched yet", "it was not fetched yet", "no library: it was not fetched yet"),
        ("it does not load.", "another release wrote it", "it does not load; another release wrote it"),
        ("it does not load", "", "it does not load"),
    ],
)
def test_a_cause_is_said_once(message: str, cause: str, text: str) -> None:
    row = FailureRow(code="missing", what=message, why=cause)
    report = msgspec.structs.replace(make_report(), failures=(row,))
    assert text in [note.text for section in sections(report) for note in section.notes]


RESULT = AccuracyResult(
    model="m.ort", metric="top-1", labelled=True, samples=360, data="digits", value=0.975, reference_value=0.98,
    drop=0.005, drop_low=-0.001, drop_high=0.011, max_drop=0.01, verdict=DropVerdict.CANNOT_TELL, samples_needed=700,
)  # fmt: skip


def on_devices(*values: float) -> list[str]:
    (row, *_) = make_report().rows
    check = OutputCheck(output="y", passed=True, metric="top-1")
    rows = [msgspec.structs.replace(row, checks=(msgspec.structs.replace(check, value=one),)) for one in values]
    return [
        dict(zip(REPORT_HEAD, report_cells(result, rows), strict=True))["On devices"]
        for result in (RESULT, msgspec.structs.replace(RESULT, metric="cer"))
    ]


def test_the_command_and_the_report_say_the_same() -> None:
    cells = dict(zip(REPORT_HEAD, report_cells(RESULT, ()), strict=True))
    assert list(cells.values()) == [
        "top-1", "98.00 %", "97.50 %", "-", "0.50 pp", "-0.10 to 1.10 pp", "cannot tell: about 700 samples would",
        "360",
    ]  # fmt: skip
    (table, *_) = (part for part in accuracy_parts([RESULT]) if isinstance(part, Listing))
    (row,) = table.rows
    assert set(row[1:]) < set(cells.values())


def test_of_several_devices_the_worst_is_shown() -> None:
    assert on_devices(0.9, 0.97) == ["90.00 %", "97.00 %"], "a share of errors is worse the larger it is"


def test_what_was_not_measured_has_its_reason_once_below_the_table() -> None:
    why = "there are no evaluation data: " + "give some " * 12
    rows = tuple(ArtifactAccuracy(model="m", variant=name, why=why) for name in ("all-fixed-dyn8", "all-fixed-s8s8pc"))
    report = msgspec.structs.replace(make_report(), accuracy=rows)
    assert accuracies(report).head == ("Model", "Variant", "Verdict")
    (section,) = (part for part in sections(report) if part.title == NOT_MEASURED)
    assert [(note.text, note.places) for note in section.notes] == [
        (why, ("m / all-fixed-dyn8", "m / all-fixed-s8s8pc"))
    ]


def test_the_distance_from_float_is_that_of_all_samples_where_they_were_run() -> None:
    check = OutputCheck(output="y", passed=True, sqnr_db=57.0)
    drift = OutputDrift(output="y", sqnr_db=4.2, psnr_db=None, cosine=None, max_error=1.0, agreement=None)
    result = msgspec.structs.replace(RESULT, outputs=(drift,))
    measured, unmeasured = (
        msgspec.structs.replace(
            make_report(), accuracy=(ArtifactAccuracy(model="m", variant="all-fixed-dyn8", result=row),),
            checks=(ArtifactCheck(model="m", variant="all-fixed-dyn8", checks=(check,)),),
        )
        for row in (result, None)
    )  # fmt: skip
    for report, distance in ((measured, "4.2 dB"), (unmeasured, "57.0 dB")):
        table = accuracies(report)
        assert dict(zip(table.head, table.rows[0], strict=True))["From float"] == distance


SCHEMA = Path(__file__).resolve().parents[2] / "docs" / "results.schema.json"


@pytest.fixture(name="validator", scope="module")
def _validator() -> jsonschema.Draft202012Validator:
    """Made once: to check the schema itself takes a fifth of a second."""
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))
    validator.check_schema(validator.schema)
    return validator


def test_documents_keep_to_the_schema(report: CampaignReport, validator: jsonschema.Draft202012Validator) -> None:
    smallest = CampaignReport(name="n", campaign="c", created_at="t", margin=0.05, host=Host(), versions={})
    for one in (report, smallest, make_report(text="\x00\x1b\u202e{}")):
        validator.validate(json.loads(model.encode(one)))


@pytest.mark.parametrize("change", [{"version": 3}, {"rows": [{}]}, {"margin": "five"}, {"name": None}])
def test_the_schema_refuses_other_documents(
    report: CampaignReport, validator: jsonschema.Draft202012Validator, change: dict[str, object]
) -> None:
    assert not validator.is_valid(json.loads(model.encode(report)) | change)


def test_schema_in_docs_is_current() -> None:
    assert json.loads(SCHEMA.read_text(encoding="utf-8")) == model.schema()


def test_another_version_is_refused(report: CampaignReport) -> None:
    newer = model.encode(report).replace(b'"version": 1,', b'"version": 2,', 1)
    with pytest.raises(PipelineError, match="version 2") as caught:
        model.decode(newer)
    assert "reads version 1" in caught.value.why
    assert "update ort-mobile" in caught.value.remedy


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"version": 1}', b"\xff\xfe", b'{"version": "1"}'])
def test_what_is_no_document_is_refused(content: bytes) -> None:
    with pytest.raises(PipelineError, match="no results") as caught:
        model.decode(content, "somewhere.json")
    assert caught.value.where == "somewhere.json"


def test_a_newer_minor_addition_is_read(report: CampaignReport) -> None:
    added = msgspec.json.decode(model.encode(report)) | {"something_new": 1}
    assert model.decode(msgspec.json.encode(added)) == report
