"""The fixes that advice tries: which may help which provider, and why one does not apply. What each does is a pass."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pipeline.core import providers
from pipeline.core.providers import PROVIDER_RULES
from pipeline.model.onnx_model import LeanModel
from pipeline.partition.answer import Optimize
from pipeline.partition.judge import PartitionRequest
from pipeline.passes import dimensions, inputs
from pipeline.passes.base import NotApplicable, Options, Pass, PassContext
from pipeline.passes.opset import converted
from pipeline.passes.rewrites.facts import GraphFacts
from pipeline.passes.rewrites.rewrite import Edit
from pipeline.passes.rewrites.table import REWRITES

if TYPE_CHECKING:
    from onnx import ModelProto

Change = Callable[[PartitionRequest], PartitionRequest | None]
"""Other settings for the same model."""

EVERY = frozenset(PROVIDER_RULES)
NNAPI = frozenset({providers.NNAPI})
COREML = frozenset({providers.COREML_NN, providers.COREML_MLPROGRAM})
COREML_NN = frozenset({providers.COREML_NN})
MLPROGRAM = frozenset({providers.COREML_MLPROGRAM})


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
    providers: frozenset[str] = EVERY


def other_format(request: PartitionRequest) -> PartitionRequest | None:
    """CoreML's other model format."""
    formats = {providers.COREML_NN: providers.COREML_MLPROGRAM, providers.COREML_MLPROGRAM: providers.COREML_NN}
    to = formats.get(request.settings.provider)
    if to is None:
        return None
    return msgspec.structs.replace(request, settings=msgspec.structs.replace(request.settings, provider=to))


def level_basic(request: PartitionRequest) -> PartitionRequest | None:
    """Optimization level basic before the provider is asked."""
    if request.optimize is Optimize.BASIC:
        return None
    return msgspec.structs.replace(request, optimize=Optimize.BASIC)


ROWS = {row.name: row for row in REWRITES}


def _rewrite(name: str, *, absent: str, providers: frozenset[str] = EVERY) -> Fix:
    """The fix that is a rewrite."""
    row = ROWS[name]
    return Fix(name=name, title=row.title, edit=row.edit, exact=row.exact, absent=absent, providers=providers)


def _through(one: Pass, options: Callable[[GraphFacts], Options]) -> Edit:
    """The edit that is a pass over the message alone."""

    def edit(model: "ModelProto", known: GraphFacts) -> "ModelProto | None":
        lean = LeanModel(proto=model, folder=Path(), weights={})
        try:
            return one.apply(lean, options(known), PassContext(folder=Path(), where="the model")).proto
        except NotApplicable:
            return None

    return edit


def _constant_initializers(model: "ModelProto", known: GraphFacts) -> "ModelProto | None":
    """Before IR version 4 every initializer is listed as an input, and is a constant to providers all the same."""
    if model.ir_version < inputs.OVERRIDABLE_SINCE_IR:
        return None
    return _through(inputs.PASS, lambda _: Options())(model, known)


def _opset(version: int, *, providers: frozenset[str] = EVERY) -> Fix:
    """The fix that is another opset, older ones too: the trial shows whether ONNX's converter can.

    Softmax of opset 11 and before may have any rank and axis for NNAPI (ep_rules D.4); 13 is the first whose Split
    NNAPI and CoreML take, 17 the newest before reductions, Pad, Resize and Split changed, 21 the newest that all
    supported releases take.
    """

    def edit(model: "ModelProto", known: GraphFacts) -> "ModelProto | None":
        return None if known.opset == version else converted(model, version)

    name = f"opset-{version}"
    title, absent = f"convert to opset {version}", f"it is opset {version}"
    return Fix(name=name, title=title, edit=edit, absent=absent, providers=providers)


MODEL_FIXES = (
    Fix(name="fixed-dimensions", title="fix open dimensions of the inputs", exact=True,
        edit=_through(dimensions.PASS, lambda known: dimensions.DimensionOptions(sizes=dict(known.sizes), rest=1)),
        absent="every input dimension has a size"),
    Fix(name="constant-initializers", title="take initializers out of the graph's inputs", exact=True,
        edit=_constant_initializers, absent="no initializer can be overridden as an input"),
    _rewrite("f32", absent="nothing is f16, or bodies, functions or weights in other files keep it from being changed"),
    _rewrite("constant-clip", absent="no refused Clip has bounds that are computed from constants"),
    _rewrite("clip-as-max-min", absent="no refused Clip has known bounds", providers=NNAPI),
    _rewrite("pad-as-concat", absent="no refused Pad has known sizes and pads, none negative"),
    _rewrite("equal-resize", absent="no refused Resize has an equal mode that providers take"),
    _rewrite("plain-gemm",
             absent="no refused Gemm has factors, a transposed A or a bias of another shape beside constants"),
    _rewrite("flat-matmul", absent="no refused MatMul multiplies a batch of known size by a constant"),
    _rewrite("einsum-as-matmul", absent="no refused Einsum is a product of two operands of known sizes"),
    _rewrite("explicit-pads", absent="no refused Conv or pool of known sizes has auto_pad SAME or ceil_mode"),
    _rewrite("counted-pads", absent="no refused AveragePool counts its padding"),
    _rewrite("conv-2d", absent="no refused Conv has one axis and constant weights"),
    _rewrite("cropped-conv-transpose", absent="no refused ConvTranspose has padding that a Slice can do"),
    _rewrite("scaled-batch-norm", absent="no refused BatchNormalization has constant statistics"),
    _rewrite("reshape", absent="no refused one of them has an output of known size"),
    _rewrite("concat-on-channels", absent="no refused Concat has known sizes and rank 4 at most", providers=COREML_NN),
    _rewrite("fewer-axes", absent="no refused Transpose or Gather of rank 5 or more has axes that can be merged"),
    _rewrite("gather-i32", absent="no refused Gather has computed 64-bit indices into known sizes", providers=NNAPI),
    _rewrite("layer-norm", absent="no refused LayerNormalization of f32 has known sizes and one output"),
    _rewrite("group-norm", absent="no refused one of them has known sizes and a constant scale for each channel"),
    _rewrite("activations", absent="none of them is refused"),
    _rewrite("erf-by-exp", absent="neither is refused", providers=NNAPI),
    _rewrite("one-input", absent="none of them is refused"),
    _rewrite("prelu-by-relu", absent="no PRelu of f32 is refused"),
    _rewrite("pairwise", absent="none of many inputs is refused"),
    _rewrite("min-as-max", absent="no Min of f32 is refused", providers=MLPROGRAM),
    _rewrite("reductions", absent="none of them with known sizes and axes is refused"),
    _rewrite("pool-as-mean", absent="no GlobalAveragePool of f32 is refused"),
    _rewrite("mean-as-pool", absent="no such ReduceMean is refused"),
    _opset(11, providers=NNAPI),
    _opset(13),
    _opset(17),
    _opset(21),
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


def fixes_for(provider: str) -> tuple[Fix, ...]:
    """The fixes that can matter to a provider."""
    return tuple(fix for fix in (*MODEL_FIXES, LEVEL_BASIC, OTHER_FORMAT) if provider in fix.providers)
