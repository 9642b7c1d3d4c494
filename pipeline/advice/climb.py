"""Fixes together: those that gain most alone first, as long as each still improves the whole."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec

from pipeline.advice.fixes import (
    ENABLERS,
    OTHER_FORMAT,
    fixes_for,
    recipes_for,
    unchanged,
)
from pipeline.advice.precision_choice import precision_of
from pipeline.advice.trial import State, TrialContext, attempt, difference, judged, with_error, with_gain
from pipeline.advice.verdict import FixChoice, FixOutcome, FixResult, improves, perfect, preference, verdict
from pipeline.check import compare as output_compare
from pipeline.check import result as check_result
from pipeline.core.errors import PipelineError
from pipeline.passes import base as passes_base

MOST_ROUNDS = 3
"""Passes over the fixes while the combination still improves: one fix may make room for another."""


class Tried(NamedTuple):
    """A fix alone: what came of it, and the state with it when it gains."""

    fix: passes_base.Pass
    result: FixResult
    state: State | None


class Climb(NamedTuple):
    """A state and the fixes that led to it, in their order."""

    state: State
    used: tuple[passes_base.Pass, ...]


class Forms(NamedTuple):
    """What came of each precision, and the best state with or without one."""

    results: list[FixResult]
    best: Climb


def with_forms(best: Climb, bench: TrialContext) -> Forms:
    """Each precision for a chip's NPU, with the fixes that then still gain; where the model as it is, is not for it.

    The first form that is within the tolerance of quantized models is taken, else the nearest: what it costs is shown.
    """
    usable = verdict(best.state.standing, bench.provider).choice is FixChoice.USE
    fixes = [fix for fix in fixes_for(bench.provider) if fix.edit]
    if usable or not recipes_for(bench.provider):
        return Forms([], best)
    start, enabling = _enabled(best.state, [fix for fix in fixes if fix not in best.used], bench)
    if precision_of(start.loaded.proto):
        return Forms([], best)
    used = (*best.used, *enabling)
    results, climbs = list[FixResult](), list[Climb]()
    for recipe in recipes_for(bench.provider):
        form = passes_base.Pass(
            name=recipe.name,
            title=f"Quantize every operator: {recipe.title}.",
            apply=unchanged,
            effect=passes_base.Effect.LOSSY,
        )
        result, state = _attempt_form(form, recipe.precision, start, bench)
        results.append(result)
        if state is None:
            continue
        end, more = _climb(state, [fix for fix in fixes if fix not in used], {}, bench)
        climbs.append(Climb(end, (*used, form, *more)))
        near = (end.error or 0.0) <= output_compare.MAX_RELATIVE_ERROR[output_compare.OutputPrecision.QUANTIZED]
        if near and not end.standing.trouble:
            break
    if not climbs:
        return Forms(results, best)
    return Forms(
        results,
        max(climbs, key=lambda climb: (preference(climb.state.standing, bench.provider), -(climb.state.error or 0))),
    )


def _attempt_form(
    form: passes_base.Pass, precision: str, state: State, bench: TrialContext
) -> tuple[FixResult, State | None]:
    """What a precision gives, and the state in it when it gains; an error of its outputs is shown, not judged."""
    result = FixResult(name=form.name, title=form.task, outcome=FixOutcome.REJECTED)
    try:
        loaded = bench.formed(state.loaded, precision)
        original = bench.reference if isinstance(bench.reference, check_result.Reference) else None
        request = msgspec.structs.replace(state.request, source=loaded.source, original=original)
        formed = replace(judged(loaded, request, state), precision=precision, floats=state.loaded)
        result = with_gain(result, state, formed, bench)
        if result.outcome is FixOutcome.NO_GAIN or isinstance(bench.reference, str):
            return result, None
        share = output_compare.MAX_RELATIVE_ERROR[output_compare.OutputPrecision.QUANTIZED]
        checks = difference(loaded, bench.reference, share)
    except PipelineError as error:
        return msgspec.structs.replace(result, outcome=FixOutcome.REJECTED, why=error.reason), None
    result, formed = with_error(result, formed, checks, share)
    return result, replace(formed, tolerance=max(share, (formed.error or 0.0) * MORE))


MORE = 1.2
"""Factor by which the error of a quantized model may grow with a fix, which changes what is rounded."""


def combined(base: State, alone: Sequence[Tried], bench: TrialContext) -> Climb:
    """Fixes together, those that gain most alone first, as long as each still improves the whole.

    A second climb starts from what makes room for others, gain or not, and counts when it ends better. CoreML's other
    format is taken only where nothing else is left that helps.
    """
    tried = {trial.fix: trial.state for trial in alone}

    def rank(fix: passes_base.Pass) -> tuple[bool, tuple[int, int, int, float]]:
        """Gains first; among equal ones sorting keeps the table's order."""
        state = tried[fix]
        return state is not None, preference(state.standing, bench.provider) if state else (0, 0, 0, 0.0)

    order = sorted(tried, key=rank, reverse=True)
    asked = [fix for fix in order if fix is not OTHER_FORMAT]
    best = _climb(base, asked, tried, bench)
    if not perfect(best.state.standing):
        start, enabling = _enabled(base, asked, bench)
        rest = [fix for fix in asked if fix not in enabling]
        end, more = _climb(start, rest, {}, bench) if enabling else Climb(base, ())
        if improves(end.standing, best.state.standing, bench.provider):
            best = Climb(end, (*enabling, *more))
    current, used = best
    if OTHER_FORMAT in tried and not perfect(current.standing):
        changed = attempt(OTHER_FORMAT, current, bench)[1]
        if changed is not None:
            final, last = _climb(changed, [fix for fix in asked if fix not in used], {}, bench)
            best = Climb(final, (*used, OTHER_FORMAT, *last))
    return best


def _enabled(base: State, fixes: Sequence[passes_base.Pass], bench: TrialContext) -> Climb:
    """The state with every fix that makes room for others."""
    current, applied = base, list[passes_base.Pass]()
    for fix in fixes:
        state = attempt(fix, current, bench, must_gain=False)[1] if fix.name in ENABLERS else None
        if state is not None:
            current = state
            applied.append(fix)
    return Climb(current, tuple(applied))


def _climb(
    start: State, fixes: Sequence[passes_base.Pass], tried: Mapping[passes_base.Pass, State | None], bench: TrialContext
) -> Climb:
    """Apply fixes in order, again and again while one improves; `tried` has what is known of the start with each."""
    current, used = start, list[passes_base.Pass]()
    for _ in range(MOST_ROUNDS):
        before = len(used)
        for fix in fixes:
            if fix in used or perfect(current.standing):
                continue
            is_tried = current is start and fix in tried
            state = tried[fix] if is_tried else attempt(fix, current, bench)[1]
            if state is not None:
                current = state
                used.append(fix)
        if len(used) == before:
            break
    return Climb(current, tuple(used))
