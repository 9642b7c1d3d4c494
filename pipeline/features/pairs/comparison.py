"""Two stored campaigns beside each other: read, ratios with intervals, verdicts, and what changed between the two.

Rounds of one campaign alternate between its variants, so they are compared in pairs. Those of two campaigns are not:
then the interval is Welch's, which knows how much the rounds of each side scatter, and nothing of what differs between
the hours in which they were measured.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec
import numpy as np

from device_runner import untrusted_files
from device_runner.result import Status
from pipeline.campaign import changed_facts
from pipeline.campaign import record as campaign_record
from pipeline.campaign.statistics import compare as run_compare
from pipeline.campaign.statistics import groups as run_groups
from pipeline.core import errors as core_errors
from pipeline.core import files as storage
from pipeline.core.errors import ConfigError, PipelineError
from pipeline.features.pairs.report import ALARMS, ComparedPair, change_text, pair_head
from pipeline.job import stored as job_stored
from pipeline.release import manifest as bundle_manifest
from pipeline.report import model as report_model
from pipeline.report import wording

COMPARISON_VERSION: Final = 1
FEWEST = 4
"""Rounds of each side: from fewer no interval is given."""

SQLITE = b"SQLite format 3\0"
PREVIOUS = "previous"
"""What stands for the campaign before the newest, as in output/my#previous."""


def read_side(text: str) -> report_model.CampaignReport:
    """The campaign that `PATH`, `URL` or either with `#CAMPAIGN` names.

    Raises ConfigError for what is nothing of these, and PipelineError for what is damaged or another release's.
    """
    location, _, campaign = text.partition("#") if not Path(text).exists() else (text, "", "")
    path, is_url = Path(location), "://" in location
    if not is_url and not path.exists():
        raise ConfigError(
            "there is nothing to compare",
            where=location,
            why="no file or folder has this name",
            remedy="name results.json, results.sqlite, an output folder, a bundle of ort-mobile, or a database URL",
        )
    if is_url:
        return _stored(None, location, campaign)
    if path.is_dir():
        if (path / bundle_manifest.MANIFEST_FILE).is_file():
            return _of_bundle(path)
        has_database = (path / storage.DATABASE).is_file() or (campaign and job_stored.has_campaigns(path))
        return _stored(path, None, campaign) if has_database else _of_document(path / storage.RESULTS)
    try:
        head = untrusted_files.read_regular(path, job_stored.REPORT_BYTES)[: len(SQLITE)]
    except OSError as error:
        raise ConfigError("the file cannot be read", where=str(path), why=str(error)) from error
    folder = path.parent if path.name == storage.DATABASE else None
    return _stored(folder, f"sqlite:///{path}", campaign) if head == SQLITE else _of_document(path)


def _of_document(path: Path) -> report_model.CampaignReport:
    try:
        content = untrusted_files.read_regular(path, job_stored.REPORT_BYTES)
    except OSError as error:
        raise ConfigError(
            f"there is no {storage.RESULTS} here",
            where=str(path),
            why=error.strerror or str(error),
            remedy="name results.json, results.sqlite, an output folder or a bundle of ort-mobile",
        ) from error
    return report_model.decode(content, str(path))


def _stored(folder: Path | None, database: str | None, campaign: str) -> report_model.CampaignReport:
    if campaign == PREVIOUS:
        # The last campaign before the newest that has its name; those of searches have no rounds
        with job_stored.own_campaign(folder, database) as (store, newest):
            names = store.names()
            earlier = list(names)[: list(names).index(newest.id)]
            alike = (store.campaign(name) for name in reversed(earlier) if names[name] == newest.name)
            rounds = (record for record in alike if not (record.document and record.document.searching))
            if (before := next(rounds, None)) is None:
                raise ConfigError(
                    "no campaign is before the newest",
                    where=store.where,
                    remedy="`ort-mobile report FOLDER --list` lists all",
                )
        campaign = before.id
    return job_stored.stored(folder, database, campaign or None).report


def _of_bundle(folder: Path) -> report_model.CampaignReport:
    """What a bundle keeps of its campaign."""
    manifest = bundle_manifest.read_manifest(folder)
    kept = {name: manifest.evidence.get(name) for name in ("campaign", "created_at", "host", "versions", "devices")}
    document = {**kept, "name": manifest.content.name, "margin": run_compare.DEFAULT_MARGIN}
    try:
        return msgspec.convert({**document, "rows": manifest.evidence.get("measured")}, report_model.CampaignReport)
    except msgspec.ValidationError as error:
        raise PipelineError(
            "the bundle does not say what was measured",
            where=str(folder),
            why=str(error),
            remedy="make it again: `ort-mobile bundle rebuild OUTPUT`",
        ) from error


