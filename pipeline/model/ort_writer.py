"""Write ORT format files: ONNX Runtime's own tables, our order, weights copied from where they lie.

ONNX Runtime builds a file back to front: the model's parts first, then the kernel type resolver (in the order of a
hash map, so two conversions differ), then the root. A file is therefore a head of root, resolver, Model and main Graph
table, and a body of everything that these point to. The head is written anew, the body is taken as it is, and weights
may follow behind it: offsets in FlatBuffers only point forward. So the bytes depend on nothing but the model, and
weights that ONNX Runtime was shown as graph inputs never pass through its builder.
"""

import contextlib
import errno
import hashlib
import mmap
import os
import struct
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeAlias

import flatbuffers

from pipeline.core.errors import ModelError
from pipeline.model.flatbuffer import Buffer, Reader, Slots
from pipeline.model.onnx_model import ByteRange
from pipeline.model.ort_format import OrtNode, attribute_lists, resolver_of

if TYPE_CHECKING:
    from onnx import TensorProto

BUFFER_BYTES = 2 << 20
# Direct writes begin and end at multiples of the disk's block, in memory as in the file; 4 KiB suits all that is sold.
BLOCK_BYTES = 4096
# Smaller files are written before a second thread has begun to hash.
DIRECT_MINIMUM_BYTES = 8 << 20


