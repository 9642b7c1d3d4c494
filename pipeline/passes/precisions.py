"""Precisions by name: the passes that give a float model one, the providers that it suits, and recipes by provider.

A precision's name is a part of a variant's name (`basic-fixed-u8s8nnapi`), so it has no hyphen and is no provider's.
The tables of docs/facts/quantization.md say what every part rests on; docs/reference/precisions.md has what the rules
claim of each.
"""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from device_runner import providers as runner_providers
from pipeline.config import tables as config_tables
from pipeline.core import providers as provider_rules
from pipeline.core import variant as core_variant
from pipeline.core.errors import ConfigError

AUTO = "auto"
"""Asks for the best precision of each provider of the targets."""

COREML = (provider_rules.COREML_NN, provider_rules.COREML_MLPROGRAM)

PER_CHANNEL_SINCE_API_LEVEL = 29
"""NNAPI's first feature level with weights of a scale for each channel (ep_rules D.3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """A form of weights and values that passes give a float model."""

    name: str
    title: str
    steps: tuple[config_tables.Step, ...]

    @property
    def needs_data(self) -> bool:
        """Whether a pass of it needs calibration data."""
        from pipeline.passes.registry import find_pass

        return any(find_pass(step.do).needs_data for step in self.steps)

    @property
    def by_search(self) -> bool:
        """Whether what it quantizes depends on the data: a search decides."""
        return any(step.do == "mixed-precision" for step in self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The precision that suits one provider, in the newest systems at least (`OLDER`)."""

    name: str
    provider: str
    title: str
    precision: str


def _static(
    activations: str, weights: str, *, per_channel: bool = False, **options: Any
) -> tuple[config_tables.Step, ...]:
    quantize = {"activations": activations, "weights": weights, "per_channel": per_channel, **options}
    return (config_tables.Step(do="static-qdq", options=quantize),)


_NNAPI_OPS = ["Conv", "Relu", "Clip", "Add", "Gemm"]
_XNNPACK_OPS = ["Conv", "ConvTranspose", "Relu", "Clip", "MaxPool", "Resize"]

_ROWS = (
    Precision(
        name="fp16",
        title="weights and values in half precision; inputs and outputs stay float",
        steps=(config_tables.Step(do="fp16", options={"keep_io": True}),),
    ),
    Precision(
        name="fp16gpu",
        title="as fp16, with the parts float whose sums in 16 bits on a GPU would change the outputs",
        steps=(config_tables.Step(do="fp16-gpu", options={"keep_io": True}),),
    ),
    Precision(
        name="dyn8",
        title="int8 weights, values quantized as the model runs; needs no calibration data",
        steps=(config_tables.Step(do="dynamic-int8"),),
    ),
    Precision(
        name="u8u8",
        title="QDQ, u8 values and weights per tensor",
        steps=_static("u8", "u8"),
    ),
    Precision(
        name="u8s8",
        title="QDQ, u8 values and s8 weights per tensor",
        steps=_static("u8", "s8"),
    ),
    Precision(
        name="s8s8",
        title="QDQ, s8 values and weights per tensor",
        steps=_static("s8", "s8"),
    ),
    Precision(
        name="u8u8pc",
        title="QDQ, u8 values and weights, a scale for each output channel",
        steps=_static("u8", "u8", per_channel=True),
    ),
    Precision(
        name="u8s8pc",
        title="QDQ, u8 values and s8 weights, a scale for each output channel",
        steps=_static("u8", "s8", per_channel=True),
    ),
    Precision(
        name="s8s8pc",
        title="QDQ, s8 values and weights, a scale for each output channel",
        steps=_static("s8", "s8", per_channel=True),
    ),
    Precision(
        name="u16s8pc",
        title="QDQ, u16 values and s8 weights, a scale for each output channel: more exact, slower",
        steps=_static("u16", "s8", per_channel=True),
    ),
    # One partition on every chip, those without floats too: no operator is left float (docs/npu.md).
    Precision(
        name="u8s8qnn",
        title="QDQ for Snapdragon NPUs: every operator in u8, s8 weights per channel, those of Gemm per tensor",
        steps=_static("u8", "s8", per_channel=True, dense_weights="s8", every_type=True),
    ),
    Precision(
        name="u16s8qnn",
        title="the same with u16 values: more exact",
        steps=_static("u16", "s8", per_channel=True, dense_weights="s8", every_type=True),
    ),
    Precision(
        name="u8u8op",
        title="QOperator (QLinearConv, QLinearMatMul), u8: for libraries from before QDQ",
        steps=(config_tables.Step(do="qoperator", options={"activations": "u8", "weights": "u8"}),),
    ),
    Precision(
        name="w8",
        title="8-bit weights of MatMul in blocks (MatMulNBits), float values",
        steps=(config_tables.Step(do="weight-only", options={"bits": 8}),),
    ),
    Precision(
        name="w4",
        title="4-bit weights of MatMul in blocks (MatMulNBits), float values",
        steps=(config_tables.Step(do="weight-only", options={"bits": 4}),),
    ),
    # quantization Q.1: Relu and Clip are listed, or a lone Clip cuts every layer; weights of Gemm and MatMul are u8
    # per tensor, because NNAPI's model builder refuses i8 ones; Sigmoid, Split, Slice, pools, Flatten, Gather and Sub
    # are refused as groups between DequantizeLinear and QuantizeLinear, so they stay float.
    Precision(
        name="u8s8nnapi",
        title="QDQ for NNAPI from API level 29 on: u8 values, s8 weights per channel, u8 weights of Gemm",
        steps=_static("u8", "s8", per_channel=True, op_types=_NNAPI_OPS, dense_weights="u8"),
    ),
    # quantization Q.1: API levels 27 and 28 have no scale for each channel.
    Precision(
        name="u8u8nnapi",
        title="QDQ for NNAPI at API levels 27 and 28: u8 values and weights per tensor",
        steps=_static("u8", "u8", op_types=_NNAPI_OPS),
    ),
    # quantization Q.1: XNNPACK has Gemm and MatMul in float only; s8 with s8 is the only pair that it has per channel.
    Precision(
        name="s8s8xnnpack",
        title="QDQ for XNNPACK: s8 values, s8 weights per channel; Gemm and MatMul stay float",
        steps=_static("s8", "s8", per_channel=True, op_types=_XNNPACK_OPS),
    ),
)