class SideHead(msgspec.Struct, frozen=True, kw_only=True):
    """One side: as the user named it, and the campaign that is there."""

    source: str
    name: str
    campaign: str
    created_at: str


class ComparedRun(ComparedPair, frozen=True, kw_only=True):
    """An artifact with run options on a device, as both sides measured it; `a` and `b` are VARIANT/RUN.

    `low` and `high` bound the ratio at the level that decides: 90 % for "same", else 99 % and more. `paired` says
    whether rounds were compared one by one.
    """

    a: str
    b: str
    a_median_ns: float | None
    b_median_ns: float | None
    a_rounds: int
    b_rounds: int
    paired: bool = False
    verdict: run_compare.Verdict = run_compare.Verdict.NOT_SHOWN


class SideComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two campaigns compared; `margin` is the share within which two are the same.

    `only_a` and `only_b` name what one of them alone measured.
    """

    version: Literal[1] = COMPARISON_VERSION
    a: SideHead
    b: SideHead
    margin: float
    rows: tuple[ComparedRun, ...]
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()

    @property
    def exit_code(self) -> core_errors.ExitCode:
        """1 where nothing could be compared; differences are no errors."""
        return (
            core_errors.ExitCode.DONE
            if any(row.ratio is not None for row in self.rows)
            else core_errors.ExitCode.SOME_FAILED
        )


def compare_sides(
    a: report_model.CampaignReport,
    b: report_model.CampaignReport,
    *,
    sources: tuple[str, str] | None = None,
    runs: tuple[str, str] = ("", ""),
) -> SideComparison:
    """B compared with A, by device, model, variant and run; by device and model alone where runs were named.

    `sources` are what the user called them, by default their ids; `runs` (`VARIANT` or `VARIANT/RUN`) which of their
    runs are meant, "" for all. Raises ConfigError for a run that a side does not have, or that is not one of each
    device and model.
    """
    names = sources or (a.campaign, b.campaign)
    # A run that was named for one side alone is meant on the other one, too, where that has it
    run_a, run_b = (
        run or (other if other in {name for row in side.rows for name in (row.variant, row.way)} else "")
        for side, run, other in ((a, runs[0], runs[1]), (b, runs[1], runs[0]))
    )
    named = bool(run_a or run_b)
    a_rows, b_rows = _rows(a, names[0], run_a, named=named), _rows(b, names[1], run_b, named=named)
    rule = run_compare.DecisionRule(margin=max(a.margin, b.margin), least=max(a.least, b.least))
    both = [(row, b_rows[key]) for key, row in a_rows.items() if key in b_rows]
    sure = 1 - ALARMS / max(1, len(both))
    head_a, head_b = (
        SideHead(source=source, name=side.name, campaign=side.campaign, created_at=side.created_at)
        for source, side in zip(names, (a, b), strict=True)
    )
    return SideComparison(
        a=head_a,
        b=head_b,
        margin=rule.margin,
        rows=tuple(
            _compared(
                x,
                y,
                changed_facts.changes(_facts(a, x), _facts(b, y)),
                rule,
                sure,
                same_campaign=a.campaign == b.campaign,
            )
            for x, y in both
        ),
        only_a=tuple(row.place for key, row in a_rows.items() if key not in b_rows),
        only_b=tuple(row.place for key, row in b_rows.items() if key not in a_rows),
    )


def _rows(
    side: report_model.CampaignReport, source: str, run: str, *, named: bool
) -> dict[tuple[str, ...], report_model.Row]:
    rows: dict[tuple[str, ...], report_model.Row] = {}
    for row in side.rows:
        if run in ("", row.variant, row.way):
            key = (row.device, row.model) if named else (row.device, row.model, row.way)
            if key in rows:
                raise ConfigError(
                    f"{run!r} does not name one run of {row.model} on {row.device}"
                    if run
                    else f"no run is named, and there are several of {row.model} on {row.device}",
                    where=source,
                    why=f"{rows[key].way} and {row.way} are meant",
                    remedy="name it as VARIANT/PROVIDER…, as the report does, on both sides (--run-a, --run-b)",
                )
            rows[key] = row
    if run and not rows:
        names = ", ".join(dict.fromkeys(row.way for row in side.rows))
        raise ConfigError(
            f"no run {run!r} here",
            where=source,
            why=f"measured are: {names}" if names else f"campaign {side.campaign} measured nothing",
            remedy="name one of these"
            if names
            else "name another campaign, as in FOLDER#previous; `ort-mobile report FOLDER --list` lists all",
        )
    return rows


def _facts(report: report_model.CampaignReport, row: report_model.Row) -> changed_facts.Facts:
    device = next((facts for facts in report.devices if facts.name == row.device), None)
    makers = ", ".join(f"{name} {report.versions[name]}" for name in changed_facts.MAKERS if name in report.versions)
    facts = {**(row.measured_with or {}), **changed_facts.facts_of_place(row.device, device, report.host)}
    return {**facts, changed_facts.MADE_WITH: makers} if makers else facts


UNCOMPARED = {
    run_groups.Doubt.NOT_A_PHONE: "not a phone's",
    run_groups.Doubt.QUARANTINED: "of a device that a lab took out",
}
"""Doubts for which no ratio is given, and what times with them are."""


def _compared(
    a: report_model.Row,
    b: report_model.Row,
    changed: tuple[changed_facts.ChangedFact, ...],
    rule: run_compare.DecisionRule,
    confidence: float,
    *,
    same_campaign: bool,
) -> ComparedRun:
    """One row; `confidence` is that of a difference, which all rows of the comparison share."""
    a_medians, b_medians = (side.statistics.round_medians_ns if side.statistics else () for side in (a, b))
    paired = same_campaign and len(a_medians) == len(b_medians) and not (a.failed_rounds or b.failed_rounds)
    rounds = min(len(a_medians), len(b_medians))
    notes = []  # why no ratio is given
    for name, side in (("A", a), ("B", b)):
        if side.status is not Status.OK:
            notes.append(f"{side.status.value} in {name}")
        elif doubts := {caution.code for caution in side.cautions} & UNCOMPARED.keys():
            notes.append(f"times of {name} are {UNCOMPARED[min(doubts)]}")
    if rounds < FEWEST:
        notes.append(f"{rounds} rounds: at least {FEWEST} of each side make an interval")
    compared = ComparedRun(
        device=a.device,
        model=a.model,
        a=a.way,
        b=b.way,
        a_median_ns=a.statistics.median_ns if a.statistics else None,
        b_median_ns=b.statistics.median_ns if b.statistics else None,
        a_rounds=len(a_medians),
        b_rounds=len(b_medians),
        changes=changed if a.statistics and b.statistics else (),  # of what never ran nothing is known
        note=notes[0] if notes else "",
    )
    if notes:
        return compared
    interval = paired_interval if paired else unpaired_interval
    sure, likely = (interval(a_medians, b_medians, level) for level in (confidence, 0.90))
    # Means and percentiles of two hours differ by what else ran then
    by_round = [side.statistics.by_round() if side.statistics and paired else {} for side in (a, b)]
    others = [
        of for of in (run_groups.Yardstick.MEAN, run_groups.Yardstick.P90) if all(of in values for values in by_round)
    ]
    logs = {of: run_groups.log_ratios(by_round[1][of], by_round[0][of]) for of in others}
    tails = run_compare.tail_ratios(logs, 1 - confidence, margin=rule.margin)
    # Nobody knows what differs between two hours: there only what is over the margin is called different.
    rule = rule if paired else run_compare.DecisionRule(margin=rule.margin, least=rule.margin)
    verdict = run_compare.with_tails(run_compare.judge(not sure.low <= 1 <= sure.high, likely, rule), tails)
    low, high = likely[1:] if verdict is run_compare.Verdict.SAME else sure[1:]
    return msgspec.structs.replace(
        compared, ratio=likely.ratio, low=low, high=high, tails=tuple(tails), paired=paired, verdict=verdict
    )


def paired_interval(a: Sequence[float], b: Sequence[float], confidence: float) -> run_groups.Interval:
    """B's latency to A's, round by round: at least four rounds."""
    interval = run_groups.ratio_interval(run_groups.log_ratios(b, a), confidence)
    if interval is None:
        raise ValueError(f"{len(a)} rounds have no interval")
    return interval


def unpaired_interval(a: Sequence[float], b: Sequence[float], confidence: float = 0.95) -> run_groups.Interval:
    """B's latency to A's by Welch's t on logarithms of round medians; at least two of each."""
    logs = [np.log(np.maximum(side, 1.0)) for side in (a, b)]
    parts = [float(side.var(ddof=1)) / len(side) for side in logs]
    whole = sum(parts)
    freedom = whole**2 / sum(part**2 / (len(side) - 1) for part, side in zip(parts, logs, strict=True)) if whole else 1
    half = run_groups.t_quantile((1 + confidence) / 2, max(1.0, freedom)) * math.sqrt(whole)
    middle = float(logs[1].mean() - logs[0].mean())
    return run_groups.Interval(math.exp(middle), math.exp(middle - half), math.exp(middle + half))


