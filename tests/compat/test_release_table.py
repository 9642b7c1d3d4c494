"""The table of releases: what files ask that a release lacks, and how they are written for it."""

import json
import sys
import venv
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as state

from device_runner.errors import RunnerError, UnavailableError
from device_runner.spec import RunOptions
from docs import make_releases
from pipeline.compat.defects import Runtime
from pipeline.compat.release_table import Operator, ReleaseTable, release_table
from pipeline.compat.rules import findings_for, read_artifacts
from pipeline.compat.written import written_for
from pipeline.core.errors import PipelineError, Severity
from pipeline.core.releases import NEWEST_KNOWN, Release, line_of
from pipeline.model.onnx_view import read_onnx
from pipeline.model.ort_format import parse_ort
from tests.command import ort_mobile
from tests.onnx_samples import parsed_nodes

HERE = line_of(version("onnxruntime"))


def model(text: str, inputs: dict[str, int], opset: int = 17, ir: int = 8, **domains: int) -> onnx.ModelProto:
    """Nodes on 1 x 8 values; the output `y` is of floats."""
    values = [helper.make_tensor_value_info(name, kind, [1, 8]) for name, kind in inputs.items()]
    graph = helper.make_graph(
        parsed_nodes(text), "g", values, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    )
    imports = {"": opset, **{name.replace("_", "."): number for name, number in domains.items()}}
    opsets = [helper.make_opsetid(domain, number) for domain, number in imports.items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir)


def lacks(proto: onnx.ModelProto, folder: Path, release: tuple[int, int]) -> list[str]:
    onnx.save(proto, folder / "m.onnx")
    bit = release_table().bit(release)
    return [demand.what for demand in release_table().demands(read_onnx(folder / "m.onnx")) if not demand.having & bit]


def test_the_table_goes_from_the_first_release_of_the_format_to_the_newest_known() -> None:
    table = release_table()
    newest = [row.line for row in table.releases if not row.earlier]
    assert newest == [Release(1, minor) for minor in range(16, NEWEST_KNOWN.minor + 1)]
    assert table.row((1, 99)) == table.releases[-1]
    assert (table.row((1, 15)), table.bit((1, 15))) == (None, 0)


@pytest.mark.skipif(HERE > NEWEST_KNOWN, reason="the installed onnxruntime is newer than the table")
def test_the_installed_wheel_says_what_the_table_says_of_its_release() -> None:
    table, bit = release_table(), release_table().bit(HERE)

    def schemas(operator: Operator | None) -> set[tuple[int, str]]:
        rows = operator.schemas.items() if operator else ()
        return {
            (int(since), name)
            for since, schema in rows
            if schema.having & bit
            for name in (
                *schema.attributes.split(),
                *(key for key, (mask, _) in schema.young.items() if mask & bit),
                "",
            )
        }

    for row in state.get_all_operator_schema():
        names = {(row.since_version, name) for name in (*row.attributes, "")}
        assert names <= schemas(table.operator(row.domain, row.name)), row.name
    kernels = {
        (kernel.domain, kernel.op_name, *kernel.version_range)
        for kernel in state.get_all_opkernel_def()
        if kernel.provider == "CPUExecutionProvider"
    }
    for domain, name, first, last in kernels:
        operator = table.operator(domain, name)
        rows = operator.kernels if operator else ()
        assert any((first, 0 if last == 2**31 - 1 else last) == row[:2] and row[3] & bit for row in rows), name


def test_a_kernel_of_some_types_only_is_missing_in_the_releases_without_them(tmp_path: Path) -> None:
    of_bytes = model("y = Cast<to=1>(z)\nz = Add (x, x)", {"x": TensorProto.UINT8})
    of_bytes.graph.node.reverse() if of_bytes.graph.node[0].op_type == "Cast" else None
    what = ["has no kernel on the CPU for Add of opset 14 with uint8"]
    assert (lacks(of_bytes, tmp_path, (1, 20)), lacks(of_bytes, tmp_path, (1, 21))) == (what, [])
    floats = model("y = Add (x, x)", {"x": TensorProto.FLOAT})
    assert lacks(floats, tmp_path, (1, 16)) == []
    half = model("z = Erf (x)\ny = Cast<to=1>(z)", {"x": TensorProto.FLOAT16})
    assert lacks(half, tmp_path, (1, 16)) == []  # a session puts Casts around it


