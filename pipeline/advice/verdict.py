"""The answer of `ort-mobile partition` for one model: its verdict, and what would help most by the rules alone."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from pipeline.core.providers import PROVIDER_RULES
from pipeline.dataset import Dataset
from pipeline.model.sources import SourceModel
from pipeline.partition.answer import ModelAnswer, Optimize, Settings


class FixChoice(StrEnum):
    """What the guidance says of a model and a provider."""

    USE = "use the provider"
    MEASURE = "measure both"
    CPU = "use the CPU"


class ProviderSupport(msgspec.Struct, frozen=True, kw_only=True):
    """How far a provider takes a model. `load_error` says that a session fails on the phone all the same."""

    nodes: int
    claimed: int
    partitions: int
    load_error: str | None = None

    @property
    def coverage(self) -> float:
        """The claimed share of the nodes, 0 to 1."""
        return self.claimed / self.nodes if self.nodes else 0.0

    @property
    def left(self) -> int:
        """The nodes that stay on the CPU."""
        return self.nodes - self.claimed


class AdviceVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """A choice with its reason in words."""

    choice: FixChoice
    reason: str


class FixOutcome(StrEnum):
    """What became of a fix."""

    GAINS = "gains"
    NO_GAIN = "no gain"
    NOT_APPLICABLE = "not applicable"
    REJECTED = "rejected"


class FixResult(msgspec.Struct, frozen=True, kw_only=True):
    """One fix applied alone. `why` explains what is not a gain; `after` is there when the fixed model was judged.

    `error` is the largest difference of an output relative to its largest number, against the original without any
    optimization on the CPU; up to `tolerance` passes, 0 means equal numbers. `absolute_error` is that of the output
    that is nearest to its `limit`, which is above its share where these inputs give small numbers only. All are None
    where nothing was compared: a change of settings leaves the model as it is, and what gains nothing is not run.
    """

    name: str
    title: str
    outcome: FixOutcome
    gain: str = ""
    why: str = ""
    after: ProviderSupport | None = None
    error: float | None = None
    tolerance: float | None = None
    absolute_error: float | None = None
    limit: float | None = None


class Combination(msgspec.Struct, frozen=True, kw_only=True):
    """Fixes that together give the best standing, in the order of their application.

    `settings` says what to set beside the model, in words of the command line.
    """

    fixes: tuple[str, ...]
    gain: str
    after: ProviderSupport
    verdict: AdviceVerdict
    error: float | None = None
    tolerance: float | None = None
    absolute_error: float | None = None
    limit: float | None = None
    settings: tuple[str, ...] = ()
    written: str | None = None


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """All that was tried for one model and provider; with `error` set, nothing was.

    `checked_on` says on what inputs outputs were compared, or why they could not be. `copied` is where the model was
    written unchanged, because no fix of it gains anything.
    """

    verdict: AdviceVerdict | None = None
    before: ProviderSupport | None = None
    fixes: tuple[FixResult, ...] = ()
    best: Combination | None = None
    checked_on: str = ""
    error: str | None = None
    copied: str | None = None
    precision: str | msgspec.UnsetType = msgspec.UNSET
    """Which precision the provider wants, where nodes are refused for the model's own; unset for no such node."""

    @property
    def wrote(self) -> bool:
        """Whether the model was written: fixed, or unchanged where no fix of it gains anything."""
        return bool(self.copied or (self.best and self.best.written))


class AdvisedAnswer(ModelAnswer, frozen=True, kw_only=True):
    """A model's answer with advice."""

    advice: Advice


class AdviceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A model, a provider with its settings, wanted sizes of open dimensions, and where the fixed model goes.

    Outputs are compared on the first sample of `data`, whose shapes also give sizes that are not asked for.
    """

    source: SourceModel
    settings: Settings
    optimize: Optimize = Optimize.NONE
    sizes: dict[str, int] = {}
    data: Dataset = Dataset()
    write_to: str = ""


def standing_of(answer: ModelAnswer) -> ProviderSupport:
    """What counts of an answer."""
    return ProviderSupport(
        nodes=answer.nodes,
        claimed=answer.claimed,
        partitions=len(answer.partitions),
        load_error=answer.load.error if answer.load else None,
    )


def gain_of(before: ProviderSupport, after: ProviderSupport, provider: str) -> str:
    """What changed, in words; partitions count where borders cost anything."""
    coverage = f"coverage {before.coverage:.0%} → {after.coverage:.0%}".replace("% →", " →").replace("%", " %")
    parts = [] if PROVIDER_RULES[provider].on_cpu else [f"partitions {before.partitions} → {after.partitions}"]
    parts.append(coverage)
    if f"{before.coverage:.0%}" == f"{after.coverage:.0%}" and before.left != after.left:
        parts.append(f"nodes on the CPU {before.left} → {after.left}")
    if before.load_error and not after.load_error:
        parts.append("loads on the phone")
    return ", ".join(parts)


HIGH_COVERAGE = 0.75
"""ONNX Runtime's mobile usability checker says yes to one partition with more than this share of the nodes."""

