"""Test data on the disk: ONNX's test data sets, .npz and .npy files, folders, stacked labelled sets."""

import csv
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from device_runner.files import ZIP_ERRORS, read_regular
from device_runner.spec import ElementType, TensorFile
from pipeline.config.tables import PreprocessConfig
from pipeline.core.errors import ConfigError
from pipeline.core.files import write_bytes
from pipeline.dataset.values import image_tensor, plain_dtype, wav_tensor
from pipeline.model.signature import Array, TensorInfo

if TYPE_CHECKING:
    import numpy as np


INPUTS, LABELS = "inputs", "labels"
SAMPLE_BYTES = 1 << 30
"""A sample above this is a mistake in the file's header."""


def is_stacked(file: Path, names: set[str]) -> bool:
    """Whether a file is such a set: an .npz file with both arrays, of which none is an input of the model."""
    if file.suffix.lower() != ".npz" or names & {INPUTS, LABELS}:
        return False
    try:
        with zipfile.ZipFile(file) as archive:
            return {f"{INPUTS}.npy", f"{LABELS}.npy"} <= set(archive.namelist())
    except ZIP_ERRORS:
        return False


def stacked_samples(file: Path, info: TensorInfo) -> Iterator[tuple[str, Array, Any]]:
    """Name, array and label of each sample, for the model's one input; ConfigError for a file that is damaged, has no
    sample, or as many labels as samples not.
    """
    try:
        with (
            zipfile.ZipFile(file) as archive,
            archive.open(f"{INPUTS}.npy") as inputs,
            archive.open(f"{LABELS}.npy") as labels,
        ):
            yield from _pairs(file, info, inputs, labels)
    except (*ZIP_ERRORS, SyntaxError) as error:
        raise _damaged_set(file, str(error) or type(error).__name__) from error


def _pairs(file: Path, info: TensorInfo, inputs: IO[bytes], labels: IO[bytes]) -> Iterator[tuple[str, Array, Any]]:
    (count, shape, dtype), (label_count, label_shape, label_dtype) = (_header(file, part) for part in (inputs, labels))
    if count != label_count or not count:
        raise ConfigError(
            "the labelled set is not inputs [N, ...] with labels [N]", where=str(file),
            why=f"inputs {[count, *shape]}, labels {[label_count, *label_shape]}",
            remedy="write one label for each sample",
        )  # fmt: skip
    for number in range(count):
        name = f"{file} sample {number}"
        label = _next(file, labels, label_shape, label_dtype)
        yield name, _as_input(_next(file, inputs, shape, dtype), info, name), label if label_shape else label.item()


def _header(file: Path, part: IO[bytes]) -> tuple[int, tuple[int, ...], "np.dtype[Any]"]:
    """Length of the first axis, shape of a sample and element type of an .npy stream, which is then at its data."""
    from numpy.lib import format as npy

    version = npy.read_magic(part)
    shape, fortran, dtype = (npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0)(part)
    if not shape or fortran or dtype.hasobject:
        raise _damaged_set(file, "its arrays need a first axis for samples, C order, and numbers or texts as elements")
    return shape[0], tuple(shape[1:]), dtype


def _next(file: Path, part: IO[bytes], shape: tuple[int, ...], dtype: "np.dtype[Any]") -> Array:
    import numpy as np

    size = dtype.itemsize * int(np.prod(shape, dtype=object))
    if size > SAMPLE_BYTES:
        raise _damaged_set(file, f"a sample of shape {list(shape)} has {size} bytes")
    data = part.read(size)
    if len(data) != size:
        raise _damaged_set(file, "it ends early")
    return np.frombuffer(data, dtype).reshape(shape)


def _as_input(sample: Array, info: TensorInfo, name: str) -> Array:
    """A sample in the input's type and rank: a batch axis and other axes of one are added or removed."""
    import numpy as np

    dtype = plain_dtype(info)
    if info.shape is not None and sample.ndim == len(info.shape) - 1:
        sample = sample[None]
    elif info.shape is not None and sample.ndim != len(info.shape):
        sizes = [size if isinstance(size, int) else 1 for size in info.shape]
        sample = sample.reshape(sizes) if int(np.prod(sizes)) == sample.size else sample
    if not np.can_cast(sample.dtype, dtype, "same_kind"):
        raise ConfigError(
            f"the labelled set does not fit the input {info.name!r}", where=name,
            why=f"its elements are {sample.dtype}, the model takes {info}", remedy=f"save them as {dtype}",
        )  # fmt: skip
    return sample.astype(dtype)


