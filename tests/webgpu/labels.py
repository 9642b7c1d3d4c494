"""Labels of WebGPU for the ground truth, tests/ground_truth/webgpu.*.jsonl.gz: made, read and compared.

As a program (`nox -s gpu_claims`): asks the genuine plugin, or Android libraries (--library), about every model of the
ground truth, new random graphs and each kernel, and compares their answers with our claims. With --record it writes the
labels, those of a library where they are not the plugin's. Exit status 1 where anything differs.
"""

import argparse
import gzip
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path

import msgspec
import onnx

from device_runner.library import LibraryFacts, resolve
from pipeline.core.abis import X86_64
from pipeline.core.releases import line_of
from pipeline.model.sources import SourceModel
from pipeline.partition.answer import Decision, ModelAnswer, Optimize, Settings, make_settings
from pipeline.partition.claiming import claim
from pipeline.partition.graph import bodies
from pipeline.partition.judge import PartitionRequest, judge
from pipeline.partition.reference import claims_of_named
from pipeline.partition.subject import open_views, scratch_folder
from tests.ground_truth import ORACLE
from tests.random_graphs import odd_quantization
from tests.webgpu.plugin import EVERY, Label, ask, named
from tests.webgpu.registry import one_node_models

SETTINGS = {
    "nhwc": {"preferredLayout": "NHWC"},
    "nchw": {"preferredLayout": "NCHW"},
    "nhwc-int64": {"preferredLayout": "NHWC", "enableInt64": "1"},
    "nchw-int64": {"preferredLayout": "NCHW", "enableInt64": "1"},
}
"""The options of the plugin by the name of the setting."""

ARCHIVES = ("ops", "dags", "real")
PLUGIN = "plugin"
AT_ONCE = 64
"""So many models are asked about in one process of a library."""


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """One label: of a model of an archive, in a setting."""

    archive: str
    setting: str
    id: str
    label: Label

    @property
    def place(self) -> tuple[str, str, str]:
        """Which of all labels of a source it is."""
        return self.archive, self.setting, self.id


def file_of(source: str) -> Path:
    """Where the labels of the plugin, or of a library such as android:1.28.0, lie."""
    name = "labels" if source == PLUGIN else f"android-{line_of(source.removeprefix('android:'))}"
    return ORACLE / f"webgpu.{name}.jsonl.gz"


@cache
def recorded(source: str = PLUGIN) -> Mapping[tuple[str, str, str], Label]:
    """The labels that a file has, by archive, setting and the model's id: of a library those that differ."""
    with gzip.open(file_of(source)) as lines:
        return {row.place: row.label for row in msgspec.json.Decoder(Row).decode_lines(lines.read())}


def settings_of(setting: str, source: str = PLUGIN) -> Settings:
    """The settings of our rules for a setting of the plugin or of a library such as android:1.28.0."""
    return make_settings(
        "webgpu",
        release="1.29" if source == PLUGIN else str(line_of(source.removeprefix("android:"))),
        options={"webgpu": [f"{key}={value}" for key, value in SETTINGS[setting].items()]},
        plugin=source == PLUGIN,
    )


def asked(library: LibraryFacts | None, paths: Sequence[Path], settings: Settings) -> Iterator[Label]:
    """The label of each model by an Android library, or by the plugin."""
    if library is None:
        options = {"preferredLayout": settings.webgpu.layout, "enableInt64": str(int(settings.webgpu.int64))}
        yield from (label for _, label in ask(paths, options))
        return
    for start in range(0, len(paths), AT_ONCE):
        yield from _asked_together(library, paths[start : start + AT_ONCE], settings)


def _asked_together(library: LibraryFacts, paths: Sequence[Path], settings: Settings) -> Iterator[Label]:
    with tempfile.TemporaryDirectory() as folder:
        shown = [Path(folder, f"{number}.onnx") for number in range(len(paths))]
        functions = []
        for path, target in zip(paths, shown, strict=True):
            model = named(onnx.load(path))
            functions.append({row.name for row in model.functions})
            onnx.save(model, target)
        for calls, claims in zip(functions, claims_of_named(shown, library, settings, reasons=True), strict=True):
            # Calls of the model's own functions have no kernel either; what counts is what they are inlined to.
            refused = tuple(name for name, op_type in claims.kinds.items() if op_type not in calls)
            yield Label(
                refused=(EVERY,) if claims.reason else refused,
                forced=tuple(claims.reasons.keys() - claims.kinds.keys()),
                error=(claims.error or "")[:300],
            )


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


def wrong_in_bodies(label: Label, path: Path, settings: Settings) -> Iterator[str]:
    """As `wrong`, of the bodies of If, Loop and Scan, which a provider is asked about one by one.

    Where no session is made, here neither, types inside are not known.
    """
    copy = path.with_suffix(".named.onnx")
    onnx.save(named(onnx.load(path)), copy)
    source = SourceModel(path=str(copy))
    with scratch_folder(source) as folder:
        shown = open_views(source, Optimize.NONE, folder, {}).of(settings).shown
        for _, body in bodies(shown):
            taken = claim(body, settings).claimed
            for index, node in body.nodes.items():
                names = filter(None, (*node.inputs, *node.outputs))
                if label.error and any(body.value(name).dtype is None for name in names):
                    continue
                truth = claimed(label, node.name, node.first_output)
                if truth != (index in taken) and not (label.error and truth):
                    yield f"{node.op_type}-{node.since_version} '{node.name}': {'claimed' if index in taken else 'not'}"


