"""Profiles as tables for every format: what providers took, times by operator, where the trace lies."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pipeline.report import wording
from pipeline.report.model import CampaignReport
from pipeline.report.parts import Line, Listing, Part
from pipeline.report.profile_view import OperatorChange, Profiled, ProfileView


def profile_parts(profiles: Sequence[Profiled]) -> Iterator[Part]:
    """Each profile: its slowest operators, what providers took, where its trace is."""
    for row in profiles:
        yield Line()
        yield Line((f"Profile of {row.name}, {row.run}", "bold"), wrap=False)
        if row.profile:
            listing = operators(row)
            yield replace(listing, title="", right=listing.head[2:])
            if (rest := len(row.profile.operators) - SHOWN) > 0:
                yield Line(f"and {rest} more operators, each faster", wrap=False)
        for label, text in (("measured", taken(row)), ("predicted", predicted(row))):
            if text:
                yield Line(f"{label}: {text}", wrap=False)
        for note in (row.finding, row.failure):
            if note:
                yield Line((note, "yellow"), wrap=False)
        if row.file:
            yield Line(f"trace for ui.perfetto.dev: {row.file}", wrap=False)


SHOWN = 15
"""Operators of one table; they come slowest first."""


def summary(profiles: Sequence[Profiled]) -> Listing:
    """One line for each profile: what the provider took, what was predicted, and where the trace is."""
    rows = ((one.device, one.name, one.run, taken(one), predicted(one), where(one)) for one in profiles)
    head = ("Device", "Model / variant", "Run", "Measured", "Predicted", "Trace in profiles/, for ui.perfetto.dev")
    return Listing(title="Profiles", head=head, rows=tuple(rows))


def claims(profiles: Sequence[Profiled]) -> Listing:
    """As `summary`, for narrow places: only where a provider took something, or should have, and no file names."""
    rows = [(one.device, one.name, one.run, taken(one) or one.failure, predicted(one)) for one in profiles]
    return Listing(
        title=f"Profiles: {sum(bool(one.file) for one in profiles)} traces in profiles/, for ui.perfetto.dev",
        head=("Device", "Model / variant", "Run", "Measured", "Predicted"),
        rows=tuple(row for row in rows if row[3] or row[4]),
    )


def operators(one: Profiled) -> Listing:
    """The slowest operators of a profile with their providers; empty where there is none."""
    rows = one.profile.operators[:SHOWN] if one.profile else ()
    device = f" on {one.device}" if one.device else ""
    return Listing(
        title=f"Operators of {one.name}, {one.run}{device}",
        head=("Operator", "Provider", "Nodes", "Time of an inference", "Share"),
        rows=tuple(
            (
                row.operator,
                _provider(row.provider),
                str(row.nodes),
                wording.duration(round(row.nanoseconds)),
                f"{100 * row.share:.1f} %",
            )
            for row in rows
        ),
    )


def views(report: CampaignReport) -> tuple[ProfileView, ...]:
    """The profiles of a report that stand beside another."""
    return report.profile_views


def view_title(view: ProfileView) -> str:
    """Which two profiles a view has."""
    return f"Profile of {view.model} on {view.device}: {view.before}, then {view.after}"


CHANGES_HEAD = ("Operator", "Provider", "Nodes", "Before", "After", "Change")


def change_row(row: OperatorChange) -> tuple[str, ...]:
    """An operator before and after, in the order of CHANGES_HEAD."""
    return (
        row.operator,
        _provider(row.provider),
        f"{row.nodes_before} → {row.nodes_after}",
        wording.duration(row.before_ns) if row.nodes_before else wording.DASH,
        wording.duration(row.after_ns) if row.nodes_after else wording.DASH,
        wording.signed_duration(row.after_ns - row.before_ns),
    )


def changes(view: ProfileView, most: int = SHOWN) -> Listing:
    """Time by operator and provider before and after, slowest first."""
    return Listing(title=view_title(view), head=CHANGES_HEAD, rows=tuple(map(change_row, view.operators[:most])))


def fusions(view: ProfileView) -> Listing:
    """The nodes that the first profile has not, with those that their names come from."""
    rows = (
        (one.operator, _provider(one.provider), str(one.nodes), _counts(one.replaced), ", ".join(one.examples))
        for one in view.fusions
    )
    return Listing(title="New nodes", head=("Operator", "Provider", "Nodes", "Made of", "Examples"), rows=tuple(rows))


def fallbacks(view: ProfileView) -> Listing:
    """The nodes that ran on the CPU although another provider was asked for."""
    rows = (
        (one.operator, str(one.nodes), wording.share(one.share), one.reason or wording.DASH, ", ".join(one.examples))
        for one in view.fallen_back
    )
    head = ("Operator", "Nodes", "Share of time", "Why not the provider", "Examples")
    return Listing(title="Nodes that fell back to the CPU", head=head, rows=tuple(rows))


def view_notes(view: ProfileView) -> Iterator[str]:
    """What is gone, what fell back and what the profiler costs, a sentence each."""
    if view.vanished:
        new = _counts({one.operator: one.nodes for one in view.fusions})
        yield f"gone: {_counts(view.vanished)}; new: {new or 'none'}"
    if view.fallen_back:
        nodes, share = sum(one.nodes for one in view.fallen_back), sum(one.share for one in view.fallen_back)
        yield f"{nodes} nodes fell back to the CPU, with {wording.share(share)} of the time"
    costs = (view.profiler_cost_before, view.profiler_cost_after)
    if any(cost is not None for cost in costs):
        told = " and ".join(wording.DASH if cost is None else f"{cost:+.0%}" for cost in costs)
        yield f"the profiler changes the time of an inference by {told}: trust shares, not totals"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _provider(ort_name: str) -> str:
    return ort_name.removesuffix("ExecutionProvider").lower()


def taken(one: Profiled) -> str:
    """What providers took: by their own log, else by the profile; "" for the CPU alone."""
    if one.coverage:
        return _claims(one.coverage.claimed_nodes, one.coverage.nodes, one.coverage.partitions)
    counts = one.profile.partitions if one.profile else {}
    names = (f"{provider.removesuffix('ExecutionProvider')}: {count}" for provider, count in counts.items())
    return ", ".join(f"{name} partitions, or nodes where it has kernels of its own" for name in names)


def predicted(one: Profiled) -> str:
    """What the rules said before; "" where they have no word for the provider."""
    if not one.prediction:
        return ""
    found = one.prediction
    words = found.error or _claims(found.claimed, found.nodes, found.partitions)
    return f"{words} (by the rules of {found.rules})" if found.rules else words


def where(one: Profiled) -> str:
    """The trace's file name, or why there is none."""
    return f"none: {one.failure}" if one.failure else one.file.rpartition("/")[2]


def _claims(claimed: object, nodes: object, partitions: object) -> str:
    return f"{claimed} of {nodes} nodes in {partitions} partition{'s' * (partitions != 1)}"