class HashingFile:
    """A file that is written from front to end once. Use as a context; `finish` gives its digest.

    While one buffer is hashed and written, each in a thread, the next one is filled. OSError as the disk gives it.
    """

    def __init__(self, path: Path, size_bytes: int) -> None:
        self.direct = size_bytes >= DIRECT_MINIMUM_BYTES
        self.descriptor = _open(path, direct=self.direct)
        self.digest = hashlib.sha256()
        self.size_bytes = 0
        count = min(BUFFER_BYTES, -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES) or BLOCK_BYTES
        self.buffers = [memoryview(mmap.mmap(-1, count)) for _ in range(2 if self.direct else 1)]
        self.filled = 0
        self.busy: deque[tuple[Future[None], Future[None]]] = deque()
        self.hasher = ThreadPoolExecutor(1)
        self.writer = ThreadPoolExecutor(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.hasher.shutdown(cancel_futures=True)
        self.writer.shutdown(cancel_futures=True)
        os.close(self.descriptor)

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes."""
        with memoryview(data) as view:

            def take(piece: memoryview, done: int) -> int:
                piece[:] = view[done : done + len(piece)]
                return len(piece)

            self._fill(len(view), take)

    def copy(self, descriptor: int, offset: int, length: int) -> int:
        """Append a range of an open file; gives the number of bytes, less than `length` where the file ends early."""
        return self._fill(length, lambda piece, done: os.preadv(descriptor, [piece], offset + done))

    def _fill(self, length: int, take: Callable[[memoryview, int], int]) -> int:
        done = 0
        while done < length:
            piece = self.buffers[0][self.filled : self.filled + length - done]
            count = take(piece, done)
            if not count:
                break
            done += count
            self.filled += count
            if self.filled == len(self.buffers[0]):
                self._flush()
        self.size_bytes += done
        return done

    def _flush(self) -> None:
        """Send the first buffer on its way and take the next, once what was sent from that is done."""
        buffer, used = self.buffers[0], self.filled
        whole = -(-used // BLOCK_BYTES) * BLOCK_BYTES if self.direct else used
        self.busy.append(
            (self.hasher.submit(self.digest.update, buffer[:used]), self.writer.submit(self._put, buffer[:whole]))
        )
        self.buffers.append(self.buffers.pop(0))
        self.filled = 0
        if len(self.busy) == len(self.buffers):
            self._wait()

    def _wait(self) -> None:
        for future in self.busy.popleft():
            future.result()

    def _put(self, data: memoryview) -> None:
        while data:
            try:
                data = data[os.write(self.descriptor, data) :]
            except OSError as error:
                if error.errno != errno.EINVAL or not self.direct:
                    raise
                import fcntl

                # A file system that takes direct writes on opening and refuses them here: as others from now on
                self.direct = False
                flags = fcntl.fcntl(self.descriptor, fcntl.F_GETFL) & ~os.O_DIRECT
                fcntl.fcntl(self.descriptor, fcntl.F_SETFL, flags)

    def finish(self) -> str:
        """Write what is left, and give the sha256 of the whole."""
        if self.filled:
            self._flush()
        while self.busy:
            self._wait()
        os.ftruncate(self.descriptor, self.size_bytes)
        return self.digest.hexdigest()


def _open(path: Path, *, direct: bool) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0)
    if direct and hasattr(os, "O_DIRECT"):
        with contextlib.suppress(OSError):
            return os.open(path, flags | os.O_DIRECT, 0o666)
    return os.open(path, flags, 0o666)


IDENTIFIER = b"ORTM"
# A cache line: mapped weights then start where vector loads like them. ONNX Runtime itself aligns to 4.
ALIGNMENT = 64
# The widest number in the body is an int64. A larger step here would let the size of the old head into the new file.
BODY_ALIGNMENT = 8
# Where ONNX Runtime's verifier stops (FlatBuffers offsets are signed 32 bit).
MAX_FILE_BYTES = (2 << 30) - 1
# Slots of ort.fbs. `ir_version` and `model_version` of Model are int64, all its others point to something.
ROOT_VERSION, ROOT_MODEL, ROOT_RESOLVER = 0, 1, 3
MODEL_IR_VERSION, MODEL_OPSETS, MODEL_VERSION, MODEL_GRAPH, MODEL_SLOTS = 0, 1, 5, 7, 10
GRAPH_INITIALIZERS, GRAPH_MAX_NODE_INDEX, GRAPH_INPUTS, GRAPH_SLOTS = 0, 3, 5, 9
TENSOR_NAME, TENSOR_DOC, TENSOR_DIMS, TENSOR_TYPE, TENSOR_RAW = 0, 1, 2, 3, 4


Weight: TypeAlias = "tuple[TensorProto, ByteRange]"
"""An initializer to put behind the body: its message without its bytes, and where these lie.

The skeleton has it as a graph input.
"""


class _Tail(int):
    """Something behind the head, by its distance from the head's end; a plain int is something inside the head."""


class _Builder(flatbuffers.Builder):  # type: ignore[misc] # the library has no types
    """A FlatBuffers builder whose references may point behind its own end."""

    def prepend_ref(self, ref: int) -> None:
        if isinstance(ref, _Tail):
            self.Prep(4, 0)
            self.PlaceUOffsetT(self.Offset() + 4 + ref)
        else:
            self.PrependUOffsetTRelative(ref)

    def ref_slot(self, slot: int, ref: int | None) -> None:
        if ref is not None:
            self.prepend_ref(ref)
            self.Slot(slot)

    def refs(self, refs: Sequence[int]) -> int:
        """A vector of references."""
        self.StartVector(4, len(refs), 4)
        for ref in reversed(refs):
            self.prepend_ref(ref)
        return int(self.EndVector())


class _Skeleton:
    """A file that ONNX Runtime wrote, cut into head and body."""

    def __init__(self, data: Buffer) -> None:
        self.data = data
        self.reader = Reader(data)
        self.root = self.reader.root()
        self.root_slots = self._slots(self.root, 4)
        self.model, _ = self.reader.path((ROOT_MODEL, "model"))
        self.model_slots = self._slots(self.model, MODEL_SLOTS)
        self.graph, _ = self.reader.path((ROOT_MODEL, "model"), (MODEL_GRAPH, "graph"))
        self.graph_slots = self._slots(self.graph, GRAPH_SLOTS)
        vtable = self.graph - struct.unpack_from("<i", data, self.graph)[0]
        # The Graph table is the last but one part that ONNX Runtime builds of a model, so the body begins behind it.
        self.cut = self.graph + struct.unpack_from("<H", data, vtable + 2)[0]
        self.padding = self.cut % BODY_ALIGNMENT

    def _slots(self, at: int, fields: int) -> Slots:
        """The table's slots; ModelError when it has one that we would lose."""
        slots = self.reader.table(at)
        if any(slots[fields:]):
            raise ModelError(
                "onnxruntime wrote an ORT format that is newer than this program",
                remedy="install a newer ort-mobile, or an older onnxruntime",
            )
        return slots

    def tail(self, position: int) -> _Tail:
        """Where a part of the body will be: it keeps its place modulo BODY_ALIGNMENT, so inner alignments hold."""
        if position < self.cut:
            raise ModelError(
                "onnxruntime laid out the ORT format in a way that this program does not know",
                remedy="install an onnxruntime release that this program supports",
            )
        return _Tail(self.padding + position - self.cut)

    def child(self, at: int, slots: Slots, slot: int) -> _Tail | None:
        """What a slot points to."""
        position = self.reader.child(at, slots, slot)
        return None if position is None else self.tail(position)


def _tensor(builder: _Builder, name: _Tail, start: int, tensor: "TensorProto") -> int:
    builder.StartVector(8, len(tensor.dims), 8)
    for size in reversed(tensor.dims):
        builder.PrependInt64(size)
    dims = int(builder.EndVector())
    doc = int(builder.CreateString(tensor.doc_string)) if tensor.doc_string else None
    builder.StartObject(TENSOR_RAW + 1)
    builder.ref_slot(TENSOR_NAME, name)
    builder.ref_slot(TENSOR_DOC, doc)
    builder.ref_slot(TENSOR_DIMS, dims)
    builder.PrependInt32Slot(TENSOR_TYPE, tensor.data_type, 0)
    builder.ref_slot(TENSOR_RAW, _Tail(start))
    return int(builder.EndObject())


def _resolver(builder: "_Builder", reader: "Reader") -> int:
    """The kernel type resolver in the order of its keys, which is also what its schema asks for."""

    def keyed(key: str, values: Sequence[int]) -> int:
        listed, name = builder.refs(values), int(builder.CreateString(key))
        builder.StartObject(2)
        builder.ref_slot(0, name)
        builder.ref_slot(1, listed)
        return int(builder.EndObject())

    entries = []
    for op_id, parameters in sorted(resolver_of(reader).items(), key=lambda pair: pair[0].encode()):
        kinds = []
        for name in sorted(parameters):
            arguments = []
            for is_output, index in parameters[name]:
                builder.StartObject(2)
                builder.PrependInt8Slot(0, int(is_output), 0)
                builder.PrependUint32Slot(1, index, 0)
                arguments.append(int(builder.EndObject()))
            kinds.append(keyed(name, arguments))
        entries.append(keyed(op_id, kinds))
    vector = builder.refs(entries)
    builder.StartObject(1)
    builder.ref_slot(0, vector)
    return int(builder.EndObject())


class FilePlan:
    """The file that `skeleton` becomes when the `weights` among its graph inputs are made initializers.

    `head` and `body` are its first bytes, `weights` are by their offsets in it: there stands the number of a weight's
    bytes, and these behind it. Without weights it is the canonical form of the skeleton. ModelError when it would pass
    2 GiB.
    """

    def __init__(self, skeleton: Buffer, weights: "Sequence[Weight]" = ()) -> None:
        parts = _Skeleton(skeleton)
        reader, body = parts.reader, memoryview(skeleton)[parts.cut :]
        # From the end of the head, which is not known yet
        weight_at: dict[int, Weight] = {}
        end = parts.padding + len(body)
        for tensor, span in weights:  # the length of a vector, then its bytes, aligned
            start = (end + 4 + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT - 4
            weight_at[start] = tensor, span
            end = start + 4 + span.length
        builder = _Builder(4096)
        builder.minalign = ALIGNMENT
        resolver = _resolver(builder, reader)

        # The main graph: weights go from its inputs to its initializers
        at, slots = parts.graph, parts.graph_slots
        refs: dict[int, int | None] = {
            slot: parts.child(at, slots, slot) for slot in range(GRAPH_SLOTS) if slot != GRAPH_MAX_NODE_INDEX
        }
        if weights:
            inputs = {reader.text_at(table): parts.tail(table) for table in reader.tables(at, slots, GRAPH_INPUTS)}
            tensors: list[int] = [parts.tail(table) for table in reader.tables(at, slots, GRAPH_INITIALIZERS)]
            tensors += [
                _tensor(builder, inputs.pop(tensor.name), start, tensor) for start, (tensor, _) in weight_at.items()
            ]
            refs[GRAPH_INITIALIZERS] = builder.refs(tensors)
            refs[GRAPH_INPUTS] = builder.refs([*inputs.values()])
        builder.StartObject(GRAPH_SLOTS)
        builder.PrependUint32Slot(GRAPH_MAX_NODE_INDEX, reader.scalar(at, slots, GRAPH_MAX_NODE_INDEX, "I"), 0)
        for slot, ref in refs.items():
            builder.ref_slot(slot, ref)
        graph = int(builder.EndObject())

        at, slots = parts.model, parts.model_slots
        builder.StartObject(MODEL_SLOTS)
        for slot in (MODEL_IR_VERSION, MODEL_VERSION):
            builder.PrependInt64Slot(slot, reader.scalar(at, slots, slot, "q"), 0)
        for slot in range(MODEL_SLOTS):
            if slot not in {MODEL_IR_VERSION, MODEL_VERSION, MODEL_GRAPH}:
                builder.ref_slot(slot, parts.child(at, slots, slot))
        builder.ref_slot(MODEL_GRAPH, graph)
        model = int(builder.EndObject())

        builder.StartObject(4)
        builder.ref_slot(ROOT_VERSION, parts.child(parts.root, parts.root_slots, ROOT_VERSION))
        builder.ref_slot(ROOT_MODEL, model)
        builder.ref_slot(ROOT_RESOLVER, resolver)
        builder.Finish(builder.EndObject(), IDENTIFIER)
        head = bytes(builder.Output())
        if len(head) + end > MAX_FILE_BYTES:
            raise ModelError(
                "the model is too large for the ORT format",
                why=f"{len(head) + end} bytes are over 2 GiB",
                remedy="quantize the model, or split it",
            )
        self.head, self.body = head + bytes(parts.padding), body
        self.weights = {len(head) + start: weight for start, weight in weight_at.items()}

    def identity(self, digests: Mapping[str, str]) -> str:
        """Equal for plans that would write the same bytes; the sha256 of a file without weights behind its body.

        `digests` are those of the weights' bytes, by name.
        """
        digest = hashlib.sha256(self.head)
        digest.update(self.body)
        for start, (tensor, _) in self.weights.items():
            digest.update(f"{start} {digests[tensor.name]} ".encode())
        return digest.hexdigest()

    def write(self, path: Path, digest: str = "") -> str:
        """Write the file and give its sha256; weights pass through a small buffer, so memory does not grow.

        `digest` is that sha256 where the caller knows it: a small file is not read again for it.
        Raises OSError as the disk gives it, ModelError when a weight's file has become shorter.
        """
        size_bytes = len(self.head) + len(self.body)
        if not self.weights and size_bytes < DIRECT_MINIMUM_BYTES:  # in memory whole: no thread is worth its start
            with path.open("wb") as file:
                file.writelines((self.head, self.body))
            return digest or hashlib.sha256(self.head + self.body).hexdigest()
        with HashingFile(path, size_bytes + sum(span.length for _, span in self.weights.values())) as out:
            out.write(self.head)
            out.write(self.body)
            for start, (_, span) in self.weights.items():
                out.write(bytes(start - out.size_bytes) + struct.pack("<I", span.length))
                descriptor = os.open(span.file, os.O_RDONLY)
                try:
                    copied = out.copy(descriptor, span.offset, span.length)
                finally:
                    os.close(descriptor)
                if copied < span.length:
                    raise ModelError(
                        "a weight's bytes are gone",
                        where=str(span.file),
                        why="the file became shorter",
                        remedy="leave the model alone while it is converted",
                    )
            return out.finish()


def without_attributes(skeleton: Buffer, unwanted: Callable[[OrtNode], Collection[str]]) -> Buffer:
    """The file that ONNX Runtime wrote without some attributes of its nodes, in bodies too; the same where none is.

    The list of a node's attributes becomes shorter in its place; what it named stays as bytes that nothing reads.
    """
    changed: bytearray | None = None
    for vector, node in attribute_lists(skeleton):
        if not (names := unwanted(node)):
            continue
        changed = bytearray(skeleton) if changed is None else changed
        kept = [position for position, name in vector.entries if name not in names]
        struct.pack_into("<I", changed, vector.at, len(kept))
        for index in range(len(vector.entries)):
            slot = vector.at + 4 + 4 * index
            struct.pack_into("<I", changed, slot, kept[index] - slot if index < len(kept) else 0)
    return skeleton if changed is None else bytes(changed)


def with_opsets(skeleton: Buffer, versions: Mapping[str, int]) -> Buffer:
    """The file with other versions of some domains' opsets; the same where there is nothing to change."""
    if not versions:
        return skeleton
    changed, reader = bytearray(skeleton), Reader(skeleton)
    model, fields = reader.path((ROOT_MODEL, "model"))
    for table in reader.tables(model, fields, MODEL_OPSETS):
        slots = reader.table(table)
        if (version := versions.get(reader.text(table, slots, 0))) is not None and slots[1]:
            struct.pack_into("<q", changed, table + slots[1], version)
    return bytes(changed)
