"""What of a model providers take on some processors alone."""

from collections.abc import Iterator

from pipeline.core import abis as core_abis
from pipeline.core import providers as provider_rules
from pipeline.partition.answer import Settings
from pipeline.partition.graph import Graph, named
from pipeline.partition.selectors import activation
from pipeline.partition.units import QUANTIZE, redundant

MAX_POOL_NHWC = 12
"""The version of MaxPool from which on there is a kernel of half precision for channels last."""


def processor_warnings(graph: Graph, settings: Settings, *, optimized_there: bool) -> Iterator[str]:
    """What is otherwise on ARM than on x86, one text a cause (arm64_host.md 5.2, 5.3).

    `optimized_there`: the file is ONNX, and the device optimizes it.
    """
    if settings.provider in BY_UNITS and (clips := clips_by_processor(graph)):
        yield (
            f"{clips}; these claims are for {settings.abi}. Give --abi, or bound it by what the quantized type can "
            "hold, which is the same function"
        )
    pooled = "MaxPool" in graph.operators
    pools = [
        node
        for node in (graph.nodes.values() if settings.abi == core_abis.ARM64 and optimized_there and pooled else ())
        if (node.domain, node.op_type) == ("", "MaxPool")
        and node.since_version < MAX_POOL_NHWC
        and graph.value(node.inputs[0]).dtype == "f16"
    ]
    if pools:
        yield (
            f"{named(pools)} in half precision before opset {MAX_POOL_NHWC}: on cores with half precision the CPU has "
            "no kernel for what level all makes of it, and there is no session (Failed to find kernel for "
            f"com.ms.internal.nhwc.MaxPool). Convert the model to opset {MAX_POOL_NHWC} or later, use level extended, "
            "or ship it in ORT format"
        )


BY_UNITS = (provider_rules.NNAPI, provider_rules.XNNPACK)
"""Providers whose claims depend on what belongs to a quantized group."""


def clips_by_processor(graph: Graph) -> str:
    """Which Relu and Clip nodes belong to a quantized group on ARM or on x86 only, in words; "" for none."""
    clips = []
    for node in graph.nodes.values() if QUANTIZE in graph.operators else ():
        clip = activation(graph, node)
        behind = graph.nodes[graph.out_edges[clip.index][0].consumer] if clip else None
        if clip is None or behind is None or behind.op_type != QUANTIZE:
            continue
        on_arm, on_x86 = (redundant(graph, clip, behind, abi) for abi in (core_abis.ARM64, core_abis.X86_64))
        if on_arm != on_x86:
            clips.append((clip, on_arm))
    if not clips:
        return ""
    member, apart = ("ARM", "x86") if clips[0][1] else ("x86", "ARM")
    return (
        f"{named(clip for clip, _ in clips)} in front of QuantizeLinear: an open or a huge bound makes it part of "
        f"the quantized group on {member} and not on {apart}"
    )