_SEARCHED = {
    "mixnnapi": ("u8s8nnapi", provider_rules.NNAPI),
    "mixu8u8nnapi": ("u8u8nnapi", provider_rules.NNAPI),
    "mixxnnpack": ("s8s8xnnpack", provider_rules.XNNPACK),
    "mixu8s8pc": ("u8s8pc", ""),
    "mixs8s8pc": ("s8s8pc", ""),
}
"""Precisions that begin with another one and leave float what costs most accuracy (quantization Q.8), each with the
provider whose partitions count."""


def _searched(name: str, begin: Precision, provider: str) -> Precision:
    (step,) = begin.steps
    options = {**step.options, "provider": provider} if provider else step.options
    return Precision(
        name=name,
        title=f"as {begin.name}, with the operator types and layers that cost most accuracy left float",
        steps=(config_tables.Step(do="mixed-precision", options=options),),
    )


OLDER = {"mixnnapi": "mixu8u8nnapi", "int8-nnapi": "u8u8nnapi"}
"""What precisions and recipes whose name has no types stand for below PER_CHANNEL_SINCE_API_LEVEL."""

_BY_NAME = {row.name: row for row in _ROWS}
PRECISIONS: Mapping[str, Precision] = {
    **_BY_NAME,
    **{name: _searched(name, _BY_NAME[begin], provider) for name, (begin, provider) in _SEARCHED.items()},
}
"""Every precision by its name, in the order of the reference."""

_RECIPE_ROWS = (
    Recipe(
        name="int8-nnapi",
        provider=provider_rules.NNAPI,
        title="partitions of a float model, with as many compute nodes",
        precision="u8s8nnapi",
    ),
    Recipe(
        name="int8-xnnpack",
        provider=provider_rules.XNNPACK,
        title="every convolution in XNNPACK",
        precision="s8s8xnnpack",
    ),
    # What Qualcomm's own recipes use, as they are in one partition on every chip that was tried (docs/npu.md).
    Recipe(name="qnn", provider=provider_rules.QNN, title="one partition on a Snapdragon's NPU", precision="u8s8qnn"),
    Recipe(name="qnn16", provider=provider_rules.QNN, title="the same, more exact", precision="u16s8qnn"),
    Recipe(
        name="coreml-fp16",
        provider=provider_rules.COREML_MLPROGRAM,
        title="half the size; CoreML claims no quantized operator",
        precision="fp16",
    ),
    # webgpu W.0.5: float, fp16 and weights of few bits; never quantized values.
    Recipe(
        name="gpu",
        provider=provider_rules.WEBGPU,
        title="half the size, where the phone's GPU computes in fp16",
        precision="fp16gpu",
    ),
    Recipe(name="gpu8", provider=provider_rules.WEBGPU, title="8-bit weights of MatMul: transformers", precision="w8"),
    Recipe(
        name="gpu4", provider=provider_rules.WEBGPU, title="4-bit weights of MatMul: large transformers", precision="w4"
    ),
    # quantization Q.1: the quantizer's own documentation advises s8s8 on ARM.
    Recipe(name="int8", provider=runner_providers.CPU, title="int8 kernels of ARM processors", precision="s8s8pc"),
    # quantization Q.1: u8s8 is exact with VNNI, and with session.x64quantprecision without it.
    Recipe(
        name="int8-x86_64", provider=runner_providers.CPU, title="int8 kernels of x86-64 processors", precision="u8s8pc"
    ),
)

RECIPES: Mapping[str, Recipe] = {row.name: row for row in _RECIPE_ROWS}
"""Recipes by their names; a config may use them as precisions."""


