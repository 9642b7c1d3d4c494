"""How values are worded in every format, the parts that tables and notes are made of, and those as Markdown.

Text may be hostile: it comes from models, devices and other people's files.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from device_runner import safe_text
from device_runner.result import Status
from pipeline.check import compare as output_compare
from pipeline.check.compare import OutputCheck

if TYPE_CHECKING:
    from device_runner.device import DeviceFacts
    from pipeline.campaign.statistics import compare as run_compare
    from pipeline.report.model import CampaignReport, Row

DASH = "-"


def instant(text: str) -> str:
    """An instant in ISO 8601 without fractions of a second, as in 2026-01-31 12:30:00 UTC; any other text as it is."""
    match = re.fullmatch(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.\d+)?(?:Z|\+00:00)", text)
    return f"{match[1]} {match[2]} UTC" if match else text


SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
TIMES = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"))


def duration(nanoseconds: float | None) -> str:
    """Three significant digits in the unit that suits: 1.23 ms. A dash for what is not known."""
    if nanoseconds is None:
        return DASH
    # 0.9995 so that 999.6 µs is 1.00 ms and not 1000 µs.
    scale, unit = next(((s, u) for s, u in TIMES if abs(nanoseconds) >= s * 0.9995), (1.0, "ns"))
    return f"{significant(nanoseconds / scale)} {unit}" if scale > 1 else f"{nanoseconds:.0f} ns"


def signed_duration(nanoseconds: float) -> str:
    """As `duration`, with its sign: +1.23 ms."""
    return f"{'-' if nanoseconds < 0 else '+'}{duration(abs(nanoseconds))}"


def size(count: int) -> str:
    """Bytes in binary units with one decimal: 24.6 KiB. A dash for 0, which means not known."""
    if not count:
        return DASH
    scale, unit = next(((s, u) for s, u in SIZES if count >= s), (1, "B"))
    return f"{count / scale:.1f} {unit}" if scale > 1 else f"{count} B"


def change(count: int, original: int) -> str:
    """How much larger or smaller than the original a file is: +20 %, -73 %, 3.9x. Nothing for what is unknown."""
    if not (count and original):
        return ""
    share = count / original
    return f"{share:.1f}x" if share >= 2 else f"{(share - 1) * 100:+.0f} %".replace("-0 %", "+0 %")


def size_beside(count: int, original: int) -> str:
    """As `size`, with what the original has: 11.6 MiB (-5 %)."""
    text = change(count, original)
    return f"{size(count)} ({text})" if text else size(count)


def significant(value: float) -> str:
    """Three significant digits without an exponent up to 999, whole numbers beyond."""
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def error_size(value: float | None) -> str:
    """An error of computation in two digits: 3.1e-07. A dash for what is not known."""
    return DASH if value is None else f"{value:.1e}" if value else "0"


def share(value: float | None) -> str:
    """A share in per cent with one decimal."""
    return DASH if value is None else f"{value:.1%}"


def ratio(comparison: "run_compare.Comparison | None") -> str:
    """The ratio to the baseline: 0.51."""
    return DASH if comparison is None else significant(comparison.ratio)


def interval(comparison: "run_compare.Comparison | None") -> str:
    """The bounds of the ratio at the level that decides: 0.49 to 0.53. A dash where rounds are too few for any."""
    if comparison is None or comparison.low is None or comparison.high is None:
        return DASH
    return f"{significant(comparison.low)} to {significant(comparison.high)}"


def fresh(comparison: "run_compare.Comparison | None") -> str:
    """How a choice did in rounds that did not choose it; nothing where there were none."""
    if comparison is None or comparison.low is None:
        return ""
    text = f"{ratio(comparison)} times {comparison.baseline} (interval {interval(comparison)})"
    return f"; in {comparison.rounds} fresh rounds {text}"


def tails(ratios: "Sequence[run_compare.TailRatio]") -> str:
    """Means and 90th percentiles beside the median: mean 8.2 times, p90 perhaps 1.3 times."""
    return ", ".join(
        f"{tail.of.value} {'' if tail.shown else 'perhaps '}{significant(tail.ratio)} times" for tail in ratios
    )


def compared(comparison: "run_compare.Comparison") -> str:
    """The verdict, with what decides it where that is not the median, or keeps it from being the same."""
    from pipeline.campaign.statistics import compare as run_compare

    if comparison.verdict is run_compare.Verdict.SAME:
        return f"same within {comparison.margin * 100:g} %"
    result, least = comparison.verdict, comparison.detectable
    if comparison.tails and (
        comparison.decisive or result in (run_compare.Verdict.MIXED, run_compare.Verdict.NOT_SHOWN)
    ):
        return f"{result.value}: {tails(comparison.tails)}"
    digits = float(format(least * 100, ".2g")) if least is not None else 0.0
    shown = (
        f" ({digits:g} % would show)"
        if result is run_compare.Verdict.NOT_SHOWN and least is not None and least < 10
        else ""
    )
    return f"{result.value}{shown}"


def verdict(row: "Row") -> str:
    """What the comparison says; that it is the baseline, or that it failed; a dash where nothing was compared."""
    if row.status is not Status.OK:
        return row.status.value
    if row.same_as:
        return f"same file as {row.same_as.removesuffix(f'/{row.run}')}"
    if row.baseline:
        return "baseline"
    if row.comparison is None:
        return DASH
    return compared(row.comparison) if row.comparison.low is not None else "too few rounds"


def status(row: "Row") -> str:
    """How it went, with the number of rounds that failed where others did not."""
    if row.status is Status.OK and row.failed_rounds:
        return f"{row.failed_rounds} of {row.rounds + row.failed_rounds} rounds failed"
    return row.status.value


def outputs(checks: Sequence[OutputCheck]) -> str:
    """Whether outputs are those of the model in its precision, the largest relative error, top-1 agreement where it is
    not 100 %; in another precision than the model's own also how far they are from the float original's.
    """
    if not checks:
        return DASH
    failed, unknown = any(c.failed for c in checks), any(c.unknown for c in checks)
    agreements = [check.top1_agreement for check in checks if check.top1_agreement is not None]
    parts = ["differ" if failed else "not judged" if unknown else "ok", _largest_error(checks)]
    parts.append(f"top-1 {share(min(agreements))}" if agreements and min(agreements) < 1 else "")
    sessions = dict.fromkeys(f"judged {check.session}" for check in checks if check.session)
    texts = " ".join(part for part in parts if part), from_float(checks), from_simulator(checks), *sessions
    return ", ".join(filter(None, texts))


TINY = 1e-2
"""Where an output's largest magnitude is smaller, a relative error alone misleads: rounding is not small beside it."""


