"""What a command does with its result: text for people, JSON, files for a CI, and the exit code, by conditions, too."""

import difflib
import operator
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import click

from device_runner import safe_text
from pipeline.cli.command import QUIET, AnyCommand, together
from pipeline.core import errors as core_errors
from pipeline.core import providers as provider_rules
from pipeline.core.errors import Finding, Severity

if TYPE_CHECKING:
    from pipeline.report import ci as report_ci
    from pipeline.report import wording


DOCUMENT_VERSION = 1
"""Of JSON documents whose type has no version of its own."""


def quiet() -> bool:
    """Whether --quiet is given: no tables, no progress."""
    return bool(click.get_current_context().meta.get(QUIET))


def write_result(json_text: bytes, destination: str) -> None:
    """Write JSON, indented, to a file, or to stdout for `-`."""
    import msgspec

    from pipeline.core import files as storage

    text = msgspec.json.format(json_text, indent=1) + b"\n"
    if destination == "-":
        click.echo(text, nl=False)
    else:
        storage.write_bytes(Path(destination), text)


@dataclass(slots=True)
class Outputs:
    """Where the result of a command goes: the keyword `outputs` that `json_option`, `ci_options` and others give."""

    json_to: str | None = None
    markdown_to: Path | None = None
    junit_to: Path | None = None
    sarif_to: Path | None = None

    @property
    def text(self) -> bool:
        """Whether the result is for people: neither --quiet, nor JSON on stdout, where nothing else may stand."""
        return self.json_to != "-" and not quiet()

    def write_json(self, document: Any) -> None:
        """Write a document as indented JSON where it is asked for: an object with a `version`, always."""
        import msgspec

        if self.json_to:
            version = {"version": DOCUMENT_VERSION}
            write_result(msgspec.json.encode({**version, **msgspec.to_builtins(document)}), self.json_to)

    def show_lines(self, document: Any, lines: Iterable[str]) -> None:
        """Write a document, and show lines for people, in which nothing can steer a terminal."""
        self.write_json(document)
        for line in lines if self.text else ():
            click.echo(safe_text.visible(line))

    @property
    def for_ci(self) -> bool:
        """Whether `write_ci` has anything to write."""
        files = self.junit_to or self.sarif_to or self.markdown_to
        return bool(files or os.environ.get("GITHUB_ACTIONS") or os.environ.get("GITHUB_STEP_SUMMARY"))

    def write_ci(self, document: "report_ci.CiDocument") -> None:
        """Write the files that are asked for; in GitHub Actions also annotations on stderr and the step's summary."""
        from pipeline import __version__
        from pipeline.core import files as storage
        from pipeline.report import ci as report_ci

        if self.junit_to:
            storage.write_bytes(self.junit_to, report_ci.junit(document.name, document.cases))
        if self.sarif_to:
            storage.write_bytes(self.sarif_to, report_ci.sarif(document.findings, __version__, document.source))
        if self.markdown_to:
            storage.write_text(self.markdown_to, document.summary)
        if os.environ.get("GITHUB_ACTIONS") == "true":
            for line in report_ci.annotations(document.findings):
                click.echo(line, err=True)
        if (summary := os.environ.get("GITHUB_STEP_SUMMARY")) and document.summary:
            try:
                with Path(summary).open("a", encoding="utf-8") as file:
                    file.write(f"{document.summary}\n")
            except OSError as error:
                click.echo(f"the step's summary was not written: {summary}: {error.strerror}", err=True)

    def show_errors(self, lines: Iterable[str]) -> None:
        """What went wrong, on stderr, where no text says it: with --quiet, or JSON on stdout."""
        for line in () if self.text else lines:
            click.echo(f"{click.style('error:', fg='red', bold=True)} {safe_text.visible(line)}", err=True)

    def finish(
        self,
        document: Any,
        parts: "Iterable[wording.Part]",
        *,
        code: int = 0,
        failed: Iterable[str] = (),
        title: str = "",
        ci: "report_ci.CiDocument | None" = None,
    ) -> NoReturn:
        """Write and show a result, and end the command: `parts` for people, as Markdown under the `title`, too.

        `failed` are its errors, which `parts` say, too.
        """
        parts = list(parts)
        if ci:
            self.write_ci(ci)
        elif self.markdown_to:
            from pipeline.core import files as storage
            from pipeline.report import ci as report_ci

            storage.write_text(self.markdown_to, report_ci.bounded(title, parts, "the JSON"))
        self.write_json(document)
        if self.text:
            from pipeline.report import show as terminal

            terminal.show(parts)
        self.show_errors(failed)
        click.get_current_context().exit(code)