def _damaged_set(file: Path, why: str) -> ConfigError:
    return ConfigError(
        "the labelled set cannot be read", where=str(file), why=why.splitlines()[0][:300],
        remedy="give an .npz file with the arrays `inputs` [N, ...] and `labels` [N]",
    )  # fmt: skip


def write_tensor(path: Path, name: str, array: Array) -> TensorFile:
    """Write an array as little-endian elements in C order, strings with a NUL behind; raises as writing files does."""
    import numpy as np

    if array.dtype.kind in "UO":
        write_bytes(path, b"".join(str(text).encode() + b"\0" for text in array.ravel()))
        return TensorFile(name=name, dtype=ElementType.STRING, shape=tuple(array.shape), file=str(path))
    kind = "bool" if array.dtype == np.bool_ else array.dtype.name
    write_bytes(path, np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes())
    return TensorFile(name=name, dtype=ElementType(kind), shape=tuple(array.shape), file=str(path))


IMAGES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".gif"})
RECORDINGS = frozenset({".wav"})
LABEL = "label"
"""The array of an .npz file that is the sample's label, where no input has that name."""
TENSOR_BYTES = 2 << 30
"""A message of protobuf ends there."""
Named: TypeAlias = list[tuple[str, Array]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFiles:
    """One sample as it lies on the disk; names are those in the files, matched to the model's inputs later.

    `by_number` says that names may be anything, as long as there are as many as inputs (ONNX's own layout). `label` is
    the one that came with the sample: its folder's class, or an array of its file; None for none.
    """

    name: str
    inputs: Named
    expected: Named
    by_number: bool = False
    label: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """What reading needs to know: the model's inputs, those without a declared value, and the preprocessing."""

    takes: tuple[TensorInfo, ...]
    open: tuple[TensorInfo, ...]
    preprocess: PreprocessConfig | None


def find_samples(path: Path, request: ReadRequest) -> Iterator[SampleFiles]:
    """Every sample under a path, in the order of names with numbers by value; ConfigError names what is wrong."""
    if path.is_file():
        if not is_stacked(path, _taken(request)):
            yield _read(path, request)
            return
        info = _only_open(path, request)
        for name, array, label in stacked_samples(path, info):
            yield SampleFiles(name=name, inputs=[(info.name, array)], expected=[], label=label)
        return
    if not path.is_dir():
        raise ConfigError(
            "no such test data", where=str(path), why=f"searched for {path.resolve()}", remedy="check `test_data`"
        )
    sets = _sorted(child for child in path.glob("test_data_set_*") if child.is_dir())
    if sets or any(path.glob("input_*.pb")):
        yield from (_data_set(folder) for folder in sets or [path])
        return
    files = _sorted(child for child in path.iterdir() if child.is_file() and _reader(child))
    if not files:
        yield from _by_class(path, request)
        return
    arrays = [file for file in files if file.suffix.lower() == ".npy"]
    if arrays and len(arrays) == len(files) and len(request.open) > 1:
        yield SampleFiles(name=str(path), inputs=[(file.stem, _array(file)) for file in arrays], expected=[])
        return
    yield from (_read(file, request) for file in files)


def _by_class(path: Path, request: ReadRequest) -> Iterator[SampleFiles]:
    """Samples in a folder for each class: its number where all are called by numbers, else its place by name."""
    folders = _sorted(child for child in path.iterdir() if child.is_dir())
    classes = [(folder, _sorted(file for file in folder.iterdir() if file.is_file() and _reader(file)))
             for folder in folders]  # fmt: skip
    if not any(files for _, files in classes):
        raise _nothing(path)
    named = [re.fullmatch(r"[0-9]{1,9}", folder.name) for folder in folders]
    for place, (folder, files) in enumerate(classes):
        label = int(folder.name) if all(named) else place
        yield from (replace(_read(file, request), label=label) for file in files)


def _taken(request: ReadRequest) -> set[str]:
    return {info.name for info in request.takes}


def _sorted(files: Iterable[Path]) -> list[Path]:
    def key(file: Path) -> list[tuple[int, str]]:
        return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", file.name)]

    return sorted(files, key=key)


def _nothing(path: Path) -> ConfigError:
    endings = Counter(child.suffix.lower() or child.name for child in path.iterdir())
    seen = ", ".join(f"{count} {ending}" for ending, count in endings.most_common(4)) or "nothing"
    return ConfigError(
        "no test data in this folder", where=str(path), why=f"it has {seen}",
        remedy="give a folder with test_data_set_0/input_0.pb …, .npz, .npy, images or WAV files, or one such file",
    )  # fmt: skip


def _reader(file: Path) -> Callable[[Path, ReadRequest], SampleFiles] | None:
    suffix = file.suffix.lower()
    if suffix in IMAGES | RECORDINGS:
        return partial(_media, image_tensor if suffix in IMAGES else wav_tensor)
    return {".npz": _archive, ".npy": _single, ".pb": _tensor_alone}.get(suffix)


def _read(file: Path, request: ReadRequest) -> SampleFiles:
    reader = _reader(file)
    if reader is None:
        raise ConfigError(
            "this file is no test data", where=str(file),
            remedy="give .npz, .npy, an image, a WAV file, or a folder of them, or ONNX's test_data_set folders",
        )  # fmt: skip
    return reader(file, request)


def _only_open(file: Path, request: ReadRequest, name: str | None = None) -> TensorInfo:
    """The input that a file of one tensor is for."""
    for info in request.takes:
        if info.name == name:
            return info
    if name is not None:
        raise ConfigError(
            f"the model has no input {name!r}", where="preprocess.input", remedy=f"inputs: {_names(request.takes)}"
        )
    if len(request.open) != 1:
        raise ConfigError(
            "it is not said for which input this is", where=str(file),
            why=f"the model has {len(request.open)} inputs without a value: {_names(request.open)}",
            remedy="give the others as `inputs.NAME = value`, or name it by `preprocess.input`",
        )  # fmt: skip
    return request.open[0]


def _names(infos: tuple[TensorInfo, ...]) -> str:
    return ", ".join(info.name for info in infos) or "none"


def _media(
    convert: Callable[[Path, PreprocessConfig, TensorInfo], Array], file: Path, request: ReadRequest
) -> SampleFiles:
    if request.preprocess is None:
        raise ConfigError(
            "it is not said how these files become inputs", where=str(file),
            remedy="declare it in the config: `preprocess = { resize = [224, 224], scale = 0.0039 }` for images, "
            "`preprocess = { sample_rate = 16000 }` for recordings; docs/guide.md has more",
        )  # fmt: skip
    info = _only_open(file, request, request.preprocess.input)
    return SampleFiles(name=str(file), inputs=[(info.name, convert(file, request.preprocess, info))], expected=[])


def _single(file: Path, request: ReadRequest) -> SampleFiles:
    named = {safe(info.name): info for info in request.takes}.get(safe(file.stem))
    info = named or _only_open(file, request)
    return SampleFiles(name=str(file), inputs=[(info.name, _array(file))], expected=[])


def safe(name: str) -> str:
    """An input's name in the letters that every file system has."""
    return re.sub(r"[^\w.-]", "_", name)


def _array(file: Path) -> Array:
    import numpy as np

    try:
        array = np.load(file, allow_pickle=False)
    except (*ZIP_ERRORS, SyntaxError) as error:
        raise _damaged(file, error) from error
    if not isinstance(array, np.ndarray):
        raise _damaged(file, ValueError("it is an archive of arrays; name it .npz"))
    return array


def _archive(file: Path, request: ReadRequest) -> SampleFiles:
    import numpy as np

    try:
        with np.load(file, allow_pickle=False) as data:
            if isinstance(data, np.ndarray):
                raise _damaged(file, ValueError("it is one array; name it .npy"))
            taken = _taken(request)
            inputs = [(key, data[key]) for key in data.files if key != LABEL or LABEL in taken]
            label = data[LABEL] if LABEL in data.files and LABEL not in taken else None
            return SampleFiles(name=str(file), inputs=inputs, expected=[], label=label)
    except (*ZIP_ERRORS, KeyError, SyntaxError) as error:
        raise _damaged(file, error) from error


def _damaged(file: Path, error: Exception) -> ConfigError:
    why = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
    return ConfigError("this test data cannot be read", where=str(file), why=why, remedy="write the file again")


def _data_set(folder: Path) -> SampleFiles:
    inputs = _numbered(folder, "input")
    if not inputs:
        raise ConfigError(
            "no inputs in this test data set",
            where=str(folder),
            why="there is no input_0.pb",
            remedy="check `test_data`",
        )
    return SampleFiles(name=str(folder), inputs=inputs, expected=_numbered(folder, "output"), by_number=True)


def _tensor_alone(file: Path, request: ReadRequest) -> SampleFiles:
    del request
    raise ConfigError("one tensor of a test data set", where=str(file), remedy=f"name its folder, {file.parent}")


def _numbered(folder: Path, kind: str) -> Named:
    """input_K.pb or output_K.pb of a test data set in the order of K, with the names inside."""
    files = {int(m.group(1)): f for f in folder.glob(f"{kind}_*.pb") if (m := re.search(r"_([0-9]{1,9})\.pb$", f.name))}
    return [_tensor(file) for _, file in sorted(files.items())]


def _tensor(file: Path) -> tuple[str, Array]:
    import onnx
    from onnx import numpy_helper

    tensor = onnx.TensorProto()
    try:
        tensor.ParseFromString(read_regular(file, TENSOR_BYTES))
        if tensor.data_location == tensor.EXTERNAL:
            raise _damaged(file, ValueError("its data lie in another file"))  # noqa: TRY301 - reported like the rest
        return tensor.name, numpy_helper.to_array(tensor)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            "not a tensor in ONNX's format", where=str(file), why=_damaged(file, error).why, remedy="write it again"
        ) from error