def random_graphs(folder: Path, count: int, first: int) -> list[Path]:
    """Graphs that no label was made of."""
    paths = []
    for seed in range(first, first + count):
        path = folder / f"random_{seed}.onnx"
        path.write_bytes(odd_quantization(seed).SerializeToString())
        paths.append(path)
    return paths


def models(folder: Path, archive: str, graphs: int, first: int) -> Iterator[tuple[str, Path]]:
    """The models of an archive, or new ones, with their ids."""
    if archive == "random":
        yield from ((path.stem, path) for path in random_graphs(folder, graphs, first))
        return
    if archive == "kernels":
        yield from one_node_models(folder)
        return
    with zipfile.ZipFile(ORACLE / f"{archive}.zip") as packed:
        names = sorted(name for name in packed.namelist() if name.endswith(".onnx"))
        packed.extractall(folder, names)
        yield from ((name.removesuffix(".onnx"), folder / name) for name in names)


def main() -> int:
    """Ask, compare, and record where that is wanted; 1 where a claim differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archives", nargs="*", default=[*ARCHIVES, "random", "kernels"])
    parser.add_argument("--library", action="append", dest="sources", help="android:1.28.0, in place of the plugin")
    parser.add_argument("--graphs", type=int, default=400, help="how many new random graphs")
    parser.add_argument("--first", type=int, default=70_000, help="the first seed of these")
    parser.add_argument("--record", action="store_true", help="write the labels")
    chosen = parser.parse_args()
    rows: dict[str, list[Row]] = {}
    bad = 0
    for source in chosen.sources or [PLUGIN]:
        library = None if source == PLUGIN else resolve(source, X86_64).android()
        if library is None:
            print(f"onnxruntime {metadata.version('onnxruntime')}, plugin {metadata.version('onnxruntime-ep-webgpu')}")
        for archive in chosen.archives:
            with tempfile.TemporaryDirectory() as folder:
                listed = dict(models(Path(folder), archive, chosen.graphs, chosen.first))
                for setting in SETTINGS:
                    settings = settings_of(setting, source)
                    labels = dict(zip(listed, asked(library, list(listed.values()), settings), strict=True))
                    answers = {name: _judged(path, settings) for name, path in listed.items()}
                    rows.setdefault(source, []).extend(Row(archive, setting, *pair) for pair in labels.items())
                    inside = {
                        name: list(wrong_in_bodies(labels[name], listed[name], settings))
                        for name, answer in answers.items()
                        if any(row.op_type in ("If", "Loop", "Scan") for row in answer.decisions)
                    }
                    bad += _report(f"{source} {archive} {setting}", labels, answers, inside)
    if chosen.record:
        for source, made in rows.items():
            _record(source, [row for row in made if row.archive in ARCHIVES])
    return min(bad, 1)


def _record(source: str, rows: Iterable[Row]) -> None:
    """Write labels, those of a library where it does otherwise than the plugin."""
    if source != PLUGIN:
        plugin = recorded()
        rows = [row for row in rows if row.place in plugin and _essence(row.label) != _essence(plugin[row.place])]
    content = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
    file_of(source).write_bytes(gzip.compress(content, mtime=0))


def _essence(label: Label) -> tuple[set[str], bool]:
    return {*label.refused, *label.forced}, bool(label.error)


def _judged(path: Path, settings: Settings) -> ModelAnswer:
    return judge(PartitionRequest(source=SourceModel(path=str(path)), settings=settings))


def _report(
    title: str, labels: Mapping[str, Label], answers: Mapping[str, ModelAnswer], inside: Mapping[str, Sequence[str]]
) -> int:
    """Print what differs in one setting, in graphs and `inside` their bodies; how many models do."""
    good = {name: answer for name, answer in answers.items() if not answer.error}
    differing = {name: [*wrong(labels[name], row.decisions), *inside.get(name, ())] for name, row in good.items()}
    bad = {name: texts for name, texts in differing.items() if texts}
    refused = answers.keys() - good.keys()
    bad |= {name: [f"no answer: {answers[name].error}"] for name in refused if not labels[name].error}
    sessions = [name for name in good if not labels[name].error]
    counted = ""
    if any(row.copies for row in labels.values()):  # libraries do not say
        same = {name for name in sessions if labels[name].copies == good[name].copies}
        sure = {name for name in sessions if not good[name].copies_estimated}
        bad |= {name: [f"{labels[name].copies} copies, not {good[name].copies}"] for name in sure - same}
        counted = (
            f"; copies equal in {len(same)} of {len(sessions)} sessions, "
            f"in {len(sure & same)} of {len(sure)} of which we are sure"
        )
    print(
        f"{title}: {len(answers)} models, {len(answers) - len(sessions)} of which none makes a session, "
        f"{sum(answer.nodes for answer in good.values())} nodes, {len(bad)} models wrong{counted}",
        flush=True,
    )
    for name, texts in bad.items():
        print(f"  {name}: {'; '.join(texts[:3])}", flush=True)
    return len(bad)


if __name__ == "__main__":
    sys.exit(main())
