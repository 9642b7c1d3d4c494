"""The table of fixes: what each does, to what, and whether its outputs must be equal to the last bit."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from pipeline.advice.clip import clip_as_max_min, constant_bounds
from pipeline.advice.dimensions import fix_dimensions
from pipeline.advice.einsum import einsum_as_matmul
from pipeline.advice.facts import GraphFacts, Rule, rewrite
from pipeline.advice.half import compute_in_f32
from pipeline.advice.inputs import constant_initializers
from pipeline.advice.linear import conv_2d, cropped_conv_transpose, flat_matmul, plain_gemm, scaled_batch_norm
from pipeline.advice.opset import to_opset_11, to_opset_13, to_opset_17, to_opset_21
from pipeline.advice.pad import pad_as_concat
from pipeline.advice.pieces import (
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
from pipeline.advice.pools import counted_pads, explicit_pads
from pipeline.advice.ranks import fewer_axes
from pipeline.advice.resize import equal_resize
from pipeline.advice.shapes import as_reshape, concat_on_channels, gather_i32
from pipeline.partition.answer import Optimize, Provider
from pipeline.partition.judge import PartitionRequest

if TYPE_CHECKING:
    from onnx import ModelProto

Edit = Callable[["ModelProto", GraphFacts], "ModelProto | None"]
"""A model with the fix; None where there is nothing to fix. ModelError when it should apply and cannot."""

Change = Callable[[PartitionRequest], PartitionRequest | None]
"""Other settings for the same model."""

EVERY = frozenset(Provider)
NNAPI = frozenset({Provider.NNAPI})
COREML = frozenset({Provider.COREML_NN, Provider.COREML_MLPROGRAM})
COREML_NN = frozenset({Provider.COREML_NN})
MLPROGRAM = frozenset({Provider.COREML_MLPROGRAM})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """One fix. `absent` says why it does not apply where it does not; exact ones must give equal numbers.

    Exactly one of `edit` and `change` is there.
    """

    name: str
    title: str
    absent: str
    edit: Edit | None = None
    change: Change | None = None
    exact: bool = False
    providers: frozenset[Provider] = EVERY


def _nodes(**rules: Rule) -> Edit:
    """The edit that puts other nodes in the place of refused ones, by rules for their operators."""
    table: Mapping[str, Rule] = rules
    return partial(rewrite, rules=table)


def other_format(request: PartitionRequest) -> PartitionRequest | None:
    """CoreML's other model format."""
    to = {
        Provider.COREML_NN: Provider.COREML_MLPROGRAM,
        Provider.COREML_MLPROGRAM: Provider.COREML_NN,
    }.get(request.settings.provider)
    if to is None:
        return None
    return msgspec.structs.replace(request, settings=msgspec.structs.replace(request.settings, provider=to))


def level_basic(request: PartitionRequest) -> PartitionRequest | None:
    """Optimization level basic before the provider is asked."""
    if request.optimize is Optimize.BASIC:
        return None
    return msgspec.structs.replace(request, optimize=Optimize.BASIC)


