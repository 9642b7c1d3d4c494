"""The table of rewrites: what each writes in the place of what, and whether its outputs are equal to the last bit."""

from pipeline.core.providers import COREML_MLPROGRAM, COREML_NN, NNAPI
from pipeline.passes.rewrites.clip import clip_as_max_min, constant_bounds
from pipeline.passes.rewrites.einsum import einsum_as_matmul
from pipeline.passes.rewrites.half import compute_in_f32
from pipeline.passes.rewrites.linear import (
    conv_2d,
    cropped_conv_transpose,
    flat_matmul,
    plain_gemm,
    scaled_batch_norm,
)
from pipeline.passes.rewrites.pad import pad_as_concat
from pipeline.passes.rewrites.pieces import (
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
from pipeline.passes.rewrites.pools import counted_pads, explicit_pads
from pipeline.passes.rewrites.ranks import fewer_axes
from pipeline.passes.rewrites.resize import equal_resize
from pipeline.passes.rewrites.rewrite import Rewrite, as_pass, nodes
from pipeline.passes.rewrites.shapes import as_reshape, concat_on_channels, gather_i32

REWRITES = (
    Rewrite(name="f32", title="compute in 32-bit floats", edit=compute_in_f32),
    Rewrite(name="constant-clip", title="make Clip's bounds constants", edit=nodes(Clip=constant_bounds), exact=True),
    Rewrite(name="clip-as-max-min", title="write Clip as Relu, or Max and Min",
            edit=nodes(Clip=clip_as_max_min), exact=True, dialect=NNAPI),
    Rewrite(name="pad-as-concat", title="write Pad as Slice and Concat", edit=nodes(Pad=pad_as_concat), exact=True),
    Rewrite(name="equal-resize", title="name Resize's mode by an equal one",
            edit=nodes(Resize=equal_resize), exact=True),
    Rewrite(name="plain-gemm", title="put Gemm's factors and bias into its constants", edit=nodes(Gemm=plain_gemm)),
    Rewrite(name="flat-matmul", title="multiply batches of matrices by one constant as one product",
            edit=nodes(MatMul=flat_matmul)),
    Rewrite(name="einsum-as-matmul", title="write Einsum as one matrix product", edit=nodes(Einsum=einsum_as_matmul)),
    Rewrite(name="explicit-pads", title="write auto_pad and ceil_mode as pads",
            edit=nodes(Conv=explicit_pads, MaxPool=explicit_pads, AveragePool=explicit_pads)),
    Rewrite(name="counted-pads", title="write AveragePool's counted padding as Pad",
            edit=nodes(AveragePool=counted_pads)),
    Rewrite(name="conv-2d", title="write 1-D convolutions as 2-D", edit=nodes(Conv=conv_2d)),
    Rewrite(name="cropped-conv-transpose", title="write ConvTranspose's padding as Slice",
            edit=nodes(ConvTranspose=cropped_conv_transpose)),
    Rewrite(name="scaled-batch-norm", title="write BatchNormalization as Mul and Add",
            edit=nodes(BatchNormalization=scaled_batch_norm)),
    Rewrite(name="reshape", title="write Flatten, Squeeze, Unsqueeze and computed shapes as Reshape",
            edit=nodes(Flatten=as_reshape, Squeeze=as_reshape, Unsqueeze=as_reshape, Reshape=as_reshape), exact=True),
    Rewrite(name="concat-on-channels", title="turn Concat's axis to the channels",
            edit=nodes(Concat=concat_on_channels), exact=True, dialect=COREML_NN),
    Rewrite(name="fewer-axes", title="merge axes around Transpose and Gather of many", edit=fewer_axes, exact=True),
    Rewrite(name="gather-i32", title="give Gather 32-bit indices",
            edit=nodes(Gather=gather_i32), exact=True, dialect=NNAPI),
    Rewrite(name="layer-norm", title="write LayerNormalization by its definition",
            edit=nodes(LayerNormalization=layer_norm)),
    Rewrite(name="group-norm", title="write Instance- and GroupNormalization by their definition",
            edit=nodes(InstanceNormalization=group_norm, GroupNormalization=group_norm)),
    Rewrite(name="activations", title="write HardSigmoid, HardSwish and Gelu (tanh) by their definitions",
            edit=nodes(HardSigmoid=hard_sigmoid, HardSwish=hard_swish, Gelu=gelu_tanh)),
    Rewrite(name="erf-by-exp", title="write Erf and Gelu by a polynomial and Exp, to 1.5e-7",
            edit=nodes(Erf=erf_by_exp, Gelu=erf_by_exp), dialect=NNAPI),
    Rewrite(name="one-input", title="write Neg, Reciprocal, Abs and Softsign by arithmetic",
            edit=nodes(Neg=one_input, Reciprocal=one_input, Abs=one_input, Softsign=one_input)),
    Rewrite(name="prelu-by-relu", title="write PRelu as a difference of two Relu",
            edit=nodes(PRelu=prelu_by_relu), exact=True),
    Rewrite(name="pairwise", title="write Max, Min and Sum of many inputs two at a time",
            edit=nodes(Max=pairwise, Min=pairwise, Sum=pairwise), exact=True),
    Rewrite(name="min-as-max", title="write Min as a negated Max",
            edit=nodes(Min=min_as_max), exact=True, dialect=COREML_MLPROGRAM),
    Rewrite(name="reductions", title="write ReduceL2, ReduceSumSquare and ReduceSum by products and means",
            edit=nodes(ReduceL2=reduction, ReduceSumSquare=reduction, ReduceSum=reduction)),
    Rewrite(name="pool-as-mean", title="write GlobalAveragePool as ReduceMean",
            edit=nodes(GlobalAveragePool=global_pool_as_mean)),
    Rewrite(name="mean-as-pool", title="write ReduceMean over height and width as GlobalAveragePool",
            edit=nodes(ReduceMean=mean_as_global_pool)),
)  # fmt: skip
"""Every rewrite, in the order in which advice tries them."""

PASSES = tuple(as_pass(row) for row in REWRITES)
"""Their rows in the registry of passes."""
