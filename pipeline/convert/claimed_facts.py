"""What an artifact asks of the CPU alone, told from what only claimed nodes ask."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from pipeline.compat import release_table
from pipeline.compat import rules as compat_rules
from pipeline.model import ort_format
from pipeline.partition import answer as claim_answer
from pipeline.partition import claiming as partition_claiming
from pipeline.partition import file_graph


def with_claims(
    facts: compat_rules.ArtifactFacts, file: Path, providers: Sequence[claim_answer.Settings]
) -> compat_rules.ArtifactFacts:
    """The same, with what is asked of the CPU alone told from what only nodes ask that one of the providers takes."""
    if not providers or all(demand.kind is not release_table.DemandKind.KERNEL for demand in facts.demands):
        return facts
    graph = file_graph.view_of_file(file)
    groups = [group for settings in providers for group in partition_claiming.claim(graph, settings).groups]
    claimed = {node.first_output for group in groups for node in group}
    taker = " or ".join(settings.provider for settings in providers)
    demands = release_table.release_table().demands(ort_format.read_artifact(file), claimed, taker)
    return msgspec.structs.replace(facts, demands=demands, claims_asked=True)