HALF_COVERAGE = 0.5
"""The checker says maybe to one partition with more than this."""

FEW_PARTITIONS = 2
"""The checker says maybe to so many partitions with high coverage, and no to more: each border copies its values
between the provider and the CPU, and waits for the other."""

RANKS = {FixChoice.CPU: 0, FixChoice.MEASURE: 1, FixChoice.USE: 2}


def verdict(standing: ProviderSupport, provider: str) -> AdviceVerdict:
    """What to run a model on, from how far the provider takes it."""
    name = PROVIDER_RULES[provider].title
    share = f"{standing.coverage:.0%}".replace("%", " %")
    if standing.load_error:
        return AdviceVerdict(choice=FixChoice.CPU, reason=f"a session with {name} cannot be made on the phone")
    if not standing.claimed:
        return AdviceVerdict(choice=FixChoice.CPU, reason=f"{name} supports no node, so it only costs time at load")
    if PROVIDER_RULES[provider].on_cpu:
        return _without_copies(standing, name, share)
    if standing.partitions > FEW_PARTITIONS:
        why = f"{name} supports {share} in {standing.partitions} partitions; each border costs copies and waiting"
        return AdviceVerdict(choice=FixChoice.CPU, reason=why)
    return _few_partitions(standing, name, share)


def _few_partitions(standing: ProviderSupport, name: str, share: str) -> AdviceVerdict:
    one = standing.partitions == 1
    pieces = "one partition" if one else f"{standing.partitions} partitions"
    if standing.coverage > HIGH_COVERAGE:
        choice = FixChoice.USE if one else FixChoice.MEASURE
        ending = "nearly all work is done there" if one else "whether they pay off depends on the phone"
        return AdviceVerdict(choice=choice, reason=f"{pieces} with {share} of the nodes, {ending}")
    if one and standing.coverage > HALF_COVERAGE:
        why = f"one partition, but with only {share} of the nodes; the CPU computes the rest"
        return AdviceVerdict(choice=FixChoice.MEASURE, reason=why)
    return AdviceVerdict(
        choice=FixChoice.CPU, reason=f"{name} supports only {share} of the nodes, so most work stays on the CPU"
    )


def _without_copies(standing: ProviderSupport, name: str, share: str) -> AdviceVerdict:
    """XNNPACK computes on the CPU with its own kernels, so a border costs next to nothing and only coverage counts."""
    if standing.coverage > HALF_COVERAGE:
        return AdviceVerdict(
            choice=FixChoice.MEASURE, reason=f"{name} has kernels for {share} of the nodes, faster on some phones"
        )
    return AdviceVerdict(choice=FixChoice.CPU, reason=f"{name} has kernels for only {share} of the nodes")


def improves(after: ProviderSupport, before: ProviderSupport, provider: str) -> bool:
    """Whether a standing is better: it loads, or has fewer borders or fewer nodes on the CPU and a verdict no worse.

    Coverage alone is no gain: it also rises when a node that is taken becomes two.
    """
    if bool(after.load_error) != bool(before.load_error):
        return not after.load_error
    if not before.claimed or not after.claimed:
        return after.claimed > before.claimed
    fewer = 0 if PROVIDER_RULES[provider].on_cpu else before.partitions - after.partitions
    less = before.left - after.left
    ranks = [RANKS[verdict(standing, provider).choice] for standing in (after, before)]
    if ranks[0] != ranks[1]:
        return ranks[0] > ranks[1] and (fewer > 0 or less > 0)
    return fewer >= 0 and less >= 0 and (fewer > 0 or less > 0)


def preference(standing: ProviderSupport, provider: str) -> tuple[bool, int, int, float]:
    """Sorts standings, the best last."""
    rank = RANKS[verdict(standing, provider).choice]
    pieces = 0 if PROVIDER_RULES[provider].on_cpu else -standing.partitions if standing.partitions else -(1 << 30)
    return not standing.load_error, rank, pieces, standing.coverage


def perfect(standing: ProviderSupport) -> bool:
    """Whether nothing is left to gain."""
    return standing.claimed == standing.nodes and standing.partitions <= 1 and not standing.load_error


