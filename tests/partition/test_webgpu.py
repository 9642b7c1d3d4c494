"""WebGPU: its claims beside the plugin's labels, the reasons, settings, copies, and what users are shown."""

from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from pipeline.core.errors import ConfigError
from pipeline.partition.answer import ModelAnswer, Settings, make_settings
from pipeline.partition.claiming import claim, copies_estimated, copies_of
from pipeline.partition.graph import Graph
from pipeline.providers.webgpu import kernels as webgpu
from pipeline.providers.webgpu.kernels import kernels
from tests.command import ort_mobile
from tests.onnx_samples import parsed_nodes
from tests.partition_samples import answer, model, one, ones, value
from tests.recorded_graphs import record, unpack
from tests.values import present
from tests.webgpu.labels import claimed, recorded, settings_of
from tests.webgpu.plugin import Label

LABELS = {"ops": 5_000, "dags": 240, "real": 65}
"""At least so many models have a label and a recorded graph."""
SAMPLE = 9


def answer_of(made: onnx.ModelProto, folder: Path, *options: str, release: str = "1.29") -> ModelAnswer:
    given = answer(made, folder, make_settings("webgpu", release=release, options={"webgpu": options}))
    assert not given.error, given.error
    return given


def branching(then_branch: str, else_branch: str) -> onnx.NodeProto:
    """An If on `c` with the output y, whose branches give z."""
    bodies = {
        name: helper.make_graph(parsed_nodes(text), name, [], [value("z", (1, 4))])
        for name, text in (("then_branch", then_branch), ("else_branch", else_branch))
    }
    return helper.make_node("If", ["c"], ["y"], **bodies)


def shown(archive: str) -> dict[str, Graph]:
    """The recorded graphs of an archive, by the model's id, but for functions that other providers claim whole."""
    return {
        name.removesuffix("@none"): unpack(msgspec.msgpack.decode(packed)[0])
        for name, packed in record(archive, "1.23").items()
        if "@none" in name and not name.startswith("local_function/")
    }


def differing(graph: Graph, label: Label, settings: Settings) -> list[tuple[str, int]]:
    """The nodes that our rules claim otherwise than a label says; a session that failed may not know all of them."""
    ours = claim(graph, settings).claimed
    return [
        (node.op_type, node.since_version)
        for index, node in graph.nodes.items()
        if (truth := claimed(label, node.name, node.first_output)) != (index in ours) and not (label.error and truth)
    ]


@pytest.mark.parametrize("archive", list(LABELS))
def test_claims_are_those_of_the_plugin(archive: str) -> None:
    graphs, wrong = shown(archive), []
    for name, graph in graphs.items():
        for setting in ("nhwc", "nchw"):
            settings, label = settings_of(setting), recorded()[archive, setting, name]
            wrong += [(name, setting, row) for row in differing(graph, label, settings)]
            ours = claim(graph, settings).claimed
            if archive != "ops" and not label.error and not copies_estimated(graph, settings, ours):
                assert copies_of(graph, settings, ours) == label.copies, name
    assert wrong == []
    assert len(graphs) >= LABELS[archive]


@pytest.mark.parametrize(("library", "count"), [("android:1.28.0", 800), ("android:1.29.0", 80)])
def test_claims_are_those_of_android_libraries(library: str, count: int) -> None:
    """Where a library does otherwise than the plugin, and each ninth of the other labels."""
    graphs, others, wrong = {archive: shown(archive) for archive in LABELS}, recorded(library), []
    labels = [(place, label) for place, label in {**recorded(), **others}.items() if place[2] in graphs[place[0]]]
    for number, (place, label) in enumerate(labels):
        if place in others or number % SAMPLE == 0:
            archive, setting, name = place
            rows = differing(graphs[archive][name], label, settings_of(setting, library))
            wrong += [(place, row) for row in rows]
    assert wrong == []
    assert len(others) >= count


