"""The passes by name, the table of rewrites among them, and steps: which passes with which options, in which order."""

import difflib
import importlib
import pkgutil
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from pipeline.config import tables as config_tables
from pipeline.config import values as config_values
from pipeline.core import features, workers
from pipeline.core import providers as provider_rules
from pipeline.core.errors import ConfigError, MissingError, ModelError, PipelineError
from pipeline.model import edit as onnx_edit
from pipeline.model.sources import SourceModel
from pipeline.passes import half as passes_half
from pipeline.passes import mixed, optimize, quantize, single, static, surgery
from pipeline.passes.base import (
    Apply,
    Edit,
    Effect,
    Model,
    NotApplicable,
    Options,
    Pass,
    PassContext,
    PassResult,
    StepChange,
)
from pipeline.passes.edit import GraphFacts, Rule, changed, model_bytes, rewrite
from pipeline.passes.rewrites import accelerators, arithmetic, linear, moves
from pipeline.passes.saving import write_model


class RewriteOptions(Options, frozen=True, kw_only=True):
    """Options of every rewrite."""

    provider: config_values.Accelerator | None = None
    """Rewrite only what this provider does not claim; without it, every node of the form."""


def nodes(**rules: Rule) -> Edit:
    """The edit that puts other nodes in the place of those that are not claimed, by rules for their operators."""
    return partial(rewrite, rules=rules)


def _rewrite(
    name: str,
    title: str,
    edit: Edit,
    *,
    absent: str,
    exact: bool = False,
    dialect: str = provider_rules.XNNPACK,
    helps: frozenset[str] = frozenset(provider_rules.PROVIDER_RULES),
) -> Pass:
    """A rewrite as a pass; `dialect` is the provider whose forms are written where nobody names one."""

    def apply(model: Model, options: RewriteOptions, context: PassContext) -> Model:
        from pipeline.partition import answer as claim_answer
        from pipeline.partition import graph as partition_graph
        from pipeline.partition import judge

        settings = claim_answer.make_settings(options.provider or dialect)
        claimed: frozenset[str] = frozenset()
        if options.provider:
            path = context.new_file(".onnx")
            write_model(model, path)
            answer = judge.judge(judge.PartitionRequest(source=SourceModel(path=str(path)), settings=settings))
            if answer.error:
                raise ModelError("the model cannot be judged", where=context.where, why=answer.error)
            claimed = frozenset(name for group in answer.partitions for name in group)
        graph = partition_graph.view(model.proto, read=partition_graph.tensor_reader(model), outside=model.outside)
        edited = edit(model.proto, GraphFacts(graph=graph, settings=settings, claimed=claimed))
        if edited is None:
            why = f"no node of the right form that {options.provider} leaves to the CPU" if options.provider else ""
            raise NotApplicable(
                "nothing to rewrite", why=why or "no node has the form that it rewrites, at known sizes"
            )
        onnx_edit.drop_unread(edited.graph)
        return changed(model, edited)

    return Pass(
        name=name,
        title=title,
        apply=apply,
        effect=Effect.EXACT if exact else Effect.ROUNDING,
        options=RewriteOptions,
        edit=edit,
        helps=helps,
        absent=absent,
    )


NNAPI_ONLY, NN_ONLY, MLPROGRAM_ONLY = (
    frozenset({provider_rules.NNAPI}),
    frozenset({provider_rules.COREML_NN}),
    frozenset({provider_rules.COREML_MLPROGRAM}),
)
QNN_ONLY, WEBGPU_ONLY = frozenset({provider_rules.QNN}), frozenset({provider_rules.WEBGPU})

