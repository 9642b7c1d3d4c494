"""What would help a model most, by the rules alone: sizes for its dimensions, and operators that are in the way."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from pipeline.advice.answer import FixChoice, ProviderSupport, standing_of
from pipeline.advice.verdict import NAMES, RANKS, improves, verdict
from pipeline.partition.answer import ModelAnswer, Provider

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
                what=f"change what {NAMES[Provider(answer.ep)]} fails on",
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
        if before.load_error or answer.ep == Provider.XNNPACK:
            continue
        for one in answer.operators:
            after = ProviderSupport(nodes=answer.nodes, claimed=one.claimed, partitions=one.partitions)
            if improves(after, before, Provider(answer.ep)):
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
    return verdict(standing, Provider(answer.ep)).choice


def _rewrite(op_type: str, changes: Sequence[_Change]) -> Help:
    nodes = max(change.nodes for change in changes)
    refused = [d for d in changes[0].answer.decisions if not d.claimed and d.op_type == op_type]
    remedies = Counter(decision.remedy for decision in refused if decision.remedy)
    reasons = Counter(decision.reason for decision in refused if decision.reason)
    return Help(
        what=f"rewrite {op_type} ({nodes} node{'s' * (nodes != 1)})",
        gains={c.answer.ep: _gain(c.before, c.after, Provider(c.answer.ep)) for c in changes},
        reason=reasons.most_common(1)[0][0] if reasons else "",
        remedy=remedies.most_common(1)[0][0] if remedies else "",
    )


def _gains(pairs: Iterable[tuple[str, ProviderSupport, ProviderSupport]]) -> dict[str, str]:
    """What changed for the providers that it improves."""
    return {
        ep: _gain(before, after, Provider(ep)) for ep, before, after in pairs if improves(after, before, Provider(ep))
    }


def _gain(before: ProviderSupport, after: ProviderSupport, provider: Provider) -> str:
    """As `0 → 316 of 328 nodes, 0 → 7 partitions`."""
    nodes = f"{before.claimed} → {after.claimed} of {after.nodes} nodes"
    if before.load_error and not after.load_error:
        nodes += ", and a session can be made"
    return nodes if provider is Provider.XNNPACK else f"{nodes}, {before.partitions} → {after.partitions} partitions"
