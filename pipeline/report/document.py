"""results.json: the report as a versioned JSON document, and the schema that it keeps to (docs/results.schema.json)."""

import inspect
from typing import Any

import msgspec

from pipeline.config import null_last
from pipeline.core.errors import PipelineError
from pipeline.report.model import DOCUMENT_VERSION, CampaignReport

FILE_NAME = "results.json"
READ_VERSIONS = (1, DOCUMENT_VERSION)
"""Version 1 has bootstrap intervals, and calls 'cannot tell' what is 'no difference shown' now."""


def encode(report: CampaignReport) -> bytes:
    """The bytes of results.json: keys in the order of the schema, names and counts sorted, ending in a newline."""
    return msgspec.json.format(msgspec.json.encode(report, order="deterministic"), indent=2) + b"\n"


def decode(content: bytes, where: str = FILE_NAME) -> CampaignReport:
    """A report from the bytes of results.json; raises PipelineError for what is none, or another version's."""
    try:
        _check_version(content, where)
        return msgspec.json.decode(content, type=CampaignReport)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PipelineError(
            "this is no results.json of ort-mobile", where=where, why=str(error), remedy="write it again: nox -s report"
        ) from error


class _Versioned(msgspec.Struct):
    version: int


def _check_version(content: bytes, where: str) -> None:
    found = msgspec.json.decode(content, type=_Versioned).version
    if found not in READ_VERSIONS:
        raise PipelineError(
            f"this results.json has version {found}",
            where=where,
            why=f"this release reads versions {' and '.join(map(str, READ_VERSIONS))}",
            remedy="write it again from the database, with the release that measured or this one",
        )


def schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of the document, from the types and their docstrings."""
    made = msgspec.json.decode(msgspec.json.encode(msgspec.json.schema(CampaignReport)))
    # Python 3.13 takes the indentation out of docstrings; the schema must be the same with every version.
    for definition in made["$defs"].values():
        definition["description"] = inspect.cleandoc(definition.get("description", ""))
    made = null_last(made)
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "results.json of ort-mobile",
        "description": "A campaign: what was converted, measured, checked and chosen. Times are nanoseconds.",
    }
    return {**head, **made}
