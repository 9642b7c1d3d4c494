"""Profile runs, and two side by side: time by operator before and after, what fused, what fell back; their tables.

Nodes are matched by name. ONNX Runtime keeps a fused node's name (Conv becomes FusedConv), puts its own word behind it
(MatMul/MatMulAddFusion) or names it after the output (Clip_output_0_nchwc); some fusions leave no name (Gelu): 1.31.1.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import msgspec

from device_runner import profile as ort_profile
from device_runner import providers as runner_providers
from device_runner import result as run_result
from pipeline.campaign import record as campaign_record
from pipeline.core import groups as counting
from pipeline.report import wording
from pipeline.report.wording import Line, Listing, Part


class Profiled(campaign_record.RunKey, frozen=True, kw_only=True):
    """One artifact or file with one set of run options, run once more with ONNX Runtime's profiler on.

    `name` is the file, or MODEL / VARIANT of a campaign. `file` is the trace for Perfetto, `failure` why there is
    none. `coverage` is the provider's own word on what it took; `finding` says where that is not what was predicted.
    `provider` is the one that was asked for.
    """

    name: str
    run: str
    device: str = ""
    file: str = ""
    profile: run_result.Profile | None = None
    coverage: ort_profile.Coverage | None = None
    prediction: campaign_record.Prediction | None = None
    finding: str = ""
    failure: str = ""
    model: str = ""
    variant: str = ""
    provider: str = "cpu"

    @property
    def brief(self) -> "Profiled":
        """Without what is known of each node: what reports are made from."""
        profile = self.profile and msgspec.structs.replace(self.profile, nodes=())
        return msgspec.structs.replace(self, profile=profile, prediction=self.prediction and self.prediction.brief)


NAMED = 3
"""Names of nodes that are given as examples."""

SUFFIXES = ("_nchwc", "_output_0")
"""What ONNX Runtime and exporters put behind a node's name to name another node, or an output."""

UNKNOWN_REASON = "added when the session was created, or refused by the driver: the rules do not refuse it"


class OperatorChange(msgspec.Struct, frozen=True, kw_only=True):
    """All nodes of an operator on a provider in both profiles: how many, and their time in one inference."""

    operator: str
    provider: str
    nodes_before: int = 0
    nodes_after: int = 0
    before_ns: float = 0.0
    after_ns: float = 0.0


