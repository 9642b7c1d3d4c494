"""What a rewrite is, and the pass that each is: `ort-mobile transform IN OUT --do pad-as-concat:provider=nnapi`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pipeline.config.values import Accelerator
from pipeline.core.errors import ModelError
from pipeline.core.providers import XNNPACK
from pipeline.model.onnx_model import keep_only
from pipeline.model.sources import SourceModel
from pipeline.passes.base import Effect, Model, NotApplicable, Options, Pass, PassContext
from pipeline.passes.edit import changed
from pipeline.passes.rewrites.facts import GraphFacts, Rule, rewrite
from pipeline.passes.save import write_model
from pipeline.passes.weights import read_names

if TYPE_CHECKING:
    from onnx import ModelProto

Edit = Callable[["ModelProto", GraphFacts], "ModelProto | None"]
"""A changed model; None where there is nothing to change. ModelError when it should apply and cannot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """One row of the table. Exact ones give equal numbers.

    `dialect` is the provider whose forms are written where nobody names one: some differ between providers.
    """

    name: str
    title: str
    edit: Edit
    exact: bool = False
    dialect: str = XNNPACK


def nodes(**rules: Rule) -> Edit:
    """The edit that puts other nodes in the place of those that are not claimed, by rules for their operators."""
    table: Mapping[str, Rule] = rules
    return partial(rewrite, rules=table)


class RewriteOptions(Options, frozen=True, kw_only=True):
    """Options of every rewrite."""

    provider: Accelerator | None = None
    """Rewrite only what this provider does not claim; without it, every node of the form."""


def as_pass(row: Rewrite) -> Pass:
    """The pass that a row is."""

    def apply(model: Model, options: RewriteOptions, context: PassContext) -> Model:
        edited = row.edit(model.proto, _facts(model, row, options.provider, context))
        if edited is None:
            why = f"no node of the right form that {options.provider} leaves to the CPU" if options.provider else ""
            raise NotApplicable(
                "nothing to rewrite", why=why or "no node has the form that it rewrites, at known sizes"
            )
        _drop_unread(edited)
        return changed(model, edited)

    return Pass(
        name=row.name, title=f"{row.title[0].upper()}{row.title[1:]}.", apply=apply, options=RewriteOptions,
        effect=Effect.EXACT if row.exact else Effect.ROUNDING,
    )  # fmt: skip


def _facts(model: Model, row: Rewrite, provider: str | None, context: PassContext) -> GraphFacts:
    """What is known of the model; ModelError where ONNX Runtime, or the rules of the provider, cannot read it."""
    from pipeline.partition.answer import make_settings
    from pipeline.partition.input import tensor_reader
    from pipeline.partition.judge import PartitionRequest, judge
    from pipeline.partition.onnx_view import view

    settings = make_settings(provider or row.dialect)
    claimed: frozenset[str] = frozenset()
    if provider:
        path = context.new_file(".onnx")
        write_model(model, path)
        answer = judge(PartitionRequest(source=SourceModel(path=str(path)), settings=settings))
        if answer.error:
            raise ModelError("the model cannot be judged", where=context.where, why=answer.error)
        claimed = frozenset(name for group in answer.partitions for name in group)
    graph = view(model.proto, read=tensor_reader(model), outside=model.outside)
    return GraphFacts(graph=graph, settings=settings, claimed=claimed)


def _drop_unread(proto: "ModelProto") -> None:
    """Remove, in place, initializers that nothing reads any more: their nodes were rewritten."""
    graph = proto.graph
    read = read_names(graph.node) | {value.name for value in (*graph.output, *graph.input)}
    keep_only(graph.initializer, lambda tensor: tensor.name in read)