REWRITES = (
    _rewrite(
        "f32",
        "Compute in 32-bit floats.",
        arithmetic.compute_in_f32,
        absent="nothing is f16, or bodies, functions or weights in other files keep it from being changed",
    ),
    _rewrite(
        "drop-empty-inputs",
        "Drop inputs at a node's end that have no name.",
        accelerators.without_empty_inputs,
        exact=True,
        absent="no node lists an input without a name at its end",
    ),
    _rewrite(
        "in-float",
        "Compute in float what is quantized.",
        accelerators.in_float,
        helps=WEBGPU_ONLY,
        absent="nothing is quantized by constant scales of whole values, at opset 11 or later",
    ),
    _rewrite(
        "constant-clip",
        "Make Clip's bounds constants.",
        nodes(Clip=arithmetic.constant_bounds),
        exact=True,
        absent="no refused Clip has bounds that are computed from constants",
    ),
    _rewrite(
        "clip-as-max-min",
        "Write Clip as Relu, or Max and Min.",
        nodes(Clip=arithmetic.clip_as_max_min),
        exact=True,
        dialect=provider_rules.NNAPI,
        helps=NNAPI_ONLY,
        absent="no refused Clip has known bounds",
    ),
    _rewrite(
        "pad-as-concat",
        "Write Pad as Slice and Concat.",
        nodes(Pad=moves.pad_as_concat),
        exact=True,
        absent="no refused Pad has known sizes and pads, none negative",
    ),
    _rewrite(
        "equal-resize",
        "Name Resize's mode by an equal one.",
        nodes(Resize=moves.equal_resize),
        exact=True,
        absent="no refused Resize has an equal mode that providers take",
    ),
    _rewrite(
        "plain-gemm",
        "Put Gemm's factors and bias into its constants.",
        nodes(Gemm=linear.plain_gemm),
        absent="no refused Gemm has factors, a transposed A or a bias of another shape beside constants",
    ),
    _rewrite(
        "flat-matmul",
        "Multiply batches of matrices by one constant as one product.",
        nodes(MatMul=linear.flat_matmul),
        absent="no refused MatMul multiplies a batch of known size by a constant",
    ),
    _rewrite(
        "einsum-as-matmul",
        "Write Einsum as one matrix product.",
        nodes(Einsum=linear.einsum_as_matmul),
        absent="no refused Einsum is a product of two operands of known sizes",
    ),
    _rewrite(
        "explicit-pads",
        "Write auto_pad and ceil_mode as pads.",
        nodes(Conv=linear.explicit_pads, MaxPool=linear.explicit_pads, AveragePool=linear.explicit_pads),
        absent="no refused Conv or pool of known sizes has auto_pad SAME or ceil_mode",
    ),
    _rewrite(
        "counted-pads",
        "Write AveragePool's counted padding as Pad.",
        nodes(AveragePool=linear.counted_pads),
        absent="no refused AveragePool counts its padding",
    ),
    _rewrite(
        "conv-2d",
        "Write 1-D convolutions as 2-D.",
        nodes(Conv=linear.conv_2d),
        absent="no refused Conv has one axis and constant weights",
    ),
    _rewrite(
        "cropped-conv-transpose",
        "Write ConvTranspose's padding as Slice.",
        nodes(ConvTranspose=linear.cropped_conv_transpose),
        absent="no refused ConvTranspose has padding that a Slice can do",
    ),
    _rewrite(
        "scaled-batch-norm",
        "Write BatchNormalization as Mul and Add.",
        nodes(BatchNormalization=linear.scaled_batch_norm),
        absent="no refused BatchNormalization has constant statistics",
    ),
    _rewrite(
        "reshape",
        "Write Flatten, Squeeze, Unsqueeze and computed shapes as Reshape.",
        nodes(Flatten=moves.as_reshape, Squeeze=moves.as_reshape, Unsqueeze=moves.as_reshape, Reshape=moves.as_reshape),
        exact=True,
        absent="no refused one of them has an output of known size",
    ),
    _rewrite(
        "concat-on-channels",
        "Turn Concat's axis to the channels.",
        nodes(Concat=moves.concat_on_channels),
        exact=True,
        dialect=provider_rules.COREML_NN,
        helps=NN_ONLY,
        absent="no refused Concat has known sizes and rank 4 at most",
    ),
    _rewrite(
        "fewer-axes",
        "Merge axes around Transpose and Gather of many.",
        moves.fewer_axes,
        exact=True,
        absent="no refused Transpose or Gather of rank 5 or more has axes that can be merged",
    ),
    _rewrite(
        "gather-i32",
        "Give Gather 32-bit indices.",
        nodes(Gather=moves.gather_i32),
        exact=True,
        dialect=provider_rules.NNAPI,
        helps=NNAPI_ONLY,
        absent="no refused Gather has computed 64-bit indices into known sizes",
    ),
    _rewrite(
        "layer-norm",
        "Write LayerNormalization by its definition.",
        nodes(LayerNormalization=arithmetic.layer_norm),
        absent="no refused LayerNormalization of f32 has known sizes and one output",
    ),
    _rewrite(
        "group-norm",
        "Write Instance- and GroupNormalization by their definition.",
        nodes(InstanceNormalization=arithmetic.group_norm, GroupNormalization=arithmetic.group_norm),
        absent="no refused one of them has known sizes and a constant scale for each channel",
    ),
    _rewrite(
        "activations",
        "Write HardSigmoid, HardSwish and Gelu (tanh) by their definitions.",
        nodes(HardSigmoid=arithmetic.hard_sigmoid, HardSwish=arithmetic.hard_swish, Gelu=arithmetic.gelu_tanh),
        absent="none of them is refused",
    ),
    _rewrite(
        "erf-by-exp",
        "Write Erf and Gelu by a polynomial and Exp, to 1.5e-7.",
        nodes(Erf=arithmetic.erf_by_exp, Gelu=arithmetic.erf_by_exp),
        dialect=provider_rules.NNAPI,
        helps=NNAPI_ONLY,
        absent="neither is refused",
    ),
    _rewrite(
        "one-input",
        "Write Neg, Reciprocal, Abs and Softsign by arithmetic.",
        nodes(
            Neg=arithmetic.one_input,
            Reciprocal=arithmetic.one_input,
            Abs=arithmetic.one_input,
            Softsign=arithmetic.one_input,
        ),
        absent="none of them is refused",
    ),
    _rewrite(
        "prelu-by-relu",
        "Write PRelu as a difference of two Relu.",
        nodes(PRelu=arithmetic.prelu_by_relu),
        exact=True,
        absent="no PRelu of f32 is refused",
    ),
    _rewrite(
        "pairwise",
        "Write Max, Min and Sum of many inputs two at a time.",
        nodes(Max=arithmetic.pairwise, Min=arithmetic.pairwise, Sum=arithmetic.pairwise),
        exact=True,
        absent="none of many inputs is refused",
    ),
    _rewrite(
        "min-as-max",
        "Write Min as a negated Max.",
        nodes(Min=arithmetic.min_as_max),
        exact=True,
        dialect=provider_rules.COREML_MLPROGRAM,
        helps=MLPROGRAM_ONLY,
        absent="no Min of f32 is refused",
    ),
    _rewrite(
        "reductions",
        "Write ReduceL2, ReduceSumSquare and ReduceSum by products and means.",
        nodes(ReduceL2=arithmetic.reduction, ReduceSumSquare=arithmetic.reduction, ReduceSum=arithmetic.reduction),
        absent="none of them with known sizes and axes is refused",
    ),
    _rewrite(
        "pool-as-mean",
        "Write GlobalAveragePool as ReduceMean.",
        nodes(GlobalAveragePool=arithmetic.global_pool_as_mean),
        absent="no GlobalAveragePool of f32 is refused",
    ),
    _rewrite(
        "mean-as-pool",
        "Write ReduceMean over height and width as GlobalAveragePool.",
        nodes(ReduceMean=arithmetic.mean_as_global_pool),
        absent="no such ReduceMean is refused",
    ),
    _rewrite(
        "scaled-norm",
        "Divide values by the largest before ReduceL2, so that half precision holds the squares.",
        nodes(ReduceL2=accelerators.scaled_norm),
        helps=QNN_ONLY,
        absent="no ReduceL2 of known sizes is computed otherwise",
    ),
    _rewrite(
        "flat-indices",
        "Give Gather its constant indices in one row, counted from the beginning.",
        nodes(Gather=accelerators.flat_indices),
        exact=True,
        helps=QNN_ONLY,
        absent="no Gather has constant indices of several rows, or that count from the end",
    ),
    _rewrite(
        "gathered-resize",
        "Write Resize to the nearest pixel as Gather.",
        nodes(Resize=accelerators.gathered_resize),
        exact=True,
        helps=QNN_ONLY,
        absent="no Resize of height and width takes the nearest pixel",
    ),
    _rewrite(
        "wide-padding",
        "Write Conv's padding as Pad where it is as large as the kernel.",
        nodes(Conv=accelerators.wide_padding),
        helps=QNN_ONLY,
        absent="no Conv has a padding as large as its kernel",
    ),
    _rewrite(
        "floored-casts",
        "Write Casts to integers and back by Floor.",
        nodes(Cast=accelerators.floored),
        helps=QNN_ONLY,
        absent="no Cast to integers is undone by the next one",
    ),
)
"""Every rewrite, in the order in which advice tries them."""


