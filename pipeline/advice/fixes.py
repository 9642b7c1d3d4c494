"""Fixes: what may make a model better for a provider, by the provider."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pipeline import dataset as datasets
from pipeline.check import compare as output_compare
from pipeline.check import result as check_result
from pipeline.core import providers as provider_rules
from pipeline.dataset import Dataset
from pipeline.model import onnx_model, signature
from pipeline.model.onnx_model import LeanModel
from pipeline.model.sources import SourceModel
from pipeline.passes import base as passes_base
from pipeline.passes import edit as passes_edit
from pipeline.passes import precisions as passes_precisions
from pipeline.passes import registry, surgery
from pipeline.passes import saving as passes_saving
from pipeline.passes.base import NotApplicable

if TYPE_CHECKING:
    from onnx import ModelProto

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import ModelProto

NNAPI = frozenset({provider_rules.NNAPI})

COREML = frozenset({provider_rules.COREML_NN, provider_rules.COREML_MLPROGRAM})


def recipes_for(provider: str) -> tuple[passes_precisions.Recipe, ...]:
    """The precisions to try for a provider whose claims depend on a chip, the smallest first; none for others."""
    by_chip = provider_rules.PROVIDER_RULES[provider].by_chip
    return tuple(recipe for recipe in passes_precisions.RECIPES.values() if by_chip and recipe.provider == provider)


def in_precision(
    loaded: onnx_model.LoadedModel, precision: str, reference: check_result.Reference, data: Dataset, target: Path
) -> onnx_model.LoadedModel:
    """A float model in a precision, saved as `target`; calibrated on the data, without any on the reference's sample.

    Raises as the precision's passes do.
    """
    inputs = {tensor.name: output_compare.read_tensor(tensor) for tensor in reference.inputs}
    takes = signature.own_inputs(loaded.proto)

    limited = msgspec.structs.replace(data, limit=min(data.limit or MOST_SAMPLES, MOST_SAMPLES))

    def feeds() -> Iterator[passes_base.Feeds]:
        if data.test_data:
            yield from (sample.inputs for sample in datasets.samples(limited, takes))
        else:
            yield {info.name: inputs[info.name] for info in takes}

    context = passes_base.PassContext(folder=target.parent, where=loaded.source.name, samples=feeds)
    quantized = registry.run_passes(loaded, list(passes_precisions.PRECISIONS[precision].steps), context).model
    passes_saving.write_model(quantized, target)
    saved = onnx_model.load_model(SourceModel(path=str(target)), target.parent)
    return replace(saved, source=SourceModel(path=str(target)))


def _fix(
    row: passes_base.Pass,
    title: str,
    options: Callable[[passes_edit.GraphFacts], passes_base.Options],
    absent: str,
    since_ir: int = 0,
) -> passes_base.Pass:
    """A pass over the message alone as a fix, which must give equal numbers."""

    def edit(model: "ModelProto", facts: passes_edit.GraphFacts) -> "ModelProto | None":
        lean = LeanModel(proto=model, folder=Path(), weights={})
        if model.ir_version < since_ir:
            return None
        try:
            return row.apply(lean, options(facts), passes_base.PassContext(folder=Path(), where="the model")).proto
        except NotApplicable:
            return None

    return replace(row, title=title, effect=passes_base.Effect.EXACT, edit=edit, absent=absent)


def _opset(version: int, helps: frozenset[str] = surgery.OPSET.helps) -> passes_base.Pass:
    """The fix that is another opset, older ones too: the trial shows whether ONNX's converter can.

    Softmax of opset 11 and before may have any rank and axis for NNAPI (ep_rules D.4); 13 is the first whose Split
    NNAPI and CoreML take, 17 the newest before reductions, Pad, Resize and Split changed, 21 the newest that all
    supported releases take.
    """

    def edit(model: "ModelProto", facts: passes_edit.GraphFacts) -> "ModelProto | None":
        return None if facts.opset == version else surgery.converted(model, version)

    return replace(
        surgery.OPSET,
        name=f"opset-{version}",
        title=f"Convert to opset {version}.",
        edit=edit,
        helps=helps,
        absent=f"it is opset {version}",
    )


MODEL_FIXES = (
    _fix(
        surgery.FIXED_DIMENSIONS,
        "Fix open dimensions of the inputs.",
        lambda facts: surgery.DimensionOptions(sizes=dict(facts.sizes), rest=1),
        "every input dimension has a size",
    ),
    # Before IR version 4 every initializer is listed as an input, and is a constant to providers all the same.
    _fix(
        surgery.CONSTANT_INITIALIZERS,
        "Take initializers out of the graph's inputs.",
        lambda _: passes_base.Options(),
        "no initializer can be overridden as an input",
        since_ir=passes_edit.IR_OF_CONSTANTS,
    ),
    *registry.REWRITES,
    _opset(11, NNAPI),
    _opset(13),
    _opset(17),
    _opset(21),
)
"""Fixes of the model, in the order in which they are tried."""


def unchanged(
    model: passes_base.Model, _options: passes_base.Options, _context: passes_base.PassContext
) -> passes_base.Model:
    """The model as it is, for a fix that changes how it is judged."""
    return model


LEVEL_BASIC = passes_base.Pass(
    name="level-basic",
    title="Optimize at level basic first.",
    apply=unchanged,
    effect=passes_base.Effect.EXACT,
    absent="it is that level",
)

OTHER_FORMAT = passes_base.Pass(
    name="other-format",
    title="Use CoreML's other model format.",
    apply=unchanged,
    effect=passes_base.Effect.EXACT,
    helps=COREML,
    absent="only CoreML has formats",
)

INT64 = passes_base.Pass(
    name="enable-int64",
    title="Set WebGPU's option enableInt64=1.",
    apply=unchanged,
    effect=passes_base.Effect.EXACT,
    helps=frozenset({provider_rules.WEBGPU}),
    absent="it is set",
)

NCHW = passes_base.Pass(
    name="keep-layout",
    title="Set WebGPU's option preferredLayout=NCHW.",
    apply=unchanged,
    effect=passes_base.Effect.EXACT,
    helps=frozenset({provider_rules.WEBGPU}),
    absent="it is set",
)

ENABLERS = ("fixed-dimensions", "constant-initializers", "f32")
"""Fixes that may gain nothing alone because a provider asks for all of them at once."""


def fixes_for(provider: str) -> tuple[passes_base.Pass, ...]:
    """The fixes that can matter to a provider."""
    return tuple(fix for fix in (*MODEL_FIXES, LEVEL_BASIC, OTHER_FORMAT, INT64, NCHW) if provider in fix.helps)


MOST_SAMPLES = 64
"""Calibration samples of one trial: more change its ranges little (quantization Q.6)."""