def test_opsets_of_every_domain_count_and_those_of_custom_operators_do_not(tmp_path: Path) -> None:
    proto = model("y = Relu (x)", {"x": TensorProto.FLOAT}, ai_onnx_ml=5, my_own=7)
    assert lacks(proto, tmp_path, (1, 17)) == ["does not take opset 5 of ai.onnx.ml"]
    assert lacks(proto, tmp_path, (1, 18)) == []


def test_a_model_is_written_with_the_version_and_imports_that_the_release_reads(tmp_path: Path) -> None:
    proto = model("y = Relu (x)", {"x": TensorProto.FLOAT}, ir=11, ai_onnx_ml=5)
    written_for(proto, (1, 17))
    assert (proto.ir_version, [entry.domain for entry in proto.opset_import]) == (9, [""])
    assert lacks(proto, tmp_path, (1, 17)) == []
    lower = model("y = Relu (x)", {"x": TensorProto.FLOAT}, ir=7)
    written_for(lower, (1, 29))
    assert lower.ir_version == 7
    four_bits = model("y = Relu (x)", {"x": TensorProto.FLOAT}, ir=11)
    four_bits.graph.initializer.append(helper.make_tensor("w", TensorProto.INT4, [2], [1, 2]))
    written_for(four_bits, (1, 17))
    assert four_bits.ir_version == 10  # int4 came with it
    assert "does not read ONNX files of IR version 10" in lacks(four_bits, tmp_path, (1, 17))


def blocks(**attributes: int) -> onnx.ModelProto:
    """A matrix product of 4-bit weights, in the body of an If."""
    node = helper.make_node(
        "MatMulNBits", ["x", "w", "s"], ["z"], domain="com.microsoft", K=64, N=8, bits=4, block_size=32
    )
    node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
    info = helper.make_tensor_value_info
    body = helper.make_graph([node], "then", [], [info("z", TensorProto.FLOAT, [1, 8])])
    other = helper.make_graph([*parsed_nodes("z = MatMul (x, f)")], "else", [], [info("z", TensorProto.FLOAT, [1, 8])])
    chosen = helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=other)
    weights = [
        helper.make_tensor("w", TensorProto.UINT8, [8, 2, 16], [0x58] * 256),
        helper.make_tensor("s", 1, [16], [0.5] * 16),
        helper.make_tensor("f", 1, [64, 8], [0.5] * 512),
    ]  # fmt: skip
    inputs = [info("x", TensorProto.FLOAT, [1, 64]), info("c", TensorProto.BOOL, [])]
    graph = helper.make_graph([chosen], "g", inputs, [info("y", TensorProto.FLOAT, [1, 8])], weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.skipif(Release(1, 28) > HERE, reason="weight_prepacked came with 1.28")
@pytest.mark.parametrize("form", ["ort", "onnx"])
def test_attributes_that_the_release_lacks_are_left_out_at_their_default(form: str, tmp_path: Path) -> None:
    """ONNX Runtime fills them in when it saves; in bodies, too."""
    onnx.save(blocks(), tmp_path / "m.onnx")
    said = ["--format", "onnx"] if form == "onnx" else ["--style", "fixed"]
    for release in ("1.26", "1.28"):
        asked = ["--ort-release", release, "--level", "basic", *said, "--no-config", "--check"]
        ort_mobile("convert", tmp_path / "m.onnx", "--output", tmp_path / release, *asked)
        (file,) = (tmp_path / release).glob(f"*.{form}")
        read = read_onnx(file) if form == "onnx" else parse_ort(file.read_bytes(), "m")
        (node,) = (n for g in read.graph.walk() for n in g.nodes if n.op_type == "MatMulNBits")
        assert ("weight_prepacked" in node.attributes) is (release == "1.28")
        assert node.attributes["accuracy_level"].value == 0
        onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])


