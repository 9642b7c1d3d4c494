"""What a reader wants to know first: what ships of each model, with size and accuracy beside the original's."""

from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.core import groups as counting
from pipeline.core.variant import Artifact
from pipeline.passes import precisions as passes_precisions
from pipeline.report import accuracies, growth, wording
from pipeline.report.model import CampaignReport, ChoiceRow
from pipeline.report.wording import Line

MOST_ANSWERS = 3
"""So many are shown before the tables; the table of what ships has all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedFile:
    """One file that ships, in words to be escaped."""

    model: str
    ships: str
    size: str
    accuracy: str


def shipped_files(report: CampaignReport) -> tuple[ShippedFile, ...]:
    """Every file that ships, in the order of the choices."""
    by_file = counting.grouped(((choice.model, choice.variant, choice.run), choice) for choice in report.choices)
    return tuple(_shipped(report, choices) for choices in by_file.values())


def first_lines(report: CampaignReport) -> Iterator[Line]:
    """Three lines for each of the first files that ship; nothing where none does."""
    answers = () if report.stopped else shipped_files(report)
    several = len({answer.model for answer in answers}) > 1
    for answer in answers[:MOST_ANSWERS]:
        yield Line(("Ships:    ", "bold"), f"{answer.model}: " * several + answer.ships, indent=0)
        yield Line(("Size:     ", "bold"), answer.size, indent=0)
        yield Line(("Accuracy: ", "bold"), answer.accuracy, indent=0)
    if len(answers) > MOST_ANSWERS:
        yield Line(
            f"and {counting.counted(len(answers) - MOST_ANSWERS, 'more file')} below, in the table of what ships",
            indent=0,
        )
    if answers:
        yield Line(indent=0)


def _shipped(report: CampaignReport, choices: list[ChoiceRow]) -> ShippedFile:
    choice, *_ = choices
    targets = ", ".join(dict.fromkeys(choice.target for choice in choices))
    measured = any(choice.device or choice.classes for choice in choices)
    precision = _precision(report, choice)
    form = f", {passes_precisions.common_name(precision)}" if precision else ""
    unmeasured = "" if measured else "; not measured on a device like it"
    return ShippedFile(
        model=choice.model,
        ships=f"{choice.variant}{form}, run with {choice.run}, to {targets}{unmeasured}",
        size=size_of(report, choice) or "not known",
        accuracy=accuracy_of(report, choice),
    )


def _key(choice: ChoiceRow) -> tuple[str, str]:
    return choice.model, choice.variant


def _artifact(report: CampaignReport, choice: ChoiceRow) -> Artifact | None:
    """What ships; None where the report does not have it."""
    return next((made for made in report.artifacts if (made.model, made.variant.name) == _key(choice)), None)


def _original_bytes(report: CampaignReport, choice: ChoiceRow) -> int:
    """Of the model as it was given; 0 where that is not known."""
    return next((model.size_bytes for model in report.models if model.name == choice.model), 0)


def _precision(report: CampaignReport, choice: ChoiceRow) -> str:
    """The name of the precision of what ships; "" for the model's own."""
    artifact = _artifact(report, choice)
    return artifact.variant.precision if artifact else ""


def size_of(report: CampaignReport, choice: ChoiceRow) -> str:
    """The bytes of what ships beside those of the model as it was given; "" where they are not known."""
    artifact, original = _artifact(report, choice), _original_bytes(report, choice)
    if artifact is None:
        return ""
    text = wording.size(artifact.total_bytes)
    if not original:
        return text
    difference = wording.change(artifact.total_bytes, original)
    return f"{text}, the original {wording.size(original)} ({difference})"


def grown_text(report: CampaignReport, choice: ChoiceRow) -> str:
    """That what ships is much larger than the model as it was given, and what is smaller; "" where it is not."""
    chosen, original = _artifact(report, choice), _original_bytes(report, choice)
    if chosen is None or not growth.grown(chosen, original):
        return ""
    alike = [
        made
        for made in report.artifacts
        if (made.model, made.variant.precision) == (choice.model, chosen.variant.precision)
    ]
    smaller = growth.not_grown(alike, original)
    return f"{chosen.total_bytes / original:.1f} times the size of the original: {smaller}"


def accuracy_of(report: CampaignReport, choice: ChoiceRow) -> str:
    """The accuracy of what ships beside the original's: the metric, else how near its outputs are."""
    checks = next((check.checks for check in report.checks if (check.model, check.variant) == _key(choice)), ())
    accuracy = next(
        (accuracy for accuracy in report.accuracy if (accuracy.model, accuracy.variant) == _key(choice)), None
    )
    outputs = wording.outputs(checks) if checks else ""
    if accuracy and accuracy.result and accuracy.result.computed:
        result = accuracy.result
        value, original = (accuracies.number(result, number) for number in (result.value, result.reference_value))
        beside = f", the original {original}" if result.reference_value is not None else ""
        budget = "no budget" if result.max_drop is None else accuracies.verdict_text(result)
        drop = f", drop {accuracies.drop_text(result)} ({budget})" if result.drop is not None else ""
        return f"{result.metric} {value}{beside}{drop}, on {counting.counted(result.samples, 'sample')}"
    if _precision(report, choice):
        distance = wording.from_float(checks)
        why = (accuracy.why if accuracy else "") or "give test data"
        return f"not measured: {why}" + (f"; {distance}" if distance else "")
    if not outputs:
        return "not compared with the original"
    if any(check.unknown for check in checks):
        return "the original's precision; its outputs could not be judged"
    given = wording.data_of(checks)
    compared = f", compared on one sample of {given}" if given else ""
    if any(check.unsteady for check in checks):
        compared += "; unsteady: a rounding error in the inputs changes them beyond the limit"
    errors = [check.max_rel_error for check in checks if check.max_rel_error is not None]
    error = wording.error_size(max(errors, default=0.0))
    equal = "the original's, bit for bit" if error == "0" else f"the original's: outputs differ by at most {error}"
    return f"{equal}{compared}"
