"""What genuine Android libraries claimed, without them: our rules of their releases about recorded graphs."""

import msgspec
import pytest

from pipeline.partition.graph import bodies
from pipeline.partition.provider import claim
from pipeline.partition.reference import LibraryClaims, same_claims
from tests.android_labels import BASE, SETTINGS, android_labels, android_settings, claimed
from tests.recorded_graphs import record, unpack

COUNTS = {"real": 200, "dags": 600, "ops": 9_000}
"""Labels that say what is claimed are more than these; without a session nothing is judged."""
EVERY = {"real": 5, "dags": 11, "ops": 29}
"""Each so-many-th label is judged again; all agree when all are."""


@pytest.mark.parametrize("line", ["1.26", "1.29"])
@pytest.mark.parametrize("archive", list(COUNTS))
def test_claims_of_android(archive: str, line: str) -> None:
    graphs = record(archive, BASE)
    labels = [(key, row) for key, row in android_labels(archive, line).items() if row["error"] is None]
    assert {setting for (setting, _), _ in labels} == set(SETTINGS)
    assert len(labels) > COUNTS[archive]
    wrong = []
    for (setting, name), row in labels[:: EVERY[archive]]:
        settings = android_settings(setting, line)
        shown = unpack(msgspec.msgpack.decode(graphs[f"{name}@none"])[0])
        ours = [*claim(shown, settings).names()]
        for _, body in bodies(shown):
            ours += claim(body, settings).names()
        theirs = LibraryClaims(
            id=name, release=line, partitions=tuple(map(tuple, claimed(row))), inlined=row.get("inlined", False)
        )
        if not same_claims(theirs, ours):
            wrong.append((setting, name))
    assert wrong == []
