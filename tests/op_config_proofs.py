"""Operator configs proven both ways: of every model of the ground truth, and of generated ones.

As a program: `python -m tests.op_config_proofs [--generated N] [ARCHIVE...]`. Each model is converted at every level
in both styles. For each artifact, for plain minimal and for extended builds: the config made from it covers it, without
any one operator or type the proof fails for a named node, and ONNX Runtime's own parser reads what was rendered. Exit
status 1 for a counterexample.
"""

import argparse
import sys
import time
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from pipeline.core.workers import Task, run_tasks
from tests.ground_truth import ORACLE
from tests.required_ops.proving import Subject, Verdict, joined, prove_models

ARCHIVES = ("ops", "dags", "real")
GENERATED = 10_000
BATCH = 20
SECONDS = 1200.0


def archive_subjects(oracle: Path, name: str) -> Iterator[Subject]:
    """The models of an archive in batches, by name."""
    path = oracle / f"{name}.zip"
    with zipfile.ZipFile(path) as archive:
        members = sorted(member for member in archive.namelist() if member.endswith(".onnx"))
    for start in range(0, len(members), BATCH):
        yield Subject(archive=str(path), members=tuple(members[start : start + BATCH]))


def prove_all(subjects: list[Subject], processes: int) -> Verdict:
    """The sum of all proofs. Where a process died, its models are tried one by one to name the one that ended it."""
    found, lost = _outcomes(subjects, processes)
    again, crashed = _outcomes([single for subject in lost for single in _singles(subject)], processes)
    dead = [Verdict(models=1, unconverted=1, crashes=(str(one.members or one.seeds),)) for one in crashed]
    return joined([*found, *again, *dead])


def _outcomes(subjects: list[Subject], processes: int) -> tuple[list[Verdict], list[Subject]]:
    """The verdicts, and the subjects whose process ended."""
    tasks = [
        Task(label=str(subject.members or subject.seeds), call=partial(prove_models, subject)) for subject in subjects
    ]
    outcomes = list(run_tasks(tasks, processes=processes, timeout_seconds=SECONDS))
    return [one.value for one in outcomes if one.value], [one.task.call.args[0] for one in outcomes if one.error]


def _singles(subject: Subject) -> Iterator[Subject]:
    yield from (Subject(archive=subject.archive, members=(member,)) for member in subject.members)
    yield from (Subject(seeds=(seed,)) for seed in subject.seeds)


def main() -> int:
    """Print a line for each archive and for the generated models, and every counterexample."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archives", nargs="*", default=ARCHIVES, help="archives of tests/ground_truth; `none` for none")
    parser.add_argument("--generated", type=int, default=GENERATED, help="how many generated models")
    parser.add_argument("--processes", type=int, default=0, help="0: as many as there are cores")
    chosen = parser.parse_args()
    found: list[Verdict] = []
    wanted = {name: list(archive_subjects(ORACLE, name)) for name in chosen.archives if name != "none"}
    starts = range(0, chosen.generated, BATCH)  # the same seeds on every machine
    wanted["generated"] = [Subject(seeds=tuple(range(n, min(n + BATCH, chosen.generated)))) for n in starts]
    for name, subjects in wanted.items():
        start = time.monotonic()
        verdict = prove_all(subjects, chosen.processes)
        found.append(verdict)
        print(
            f"{name:10s} {verdict.models:6,} models ({verdict.unconverted} gave no artifact), {verdict.artifacts:6,} "
            f"artifacts, {len(verdict.operators)} operators, {verdict.left_out:10,} lines and types left out in turn, "
            f"{len(verdict.counterexamples)} counterexamples ({time.monotonic() - start:.0f} s)", flush=True,
        )  # fmt: skip
        for text in found[-1].counterexamples:
            print(f"    {text}")
        for text in found[-1].crashes:
            print(f"    ONNX Runtime ended the process that converted {text}: no artifact, so nothing to prove")
    return 1 if any(one.counterexamples for one in found) or not any(one.artifacts for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