def _largest_error(checks: Sequence[OutputCheck]) -> str:
    """The largest relative error; beside it the absolute one of a tiny output."""
    worst = max(checks, key=lambda check: -1.0 if check.max_rel_error is None else check.max_rel_error)
    relative, absolute = worst.max_rel_error, worst.max_abs_error
    if relative and absolute and absolute / relative < TINY:
        return f"{error_size(relative)} (absolute {error_size(absolute)})"
    return "" if relative is None else error_size(relative)


def from_simulator(checks: Sequence[OutputCheck]) -> str:
    """How far a phone's outputs are from those of the simulator of its NPU; "" where it was not asked."""
    errors = [check.from_simulator for check in checks if check.from_simulator is not None]
    if not errors:
        return ""
    return f"{error_size(max(errors))} from simulated" if max(errors) else "equal to simulated"


def from_float(checks: Sequence[OutputCheck]) -> str:
    """How far outputs are from the float original's, as in 19.3 dB from float; "" for the model's own precision."""
    worst = output_compare.worst_sqnr(checks)
    if worst is msgspec.UNSET:
        return ""
    text = "equal to float" if worst is None else f"{worst:.1f} dB from float"
    constants = dict.fromkeys(name for check in checks for name in check.constants)
    inputs = output_compare.inputs_text(random=any(check.random_inputs for check in checks), constants=list(constants))
    return f"{text} on {inputs}" if inputs else text