MODEL_FIXES = (
    Fix(name="fixed-dimensions", title="fix open dimensions of the inputs", edit=fix_dimensions, exact=True,
        absent="every input dimension has a size"),
    Fix(name="constant-initializers", title="take initializers out of the graph's inputs", edit=constant_initializers,
        exact=True, absent="no initializer can be overridden as an input"),
    Fix(name="f32", title="compute in 32-bit floats", edit=compute_in_f32,
        absent="nothing is f16, or bodies, functions or weights in other files keep it from being changed"),
    Fix(name="constant-clip", title="make Clip's bounds constants", edit=_nodes(Clip=constant_bounds), exact=True,
        absent="no refused Clip has bounds that are computed from constants"),
    Fix(name="clip-as-max-min", title="write Clip as Relu, or Max and Min", edit=_nodes(Clip=clip_as_max_min),
        exact=True, providers=NNAPI, absent="no refused Clip has known bounds"),
    Fix(name="pad-as-concat", title="write Pad as Slice and Concat", edit=_nodes(Pad=pad_as_concat), exact=True,
        absent="no refused Pad has known sizes and pads, none negative"),
    Fix(name="equal-resize", title="name Resize's mode by an equal one", edit=_nodes(Resize=equal_resize), exact=True,
        absent="no refused Resize has an equal mode that providers take"),
    Fix(name="plain-gemm", title="put Gemm's factors and bias into its constants", edit=_nodes(Gemm=plain_gemm),
        absent="no refused Gemm has factors, a transposed A or a bias of another shape beside constants"),
    Fix(name="flat-matmul", title="multiply batches of matrices by one constant as one product",
        edit=_nodes(MatMul=flat_matmul), absent="no refused MatMul multiplies a batch of known size by a constant"),
    Fix(name="einsum-as-matmul", title="write Einsum as one matrix product", edit=_nodes(Einsum=einsum_as_matmul),
        absent="no refused Einsum is a product of two operands of known sizes"),
    Fix(name="explicit-pads", title="write auto_pad and ceil_mode as pads",
        edit=_nodes(Conv=explicit_pads, MaxPool=explicit_pads, AveragePool=explicit_pads),
        absent="no refused Conv or pool of known sizes has auto_pad SAME or ceil_mode"),
    Fix(name="counted-pads", title="write AveragePool's counted padding as Pad", edit=_nodes(AveragePool=counted_pads),
        absent="no refused AveragePool counts its padding"),
    Fix(name="conv-2d", title="write 1-D convolutions as 2-D", edit=_nodes(Conv=conv_2d),
        absent="no refused Conv has one axis and constant weights"),
    Fix(name="cropped-conv-transpose", title="write ConvTranspose's padding as Slice",
        edit=_nodes(ConvTranspose=cropped_conv_transpose),
        absent="no refused ConvTranspose has padding that a Slice can do"),
    Fix(name="scaled-batch-norm", title="write BatchNormalization as Mul and Add",
        edit=_nodes(BatchNormalization=scaled_batch_norm),
        absent="no refused BatchNormalization has constant statistics"),
    Fix(name="reshape", title="write Flatten, Squeeze, Unsqueeze and computed shapes as Reshape",
        edit=_nodes(Flatten=as_reshape, Squeeze=as_reshape, Unsqueeze=as_reshape, Reshape=as_reshape), exact=True,
        absent="no refused one of them has an output of known size"),
    Fix(name="concat-on-channels", title="turn Concat's axis to the channels", edit=_nodes(Concat=concat_on_channels),
        exact=True, providers=COREML_NN, absent="no refused Concat has known sizes and rank 4 at most"),
    Fix(name="fewer-axes", title="merge axes around Transpose and Gather of many", edit=fewer_axes, exact=True,
        absent="no refused Transpose or Gather of rank 5 or more has axes that can be merged"),
    Fix(name="gather-i32", title="give Gather 32-bit indices", edit=_nodes(Gather=gather_i32), exact=True,
        providers=NNAPI, absent="no refused Gather has computed 64-bit indices into known sizes"),
    Fix(name="layer-norm", title="write LayerNormalization by its definition",
        edit=_nodes(LayerNormalization=layer_norm),
        absent="no refused LayerNormalization of f32 has known sizes and one output"),
    Fix(name="group-norm", title="write Instance- and GroupNormalization by their definition",
        edit=_nodes(InstanceNormalization=group_norm, GroupNormalization=group_norm),
        absent="no refused one of them has known sizes and a constant scale for each channel"),
    Fix(name="activations", title="write HardSigmoid, HardSwish and Gelu (tanh) by their definitions",
        edit=_nodes(HardSigmoid=hard_sigmoid, HardSwish=hard_swish, Gelu=gelu_tanh),
        absent="none of them is refused"),
    Fix(name="erf-by-exp", title="write Erf and Gelu by a polynomial and Exp, to 1.5e-7",
        edit=_nodes(Erf=erf_by_exp, Gelu=erf_by_exp), providers=NNAPI, absent="neither is refused"),
    Fix(name="one-input", title="write Neg, Reciprocal, Abs and Softsign by arithmetic",
        edit=_nodes(Neg=one_input, Reciprocal=one_input, Abs=one_input, Softsign=one_input),
        absent="none of them is refused"),
    Fix(name="prelu-by-relu", title="write PRelu as a difference of two Relu", edit=_nodes(PRelu=prelu_by_relu),
        exact=True, absent="no PRelu of f32 is refused"),
    Fix(name="pairwise", title="write Max, Min and Sum of many inputs two at a time",
        edit=_nodes(Max=pairwise, Min=pairwise, Sum=pairwise), exact=True, absent="none of many inputs is refused"),
    Fix(name="min-as-max", title="write Min as a negated Max", edit=_nodes(Min=min_as_max), exact=True,
        providers=MLPROGRAM, absent="no Min of f32 is refused"),
    Fix(name="reductions", title="write ReduceL2, ReduceSumSquare and ReduceSum by products and means",
        edit=_nodes(ReduceL2=reduction, ReduceSumSquare=reduction, ReduceSum=reduction),
        absent="none of them with known sizes and axes is refused"),
    Fix(name="pool-as-mean", title="write GlobalAveragePool as ReduceMean",
        edit=_nodes(GlobalAveragePool=global_pool_as_mean), absent="no GlobalAveragePool of f32 is refused"),
    Fix(name="mean-as-pool", title="write ReduceMean over height and width as GlobalAveragePool",
        edit=_nodes(ReduceMean=mean_as_global_pool), absent="no such ReduceMean is refused"),
    Fix(name="opset-11", title="convert to opset 11", edit=to_opset_11, providers=NNAPI, absent="it is opset 11"),
    Fix(name="opset-13", title="convert to opset 13", edit=to_opset_13, absent="it is opset 13"),
    Fix(name="opset-17", title="convert to opset 17", edit=to_opset_17, absent="it is opset 17"),
    Fix(name="opset-21", title="convert to opset 21", edit=to_opset_21, absent="it is opset 21"),
)  # fmt: skip
"""Fixes of the model, in the order in which they are tried."""

LEVEL_BASIC = Fix(
    name="level-basic",
    title="optimize at level basic first",
    change=level_basic,
    absent="it is that level",
)
OTHER_FORMAT = Fix(
    name="other-format",
    title="use CoreML's other model format",
    change=other_format,
    providers=COREML,
    absent="only CoreML has formats",
)


ENABLERS = ("fixed-dimensions", "constant-initializers", "f32")
"""Fixes that may gain nothing alone because a provider asks for all of them at once."""


def fixes_for(provider: Provider) -> tuple[Fix, ...]:
    """The fixes that can matter to a provider."""
    return tuple(fix for fix in (*MODEL_FIXES, LEVEL_BASIC, OTHER_FORMAT) if provider in fix.providers)