HEADS = frozenset({"file", "filename", "file_name", "name", "path", "sample", "image", "audio", "id"})
"""First words of a line that is a heading."""
LABEL_HEADS = ("label", "class", "text", "target")
"""Headings of the column with labels; without one of them it is the second."""
LIMIT_BYTES = 256 << 20


@dataclass(slots=True, kw_only=True)
class LabelTable:
    """Labels by what names a sample, with their lines; `used` are the names that samples have asked for."""

    file: Path
    labels: dict[str, str]
    lines: dict[str, int]
    used: set[str] = field(default_factory=set)

    def label_of(self, sample: str, names: tuple[str, ...]) -> str:
        """The label of a sample by the first of its names that has one.

        ConfigError for a sample without label, and for one whose label another sample has already.
        """
        labelled = next((name for name in names if name in self.labels), None)
        if labelled is None:
            raise ConfigError(
                "no label for this sample", where=sample,
                why=f"{self.file} has {len(self.labels)} labels, none for {' or '.join(map(repr, names))}",
                remedy="add a line, or remove the sample",
            )  # fmt: skip
        if labelled in self.used:
            raise ConfigError(
                "two samples have the same label line", where=f"{self.file}:{self.lines[labelled]}",
                why=f"{labelled!r} names {sample}, and another one before it",
                remedy="name files with their folders, as in `a/1.jpg,3`",
            )  # fmt: skip
        self.used.add(labelled)
        return self.labels[labelled]

    def check_all_used(self) -> None:
        """ConfigError for the first label that belongs to no sample."""
        unused = [name for name in self.labels if name not in self.used]
        if unused:
            raise ConfigError(
                "a label without a sample", where=f"{self.file}:{self.lines[unused[0]]}",
                why=f"there is no sample {unused[0]!r}; {len(unused)} of {len(self.labels)} labels have none",
                remedy="remove the line, or add the sample; names are relative to the folder of `test_data`",
            )  # fmt: skip