MOST_CONSTANTS = 3


def data_of(checks: Sequence[OutputCheck]) -> str:
    """What outputs were compared on where nobody gave test data, as random inputs and constants (mask); else ""."""
    names = list(dict.fromkeys(name for check in checks for name in check.constants))
    few = names[:MOST_CONSTANTS] + [f"{len(names) - MOST_CONSTANTS} more"] * (len(names) > MOST_CONSTANTS)
    return output_compare.inputs_text(random=any(check.random_inputs for check in checks), constants=few)


def check_numbers(check: OutputCheck) -> str:
    """All numbers of one check in one line."""
    if check.unequal is not None:
        ties = f", {check.ties} of them at ties" if check.ties else ""
        return f"{check.unequal} elements differ{ties} ({share(check.max_rel_error)})"
    limit = "" if check.limit is None else f" (limit {error_size(check.limit)})"
    return (
        f"max abs {error_size(check.max_abs_error)}{limit}, max rel {error_size(check.max_rel_error)}, "
        f"cosine {DASH if check.cosine is None else format(check.cosine, '.7g')}, top-1 {share(check.top1_agreement)}"
        + "".join(f", {text}" for text in (from_float([check]), from_simulator([check])) if text)
        + (f", {check.ties} rows sorted otherwise where their scores tie" if check.ties else "")
    )


def has_not_shown(report: "CampaignReport") -> bool:
    """Whether the verdict of a row is that no difference was shown; too few rounds are another one."""
    from pipeline.campaign.statistics import compare as run_compare

    comparisons = (row.comparison for row in report.rows if row.comparison and row.comparison.low is not None)
    return any(comparison.verdict is run_compare.Verdict.NOT_SHOWN for comparison in comparisons)


def legend(report: "CampaignReport", *, interval: bool = True) -> str:
    """How to read the table of results; `interval`: whether the table shows that of the ratio."""
    spread = ", with the interval over rounds that decides: 90 % for same, else 99 % and more" if interval else ""
    open_ = (
        "No difference shown (N % would show): one of N % or more would be found in 95 of 100 such campaigns. "
        if has_not_shown(report)
        else ""
    )
    sizes = " Size: beside that of the original file." if any(row.original_bytes for row in report.rows) else ""
    return (
        f"Ratio: latency relative to the baseline's, below 1 is faster{spread}. "
        f"Same: shown to differ by less than {report.margin * 100:g} %, with no mean or p90 apart: those decide where "
        f"they are shown to differ. {open_}Percentiles are of this sample; the JSON (--json, results.json) "
        f"has mean, SD, least, largest and p95, too. "
        f"Outputs: the largest error relative to the output's largest value, of the model in its precision; dB from "
        f"float: signal to noise against the float original.{sizes}"
    )


def gpu(facts: "DeviceFacts") -> str:
    """A phone's GPU in a cell: its name, the driver, and whether it computes in half precision; "" where unknown."""
    if facts.gpu is None:
        return ""
    half = {True: "fp16", False: "no fp16", None: ""}[facts.gpu.shader_f16]
    return ", ".join(part for part in (facts.gpu.name, f"driver {facts.gpu.driver}", half) if part)


def nnapi_devices(facts: "DeviceFacts") -> str:
    """NNAPI's devices with kind and feature level; nothing where no probe has looked, and on other systems."""
    named = [f"{device.name} ({device.type}, level {device.feature_level})" for device in facts.nnapi_devices]
    state = {True: "yes", False: "none", None: ""}[facts.nnapi] if facts.platform == "android" else ""
    return ", ".join(named) or state


