"""The file format: canonical rendering, parsing with line and column, ONNX Runtime's own parser as the judge."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.core.errors import ConfigError
from pipeline.core.releases import Release, installed_release
from pipeline.model.types import CPP_TYPES
from pipeline.required_ops import RequiredOps, parse, parse_merged, read_config, render
from pipeline.required_ops.value import TYPE_SLOTS
from tests.required_ops.proving import in_stock_terms, stock
from tests.required_ops.required_ops_strategies import few, required_ops

CANONICAL = """\
# Operators that this build must contain, a line for each domain and opset: domain;opset;operators
ai.onnx;11;Conv{"inputs": {"0": ["float"]}}
ai.onnx;13;Cast{"inputs": {"0": ["float", "int32_t"]}, "outputs": {"0": ["int64_t"]}},Reshape
com.microsoft;1;FusedConv
"""


@few
@given(required_ops())
def test_what_is_rendered_parses_to_the_same(required: RequiredOps) -> None:
    text = render(required)
    assert parse(text, "x") == parse_merged(text, "x") == required
    assert render(parse(text, "x")) == text


@settings(few, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(required=required_ops("plain typed global"))
def test_the_stock_parser_reads_the_same(tmp_path: Path, required: RequiredOps) -> None:
    path = tmp_path / "required.config"
    path.write_text(render(required), encoding="utf-8")
    assert stock(path) == in_stock_terms(required)
    assert stock(path, types=False)[0] == in_stock_terms(required)[0]


def test_everything_is_everything_to_the_stock_parser(tmp_path: Path) -> None:
    path = tmp_path / "required.config"
    path.write_text(render(RequiredOps(everything=True)), encoding="utf-8")
    assert stock(path) == (None, [])


def test_the_stock_parser_loses_types_where_ours_does_not(tmp_path: Path) -> None:
    """Two configs one behind the other: the first model's types are gone in a stock build."""
    first = 'ai.onnx;13;Cast{"inputs": {"0": ["float"]}, "outputs": {"0": ["int64_t"]}}\n'
    second = 'ai.onnx;13;Cast{"inputs": {"0": ["int32_t"]}, "outputs": {"0": ["float"]}}\n'
    path = tmp_path / "joined.config"
    path.write_text(first + second, encoding="utf-8")
    assert stock(path) == in_stock_terms(parse(second, "second"))
    merged = read_config(path, merged=True)
    assert merged.contains(parse(first, "first"))
    with pytest.raises(ConfigError, match="other types for Cast") as caught:
        read_config(path)
    assert caught.value.where == f"{path}:2:1"
    assert "merge" in caught.value.remedy


@pytest.mark.parametrize("order", [1, -1])
def test_the_stock_parser_restricts_what_one_line_leaves_free(tmp_path: Path, order: int) -> None:
    typed, untyped = 'ai.onnx;13;Cast{"inputs": {"0": ["float"]}}\n', "ai.onnx;9;Cast\n"
    path = tmp_path / "joined.config"
    path.write_text("".join([typed, untyped][::order]), encoding="utf-8")
    assert stock(path)[1]
    assert read_config(path, merged=True).types == {}
    with pytest.raises(ConfigError, match="other types"):
        read_config(path)


TYPED_SINCE = {("com.microsoft", "GatherPacked"): Release(1, 32)}
"""Operators that the parser of earlier releases does not know types of."""


def test_rules_are_those_of_the_installed_release(tmp_path: Path) -> None:
    """Each operator with types at each of its arguments, and each other operator without."""
    from onnxruntime.tools.ort_format_model import operator_type_usage_processors as processors
    from onnxruntime.tools.ort_format_model.types import FbsTypeInfo

    known = processors._create_operator_type_usage_processors()
    theirs = {}
    for key, processor in known.items():
        domain, _, op = key.partition(":")
        inputs = getattr(processor, "_input_types", {})
        outputs = getattr(processor, "_output_types", {})
        slots = [("inputs", k) for k in inputs] + [("outputs", k) for k in outputs]
        theirs[domain, op] = tuple(slots) or (("custom", 0),)
    younger = {key for key, since in TYPED_SINCE.items() if installed_release() < since}
    assert theirs == {key: slots for key, slots in TYPE_SLOTS.items() if key not in younger}
    assert set(FbsTypeInfo.tensordatatype_to_string.items()) == set(CPP_TYPES.items())


