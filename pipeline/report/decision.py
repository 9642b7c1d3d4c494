"""What a report opens with: the verdict, and by target and model what ships, how sure, what speaks against it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import msgspec

from device_runner import providers as runner_providers
from device_runner.result import Status
from pipeline.accuracy import result as accuracy_result
from pipeline.campaign import record as campaign_record
from pipeline.campaign import tuned as campaign_tuned
from pipeline.campaign.statistics import compare as run_compare
from pipeline.campaign.statistics import groups as run_groups
from pipeline.check.compare import OutputCheck
from pipeline.core import errors as core_errors
from pipeline.core import groups as counting
from pipeline.release import choose
from pipeline.report import layout, wording
from pipeline.report.drawing import log_place
from pipeline.report.first_lines import accuracy_of, grown_text, size_of
from pipeline.report.model import CampaignReport, ChoiceRow, Row
from pipeline.report.wording import Listing

UNSTEADY = (
    "change beyond the limit when inputs change by a rounding error: another release or processor may compute others, "
    "with the original, too"
)
MOST_REASONS = 5
MOST_CARDS = 12
"""Answers that have a card each on the page: more of them are rows of one table."""
MOST_ROUNDS = 100
"""Rounds that somebody may be asked for: where more are needed, the device is too unsteady."""


class BannerState(StrEnum):
    """What to do with it."""

    STOP = "stop"
    CAUTION = "caution"
    READY = "ready"


class Banner(NamedTuple):
    """The verdict, its headline, and what it rests on, each reason a sentence."""

    state: BannerState
    headline: str
    reasons: tuple[str, ...] = ()


def banner(report: CampaignReport) -> Banner | None:
    """The verdict on a campaign: what forbids shipping before what is only to be known; None where nothing was made."""
    answers = report.tuned.answers if report.tuned else ()
    impossible = [answer for answer in answers if answer.search.outcome is campaign_tuned.TuneOutcome.NONE_POSSIBLE]
    stops = [answer.why_none for answer in impossible]
    stops += [
        f"the proof in {proof.library.file} failed: {'; '.join(proof.objections[:3])}"
        for proof in report.proofs
        if proof.failed
    ]
    stops += [f"no bundle was made: {refusal}" for refusal in report.refusals]
    of_search = {(answer.search.model, answer.why_none) for answer in impossible}
    reasons = counting.grouped(
        ((withheld.model, withheld.what), withheld.target)
        for withheld in report.withheld
        if (withheld.model, withheld.reason) not in of_search
    )
    stops += [
        f"nothing of {model} may ship to {', '.join(targets)}: {reason}" for (model, reason), targets in reasons.items()
    ]
    if stops:
        return Banner(BannerState.STOP, f"Do not ship: {stops[0]}", _shown(stops[1:]))
    cautions = _shown(list(_cautions(report)))
    number = len({choice.file for choice in report.choices})
    files = counting.counted(number, "artifact")
    if not number:
        if not cautions or not report.models:  # `ort-mobile perf` has no models to choose among
            return None
        return Banner(BannerState.CAUTION, "Nothing was chosen to ship", cautions)
    if cautions:
        return Banner(BannerState.CAUTION, f"Ready to ship with reservations: {files}", cautions)
    return Banner(BannerState.READY, f"Ready to ship: {files}")


def _shown(reasons: Sequence[str]) -> tuple[str, ...]:
    if len(reasons) <= MOST_REASONS:
        return tuple(reasons)
    return (*reasons[:MOST_REASONS], f"{len(reasons) - MOST_REASONS} more, below")


def _cautions(report: CampaignReport) -> Iterator[str]:
    shipped = {(choice.model, choice.variant) for choice in report.choices}
    checks = {(check.model, check.variant): check.checks for check in report.checks}
    if failed := sum(any(check.failed for check in of_file) for of_file in checks.values()):
        yield f"{counting.counted(failed, 'variant')} failed the numeric check and {_are(failed)} left out"
    differing = [row for row in report.rows if any(check.failed for check in row.checks)]
    if differing:
        yield f"outputs differ in {len(differing)} of {len(report.rows)} rows measured on devices"
    yield from _accuracy_cautions(report, shipped)
    unknown = {key: [c for c in of_file if c.unknown] for key, of_file in checks.items() if key in shipped}
    if number := sum(map(bool, unknown.values())):
        of_data = [check for of_file in unknown.values() for check in of_file if not check.remedy]
        advice = "on this test data" if of_data else "here, whatever the data"
        if given := _kind_of_data(of_data):
            advice = f"on {given}: give test data"
        yield f"outputs of {counting.counted(number, 'variant')} that {_ship(number)} cannot be judged {advice}"
    for model in report.models:
        if model.guessed and model.name in {name for name, _ in shipped}:
            yield f"{model.name}: {_guesses(model)}"
        if model.constants and model.name in {name for name, _ in shipped}:
            yield f"{model.name}: {_constants(model)}"
        if model.attached and not model.oracle and model.name in {name for name, _ in shipped}:
            yield f"{model.name}: {UNCONFIRMED}"
    made_up = counting.grouped(
        (_kind_of_data(checks[key]), key[0]) for key in sorted(shipped) if _without_data(checks.get(key, ()))
    )
    for given, models in made_up.items():
        distinct = list(dict.fromkeys(models))
        names = ", ".join(distinct) if len(distinct) <= choose.MOST_NAMED else f"{len(distinct)} models"
        yield f"outputs of {names} were compared on {given} only: give test data"
    unsteady = dict.fromkeys(model for model, variant in sorted(shipped) if _unsteady(checks.get((model, variant), ())))
    if unsteady:
        yield f"outputs of {', '.join(unsteady)} {UNSTEADY}"
    if any(row.status.value == "failed" or row.failed_rounds for row in report.rows) or report.failures:
        yield f"{counting.counted(len(report.failures), 'failure')}, listed below"
    yield from (f"not proven in {proof.library.file}: {proof.not_run_text}" for proof in report.proofs if proof.not_run)
    yield from (
        f"{warning.where}: {warning.what}" for warning in report.warnings if warning.code == core_errors.APP_CODE
    )
    yield from _choice_cautions(report)


def _choice_cautions(report: CampaignReport) -> Iterator[str]:
    """What speaks against files that ship: their size, a faster one on some device, that nothing was measured."""
    for choice in {(choice.model, choice.variant): choice for choice in report.choices}.values():
        if text := grown_text(report, choice):
            yield f"{choice.variant} of {choice.model} has {text}"
    for choice in report.choices:
        if choice.slower:
            worst, *others = (choose.slower_text(device, comparison) for device, comparison in choice.slower.items())
            more = f" (and on {len(others)} more)" if others else ""
            yield (
                f"{choice.variant} of {choice.model} is slower than another {worst}{more}; `ort-mobile tune` "
                "can find a choice for each class of devices"
            )
    if unmeasured := [choice for choice in report.choices if not (choice.device or choice.classes)]:
        number = len({choice.target for choice in unmeasured})
        yield f"nothing was measured on devices like {number} of {len({c.target for c in report.choices})} targets"


def _accuracy_cautions(report: CampaignReport, shipped: set[tuple[str, str]]) -> Iterator[str]:
    """Artifacts that their accuracy keeps out, and those that ship without a budget for it."""
    results = {(accuracy.model, accuracy.variant): accuracy.result for accuracy in report.accuracy}
    over = [
        accuracy
        for accuracy in report.accuracy
        if accuracy.result and (accuracy.result.over or accuracy.result.not_finite)
    ]
    if number := len(over):
        yield f"{counting.counted(number, 'variant')} may lose more accuracy than allowed and {_are(number)} left out"
    if number := sum(bool(accuracy.refused(None)) for accuracy in report.accuracy if accuracy not in over):
        yield (
            f"{counting.counted(number, 'variant')} {_are(number)} less than {accuracy_result.FLOOR_DB:g} dB from "
            "float and left out"
        )
    ships = [result for key, result in results.items() if key in shipped]
    if number := sum(result is None or result.max_drop is None for result in ships):
        what = f"{counting.counted(number, 'variant')} in another precision {_ship(number)}"
        yield f"{what} without a budget: set `[accuracy] max_drop`"
    if number := sum(result is None or not result.computed for result in ships):
        yield f"the accuracy of {counting.counted(number, 'variant')} that {_ship(number)} could not be computed"


UNCONFIRMED = (
    "nobody has confirmed that `takes` and `gives` are what the model was made for: name a Python function of its "
    "makers as `oracle`"
)


def _guesses(model: campaign_record.ModelFacts) -> str:
    """That sizes were guessed: image_width was fixed to 224 by a guess: the files take no other size."""
    first, *more = model.guessed
    others = (f"{name} to {model.dimensions[name]}" for name in more)
    sizes = ", ".join((f"{first} was fixed to {model.dimensions[first]}", *others))
    return f"{sizes} by a guess: the files take no other {'sizes' if more else 'size'}"


def _constants(model: campaign_record.ModelFacts) -> str:
    """That inputs were constants: mask was 1 in every sample by a guess: nothing else was compared or calibrated on."""
    values = ", ".join(f"{name} was {value:g}" for name, value in model.constants.items())
    return (
        f"{values} in every sample by a guess: outputs were compared, and ranges of 8 bits calibrated, on nothing else"
    )


def _without_data(checks: Sequence[OutputCheck]) -> bool:
    """Whether outputs were judged, and on nothing that anybody gave."""
    return bool(checks) and all(check.without_data and not check.unknown for check in checks)


def _kind_of_data(checks: Sequence[OutputCheck]) -> str:
    """What stood in for test data, without names; "" where there are test data."""
    words = ["random inputs"] * any(check.random_inputs for check in checks)
    return " and ".join(words + ["constants"] * any(check.constants for check in checks))


def _unsteady(checks: Sequence[OutputCheck]) -> bool:
    """Whether an output that passed could as well not have."""
    return any(check.unsteady and check.passed for check in checks)


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _ship(number: int) -> str:
    return "ships" if number == 1 else "ship"


class Sureness(StrEnum):
    """How far the numbers carry a choice: the words are those of the page."""

    SHOWN = "shown"
    UNDECIDED = "not decidable"
    UNMEASURED = "not measured"
    NOTHING = "nothing ships"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShipAnswer:
    """One answer: texts to be escaped, "" or () for what is not known; `what` is VARIANT and run.

    `interval` draws the ratio to `than` with its bounds: three places from 0 to 1 on an axis on which `one` is equal.
    """

    model: str
    target: str
    sureness: Sureness
    what: tuple[str, str] = ("", "")
    figures: tuple[tuple[str, str], ...] = ()
    gain: str = ""
    interval: tuple[float, float, float] | None = None
    how_sure: str = ""
    against: tuple[str, ...] = ()
    why: str = ""


AXIS = (0.25, 4.0)
"""Ratios at the ends of the drawn axis, which is logarithmic: a quarter of the time, and four times as much."""

ALWAYS_AGAINST = {
    run_groups.Doubt.THROTTLED: "the phone throttled",
    run_groups.Doubt.DRIFT: "latency drifted during the campaign",
    run_groups.Doubt.SPREAD: "latencies spread widely",
    run_groups.Doubt.FEW_ROUNDS: "few rounds",
    run_groups.Doubt.SHORT_SAMPLES: "few inferences",
    run_groups.Doubt.CHARGING: "the phone was charging",
    run_groups.Doubt.CUT_SHORT: "stopped at its time limit",
    run_groups.Doubt.UNSETTLED: "still warming up when it was timed",
    run_groups.Doubt.CRASHED_AT_END: "crashed when it ended",
    run_groups.Doubt.CPU_FALLBACK: "the CPU ran nodes of the provider",
    run_groups.Doubt.EXTREME: "single inferences took far longer",
    run_groups.Doubt.NOT_A_PHONE: "not measured on a phone",
    run_groups.Doubt.QUARANTINED: "measured on a device that the lab took out",
    run_groups.Doubt.REPORTED: "reported by a package",
}
"""Doubts in a few words; the section Doubts has them with numbers and advice."""


def decisions(report: CampaignReport) -> tuple[ShipAnswer, ...]:
    """Every choice and every refusal to choose, in the order of the report."""
    # A choice is looked up among the rows of its model alone, not among thousands
    rows = counting.grouped((row.model, row) for row in report.rows)
    artifacts = counting.grouped((artifact.model, artifact) for artifact in report.artifacts)
    checks = counting.grouped((check.model, check) for check in report.checks)
    alone = {
        model: msgspec.structs.replace(
            report,
            rows=tuple(rows.get(model, ())),
            artifacts=tuple(artifacts.get(model, ())),
            checks=tuple(checks.get(model, ())),
        )
        for model in dict.fromkeys(choice.model for choice in report.choices)
    }
    withheld = (
        ShipAnswer(model=withheld.model, target=withheld.target, sureness=Sureness.NOTHING, against=(withheld.what,))
        for withheld in report.withheld
    )
    return (*(_chosen(alone[choice.model], choice) for choice in report.choices), *withheld)


def overview(report: CampaignReport) -> Listing:
    """The answers as one table, in their order; without rows where each has a card."""
    answers = decisions(report)
    rows = (
        (
            answer.model,
            answer.target,
            answer.sureness.value,
            " ".join(answer.what),
            answer.gain,
            answer.how_sure,
            ", ".join(f"{name} {text}" for name, text in answer.figures),
            "; ".join(answer.against),
        )
        for answer in answers
    )
    head = ("Model", "Target", "How sure", "Variant and run", "Gain", "Interval", "Figures", "Against it")
    return Listing(title=layout.choices_title(report), head=head, rows=tuple(rows) if len(answers) > MOST_CARDS else ())


def _chosen(report: CampaignReport, choice: ChoiceRow) -> ShipAnswer:
    # The measured row, where anything was measured on devices like its target
    key, row = (choice.model, choice.variant, choice.run), None
    if choice.device or choice.classes:
        rows_alike = (row for row in report.rows if (row.model, row.variant, row.run) == key and row.statistics)
        row = next((row for row in rows_alike if choice.device in ("", row.device)), None)
    compared = choice.fresh or (row.comparison if row else None)
    sureness = Sureness.SHOWN
    if row is None:
        sureness = Sureness.SHOWN if choice.classes else Sureness.UNMEASURED
    elif choice.undecided or (compared and (compared.low is None or compared.verdict is run_compare.Verdict.NOT_SHOWN)):
        sureness = Sureness.UNDECIDED
    interval = None  # low, ratio and high along the axis
    if compared and compared.low is not None and compared.high is not None:
        low, middle, high = (round(log_place(r, *AXIS), 4) for r in (compared.low, compared.ratio, compared.high))
        interval = low, middle, high
    figures = (
        ("median", wording.duration(row.statistics.median_ns if row and row.statistics else None)),
        ("size", size_of(report, choice) or wording.size(row.size_bytes if row else 0)),
        ("accuracy", accuracy_of(report, choice)),
        ("peak memory", wording.size(row.memory_peak_bytes if row else 0)),
    )
    sure = []  # what speaks against a choice that was not measured says so
    if sureness is not Sureness.UNMEASURED and compared and interval:
        fresh = " that did not choose it" if choice.fresh else ""
        sure.append(f"interval {wording.interval(compared)} times {compared.baseline}, {compared.rounds} rounds{fresh}")
    if sureness is Sureness.UNDECIDED:
        needed = compared.rounds_needed if compared else None
        number = len(choice.undecided)
        open_ = f"{number} {'other' if number == 1 else 'others'} may be as fast or faster: " if number else ""
        more = "measure again with more rounds"
        if needed and compared and needed > compared.rounds:
            more = f"measure again with {needed} rounds"
        if needed and needed > MOST_ROUNDS:
            more = f"measure again on a steadier device: on this one it takes about {needed:,} rounds"
        sure.append(f"{open_}{more}")
    where = ", ".join(choice.classes) or choice.device
    return ShipAnswer(
        model=choice.model,
        target=f"{choice.target}, measured on {where}" if where else choice.target,
        sureness=sureness,
        what=(choice.variant, choice.run),
        figures=tuple((name, text) for name, text in figures if text != wording.DASH),
        gain=_gain(compared) if compared else "the baseline itself" if row and row.baseline else "",
        interval=interval,
        how_sure="; ".join(sure),
        against=tuple(dict.fromkeys(_against(report, choice, row))),
        why=choice.reason,
    )


def _gain(compared: run_compare.Comparison) -> str:
    """How much faster or slower, in words: 38 % less time than none-fixed/cpu."""
    if compared.low is None or compared.verdict is run_compare.Verdict.NOT_SHOWN:
        return f"No gain shown over {compared.baseline}"
    if compared.verdict is run_compare.Verdict.SAME:
        return f"as fast as {compared.baseline}, within {compared.margin * 100:g} %"
    if compared.verdict is run_compare.Verdict.MIXED:
        median = f"median {wording.ratio(compared)} times"
        return f"faster and slower than {compared.baseline}: {median}, {wording.tails(compared.tails)}"
    ratio, by = compared.deciding_ratio, f" by the {compared.decisive.of.value}" if compared.decisive else ""
    word = "less" if ratio < 1 else "more"
    return f"{abs(1 - ratio):.0%} {word} time{by} than {compared.baseline}".replace("%", " %", 1)


def _outputs_against(choice: ChoiceRow, checks: Sequence[OutputCheck], row: Row | None) -> Iterator[str]:
    """What its outputs leave open."""
    if any(check.unknown for check in checks):
        yield "its outputs could not be judged"
    if choice.provider and not runner_providers.on_cpu(choice.provider) and not (row and row.checks):
        yield (
            "its outputs were judged on this computer's CPU, and not by "
            f"{runner_providers.provider_named(choice.provider).title}"
        )
    if _without_data(checks):
        yield f"its outputs were compared on {_kind_of_data(checks)} only"
    if _unsteady(checks):
        yield f"its outputs {UNSTEADY}"


def _against(report: CampaignReport, choice: ChoiceRow, row: Row | None) -> Iterator[str]:
    """What a reader should know before shipping it, a few words each."""
    if row is None:
        yield "nothing was measured on a device like this"
    checks = next((c.checks for c in report.checks if (c.model, c.variant) == (choice.model, choice.variant)), ())
    yield from _outputs_against(choice, checks, row)
    yield from (_guesses(model) for model in report.models if model.name == choice.model and model.guessed)
    if text := grown_text(report, choice):
        yield text
    accuracy = next((a for a in report.accuracy if (a.model, a.variant) == (choice.model, choice.variant)), None)
    if accuracy and (accuracy.result is None or accuracy.result.max_drop is None):
        yield "its accuracy has no budget"
    if accuracy and (accuracy.result is None or not accuracy.result.computed):
        yield "its accuracy could not be computed"
    if row and row.failed_rounds:
        yield f"{row.failed_rounds} of {row.rounds + row.failed_rounds} rounds failed"
    for proof in report.proofs:
        if proof.not_run and choice.target in (proof.targets or (choice.target,)):
            yield f"not proven in {proof.library.file}"
    for device, comparison in choice.slower.items():
        yield f"slower than another {choose.slower_text(device, comparison)}"
    for caution in row.cautions if row else ():
        yield ALWAYS_AGAINST.get(caution.code, caution.code.value.replace("_", " "))


def not_a_phone(rows: Sequence[Row]) -> bool:
    """Whether no time of a table counts: a phone's library ran on another machine."""
    timed_rows = [row for row in rows if row.status is Status.OK]
    return bool(timed_rows) and all(
        any(c.code is run_groups.Doubt.NOT_A_PHONE for c in row.cautions) for row in timed_rows
    )
