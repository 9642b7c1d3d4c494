"""The passes by name, and steps: which passes with which options, in which order."""

import difflib
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from pipeline.config.tables import Step
from pipeline.core.errors import ConfigError, MissingError, ModelError, PipelineError
from pipeline.core.workers import still_at_work
from pipeline.passes import batch_size, half, mixed, optimize, quantize, static, surgery
from pipeline.passes.base import Apply, Model, NotApplicable, Options, Pass, PassContext, PassResult, StepChange
from pipeline.passes.edit import model_bytes
from pipeline.passes.rewrites.table import REWRITES

SURGERY = (
    surgery.PRUNE_OUTPUTS, surgery.FIXED_DIMENSIONS, batch_size.PASS, surgery.CONSTANT_INITIALIZERS, surgery.EXTERNAL,
    surgery.INLINE, surgery.OPSET, surgery.FOLD, surgery.FUSIONS, optimize.PASS,
)  # fmt: skip

QUANTIZATION = (
    optimize.PREPROCESS, static.STATIC, mixed.PASS, static.QOPERATOR, quantize.DYNAMIC, quantize.WEIGHT_ONLY,
    quantize.FP16, half.FP16_GPU,
)  # fmt: skip

PASSES: dict[str, Pass] = {row.name: row for row in (*SURGERY, *QUANTIZATION, *REWRITES)}
"""Every pass by its name, in the order of `ort-mobile transform --list`."""


def find_pass(name: str, where: str = "") -> Pass:
    """The pass of a name; ConfigError with the nearest name for one that there is not."""
    if name not in PASSES:
        close = difflib.get_close_matches(name, PASSES, n=1)
        remedy = f"did you mean {close[0]!r}?" if close else "`ort-mobile transform --list` shows all"
        raise ConfigError(f"there is no pass {name!r}", where=where, remedy=remedy)
    return PASSES[name]


def options_of(step: Step, where: str = "") -> Options:
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


def parse_step(text: str) -> Step:
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
    typed = options_of(Step(do=name, options=values), f"--do {text}")
    return Step(do=name, options={key: msgspec.to_builtins(getattr(typed, key)) for key in values})


def run_passes(model: Model, steps: Sequence[Step], context: PassContext) -> PassResult:
    """Apply steps one after the other.

    ConfigError for a wrong step before any is begun, MissingError where a pass needs data that there are not (but for a
    first one that no data would help), NotApplicable and ModelError as the passes raise them.
    """
    chosen = [(find_pass(step.do, context.where), options_of(step, context.where)) for step in steps]
    for number, (row, options) in enumerate(chosen):
        if row.before_data and context.samples is None:
            if number == 0:
                _applied(row, row.before_data, model, options, context)
            raise MissingError(f"{row.name} needs calibration data", where=context.where,
                               remedy="give `test_data` of the model in the config, or --test-data")  # fmt: skip
    changes: list[StepChange] = []
    notes: list[str] = []
    context = replace(context, warn=notes.append)
    for step, (row, options) in zip(steps, chosen, strict=True):
        still_at_work()
        after = _applied(row, row.apply, model, options, context)
        changes.append(
            StepChange(
                step=step, nodes_before=len(model.proto.graph.node), nodes_after=len(after.proto.graph.node),
                bytes_before=model_bytes(model), bytes_after=model_bytes(after),
            )
        )  # fmt: skip
        model = after
    return PassResult(model=model, changes=tuple(changes), notes=tuple(dict.fromkeys(notes)))


def _applied(row: Pass, apply: Apply, model: Model, options: Options, context: PassContext) -> Model:
    """The model after a pass; its refusals say which pass and which model, and a library's surprise is an error."""
    try:
        return apply(model, options, context)
    except NotApplicable as error:
        raise NotApplicable(
            f"{row.name}: {error.what}", where=error.where or context.where, why=error.why,
            remedy=error.remedy or "leave the step out",
        ) from error  # fmt: skip
    except PipelineError as error:
        error.where = error.where or context.where
        raise
    except (OSError, MemoryError):
        raise
    except Exception as error:  # a hostile model may break a pass, and must not cost more than the pass
        raise ModelError(
            f"{row.name} failed", where=context.where, why=f"{type(error).__name__}: {error}"[:300],
            remedy="leave the step out, or export the model again",
        ) from error  # fmt: skip