def failed_lines(comparison: SideComparison) -> Iterator[str]:
    """Why nothing could be compared."""
    yield from (
        f"{campaign_record.place(row.device, row.model, row.a)}: {row.note}" for row in comparison.rows if row.note
    )
    yield f"nothing of {_title(comparison.b)} could be compared with {_title(comparison.a)}"


def listing(comparison: SideComparison) -> wording.Listing:
    """A row for everything that both measured."""
    rows = []
    for row in comparison.rows:
        verdict = (
            f"same within {comparison.margin * 100:g} %"
            if row.verdict is run_compare.Verdict.SAME
            else row.verdict.value
        )
        if row.tails:
            verdict += f": {wording.tails(row.tails)}"
        unpaired = "" if row.paired or row.verdict is run_compare.Verdict.NOT_SHOWN else ", unpaired"
        rounds = f"{row.a_rounds} and {row.b_rounds}{', paired' if row.paired else ''}"
        medians = (row.a_median_ns, row.b_median_ns)
        rows.append(row.listed((row.a, row.b), medians, rounds, row.note or verdict + unpaired))
    return wording.Listing(
        title=f"{_title(comparison.b)} (B) relative to {_title(comparison.a)} (A)",
        head=pair_head("A", "B", "B/A"),
        rows=tuple(rows),
    )