def _single() -> tuple[Pass, ...]:
    """The passes of pipeline/passes/single, by the names of their files."""
    names = sorted(module.name for module in pkgutil.iter_modules(single.__path__))
    return tuple(importlib.import_module(f"{single.__name__}.{name}").PASS for name in names)


SURGERY = (
    surgery.PRUNE_OUTPUTS,
    surgery.FIXED_DIMENSIONS,
    *_single(),
    surgery.FLOAT_IO,
    surgery.CONSTANT_INITIALIZERS,
    surgery.EXTERNAL,
    surgery.INLINE,
    surgery.OPSET,
    surgery.FOLD,
    surgery.FUSIONS,
    optimize.PASS,
)

QUANTIZATION = (
    optimize.PREPROCESS,
    static.STATIC,
    mixed.PASS,
    static.QOPERATOR,
    quantize.DYNAMIC,
    quantize.WEIGHT_ONLY,
    quantize.FP16,
    passes_half.FP16_GPU,
)

PASSES: dict[str, Pass] = {listed.name: listed for listed in (*SURGERY, *QUANTIZATION, *REWRITES)}
"""Every pass by its name, in the order of `ort-mobile transform --list`."""


MORE = features.Place[Callable[[], Sequence[Pass]]]("passes.more")
"""Passes of features, which do what a table of the config says: nobody asks for them by name."""


