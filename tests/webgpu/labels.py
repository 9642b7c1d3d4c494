"""The labels of the WebGPU plugin for the ground truth: tests/ground_truth/webgpu.labels.jsonl.gz, read and compared.

As a program (`nox -s gpu_claims`): asks the genuine plugin about every model of the ground truth and new random graphs,
and compares its labels with our claims. With --record it writes the labels. Exit status 1 where anything differs.
"""

import argparse
import gzip
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

import msgspec

from pipeline.model.sources import SourceModel
from pipeline.partition.answer import Decision, ModelAnswer, Settings, make_settings
from pipeline.partition.judge import PartitionRequest, judge
from tests.ground_truth import ORACLE
from tests.webgpu.plugin import EVERY, Label, ask

SETTINGS = {
    "nhwc": {"preferredLayout": "NHWC"},
    "nchw": {"preferredLayout": "NCHW"},
    "nhwc-int64": {"preferredLayout": "NHWC", "enableInt64": "1"},
    "nchw-int64": {"preferredLayout": "NCHW", "enableInt64": "1"},
}
"""The options of the plugin by the name of the setting."""

ARCHIVES = ("ops", "dags", "real")
PATH = ORACLE / "webgpu.labels.jsonl.gz"


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """One label: of a model of an archive, in a setting, by the plugin's release or the library's."""

    archive: str
    setting: str
    id: str
    label: Label


@cache
def recorded() -> dict[tuple[str, str], dict[str, Label]]:
    """All labels: by archive and setting, then by the model's id."""
    table: dict[tuple[str, str], dict[str, Label]] = {}
    with gzip.open(PATH) as lines:
        for row in msgspec.json.Decoder(Row).decode_lines(lines.read()):
            table.setdefault((row.archive, row.setting), {})[row.id] = row.label
    return table


def settings_of(setting: str, release: str = "1.29") -> Settings:
    """The settings of our rules for a setting of the plugin."""
    return make_settings("webgpu", release=release, webgpu_options=[f"{k}={v}" for k, v in SETTINGS[setting].items()])


def claimed(label: Label, name: str, first_output: str) -> bool:
    """Whether the plugin takes a node, by its name or first output."""
    left = {*label.refused, *label.forced}
    return EVERY not in left and first_output not in left and (name or first_output) not in left


def wrong(label: Label, decisions: Iterable[Decision]) -> Iterator[str]:
    """Nodes on which plugin and rules differ. A session that failed may not have come to all of them."""
    for row in decisions:
        first = next((name for name in row.outputs if name), row.name)
        truth = claimed(label, row.name, first)
        if truth != row.claimed and not (label.error and truth):
            yield f"{row.op_type}-{row.since_version} '{first}': {'claimed' if row.claimed else row.reason}"


def random_graphs(folder: Path, count: int, first: int) -> list[Path]:
    """Graphs that no label was made of."""
    from tests.random_graphs import random_graph

    paths = []
    for seed in range(first, first + count):
        path = folder / f"random_{seed}.onnx"
        path.write_bytes(random_graph(seed).SerializeToString())
        paths.append(path)
    return paths


def models(folder: Path, archive: str, graphs: int, first: int) -> Iterator[tuple[str, Path]]:
    """The models of an archive, or new ones, with their ids."""
    if archive == "random":
        yield from ((path.stem, path) for path in random_graphs(folder, graphs, first))
        return
    with zipfile.ZipFile(ORACLE / f"{archive}.zip") as packed:
        names = sorted(name for name in packed.namelist() if name.endswith(".onnx"))
        packed.extractall(folder, names)
        yield from ((name.removesuffix(".onnx"), folder / name) for name in names)


def main() -> int:
    """Ask, compare, and record where that is wanted; 1 where a claim differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archives", nargs="*", default=[*ARCHIVES, "random"])
    parser.add_argument("--graphs", type=int, default=400, help="how many new random graphs")
    parser.add_argument("--first", type=int, default=70_000, help="the first seed of these")
    parser.add_argument("--record", action="store_true", help="write the labels")
    chosen = parser.parse_args()
    rows: list[Row] = []
    differing = 0
    print(f"onnxruntime {metadata.version('onnxruntime')}, plugin {metadata.version('onnxruntime-ep-webgpu')}")
    for archive in chosen.archives:
        with tempfile.TemporaryDirectory() as folder:
            listed = dict(models(Path(folder), archive, chosen.graphs, chosen.first))
            for setting, options in SETTINGS.items():
                labels = dict(zip(listed, (label for _, label in ask(list(listed.values()), options)), strict=True))
                answers = {name: _judged(path, setting) for name, path in listed.items()}
                rows += [Row(archive, setting, name, label) for name, label in labels.items()]
                differing += _report(archive, setting, labels, answers)
    if chosen.record:
        content = b"".join(msgspec.json.encode(row) + b"\n" for row in rows if row.archive != "random")
        PATH.write_bytes(gzip.compress(content, mtime=0))
    return min(differing, 1)


def _judged(path: Path, setting: str) -> ModelAnswer:
    return judge(PartitionRequest(source=SourceModel(path=str(path)), settings=settings_of(setting)))


def _report(archive: str, setting: str, labels: dict[str, Label], answers: dict[str, ModelAnswer]) -> int:
    """Print what differs in one setting; how many models do."""
    good = {name: answer for name, answer in answers.items() if not answer.error}
    bad = {name: texts for name, answer in good.items() if (texts := list(wrong(labels[name], answer.decisions)))}
    refused = answers.keys() - good.keys()
    bad |= {name: [f"no answer: {answers[name].error}"] for name in refused if not labels[name].error}
    nodes = sum(answer.nodes for answer in good.values())
    sessions = [name for name in good if not labels[name].error]
    same = {name for name in sessions if labels[name].copies == good[name].copies}
    sure = {name for name in sessions if not good[name].copies_estimated}
    bad |= {name: [f"{labels[name].copies} copies, not {good[name].copies}"] for name in sure - same}
    print(
        f"{archive} {setting}: {len(good)} models, {len(refused)} of which none makes a session, {nodes} nodes, "
        f"{len(bad)} models wrong; copies equal in {len(same)} of {len(sessions)} sessions, "
        f"in {len(sure & same)} of {len(sure)} of which we are sure",
        flush=True,
    )
    for name, texts in bad.items():
        print(f"  {name}: {'; '.join(texts[:3])}", flush=True)
    return len(bad)


if __name__ == "__main__":
    sys.exit(main())