def test_a_value_that_the_release_cannot_know_is_an_error_that_names_the_first_that_does(tmp_path: Path) -> None:
    onnx.save(blocks(accuracy_level=4), tmp_path / "m.onnx")
    done = ort_mobile("convert", tmp_path / "m.onnx", "--output", tmp_path / "o", "--ort-release", "1.16", code=4)
    assert "1.16 has no attribute accuracy_level of com.microsoft:MatMulNBits" in done.err
    assert "ship ONNX Runtime 1.17 or later" in done.err


def test_an_opset_is_lowered_where_every_operator_is_the_same_in_both(tmp_path: Path) -> None:
    relu, cast = (model(text, {"x": TensorProto.FLOAT}, opset=26) for text in ("y = Relu (x)", "y = Cast<to=1> (x)"))
    for proto in (relu, cast):
        written_for(proto, (1, 20))
    assert lacks(relu, tmp_path, (1, 20)) == []
    assert lacks(cast, tmp_path, (1, 20)) == ["does not take opset 26", "has no Cast of opset 25"]
    onnx.save(model("y = Relu (x)", {"x": TensorProto.FLOAT}, opset=26), tmp_path / "m.onnx")
    asked = ["--ort-release", "1.20", "--level", "basic", "--style", "fixed", "--no-config"]
    ort_mobile("convert", tmp_path / "m.onnx", "--output", tmp_path / "o", *asked)
    (file,) = (tmp_path / "o").glob("*.ort")
    assert parse_ort(file.read_bytes(), "m").opset_import[""] == 21
    onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])


def test_of_a_function_without_a_kernel_its_operators_are_asked_for_in_onnx_files_alone(tmp_path: Path) -> None:
    def compared(kind: int) -> onnx.ModelProto:
        proto = model("z = GreaterOrEqual (x, x)\ny = Cast<to=1>(z)", {"x": kind}, opset=17)
        proto.graph.value_info.append(helper.make_tensor_value_info("z", TensorProto.BOOL, None))
        return proto

    (what,) = lacks(compared(TensorProto.INT16), tmp_path, (1, 17))
    assert what == "has no kernel on the CPU for GreaterOrEqual of opset 16 with int16, bool"
    assert lacks(compared(TensorProto.DOUBLE), tmp_path, (1, 17)) == []
    assert lacks(model("y = HardSwish (x)", {"x": TensorProto.FLOAT}, opset=17), tmp_path, (1, 17)) == []


def test_values_of_attributes_that_kernels_lack_are_known_from_trials(tmp_path: Path) -> None:
    node = "y = com.microsoft.MatMulNBits<K=512, N=8, bits=4, block_size=512>(x, w, s)"
    proto = model(node, {"x": TensorProto.FLOAT, "w": TensorProto.UINT8, "s": TensorProto.FLOAT}, com_microsoft=1)
    assert "with bits block_size = 4 512" in lacks(proto, tmp_path, (1, 29))[0]


def test_check_says_of_the_cpu_what_the_release_lacks(tmp_path: Path) -> None:
    onnx.save(model("z = Add (x, x)\ny = Cast<to=1>(z)", {"x": TensorProto.UINT8}), tmp_path / "m.onnx")
    for release, answer in (("1.20", "no"), ("1.21", "yes")):
        ort_mobile("check", tmp_path / "m.onnx", "--ort-release", release, "--json", tmp_path / "c.json", code=None)
        (cpu,) = (
            row for row in json.loads((tmp_path / "c.json").read_text())["models"][0]["rows"] if row["ep"] == "cpu"
        )
        assert cpu["as_is"]["verdict"] == answer
        assert ("1.20 has no kernel on the CPU for Add" in cpu["as_is"]["reason"]) is (answer == "no")