def find_pass(name: str, where: str = "") -> Pass:
    """The pass of a name; ConfigError with the nearest name for one that there is not."""
    if name not in PASSES:
        if offered := next((more for passes in MORE for more in passes() if more.name == name), None):
            return offered
        close = difflib.get_close_matches(name, PASSES, n=1)
        remedy = f"did you mean {close[0]!r}?" if close else "`ort-mobile transform --list` shows all"
        raise ConfigError(f"there is no pass {name!r}", where=where, remedy=remedy)
    return PASSES[name]


def options_of(step: config_tables.Step, where: str = "") -> Options:
    """The options of a step as the pass's own type; ConfigError for one that does not exist or a wrong value."""
    kind = find_pass(step.do, where).options
    try:
        return msgspec.convert(step.options, kind, strict=False)
    except msgspec.ValidationError as error:
        names = []
        for field in msgspec.structs.fields(kind):  # with its values where there are few
            info = msgspec.inspect.type_info(field.type)
            values = [value for value in info.values if value] if isinstance(info, msgspec.inspect.LiteralType) else []
            names.append(f"{field.name} ({', '.join(map(str, values))})" if values else field.name)
        raise ConfigError(
            f"wrong option of {step.do}", where=where, why=str(error), remedy=f"options: {', '.join(names) or 'none'}"
        ) from error