def unsuited(form: str, provider: str) -> str:
    """Why a form, by its types as in a precision's name, is not for a provider; "" where nothing speaks against it."""
    rules = provider_rules.PROVIDER_RULES.get(provider)
    reasons = rules.unsuited.items() if rules else ()
    return next((why for pattern, why in reasons if re.fullmatch(pattern, form)), "")


PLAIN_NAMES = (core_variant.OWN_PRECISION, "fp16", "int8", "int8-nnapi", AUTO)
"""What texts name first: enough for most."""

CANDIDATES: Mapping[str, tuple[str, ...]] = {
    **{name: rules.candidates for name, rules in provider_rules.PROVIDER_RULES.items()},
    "cpu-arm64": ("s8s8pc", "dyn8"),
    "cpu-x86_64": ("u8s8pc", "dyn8"),
}
"""What `auto` tries for each provider, its recipe first: that wins where they are equal.

On the CPU static and dynamic quantization are both kept where there are calibration data: transformers often keep their
accuracy in the dynamic one alone, convolutions are faster in the static one.
"""


_INT8 = "8 bits: int8 for the CPU of phones, int8-nnapi for NNAPI, auto if you are not sure"
_MEANT = {
    **dict.fromkeys(("uint8", "i8", "s8", "u8", "8bit", "quantized", "qdq"), _INT8),
    **dict.fromkeys(("float16", "half", "f16"), "half precision is called fp16"),
    **dict.fromkeys(("int4", "uint4", "4bit"), "4-bit weights are called w4"),
    **dict.fromkeys(("float32", "fp32", "f32"), f"the model as it is is called {core_variant.OWN_PRECISION}"),
}
"""Usual words that name no precision, with what to take."""


def common_name(name: str) -> str:
    """What a precision is usually called, with its own name: int8 (s8s8pc). "" for a model's own; others as they are.

    Every precision has one step, which says it.
    """
    if name not in PRECISIONS:
        return name
    (step,) = PRECISIONS[name].steps
    usual = {
        "fp16": "fp16",
        "fp16-gpu": "fp16",
        "dynamic-int8": "dynamic int8",
        "qoperator": "int8",
        "weight-only": f"{step.options.get('bits')}-bit weights",
        "mixed-precision": "int8, partly float",
        "static-qdq": "int8 with int16 values" if step.options.get("activations") == "u16" else "int8",
    }[step.do]
    return usual if usual == name else f"{usual} ({name})"


def resolve_precision(name: str, api_level: int | None = None, where: str = "") -> str:
    """The precision that a name means at NNAPI's API level: "" for the model's own; recipes are names, too.

    ConfigError for a name that there is not, with the nearest one. `auto` is left as it is.
    """
    if name in (core_variant.OWN_PRECISION, ""):
        return ""
    if name in OLDER and api_level is not None and api_level < PER_CHANNEL_SINCE_API_LEVEL:
        return OLDER[name]
    if name in RECIPES:
        return RECIPES[name].precision
    if name in PRECISIONS or name == AUTO:
        return name
    names = list(dict.fromkeys([*PLAIN_NAMES, *RECIPES, *PRECISIONS]))
    close = difflib.get_close_matches(name, names, n=1)
    remedy = f"did you mean {close[0]!r}?" if close else f"one of: {', '.join(names)}"
    remedy = _MEANT.get(name.lower(), remedy)
    raise ConfigError(f"there is no precision {name!r}", where=where, remedy=remedy)


def resolve_precisions(names: Iterable[str], api_level: int | None = None, where: str = "") -> tuple[str, ...]:
    """`resolve_precision` for several names, each precision once, in their order."""
    return tuple(dict.fromkeys(resolve_precision(name, api_level, where) for name in names))


def _by_api_level(provider: object) -> bool:
    rules = provider_rules.PROVIDER_RULES.get(str(provider))
    return rules is not None and rules.by_api_level


def steps_at(name: str, api_level: int | None, keep_float: Sequence[str] = ()) -> tuple[config_tables.Step, ...]:
    """The steps of a precision; a search for NNAPI counts partitions at the API level, 27 to 31 (None: the newest).

    `keep_float` names nodes that stay float: every pass of a precision can leave nodes out.
    """
    kept = {"exclude": list(keep_float)} if keep_float else {}
    steps = []
    for step in PRECISIONS[name].steps:
        level = (
            {"api_level": api_level} if _by_api_level(step.options.get("provider")) and api_level is not None else {}
        )
        steps.append(replace(step, options=step.options | level | kept))
    return tuple(steps)


def candidates(provider: str, api_level: int | None = None) -> tuple[str, ...]:
    """What `auto` tries for a provider, best first; nothing for one that no rules are known of."""
    per_channel = api_level is None or api_level >= PER_CHANNEL_SINCE_API_LEVEL
    return tuple(name for name in CANDIDATES.get(provider, ()) if per_channel or name != "u8s8nnapi")