def since(earlier: report_model.CampaignReport, report: report_model.CampaignReport) -> wording.Listing:
    """What changed since another campaign, for the page of the newer one."""
    return listing(compare_sides(earlier, report))


def _title(head: SideHead) -> str:
    return f"{head.name}, {wording.instant(head.created_at)}"


def sections(comparison: SideComparison) -> tuple[wording.Section, ...]:
    """What changed between the two, what only one has, and how far the intervals can be trusted."""
    rows_with_places = [
        (row, campaign_record.place(row.device, row.model, row.b))
        for row in comparison.rows
        if row.a_median_ns is not None and row.b_median_ns is not None
    ]
    # In the order of NAMES, whatever changed in the first rows
    changed = sorted(
        ((change, at) for row, at in rows_with_places for change in row.changes),
        key=lambda c: changed_facts.NAMES.index(c[0].what),
    )
    notes = [wording.ListingNote(title=change.what, text=change_text(change), places=(at,)) for change, at in changed]
    notes += [
        wording.ListingNote(title="", text="nothing that is known", places=(at,))
        for row, at in rows_with_places
        if not row.changes
    ]
    method = []
    if not comparison.rows:
        method = [
            wording.ListingNote(
                title="",
                text="nothing was compared: no device measured the same model and run on both sides",
                remedy="compare campaigns of the same devices and models; name runs that differ with --run-a and "
                "--run-b",
            )
        ]
    elif comparison.a.campaign == comparison.b.campaign and any(row.a == row.b for row in comparison.rows):
        method = [
            wording.ListingNote(
                title="",
                text="A and B are the same campaign: its runs are compared with themselves",
                remedy="name two of its runs with --run-a and --run-b, or the campaign before it as FOLDER#previous",
            )
        ]
    elif not all(row.paired for row in comparison.rows):
        method = [
            wording.ListingNote(
                title="unpaired",
                text="the two were measured at different times: the interval knows how rounds scatter, not what else "
                "differed between these times",
                remedy="`ort-mobile gate A B` measures both again in alternating rounds",
            )
        ]
    return wording.sections_of(
        {
            "What changed from A to B": wording.gathered(notes),
            "Only in A": [wording.ListingNote(title="", text=text) for text in comparison.only_a],
            "Only in B": [wording.ListingNote(title="", text=text) for text in comparison.only_b],
            "How it was compared": method,
        }
    )