def read_labels(file: Path) -> LabelTable:
    """The labels of a CSV file, in UTF-8, with or without a heading.

    ConfigError, with the line, for what is no such file, an empty label, and a name that stands twice.
    """
    rows = _rows(file)
    (_, first) = rows[0]
    headed = first[0].strip().lower() in HEADS
    heads = [cell.strip().lower() for cell in first] if headed else []
    column = next((heads.index(head) for head in LABEL_HEADS if head in heads), 1)
    table = LabelTable(file=file, labels={}, lines={})
    for line, row in rows[headed:]:
        name, label = row[0].strip(), row[column].strip() if column < len(row) else ""
        if not name or not label:
            raise _bad(file, line, f"it has {','.join(row)[:80]!r}", "write `file,label`")
        if name in table.labels:
            raise _bad(file, line, f"{name!r} stands in line {table.lines[name]}, too", "keep one of the two")
        table.labels[name], table.lines[name] = label, line
    return table


def _rows(file: Path) -> list[tuple[int, list[str]]]:
    """Lines with anything in them, with their numbers; at least one."""
    try:
        reader = csv.reader(read_regular(file, LIMIT_BYTES).decode("utf-8-sig").splitlines(), strict=True)
        rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(
            "the labels cannot be read", where=str(file), why=str(error)[:300],
            remedy="give a CSV file in UTF-8 with a line `file,label` for each sample",
        ) from error  # fmt: skip
    if not rows:
        raise _bad(file, 1, "the file is empty", "write a line `file,label` for each sample")
    return rows


def _bad(file: Path, line: int, why: str, remedy: str) -> ConfigError:
    return ConfigError("this is no line of labels", where=f"{file}:{line}", why=why, remedy=remedy)
