"""The answer of `ort-mobile partition` for one model: its verdict, and what would help most."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from pipeline.core import providers as provider_rules
from pipeline.partition import answer as claim_answer

if TYPE_CHECKING:
    pass


class FixChoice(StrEnum):
    """What the guidance says of a model and a provider."""

    USE = "use the provider"
    MEASURE = "measure both"
    CPU = "use the CPU"


class ProviderSupport(msgspec.Struct, frozen=True, kw_only=True):
    """How far a provider takes a model; `copies` of one inference where it is judged by them, `about` as many or just.

    `load_error` says that a session fails on the phone all the same, `at_run` that it is made before: the two of a
    LoadForecast that documents of release 1.0 have here. `wrong` is what a chip's simulator computes otherwise, where
    it was asked, and `noisy` that it computes a form with more noise than the CPU.
    """

    nodes: int
    claimed: int
    partitions: int
    copies: int | None = None
    about: bool = False
    load_error: str | None = None
    at_run: bool = False
    wrong: str | None = None
    noisy: bool = False

    @property
    def trouble(self) -> int:
        """How bad the worst objection to the provider is: 0 for none, most for a session that fails."""
        return 3 if self.load_error else 2 if self.wrong else int(self.noisy)

    @property
    def borders(self) -> int:
        """What borders cost: copies for each inference where the provider is judged by them, else partitions."""
        return self.partitions if self.copies is None else self.copies

    @property
    def coverage(self) -> float:
        """The claimed share of the nodes, 0 to 1."""
        return self.claimed / self.nodes if self.nodes else 0.0

    @property
    def percent(self) -> int:
        """The claimed share in whole per cent, rounded down."""
        return claim_answer.percent_of(self.claimed, self.nodes)

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

    `settings` says what to set beside the model, in words of the command line; `simulated` is what a chip's simulator
    computes of it, where it was asked.
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
    simulated: claim_answer.Simulation | None = None
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
    precision: str = ""
    """Which precision the provider wants, where nodes are refused for the model's own; unset for no such node."""

    @property
    def wrote(self) -> bool:
        """Whether the model was written: fixed, or unchanged where no fix of it gains anything."""
        return bool(self.copied or (self.best and self.best.written))


class AdvisedAnswer(claim_answer.ModelAnswer, frozen=True, kw_only=True):
    """A model's answer with advice."""

    advice: Advice


def standing_of(answer: claim_answer.ModelAnswer) -> ProviderSupport:
    """What counts of an answer."""
    return ProviderSupport(
        nodes=answer.nodes,
        claimed=answer.claimed,
        partitions=len(answer.partitions),
        copies=answer.copies,
        about=answer.copies_estimated,
        load_error=answer.load.error if answer.load else None,
        at_run=bool(answer.load and answer.load.at_run),
        wrong=(answer.simulated.reason or "its outputs differ")
        if answer.simulated and answer.simulated.passed is False
        else None,
        noisy=bool(answer.simulated and answer.simulated.noisy),
    )


