"""Sizes, budgets, and what operators cost."""

from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import Severity, errors
from pipeline.ort_build.run import RECORD, BuildRecord, BuiltFile, added_names, check_budget, rank_additions
from pipeline.required_ops import EMPTY, RequiredOps, parse
from tests.command import ort_mobile

SIZES = st.dictionaries(st.sampled_from(["arm64-v8a", "x86_64", "x86"]), st.integers(1, 1 << 30))


def config(*lines: str) -> RequiredOps:
    return parse("\n".join(lines), "c")


@given(sizes=SIZES, budget=SIZES)
def test_a_budget_fails_exactly_the_larger_libraries(sizes: dict[str, int], budget: dict[str, int]) -> None:
    findings = check_budget(sizes, budget)
    over = {abi for abi in sizes.keys() & budget.keys() if sizes[abi] > budget[abi]}
    assert len(errors(findings)) == len(over)
    assert all(any(f"for {abi} is" in finding.what for finding in errors(findings)) for abi in over)
    assert sum(finding.severity is Severity.WARNING for finding in findings) == len(budget.keys() - sizes.keys())


def test_a_budget_says_by_how_much() -> None:
    (finding,) = check_budget({"arm64-v8a": 3_000_000}, {"arm64-v8a": 2_500_000})
    assert "500,000 bytes over budget" in finding.what
    assert "3,000,000" in finding.why


def test_changes_by_abi(tmp_path: Path) -> None:
    for name, sizes in (("before", {"x86": 10, "x86_64": 30}), ("after", {"x86_64": 20, "arm64-v8a": 5})):
        for abi, size in sizes.items():
            (tmp_path / name / abi).mkdir(parents=True)
            (tmp_path / name / abi / "lib.so").write_bytes(bytes(size))
        files = tuple(
            BuiltFile(file=f"{abi}/lib.so", abi=abi, size_bytes=size, sha256="") for abi, size in sizes.items()
        )
        record = BuildRecord(
            digest=name, source_digest="", target="t", version="1.23.2", kind="minimal", providers=(), operators=None,
            seconds=1.0, files=files,
        )  # fmt: skip
        (tmp_path / name / RECORD).write_bytes(msgspec.json.encode(record))
    lines = ort_mobile("build", "size", "before", "after", cwd=tmp_path).out.splitlines()
    assert [line.split() for line in lines] == [
        ["arm64-v8a", "none", "->", "5"], ["x86", "10", "->", "none"], ["x86_64", "30", "->", "20", "-10"],
    ]  # fmt: skip


def test_additions_are_named_down_to_types() -> None:
    small = config('ai.onnx;13;Add{"inputs": {"0": ["float"]}},Relu')
    large = config('ai.onnx;13;Add{"inputs": {"0": ["float", "int64_t"]}},Conv,Relu', "ai.onnx;14;Relu")
    assert added_names(small, large) == ("ai.onnx:Add int64_t", "ai.onnx:Conv", "ai.onnx:Relu opset 14")
    assert added_names(small, config("ai.onnx;13;Add,Relu")) == ("ai.onnx:Add all types",)
    assert added_names(small, small) == ()


def test_ranking_compares_builds_of_which_one_contains_the_other() -> None:
    builds = [
        (EMPTY, 1000),
        (config("ai.onnx;13;Relu"), 1100),
        (config("ai.onnx;13;Conv,Relu"), 1900),
        (config("ai.onnx;13;Gemm"), 1500),
    ]
    assert rank_additions(builds) == [
        (("ai.onnx:Conv",), 800),
        (("ai.onnx:Gemm",), 500),
        (("ai.onnx:Conv", "ai.onnx:Relu"), 900),
        (("ai.onnx:Relu",), 100),
    ]
    assert rank_additions(builds[:1]) == []
