"""Which of ONNX Runtime's optimizers each session of a splice may run.

Names are those of `disabled_optimizers` in releases 1.21 to 1.31 (ep_rules H.3, H.4.1, H.4.6); a release ignores the
names that it does not know.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pipeline.core.variant import Level
from pipeline.model.onnx_model import LeanModel

MATMUL_ADD = "MatMulAddFusion"
"""One name for two passes: that of level basic keeps attention patterns, the later one (from 1.23) asks no provider."""
FINAL_CLEANUP = "QDQFinalCleanupTransformer"
LEVEL_1 = frozenset({
    "Level1_RuleBasedTransformer", "DoubleQDQPairsRemover", "ConstantSharing", "CommonSubexpressionElimination",
    "ConstantFolding", "ReshapeFusion", "FreeDimensionOverrideTransformer", "GeluFusionL1", "LayerNormFusionL1",
    "QDQPropagationTransformer", "WeightBiasQuantization", "EnsureUniqueDQForNodeUnit", "TransposeOptimizer",
    "WhereDummyDq",
})  # fmt: skip
"""Level basic but for MATMUL_ADD. It ran before the claims, and is not idempotent on a graph that is cut."""
LEVEL_2 = frozenset({
    "Level2_RuleBasedTransformer", "TransposeOptimizer_CPUExecutionProvider", "QDQS8ToU8Transformer",
    "QDQSelectorActionTransformer", "GemmActivationFusion", "MatMulIntegerToFloatFusion", "DynamicQuantizeMatMulFusion",
    "ConvActivationFusion", "GeluFusionL2", "LayerNormFusionL2", "SimplifiedLayerNormFusion", "AttentionFusion",
    "EmbedLayerNormFusion", "GatherSliceToSplitFusion", "GatherToSliceFusion", "MatmulTransposeFusion",
    "BiasGeluFusion", "SkipLayerNormFusion", "BiasSkipLayerNormFusion", "FastGeluFusion", "QuickGeluFusion",
    "BiasSoftmaxFusion", "MatMulScaleFusion", "MatMulNBitsFusion", "DQMatMulNBitsFusion", "MatMulNBitsMlpFusion",
    "MatMulNBitsQkvFusion", "GroupQueryAttentionFusion", "GroupQueryAttentionPreNormFusion",
    "SliceConcatToSpaceToDepthFusion", "MatMulActivationFusion",
})  # fmt: skip
"""Level extended but for MATMUL_ADD and FINAL_CLEANUP."""
MATMUL_ADD_SINCE = (1, 23)
"""Since when level extended has a MATMUL_ADD of its own, which fuses claimed nodes too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """One session: its level, the optimizers it must not run, and whether shared DequantizeLinear nodes stay shared."""

    level: Level
    left_out: frozenset[str]
    keep_shared_dq: bool = False


Run = Callable[[LeanModel, Passes], LeanModel]
"""Optimizes a model for the CPU in a session of the installed onnxruntime; ModelError when it refuses."""


def remainder(level: Level, installed: tuple[int, int]) -> Passes:
    """For what the CPU runs: the wanted level without those below it that ran before."""
    if level is Level.BASIC:
        return Passes(level=level, left_out=LEVEL_1 | {MATMUL_ADD})
    early = frozenset({MATMUL_ADD}) if installed < MATMUL_ADD_SINCE else frozenset()
    return Passes(level=level, left_out=LEVEL_1 | {FINAL_CLEANUP} | early)


def layout_only(level: Level) -> Passes:
    """For a remainder that level extended has been through: what the levels above add to it."""
    return Passes(level=level, left_out=LEVEL_1 | LEVEL_2 | {MATMUL_ADD, FINAL_CLEANUP}, keep_shared_dq=True)


def claimed_pairs() -> Passes:
    """For what is claimed: only the one fusion of level extended that asks for no provider."""
    return Passes(level=Level.EXTENDED, left_out=LEVEL_1 | LEVEL_2 | {FINAL_CLEANUP})
