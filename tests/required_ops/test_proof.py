"""The proof both ways: a model's config covers it, and without any one line or type it does not."""

import contextlib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import ModelError
from pipeline.model.ort_format import read_ort
from pipeline.required_ops import (
    Need,
    Needs,
    RequiredOps,
    covers,
    from_needs,
    needs_of,
    parse,
    parse_merged,
    render,
)
from pipeline.required_ops.value import TYPE_SLOTS
from tests.ort_models import LEVELS, convert
from tests.random_graphs import odd_quantization
from tests.required_ops.proving import prove, prove_converted
from tests.required_ops.required_ops_strategies import few, random_model, required_ops

IN0 = ("inputs", 0)


@few
@given(st.integers(0, 2**32))
def test_generated_models(seed: int) -> None:
    prove(random_model(seed))


@few
@given(st.integers(0, 2**32), st.sampled_from(["nnapi", "coreml"]))
def test_generated_models_with_providers(seed: int, provider: str) -> None:
    prove(random_model(seed), providers=(provider,))


def test_generated_graphs_of_real_operators(tmp_path: Path) -> None:
    """A few through real conversion at all levels in both styles; 10,000 were proven (docs/operator-configs.md)."""
    left_out: list[int] = []
    for seed in range(24):
        with contextlib.suppress(ModelError):  # not all of them have kernels on the CPU
            left_out += prove_converted(odd_quantization(seed), tmp_path)
    assert len(left_out) > 100
    assert sum(left_out) > 5000


@pytest.mark.parametrize("group", ["real", "dags", "ops"])
def test_models_of_the_oracle(oracle: Path, tmp_path: Path, group: str) -> None:
    """A spread of small ones here, all of them in a run of its own."""
    tried = 0
    with zipfile.ZipFile(oracle / f"{group}.zip") as archive:
        small = sorted(
            info.filename for info in archive.infolist() if ".onnx" in info.filename[-5:] and info.file_size < 150_000
        )
        for place, member in enumerate(small[:: max(1, len(small) // 12)]):
            source = tmp_path / f"{place}.onnx"
            source.write_bytes(archive.read(member))
            for level in LEVELS[1:3]:
                target = tmp_path / f"{place}.{level}.ort"
                with contextlib.suppress(Exception):  # not all of them have kernels on the CPU
                    convert(source, target, level=level)
                if target.exists():
                    tried += prove(read_ort(target))
    assert tried > 50


@few
@given(required_ops(), required_ops(), st.integers(0, 2**32))
def test_a_union_covers_what_one_of_them_covers(a: RequiredOps, b: RequiredOps, seed: int) -> None:
    needs = needs_of(random_model(seed))
    covered = {need: nodes for need, nodes in needs.items() if not covers(a, {need: nodes})}
    assert covers(a.union(b), covered) == ()


@few
@given(required_ops(), st.integers(0, 2**32))
def test_the_lines_named_make_a_config_sufficient(required: RequiredOps, seed: int) -> None:
    needs = needs_of(random_model(seed))
    if required.global_types is not None:
        required = required.without_types()
    text = render(required) + "".join(f"{item.line}\n" for item in covers(required, needs))
    assert covers(parse_merged(text, "x"), needs) == ()


def need(op: str, version: int, *types: tuple[tuple[str, int], str], domain: str = "ai.onnx", main: str = "") -> Needs:
    return {Need(domain, op, version, types, main_type=main): ("node", "other")}


def test_missing_names_node_kernel_reason_and_line() -> None:
    (missing,) = covers(parse("ai.onnx;13;Add", "x"), need("Conv", 11, (IN0, "float")))
    assert (missing.node, missing.nodes, missing.domain, missing.op, missing.since_version) == (
        "node", 2, "ai.onnx", "Conv", 11,
    )  # fmt: skip
    assert missing.types == ("inputs 0: float",)
    assert missing.why == "it is not listed"
    assert missing.line == "ai.onnx;11;Conv"


def test_a_missing_type_is_added_to_those_that_are_there() -> None:
    required = parse('ai.onnx;11;Conv{"inputs": {"0": ["double"]}}', "x")
    (missing,) = covers(required, need("Conv", 11, (IN0, "float")))
    assert "without float" in missing.why
    assert missing.line == 'ai.onnx;11;Conv{"inputs": {"0": ["double", "float"]}}'


@pytest.mark.parametrize(
    ("config", "op", "version", "sufficient"),
    [
        ("ai.onnx;13;Relu", "Relu", 13, True),
        ("ai.onnx;17;Relu", "Relu", 14, True),  # Relu did not change from 14 to 17
        ("ai.onnx;17;Relu", "Relu", 13, False),
        ("ai.onnx;12;Relu", "Relu", 13, False),
        ("ai.onnx;999;Relu", "Relu", 14, False),
        ("com.microsoft;1;Relu", "Relu", 14, False),
        ("!no_ops_specified_means_all_ops_are_required", "Relu", 14, True),
    ],
)
def test_opsets_of_a_line_hold_while_the_operator_does_not_change(
    config: str, op: str, version: int, sufficient: bool
) -> None:
    assert (covers(parse(config, "x"), need(op, version)) == ()) == sufficient


@pytest.mark.parametrize(
    ("needs", "sufficient"),
    [
        (need("Conv", 11, (IN0, "float"), main="float"), True),
        (need("Conv", 11, (IN0, "double"), main="double"), False),
        (need("Add", 14, (IN0, "int64_t"), main="int64_t"), True),  # kept for shapes
        (need("Erf", 13, main="float"), True),
        (need("Erf", 13, main="double"), False),
        (need("Reshape", 14, main="double"), True),  # not registered by type
        (need("OneHot", 11, (("custom", 0), "float,float,bool")), True),
        (need("OneHot", 11, (("custom", 0), "float,double,bool")), False),
        ({Need("ai.onnx", "DequantizeLinear", 21, nameless=True): ("node",)}, False),
    ],
)
def test_globally_allowed_types(needs: Needs, sufficient: bool) -> None:
    everything = RequiredOps(everything=True, global_types=frozenset({"float", "bool"}))
    missing = covers(everything, needs)
    assert (missing == ()) == sufficient
    assert all("restricted globally" in item.why for item in missing)


def test_every_operator_with_types_is_judged_by_them() -> None:
    for (domain, op), slots in TYPE_SLOTS.items():
        names = {slot: "float,float,float" if slot[0] == "custom" else "float" for slot in slots}
        needs = need(op, 13, *names.items(), domain=domain)
        required = from_needs(needs, types=True)
        assert covers(required, needs) == ()
        for slot in slots:
            less = replace(required, types={(domain, op): {**required.types[domain, op], slot: frozenset()}})
            assert covers(less, needs)
