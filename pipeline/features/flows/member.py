"""A model of a feature: opened, its sizes fixed, with names of its own in the graph of all."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pipeline import config as configs
from pipeline.core import files as storage
from pipeline.core.errors import ConfigError
from pipeline.model import edit as onnx_edit
from pipeline.model import guards, onnx_model, signature
from pipeline.model.signature import TensorInfo
from pipeline.model.sources import SourceModel
from pipeline.partition import types as partition_types
from pipeline.passes import base as passes_base
from pipeline.passes import registry

if TYPE_CHECKING:
    import onnx

Rename = Callable[[str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageModel:
    """`inputs` and `outputs` are by the model's own names; constants are those of its table that are numbers."""

    name: str
    model: onnx_model.LeanModel
    inputs: Mapping[str, TensorInfo]
    outputs: Mapping[str, TensorInfo]
    constants: Mapping[str, configs.InputValue]

    @property
    def proto(self) -> "onnx.ModelProto":
        """The model's message, with its own names."""
        return self.model.proto

    def value(self, name: str) -> str:
        """The name of a value of the model in the graph of all."""
        return f"{self.name}/{name}"

    def initializers(self) -> "Iterator[onnx.TensorProto]":
        """Copies of the model's constants, with their names in the graph of all."""
        for tensor in self.proto.graph.initializer:
            copy = onnx_edit.copied(tensor)
            copy.name = self.value(tensor.name)
            yield copy

    def nodes(self, given: Mapping[str, str], run: int = 0) -> "list[onnx.NodeProto]":
        """Copies of the model's nodes for its run of this number; `given` is what its inputs get, by their names."""
        constants = onnx_edit.constant_names(self.proto.graph)
        made = self.name if run == 0 else f"{self.name}:{run}"

        def rename(name: str) -> str:
            if name in given:
                return given[name]
            return f"{self.name if name in constants else made}/{name}"

        graph = onnx_edit.copied(self.proto.graph)
        del graph.initializer[:]  # the graph of all has them
        _rename(graph, rename, made)
        return list(graph.node)

    def made(self, output: str, run: int = 0) -> str:
        """The name of what a run of the model gives as this output."""
        return f"{self.name}/{output}" if run == 0 else f"{self.name}:{run}/{output}"


def _rename(graph: "onnx.GraphProto", rename: Rename, title: str) -> None:
    """Give all values, those of bodies too, other names: what bodies read of the graph around them stays theirs.

    `onnx.compose` leaves the names alone that a body of an If or Loop reads from outside.
    """
    for body in onnx_edit.subgraphs(graph):
        del body.value_info[:], body.quantization_annotation[:]
        for value in (*body.input, *body.output, *body.initializer):
            value.name = rename(value.name)
        for sparse in body.sparse_initializer:
            sparse.values.name = rename(sparse.values.name)
        for node in body.node:
            node.name = f"{title}/{node.name}" if node.name else ""
            node.input[:] = [name and rename(name) for name in node.input]
            node.output[:] = [name and rename(name) for name in node.output]


def open_member(name: str, table: configs.ModelConfig, folder: Path) -> StageModel:
    """The model of a table behind its transforms, with sizes for its dimensions; errors as those of a conversion.

    Types and shapes of outputs are those that ONNX Runtime infers where it does.
    """
    work = folder / name
    storage.make_folder(work)
    loaded = onnx_model.load_model(SourceModel(path=table.path), work)
    guards.check_structure(loaded.proto, table.path)
    if table.transforms:
        context = passes_base.PassContext(folder=work, where=table.path)
        changed = registry.run_passes(loaded, table.transforms, context).model
        loaded = replace(
            loaded, proto=changed.proto, folder=changed.folder, weights=changed.weights, outside=changed.outside
        )
    model = onnx_model.prepare_model(loaded, table.sizes, table.optional_inputs)
    proto = model.proto
    if proto.graph.sparse_initializer:
        raise ConfigError(
            f"the model {name} has sparse constants",
            where=table.path,
            why="they cannot be put into another graph",
            remedy="export it with dense ones",
        )
    inferred = partition_types.infer(proto)
    outputs = {
        info.name: _inferred(info, inferred.get(info.name, partition_types.UNKNOWN))
        for info in signature.tensor_infos(proto.graph.output)
    }
    return StageModel(
        name=name,
        model=model,
        inputs={info.name: info for info in signature.own_inputs(proto)},
        outputs=outputs,
        constants=table.inputs,
    )


def _inferred(info: TensorInfo, value: partition_types.Value) -> TensorInfo:
    """What a model declares of an output, with the shape that ONNX Runtime infers where the model's is open."""
    return info if info.fixed or not value.shape else msgspec.structs.replace(info, shape=value.shape)
