"""Artifacts by content: a semantic digest of graph and weights, and a cache keyed by all that decides the bytes.

`entries/KEY.json` says for which key the conversion was and what it gave, `objects/SHA256.ort` is the file. An entry is
trusted only under the key that it names, a file only when its size and sha256 are those of the entry: whatever else is
in the folder costs a conversion, never a wrong artifact.
"""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from device_runner import files as runner_files
from device_runner import untrusted_files
from pipeline.convert.request import SessionSettings
from pipeline.core import custom_ops as core_custom_ops
from pipeline.core import files as storage
from pipeline.core import own_sources
from pipeline.core import variant as core_variant
from pipeline.core.errors import ModelError
from pipeline.model import flatbuffer, ort_format

# (sha256 of a tensor's bytes)
TensorDigest = Callable[[ort_format.Tensor], bytes]


def semantic_digest(
    model: ort_format.OrtModel,
    data: flatbuffer.Buffer,
    digests: Mapping[str, str] | None = None,
    seen: dict[str, tuple[bytes, bytes]] | None = None,
) -> str:
    """The digest of a parsed model; `data` is its file, where tensors lie.

    `digests` gives sha256 of weights of the main graph by name, so that their bytes need not be read (nor be there).
    `seen` remembers the bytes of constants by name with their digest, for the next file of the same model.
    ModelError for a graph with a cycle.
    """
    weights = {name: bytes.fromhex(digest) for name, digest in (digests or {}).items()}
    seen = {} if seen is None else seen

    def bytes_digest(tensor: ort_format.Tensor) -> bytes:
        content = bytes(data[tensor.offset : tensor.offset + tensor.length])
        before, digest = seen.get(tensor.name, (b"", b""))
        if not digest or content != before:
            digest = hashlib.sha256(content).digest()
            seen[tensor.name] = (content, digest)
        return digest

    def weight_digest(tensor: ort_format.Tensor) -> bytes:
        return weights.get(tensor.name) or bytes_digest(tensor)

    return _Hasher(bytes_digest).graph(model.graph, {}, weight_digest).hex()


def _hash(*parts: object) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode(parts)).digest()


class _Hasher:
    """Hashes graphs; `tensor_digest` is for tensors in attributes and bodies."""

    def __init__(self, tensor_digest: TensorDigest) -> None:
        self.tensor_digest = tensor_digest

    def graph(
        self, graph: ort_format.OrtGraph, outer: Mapping[str, bytes], weight_digest: TensorDigest | None = None
    ) -> bytes:
        """The hash of a graph; one of a main graph has `weight_digest`, a body sees the values of `outer`."""
        is_main = weight_digest is not None
        digest = weight_digest or self.tensor_digest
        inputs = [
            _hash("input", name if is_main else index, graph.node_args.get(name))
            for index, name in enumerate(graph.inputs)
        ]
        values = {**outer, **dict(zip(graph.inputs, inputs, strict=True))}
        constants = {name: self.tensor(t, digest) for name, t in graph.initializers.items()}
        for name, sparse in graph.sparse_initializers.items():
            both = (self.tensor(sparse.values, self.tensor_digest), self.tensor(sparse.indices, self.tensor_digest))
            constants[name] = _hash("sparse", sparse.dims, *both)
        values |= constants
        nodes = self.nodes(graph, values)
        outputs = [
            (name if is_main else "", values.get(name), graph.node_args.get(name) if is_main else None)
            for name in graph.outputs
        ]
        # Equal constants count once: whether the optimizer shares them changes nothing that is computed.
        shared = sorted(set(constants.values()))
        return _hash(
            "graph",
            inputs,
            outputs,
            sorted(nodes.values()),
            shared,
            sorted(
                _hash(
                    r.optimizer, r.action, [None if n is None else nodes.get(n, b"") for n in r.nodes], r.produced_ops
                )
                for r in graph.runtime_optimizations
            ),
        )

    def tensor(self, tensor: ort_format.Tensor, digest: TensorDigest) -> bytes:
        """The hash of a constant."""
        return _hash("tensor", tensor.data_type, tensor.dims, tensor.strings or digest(tensor))

    def nodes(self, graph: ort_format.OrtGraph, values: dict[str, bytes]) -> dict[int, bytes]:
        """The hash of each node by its index, their outputs' hashes into `values`."""
        hashes: dict[int, bytes] = {}
        for node in _in_order(graph):
            digest = hashes[node.index] = self.node(node, values)
            for index, name in enumerate(node.outputs):
                if name:
                    values[name] = _hash("output", index, digest)
        return hashes

    def node(self, node: ort_format.OrtNode, values: Mapping[str, bytes]) -> bytes:
        """The hash of what a node computes; an optional output that is left out changes what it computes."""
        attributes = [(name, self.attribute(node.attributes[name], values)) for name in sorted(node.attributes)]
        inputs = [values.get(name, b"") if name else None for name in node.inputs]
        outputs = [bool(name) for name in node.outputs]
        return _hash("node", node.domain, node.op_type, node.since_version, attributes, inputs, outputs)

    def attribute(self, attribute: ort_format.Attribute, values: Mapping[str, bytes]) -> object:
        """What of an attribute goes into the hash."""
        value = attribute.value
        if isinstance(value, tuple):
            return attribute.type, [self.value(part, values) for part in value]
        return attribute.type, self.value(value, values)

    def value(self, value: ort_format.AttributeValue, values: Mapping[str, bytes]) -> object:
        """One value of an attribute: tensors and bodies as their hashes."""
        if isinstance(value, ort_format.Tensor):
            return self.tensor(value, self.tensor_digest)
        return self.graph(value, values) if isinstance(value, ort_format.OrtGraph) else value


