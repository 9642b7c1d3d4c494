"""Profile runs, and two side by side: time by operator before and after, what fused, what fell back. Pure functions.

Nodes are matched by name. ONNX Runtime keeps a fused node's name (Conv becomes FusedConv), puts its own word behind it
(MatMul/MatMulAddFusion) or names it after the output (Clip_output_0_nchwc); some fusions leave no name (Gelu): 1.31.1.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from device_runner.profile import CPU, Coverage
from device_runner.result import NodeTime, Profile, Struct
from pipeline.campaign.record import Prediction, RefusedNodes


class Profiled(msgspec.Struct, frozen=True, kw_only=True):
    """One artifact or file with one set of run options, run once more with ONNX Runtime's profiler on.

    `name` is the file, or MODEL / VARIANT of a campaign. `file` is the trace for Perfetto, `failure` why there is
    none. `coverage` is the provider's own word on what it took; `finding` says where that is not what was predicted.
    `provider` is the one that was asked for.
    """

    name: str
    run: str
    device: str = ""
    file: str = ""
    profile: Profile | None = None
    coverage: Coverage | None = None
    prediction: Prediction | None = None
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


class OperatorChange(Struct, frozen=True, kw_only=True):
    """All nodes of an operator on a provider in both profiles: how many, and their time in one inference."""

    operator: str
    provider: str
    nodes_before: int = 0
    nodes_after: int = 0
    before_ns: float = 0.0
    after_ns: float = 0.0


class Fusion(Struct, frozen=True, kw_only=True):
    """Nodes of an operator that the first profile does not have.

    `replaced` counts the operators of the nodes that their names are made from; empty where names do not say.
    """

    operator: str
    provider: str
    nodes: int
    replaced: dict[str, int]
    examples: tuple[str, ...]


class FallenBack(Struct, frozen=True, kw_only=True):
    """Nodes of one operator that ran on the CPU although another provider was asked for, and why.

    `share` is theirs of the time of all nodes.
    """

    operator: str
    nodes: int
    reason: str
    share: float
    examples: tuple[str, ...]


class ProfileView(Struct, frozen=True, kw_only=True):
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
    groups: dict[tuple[str, str], list[Profiled]] = {}
    for one in profiles:
        if one.profile and one.profile.nodes:
            groups.setdefault((one.device, one.model), []).append(one)
    return tuple(view for group in groups.values() for view in _of_group(group, medians, rank))


def _of_group(group: Sequence[Profiled], medians: Medians, rank: Mapping[str, int]) -> Iterator[ProfileView]:
    before = min(group, key=lambda one: (one.provider != "cpu", rank.get(one.variant, 0)))
    for provider in dict.fromkeys(one.provider for one in group):
        rest = [one for one in group if one.provider == provider and one is not before]
        if rest:
            yield view_of(before, min(rest, key=lambda one: medians.get(_key(one), float("inf"))), medians)


def view_of(before: Profiled, after: Profiled, medians: Medians) -> ProfileView:
    """One profile beside another; both must have a profile."""
    first, second = before.profile, after.profile
    if first is None or second is None:
        raise ValueError("both runs must have a profile")
    gone = _gone(first, second)
    return ProfileView(
        device=after.device,
        model=after.model,
        before=f"{before.variant}/{before.run}",
        after=f"{after.variant}/{after.run}",
        operators=operator_changes(first, second),
        vanished=dict(Counter(gone.values()).most_common()),
        fusions=tuple(_fusions(first, second, gone)),
        fallen_back=fallen_back(after),
        profiler_cost_before=profiler_cost(before, medians),
        profiler_cost_after=profiler_cost(after, medians),
    )


def operator_changes(before: Profile, after: Profile) -> tuple[OperatorChange, ...]:
    """Operators by provider, slowest first by the longer of both times."""
    first = {(row.operator, row.provider): row for row in before.operators}
    second = {(row.operator, row.provider): row for row in after.operators}
    found = []
    for key in {**first, **second}:
        was, now = first.get(key), second.get(key)
        found.append(
            OperatorChange(
                operator=key[0],
                provider=key[1],
                nodes_before=was.nodes if was else 0,
                nodes_after=now.nodes if now else 0,
                before_ns=was.nanoseconds if was else 0.0,
                after_ns=now.nanoseconds if now else 0.0,
            )
        )
    return tuple(sorted(found, key=lambda row: -max(row.before_ns, row.after_ns)))


def _gone(before: Profile, after: Profile) -> dict[str, str]:
    """Name to operator of the nodes that the second profile has not, or has as another operator."""
    kept = {(node.name, node.operator) for node in after.nodes}
    return {node.name: node.operator for node in before.nodes if (node.name, node.operator) not in kept}


def _fusions(before: Profile, after: Profile, gone: Mapping[str, str]) -> Iterator[Fusion]:
    known = {(node.name, node.operator) for node in before.nodes}
    groups: dict[tuple[str, str], list[NodeTime]] = {}
    for node in after.nodes:
        if (node.name, node.operator) not in known:
            groups.setdefault((node.operator, node.provider), []).append(node)
    for (operator, provider), nodes in sorted(groups.items(), key=lambda item: -sum(n.nanoseconds for n in item[1])):
        sources = (_source(node.name, gone) for node in nodes)
        yield Fusion(
            operator=operator,
            provider=provider,
            nodes=len(nodes),
            replaced=dict(Counter(gone[source] for source in sources if source).most_common()),
            examples=tuple(node.name for node in nodes[:NAMED]),
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


def fallen_back(one: Profiled) -> tuple[FallenBack, ...]:
    """The nodes that ran on the CPU in a run with another provider, most time first; none for a run on the CPU."""
    if one.profile is None or one.provider == "cpu":
        return ()
    refused = one.prediction.refused if one.prediction else ()
    reasons = _Reasons(refused or ())
    total = sum(node.nanoseconds for node in one.profile.nodes) or 1.0
    groups: dict[tuple[str, str], list[NodeTime]] = {}
    for node in one.profile.nodes:
        if node.provider == CPU:
            groups.setdefault((node.operator, reasons.of(node, known=bool(one.prediction))), []).append(node)
    found = (
        FallenBack(
            operator=operator,
            nodes=len(nodes),
            reason=reason,
            share=sum(node.nanoseconds for node in nodes) / total,
            examples=tuple(node.name for node in nodes[:NAMED]),
        )
        for (operator, reason), nodes in groups.items()
    )
    return tuple(sorted(found, key=lambda row: -row.share))


class _Reasons:
    """Why nodes are refused: by their name, else by their operator where all of it are refused for one reason."""

    def __init__(self, refused: Iterable[RefusedNodes]) -> None:
        self.by_name = {name: one.reason for one in refused for name in one.nodes if name}
        by_operator: dict[str, set[str]] = {}
        for one in refused:
            by_operator.setdefault(one.operator, set()).add(one.reason)
        self.by_operator = {operator: min(found) for operator, found in by_operator.items() if len(found) == 1}

    def of(self, node: NodeTime, *, known: bool) -> str:
        """`known`: whether the rules were asked."""
        said = self.by_name.get(node.name) or self.by_operator.get(node.operator)
        return said or (UNKNOWN_REASON if known else "")


def profiler_cost(one: Profiled, medians: Medians) -> float | None:
    """How much longer an inference takes with the profiler on; None where it was not measured without."""
    median = medians.get(_key(one))
    if not median or not one.profile or not one.profile.inference_ns:
        return None
    return one.profile.inference_ns / median - 1


def _key(one: Profiled) -> tuple[str, str, str, str]:
    return one.device, one.model, one.variant, one.run