class Line:
    """A line of texts, to be escaped, with the styles of a terminal; without `wrap` it stays one in a narrow terminal.

    With an `indent` it is a paragraph: what wraps is indented, too.
    """

    def __init__(self, *spans: str | tuple[str, str], indent: int | None = None, wrap: bool = True) -> None:
        """Each span is a text, or a text with its style."""
        self.spans = tuple((span, "") if isinstance(span, str) else span for span in spans)
        self.indent = indent
        self.wrap = wrap


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A plain table: texts to be escaped, the first column names the row.

    For terminals: `right` are the heads of numbers, `styles` those of the rows, `marks` those of cells with such texts.
    For Markdown: `level` is that of its heading. One without rows is not shown.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[str, ...] = ()
    styles: tuple[str, ...] = ()
    marks: Mapping[str, str] = field(default_factory=dict)
    level: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingNote:
    """Something to know, once for all places that it concerns: what, why or how, what to do.

    `code` has lines to be copied, as they are, by their language.
    """

    title: str
    text: str
    remedy: str = ""
    places: tuple[str, ...] = ()
    code: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Notes of one kind; without a title they belong to what is before."""

    title: str
    notes: tuple[ListingNote, ...]


Part = Line | Listing | Section


def sections_of(notes: Mapping[str, Iterable[ListingNote]]) -> tuple[Section, ...]:
    """A section for each title that has notes."""
    sections = (Section(title=title, notes=tuple(rows)) for title, rows in notes.items())
    return tuple(section for section in sections if section.notes)


def gathered(notes: Iterable[ListingNote]) -> list[ListingNote]:
    """Notes that say the same as one note with all their places, in the order of the first."""
    places: dict[tuple[str, str, str], list[str]] = {}
    for note in notes:
        places.setdefault((note.title, note.text, note.remedy), []).extend(note.places)
    return [
        ListingNote(title=title, text=text, remedy=remedy, places=tuple(dict.fromkeys(where)))
        for (title, text, remedy), where in places.items()
    ]


SPECIAL = re.compile(r"[\\`*\[\]<>#|~$&@]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|(?<=:)//|(?<=www)\.")
OPENING = re.compile(r"^(\s+|[-+=]|\d+[.)])")


def escaped(text: str) -> str:
    """Text that Markdown shows as it is, in a table too: no mark, tag, mention or bare link of its own works."""
    return SPECIAL.sub(_entities, safe_text.visible(text))


def _entities(match: re.Match[str]) -> str:
    return "".join(f"&#{ord(char)};" for char in match.group())


def item(text: str) -> str:
    """Text as `escaped`, which at the start of a line opens no list, heading or code either."""
    opening = OPENING.match(text)
    return escaped(text) if opening is None else _entities(opening) + escaped(text[opening.end() :])


def markdown(title: str, parts: Iterable[Part]) -> str:
    """A page: its heading, then each part as a paragraph, a table under its title, or a list of notes.

    Nothing of tables without rows and sections without notes.
    """
    paragraphs = [f"# {escaped(title)}"]
    for part in parts:
        if isinstance(part, Line):
            text = item("".join(text for text, _ in part.spans))
            bold = part.spans and all(style.startswith("bold") for _, style in part.spans)
            paragraphs += [f"**{text}**" if bold else text] if text else []
        elif isinstance(part, Listing):
            heading = f"{'#' * part.level} {escaped(part.title)}"
            paragraphs += [heading, table(part.head, part.rows)] if part.rows else []
        elif part.notes:
            paragraphs += [f"## {part.title}"] if part.title else []
            lines = []
            for note in part.notes:
                head = f"**{escaped(note.title)}**: {escaped(note.text)}" if note.title else item(note.text)
                lines.append(f"- {head}" + (f" *{escaped(note.remedy)}*" if note.remedy else ""))
                lines += [f"  - {item(place)}" for place in note.places]
                for language, code in note.code.items():
                    text = "\n".join(f"  {safe_text.visible(line)}" for line in code)
                    longest = max([2, *(len(ticks) for ticks in re.findall("`+", text))])
                    fence = "`" * (longest + 1)  # longer than any inside
                    lines.append(f"\n  {fence}{language}\n{text}\n  {fence}\n")
            paragraphs.append("\n".join(lines))
    return "\n\n".join(paragraphs) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of plain texts."""
    lines = [head, ["---"] * len(head), *([escaped(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