def test_canonical_text() -> None:
    assert render(parse(CANONICAL, "x")) == CANONICAL


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("", ""),
        ("# nothing\n\n   \n", ""),
        ("  ai.onnx;13;Add\r\n", "ai.onnx;13;Add\n"),
        ("ai.onnx ; 13 , 14 ; Add , Mul ,", "ai.onnx;13;Add,Mul\nai.onnx;14;Add,Mul\n"),
        ("ai.onnx;13;Add\nai.onnx;13;Mul", "ai.onnx;13;Add,Mul\n"),
        ("ai.onnx;13;Reshape{\"inputs\": {\"0\": [\"float\"]}}", "ai.onnx;13;Reshape\n"),
        ("ai.onnx;13;Add{}", "ai.onnx;13;Add\n"),
        ("ai.onnx;13;Add,Add", "ai.onnx;13;Add\n"),
        ("!globally_allowed_types;int64_t, bool\nai.onnx;1;If", "!globally_allowed_types;bool,int64_t\nai.onnx;1;If\n"),
        ("!no_ops_specified_means_all_ops_are_required", "!no_ops_specified_means_all_ops_are_required\n"),
        ("!no_ops_specified_means_all_ops_are_required\nai.onnx;1;If", "ai.onnx;1;If\n"),
    ],
)  # fmt: skip
def test_what_is_harmless_is_read(text: str, canonical: str) -> None:
    assert render(parse(text, "x")).partition("\n")[2] == canonical


@pytest.mark.parametrize(
    ("text", "place", "what", "remedy"),
    [
        ("ai.onnx;13", "1:11", "';' is missing", "domain;opset"),
        ("ai.onnx", "1:8", "';' is missing", "domain;opset"),
        ("\n;13;Add", "2:1", "the domain is missing", "ai.onnx"),
        ("ai.onnx;;Add", "1:9", "no opset", "domain;opset"),
        ("ai.onnx;x;Add", "1:9", "an opset number is missing", "domain;opset"),
        ("ai.onnx;0;Add", "1:9", "no such opset", "from 1"),
        ("ai.onnx;13;", "1:12", "no operator", "remove the line"),
        ("ai.onnx;13;Add # why", "1:16", "',' is missing", "lines of their own"),
        ("ai.onnx;13;Add;Mul", "1:15", "text behind", "domain;opset"),
        ("ai.onxn;13;Add", "1:1", "unknown domain ai.onxn", "ai.onnx?"),
        ("com.microsft;1;Gelu", "1:1", "unknown domain", "com.microsoft?"),
        ("!globally_allowed;float", "1:1", "unknown directive", "!globally_allowed_types"),
        ("!globally_allowed_types;float,int46_t", "1:31", "no type int46_t", "int64_t?"),
        ("!globally_allowed_types;float\n!globally_allowed_types;bool", "2:1", "second time", "one line"),
        ('!globally_allowed_types;float\nai.onnx;13;Add{"inputs": {"0": ["float"]}}', "2:1", "beside", "keep one"),
        ('ai.onnx;13;Add{"inputs": {"0": ["flaot"]}}', "1:34", "no type flaot", "float?"),
        ('ai.onnx;13;Add{"inputs": {"1": ["float"]}}', "1:15", "inputs 1 cannot", "inputs 0"),
        ('ai.onnx;13;Add{"inptus": {"0": ["float"]}}', "1:15", "'inptus'", "inputs"),
        ('ai.onnx;13;Add{"inputs": {"0": "float"}}', "1:15", "inputs '0'", "inputs"),
        ('ai.onnx;13;Add{"inputs": {"0": ["float"]}', "1:42", "no JSON", "inputs"),
        ('ai.onnx;13;Add{"inputs": {}, "inputs": {}}', "1:15", "twice", "inputs"),
        ('ai.onnx;11;OneHot{"custom": [["float", "float"]]}', "1:18", "threes", "custom"),
        ('ai.onnx;13;Add,Add{"inputs": {"0": ["float"]}}', "1:12", "Add twice", "types of both"),
        ("ai.onnx;13;Add{" * 50000, "1:16", "no JSON", "inputs"),
        ('ai.onnx;13;Add{"inputs":' + "[" * 100_000, "1:15", "not as they should be", "inputs"),
    ],
)  # fmt: skip
def test_errors_name_line_and_column(text: str, place: str, what: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, "required.config")
    assert caught.value.where == f"required.config:{place}"
    assert what in caught.value.what
    assert remedy in caught.value.remedy


def check_any_text(text: str) -> None:
    """It means something that can be written again, or the error says where it went wrong."""
    places = []
    try:
        required = parse(text, "x")
    except ConfigError as error:
        places.append(error.where)
    else:
        assert parse(render(required), "y") == required
    assert all(place.startswith("x:") for place in places)


@few
@given(st.text(st.sampled_from('ai.onxmcrsft;:13,{}[]"!# \tAddCastinputs0_\n\\\u2028\0'), max_size=60))
def test_any_text_gives_a_value_or_a_config_error(text: str) -> None:
    check_any_text(text)


@few
@given(st.data())
def test_damaged_configs_give_a_value_or_a_config_error(data: st.DataObject) -> None:
    text = list(CANONICAL.partition("\n")[2])
    for _ in range(data.draw(st.integers(1, 3))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.sampled_from('"{},; x\n'))
    check_any_text("".join(text))


@pytest.mark.parametrize(("content", "why"), [(None, "No such file"), (b"\xff\xfe\0", "text")])
def test_unreadable_files(tmp_path: Path, content: bytes | None, why: str) -> None:
    path = tmp_path / "required.config"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    assert caught.value.where == str(path)
    assert why in f"{caught.value.what} {caught.value.why}"