@pytest.mark.parametrize(("claimed", "taker"), [({"a", "y"}, "nnapi"), ({"a"}, "")])
def test_kernels_of_nodes_that_a_provider_takes_are_told_from_those_of_the_cpu(
    claimed: set[str], taker: str, tmp_path: Path
) -> None:
    inputs: dict[str, int] = {"c": TensorProto.BOOL, "x": TensorProto.INT8}
    proto = model("a = Where (c, x, x)  y = Where (c, a, x)", inputs)
    proto.graph.output[0].type.tensor_type.elem_type = TensorProto.INT8
    onnx.save(onnx.shape_inference.infer_shapes(proto), tmp_path / "m.onnx")
    (demand,) = release_table().demands(read_onnx(tmp_path / "m.onnx"), claimed, "nnapi")
    assert demand.what.startswith("has no kernel on the CPU for Where")
    assert demand.taken_by == taker


def test_nodes_that_are_alike_are_judged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judge, asked = ReleaseTable._kernels, list[str]()

    def counted(*arguments: Any, **options: Any) -> int:
        asked.append(arguments[3].op_type)
        return judge(*arguments, **options)

    monkeypatch.setattr(ReleaseTable, "_kernels", counted)
    rows = "".join(f"t{at} = Relu (t{at - 1})  e{at} = Elu <alpha = {at % 2}.0> (t{at})  " for at in range(1, 9))
    proto = model(f"t0 = Neg (x)  {rows}  y = Relu (t8)", {"x": TensorProto.FLOAT})
    onnx.save(onnx.shape_inference.infer_shapes(proto), tmp_path / "m.onnx")
    read = read_onnx(tmp_path / "m.onnx")
    assert release_table().file_demands(read) == ((), ())
    each = asked.count("Neg")
    assert (asked.count("Relu"), asked.count("Elu")) == (each, 2 * each)


BODIES = """<ir_version: 10, opset_import: ["": 17, "f": 1]> g (bool c, %s[2] x) => (%s[2] y) {
    y = If (c) <then_branch = t () => (tv) {tq = %s(x) tv = Where(c, tq, x)}, else_branch = e () => (ev) {ev = Abs(x)}>
}
<domain: "f", opset_import: ["": %d]> F (a) => (b) {d = Equal(a, a) b = Where(d, a, a)}"""


def judged(text: str, folder: Path, release: tuple[int, int]) -> dict[str, list[str]]:
    onnx.save(onnx.parser.parse_model(text), folder / "m.onnx")
    read = read_artifacts({"m": folder / "m.onnx"})
    findings = findings_for(read, "m", Runtime(release=Release(*release)), RunOptions())
    return {str(severity): [f.what + f.why for f in findings if f.severity is severity] for severity in Severity}


def test_nodes_in_bodies_and_functions_of_foreign_files_are_judged(tmp_path: Path) -> None:
    (said,) = judged(BODIES % ("int8", "int8", "Abs", 17), tmp_path, (1, 26))["error"]
    assert "Where of opset 16 with bool, int8" in said
    (said, *_) = judged(BODIES % ("int8", "int8", "f.F", 17), tmp_path, (1, 26))["error"]
    assert "Where of opset 16" in said
    assert not judged(BODIES % ("float", "float", "f.F", 17), tmp_path, (1, 26))["warning"]


def test_what_of_a_foreign_file_is_not_known_is_said(tmp_path: Path) -> None:
    (said,) = judged(BODIES % ("float", "float", "f.F", 13), tmp_path, (1, 26))["warning"]
    assert "was not judged" in said
    assert "f:F" in said
    of_custom = BODIES % ("float", "float", "own.Op", 17)
    (said,) = judged(of_custom, tmp_path, (1, 26))["warning"]
    assert "the types of Where 'tv'" in said
    assert not judged(of_custom, tmp_path, NEWEST_KNOWN)["warning"]


@pytest.mark.parametrize(
    ("text", "opset", "release", "written"),
    [
        ("a = Sin (x)  y = Softplus (a)", 22, (1, 20), 21),
        ("a = Identity (x)  b = Shape (a)  y = Reshape (a, b)", 25, (1, 20), 21),
        ("a = Transpose (x)  y = Transpose (a)", 25, (1, 23), 23),
        ("a = Cast<to=16> (x)  b = Sin (a)  y = Cast<to=1> (b)", 22, (1, 20), 22),  # its bfloat16 came with 22
        ("y = AveragePool<kernel_shape=[1]> (x)", 22, (1, 20), 22),  # its text changed, too
    ],
)
def test_opsets_are_lowered_past_versions_that_differ_in_types_alone(
    text: str, opset: int, release: tuple[int, int], written: int
) -> None:
    proto = model(text, {"x": TensorProto.FLOAT}, opset)
    written_for(proto, release)
    assert proto.opset_import[0].version == written


