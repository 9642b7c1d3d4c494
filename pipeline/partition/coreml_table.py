"""CoreML's table of operators (ep_rules E.4, what changed by release G.3 and the supplement, part 3)."""

from pipeline.partition import coreml_checks as check
from pipeline.partition import coreml_conv as conv
from pipeline.partition import coreml_index as index
from pipeline.partition import coreml_reshape as reshape
from pipeline.partition import coreml_types as types
from pipeline.partition.checks import rank
from pipeline.partition.coreml_resize import resize
from pipeline.partition.coreml_types import BOTH, MLP, NN
from pipeline.partition.rules import Rule, Table

PLAIN = (types.plain,)
FLOAT = (types.float_or_wide,)
ONLY_NN = (NN,)
ONLY_MLP = (MLP,)


def _rules(names: str, rule: Rule) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


ELEMENTWISE: Table = {
    **_rules("Relu LeakyRelu Sigmoid Tanh", Rule(formats=BOTH, since=6, types=PLAIN)),
    "Gelu": Rule(formats=ONLY_MLP, since=6, types=PLAIN),
    "Elu": Rule(formats=ONLY_MLP, since=6, types=PLAIN, release=(1, 24)),
    **_rules("Exp Softplus", Rule(formats=ONLY_MLP, types=PLAIN, release=(1, 24))),
    "HardSigmoid": Rule(formats=BOTH, since=6, types=FLOAT, release=(1, 26)),
    "QuickGelu": Rule(formats=ONLY_MLP, types=PLAIN, release=(1, 26)),
    "PRelu": Rule(formats=BOTH, since=6, types=PLAIN, checks=(check.prelu,)),
    **_rules("Sqrt Reciprocal", Rule(formats=BOTH, types=PLAIN)),
    **_rules("Erf Round", Rule(formats=ONLY_MLP, types=PLAIN)),
    **_rules("Ceil Sin Cos", Rule(formats=ONLY_MLP, types=PLAIN, release=(1, 27))),
    **_rules("Add Sub Mul Div", Rule(formats=BOTH, since=7, types=PLAIN)),
    "Pow": Rule(formats=BOTH, since=7, types=(types.same_types, types.plain)),
    "Max": Rule(formats=ONLY_MLP, since=7, types=PLAIN),
    "Clip": Rule(formats=BOTH, types=PLAIN, checks=(check.clip,)),
    "Softmax": Rule(formats=BOTH, types=PLAIN, checks=(check.softmax,)),
    "Identity": Rule(formats=BOTH, types=PLAIN, release=(1, 27)),
    "Where": Rule(formats=ONLY_MLP, types=(types.where,), release=(1, 28)),
    "And": Rule(formats=ONLY_MLP, types=(types.both_bool,), release=(1, 28)),
}

LAYERS: Table = {
    "BatchNormalization": Rule(formats=BOTH, since=7, types=PLAIN, checks=(check.batch_normalization,)),
    **_rules(
        "InstanceNormalization LayerNormalization GroupNormalization",
        Rule(formats=ONLY_MLP, types=(types.normalization,), checks=check.NORMALIZATION),
    ),
    "LRN": Rule(formats=ONLY_NN, types=PLAIN, checks=(rank(0, 3, 4),)),
    **_rules("ReduceMean ReduceSum", Rule(formats=BOTH, types=PLAIN, checks=(check.AXES_CONSTANT, check.noop_axes))),
    **_rules("ReduceMax ReduceMin ReduceProd", Rule(formats=ONLY_MLP, types=PLAIN, checks=(check.AXES_CONSTANT,))),
    "ArgMax": Rule(formats=BOTH, types=PLAIN, checks=(check.argmax,)),
    "Conv": Rule(formats=BOTH, types=PLAIN, checks=(conv.conv,)),
    "FusedConv": Rule(formats=ONLY_MLP, types=FLOAT, checks=(conv.fused_conv,), release=(1, 27)),
    "ConvTranspose": Rule(formats=ONLY_MLP, types=PLAIN, checks=(conv.conv_transpose,)),
    "Gemm": Rule(formats=BOTH, types=PLAIN, checks=(check.gemm,)),
    "MatMul": Rule(formats=BOTH, types=PLAIN, checks=(check.matmul,)),
    "GridSample": Rule(formats=ONLY_MLP, types=PLAIN, checks=(check.grid_sample,)),
    **_rules("AveragePool MaxPool", Rule(formats=BOTH, types=PLAIN, checks=(check.pool,))),
    **_rules("GlobalAveragePool GlobalMaxPool", Rule(formats=BOTH, types=PLAIN, checks=(rank(0, 4, 4),))),
    "DepthToSpace": Rule(formats=BOTH, types=PLAIN, checks=(check.depth_to_space,)),
    "Resize": Rule(formats=BOTH, since=11, types=PLAIN, checks=(resize,)),
}

SHAPES: Table = {
    "Concat": Rule(formats=BOTH, types=PLAIN, checks=(check.concat,)),
    "Flatten": Rule(formats=ONLY_NN, types=PLAIN, checks=(rank(0, 1, 5),)),
    "Gather": (
        Rule(formats=ONLY_NN, types=(types.gather,), checks=(index.gather,), before=(1, 22)),
        Rule(formats=BOTH, types=(types.gather,), checks=(index.gather,), release=(1, 22)),
    ),
    "GatherND": Rule(formats=ONLY_MLP, types=(types.gather_nd,), checks=(index.gather_nd,), release=(1, 27)),
    "Pad": (
        Rule(formats=ONLY_NN, since=11, types=(types.pad,), checks=(reshape.pad,), before=(1, 26)),
        Rule(formats=BOTH, since=11, types=(types.pad,), checks=(reshape.pad,), release=(1, 26)),
    ),
    "Reshape": Rule(formats=BOTH, since=5, types=PLAIN, checks=(reshape.reshape,)),
    "Shape": Rule(formats=BOTH, types=(types.shape,), checks=(check.shape,)),
    "Slice": Rule(formats=BOTH, since=10, types=(types.slice_,), checks=(index.slice_,)),
    "Split": (
        Rule(formats=BOTH, since=13, types=PLAIN, checks=(index.split,), before=(1, 27)),
        Rule(formats=BOTH, types=PLAIN, checks=(index.split,), release=(1, 27)),
    ),
    "Squeeze": Rule(formats=BOTH, types=PLAIN, checks=(reshape.SQUEEZE,)),
    "Tile": Rule(formats=BOTH, types=(types.tile,), checks=(reshape.tile,), release=(1, 27)),
    "Transpose": Rule(formats=BOTH, types=PLAIN),
    "Unsqueeze": Rule(formats=ONLY_MLP, types=PLAIN, checks=(reshape.unsqueeze,)),
}
