"""What a report says beside its tables: what failed, what was not as one might think, what to doubt."""

import math
from collections.abc import Callable, Iterator

import msgspec

from device_runner import providers as runner_providers
from pipeline.campaign import record as campaign_record
from pipeline.check import compare as output_compare
from pipeline.core.features import Place
from pipeline.report import wording
from pipeline.report.model import CampaignReport
from pipeline.report.proofs import proof_notes
from pipeline.report.wording import Listing, ListingNote, Section, gathered, sections_of

LISTINGS = Place[Callable[[CampaignReport, bool], Iterator[Listing]]]("report.listings")
"""Tables of features, of a report and whether only those are wanted that fit a terminal."""


def offered(report: CampaignReport, *, brief: bool = False) -> tuple[Listing, ...]:
    """What features have to show of a report; empty tables left out."""
    return tuple(listing for listings in LISTINGS for listing in listings(report, brief) if listing.rows)


DOUBTS = "Doubts"

NOT_MEASURED = "Accuracy that was not measured"

SLOW_START = 10
"""How many times the median a first run takes that users will notice, if it takes `SLOW_START_NS` more, too."""

SLOW_START_NS = 100_000_000


def sections(report: CampaignReport) -> tuple[Section, ...]:
    """Everything to know beside the table, what matters most first; empty sections left out."""
    skipped = [
        (campaign_record.place(skipped.device, skipped.model, skipped.variant, skipped.run), skipped.text)
        for skipped in report.skipped
    ]
    slow_starts = []  # first inferences that compile or plan what later ones have; the steady state leaves them out
    for row in report.rows:
        median_ns = row.statistics.median_ns if row.statistics else math.inf
        if row.first_run_ns > max(SLOW_START * median_ns, median_ns + SLOW_START_NS):
            gpu = runner_providers.provider_named(row.run.partition("+")[0]).gpu
            times = f"{wording.duration(row.first_run_ns)}, then {wording.duration(median_ns)}"
            slow_starts.append(
                ListingNote(
                    title="",
                    text=times + "; shaders are compiled in it" * gpu,
                    remedy="run it once in the background",
                    places=(row.place,),
                )
            )
    return sections_of(
        {
            "Warnings": warnings(report),
            "Models that could not be used": [
                ListingNote(title=model.name, text=model.error, remedy=model.remedy)
                for model in report.models
                if model.error
            ],
            "What failed": gathered(_failures(report)),
            "Findings of the proof": [note for proof in report.proofs for note in proof_notes(proof)],
            "Outputs that differ": gathered(_outputs(report, unknown=False)),
            "Outputs that could not be judged": gathered(_outputs(report, unknown=True)),
            NOT_MEASURED: gathered(
                ListingNote(
                    title="", text=accuracy.why, places=(campaign_record.place(accuracy.model, accuracy.variant),)
                )
                for accuracy in report.accuracy
                if accuracy.result is None
            ),
            "Skipped": gathered(
                ListingNote(title="", text=text, places=(where,) if where else ()) for where, text in skipped
            ),
            "Slow first runs": slow_starts,
            DOUBTS: gathered(
                ListingNote(
                    title=caution.code.value.replace("_", " "),
                    text="",
                    remedy=caution.remedy,
                    places=(f"{row.place}: {caution.what}",),
                )
                for row in report.rows
                for caution in row.cautions
            ),
        }
    )


def failed_lines(report: CampaignReport) -> Iterator[str]:
    """What went wrong, each in a line: models, runs, outputs, searches and proofs."""
    yield from (f"{model.name}: {model.error}; {model.remedy}" for model in report.models if model.error)
    for note in [*gathered(_failures(report)), *gathered(_outputs(report, unknown=False))]:
        yield ": ".join(part for part in (", ".join(note.places[:3]), note.title, note.text) if part)
    yield from (answer.why_none for answer in (report.tuned.answers if report.tuned else ()) if answer.why_none)
    yield from (text for proof in report.proofs for text in proof.objections)
    if not (report.rows or report.modes):
        yield from (
            f"{campaign_record.place(skipped.device, skipped.model, skipped.variant, skipped.run)}: {skipped.text}"
            for skipped in report.skipped
        )
        yield "nothing was measured"


def warnings(report: CampaignReport) -> list[ListingNote]:
    """What was not as one might think, once for all its places."""
    return gathered(
        ListingNote(title="", text=warning.text, places=(warning.where,) if warning.where else ())
        for warning in report.warnings
    )


def _failures(report: CampaignReport) -> Iterator[ListingNote]:
    for failure in report.failures:
        times = f" ({failure.times} times)" if failure.times > 1 else ""
        where = failure.key.place + times
        title = failure.code.replace("_", " ")
        yield ListingNote(title=title, text=failure.reason.rstrip("."), remedy=failure.remedy, places=(where,))


HERE = "before measuring"
"""Where artifacts are checked first: the CPU of the computer that made them."""


def _outputs(report: CampaignReport, *, unknown: bool) -> Iterator[ListingNote]:
    """Outputs that differ, or could not be judged, wherever they were compared."""
    compared = [(campaign_record.place(HERE, check.model, check.variant), check.checks) for check in report.checks]
    compared += [(row.place, row.checks) for row in report.rows]
    wrong = [(where, c) for where, checks in compared for c in checks if (c.unknown if unknown else c.failed)]
    worst: dict[str, float] = {}
    for _, check in wrong:
        worst[check.output] = max(worst.get(check.output, 0.0), check.max_rel_error or 0.0)
    for where, check in wrong:
        right = "the original model" if check.sqnr_db is msgspec.UNSET else "the model in its precision"
        error = f"not what {right} computes: relative error up to {wording.error_size(worst[check.output])}"
        text = error if check.failed and check.limit is not None else check.reason or "not what the original computes"
        numbers = f"{where}: {wording.check_numbers(check)}"
        yield ListingNote(title=check.output, text=text, remedy=output_compare.remedy_of(check), places=(numbers,))
