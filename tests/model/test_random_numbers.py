"""Outputs that depend on random numbers."""

from pathlib import Path

import onnx
import pytest

from pipeline.model.random_numbers import random_outputs
from tests.command import ort_mobile

HEAD = '<ir_version: 8, opset_import: ["" : 15, "m" : 1]> g (float[1,4] x, bool b) => (float[1,4] y, int64[2] s)'
FALSE = "f = Constant <value = bool {0}> () r = Constant <value = float {0.5}> ()"
THEN = "then_branch = t () => (float[1,4] u) { u = RandomNormalLike (x) }"
ELSE = "else_branch = e () => (float[1,4] v) { v = Identity (x) }"
CALLED = '<domain: "m", opset_import: ["" : 15]> F (a) => (c) { c = Bernoulli (a) }'


def model(nodes: str, functions: str = "") -> onnx.ModelProto:
    return onnx.parser.parse_model(f"{HEAD} {{ {nodes} s = Shape (y) }} {functions}")


@pytest.mark.parametrize(
    ("nodes", "functions", "draws"),
    [
        ("n = RandomUniformLike <seed = 7.0> (x) y = Add (x, n)", "", "RandomUniformLike 'n'"),
        ("r = Constant <value = float {0.5}> () y = Dropout (x, r, b)", "", "Dropout 'y'"),
        (f"{FALSE} y = Dropout (x, r, f)", "", ""),
        ("y = Dropout (x)", "", ""),
        (f"y = If (b) <{THEN}, {ELSE}>", "", "RandomNormalLike 'u'"),
        ("z = m.F (x) y = Neg (z)", CALLED, "Bernoulli"),
        ("z = m.F (x) y = Neg (x)", CALLED, ""),
        ("n = RandomNormalLike (x) z = Shape (n) y = Expand (x, z)", "", ""),
    ],
)
def test_what_draws_is_named(nodes: str, functions: str, draws: str) -> None:
    found = random_outputs(model(nodes, functions))
    assert set(found) == ({"y"} if draws else set())
    assert draws in found.get("y", "")


def test_equal_files_get_equal_answers_and_other_outputs_are_judged(tmp_path: Path) -> None:
    parts = "(float[1,4] x) => (float[1,4] y, float[1,4] z) { n = RandomNormalLike (x) y = Add (x, n) z = Neg (x) }"
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 15]> g {parts}'), path)
    words = ("--output", tmp_path / "out", "--level", "none,all", "--style", "fixed", "--check", "--json", "-")
    rows = ort_mobile("convert", path, *words).document()["artifacts"]
    assert [[(c["output"], c["passed"], c["unknown"]) for c in row["checks"]] for row in rows] == [
        [("y", False, True), ("z", True, False)]
    ] * 2
    assert "cannot be compared: RandomNormalLike 'n' draws" in rows[0]["checks"][0]["reason"]