def parse_step(text: str) -> config_tables.Step:
    """A step as the command line has it, `NAME[:option=value]…`; values of lists and tables are joined by `+`.

    ConfigError for a name or option that there is not. `fixed-dimensions:sizes=batch=1+time=16` gives a table; a colon
    in a name, as in `input:0`, is part of it.
    """
    name, *pairs = re.split(r":(?=[a-z][a-z_0-9]*=)", text)
    types = {field.encode_name: field.type for field in msgspec.structs.fields(find_pass(name, "--do").options)}
    values: dict[str, Any] = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        # As the type of its option wants it; what has no type is left to `options_of`
        info = msgspec.inspect.type_info(types[key]) if key in types else None
        if isinstance(info, msgspec.inspect.DictType):
            values[key] = dict(part.rpartition("=")[::2] for part in value.split("+"))
        else:
            several = isinstance(info, msgspec.inspect.VarTupleType | msgspec.inspect.ListType)
            values[key] = value.split("+") if several else value
    typed = options_of(config_tables.Step(do=name, options=values), f"--do {text}")
    return config_tables.Step(do=name, options={key: msgspec.to_builtins(getattr(typed, key)) for key in values})


def run_passes(model: Model, steps: Sequence[config_tables.Step], context: PassContext) -> PassResult:
    """Apply steps one after the other.

    ConfigError for a wrong step before any is begun, MissingError where a pass needs data that there are not (but for a
    first one that no data would help), NotApplicable and ModelError as the passes raise them.
    """
    chosen = [(find_pass(step.do, context.where), options_of(step, context.where)) for step in steps]
    for number, (chosen_pass, options) in enumerate(chosen):
        if chosen_pass.before_data and context.samples is None:
            if number == 0:
                _applied(chosen_pass, chosen_pass.before_data, model, options, context)
            raise MissingError(
                f"{chosen_pass.name} needs calibration data",
                where=context.where,
                remedy="give `test_data` of the model in the config, or --test-data",
            )
    changes: list[StepChange] = []
    notes: list[str] = []
    context = replace(context, warn=notes.append)
    for step, (chosen_pass, options) in zip(steps, chosen, strict=True):
        workers.still_at_work()
        after = _applied(chosen_pass, chosen_pass.apply, model, options, context)
        changes.append(
            StepChange(
                step=step,
                nodes_before=len(model.proto.graph.node),
                nodes_after=len(after.proto.graph.node),
                bytes_before=model_bytes(model),
                bytes_after=model_bytes(after),
            )
        )
        model = after
    return PassResult(model=model, changes=tuple(changes), notes=tuple(dict.fromkeys(notes)))


def _applied(chosen_pass: Pass, apply: Apply, model: Model, options: Options, context: PassContext) -> Model:
    """The model after a pass; its refusals say which pass and which model, and a library's surprise is an error.

    What makes tensors of an app's data stays float whatever a precision leaves out: numbers of pixels are no ranges.
    """
    exclude = getattr(options, "exclude", None)
    if exclude is not None:
        ends = [node.name for node in model.proto.graph.node if node.name.startswith(onnx_edit.ENDS)]
        options = msgspec.structs.replace(options, exclude=(*dict.fromkeys((*exclude, *ends)),))
    try:
        return apply(model, options, context)
    except NotApplicable as error:
        raise NotApplicable(
            f"{chosen_pass.name}: {error.what}",
            where=error.where or context.where,
            why=error.why,
            remedy=error.remedy or "leave the step out",
        ) from error
    except PipelineError as error:
        error.at(context.where)
        raise
    except (OSError, MemoryError):
        raise
    except Exception as error:  # a hostile model may break a pass, and must not cost more than the pass
        raise ModelError(
            f"{chosen_pass.name} failed",
            where=context.where,
            why=f"{type(error).__name__}: {error}"[:300],
            remedy="leave the step out, or export the model again",
        ) from error