class Fusion(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes of an operator that the first profile does not have.

    `replaced` counts the operators of the nodes that their names are made from; empty where names do not say.
    """

    operator: str
    provider: str
    nodes: int
    replaced: dict[str, int]
    examples: tuple[str, ...]


class FallenBack(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes of one operator that ran on the CPU although another provider was asked for, and why.

    `share` is theirs of the time of all nodes.
    """

    operator: str
    nodes: int
    reason: str
    share: float
    examples: tuple[str, ...]


class ProfileView(msgspec.Struct, frozen=True, kw_only=True):
    """One profile beside the one that it is compared with; both are named VARIANT/RUN.

    `operators` are slowest first, by the longer of both times. `vanished` counts the operators of nodes that are gone.
    The costs say how much longer an inference takes with the profiler on (0.1 is 10 %), None where that is not known.
    """

    device: str
    model: str
    before: str
    after: str
    operators: tuple[OperatorChange, ...]
    vanished: dict[str, int]
    fusions: tuple[Fusion, ...]
    fallen_back: tuple[FallenBack, ...] = ()
    profiler_cost_before: float | None = None
    profiler_cost_after: float | None = None


Medians = Mapping[tuple[str, str, str, str], float]
"""The median of inferences without the profiler, by device, model, variant and run, in nanoseconds."""


def profile_views(profiles: Sequence[Profiled], medians: Medians, rank: Mapping[str, int]) -> tuple[ProfileView, ...]:
    """For each device and model: the fastest of each provider beside the least optimized on the CPU.

    That is the first of the lowest rank; ranks are by variant, 0 where there is none.
    """
    profiled = [profile for profile in profiles if profile.profile and profile.profile.nodes]
    views = []
    for group in counting.grouped(((profile.device, profile.model), profile) for profile in profiled).values():
        before = min(
            group, key=lambda profile: (not runner_providers.on_cpu(profile.provider), rank.get(profile.variant, 0))
        )
        for rows in counting.grouped((profile.provider, profile) for profile in group).values():
            if rest := [row for row in rows if row is not before]:
                after = min(rest, key=lambda profile: medians.get(profile.names, float("inf")))
                views.append(view_of(before, after, medians))
    return tuple(views)


def view_of(before: Profiled, after: Profiled, medians: Medians) -> ProfileView:
    """One profile beside another; both must have a profile."""
    first, second = before.profile, after.profile
    if first is None or second is None:
        raise ValueError("both runs must have a profile")
    kept = {(node.name, node.operator) for node in second.nodes}
    # what the second profile has not, or has as another operator
    gone = {node.name: node.operator for node in first.nodes if (node.name, node.operator) not in kept}
    changes = {
        (time.operator, time.provider): OperatorChange(operator=time.operator, provider=time.provider)
        for time in (*first.operators, *second.operators)
    }
    for time in first.operators:
        key = time.operator, time.provider
        changes[key] = msgspec.structs.replace(changes[key], nodes_before=time.nodes, before_ns=time.nanoseconds)
    for time in second.operators:
        key = time.operator, time.provider
        changes[key] = msgspec.structs.replace(changes[key], nodes_after=time.nodes, after_ns=time.nanoseconds)
    before_nodes = {(node.name, node.operator) for node in first.nodes}
    new = (node for node in second.nodes if (node.name, node.operator) not in before_nodes)
    groups = counting.grouped(((node.operator, node.provider), node) for node in new)
    fused = []
    for (operator, provider), nodes in sorted(groups.items(), key=lambda pair: -sum(n.nanoseconds for n in pair[1])):
        sources = (_source(node.name, gone) for node in nodes)
        replaced = dict(Counter(gone[source] for source in sources if source).most_common())
        examples = tuple(node.name for node in nodes[:NAMED])
        fused.append(
            Fusion(operator=operator, provider=provider, nodes=len(nodes), replaced=replaced, examples=examples)
        )
    return ProfileView(
        device=after.device,
        model=after.model,
        before=before.way,
        after=after.way,
        operators=tuple(sorted(changes.values(), key=lambda change: -max(change.before_ns, change.after_ns))),
        vanished=dict(Counter(gone.values()).most_common()),
        fusions=tuple(fused),
        fallen_back=fallen_back(after),
        profiler_cost_before=profiler_cost(before, medians),
        profiler_cost_after=profiler_cost(after, medians),
    )


def _source(name: str, gone: Mapping[str, str]) -> str:
    """The node that is gone whose name this name is made from: the longest that is all of it or its first part."""
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    name = name.removeprefix("fused ")
    while name:
        if name in gone:
            return name
        name = name.rpartition("/")[0]
    return ""


def fallen_back(profiled: Profiled) -> tuple[FallenBack, ...]:
    """The nodes that ran on the CPU in a run with another provider, most time first; none for a run on the CPU."""
    if profiled.profile is None or runner_providers.on_cpu(profiled.provider):
        return ()
    # Why a node is refused: by its name, else by its operator where all of it are refused for one reason
    refused = (profiled.prediction.refused if profiled.prediction else ()) or ()
    by_name = {name: group.reason for group in refused for name in group.nodes if name}
    reasons = counting.grouped((group.operator, group.reason) for group in refused)
    by_operator = {operator: alike[0] for operator, alike in reasons.items() if len(set(alike)) == 1}
    unknown = UNKNOWN_REASON if profiled.prediction else ""
    total = sum(node.nanoseconds for node in profiled.profile.nodes) or 1.0
    groups = counting.grouped(
        ((node.operator, by_name.get(node.name) or by_operator.get(node.operator) or unknown), node)
        for node in profiled.profile.nodes
        if node.provider == ort_profile.CPU
    )
    fallen = (
        FallenBack(
            operator=operator,
            nodes=len(nodes),
            reason=reason,
            share=sum(node.nanoseconds for node in nodes) / total,
            examples=tuple(node.name for node in nodes[:NAMED]),
        )
        for (operator, reason), nodes in groups.items()
    )
    return tuple(sorted(fallen, key=lambda group: -group.share))


def profiler_cost(profiled: Profiled, medians: Medians) -> float | None:
    """How much longer an inference takes with the profiler on; None where it was not measured without."""
    median = medians.get(profiled.names)
    if not median or not profiled.profile or not profiled.profile.inference_ns:
        return None
    return profiled.profile.inference_ns / median - 1


def profile_parts(profiles: Sequence[Profiled]) -> Iterator[Part]:
    """Each profile: its slowest operators, what providers took, where its trace is."""
    for profile in profiles:
        yield Line()
        yield Line((f"Profile of {profile.name}, {profile.run}", "bold"), wrap=False)
        if profile.profile:
            listing = operators(profile)
            yield replace(listing, title="", right=listing.head[2:])
            if (rest := len(profile.profile.operators) - SHOWN) > 0:
                yield Line(f"and {rest} more operators, each faster", wrap=False)
            yield Line("; ".join(memory(profile.profile)), wrap=False)
            if (crossing := copies(profile)).rows:
                yield replace(crossing, title="", right=crossing.head[2:])
        for label, text in (("measured", taken(profile)), ("predicted", predicted(profile))):
            if text:
                yield Line(f"{label}: {text}", wrap=False)
        for note in (profile.finding, profile.failure):
            if note:
                yield Line((note, "yellow"), wrap=False)
        if profile.file:
            yield Line(f"trace for ui.perfetto.dev: {profile.file}", wrap=False)


def memory(profile: run_result.Profile) -> Iterator[str]:
    """What a profile says beyond operators: time outside of them, bytes written and copied, memory of values."""
    if profile.inference_ns:
        share = 100 * profile.overhead_ns / profile.inference_ns
        yield f"outside of operators {wording.duration(round(profile.overhead_ns))} ({share:.0f} %)"
    if profile.written_bytes:
        copied = wording.size(profile.copied_bytes) if profile.copied_bytes else "nothing"
        yield f"an inference writes {wording.size(profile.written_bytes)} and copies {copied} between memories"
    if any(operator.operator == ort_profile.PARTITION for operator in profile.operators):
        yield "a partition copies within its one kernel: the profile cannot tell that from computing"
    if profile.arena_bytes:
        yield f"values take {wording.size(profile.peak_bytes)} of an arena of {wording.size(profile.arena_bytes)}"


SHOWN = 15
"""Operators of one table; they come slowest first."""


def summary(profiles: Sequence[Profiled]) -> Listing:
    """One line for each profile: what the provider took, what was predicted, and where the trace is."""
    rows = (
        (
            profile.device,
            profile.name,
            profile.run,
            taken(profile),
            predicted(profile),
            f"none: {profile.failure}" if profile.failure else profile.file.rpartition("/")[2],
        )
        for profile in profiles
    )
    head = ("Device", "Model / variant", "Run", "Measured", "Predicted", "Trace in profiles/, for ui.perfetto.dev")
    return Listing(title="Profiles", head=head, rows=tuple(rows))


def claims(profiles: Sequence[Profiled]) -> Listing:
    """As `summary`, for narrow places: only where a provider took something, or should have, and no file names."""
    rows = [
        (profile.device, profile.name, profile.run, taken(profile) or profile.failure, predicted(profile))
        for profile in profiles
    ]
    return Listing(
        title=f"Profiles: {sum(bool(profile.file) for profile in profiles)} traces in profiles/, for ui.perfetto.dev",
        head=("Device", "Model / variant", "Run", "Measured", "Predicted"),
        rows=tuple(row for row in rows if row[3] or row[4]),
    )


def operators(profiled: Profiled) -> Listing:
    """The slowest operators of a profile with their providers; empty where there is none."""
    rows = (
        (
            operator.operator,
            _provider(operator.provider),
            str(operator.nodes),
            wording.duration(round(operator.nanoseconds)),
            f"{100 * operator.share:.1f} %",
        )
        for operator in (profiled.profile.operators[:SHOWN] if profiled.profile else ())
    )
    device = f" on {profiled.device}" if profiled.device else ""
    return Listing(
        title=f"Operators of {profiled.name}, {profiled.run}{device}",
        head=("Operator", "Provider", "Nodes", "Time of an inference", "Share"),
        rows=tuple(rows),
    )


def copies(profiled: Profiled) -> Listing:
    """What an inference copies between memories: the slowest values, the others in one row; empty without copies."""
    ordered = sorted(profiled.profile.copies if profiled.profile else (), key=lambda copy: -copy.nanoseconds)
    rows = [
        (
            copy.value or "a value",
            f"{profiled.provider} → cpu, after waiting for it" if copy.to_host else f"cpu → {profiled.provider}",
            wording.size(copy.size_bytes),
            wording.duration(round(copy.nanoseconds)),
        )
        for copy in ordered[:SHOWN]
    ]
    if rest := ordered[SHOWN:]:
        size, time = sum(copy.size_bytes for copy in rest), round(sum(copy.nanoseconds for copy in rest))
        rows.append((f"{len(rest)} more, each faster", "", wording.size(size), wording.duration(time)))
    return Listing(
        title=f"Copies of {profiled.name}, {profiled.run}{f' on {profiled.device}' if profiled.device else ''}",
        head=("Value", "Copied", "Bytes", "Time of an inference"),
        rows=tuple(rows),
    )


def changes(view: ProfileView, most: int = SHOWN) -> Listing:
    """Time by operator and provider before and after, slowest first."""
    rows = (
        (
            change.operator,
            _provider(change.provider),
            f"{change.nodes_before} → {change.nodes_after}",
            wording.duration(change.before_ns) if change.nodes_before else wording.DASH,
            wording.duration(change.after_ns) if change.nodes_after else wording.DASH,
            wording.signed_duration(change.after_ns - change.before_ns),
        )
        for change in view.operators[:most]
    )
    return Listing(
        title=f"Profile of {view.model} on {view.device}: {view.before}, then {view.after}",
        head=("Operator", "Provider", "Nodes", "Before", "After", "Change"),
        rows=tuple(rows),
    )


def fusions(view: ProfileView) -> Listing:
    """The nodes that the first profile has not, with those that their names come from."""
    rows = (
        (
            fusion.operator,
            _provider(fusion.provider),
            str(fusion.nodes),
            _counts(fusion.replaced),
            ", ".join(fusion.examples),
        )
        for fusion in view.fusions
    )
    return Listing(title="New nodes", head=("Operator", "Provider", "Nodes", "Made of", "Examples"), rows=tuple(rows))


def fallbacks(view: ProfileView) -> Listing:
    """The nodes that ran on the CPU although another provider was asked for."""
    rows = (
        (
            fallback.operator,
            str(fallback.nodes),
            wording.share(fallback.share),
            fallback.reason or wording.DASH,
            ", ".join(fallback.examples),
        )
        for fallback in view.fallen_back
    )
    head = ("Operator", "Nodes", "Share of time", "Why not the provider", "Examples")
    return Listing(title="Nodes that fell back to the CPU", head=head, rows=tuple(rows))


def view_notes(view: ProfileView) -> Iterator[str]:
    """What is gone, what fell back and what the profiler costs, a sentence each."""
    if view.vanished:
        new = _counts({fusion.operator: fusion.nodes for fusion in view.fusions})
        yield f"gone: {_counts(view.vanished)}; new: {new or 'none'}"
    if view.fallen_back:
        nodes, share = (
            sum(fallback.nodes for fallback in view.fallen_back),
            sum(fallback.share for fallback in view.fallen_back),
        )
        yield f"{nodes} nodes fell back to the CPU, with {wording.share(share)} of the time"
    costs = (view.profiler_cost_before, view.profiler_cost_after)
    if any(cost is not None for cost in costs):
        shares = " and ".join(wording.DASH if cost is None else f"{cost:+.0%}" for cost in costs)
        yield f"the profiler changes the time of an inference by {shares}: trust shares, not totals"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _provider(ort_name: str) -> str:
    return ort_name.removesuffix("ExecutionProvider").lower()


def taken(profiled: Profiled) -> str:
    """What providers took: by their own log, else by the profile; "" for the CPU alone."""
    if profiled.coverage:
        text = _claims(profiled.coverage.claimed_nodes, profiled.coverage.nodes, profiled.coverage.partitions)
        return f"{text} claimed, and then the run failed" if profiled.failure else text
    counts = profiled.profile.partitions if profiled.profile else {}
    names = (f"{provider.removesuffix('ExecutionProvider')}: {count}" for provider, count in counts.items())
    return ", ".join(f"{name} partitions, or nodes where it has kernels of its own" for name in names)


def predicted(profiled: Profiled) -> str:
    """What the rules said before; "" where they have no word for the provider."""
    if not profiled.prediction:
        return ""
    words = profiled.prediction.error or _claims(
        profiled.prediction.claimed, profiled.prediction.nodes, profiled.prediction.partitions
    )
    return f"{words} (by the rules of {profiled.prediction.rules})" if profiled.prediction.rules else words


def _claims(claimed: object, nodes: object, partitions: object) -> str:
    return f"{claimed} of {nodes} nodes in {partitions} partition{'s' * (partitions != 1)}"
