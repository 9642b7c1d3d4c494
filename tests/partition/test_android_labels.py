"""What genuine Android libraries claimed, without them: our rules of their releases about recorded graphs."""

from collections import Counter
from functools import cache
from typing import Any

import msgspec
import pytest

from pipeline.core.releases import has_rules, line_of
from pipeline.partition.claiming import claim
from pipeline.partition.graph import Graph, bodies
from pipeline.partition.library_claims import LibraryClaims, same_claims
from tests.android_labels import BASE, SETTINGS, USUAL, android_labels, android_settings, claimed
from tests.recorded_graphs import record, unpack

COUNTS = {"real": 67, "dags": 200, "ops": 3_000}
"""In each setting more labels say what is claimed; without a session nothing is judged."""
EVERY = {"real": 1, "dags": 4, "ops": 29}
"""Each so-many-th label is judged again; all agree when all are."""


def library_claims(name: str, line: str, row: dict[str, Any]) -> LibraryClaims:
    """A label as the library's answer; one before 1.24 names nodes without their groups."""
    groups = None if "nodes" in row and "claim" not in row else tuple(map(tuple, claimed(row)))
    return LibraryClaims(
        id=name, release=line, partitions=groups, nodes=frozenset(row["nodes"]) if groups is None else frozenset(),
        inlined=row.get("inlined", False),
    )  # fmt: skip


def agreement(archive: str, line: str, every: int) -> dict[tuple[str, str], bool]:
    """Whether our rules of a release claim what the library did, by setting and model, of each so-many-th label."""
    graphs = record(archive, BASE)
    labels = [(key, row) for key, row in android_labels(archive, line).items() if row["error"] is None]
    assert len(labels) > COUNTS[archive] * len({setting for (setting, _), _ in labels})

    @cache  # a graph is judged in many settings
    def graph(name: str) -> Graph:
        return unpack(msgspec.msgpack.decode(graphs[f"{name}@none"])[0])

    answers = {}
    for (setting, name), row in labels[::every]:
        settings = android_settings(setting, line)
        shown = graph(name)
        ours = [*claim(shown, settings).names()]
        for _, body in bodies(shown):
            ours += claim(body, settings).names()
        answers[setting, name] = same_claims(library_claims(name, line, row), ours)
    return answers


@pytest.mark.parametrize(("line", "settings"), [("1.26", USUAL), ("1.29", SETTINGS)])
@pytest.mark.parametrize("archive", list(COUNTS))
def test_claims_of_android(archive: str, line: str, settings: tuple[str, ...]) -> None:
    answers = agreement(archive, line, EVERY[archive])
    assert {setting for setting, _ in answers} == set(USUAL if archive == "ops" else settings)
    assert [key for key, same in answers.items() if not same] == []


def test_rules_begin_behind_a_library_that_claims_otherwise() -> None:
    """Android 1.17.1 takes Gelu, local functions and groups of QDQ otherwise than 1.19, where rules begin.

    tests/android_host/test_oldest_library.py names the classes of what differs.
    """
    assert not has_rules(line_of("1.17"))
    answers = agreement("ops", "1.17", EVERY["ops"])
    families = {name.partition("/")[0] for (_, name), same in answers.items() if not same}
    assert {"gelu", "qdq_conv"} & families
    assert 0.9 < sum(answers.values()) / len(answers) < 1
    real = agreement("real", "1.17", EVERY["real"])
    assert Counter(name for (_, name), same in real.items() if not same) == dict.fromkeys(
        ("conformer_block.fp16_op17", "convnext_tiny_slice.op20", "face_embedding.qdq_u8s8pc", "ghostnet.qdq_u8u8"), 2
    )
