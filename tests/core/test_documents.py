"""Documents with a version: a later one is refused, an earlier one is read; both shown with a made-up version 2."""

import json
from typing import Any, Literal

import pytest

from pipeline.core.documents import decode_document
from pipeline.core.errors import ConfigError
from pipeline.core.toml import read_toml
from pipeline.report import model
from pipeline.report.model import CampaignReport
from tests.report_samples import make_report


class SecondReport(CampaignReport, frozen=True, kw_only=True):
    """results.json of a later release, which has no margin without the place that it is from."""

    version: Literal[2] = 2  # type: ignore[assignment]
    margin_from: str


def with_place(first: dict[str, Any]) -> dict[str, Any]:
    return {**first, "version": 2, "margin_from": "the config"}


def test_an_earlier_version_is_read() -> None:
    report = make_report()
    read = decode_document(model.encode(report), SecondReport, "results.json", [with_place])
    assert (read.version, read.margin_from, read.rows) == (2, "the config", report.rows)
    again = json.dumps(with_place(json.loads(model.encode(report)))).encode()
    assert decode_document(again, SecondReport, "results.json", [with_place]) == read


def test_every_version_between_is_gone_through() -> None:
    steps = [lambda one: {**one, "b": one["a"] + 1}, lambda two: {**two, "c": two["b"] + 1}]
    for version, expected in ((1, {"a": 1, "b": 2, "c": 3}), (2, {"a": 1, "b": 5, "c": 6})):
        content = {"version": version, "a": 1} | ({"b": 5} if version == 2 else {})
        read = decode_document(json.dumps(content).encode(), dict[str, int], "x.json", steps)
        assert read == {"version": version, **expected}


@pytest.mark.parametrize("version", [0, 3])
def test_a_version_that_is_not_known_is_refused(version: int) -> None:
    with pytest.raises(ConfigError, match=f"has version {version}") as caught:
        decode_document(b'{"version": %d}' % version, SecondReport, "a/results.json", [with_place])
    assert (caught.value.where, caught.value.why) == (
        "a/results.json",
        "this release of ort-mobile reads versions 1 to 2",
    )
    assert "update ort-mobile" in caught.value.remedy


TOML_BOMBS = {
    "brackets": ("x = " + "[" * 20_000 + "]" * 20_000, "nested more than 200 deep"),
    "brackets that Python bears": ("x = " + "[" * 300 + "]" * 300, "nested more than 200 deep"),
    "tables": ("x = " + "{a=" * 5_000 + "1" + "}" * 5_000, "nested more than 200 deep"),
    "a long integer": ("x = " + "9" * 5_000, "4300 digits"),
    "a key of 20,000 dots": (".".join("a" * 20_000) + " = 1", "a key has more than 100 parts"),
    "a table of 20,000 dots": ("[" + ".".join("a" * 20_000) + "]", "a key has more than 100 parts"),
    "dots between quotes": ("x = { " + " . ".join(['"a b"'] * 20_000) + " = 1 }", "a key has more than 100 parts"),
    "no TOML": ("x = ", "Invalid value"),
}


@pytest.mark.parametrize("kind", list(TOML_BOMBS))
def test_toml_that_no_reader_bears_is_refused(kind: str) -> None:
    text, why = TOML_BOMBS[kind]
    with pytest.raises(ConfigError, match="this is not valid TOML") as caught:
        read_toml(f"a = 1\n{text}\n", "c.toml", "fix the line")
    assert why in caught.value.why
    assert (caught.value.where, caught.value.remedy) == ("c.toml", "fix the line")


def test_long_texts_and_nested_tables_are_read() -> None:
    dots = ".".join("a" * 1_000)
    document = read_toml(f'x = "{dots}"\ny = ["{dots}", "b"]\n[a.b."c.d"]\ne = [[[1]]]\n', "c.toml", "")
    assert document["y"] == [dots, "b"]
    assert document["a"]["b"]["c.d"]["e"] == [[[1]]]
