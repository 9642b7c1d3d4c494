"""What `ort-mobile partition --advise` shows in the terminal."""

from collections.abc import Iterator

from rich.markup import escape

from pipeline.advice.answer import Advice, AdviceVerdict, Combination, FixChoice, FixOutcome, FixResult
from pipeline.report.wording import visible

CHOICE_COLOURS = {FixChoice.USE: "green", FixChoice.MEASURE: "yellow", FixChoice.CPU: "red"}


def verdict_line(verdict: AdviceVerdict) -> str:
    """The verdict with its reason, as markup."""
    colour = CHOICE_COLOURS[verdict.choice]
    return f"  verdict: [bold {colour}]{verdict.choice.value}[/]: {escape(visible(verdict.reason))}"


def advice_lines(advice: Advice) -> Iterator[str]:
    """Markup lines: what each fix gains, why others do not, and the best combination."""
    if advice.error:
        yield f"  [bold red]no advice:[/] {escape(visible(advice.error))}"
        return
    gains = [result for result in advice.fixes if result.outcome is FixOutcome.GAINS]
    yield (
        "  [bold]fixes[/], each applied alone, partitioned again and compared:" if gains else "  no fix gains anything"
    )
    for result in gains:
        yield f"    [green]{escape(result.name)}[/] ({escape(result.title)}): {result.gain}{_error(result)}"
    yield from _others(advice)
    if advice.copied:
        yield f"  nothing to improve in the model itself; copied unchanged to {escape(visible(advice.copied))}"
    if advice.best:
        yield from _best_lines(advice.best)
    if gains:
        yield f"  [dim]compared on {escape(visible(advice.checked_on))}[/]"


def _error(result: FixResult | Combination) -> str:
    """The numeric error in words."""
    if result.error is None:
        return ""
    if result.error == 0:
        return ", outputs equal"
    if result.tolerance is not None and result.error > result.tolerance:
        return f", absolute error {result.absolute_error:.1g} of {result.limit:.1g} allowed"
    return f", relative error {result.error:.1g} of {result.tolerance:g} allowed"


def _others(advice: Advice) -> Iterator[str]:
    """Fixes that were rejected with their reasons, and how many had nothing to do or gained nothing."""
    for result in advice.fixes:
        if result.outcome is FixOutcome.REJECTED:
            yield f"    [yellow]{escape(result.name)}[/] rejected: {escape(visible(result.why))}"
    for outcome in (FixOutcome.NO_GAIN, FixOutcome.NOT_APPLICABLE):
        names = [result.name for result in advice.fixes if result.outcome is outcome]
        if names:
            yield f"    [dim]{outcome.value}: {', '.join(names)}[/]"


def _best_lines(best: Combination) -> Iterator[str]:
    yield f"  [bold]best together[/]: {' + '.join(best.fixes)}: {best.gain}{_error(best)}"
    for setting in best.settings:
        yield f"    needs the setting {escape(setting)}"
    yield verdict_line(best.verdict).replace("verdict:", "  verdict then:")
    if best.written:
        yield f"    written to {escape(visible(best.written))}"
