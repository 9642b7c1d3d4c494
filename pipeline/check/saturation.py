"""Files whose 8-bit sums are wrong on this computer's processor and right on phones.

x86-64 processors with AVX2 and without VNNI add products of u8 and s8 in 16 bits, which saturate; ARM and VNNI add them
in 32 bits (quantization Q.5). ONNX models have a session entry against it, files in ORT format have none: what such a
file gives here cannot show that it is wrong.
"""

import platform
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import msgspec

from pipeline.check.compare import OutputCheck
from pipeline.core.errors import Finding, PipelineError, Severity
from pipeline.model.ort_format import OrtModel, read_artifact

PROCESSOR = Path("/proc/cpuinfo")
VNNI = frozenset({"avx_vnni", "avx512_vnni", "avx512vnni", "amx_int8"})
X86_64 = frozenset({"x86_64", "amd64"})
INTEGER_OPS = frozenset({
    "QLinearConv", "QLinearMatMul", "QGemm", "MatMulInteger", "MatMulIntegerToFloat", "ConvInteger",
    "DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "QAttention",
})  # fmt: skip
"""Operators that add products of 8-bit numbers."""
INT8 = 3
"""TensorProto.INT8."""


@lru_cache
def processor_saturates(facts: Path) -> bool:
    """Whether the processor that a file such as /proc/cpuinfo describes saturates; without one, x86-64 does."""
    if platform.machine().lower() not in X86_64:
        return False
    try:
        lines = facts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return True
    flags = next((set(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), {"avx2"})
    return "avx2" in flags and not flags & VNNI


def saturates_here(file: Path) -> bool:
    """Whether this computer may compute other 8-bit sums for an ORT format file than a phone; False for other files."""
    try:
        return file.suffix.lower() == ".ort" and processor_saturates(PROCESSOR) and adds_products(read_artifact(file))
    except PipelineError:
        return False


def adds_products(model: OrtModel) -> bool:
    """Whether a file has s8 weights and operators that multiply them as integers, or makes such ones when it is loaded.

    Of u8 with u8 no sum saturates: the kernel is another one.
    """
    weights = any(tensor.data_type == INT8 and len(tensor.dims) > 1 for tensor in model.graph.initializers.values())
    integer = any(node.op_type in INTEGER_OPS for node in model.graph.nodes)
    return weights and (integer or bool(model.graph.runtime_optimizations))


def excused(checks: Iterable[OutputCheck], file: Path, cpu: str = "") -> tuple[OutputCheck, ...]:
    """The checks of a file that ran here, those that failed as unknown where this computer cannot show that.

    `cpu` is the one that an emulator played, "" where this computer's own ran: an emulated one adds as a phone does.
    NaN and infinity come of no saturation: such outputs have no error in numbers, and stay failed.
    """
    checks = tuple(checks)
    if cpu or not any(check.failed for check in checks) or not saturates_here(file):
        return checks
    why = "cannot judge on this computer: its processor has no VNNI and saturates 8-bit sums, phones do not"
    excuse = {
        "unknown": True,
        "sqnr_db": msgspec.UNSET,
        "remedy": "measure on a phone, or check on a computer with VNNI",
    }
    return tuple(
        msgspec.structs.replace(check, **excuse, reason=f"{why}; {check.reason}")
        if check.failed and check.max_abs_error is not None
        else check
        for check in checks
    )


def saturation_finding(file: Path) -> Finding:
    """A warning about figures of a file that saturates here."""
    return Finding(
        severity=Severity.WARNING,
        what="8-bit sums saturate on this computer's processor, which has no VNNI",
        where=str(file),
        why="phones and newer processors compute the file exactly, so its accuracy there may be better",
        remedy="measure on a phone, on a computer with VNNI, or the .onnx file that it was made from",
    )