def test_files_in_ort_format_have_the_lower_versions_in_their_nodes(tmp_path: Path) -> None:
    onnx.save(model("a = Identity (x)  y = Sin (a)", {"x": TensorProto.FLOAT}, 22), tmp_path / "m.onnx")
    asked = ("--ort-release", "1.20", "--level", "none", "--style", "fixed", "--no-config")
    ort_mobile("convert", tmp_path / "m.onnx", "--output", tmp_path / "o", *asked)
    nodes = parse_ort((tmp_path / "o" / "m.none-fixed.ort").read_bytes(), "m").graph.nodes
    assert [(node.op_type, node.since_version) for node in nodes] == [("Identity", 21), ("Sin", 7)]


def attention(smooth: int) -> onnx.ModelProto:
    """GroupQueryAttention with an attribute that 1.19.2 has and 1.19.0 has not."""
    shapes: dict[str, list[int]] = {"q": [1, 4, 64], "k": [1, 4, 32], "v": [1, 4, 32], "a": [1, 2, 8, 16]}
    names = ["q", "k", "v", "a", "a", "sl", "tl"]
    node = helper.make_node("GroupQueryAttention", names, ["y", "p", "w"], "n", domain="com.microsoft",
                            num_heads=4, kv_num_heads=2, smooth_softmax=smooth)  # fmt: skip
    lengths = [numpy_helper.from_array(np.array([3], "i4"), "sl"), numpy_helper.from_array(np.array(4, "i4"), "tl")]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "ypw"]
    graph = helper.make_graph([node], "g", inputs, outputs, lengths)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def test_what_an_earlier_patch_of_a_release_lacks_is_left_out_or_a_warning(tmp_path: Path) -> None:
    assert set(release_table().earlier((1, 19))) == {"1.19.0"}
    assert release_table().earlier((1, 20)) == {}  # 1.20.0 and 1.20.1 say the same
    for smooth, release, said in ((1, (1, 19), True), (-1, (1, 19), False), (1, (1, 20), False)):
        proto = attention(smooth)
        written_for(proto, release)
        onnx.save(proto, tmp_path / "m.onnx")
        findings = findings_for(
            read_artifacts({"m": tmp_path / "m.onnx"}), "m", Runtime(release=Release(*release)), RunOptions()
        )
        assert not [finding for finding in findings if finding.severity is Severity.ERROR]
        told = [(finding.what, finding.remedy) for finding in findings if "1.19.0" in finding.what]
        remedy = "do without smooth_softmax, or ship ONNX Runtime 1.19.2 or later"
        assert told == [("ONNX Runtime 1.19.0 has no attribute smooth_softmax of com.microsoft:GroupQueryAttention",
                         remedy)] * said  # fmt: skip


def trees_of_doubles() -> onnx.ModelProto:
    """TreeEnsemble of ai.onnx.ml 5: the operator is known from 1.18 on, its kernel of doubles from 1.21 on."""
    node = helper.make_node(
        "TreeEnsemble", ["x"], ["z"], "trees", domain="ai.onnx.ml", n_targets=1, aggregate_function=1, post_transform=0,
        tree_roots=[0], nodes_featureids=[0], nodes_truenodeids=[0], nodes_trueleafs=[1], nodes_falsenodeids=[1],
        nodes_falseleafs=[1], leaf_targetids=[0, 0],
        nodes_splits=numpy_helper.from_array(np.array([0.5])), nodes_modes=numpy_helper.from_array(np.array([0], "u1")),
        leaf_weights=numpy_helper.from_array(np.array([1.0, 2.0])),
    )  # fmt: skip
    proto = model("y = Cast <to = 1> (z)", {"x": TensorProto.DOUBLE}, ai_onnx_ml=5)
    proto.graph.node.insert(0, node)
    return proto


