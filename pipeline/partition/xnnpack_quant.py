"""What XNNPACK asks of quantized inputs and outputs (ep_rules F.2, `QT`), and of quantized units by operator."""

from pipeline.partition.answer import Refusal
from pipeline.partition.checks import listed, show
from pipeline.partition.rules import Case
from pipeline.partition.units import UnitValue

CONV_TYPES = {("u8", "u8", "u8"), ("s8", "s8", "s8"), ("s8", "s8pc", "s8")}
"""Kinds of input, weight and output that Conv takes; s8pc has a scale for each output channel."""

REMEDY = "quantize activations and weights alike: u8 with u8, or i8 with i8 (weights per channel if you like)"


def kind(case: Case, value: UnitValue) -> str | None:
    """u8, s8 or s8pc (one scale for each entry of dimension 0); None for what XNNPACK cannot use."""
    found, quant = case.graph.value(value.name), value.quant
    if quant is None or found.dtype is None or found.shape is None:
        return None
    scale = case.graph.constant(quant.scale)
    zero = case.graph.constant(quant.zero_point) if quant.zero_point else None
    if scale is None or (zero is not None and zero.dtype != found.dtype):
        return None
    scales = scale.dims[0] if scale.dims else 1
    zeros = 0 if zero is None else zero.dims[0] if zero.dims else 1
    if found.dtype == "u8":
        return "u8" if quant.zero_point is None or scales == zeros == 1 else None
    if found.dtype != "i8" or zeros not in (0, scales):
        return None
    if scales == 1:
        return "s8"
    return "s8pc" if found.shape and found.shape[0] == scales else None


def _kinds(case: Case) -> tuple[str | None, str | None]:
    """The kinds of the first input and the first output."""
    return kind(case, case.unit.inputs[0]), kind(case, case.unit.outputs[0])


def _refused(case: Case, what: str) -> Refusal:
    return Refusal("quant", f"quantized {case.node.op_type}: {what}", REMEDY)


def conv(case: Case) -> Refusal | None:
    """The combinations of types that XNNPACK has kernels for; a constant i32 bias but for per-channel weights."""
    if not case.unit.group:
        return None
    found = kind(case, case.unit.inputs[0]), kind(case, case.unit.inputs[1]), kind(case, case.unit.outputs[0])
    if found not in CONV_TYPES:
        words = ", ".join(name or "not usable" for name in found)
        return _refused(case, f"input, weight and output are {words}")
    if found[1] != "s8pc" and listed(2)(case) and (case.dtype(2) != "i32" or case.constant(2) is None):
        return _refused(case, f"the bias {show(case, 2)} is no constant of type i32")
    return None


def _same(case: Case, taken: tuple[str, ...]) -> Refusal | None:
    first, last = _kinds(case)
    if first == last and first in taken:
        return None
    return _refused(case, f"input is {first or 'not usable'} and output {last or 'not usable'}")


def max_pool(case: Case) -> Refusal | None:
    """u8 or i8 on both sides."""
    return _same(case, ("u8", "s8")) if case.unit.group else None


def average_pool(case: Case) -> Refusal | None:
    """u8 on both sides; no longer taken since release 1.24."""
    if not case.unit.group:
        return None
    if case.settings.ort_release >= (1, 24):
        return _refused(case, "not taken since release 1.24")
    return _same(case, ("u8",))


def softmax(case: Case) -> Refusal | None:
    """u8 on both sides, and the one scale that XNNPACK's kernel has."""
    if not case.unit.group:
        return None
    refusal = _same(case, ("u8",))
    quant = case.unit.outputs[0].quant
    if refusal is not None or quant is None:
        return refusal
    scale = case.graph.constant(quant.scale)
    zero = case.graph.constant(quant.zero_point) if quant.zero_point else None
    if scale is not None and abs(scale.numbers()[0] - 1 / 256) > 1e-4:
        return _refused(case, f"the output's scale is {scale.numbers()[0]:g}, not 1/256")
    if zero is not None and zero.numbers()[0] != 0:
        return _refused(case, f"the output's zero point is {zero.numbers()[0]}, not 0")
    return None
