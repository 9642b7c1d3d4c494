"""The two data types: JSON both ways, strict where a user writes, lenient where a program reads."""

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_runner.device import open_device
from device_runner.errors import SpecError
from device_runner.result import Failure, FailureKind, RunResult, Status, utc_now
from device_runner.spec import ELEMENT_BYTES, ONNX_CODES, ElementType, RunOptions, RunSpec, decode_spec, encode
from device_runner.untrusted_files import decode_json

TEXT = st.text(max_size=40)
NAMES = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.:|/+-]{0,40}", fullmatch=True)
"""Of options."""


@given(
    provider=st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.:+-]{0,40}", fullmatch=True),
    options=st.dictionaries(NAMES, TEXT, max_size=4),
    config=st.dictionaries(NAMES, TEXT, max_size=4),
    model=TEXT,
)
def test_a_spec_survives_json(provider: str, options: dict[str, str], config: dict[str, str], model: str) -> None:
    run = RunOptions(provider=provider, provider_options=options, session_config=config)
    spec = RunSpec(id="x", model=model, options=run)
    assert decode_spec(encode(spec)) == spec


def test_a_result_survives_json_and_ignores_keys_of_later_releases() -> None:
    failure = Failure(code=FailureKind.CRASH, what="m", signal="SIGSEGV")
    result = RunResult(spec_id="x", device="local", status=Status.FAILED, failure=failure, started_at=utc_now())
    document = msgspec.json.decode(encode(result))
    document["later"] = 1
    assert decode_json(msgspec.json.encode(document), RunResult) == result


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "truncated"),
        ('{"id": "x", "model": "m", "warmpu": 3}', "warmpu"),
        ('{"id": "x", "model": "m", "warmup": -1}', "warmup"),
        ('{"id": "x", "model": "m", "options": {"flags": ["USE_FP17"]}}', "USE_FP17"),
        ('{"id": "x", "model": "m", "version": 9}', "version 9"),
        (b"\xff\xfe", "malformed"),
    ],
)
def test_what_is_no_spec_is_refused_by_name(text: str | bytes, part: str) -> None:
    with pytest.raises(SpecError) as caught:
        decode_spec(text, "spec.json")
    assert part in str(caught.value)
    assert caught.value.remedy
    assert dict(caught.value.lines())["where"] == "spec.json"


def test_onnx_numbers_of_element_types() -> None:
    onnx = pytest.importorskip("onnx")
    names = {ElementType.FLOAT32: "FLOAT", ElementType.FLOAT64: "DOUBLE"}
    for kind, code in ONNX_CODES.items():
        assert onnx.TensorProto.DataType.Value(names.get(kind, kind.name)) == code
    assert set(ONNX_CODES) - set(ELEMENT_BYTES) == {ElementType.STRING}


@pytest.mark.parametrize("name", ["", "usb:1", "loca1", "ad"])
def test_an_unknown_device_is_a_clear_error(name: str) -> None:
    with pytest.raises(SpecError) as caught:
        open_device(name)
    assert "local, adb" in caught.value.why


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("run-spec", RunSpec(id="x", model="m", dimensions={"n": 1}, options=RunOptions(provider="nnapi"))),
        ("run-result", RunResult(spec_id="x", device="local", status=Status.OK, latencies_ns=(1, 2))),
    ],
)
def test_the_schemas_describe_both(name: str, value: msgspec.Struct) -> None:
    import jsonschema

    schema = json.loads((Path(__file__).resolve().parents[2] / "docs" / f"{name}.schema.json").read_text())
    document = json.loads(encode(value))
    jsonschema.validate(document, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**document, "version": "one"}, schema)