def _in_order(graph: ort_format.OrtGraph) -> list[ort_format.OrtNode]:
    """The nodes so that each comes after those it reads from; ModelError when there is no such order."""
    maker = {name: node.index for node in graph.nodes for name in node.outputs if name}
    readers: dict[int, list[ort_format.OrtNode]] = {}
    waiting: dict[int, int] = {}
    for node in graph.nodes:
        needed = {maker[name] for name in (*node.inputs, *node.implicit_inputs) if name in maker}
        waiting[node.index] = len(needed)
        for index in needed:
            readers.setdefault(index, []).append(node)
    ordered = [node for node in graph.nodes if not waiting[node.index]]
    for node in ordered:
        for reader in readers.get(node.index, ()):
            waiting[reader.index] -= 1
            if not waiting[reader.index]:
                ordered.append(reader)
    if len(ordered) < len(graph.nodes):
        raise ModelError("the model's graph goes in circles", remedy="convert the ONNX model again")
    return ordered


OTHER_SOURCES = (
    *(f"device_runner/android_host/**/*.{suffix}" for suffix in ("c", "h")),
    "pipeline/compat/releases.json",
)
"""What decides bytes beside what imports show: what runs the session of an Android library, which saves provider-aware
files, and what is left out for older releases."""

PROCESSOR = Path("/proc/cpuinfo")
"""Says whether weights in blocks (NCHWc) have 16 channels each, with AVX-512, or 8."""


def cache_key(content_digest: str, settings: SessionSettings, wheel: str) -> str:
    """The key of a conversion: everything that its bytes depend on, our own sources among it."""
    parts = (
        content_digest,
        msgspec.to_builtins(settings),
        wheel,
        core_custom_ops.digests(),
        settings.nchwc and PROCESSOR.is_file() and "avx512f" in PROCESSOR.read_text("utf-8", "replace"),
        own_sources.sources_digest("pipeline.convert.engine", OTHER_SOURCES),
    )
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


class Cache:
    """A folder of artifacts by content; safe to share between processes, as every file appears whole."""

    def __init__(self, folder: Path) -> None:
        self.entries = folder / "entries"
        self.objects = folder / "objects"

    def find(self, key: str) -> tuple[core_variant.ConvertedFile, Path] | None:
        """What was made for a key and its file; None when it was not, or when the file is not what was made."""
        try:
            entry_key, result = untrusted_files.decode_json(
                untrusted_files.read_regular(self.entries / f"{key}.json"), tuple[str, core_variant.ConvertedFile]
            )
            path = self._object(result)
            if (
                entry_key != key
                or path.stat().st_size != result.size_bytes
                or runner_files.sha256(path) != result.sha256
            ):
                return None
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        return result, path

    def keep(self, key: str, result: core_variant.ConvertedFile, path: Path) -> tuple[core_variant.ConvertedFile, Path]:
        """Remember what a conversion gave: its file by another name where the file system can, else as a copy.

        What another process kept under the key meanwhile stays, and is returned: onnxruntime orders some files by
        addresses in memory, and who resumes a campaign must get the same bytes. `path` must be a scratch file that
        nobody else keeps. Raises PipelineError where the folder cannot be written.
        """
        if kept := self.find(key):
            return kept
        with storage.replacing(self._object(result)) as temporary:
            temporary.unlink()
            storage.share_file(path, temporary)
        storage.write_bytes(self.entries / f"{key}.json", msgspec.json.encode((key, result)))
        return result, path

    def _object(self, result: core_variant.ConvertedFile) -> Path:
        return self.objects / f"{result.sha256}.ort"
