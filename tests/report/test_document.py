"""results.json keeps to its schema, and the schema in docs/ is the one of the types."""

import json
from pathlib import Path

import jsonschema
import msgspec
import pytest

from pipeline.campaign.record import Host
from pipeline.core.errors import PipelineError
from pipeline.report import model
from pipeline.report.model import CampaignReport
from tests.report_samples import make_report

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
