"""Agreement with the ground truth: claims and loading of every labelled model, in one process.

As a program: `python -m tests.oracle_agreement [--release 1.23] [--what claims] [--settings REGEX] [ARCHIVE...]`; exit
status 1 unless all agree. The onnxruntime of the labels' release must be installed, because its shapes count.
"""

import argparse
import gzip
import re
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec

from pipeline.model.sources import SourceModel
from pipeline.partition.answer import ModelAnswer, Optimize, make_settings
from pipeline.partition.judge import PartitionRequest, judge
from pipeline.providers.nnapi import load
from tests.ground_truth import ORACLE

SETTING = re.compile(
    r"(?P<ep>nnapi|coreml-nn|coreml-mlprogram|xnnpack)(?P<version>\d*)(-(?P<extra>\w+))?(@(?P<level>\w+))?"
)
KINDS = ("claims", "load-errors", "load-partitions")


@dataclass(slots=True)
class Agreement:
    """How many labels are met; `wrong` has the id, the label's value and ours of those that are not."""

    total: int = 0
    wrong: list[tuple[str, Any, Any]] = field(default_factory=list)

    def judge(self, name: str, wanted: Any, given: Any) -> None:
        """Count a label, and note it where the answer is another."""
        self.total += 1
        if given != wanted:
            self.wrong.append((name, wanted, given))


def delta(oracle: Path, archive: str, release: str) -> Path | None:
    """The labels that differ in a release, None where the labels of 1.23 hold."""
    path = oracle / f"{archive}.delta-{release}.jsonl.gz"
    return path if path.is_file() else None


@lru_cache(maxsize=9)
def labels(oracle: Path, archive: str, release: str) -> dict[tuple[str, str], dict[str, Any]]:
    """All labels of an archive by (setting, id); those of the release go before those of 1.23, which it shares."""
    first = release == "1.23"
    shared = {} if first else labels(oracle, archive, "1.23")
    path = oracle / f"{archive}.labels.jsonl.gz" if first else delta(oracle, archive, release)
    if path is None:
        return shared
    with gzip.open(path, "rt") as lines:
        return shared | {(row["set"], row["id"]): row for row in map(msgspec.json.decode, lines)}


def usual_settings(oracle: Path, archive: str, release: str = "1.23") -> list[str]:
    """Settings of an archive that are judged by `partition`."""
    names = dict.fromkeys(setting for setting, _ in labels(oracle, archive, release))
    return [name for name in names if (match := SETTING.fullmatch(name)) and match["level"] in (None, "basic")]


def request_for(source: SourceModel, setting: str, release: str) -> PartitionRequest:
    """The question that a setting's name stands for."""
    match = SETTING.fullmatch(setting)
    if match is None:
        raise ValueError(setting)
    extra, version = match["extra"], int(match["version"] or 0) or None
    options = {"static": ["RequireStaticInputShapes=1"], "subgraphs": ["EnableOnSubgraphs=1"]}.get(extra, [])
    settings = make_settings(
        match["ep"],
        release=release,
        api_level=version if match["ep"] == "nnapi" else None,
        coreml_version=version if match["ep"].startswith("coreml") else None,
        options={"coreml": options},
        nnapi_flags=("USE_NCHW",) if extra == "nchw" else (),
        stop_ops={"nostop": "", "stop": "Concat,Sigmoid,Softmax"}.get(extra),
    )
    return PartitionRequest(source=source, settings=settings, optimize=Optimize(match["level"] or "none"))


def agreement(
    oracle: Path, archive: str, setting: str, what: str, *, release: str = "1.23", every: int = 1
) -> Agreement:
    """Judge an archive's models (each `every`-th) in one setting and compare with the labels."""
    result = Agreement()
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(oracle / f"{archive}.zip") as packed:
        for row in list(rows(labels(oracle, archive, release), setting, what))[::every]:
            path = Path(packed.extract(f"{row['id']}.onnx", folder))
            with patch.object(load, "LEVEL_29", 0):  # NNAPI of the labels' host has all operations at every level
                given = judge(request_for(SourceModel(path=str(path)), setting, release))
            path.unlink()
            wanted, ours = expected(row, what), None if given.error else _given(given, what)
            result.judge(row["id"], wanted, given.error or ours)
    return result


def rows(found: dict[tuple[str, str], dict[str, Any]], setting: str, what: str) -> Iterator[dict[str, Any]]:
    """Labels of a setting that say something of claims or loading."""
    for (name, _), row in found.items():
        judged = row["error"] is None and (what == "claims" or "load" in row)
        if name == setting and judged and not (what == "load-partitions" and row["load"]["error"]):
            yield row


def as_sets(partitions: Any) -> frozenset[frozenset[str]]:
    """Partitions without the order of their nodes."""
    return frozenset(frozenset(group) for group in partitions)


def expected(row: dict[str, Any], what: str) -> Any:
    """What a label says."""
    if what == "claims":
        bodies = Counter((body["in"], as_sets(body["claim"])) for body in row.get("sub") or ())
        return as_sets(row["claim"]), bodies
    return bool(row["load"]["error"]) if what == "load-errors" else len(row["load"]["sizes"])


def _given(answer: ModelAnswer, what: str) -> Any:
    if what == "claims":
        bodies = Counter((body.owner, as_sets(body.partitions)) for body in answer.subgraphs)
        return as_sets(answer.partitions), bodies
    assert answer.load is not None
    return bool(answer.load.error) if what == "load-errors" else answer.load.partitions


def main() -> int:
    """Print a line a setting and a total; 1 unless all agree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archives", nargs="*", default=["ops", "dags", "real"])
    parser.add_argument("--release", default="1.23")
    parser.add_argument("--what", choices=KINDS, default="claims")
    parser.add_argument("--settings", default=".*", help="a regular expression")
    chosen = parser.parse_args()
    total = wrong = 0
    for archive in chosen.archives:
        if chosen.release != "1.23" and delta(ORACLE, archive, chosen.release) is None:
            continue
        for setting in usual_settings(ORACLE, archive, chosen.release):
            # Loading with XNNPACK is not judged: its library in the real build is of another date.
            judged = chosen.what == "claims" or not setting.startswith("xnnpack")
            if judged and re.fullmatch(chosen.settings, setting):
                result = agreement(ORACLE, archive, setting, chosen.what, release=chosen.release)
                total, wrong = total + result.total, wrong + len(result.wrong)
                print(
                    f"{archive:5s} {setting:32s} {result.total - len(result.wrong):6d} of {result.total:6d}", flush=True
                )
                for name, wanted, ours in result.wrong[:5]:
                    print(f"      {name}\n        label {str(wanted)[:200]}\n        ours  {str(ours)[:200]}")
    print(f"agreement {total - wrong} of {total}")
    return 1 if wrong or not total else 0


if __name__ == "__main__":
    sys.exit(main())
