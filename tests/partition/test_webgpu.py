"""WebGPU: its claims beside the plugin's labels, the reasons, settings, copies, and what users are shown."""

from pathlib import Path

import msgspec
import onnx
import pytest
from onnx import TensorProto, helper

from pipeline.model.sources import SourceModel
from pipeline.partition.answer import ModelAnswer, make_settings
from pipeline.partition.graph import Graph
from pipeline.partition.judge import PartitionRequest, judge
from pipeline.partition.provider import claim, copies_of
from tests.recorded_graphs import record, unpack
from tests.webgpu.labels import claimed, recorded, settings_of

LABELS = {"ops": 5_000, "dags": 240, "real": 65}
"""At least so many models have a label and a recorded graph."""


def value(name: str, shape: tuple[int | str, ...], kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def saved(tmp_path: Path, nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], output: str = "y",
          opset: int = 17, kind: int = TensorProto.FLOAT) -> Path:  # fmt: skip
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info(output, kind, None)])
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), path)
    return path


def answer_of(path: Path, *options: str, release: str = "1.29") -> ModelAnswer:
    settings = make_settings("webgpu", release=release, webgpu_options=options)
    answer = judge(PartitionRequest(source=SourceModel(path=str(path)), settings=settings))
    assert not answer.error, answer.error
    return answer


def _graph(packed: bytes) -> Graph:
    return unpack(msgspec.msgpack.decode(packed)[0])


@pytest.mark.parametrize("archive", list(LABELS))
def test_claims_are_those_of_the_plugin(archive: str) -> None:
    shown = {key.removesuffix("@none"): packed for key, packed in record(archive, "1.23").items() if "@none" in key}
    wrong, judged = [], 0
    for name, packed in shown.items():
        # Functions that providers other than WebGPU claim whole were kept in these graphs.
        if name.startswith("local_function/"):
            continue
        graph = _graph(packed)
        judged += 1
        for setting in ("nhwc", "nchw"):
            settings, label = settings_of(setting), recorded()[archive, setting][name]
            ours = claim(graph, settings).claimed
            for index, node in graph.nodes.items():
                truth = claimed(label, node.name, node.first_output)
                if truth != (index in ours) and not (label.error and truth):
                    wrong.append((name, setting, node.op_type, node.since_version, index in ours))
            # In NHWC the transformation of layouts adds copies, and takes some away.
            if setting == "nchw" and archive != "ops" and not label.error:
                assert copies_of(graph, settings, ours) == label.copies, name
    assert wrong == []
    assert judged >= LABELS[archive]