def test_an_input_that_is_left_out_keeps_a_node_on_the_gpu(tmp_path: Path) -> None:
    """As in the libraries; the plugin skips it."""
    nodes = parsed_nodes("""s = Shape (x)  c = ConstantOfShape (s)  y = Resize (c, "", sizes)""")
    made = model(nodes, [value("x", (1, 1, 4, 4))], ["y"], {"sizes": np.array([1, 1, 2, 2], np.float32)})
    taken = {}
    for plugin in (False, True):
        settings = make_settings("webgpu", release="1.29", options={"webgpu": ["preferredLayout=NCHW"]}, plugin=plugin)
        taken[plugin] = [row.op_type for row in answer(made, tmp_path, settings).decisions if row.claimed]
    assert taken == {False: ["Shape", "Resize"], True: ["Shape"]}


def test_a_type_that_an_option_adds_names_it(tmp_path: Path) -> None:
    node = helper.make_node("Gather", ["x", "i"], ["y"])
    inputs = [value("x", (8,), TensorProto.INT64), value("i", (2,), TensorProto.INT64)]
    made = model([node], inputs, ["y"], opset=13)
    (decision,) = answer_of(made, tmp_path, release="1.30").decisions
    assert decision.reason == "no kernel for Gather of i64 at opset 13; enableInt64 adds it"
    assert "enableInt64=1" in (decision.remedy or "")
    assert answer_of(made, tmp_path, "enableInt64=1", release="1.30").claimed == 1
    assert answer_of(made, tmp_path, "enableGraphCapture=1", release="1.30").claimed == 1
    (older,) = answer_of(made, tmp_path, "enableInt64=1", release="1.29").decisions
    assert older.reason == "no kernel for Gather of i64 at opset 13; enableInt64 adds it from ONNX Runtime 1.30 on"
    assert (older.remedy or "").startswith("ship 1.30 or later, and set enableInt64=1")


@pytest.mark.parametrize(
    ("op_type", "opset", "reason"),
    [
        ("Round", 17, "no kernel for Round"),
        ("HardSwish", 17, "no kernel for HardSwish before ONNX Runtime 1.29"),
        ("Relu", 17, ""),
        ("Abs", 5, "no kernel for Abs of opset 1, there are some for 6 to 12, 13"),
    ],
)
def test_reasons_name_the_nearest_kernel(op_type: str, opset: int, reason: str, tmp_path: Path) -> None:
    given = answer_of(one(op_type, (1, 4), opset=opset), tmp_path, "preferredLayout=NCHW", release="1.28")
    assert (given.decisions[0].reason or "") == reason
    assert given.claimed == (not reason)


def test_the_memories_of_a_graph_are_found_once_for_all_questions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find, asked = webgpu.memories, list[frozenset[int]]()

    def counted(graph: Graph, claimed: frozenset[int]) -> tuple[webgpu.Memory, webgpu.Memory]:
        asked.append(claimed)
        return find(graph, claimed)

    monkeypatch.setattr(webgpu, "memories", counted)
    given = answer_of(one("Relu", [1, 4]), tmp_path)
    assert (given.copies, len(asked)) == (0, 1)


def test_named_nodes_stay_on_the_cpu_and_cost_copies(tmp_path: Path) -> None:
    nodes = parsed_nodes("[first] a = Relu (x)  [second] b = Sigmoid (a)  [third] y = Tanh (b)")
    made = model(nodes, [value("x", (1, 4))], ["y"])
    free = answer_of(made, tmp_path)
    assert (free.claimed, free.copies) == (3, 0)
    forced = answer_of(made, tmp_path, "forceCpuNodeNames=second")
    assert (forced.claimed, forced.copies) == (2, 2)
    assert [(cut.op_type, cut.copies) for cut in forced.cuts] == [("Sigmoid", 0)]
    captured = answer_of(made, tmp_path, "forceCpuNodeNames=second", "enableGraphCapture=1")
    assert present(captured.load).code == "capture"


def test_copies_in_bodies_count_and_what_they_read_does_not(tmp_path: Path) -> None:
    """As the plugin counts: Softsign's output, and x, which both sides of the body read."""
    inner = branching("s = Softsign (x)  t = Add (s, x)  z = Add (t, r)", "z = Identity (r)")
    nodes = [*parsed_nodes("r = Relu (x)"), inner]
    given = answer_of(model(nodes, [value("x", (1, 4)), value("c", (), TensorProto.BOOL)], ["y"]), tmp_path)
    assert (given.copies, given.copies_estimated) == (2, False)