def gain_of(before: ProviderSupport, after: ProviderSupport, provider: str) -> str:
    """What changed, in words; partitions count where borders cost anything."""
    coverage = f"coverage {before.percent} → {after.percent} %"
    rules = provider_rules.PROVIDER_RULES[provider]
    counts = f"{'copies' if rules.copies else 'partitions'} {before.borders} → {after.borders}"
    parts = [] if rules.on_cpu else [counts]
    parts.append(coverage)
    if before.percent == after.percent and before.left != after.left:
        parts.append(f"nodes on the CPU {before.left} → {after.left}")
    if before.load_error and not after.load_error:
        parts.append("can be run" if before.at_run else "loads on the phone")
    if before.wrong and not after.wrong:
        parts.append("computes what the original does")
    if before.noisy > after.trouble:
        parts.append("computes it with less noise")
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
    name = provider_rules.PROVIDER_RULES[provider].title
    share = f"{standing.percent} %"
    if standing.load_error:
        none = f"a session with {name} cannot be made on the phone"
        return AdviceVerdict(choice=FixChoice.CPU, reason=standing.load_error if standing.at_run else none)
    if standing.wrong:
        return AdviceVerdict(choice=FixChoice.CPU, reason="the NPU computes something else")
    if not standing.claimed:
        return AdviceVerdict(choice=FixChoice.CPU, reason=f"{name} supports no node, so it only costs time at load")
    if provider_rules.PROVIDER_RULES[provider].on_cpu:
        # XNNPACK computes on the CPU with its own kernels, so a border costs next to nothing and only coverage
        # counts.
        if standing.coverage > HALF_COVERAGE:
            return AdviceVerdict(
                choice=FixChoice.MEASURE, reason=f"{name} has kernels for {share} of the nodes, faster on some phones"
            )
        return AdviceVerdict(choice=FixChoice.CPU, reason=f"{name} has kernels for only {share} of the nodes")
    if provider_rules.PROVIDER_RULES[provider].copies:
        return _with_copies(standing, name, share)
    if standing.partitions > FEW_PARTITIONS:
        why = f"{name} supports {share} in {standing.partitions} partitions; each border costs copies and waiting"
        return AdviceVerdict(choice=FixChoice.CPU, reason=why)
    single = standing.partitions == 1
    pieces = "one partition" if single else f"{standing.partitions} partitions"
    if standing.coverage > HIGH_COVERAGE:
        choice = FixChoice.USE if single else FixChoice.MEASURE
        ending = "nearly all work is done there" if single else "whether they pay off depends on the phone"
        return AdviceVerdict(choice=choice, reason=f"{pieces} with {share} of the nodes, {ending}")
    if single and standing.coverage > HALF_COVERAGE:
        why = f"one partition, but with only {share} of the nodes; the CPU computes the rest"
        return AdviceVerdict(choice=FixChoice.MEASURE, reason=why)
    return AdviceVerdict(
        choice=FixChoice.CPU, reason=f"{name} supports only {share} of the nodes, so most work stays on the CPU"
    )


FEW_COPIES = 2
"""As MOST_COPIES, what one partition costs: to the provider, and back."""


def _with_copies(standing: ProviderSupport, name: str, share: str) -> AdviceVerdict:
    """WebGPU takes node by node: what counts is how often values go between the GPU's memory and the CPU's."""
    copies = standing.copies or 0
    pieces = (
        f"{provider_rules.PROVIDER_RULES[provider_rules.WEBGPU].borders(copies, about=standing.about)} between "
        "GPU and CPU per inference"
    )
    if standing.coverage <= HALF_COVERAGE:
        why = f"{name} supports only {share} of the nodes, so most work stays on the CPU"
    elif copies > claim_answer.MOST_COPIES:
        why = f"{name} supports {share}, with {pieces}; each waits for the other side"
    else:
        use = standing.coverage > HIGH_COVERAGE and copies <= FEW_COPIES
        whole = f"{share} of the nodes, {pieces}" if standing.left or copies else "every node has a kernel on the GPU"
        return AdviceVerdict(choice=FixChoice.USE if use else FixChoice.MEASURE, reason=whole)
    return AdviceVerdict(choice=FixChoice.CPU, reason=why)


def improves(after: ProviderSupport, before: ProviderSupport, provider: str) -> bool:
    """Whether a standing is better: it loads, or has fewer borders or fewer nodes on the CPU and a verdict no worse.

    Coverage alone is no gain: it also rises when a node that is taken becomes two.
    """
    if after.trouble != before.trouble:
        return after.trouble < before.trouble
    if not before.claimed or not after.claimed:
        return after.claimed > before.claimed
    fewer = 0 if provider_rules.PROVIDER_RULES[provider].on_cpu else before.borders - after.borders
    less = before.left - after.left
    ranks = [RANKS[verdict(standing, provider).choice] for standing in (after, before)]
    if ranks[0] != ranks[1]:
        return ranks[0] > ranks[1] and (fewer > 0 or less > 0)
    return fewer >= 0 and less >= 0 and (fewer > 0 or less > 0)


