"""The graphs that providers were shown of the ground truth's models, recorded: labels test the rules with any wheel.

As a program: `python -m tests.recorded_graphs [ARCHIVE...]` records them again with the installed onnxruntime, which
must be of the labels' release (1.23). A record is made again when what is shown changes, never because a rule does.
"""

import argparse
import lzma
import tempfile
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache, lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from pipeline.core.errors import PipelineError
from pipeline.model.sources import SourceModel
from pipeline.partition.answer import Optimize, Settings
from pipeline.partition.claiming import Claim, claim
from pipeline.partition.graph import Constant, Graph, Node, bodies
from pipeline.partition.shown import is_inlined, predict_load
from pipeline.partition.subject import open_views
from pipeline.partition.types import Value
from tests.ground_truth import ORACLE
from tests.oracle_agreement import (
    SETTING,
    Agreement,
    as_sets,
    delta,
    expected,
    labels,
    request_for,
    rows,
    usual_settings,
)

RELEASE = "1.23"
RELEASES = ("1.21", "1.23", "1.28")
NO_FILE = SourceModel(path="")
SAMPLE = 9
"""Of labels that a release shares with 1.23, each so-many-th is judged again."""
SMALL_BYTES = 1 << 16
"""Constants above this are recorded without their numbers."""

SCALARS = ("index", "name", "op_type", "domain", "since_version", "inputs", "outputs")
"""Fields of a node that are recorded as they are."""

Record = dict[str, msgspec.Raw]
"""By the model's id and level (`ID@LEVEL`): the graph that is shown, and the one that ships where that is another."""


def record_file(archive: str, release: str = RELEASE) -> Path:
    """Where an archive's record lies; that of another release has what differs from 1.23."""
    return ORACLE / (f"{archive}.graphs.xz" if release == RELEASE else f"{archive}.graphs-{release}.xz")


@lru_cache(maxsize=1)
def record(archive: str, release: str) -> Record:
    """The record of an archive as a release showed it, its graphs still packed."""
    graphs: Record = {}
    for path in dict.fromkeys((record_file(archive), record_file(archive, release))):
        if path.is_file():
            graphs |= msgspec.msgpack.decode(lzma.decompress(path.read_bytes()), type=Record)
    return graphs


def pack(graph: Graph) -> list[Any]:
    """A graph as lists, strings and numbers."""
    return [
        [
            [
                *(getattr(node, name) for name in SCALARS),
                {
                    name: {"tensor": _pack_constant(value)} if isinstance(value, Constant) else value
                    for name, value in sorted(node.attributes.items())
                },
                [pack(body) for body in node.bodies],
                node.implicit_inputs,
            ]
            for node in graph.nodes.values()
        ],
        {name: [value.dtype, value.shape] for name, value in graph.values.items()},
        graph.inputs,
        graph.outputs,
        {name: _pack_constant(constant) for name, constant in graph.initializers.items()},
        sorted(graph.overridable),
        graph.opset,
    ]


def _pack_constant(constant: Constant) -> list[Any]:
    kind, numbers = "", b""
    if constant.dtype not in {"string", "bf16"} and constant.count <= SMALL_BYTES:
        try:
            array = constant.read()
        except (PipelineError, OSError):
            pass
        else:
            if array.dtype.kind in "fiub" and array.nbytes <= SMALL_BYTES:
                kind, numbers = array.dtype.str, array.tobytes()
    return [constant.dtype, constant.dims, constant.external, constant.int64_field, kind, numbers]


def unpack(packed: list[Any], outer: Graph | None = None) -> Graph:
    """The graph of `pack`."""
    rows, values, inputs, outputs, constants, overridable, opset = packed
    nodes: dict[int, Node] = {}
    graph = Graph(
        nodes=nodes,
        values={name: Value(dtype, None if dims is None else tuple(dims)) for name, (dtype, dims) in values.items()},
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        initializers={name: _unpack_constant(constant) for name, constant in constants.items()},
        overridable=frozenset(overridable),
        outer=outer,
        opset=opset,
    )
    for index, name, op_type, domain, since, reads, gives, attributes, parts, implicit in rows:
        nodes[index] = Node(
            index=index,
            name=name,
            op_type=op_type,
            domain=domain,
            since_version=since,
            inputs=tuple(reads),
            outputs=tuple(gives),
            attributes={key: _unpack_attribute(value) for key, value in attributes.items()},
            bodies=tuple(unpack(body, graph) for body in parts),
            implicit_inputs=tuple(implicit),
        )
    return graph


def _unpack_attribute(value: Any) -> Any:
    if isinstance(value, dict):
        return _unpack_constant(value["tensor"])
    return tuple(value) if isinstance(value, list) else value


def _unpack_constant(packed: list[Any]) -> Constant:
    dtype, dims, external, int64_field, kind, numbers = packed

    def read() -> Any:
        if not kind:
            raise AssertionError(f"the record lacks the numbers of a constant of {dtype} {dims}: see SMALL_BYTES")
        return np.frombuffer(numbers, dtype=kind).reshape(dims)

    return Constant(dtype=dtype, dims=tuple(dims), read=read, external=external, int64_field=int64_field)


def level_of(setting: str) -> Optimize:
    """What a provider was shown under a setting: the model as it is, or after level basic."""
    return Optimize.BASIC if "@" in setting else Optimize.NONE


def views(archive: str, release: str) -> Iterator[tuple[str, str, str]]:
    """Models of which labels of a release (or, for 1.23, of any) say something: (id, level, one of the settings)."""
    judged = {
        (row["id"], str(level_of(name))): name
        for asked in (RELEASES if release == RELEASE else (release,))
        for name in judged_settings(archive, asked)
        for row in rows(labels(ORACLE, archive, asked), name, "claims")
    }
    yield from ((name, level, setting) for (name, level), setting in sorted(judged.items()))


