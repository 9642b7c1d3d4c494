"""Profiles as tables for every format: what providers took in each, then the times by operator."""

from collections.abc import Sequence

from pipeline.report import wording
from pipeline.report.layout import Listing
from pipeline.report.profiled import Profiled

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
                row.provider.removesuffix("ExecutionProvider").lower(),
                str(row.nodes),
                wording.duration(round(row.nanoseconds)),
                f"{100 * row.share:.1f} %",
            )
            for row in rows
        ),
    )


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
    error, rules = one.prediction.get("error"), one.prediction.get("rules")
    words = str(error or _claims(*(one.prediction[key] for key in ("claimed", "nodes", "partitions"))))
    return f"{words} (by the rules of {rules})" if rules else words


def where(one: Profiled) -> str:
    """The trace's file name, or why there is none."""
    return f"none: {one.failure}" if one.failure else one.file.rpartition("/")[2]


def _claims(claimed: int, nodes: int, partitions: int) -> str:
    return f"{claimed} of {nodes} nodes in {partitions} partition{'s' * (partitions != 1)}"
