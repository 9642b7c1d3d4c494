"""What a rewrite is, and the table of them: what each writes in the place of what, and whether outputs are equal."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from pipeline.config.values import Accelerator
from pipeline.core.errors import ModelError
from pipeline.core.providers import COREML_MLPROGRAM, COREML_NN, NNAPI, PROVIDER_RULES, QNN, WEBGPU, XNNPACK
from pipeline.model.edit import drop_unread
from pipeline.model.sources import SourceModel
from pipeline.passes.base import Edit, Effect, Model, NotApplicable, Options, Pass, PassContext
from pipeline.passes.edit import changed, write_model
from pipeline.passes.rewrites.arithmetic import (
    clip_as_max_min,
    compute_in_f32,
    constant_bounds,
    erf_by_exp,
    gelu_tanh,
    global_pool_as_mean,
    group_norm,
    hard_sigmoid,
    hard_swish,
    layer_norm,
    mean_as_global_pool,
    min_as_max,
    one_input,
    pairwise,
    prelu_by_relu,
    reduction,
)
from pipeline.passes.rewrites.facts import GraphFacts, Rule, rewrite
from pipeline.passes.rewrites.gpu import in_float, without_empty_inputs
from pipeline.passes.rewrites.linear import (
    conv_2d,
    counted_pads,
    cropped_conv_transpose,
    einsum_as_matmul,
    explicit_pads,
    flat_matmul,
    plain_gemm,
    scaled_batch_norm,
)
from pipeline.passes.rewrites.moves import (
    as_reshape,
    concat_on_channels,
    equal_resize,
    fewer_axes,
    gather_i32,
    pad_as_concat,
)
from pipeline.passes.rewrites.npu import flat_indices, floored, gathered_resize, scaled_norm, wide_padding

if TYPE_CHECKING:
    pass


class RewriteOptions(Options, frozen=True, kw_only=True):
    """Options of every rewrite."""

    provider: Accelerator | None = None
    """Rewrite only what this provider does not claim; without it, every node of the form."""


def nodes(**rules: Rule) -> Edit:
    """The edit that puts other nodes in the place of those that are not claimed, by rules for their operators."""
    table: Mapping[str, Rule] = rules
    return partial(rewrite, rules=table)


def _rewrite(
    name: str, title: str, edit: Edit, *, absent: str, exact: bool = False, dialect: str = XNNPACK,
    helps: frozenset[str] = frozenset(PROVIDER_RULES),
) -> Pass:  # fmt: skip
    """A rewrite as a pass; `dialect` is the provider whose forms are written where nobody names one."""

    def apply(model: Model, options: RewriteOptions, context: PassContext) -> Model:
        from pipeline.partition.answer import make_settings
        from pipeline.partition.graph import tensor_reader, view
        from pipeline.partition.judge import PartitionRequest, judge

        settings = make_settings(options.provider or dialect)
        claimed: frozenset[str] = frozenset()
        if options.provider:
            path = context.new_file(".onnx")
            write_model(model, path)
            answer = judge(PartitionRequest(source=SourceModel(path=str(path)), settings=settings))
            if answer.error:
                raise ModelError("the model cannot be judged", where=context.where, why=answer.error)
            claimed = frozenset(name for group in answer.partitions for name in group)
        graph = view(model.proto, read=tensor_reader(model), outside=model.outside)
        edited = edit(model.proto, GraphFacts(graph=graph, settings=settings, claimed=claimed))
        if edited is None:
            why = f"no node of the right form that {options.provider} leaves to the CPU" if options.provider else ""
            raise NotApplicable(
                "nothing to rewrite", why=why or "no node has the form that it rewrites, at known sizes"
            )
        drop_unread(edited.graph)
        return changed(model, edited)

    return Pass(
        name=name, title=title, apply=apply, effect=Effect.EXACT if exact else Effect.ROUNDING, options=RewriteOptions,
        edit=edit, helps=helps, absent=absent,
    )  # fmt: skip


NNAPI_ONLY, NN_ONLY, MLPROGRAM_ONLY = frozenset({NNAPI}), frozenset({COREML_NN}), frozenset({COREML_MLPROGRAM})
QNN_ONLY, WEBGPU_ONLY = frozenset({QNN}), frozenset({WEBGPU})

REWRITES = (
    _rewrite("f32", "Compute in 32-bit floats.",
             compute_in_f32,
             absent="nothing is f16, or bodies, functions or weights in other files keep it from being changed"),
    _rewrite("drop-empty-inputs", "Drop inputs at a node's end that have no name.",
             without_empty_inputs, exact=True,
             absent="no node lists an input without a name at its end"),
    _rewrite("in-float", "Compute in float what is quantized.",
             in_float, helps=WEBGPU_ONLY,
             absent="nothing is quantized by constant scales of whole values, at opset 11 or later"),
    _rewrite("constant-clip", "Make Clip's bounds constants.",
             nodes(Clip=constant_bounds), exact=True,
             absent="no refused Clip has bounds that are computed from constants"),
    _rewrite("clip-as-max-min", "Write Clip as Relu, or Max and Min.",
             nodes(Clip=clip_as_max_min), exact=True, dialect=NNAPI, helps=NNAPI_ONLY,
             absent="no refused Clip has known bounds"),
    _rewrite("pad-as-concat", "Write Pad as Slice and Concat.",
             nodes(Pad=pad_as_concat), exact=True,
             absent="no refused Pad has known sizes and pads, none negative"),
    _rewrite("equal-resize", "Name Resize's mode by an equal one.",
             nodes(Resize=equal_resize), exact=True,
             absent="no refused Resize has an equal mode that providers take"),
    _rewrite("plain-gemm", "Put Gemm's factors and bias into its constants.",
             nodes(Gemm=plain_gemm),
             absent="no refused Gemm has factors, a transposed A or a bias of another shape beside constants"),
    _rewrite("flat-matmul", "Multiply batches of matrices by one constant as one product.",
             nodes(MatMul=flat_matmul),
             absent="no refused MatMul multiplies a batch of known size by a constant"),
    _rewrite("einsum-as-matmul", "Write Einsum as one matrix product.",
             nodes(Einsum=einsum_as_matmul),
             absent="no refused Einsum is a product of two operands of known sizes"),
    _rewrite("explicit-pads", "Write auto_pad and ceil_mode as pads.",
             nodes(Conv=explicit_pads, MaxPool=explicit_pads, AveragePool=explicit_pads),
             absent="no refused Conv or pool of known sizes has auto_pad SAME or ceil_mode"),
    _rewrite("counted-pads", "Write AveragePool's counted padding as Pad.",
             nodes(AveragePool=counted_pads),
             absent="no refused AveragePool counts its padding"),
    _rewrite("conv-2d", "Write 1-D convolutions as 2-D.",
             nodes(Conv=conv_2d),
             absent="no refused Conv has one axis and constant weights"),
    _rewrite("cropped-conv-transpose", "Write ConvTranspose's padding as Slice.",
             nodes(ConvTranspose=cropped_conv_transpose),
             absent="no refused ConvTranspose has padding that a Slice can do"),
    _rewrite("scaled-batch-norm", "Write BatchNormalization as Mul and Add.",
             nodes(BatchNormalization=scaled_batch_norm),
             absent="no refused BatchNormalization has constant statistics"),
    _rewrite("reshape", "Write Flatten, Squeeze, Unsqueeze and computed shapes as Reshape.",
             nodes(Flatten=as_reshape, Squeeze=as_reshape, Unsqueeze=as_reshape, Reshape=as_reshape), exact=True,
             absent="no refused one of them has an output of known size"),
    _rewrite("concat-on-channels", "Turn Concat's axis to the channels.",
             nodes(Concat=concat_on_channels), exact=True, dialect=COREML_NN, helps=NN_ONLY,
             absent="no refused Concat has known sizes and rank 4 at most"),
    _rewrite("fewer-axes", "Merge axes around Transpose and Gather of many.",
             fewer_axes, exact=True,
             absent="no refused Transpose or Gather of rank 5 or more has axes that can be merged"),
    _rewrite("gather-i32", "Give Gather 32-bit indices.",
             nodes(Gather=gather_i32), exact=True, dialect=NNAPI, helps=NNAPI_ONLY,
             absent="no refused Gather has computed 64-bit indices into known sizes"),
    _rewrite("layer-norm", "Write LayerNormalization by its definition.",
             nodes(LayerNormalization=layer_norm),
             absent="no refused LayerNormalization of f32 has known sizes and one output"),
    _rewrite("group-norm", "Write Instance- and GroupNormalization by their definition.",
             nodes(InstanceNormalization=group_norm, GroupNormalization=group_norm),
             absent="no refused one of them has known sizes and a constant scale for each channel"),
    _rewrite("activations", "Write HardSigmoid, HardSwish and Gelu (tanh) by their definitions.",
             nodes(HardSigmoid=hard_sigmoid, HardSwish=hard_swish, Gelu=gelu_tanh),
             absent="none of them is refused"),
    _rewrite("erf-by-exp", "Write Erf and Gelu by a polynomial and Exp, to 1.5e-7.",
             nodes(Erf=erf_by_exp, Gelu=erf_by_exp), dialect=NNAPI, helps=NNAPI_ONLY,
             absent="neither is refused"),
    _rewrite("one-input", "Write Neg, Reciprocal, Abs and Softsign by arithmetic.",
             nodes(Neg=one_input, Reciprocal=one_input, Abs=one_input, Softsign=one_input),
             absent="none of them is refused"),
    _rewrite("prelu-by-relu", "Write PRelu as a difference of two Relu.",
             nodes(PRelu=prelu_by_relu), exact=True,
             absent="no PRelu of f32 is refused"),
    _rewrite("pairwise", "Write Max, Min and Sum of many inputs two at a time.",
             nodes(Max=pairwise, Min=pairwise, Sum=pairwise), exact=True,
             absent="none of many inputs is refused"),
    _rewrite("min-as-max", "Write Min as a negated Max.",
             nodes(Min=min_as_max), exact=True, dialect=COREML_MLPROGRAM, helps=MLPROGRAM_ONLY,
             absent="no Min of f32 is refused"),
    _rewrite("reductions", "Write ReduceL2, ReduceSumSquare and ReduceSum by products and means.",
             nodes(ReduceL2=reduction, ReduceSumSquare=reduction, ReduceSum=reduction),
             absent="none of them with known sizes and axes is refused"),
    _rewrite("pool-as-mean", "Write GlobalAveragePool as ReduceMean.",
             nodes(GlobalAveragePool=global_pool_as_mean),
             absent="no GlobalAveragePool of f32 is refused"),
    _rewrite("mean-as-pool", "Write ReduceMean over height and width as GlobalAveragePool.",
             nodes(ReduceMean=mean_as_global_pool),
             absent="no such ReduceMean is refused"),
    _rewrite("scaled-norm", "Divide values by the largest before ReduceL2, so that half precision holds the squares.",
             nodes(ReduceL2=scaled_norm), helps=QNN_ONLY,
             absent="no ReduceL2 of known sizes is computed otherwise"),
    _rewrite("flat-indices", "Give Gather its constant indices in one row, counted from the beginning.",
             nodes(Gather=flat_indices), exact=True, helps=QNN_ONLY,
             absent="no Gather has constant indices of several rows, or that count from the end"),
    _rewrite("gathered-resize", "Write Resize to the nearest pixel as Gather.",
             nodes(Resize=gathered_resize), exact=True, helps=QNN_ONLY,
             absent="no Resize of height and width takes the nearest pixel"),
    _rewrite("wide-padding", "Write Conv's padding as Pad where it is as large as the kernel.",
             nodes(Conv=wide_padding), helps=QNN_ONLY,
             absent="no Conv has a padding as large as its kernel"),
    _rewrite("floored-casts", "Write Casts to integers and back by Floor.",
             nodes(Cast=floored), helps=QNN_ONLY,
             absent="no Cast to integers is undone by the next one"),
)  # fmt: skip
"""Every rewrite, in the order in which advice tries them."""
