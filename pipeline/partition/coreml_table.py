"""CoreML's table of operators (ep_rules E.4, what changed by release G.3 and the supplement, part 3).

Which rows MLProgram had before release 1.21 is read off the lists of operators that the wheels 1.19.2 and 1.20.1 hold
(tools/mobile_helpers); their finer checks are taken to be those of 1.21.
"""

from dataclasses import replace

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


Rows = dict[str, Rule | tuple[Rule, ...]]


def _rules(names: str, *rules: Rule) -> Rows:
    return dict.fromkeys(names.split(), rules)


def later_in_mlprogram(names: str, rule: Rule, release: tuple[int, int] = (1, 21)) -> Rows:
    """Rows that NeuralNetwork had already when a release brought them to MLProgram."""
    return _rules(names, replace(rule, formats=ONLY_NN, before=release), replace(rule, formats=BOTH, release=release))


ELEMENTWISE: Table = {
    **_rules("Relu LeakyRelu Sigmoid Tanh", Rule(formats=BOTH, since=6, types=PLAIN)),
    "Gelu": Rule(formats=ONLY_MLP, since=6, types=PLAIN, release=(1, 21)),
    "Elu": Rule(formats=ONLY_MLP, since=6, types=PLAIN, release=(1, 24)),
    **_rules("Exp Softplus", Rule(formats=ONLY_MLP, types=PLAIN, release=(1, 24))),
    "HardSigmoid": Rule(formats=BOTH, since=6, types=FLOAT, release=(1, 26)),
    "QuickGelu": Rule(formats=ONLY_MLP, types=PLAIN, release=(1, 26)),
    **later_in_mlprogram("PRelu", Rule(since=6, types=PLAIN, checks=(check.prelu,))),
    **later_in_mlprogram("Sqrt Reciprocal", Rule(types=PLAIN), (1, 20)),
    **_rules("Erf Round", Rule(formats=ONLY_MLP, types=PLAIN, release=(1, 21))),
    **_rules("Ceil Sin Cos", Rule(formats=ONLY_MLP, types=PLAIN, release=(1, 27))),
    **_rules("Add Sub Mul Div", Rule(formats=BOTH, since=7, types=PLAIN)),
    "Pow": Rule(formats=BOTH, since=7, types=(types.same_types, types.plain)),
    "Max": Rule(formats=ONLY_MLP, since=7, types=PLAIN, release=(1, 21)),
    "Clip": Rule(formats=BOTH, types=PLAIN, checks=(check.clip,)),
    **later_in_mlprogram("Softmax", Rule(types=PLAIN, checks=(check.softmax,))),
    "Identity": Rule(formats=BOTH, types=PLAIN, release=(1, 27)),
    "Where": Rule(formats=ONLY_MLP, types=(types.where,), release=(1, 28)),
    "And": Rule(formats=ONLY_MLP, types=(types.both_bool,), release=(1, 28)),
}

LAYERS: Table = {
    **later_in_mlprogram("BatchNormalization", Rule(since=7, types=PLAIN, checks=(check.batch_normalization,))),
    **_rules(
        "InstanceNormalization LayerNormalization GroupNormalization",
        Rule(formats=ONLY_MLP, types=(types.normalization,), checks=check.NORMALIZATION, release=(1, 21)),
    ),
    "LRN": Rule(formats=ONLY_NN, types=PLAIN, checks=(rank(0, 3, 4),)),
    **later_in_mlprogram("ReduceMean ReduceSum", Rule(types=PLAIN, checks=(check.AXES_CONSTANT, check.noop_axes))),
    **_rules(
        "ReduceMax ReduceMin ReduceProd",
        Rule(formats=ONLY_MLP, types=PLAIN, checks=(check.AXES_CONSTANT,), release=(1, 21)),
    ),
    **later_in_mlprogram("ArgMax", Rule(types=PLAIN, checks=(check.argmax,))),
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
    **later_in_mlprogram("Gather", Rule(types=(types.gather,), checks=(index.gather,)), (1, 22)),
    "GatherND": Rule(formats=ONLY_MLP, types=(types.gather_nd,), checks=(index.gather_nd,), release=(1, 27)),
    **later_in_mlprogram("Pad", Rule(since=11, types=(types.pad,), checks=(reshape.pad,)), (1, 26)),
    "Reshape": Rule(formats=BOTH, since=5, types=PLAIN, checks=(reshape.reshape,)),
    **later_in_mlprogram("Shape", Rule(types=(types.shape,), checks=(check.shape,))),
    "Slice": Rule(formats=BOTH, since=10, types=(types.slice_,), checks=(index.slice_,)),
    **_rules(
        "Split",
        Rule(formats=BOTH, since=13, types=PLAIN, checks=(index.split,), before=(1, 27)),
        Rule(formats=BOTH, types=PLAIN, checks=(index.split,), release=(1, 27)),
    ),
    **later_in_mlprogram("Squeeze", Rule(types=PLAIN, checks=(reshape.SQUEEZE,))),
    "Tile": Rule(formats=BOTH, types=(types.tile,), checks=(reshape.tile,), release=(1, 27)),
    "Transpose": Rule(formats=BOTH, types=PLAIN),
    "Unsqueeze": Rule(formats=ONLY_MLP, types=PLAIN, checks=(reshape.unsqueeze,), release=(1, 21)),
}