def worsens(after: ProviderSupport, before: ProviderSupport, provider: str) -> bool:
    """Whether a standing is worse in something, and its verdict no better: it does not load, or has more borders or a
    smaller claimed share. Where nothing was claimed there is nothing to lose.
    """
    if after.trouble != before.trouble:
        return after.trouble > before.trouble
    ranks = [RANKS[verdict(standing, provider).choice] for standing in (after, before)]
    if ranks[0] != ranks[1]:
        return ranks[0] < ranks[1]
    more = not provider_rules.PROVIDER_RULES[provider].on_cpu and after.borders > before.borders
    return bool(before.claimed) and (more or after.coverage < before.coverage)


def preference(standing: ProviderSupport, provider: str) -> tuple[int, int, int, float]:
    """Sorts standings, the best last."""
    rank = RANKS[verdict(standing, provider).choice]
    nothing = not standing.claimed
    pieces = 0 if provider_rules.PROVIDER_RULES[provider].on_cpu else -(1 << 30) if nothing else -standing.borders
    return -standing.trouble, rank, pieces, standing.coverage


def perfect(standing: ProviderSupport) -> bool:
    """Whether nothing is left to gain."""
    whole = standing.partitions <= 1 if standing.copies is None else not standing.copies
    return standing.claimed == standing.nodes and whole and not standing.trouble


MOST = 3


class Help(msgspec.Struct, frozen=True, kw_only=True):
    """One change, what it gives and what it costs, by provider; the commonest reason why not yet, and what to do."""

    what: str
    gains: dict[str, str] = {}
    losses: dict[str, str] = {}
    reason: str = ""
    remedy: str = ""


class _Change(NamedTuple):
    """How far a provider supports a model now, and would with sizes or with `nodes` more of one operator."""

    answer: claim_answer.ModelAnswer
    before: ProviderSupport
    after: ProviderSupport
    op_type: str = ""
    nodes: int = 0

    @property
    def loses(self) -> bool:
        return worsens(self.after, self.before, self.answer.ep)

    @property
    def gains(self) -> bool:
        """Whether something is better and nothing worse: fewer borders around a smaller share are no gain."""
        return improves(self.after, self.before, self.answer.ep) and not self.loses

    @property
    def worth(self) -> tuple[int, int, int]:
        """Steps to a better verdict, then one less for any loss, then the nodes that a gain takes from the CPU."""
        after, before = (RANKS[verdict(standing, self.answer.ep).choice] for standing in (self.after, self.before))
        return after - before, -self.loses, self.gains * (self.after.claimed - self.before.claimed)

    @property
    def text(self) -> str:
        """As `0 → 316 of 328 nodes, 0 → 7 partitions`."""
        before, after = self.before, self.after
        of = f" of {before.nodes}" if before.nodes != after.nodes else ""
        text = f"{before.claimed}{of} → {after.claimed} of {after.nodes} nodes"
        if bool(after.load_error) != bool(before.load_error):
            run = f"a run is {'refused' if after.load_error else 'possible'}"
            session = f"{'no' if after.load_error else 'a'} session can be made"
            text += f", and {run if after.at_run or before.at_run else session}"
        rules = provider_rules.PROVIDER_RULES[self.answer.ep]
        borders = f", {before.borders} → {after.borders} {'copies' if rules.copies else 'partitions'}"
        return text if rules.on_cpu else text + borders


FROM_FLOAT = (
    "judge the float model, and make the form of each provider from it: "
    "ort-mobile convert FLOAT.onnx --precision auto --test-data DATA --output OUT"
)


