"""Claims of thousands of graphs with odd quantization: all providers answer, and as ONNX Runtime does where asked.

As a program: `python -m tests.claims_fuzz [--graphs N] [--first SEED] [--library android:1.28.0]`. Each graph is judged
for all providers, as it stands and after level basic. With a library the claims of NNAPI and XNNPACK are compared with
its own; its release of onnxruntime must be installed then. Exit status 1 for an internal error or a claim that differs.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial

from device_runner.library import resolve
from pipeline.core.abis import X86_64
from pipeline.core.workers import Task, run_tasks
from tests.partition.fuzzing import Batch, Verdict, answer_all, differing

GRAPHS = 5_000
BATCH = 25
SECONDS = 1200.0


def batches(seeds: Sequence[int]) -> list[Batch]:
    """The seeds in batches, each for a process."""
    return [Batch(seeds=tuple(seeds[start : start + BATCH])) for start in range(0, len(seeds), BATCH)]


def _asked(asked: Sequence[Batch], processes: int) -> tuple[list[Verdict], list[Batch]]:
    """The verdicts, and the batches whose process onnxruntime ended."""
    tasks = [Task(label=str(batch.seeds), call=partial(answer_all, batch)) for batch in asked]
    outcomes = list(run_tasks(tasks, processes=processes, timeout_seconds=SECONDS))
    return [row.value for row in outcomes if row.value], [row.task.call.args[0] for row in outcomes if row.error]


def main() -> int:
    """Print what was asked and what is wrong; 1 for anything wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", type=int, default=GRAPHS)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--library", help="an AAR, a .so or an available release, such as android:1.28.0")
    parser.add_argument("--processes", type=int, default=0, help="0: as many as there are cores")
    chosen = parser.parse_args()
    seeds = range(chosen.first, chosen.first + chosen.graphs)
    total, wrong = Counter[str](), list[str]()
    verdicts, lost = _asked(batches(seeds), chosen.processes)
    again, dead = _asked([Batch(seeds=(seed,)) for batch in lost for seed in batch.seeds], chosen.processes)
    for verdict in (*verdicts, *again):
        total.update(answers=verdict.answers, claims=verdict.claims, errors=verdict.errors)
        wrong += verdict.wrong
    total["crashes of onnxruntime"] = len(dead)
    print("".join(f"{text}\n" for text in wrong), end="")
    print(f"{chosen.graphs} graphs: {dict(total)}, {len(wrong)} wrong", flush=True)
    if chosen.library:
        for batch in batches(seeds):
            counts, different = differing(resolve(chosen.library, X86_64).android(), batch.seeds)
            total.update(counts)
            wrong += different
            print("".join(f"{text}\n" for text in different), end="", flush=True)
        print(f"beside {chosen.library}: {dict(total)}, {len(wrong)} wrong")
    return 1 if wrong or not total["claims"] else 0


if __name__ == "__main__":
    sys.exit(main())