def test_half_precision_behind_a_cast_in_a_body_is_claimed(tmp_path: Path) -> None:
    """A session on the CPU computes it in float between Casts of its own."""
    node = branching("i = Neg (x)  h = Cast <to = 10> (i)  t = Exp (h)  z = Cast <to = 1> (t)", "z = Cast <to = 1> (x)")
    inputs = [value("x", (1, 4), TensorProto.INT64), value("c", (), TensorProto.BOOL)]
    given = answer_of(model([node], inputs, ["y"]), tmp_path)
    assert [body.partitions for body in given.subgraphs] == [(("t",), ("z",))]


def test_copies_are_estimated_where_layouts_change(tmp_path: Path) -> None:
    nodes = parsed_nodes("a = GlobalAveragePool (x)  b = Softsign (a)  y = Relu (b)")
    made = model(nodes, [value("x", (1, 4, 8, 8))], ["y"])
    assert answer_of(made, tmp_path).copies_estimated
    assert not answer_of(made, tmp_path, "preferredLayout=NCHW").copies_estimated
    shown = ort_mobile("partition", tmp_path / "model.onnx", "--ep", "webgpu", "--ort-release", "1.29", code=0).out
    assert "about 2 copies between GPU and CPU per inference" in shown


@pytest.mark.parametrize(
    "text",
    [
        "m = Mish (x)  y = Relu (m)",
        "p = PRelu (i, i)  y = Cast <to = 1> (p)",
        "d = DequantizeLinear (q, s)  y = Transpose (d)",
    ],
)
def test_copies_are_estimated_where_functions_are_inlined_and_quantization_moves(tmp_path: Path, text: str) -> None:
    inputs = [
        value("x", (1, 4)), value("i", (1, 4), TensorProto.INT64), value("q", (1, 4), TensorProto.UINT8), value("s", ())
    ]  # fmt: skip
    assert answer_of(model(parsed_nodes(text), inputs, ["y"], opset=18), tmp_path).copies_estimated


@pytest.mark.parametrize(("names", "claimed"), [("first\nsecond", 1), ("third node", 2)])
def test_names_of_nodes_are_lines_as_names_may_have_spaces(tmp_path: Path, names: str, claimed: int) -> None:
    nodes = [
        *parsed_nodes("[first] a = Relu (x)  [second] b = Sigmoid (a)"),
        helper.make_node("Tanh", ["b"], ["y"], name="third node"),
    ]
    made = model(nodes, [value("x", (1, 4))], ["y"])
    assert answer_of(made, tmp_path, f"forceCpuNodeNames={names}").claimed == claimed


def test_a_bias_without_a_name_ends_the_process(tmp_path: Path) -> None:
    node = parsed_nodes("""y = ConvTranspose (x, w, "")""")
    made = model(node, [value("x", (1, 1, 4, 4))], ["y"], {"w": ones(1, 1, 1, 1)})
    load = present(answer_of(made, tmp_path).load)
    assert load.code == "crash"
    assert "drop-empty-inputs" in (load.remedy or "")


def test_options_that_the_provider_would_ignore_are_errors() -> None:
    with pytest.raises(ConfigError, match="has no option 'preferedLayout'"):
        make_settings("webgpu", options={"webgpu": ["preferedLayout=NCHW"]})
    with pytest.raises(ConfigError, match="preferredLayout cannot be 'nchw'"):
        make_settings("webgpu", options={"webgpu": ["preferredLayout=nchw"]})


def test_an_android_library_for_arm_is_not_asked(tmp_path: Path) -> None:
    onnx.save(one("Relu", (1, 4)), tmp_path / "m.onnx")
    result = ort_mobile(
        "partition", tmp_path / "m.onnx", "--ep", "webgpu", "--reference", "android:1.29.0", "--abi", "arm64", code=2
    )
    assert "no GPU" in result.text


def test_the_table_is_small_and_whole() -> None:
    assert sum(map(len, kernels().values())) > 160
    assert Path(webgpu.__file__).with_name("kernels.txt").stat().st_size < 10_000