def output_option(name: str, **settings: Any) -> Callable[[AnyCommand], AnyCommand]:
    """An option whose value is a field of `Outputs`, by `name`."""

    def keep(ctx: click.Context, _param: click.Parameter, value: Any) -> None:
        setattr(ctx.params.setdefault("outputs", Outputs()), name, value)

    option = f"--{name.removesuffix('_to')}"
    return click.option(option, name, expose_value=False, callback=keep, **settings)


FILE = click.Path(path_type=Path, dir_okay=False)

json_option = output_option("json_to", metavar="FILE|-", help="Write the result as JSON to a file, or to stdout.")
markdown_option = output_option(
    "markdown_to",
    type=FILE,
    metavar="FILE",
    help="Write the result as Markdown of at most 60,000 characters, as for a comment on a pull request.",
)
junit_option = output_option("junit_to", type=FILE, metavar="FILE", help="Write JUnit XML: a test case for each run.")
sarif_option = output_option(
    "sarif_to",
    type=FILE,
    metavar="FILE",
    help="Write SARIF 2.1.0: failures and findings, with fingerprints that stay the same from run to run.",
)


ci_options = together(junit_option, sarif_option, markdown_option)
"""The three options of files for a CI."""


SIGNS: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
}
MEASURES: Mapping[str, str] = {
    "partitions": "partitions>1",
    "coverage": "coverage<0.9",
    "memory": "memory>200MB",
}
"""What is counted of a model with a provider, with a condition as an example; memory in MB of 1,000,000 bytes."""
MEASURED = re.compile(r"(?:([\w-]+)\.)?([a-z]+) *(<=|>=|<|>|=) *(\d+(?:\.\d+)?)(%|MB|)")
NAMED = re.compile(r"(?:([\w-]+)\.)?(refused|finding):(.+)")
OPERATOR = re.compile(r"[\w.]+:\w+")
"""An operator with its domain, as com.microsoft:Gelu: there is no list of those."""


class Watched(NamedTuple):
    """What a condition is tested on: a model with a provider, an artifact or a package."""

    place: str
    provider: str = ""
    measures: Mapping[str, float] = {}
    refused: Collection[str] = ()
    findings: Sequence[Finding] = ()


@dataclass(frozen=True, slots=True)
class Condition:
    """One value of `--fail-on`, and the provider that it is for ("" for all)."""

    text: str
    provider: str
    broken: Callable[[Watched], str]
    """The words that say how a thing breaks it, "" where it does not."""


