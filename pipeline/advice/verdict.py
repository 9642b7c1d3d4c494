"""The documentation's guidance as a verdict: when a provider is worth using, and what counts as better."""

from pipeline.advice.answer import AdviceVerdict, FixChoice, ProviderSupport
from pipeline.partition.answer import Provider

HIGH_COVERAGE = 0.75
"""ONNX Runtime's mobile usability checker says yes to one partition with more than this share of the nodes."""

HALF_COVERAGE = 0.5
"""The checker says maybe to one partition with more than this."""

FEW_PARTITIONS = 2
"""The checker says maybe to so many partitions with high coverage, and no to more: each border copies its values
between the provider and the CPU, and waits for the other."""

NAMES = {
    Provider.NNAPI: "NNAPI",
    Provider.COREML_NN: "CoreML (NeuralNetwork)",
    Provider.COREML_MLPROGRAM: "CoreML (MLProgram)",
    Provider.XNNPACK: "XNNPACK",
}

RANKS = {FixChoice.CPU: 0, FixChoice.MEASURE: 1, FixChoice.USE: 2}


def verdict(standing: ProviderSupport, provider: Provider) -> AdviceVerdict:
    """What to run a model on, from how far the provider takes it."""
    name = NAMES[provider]
    share = f"{standing.coverage:.0%}".replace("%", " %")
    if standing.load_error:
        return AdviceVerdict(choice=FixChoice.CPU, reason=f"a session with {name} cannot be made on the phone")
    if not standing.claimed:
        return AdviceVerdict(choice=FixChoice.CPU, reason=f"{name} supports no node, so it only costs time at load")
    if provider is Provider.XNNPACK:
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


def improves(after: ProviderSupport, before: ProviderSupport, provider: Provider) -> bool:
    """Whether a standing is better: it loads, or has fewer borders or fewer nodes on the CPU and a verdict no worse.

    Coverage alone is no gain: it also rises when a node that is taken becomes two.
    """
    if bool(after.load_error) != bool(before.load_error):
        return not after.load_error
    if not before.claimed or not after.claimed:
        return after.claimed > before.claimed
    fewer = 0 if provider is Provider.XNNPACK else before.partitions - after.partitions
    less = before.left - after.left
    ranks = [RANKS[verdict(standing, provider).choice] for standing in (after, before)]
    if ranks[0] != ranks[1]:
        return ranks[0] > ranks[1] and (fewer > 0 or less > 0)
    return fewer >= 0 and less >= 0 and (fewer > 0 or less > 0)


def preference(standing: ProviderSupport, provider: Provider) -> tuple[bool, int, int, float]:
    """Sorts standings, the best last."""
    rank = RANKS[verdict(standing, provider).choice]
    pieces = 0 if provider is Provider.XNNPACK else -standing.partitions if standing.partitions else -(1 << 30)
    return not standing.load_error, rank, pieces, standing.coverage


def perfect(standing: ProviderSupport) -> bool:
    """Whether nothing is left to gain."""
    return standing.claimed == standing.nodes and standing.partitions <= 1 and not standing.load_error
