"""What `ort-mobile convert` shows: a table of artifacts, then what failed and why."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from pipeline.check import compare as output_compare
from pipeline.check.compare import OutputCheck
from pipeline.convert import command_job
from pipeline.convert import precisions as convert_precisions
from pipeline.core import errors as core_errors
from pipeline.core import groups as counting
from pipeline.core import variant as core_variant
from pipeline.core.errors import PipelineError, Severity
from pipeline.model import sources as model_sources
from pipeline.report.growth import growth_findings
from pipeline.report.wording import Line, Listing, Part, from_float, outputs, size, size_beside

MOST_ROWS = 60
"""Above this the table gives way to totals: the JSON has every row."""

MOST_FAILURES = 40
"""So many errors are shown; the JSON has every one."""


def _too_far(report: command_job.ConversionJob) -> Iterator[Part]:
    """How many files are so far from float that `run` would not ship them."""
    from pipeline.accuracy import result as accuracy_result  # which `convert` needs for nothing else

    ratios = [output_compare.worst_sqnr(checks) for checks in report.checks.values()]
    if far := sum(isinstance(ratio, float) and ratio < accuracy_result.FLOOR_DB for ratio in ratios):
        yield Line(
            f"{far} of {len(report.checks)} less than {accuracy_result.FLOOR_DB:g} dB from float: `run` ships such "
            "files only with a "
            "budget that allows it ([accuracy] max_drop, on test data)"
        )


def conversion_parts(report: command_job.ConversionJob) -> Iterator[Part]:
    """The artifacts in a table, totals, and what is to know of the models."""
    rows = [(converted, artifact) for converted in report.converted for artifact in converted.artifacts]
    if 0 < len(rows) <= MOST_ROWS:
        cells = (
            (
                converted.model.name,
                artifact.variant.name,
                size_beside(artifact.size_bytes, converted.model.size_bytes),
                f"{sum(artifact.source_operators.values())} → {sum(artifact.operators.values())}",
                artifact.sha256[:12],
                *(
                    (outputs(report.checks.get((converted.model.source.name, artifact.variant.name), ())),)
                    if report.checks
                    else ()
                ),
            )
            for converted, artifact in rows
        )
        head = ("model", "variant", "size", "nodes", "sha256", *(("outputs",) if report.checks else ()))
        yield Listing(title="", head=head, rows=tuple(cells), right=("size", "nodes"))
    if rows:
        reused = sum(converted.result.reused for converted in report.converted if converted.result)
        models = sum(bool(converted.artifacts) for converted in report.converted)
        weights = {artifact.weights: artifact.weights_bytes for _, artifact in rows if artifact.weights}
        total = size(sum(artifact.size_bytes for _, artifact in rows) + sum(weights.values()))
        unchanged = f", {reused} of them unchanged since the last time" if reused else ""
        nouns = f"{counting.counted(len(rows), 'artifact')} of {counting.counted(models, 'model')}"
        yield Line(f"{nouns}, {total}{unchanged}, for {report.abi}: {report.output}")
        for name, count in Counter(artifact.weights for _, artifact in rows if artifact.weights).items():
            yield Line(f"weights of {count} artifacts, once: {name}, {size(weights[name])}")
        separate = [artifact.file for _, artifact in rows if not artifact.weights] if report.share_weights else []
        if separate:
            why = "files in ORT format cannot share them, nor ONNX files for releases before 1.23 or without large ones"
            yield Line(f"weights of their own: {', '.join(separate)} ({why})")
    contexts = [context for converted in report.converted for context in converted.contexts]
    if contexts:
        from pipeline.report.inventory import contexts_listing
        from pipeline.report.model import SimulatedContext

        simulated = [
            SimulatedContext(
                context=context, checks=report.checks.get((converted.model.source.name, context.variant.name), ())
            )
            for converted in report.converted
            for context in converted.contexts
        ]
        yield contexts_listing(simulated)
        yield Line(
            f"{counting.counted(len(contexts), 'context')}, made by onnxruntime-qnn {contexts[0].plugin}: "
            f"{report.output}"
        )
    if report.checks:
        passed = sum(all(check.passed for check in checks) for checks in report.checks.values())
        judged = [checks for checks in report.checks.values() if not any(check.failed for check in checks)]
        unknown = sum(any(check.unknown for check in checks) for checks in judged)
        more = f", {unknown} cannot be judged on these inputs" if unknown else ""
        # What they were compared with, and how far the worst of another precision is from the float original
        distant = [check for checks in report.checks.values() for check in checks if check.sqnr_db is not msgspec.UNSET]
        worst = from_float(distant)
        what = f"the outputs of the model in their precision{f' (at worst {worst})' if worst else ''}"
        if not any(artifact.variant.precision for _, artifact in rows):
            what = "the original model's outputs"
        yield Line(f"{passed} of {len(report.checks)} give {what}{more}")
        yield from _too_far(report)
    yield from map(Line, model_sources.numbered_lines(converted.model for converted in report.converted))
    yield from map(Line, core_variant.aware_lines(artifact for _, artifact in rows))
    for conversion in report.converted:
        for verdict in conversion.verdicts:
            yield Line(f"{conversion.model.source.name}: precision {verdict.text}")
    settings = counting.grouped(
        (option, artifact.variant.name) for _, artifact in rows for option in artifact.session_options.items()
    )
    for (key, value), variants in settings.items():
        names = ", ".join(dict.fromkeys(variants))
        yield Line(f"the app must set the session config entry {key} to {value}: {names}")
    for path in report.configs:
        yield Line(f"operators they need: {path}")


def problem_lines(report: command_job.ConversionJob, *, warnings: bool) -> Iterator[Line]:
    """What failed, and perhaps what works otherwise than one might think, once for all variants; for stderr."""
    yield from _failure_lines(report.converted, warnings=warnings)
    # What the release that will run the artifacts says to them
    findings = counting.grouped(
        ((model, msgspec.structs.replace(finding, where="")), variant)
        for (model, variant), found_in in report.findings.items()
        for finding in (found_in if warnings else core_errors.errors(found_in))
    )
    for (model, finding), variants in list(findings.items())[:MOST_FAILURES]:
        severity = ERROR if finding.severity is Severity.ERROR else WARNING
        yield Line(severity, f" {model}: {finding.what} ", _variants(variants))
        yield from _why_and_remedy([("why", finding.why), ("remedy", finding.remedy)])
    if len(findings) > MOST_FAILURES:
        yield Line(f"and {len(findings) - MOST_FAILURES} more: --json has them all")
    for finding in (finding for converted in report.converted if warnings for finding in growth_findings(converted)):
        yield Line(WARNING, f" {finding.where}: {finding.what}")
        yield from _why_and_remedy([("why", finding.why), ("remedy", finding.remedy)])
    # Outputs that differ, and those that these inputs say nothing of: numbers differ, what is said does not
    differing: dict[tuple[str, OutputCheck], list[str]] = counting.grouped(
        (
            (
                model,
                OutputCheck(
                    output=check.output,
                    passed=False,
                    unknown=check.unknown,
                    random_inputs=check.random_inputs,
                    constants=check.constants,
                    reason=check.reason,
                    remedy=check.remedy,
                ),
            ),
            variant,
        )
        for (model, variant), checks in report.checks.items()
        for check in checks
        if check.failed or (warnings and not check.passed)
    )
    for (model, check), variants in differing.items():
        head = ("not judged:", "yellow") if check.unknown else ("check failed:", "bold red")
        output = f" output {check.output!r}" if check.output else ""
        yield Line(head, f" {model}{output}: {check.reason} ", _variants(variants))
        if check.output or check.remedy:
            yield Line(f"  remedy: {output_compare.remedy_of(check)}")
    if warnings and any(verdict.lacks_data for conversion in report.converted for verdict in conversion.verdicts):
        yield Line(WARNING, f" {NO_DATA}")
        yield Line(f"  remedy: {GIVE_DATA}")


ERROR = ("error:", "bold red")
WARNING = ("warning:", "yellow")
NO_DATA = "auto left out the precisions that take ranges from data"
GIVE_DATA = (
    "give --test-data for the precisions that need it: a folder with 20 to 100 samples of what the app will see "
    "(test_data_set folders, .npz, .npy, images), or module:function"
)


def _variants(names: Sequence[str]) -> tuple[str, str]:
    return f"({', '.join(names)})", "dim"


def _why_and_remedy(lines: Iterable[tuple[str, str]]) -> Iterator[Line]:
    for label, text in lines:
        if label in ("why", "remedy"):
            yield Line(f"  {label}: {text}")


class _Failed(NamedTuple):
    """Why variants of a model, or without any all of them, could not be made."""

    model: str
    error: PipelineError
    variants: list[str]


def _failure_lines(converted: Sequence[convert_precisions.Conversion], *, warnings: bool) -> Iterator[Line]:
    """What could not be made, and perhaps warnings: once for all variants that share a reason."""
    failures: list[_Failed] = []
    for conversion in converted:
        name = conversion.model.source.name
        if conversion.error:
            failures.append(_Failed(name, conversion.error, []))
            continue
        by_reason = counting.grouped(
            ((failure.what, failure.why, failure.remedy), failure.variant.name)
            for failure in conversion.failures
            if not failure.skipped
        )
        if conversion.nothing_made and not by_reason:
            first = conversion.failures[0]
            nothing = PipelineError(
                "nothing was made of it: every variant is left out", why=first.why, remedy=first.remedy
            )
            failures.append(_Failed(name, nothing, []))
        whole = not conversion.artifacts and len(by_reason) == 1
        for (what, why, remedy), variants in by_reason.items():
            failures.append(_Failed(name, PipelineError(what, why=why, remedy=remedy), [] if whole else variants))
    for name, error, variants in failures[:MOST_FAILURES]:
        which = (" ", _variants(variants)) if variants else ()
        yield Line(ERROR, f" {name}: {error.what}", *which)
        yield from _why_and_remedy(error.lines())
    if len(failures) > MOST_FAILURES:
        yield Line(f"and {len(failures) - MOST_FAILURES} more errors: --json has them all")
    if not warnings:
        return
    notes = counting.grouped(
        ((conversion.model.source.name, note), artifact.variant.name)
        for conversion in converted
        for artifact in conversion.artifacts
        for note in artifact.notes
    )
    for (name, note), variants in notes.items():
        yield Line(WARNING, f" {name}: {note} ", _variants(variants))
    skipped = counting.grouped(
        (f"{failure.why}; {failure.remedy}", failure.variant.name)
        for conversion in converted
        for failure in conversion.failures
        if failure.skipped
    )
    for reason, names in skipped.items():
        yield Line(("skipped", "yellow"), f" {', '.join(dict.fromkeys(names))}: {reason}")