def fail_on_option(
    measures: Sequence[str] = (), *, operators: bool = False, rules: Sequence[str] = ()
) -> Callable[[AnyCommand], AnyCommand]:
    """`--fail-on` of a command with these measures and rules of findings; `operators`: it reports refused operators."""
    examples = [  # a condition of each kind
        *(MEASURES[name] for name in measures),
        *(("refused:Resize",) if operators else ()),
        *((f"finding:{rules[0]}",) if rules else ()),
        *map(str, Severity),
    ]

    def read(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[Condition, ...]:
        try:
            return tuple(_condition(value.strip(), measures, rules, operators=operators) for value in values)
        except _Wrong as error:
            hint = f"did you mean {error.close[0]}?" if error.close else f"conditions are {', '.join(examples)}"
            raise click.BadParameter(f"{error.text!r}: {error.why}; {hint}", ctx, param) from error

    return click.option(
        "--fail-on",
        "fail_on",
        multiple=True,
        callback=read,
        metavar="CONDITION",
        help=f"End with exit code 4 where this holds: {', '.join(examples)}; may be repeated.",
    )


class _Wrong(ValueError):
    """A value that is no condition, why, and the conditions that are nearest."""

    def __init__(self, text: str, why: str, close: Sequence[str]) -> None:
        super().__init__(f"{text!r}: {why}")
        self.text, self.why, self.close = text, why, close


def _condition(text: str, measures: Sequence[str], rules: Sequence[str], *, operators: bool) -> Condition:
    if text in tuple(Severity):
        return Condition(text, "", lambda subject: _worst(subject.findings, Severity(text)))
    measured, named = MEASURED.fullmatch(text), NAMED.fullmatch(text)
    provider = (measured or named or [None, None])[1] or ""
    providers = {*provider_rules.PROVIDER_RULES, *(rules.provider for rules in provider_rules.PROVIDER_RULES.values())}
    if provider and provider not in providers:
        close = [near + text[len(provider) :] for near in difflib.get_close_matches(provider, providers, n=1)]
        raise _Wrong(text, f"no provider {provider!r}", close)
    if measured and measures:
        return _measure(text, measured, measures)
    if named and named[2] == "finding" and rules:
        rule = named[3]
        if rule not in rules:
            close = [f"finding:{near}" for near in difflib.get_close_matches(rule, rules, n=1, cutoff=0.4)]
            raise _Wrong(text, f"no rule {rule!r} among {', '.join(rules)}", close)

        def of_rule(subject: Watched) -> str:
            return _worst([finding for finding in subject.findings if finding.code == rule], None)

        return Condition(text, "", of_rule)
    if named and named[2] == "refused" and operators:
        name = named[3]
        if not OPERATOR.fullmatch(name) and name not in _operators():
            close = [f"refused:{near}" for near in difflib.get_close_matches(name, _operators(), n=1)]
            raise _Wrong(text, f"ONNX has no operator {name!r}", close)
        return Condition(text, provider, lambda subject: f"{name} is refused" if name in subject.refused else "")
    conditions = [*(MEASURES[name] for name in measures), *(("refused:Resize",) if operators else ())]
    conditions += [*map(str, Severity), *(f"finding:{rule}" for rule in rules)]
    raise _Wrong(text, "this is no condition here", difflib.get_close_matches(text, conditions, n=1))


def _measure(text: str, match: re.Match[str], measures: Sequence[str]) -> Condition:
    name, sign, limit = match[2], match[3], float(match[4]) / (100 if match[5] == "%" else 1)
    if name not in measures or (match[5] == "MB") != (name == "memory"):
        close = [MEASURES[near] for near in difflib.get_close_matches(name, measures, n=1)]
        raise _Wrong(text, f"{name!r} is not measured here", close)
    if name == "coverage" and limit > 1:
        raise _Wrong(text, "coverage is a share", [f"coverage{sign}{match[4]}%"] if limit <= 100 else [])

    unit = "MB" if name == "memory" else ""

    def broken(subject: Watched) -> str:
        value = subject.measures.get(name)
        return f"{name} is {value:.4g}{unit}" if value is not None and SIGNS[sign](value, limit) else ""

    return Condition(text, match[1] or "", broken)


def _worst(findings: Sequence[Finding], least: Severity | None) -> str:
    rows = [finding for finding in findings if least is not Severity.ERROR or finding.severity is Severity.ERROR]
    more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
    return f"{rows[0].what} ({rows[0].where}){more}" if rows else ""


@cache
def _operators() -> frozenset[str]:
    """The names of ONNX's operators."""
    import onnx

    return frozenset(schema.name for schema in onnx.defs.get_all_schemas())


def end(conditions: Iterable[Condition], watched: Iterable[Watched], code: int) -> int:
    """The exit code of a command that would end with `code`; what breaks conditions goes to stderr.

    What could not be judged at all keeps its code: a condition that nobody could test did not hold.
    """
    things = list(watched)
    for condition in conditions:
        for subject in things:
            rules = provider_rules.PROVIDER_RULES.get(subject.provider)
            concerned = condition.provider in ("", subject.provider, rules.provider if rules else "")
            if concerned and (words := condition.broken(subject)):
                where = f"{subject.place} with {subject.provider}" if subject.provider else subject.place
                line = safe_text.visible(f"--fail-on {condition.text}: {where}: {words}")
                click.echo(f"{click.style('error:', fg='red', bold=True)} {line}", err=True)
                code = max(code, core_errors.ExitCode.CHECK_FAILED)
    return code


def show_findings(findings: Iterable[Finding]) -> None:
    """Print findings to stderr; names of models and libraries in them cannot steer the terminal."""
    for finding in findings:
        color = "red" if finding.severity is Severity.ERROR else "yellow"
        where = f"{finding.where}: " if finding.where else ""
        click.echo(
            f"{click.style(finding.severity.value, fg=color)}: {safe_text.visible(where + finding.what)}", err=True
        )
        for label, text in (("why", finding.why), ("remedy", finding.remedy)):
            if text:
                click.echo(f"  {label}: {safe_text.visible(text)}", err=True)