@pytest.mark.parametrize(
    ("proto", "releases", "named"),
    [
        (trees_of_doubles(), (11, 17, 18, 19, 20), "1.21"),
        (model("h = Gelu (x) y = Identity (h)", {"x": TensorProto.FLOAT}, opset=23), (15, 16, 17, 20), "1.23"),
        (model("h = Gelu (x) y = RMSNormalization (h, x)", {"x": TensorProto.FLOAT}, opset=23), (11, 16, 20), "1.23"),
    ],
    ids=["operator and kernel of a node", "operator and opset", "two operators"],
)
@pytest.mark.parametrize("suffix", ["onnx", "ort"])
def test_the_release_that_a_remedy_names_opens_the_file(
    proto: onnx.ModelProto, releases: tuple[int, ...], named: str, suffix: str, tmp_path: Path
) -> None:
    file = tmp_path / f"m.{suffix}"
    onnx.save(proto, tmp_path / "m.onnx")
    if suffix == "ort":
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.optimized_model_filepath = str(file)
        options.add_session_config_entry("session.save_model_format", "ORT")
        onnxruntime.InferenceSession(tmp_path / "m.onnx", options, providers=["CPUExecutionProvider"])

    def refusals(release: Release) -> list[str]:
        found = findings_for(read_artifacts({"m": file}), "m", Runtime(release=release), RunOptions())
        return [finding.remedy for finding in found if finding.severity is Severity.ERROR]

    for minor in releases:
        remedies = refusals(Release(1, minor))
        assert remedies
        assert all(remedy.endswith(f"ship ONNX Runtime {named} or later") for remedy in remedies), remedies
    assert not refusals(Release(*map(int, named.split("."))))


def test_wheels_that_say_the_same_as_the_newest_get_no_row() -> None:
    newest: dict[str, Any] = {"version": "1.9.2", "schemas": [], "kernels": [["", "Relu"]], "refused": ["ir 9"]}
    older = {**newest, "version": "1.9.0", "kernels": []}
    assert make_releases.differing([older, {**newest, "version": "1.9.1"}], newest) == [{**older, "earlier": True}]


@pytest.mark.parametrize(
    ("code", "error"), [(1, UnavailableError), (2, PipelineError), (101, PipelineError)],
    ids=["no such wheel", "no answer of the registry", "a crash"],
)  # fmt: skip
def test_a_wheel_is_missing_only_where_the_registry_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, error: type[RunnerError]
) -> None:
    """A module in uv's place ends as uv does: 1 where no version solves what is asked, 2 where it could not ask."""
    (tmp_path / "uv.py").write_text(f"import sys\nprint('said', file=sys.stderr)\nsys.exit({code})\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(error, match="said") as raised:
        make_releases.environment(17, tmp_path / "environments", 2)
    assert isinstance(raised.value, PipelineError) == (code != 1)
    monkeypatch.setattr(sys, "argv", ["make_releases.py", "--check"])
    assert make_releases.main() == 3


def test_an_environment_without_uv_is_no_answer_of_a_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv.create(tmp_path / "bare", symlinks=True)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare/bin/python"))
    with pytest.raises(PipelineError, match="uv, which makes the environments"):
        make_releases.environment(17, tmp_path / "environments", 2)


@pytest.mark.parametrize("python", ["/bin/false", sys.executable], ids=["it crashes", "it was asked nothing"])
def test_a_wheel_that_says_nothing_is_an_error(tmp_path: Path, python: str) -> None:
    with pytest.raises(PipelineError, match="says nothing of itself"):
        make_releases.ask(Path(python), tmp_path / "trials")


def test_what_differs_of_two_tables_is_named() -> None:
    table = {"releases": [1], "types": {}, "operators": {"a": 1, "b": 2, "c": 3}}
    changed = {**table, "releases": [1, 2], "operators": {"a": 1, "b": 5, "d": 3}}
    assert make_releases.differences(table, changed) == ["b", "c", "d", "releases"]
    assert make_releases.differences(table, table) == []
