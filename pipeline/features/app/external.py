"""Files that ONNX models have their weights or the binary of a context in, and whether an app's code can find them.

Sources: onnx.proto3 (TensorProto.external_data); ONNX Runtime looks for such files in the folder of the model's file,
and a session that is made of bytes has no folder; assets of an Android app lie in its APK, and have no path.
"""

import itertools
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import PurePosixPath

from pipeline.core.errors import Finding, Severity
from pipeline.features.app.document import ExternalFile, PackagedModel, finding
from pipeline.model import guards, onnx_model, wire
from pipeline.model.wire import WireError

TENSOR_DIMS, TENSOR_NAME = 1, 8
KEPT = frozenset(
    {
        TENSOR_DIMS,
        onnx_model.TENSOR_DATA_TYPE,
        TENSOR_NAME,
        onnx_model.TENSOR_EXTERNAL_DATA,
        onnx_model.TENSOR_DATA_LOCATION,
    }
)
"""Fields of a tensor that say where its bytes are, and how many."""
NODE_NAME, NODE_ATTRIBUTE = 3, 5
ATTRIBUTE_NAME, ATTRIBUTE_NUMBER, ATTRIBUTE_TEXT = 1, 3, 4
NAME_BYTES = 4096
"""Of a name or a path that is read; the binary of a context may stand in its place."""
ASSETS = "assets"
OURS = "ort_mobile"
"""The folder below assets/ from which packages of `release android` copy such models with their files themselves."""
ANDROID = frozenset({"APK", "APK set", "AAB", "AAR"})


def tensor_file(data: wire.Buffer, tensor: wire.Field) -> ExternalFile | None:
    """The file that a tensor's bytes are in; None where they are in the model. Raises WireError."""
    parts = list(wire.fields(data, tensor.value, tensor.end))
    places = [
        part for part in parts if part.number == onnx_model.TENSOR_DATA_LOCATION and part.wire_type == wire.VARINT
    ]
    if not places or wire.read_varint(data, places[-1].value, places[-1].end)[0] != onnx_model.EXTERNAL:
        return None
    import onnx
    from google.protobuf.message import DecodeError

    try:
        kept = onnx.TensorProto.FromString(
            b"".join(data[part.start : part.end] for part in parts if part.number in KEPT)
        )
        location, offset, length = onnx_model.external_entries(kept)
    except (DecodeError, ValueError) as error:
        raise WireError(f"where the data of a tensor lie cannot be read: {str(error)[:100]}") from error
    return ExternalFile(
        location=location, least_bytes=offset + max(length, guards.tensor_bytes(kept) or 0), needed_by=kept.name[:80]
    )


def context_file(data: wire.Buffer, node: wire.Field) -> ExternalFile | None:
    """The file with the binary of a context's node; None where that is in the model. Raises WireError."""
    embedded, location, name = True, "", ""
    for row in wire.fields(data, node.value, node.end):
        if row.number == NODE_NAME:
            name = _text(data, row)
        if row.number != NODE_ATTRIBUTE or row.wire_type != wire.LENGTH:
            continue
        values = {value.number: value for value in wire.fields(data, row.value, row.end)}
        attribute = _text(data, values.get(ATTRIBUTE_NAME))
        if attribute == "embed_mode":
            number = values.get(ATTRIBUTE_NUMBER)  # 0 may be left out
            embedded = number is not None and wire.read_varint(data, number.value, number.end)[0] != 0
        elif attribute == "ep_cache_context":
            location = _text(data, values.get(ATTRIBUTE_TEXT))
    return None if embedded or not location else ExternalFile(location=location, least_bytes=1, needed_by=name)


def joined(files: Iterable[ExternalFile | None]) -> tuple[ExternalFile, ...]:
    """Each file once, as what needs most of it wants it."""
    most: dict[str, ExternalFile] = {}
    for file in files:
        if file and file.least_bytes >= most.get(file.location, file).least_bytes:
            most[file.location] = file
    return tuple(most.values())


class PackageFiles:
    """The sizes of all files of a package, its kind, and whether it is `whole`: nothing is added before it runs."""

    def __init__(self, kind: str, whole: bool, file_bytes: Mapping[str, int]) -> None:
        self.android = kind in ANDROID
        self.whole = whole
        self.file_bytes = file_bytes

    def find(self, place: str) -> str:
        """The file at a path, or at the same one below assets/ in another part of an app; "" for none."""
        return place if place in self.file_bytes else self._assets.get(_asset(place), "") if self.android else ""

    def named(self, name: str) -> str:
        """A file with this name in any folder; "" for none."""
        return self._by_name.get(name, "")

    @cached_property
    def _assets(self) -> dict[str, str]:
        return {asset: path for path in self.file_bytes if (asset := _asset(path))}

    @cached_property
    def _by_name(self) -> dict[str, str]:
        return {posixpath.basename(path): path for path in self.file_bytes}


def _asset(path: str) -> str:
    """A path from assets/ on, which parts of an app share; "" for others."""
    _, folder, rest = f"/{path}".partition(f"/{ASSETS}/")
    return rest if folder else ""


def findings(models: Sequence[PackagedModel], package: PackageFiles) -> Iterator[Finding]:
    """What of the files is missing, elsewhere or too short, or lies where a session cannot look."""
    for model in models:
        for file in model.external:
            yield from _of_file(model, file, package)


def _of_file(model: PackagedModel, file: ExternalFile, package: PackageFiles) -> Iterator[Finding]:
    place = posixpath.normpath(posixpath.join(posixpath.dirname(model.path), file.location))
    found, severity = package.find(place), Severity.ERROR if package.whole else Severity.WARNING
    needs = f"{file.needed_by or 'it'} lies in {file.location}"
    if not found:
        elsewhere = package.named(posixpath.basename(file.location))
        if elsewhere:
            yield finding(
                "external-data",
                severity,
                "data of this model are not where it looks for them",
                model.path,
                f"{needs}, which ONNX Runtime looks for beside the model; it is {elsewhere}",
                f"move it to {place}",
            )
        else:
            yield finding(
                "external-data",
                severity,
                "data of this model are missing",
                model.path,
                f"{needs}, and no file of the package has that name",
                f"put it at {place}, as it was exported, or convert the model to one file (`ort-mobile convert`)",
            )
    elif (size := package.file_bytes[found]) < file.least_bytes:
        yield finding(
            "external-data",
            Severity.ERROR,
            "data of this model are cut off",
            model.path,
            f"{needs}, which needs at least {file.least_bytes:,} bytes; {found} has {size:,}",
            "download or export the model and that file again, both of one export (of a Git LFS pointer: `git lfs "
            "pull`), and build the package again",
        )
    elif package.android and _has_no_path(model.path):
        yield finding(
            "external-data",
            Severity.WARNING,
            "this model opens by a path alone, and here it has none",
            model.path,
            f"{needs}, and a session of the bytes of an asset has no folder to look in",
            "copy both into one folder below getFilesDir() and open the model's path, or convert it to one file "
            "(`ort-mobile convert`)",
        )


def _has_no_path(path: str) -> bool:
    """Whether a file is an asset or a raw resource of an Android app whose code is not known to copy it."""
    parts = PurePosixPath(path).parts
    raw = any(pair == ("res", "raw") for pair in itertools.pairwise(parts))
    return raw or (ASSETS in parts and (ASSETS, OURS) not in itertools.pairwise(parts))


def _text(data: wire.Buffer, field: wire.Field | None) -> str:
    if field is None or field.wire_type != wire.LENGTH:
        return ""
    return bytes(data[field.value : min(field.end, field.value + NAME_BYTES)]).decode("utf-8", "replace")
