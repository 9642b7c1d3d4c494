"""`--fail-on`: conditions under which a command that otherwise only tells ends with exit code 4."""

import difflib
import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar

import click

from pipeline.core.errors import ExitCode, Finding, Severity
from pipeline.core.providers import PROVIDER_RULES

AnyCommand = TypeVar("AnyCommand", bound=Callable[..., Any])

SIGNS: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt, "=": operator.eq,
}  # fmt: skip
MEASURES: Mapping[str, str] = {
    "partitions": "partitions>1",
    "coverage": "coverage<0.9",
}
"""What is counted of a model with a provider, with a condition as an example."""
MEASURED = re.compile(r"(?:([\w-]+)\.)?([a-z]+) *(<=|>=|<|>|=) *(\d+(?:\.\d+)?)(%?)")
NAMED = re.compile(r"(?:([\w-]+)\.)?(refused|finding):(.+)")
OPERATOR = re.compile(r"[\w.]+:\w+")
"""An operator with its domain, as com.microsoft:Gelu: there is no list of those."""


class Watched(NamedTuple):
    """What a condition is asked about: a model with a provider, an artifact or a package."""

    place: str
    provider: str = ""
    measures: Mapping[str, float] = {}
    refused: Collection[str] = ()
    findings: Sequence[Finding] = ()


class Condition(NamedTuple):
    """One value of `--fail-on`: `broken` gives the words that say how a thing breaks it, "" where it does not."""

    text: str
    provider: str
    broken: Callable[[Watched], str]


def fail_on_option(*, models: bool = True, rules: Sequence[str] = ()) -> Callable[[AnyCommand], AnyCommand]:
    """The option. `models`: the command judges models with providers; `rules` are those of its findings."""
    examples = [*(MEASURES.values() if models else ()), *(("refused:Resize",) if models else ())]
    examples += [*((f"finding:{rules[0]}",) if rules else ()), "error", "warning"]

    def read(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[Condition, ...]:
        def refuse(text: str, why: str, close: str = "") -> click.BadParameter:
            hint = f"; did you mean {close}?" if close else f"; conditions are {', '.join(examples)}"
            return click.BadParameter(f"{text!r}: {why}{hint}", ctx, param)

        return tuple(_condition(value.strip(), models, rules, refuse) for value in values)

    return click.option(
        "--fail-on", "fail_on", multiple=True, callback=read, metavar="CONDITION",
        help=f"End with exit code 4 where this holds: {', '.join(examples)}; may be repeated.",
    )  # fmt: skip


def _condition(text: str, models: bool, rules: Sequence[str], refuse: Callable[..., click.BadParameter]) -> Condition:
    if text in tuple(Severity):
        return Condition(text, "", lambda seen: _worst(seen.findings, Severity(text)))
    measured, named = MEASURED.fullmatch(text), NAMED.fullmatch(text)
    provider = (measured or named or [None, None])[1] or ""
    if provider and (provider not in PROVIDER_RULES or not models):
        close = difflib.get_close_matches(provider, PROVIDER_RULES, n=1) if models else []
        raise refuse(text, f"no provider {provider!r}", close[0] + text[len(provider) :] if close else "")
    if measured and models:
        return _measure(text, provider, measured, refuse)
    if named and named[2] == "finding":
        if named[3] not in rules:
            close = difflib.get_close_matches(named[3], rules, n=1, cutoff=0.4)
            why = f"no rule {named[3]!r}" + (f" among {', '.join(rules)}" if rules and not close else "")
            raise refuse(text, why, f"finding:{close[0]}" if close else "")
        rule = named[3]
        return Condition(text, "", lambda seen: _worst([row for row in seen.findings if row.rule == rule], None))
    if named and named[2] == "refused" and models:
        name = named[3]
        if not OPERATOR.fullmatch(name) and name not in _operators():
            close = difflib.get_close_matches(name, _operators(), n=1)
            raise refuse(text, f"ONNX has no operator {name!r}", f"refused:{close[0]}" if close else "")
        return Condition(text, provider, lambda seen: f"{name} is refused" if name in seen.refused else "")
    known = [*(MEASURES.values() if models else ()), *map(str, Severity), *(f"finding:{rule}" for rule in rules)]
    raise refuse(text, "this is no condition", "".join(difflib.get_close_matches(text, known, n=1)))


def _measure(text: str, provider: str, match: re.Match[str], refuse: Callable[..., click.BadParameter]) -> Condition:
    name, sign, limit = match[2], match[3], float(match[4]) / (100 if match[5] else 1)
    if name not in MEASURES:
        close = difflib.get_close_matches(name, MEASURES, n=1)
        raise refuse(text, f"{name!r} is not measured", MEASURES[close[0]] if close else "")
    if name == "coverage" and limit > 1:
        raise refuse(text, "coverage is a share", f"coverage{sign}{match[4]}%" if limit <= 100 else "")

    def broken(seen: Watched) -> str:
        value = seen.measures.get(name)
        return f"{name} is {value:.4g}" if value is not None and SIGNS[sign](value, limit) else ""

    return Condition(text, provider, broken)


def _worst(findings: Sequence[Finding], least: Severity | None) -> str:
    rows = [row for row in findings if least is not Severity.ERROR or row.severity is Severity.ERROR]
    more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
    return f"{rows[0].what} ({rows[0].where}){more}" if rows else ""


@cache
def _operators() -> frozenset[str]:
    """The names of ONNX's operators."""
    import onnx

    return frozenset(schema.name for schema in onnx.defs.get_all_schemas())


def broken(conditions: Iterable[Condition], watched: Iterable[Watched]) -> Iterator[str]:
    """What breaks conditions, a line for each thing that does."""
    things = list(watched)
    for condition in conditions:
        for seen in things:
            if condition.provider in ("", seen.provider) and (words := condition.broken(seen)):
                where = f"{seen.place} with {seen.provider}" if seen.provider else seen.place
                yield f"--fail-on {condition.text}: {where}: {words}"


def end(conditions: Iterable[Condition], watched: Iterable[Watched], code: int) -> int:
    """The exit code of a command that would end with `code`; what breaks conditions goes to stderr.

    What could not be judged at all keeps its code: a condition that nobody could test did not hold.
    """
    from device_runner.reading import visible

    lines = list(broken(conditions, watched))
    for line in lines:
        click.echo(f"{click.style('error:', fg='red', bold=True)} {visible(line)}", err=True)
    return max(code, ExitCode.CHECK_FAILED) if lines else code