def helps_of(
    before: Sequence[claim_answer.ModelAnswer],
    fixed: Sequence[claim_answer.ModelAnswer] | None,
    sizes: Mapping[str, int],
    unsuited: str = "",
) -> tuple[Help, ...]:
    """The changes that gain most, the best first: sizes, unless they cost more, and what then is still in the way.

    `unsuited` says why the model's precision is for no provider: then the first is to start from the float model. To
    rewrite operators of such a form is no way; sizes may make a verdict better.
    """
    now = fixed or before
    named = ", ".join(f"{name}={size}" for name, size in sizes.items())
    pairs = zip(before, now, strict=True)
    sized = [_Change(then, standing_of(as_is), standing_of(then)) for as_is, then in pairs]
    if unsuited:
        better = [_help(sized, named)] if _worth(sized)[0] > 0 else []
        what = "start from the float model" + ("" if better else ": no change of this file helps")
        return (Help(what=what, reason=unsuited, remedy=FROM_FLOAT), *better)
    # What supporting all nodes of an operator would change for each provider. XNNPACK is left out: the CPU computes the
    # rest next to it
    rewrites: dict[str, list[_Change]] = defaultdict(list)
    for answer in now:
        standing = standing_of(answer)
        for gain in () if standing.load_error or provider_rules.PROVIDER_RULES[answer.ep].on_cpu else answer.operators:
            after = ProviderSupport(
                nodes=answer.nodes, claimed=gain.claimed, partitions=gain.partitions, copies=gain.copies
            )
            rewrites[gain.op_type].append(_Change(answer, standing, after, gain.op_type, gain.nodes))
    ranked = sorted([sized, *rewrites.values()], key=_worth, reverse=True)
    ranked = [changes for changes in ranked if any(change.gains for change in changes)]
    if _worth(sized)[:2] >= (0, 0):
        ranked.sort(key=lambda changes: changes is not sized)
    helps = [_help(changes, named) for changes in ranked]
    first = ranked[:1] == [sized]
    failures = [  # what keeps a session from being made on the phone
        Help(
            what=f"change what {provider_rules.PROVIDER_RULES[answer.ep].title} fails on",
            gains={answer.ep: "it can be run" if answer.load.at_run else "a session can be made"},
            reason=answer.load.error,
            remedy=answer.load.remedy or "",
        )
        for answer in now
        if answer.load and answer.load.error
    ]
    return (*helps[:first], *failures, *helps[first:])[:MOST]


def _worth(changes: Sequence[_Change]) -> tuple[int, ...]:
    """The sums over all providers."""
    return tuple(map(sum, zip(*(change.worth for change in changes), strict=True)))


FUSED_FROM = {
    "FusedConv": "Conv and its activation",
    "NhwcFusedConv": "Conv and its activation",
    "FusedGemm": "Gemm and its activation",
    "FusedMatMul": "MatMul and the scale or Transpose beside it",
}
"""Operators that nobody wrote: what ONNX Runtime fused into each, from level extended on (basic for FusedMatMul)."""
UNFUSED = (
    "convert the original model with `--ep` of this provider, which leaves unfused what it takes, or at a lower level"
)


def _help(changes: Sequence[_Change], sizes: str) -> Help:
    """The providers that gain most first; the reasons of the first."""
    ordered = sorted(changes, key=lambda change: (change.gains, change.worth), reverse=True)
    op_type, nodes = ordered[0].op_type, max(change.nodes for change in changes)
    refused = [d for d in ordered[0].answer.decisions if not d.claimed and d.op_type == op_type]
    remedies = Counter(decision.remedy for decision in refused if decision.remedy)
    reasons = Counter(decision.reason for decision in refused if decision.reason)
    count = f"{nodes} node{'s' * (nodes != 1)}"
    what = f"rewrite {op_type} ({count})" if op_type else f"fix the dynamic dimensions ({sizes})"
    if fused_from := FUSED_FROM.get(op_type):
        what = f"leave {fused_from} apart ({op_type}, {count})"
        remedies = Counter([UNFUSED])
    return Help(
        what=what,
        gains={change.answer.ep: change.text for change in ordered if change.gains},
        losses={change.answer.ep: change.text for change in ordered if change.loses},
        reason=reasons.most_common(1)[0][0] if reasons else "",
        remedy=remedies.most_common(1)[0][0] if remedies else "",
    )