MOST = 3


class Help(msgspec.Struct, frozen=True, kw_only=True):
    """One change and what it gives, by provider; the commonest reason why not yet, and what the rules say to do."""

    what: str
    gains: dict[str, str]
    reason: str = ""
    remedy: str = ""


class _Change(NamedTuple):
    """How far a provider supports a model now, and would if it supported `nodes` more of one operator."""

    answer: ModelAnswer
    before: ProviderSupport
    after: ProviderSupport
    nodes: int


def helps_of(
    before: Sequence[ModelAnswer],
    fixed: Sequence[ModelAnswer] | None,
    sizes: Mapping[str, int],
) -> tuple[Help, ...]:
    """The changes that gain most, the best first: sizes come first, the rest is what then is still in the way."""
    found: list[Help] = []
    if fixed:
        gains = _gains((one.ep, standing_of(one), standing_of(then)) for one, then in zip(before, fixed, strict=True))
        named = ", ".join(f"{name}={size}" for name, size in sizes.items())
        if gains:
            found.append(Help(what=f"fix the dynamic dimensions ({named})", gains=gains))
    now = fixed or before
    return (*found, *_failures(now), *_rewrites(now))[:MOST]


def _failures(answers: Iterable[ModelAnswer]) -> Iterator[Help]:
    """What keeps a session from being made on the phone."""
    for answer in answers:
        if answer.load and answer.load.error:
            yield Help(
                what=f"change what {PROVIDER_RULES[answer.ep].title} fails on",
                gains={answer.ep: "a session can be made"},
                reason=answer.load.error,
                remedy=answer.load.remedy or "",
            )


def _rewrites(answers: Sequence[ModelAnswer]) -> list[Help]:
    """Operators whose nodes, if they were supported, would improve some provider, those that improve most first.

    XNNPACK is left out: the CPU computes next to it what it has no kernel for.
    """
    found: dict[str, list[_Change]] = defaultdict(list)
    for answer in answers:
        before = standing_of(answer)
        if before.load_error or PROVIDER_RULES[answer.ep].on_cpu:
            continue
        for one in answer.operators:
            after = ProviderSupport(nodes=answer.nodes, claimed=one.claimed, partitions=one.partitions)
            if improves(after, before, answer.ep):
                found[one.op_type].append(_Change(answer, before, after, one.nodes))
    for changes in found.values():
        changes.sort(key=lambda change: _worth([change]), reverse=True)
    ranked = sorted(found.items(), key=lambda item: _worth(item[1]), reverse=True)
    return [_rewrite(op_type, changes) for op_type, changes in ranked]


def _worth(changes: Sequence[_Change]) -> tuple[int, int]:
    """Verdicts that become better, then nodes that move from the CPU to a provider."""
    better = sum(RANKS[_choice(c.after, c.answer)] - RANKS[_choice(c.before, c.answer)] for c in changes)
    return better, sum(c.after.claimed - c.before.claimed for c in changes)


def _choice(standing: ProviderSupport, answer: ModelAnswer) -> FixChoice:
    return verdict(standing, answer.ep).choice


def _rewrite(op_type: str, changes: Sequence[_Change]) -> Help:
    nodes = max(change.nodes for change in changes)
    refused = [d for d in changes[0].answer.decisions if not d.claimed and d.op_type == op_type]
    remedies = Counter(decision.remedy for decision in refused if decision.remedy)
    reasons = Counter(decision.reason for decision in refused if decision.reason)
    return Help(
        what=f"rewrite {op_type} ({nodes} node{'s' * (nodes != 1)})",
        gains={c.answer.ep: _gain(c.before, c.after, c.answer.ep) for c in changes},
        reason=reasons.most_common(1)[0][0] if reasons else "",
        remedy=remedies.most_common(1)[0][0] if remedies else "",
    )


def _gains(pairs: Iterable[tuple[str, ProviderSupport, ProviderSupport]]) -> dict[str, str]:
    """What changed for the providers that it improves."""
    return {ep: _gain(before, after, ep) for ep, before, after in pairs if improves(after, before, ep)}


def _gain(before: ProviderSupport, after: ProviderSupport, provider: str) -> str:
    """As `0 → 316 of 328 nodes, 0 → 7 partitions`."""
    nodes = f"{before.claimed} → {after.claimed} of {after.nodes} nodes"
    if before.load_error and not after.load_error:
        nodes += ", and a session can be made"
    return nodes if PROVIDER_RULES[provider].on_cpu else f"{nodes}, {before.partitions} → {after.partitions} partitions"
