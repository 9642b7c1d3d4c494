"""report.md: for a pull request, a wiki, a CI's summary page (GitHub's flavour of Markdown)."""

from collections.abc import Iterator, Mapping, Sequence

from pipeline.check.compare import OutputCheck
from pipeline.release.choose import Choice, slower_text
from pipeline.report import wording
from pipeline.report.decision import BannerState, banner
from pipeline.report.layout import COLUMNS, accuracies, choices, inventory, offered, results, searches, sections
from pipeline.report.model import CampaignReport, Row
from pipeline.report.modes import mode_listings
from pipeline.report.profiles import ProfileView, changes, fallbacks, fusions, operators, summary, view_notes
from pipeline.report.proof import proof_listing
from pipeline.report.wording import escaped, item, listing_lines, section_lines, table, visible


def render(report: CampaignReport) -> str:
    """The whole page."""
    parts = [
        f"# {escaped(report.name)}",
        *_banner(report),
        _head(report),
        *listing_lines(choices(report)),
        *(part for listing in offered(report) for part in listing_lines(listing)),
        *_results(report),
        *(part for listing in mode_listings(report) for part in listing_lines(listing)),
        *listing_lines(accuracies(report)),
        *(part for listing in searches(report) for part in listing_lines(listing)),
    ]
    parts += (part for proof in report.proofs for part in listing_lines(proof_listing(proof)))
    parts += section_lines(sections(report))
    parts += (part for view in report.profile_views for part in _profile_view(view))
    for listing in (summary(report.profiles), *map(operators, report.profiles)):
        parts += listing_lines(listing)
    parts += (part for listing in inventory(report) for part in listing_lines(listing))
    return "\n\n".join(parts) + "\n"


MARKS = {BannerState.STOP: "🛑", BannerState.CAUTION: "⚠️", BannerState.READY: "✅"}


def _banner(report: CampaignReport) -> Iterator[str]:
    if verdict := banner(report):
        yield f"**{MARKS[verdict.state]} {escaped(verdict.headline)}**"
        if verdict.reasons:
            yield "\n".join(f"- {item(reason)}" for reason in verdict.reasons)


def _head(report: CampaignReport) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in sorted(report.versions.items()))
    when = escaped(wording.instant(report.created_at))
    return f"Campaign {escaped(report.campaign)} of {when}, made with {escaped(versions)}."


def _profile_view(view: ProfileView) -> Iterator[str]:
    yield from listing_lines(changes(view))
    yield "\n".join(f"- {item(note)}" for note in view_notes(view))
    for listing in (fusions(view), fallbacks(view)):
        if listing.rows:
            yield f"### {escaped(listing.title)}"
            yield table(listing.head, listing.rows)


def _results(report: CampaignReport) -> Iterator[str]:
    for (model, device), rows in results(report).items():
        yield f"## {escaped(model)} on {escaped(device)}"
        yield table([column.title for column in COLUMNS], ([c.text(row) for c in COLUMNS] for row in rows))
    if report.rows:
        yield wording.legend(report)


def measured_text(
    report: CampaignReport, choices: Sequence[Choice], checks: Mapping[str, Mapping[str, Sequence[OutputCheck]]]
) -> str:
    """What was measured of what ships, by target: devices, latencies with intervals, and the numeric check."""
    lines = [f"# {report.name}: what was measured", ""]
    lines += [
        f"Campaign {report.campaign}.",
        "Latency is the median time of one inference; every round is a fresh process.",
        "",
    ]
    for choice in choices:
        lines += _of_choice(choice, report, checks.get(choice.artifact.model, {}).get(choice.artifact.variant.name, ()))
    return "\n".join(lines)


def _of_choice(choice: Choice, report: CampaignReport, checks: Sequence[OutputCheck]) -> Iterator[str]:
    artifact = choice.artifact
    yield f"## {artifact.file} for {choice.target.name}"
    yield ""
    yield f"{choice.reason[:1].upper()}{choice.reason[1:]}."
    yield ""
    for device, comparison in choice.slower.items():
        yield f"- slower than another {slower_text(device, comparison)}"
    yield from ("",) if choice.slower else ()
    wanted = (artifact.model, artifact.variant.name)
    rows = [row for row in report.rows if (row.model, row.variant) == wanted]
    yield from _measured(rows) if rows else ("Not measured on any device.", "")
    yield from _checks(checks)


def _measured(rows: Sequence[Row]) -> Iterator[str]:
    yield "| device | session options | latency | medians of the rounds | p90 | rounds | peak memory |"
    yield "|---|---|---|---|---|---|---|"
    for row in rows:
        times = row.statistics
        medians = times.round_medians_ns if times else ()
        interval = f"{wording.duration(min(medians))} to {wording.duration(max(medians))}" if medians else wording.DASH
        cells = (
            row.device, row.run, wording.duration(times.median_ns if times else None), interval,
            wording.duration(times.p90_ns if times else None), str(row.rounds), wording.size(row.memory_peak_bytes),
        )  # fmt: skip
        yield f"| {' | '.join(visible(cell).replace('|', '/') for cell in cells)} |"
    yield ""


def _checks(checks: Sequence[OutputCheck]) -> Iterator[str]:
    random = " on random inputs only" if any(check.random_inputs for check in checks) else ""
    yield f"Outputs{random} where the bundle was made, compared with those of the original model in this precision:"
    yield ""
    for check in checks:
        verdict = "passed" if check.passed else "not judged" if check.unknown else "FAILED"
        reason = f"; {escaped(check.reason)}" if check.reason else ""
        yield f"- {item(check.output)}: {verdict}; {wording.check_numbers(check)}{reason}"
    yield ""