def shown_graphs(path: Path, level: str, setting: str) -> tuple[Graph, Graph]:
    """What a provider is shown of a model at a level, and the graph that ships, with the installed onnxruntime."""
    settings = request_for(SourceModel(path=str(path)), setting.partition("@")[0], RELEASE).settings
    with tempfile.TemporaryDirectory() as folder:
        view = open_views(SourceModel(path=str(path)), Optimize(level), Path(folder), {}).of(settings)
        return view.shown, view.ships


def packed_graphs(path: Path, level: str, setting: str) -> list[Any]:
    """What is recorded of a model at a level."""
    shown, ships = shown_graphs(path, level, setting)
    made = [pack(shown), pack(ships)]
    return made[:1] if made[0] == made[1] else made


def judged_settings(archive: str, release: str) -> list[str]:
    """Settings that recorded graphs are judged in; labels of optimized files are of 1.23, and of claims alone."""
    names = usual_settings(ORACLE, archive, release)
    if release == RELEASE:
        names = list(dict.fromkeys(setting for setting, _ in labels(ORACLE, archive, release)))
    return [name for name in names if SETTING.fullmatch(name)]


def judged(archive: str, release: str) -> dict[tuple[str, str], Agreement]:
    """Compare the rules' answers about recorded graphs with an archive's labels: by provider, and "claims" or "load".

    Of another release than 1.23, all labels that differ in it are judged, and a sample of the others. Loading is judged
    for CoreML of 1.23 where no function is inlined after the first question: the record has no graph of later ones.
    """
    results: defaultdict[tuple[str, str], Agreement] = defaultdict(Agreement)
    same = {} if release == RELEASE else labels(ORACLE, archive, RELEASE)
    loading = set(usual_settings(ORACLE, archive, release)) if release == RELEASE else set()
    shown_of = record(archive, release)
    labels_of: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for (name, _), row in labels(ORACLE, archive, release).items():
        if row["error"] is None:
            labels_of[name].append(row)

    @cache  # a graph is judged in many settings
    def graphs(key: str) -> list[Graph]:
        return [unpack(packed) for packed in msgspec.msgpack.decode(shown_of[key])]

    def claimed(shown: Graph, settings: Settings) -> tuple[Claim, Any]:
        provider_claim = claim(shown, settings)
        parts = ((owner, claim(body, settings)) for owner, body in bodies(shown))
        inside = Counter((owner.first_output, as_sets(part.names())) for owner, part in parts if part.groups)
        return provider_claim, (as_sets(provider_claim.names()), inside)

    for name in judged_settings(archive, release):
        match = SETTING.fullmatch(name)
        assert match is not None
        provider = match["ep"]
        settings = request_for(NO_FILE, name.partition("@")[0], release).settings
        for position, row in enumerate(labels_of[name]):
            if same.get((name, row["id"])) is row and position % SAMPLE:
                continue
            key = f"{row['id']}@{level_of(name)}"
            provider_claim, answer = claimed(graphs(key)[0], settings)
            results[provider, "claims"].judge(f"{name} {row['id']}", expected(row, "claims"), answer)
            if name in loading and provider.startswith("coreml") and "load" in row:
                shown, ships = (graphs(key) * 2)[:2]
                if any(is_inlined(ships, node) for node in ships.nodes.values()):
                    continue
                shipping_claim = provider_claim if shown is ships else claim(ships, settings)
                forecast = predict_load([(ships, shipping_claim)], settings)
                loads = bool(forecast.error), None if forecast.error else forecast.partitions
                results[provider, "load"].judge(f"{name} {row['id']}", _loads(row), loads)
    return results


def _loads(row: dict[str, Any]) -> tuple[bool, int | None]:
    """What a label says of loading: whether it fails, and the partitions where it does not."""
    fails = expected(row, "load-errors")
    return fails, None if fails else expected(row, "load-partitions")


def make(archive: str, release: str) -> None:
    """Record the graphs of an archive with the installed onnxruntime, which is of the release."""
    found: dict[str, list[Any]] = {}
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(ORACLE / f"{archive}.zip") as packed:
        for name, level, setting in views(archive, release):
            path = Path(packed.extract(f"{name}.onnx", folder))
            try:
                found[f"{name}@{level}"] = packed_graphs(path, level, setting)
            except PipelineError as error:
                print(f"{name}@{level} is not recorded: {error.reason}")
            path.unlink()
    if release != RELEASE:
        encode, base = msgspec.msgpack.encode, record(archive, RELEASE)
        found = {key: graphs for key, graphs in found.items() if encode(graphs) != encode(base.get(key))}
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 1 << 26}]
    target = record_file(archive, release)
    if found:
        target.write_bytes(lzma.compress(msgspec.msgpack.encode(found), filters=filters))
    print(f"{archive}: {len(found)} views")


def main() -> None:
    """Record archives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archives", nargs="*", default=["ops", "dags", "real"])
    release = installed_release()
    if release is None:
        parser.error(f"labels are of {', '.join(RELEASES)}: install onnxruntime of one of these")
    for archive in parser.parse_args().archives:
        if release == RELEASE or delta(ORACLE, archive, release):
            make(archive, release)


def installed_release() -> str | None:
    """The release of the installed onnxruntime where there are labels of it."""
    installed = ".".join(metadata.version("onnxruntime").split(".")[:2])
    return installed if installed in RELEASES else None


if __name__ == "__main__":
    main()
