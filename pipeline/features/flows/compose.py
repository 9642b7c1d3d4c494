"""A feature's models, joined to one ONNX file that everything else takes for a model."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from device_runner import files as runner_files
from pipeline import config as configs
from pipeline.core import files as storage
from pipeline.core import workers
from pipeline.core.errors import ConfigError, ModelError
from pipeline.features.flows import cadence, chain, loop, order
from pipeline.features.flows import member as flow_member
from pipeline.features.flows import whole as flow_whole
from pipeline.features.flows.whole import Whole
from pipeline.model import edit as onnx_edit
from pipeline.model import onnx_model
from pipeline.model import sources as model_sources
from pipeline.model.sources import SourceModel
from pipeline.passes import saving as passes_saving

if TYPE_CHECKING:
    import onnx

FOLDER = "features"


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """The file of a feature, and its states: inputs by the outputs that become them, and what they begin with."""

    path: str
    states: dict[str, str] = {}
    begins: dict[str, float] = {}


def made_of(feature: configs.FeatureConfig, tables: Mapping[str, configs.ModelConfig]) -> configs.ModelConfig:
    """The feature as a model's table: its file is made in a process of its own, as models of strangers are read for it.

    Raises ConfigError for stages that do not fit each other, ModelError for models that cannot be read.
    """
    where = f"features, {feature.name}"
    order.refuse(feature, tables, where)
    needed = sum(model_sources.source_bytes(SourceModel(path=tables[stage.run].path)) for stage in feature.flow)
    task = workers.Task(
        label=feature.name,
        call=partial(join, feature, {stage.run: tables[stage.run] for stage in feature.flow}, where),
        memory_bytes=workers.needed_bytes(needed),
    )
    (outcome,) = workers.run_tasks(
        [task], memory_bytes=workers.memory_budget(), timeout_seconds=workers.time_limit([needed])
    )
    if outcome.value is None:
        raise outcome.error or ModelError("the feature could not be made", where=where)
    joined = outcome.value
    table = feature.as_model()
    return msgspec.structs.replace(
        table,
        path=joined.path,
        state={**joined.states, **table.state},
        inputs={**joined.begins, **table.inputs},
    )


def join(feature: configs.FeatureConfig, tables: Mapping[str, configs.ModelConfig], where: str) -> Joined:
    """Make the file; errors as those of `made_of`."""
    folder = runner_files.cache_folder() / FOLDER
    storage.make_folder(folder)
    with storage.scratch(folder) as work:
        members = {}
        for stage in feature.flow:
            try:
                members[stage.run] = flow_member.open_member(stage.run, tables[stage.run], work)
            except ModelError as error:
                what = f"stage {stage.run}: {error.what}"
                raise ModelError(what, where=error.where, why=error.why, remedy=error.remedy) from error
        order.refuse_members(feature, members, where)
        whole = Whole(where=where, members=members)
        chained = tuple(stage for stage in feature.flow if stage.when is configs.When.INIT)
        often = cadence.runs(chained, members, where)
        for stage in feature.flow:
            if feature.until and stage.when is configs.When.STEP:
                loop.add_stage(whole, stage, feature.until)
            else:
                chain.add_stage(whole, stage, often[stage.run])
        add_outputs(whole, feature)
        model = whole_model(whole, feature.name, work)
        places = onnx_model.range_digests(set(model.weights.values()))
        digest = onnx_model.content_digest(model, {name: places[span] for name, span in model.weights.items()})
        target = Path(feature.path) if feature.path else folder / digest[:16] / f"{feature.name}.onnx"
        if feature.path or not target.is_file():  # the cache has it by its content, whole or not at all
            storage.make_folder(target.parent)
            passes_saving.save_model(model, target)
    return Joined(
        path=str(target),
        states={state.output: state.input for state in whole.states},
        begins={state.input: state.fill for state in whole.states if state.fill},
    )


def add_outputs(whole: Whole, feature: configs.FeatureConfig) -> None:
    """What the app gets: as `outputs` says, else what the last stage gives, or its loop's tokens."""
    last = feature.flow[-1].run
    if feature.until and not feature.outputs:
        return
    wanted = feature.outputs or {output: f"{last}.{output}" for output in whole.members[last].outputs}
    carried = {f"{stage.run}.{feed.state}" for stage in feature.flow for feed in stage.feeds.values() if feed.state}
    for name, source in wanted.items():
        if not feature.outputs and source in carried:
            continue
        if source not in whole.values:
            raise ConfigError(
                f"no stage gives {source!r}",
                where=f"{whole.where}, outputs",
                why=f"there are {', '.join(whole.values)}",
                remedy="name one of them",
            )
        stage = flow_whole.stage_of(source, whole.members) or last
        info = whole.members[stage].outputs[source[len(stage) + 1 :]]
        values = whole.values[source]
        if info.dtype is None:
            raise ConfigError(f"{source!r} is no tensor", where=f"{whole.where}, outputs", remedy="name another")
        value = values[0] if len(values) == 1 else whole.links.add("Concat", list(values), f"all of {name}", axis=0)
        shape = info.shape
        if shape and len(values) > 1:
            shape = (shape[0] * len(values) if isinstance(shape[0], int) else None, *shape[1:])
        whole.add_output(name, value, info.dtype, shape)


def whole_model(whole: Whole, name: str, folder: Path) -> onnx_model.LeanModel:
    """The model of the graph, with the weights of all."""
    from onnx import helper

    members = whole.members.values()
    constants = [tensor for member in members for tensor in member.initializers()]
    graph = helper.make_graph(
        whole.links.nodes,
        name,
        list(whole.inputs.values()),
        list(whole.outputs.values()),
        [*whole.links.constants, *constants],
    )
    opsets = {
        onnx_edit.plain_domain(opset.domain): opset.version for member in members for opset in member.proto.opset_import
    }
    proto: onnx.ModelProto = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid(domain, version) for domain, version in opsets.items()],
        ir_version=max(member.proto.ir_version for member in members),
        functions=[function for member in members for function in member.proto.functions],
    )
    onnx_edit.drop_unread(proto.graph)
    weights = {member.value(name): span for member in members for name, span in member.model.weights.items()}
    outside = frozenset(member.value(name) for member in members for name in member.model.outside)
    return onnx_model.LeanModel(proto=proto, folder=folder, weights=weights, outside=outside)
