"""The samples of a model, one in memory at a time, and test data on the disk.

Test data are ONNX's test data sets, .npz and .npy files, images, recordings, folders of them, stacked labelled sets.
"""

import difflib
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeAlias

from device_runner import untrusted_files
from device_runner.spec import ElementType, TensorFile
from pipeline.config import tables as config_tables
from pipeline.core import files as storage
from pipeline.core.errors import ConfigError, Finding, Severity
from pipeline.dataset.dataset import CALIBRATION_SHARE, Dataset, Part, Sample
from pipeline.dataset.functions import function_samples
from pipeline.dataset.labels import read_labels
from pipeline.dataset.lengths import full_lengths
from pipeline.dataset.values import check_padding, image_tensor, plain_dtype, value_array, wav_tensor
from pipeline.model import signature
from pipeline.model.signature import Array, TensorInfo

if TYPE_CHECKING:
    import numpy as np
    from onnx import ModelProto

Named: TypeAlias = list[tuple[str, Array]]
Takes: TypeAlias = Sequence[TensorInfo]
"""The inputs of a model."""


def samples(data: Dataset, takes: Takes) -> Iterator[Sample]:
    """Samples for a model with these inputs; only one is in memory at a time.

    Test data give as many as they have in the part that is asked for, up to the limit; anything else gives one.
    ConfigError for the first wrong sample, with its file and the reason: also for one without label where there are
    labels, and, after the last, for a label without sample. MissingError when images need Pillow.
    """
    names = [info.name for info in takes]
    for key, name in (*(("inputs", name) for name in data.inputs), *(("padding", name) for name in data.padding)):
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            remedy = f"did you mean {close[0]!r}?" if close else f"inputs: {', '.join(names) or 'none'}"
            raise ConfigError(f"the model has no input {name!r}", where=f"{key}.{name}", remedy=remedy)
    for name, number in data.padding.items():
        check_padding(takes[names.index(name)], number)
    if data.labels and not data.test_data:
        raise ConfigError(
            "labels without samples",
            where=data.labels,
            why="there is no test data that they could be of",
            remedy="give `test_data` (--test-data), or one .npz with `inputs` and `labels` as `labels` alone",
        )
    if not data.test_data:
        yield Sample(name=data.source, inputs=_complete(data, takes, {}, 0, data.source))
        return
    count = in_part = 0
    whole = data.part is Part.ALL or sum(1 for _ in islice(_every(data, takes), data.least)) < data.least
    for sample in _every(data, takes):
        count += 1
        if whole or data.part is sample.part:
            in_part += 1
            yield sample
            if in_part == data.limit:
                return
    if not count:
        raise ConfigError("the test data has no samples", where=data.test_data, remedy="check `test_data`")
    if not in_part:
        raise ConfigError(
            f"the {data.part} part of the test data has no samples",
            where=data.test_data,
            why=f"it has {count} sample{'s' * (count > 1)}, which are divided by content, "
            f"one in {CALIBRATION_SHARE} for calibration",
            remedy="give more samples, or files of its own: `calibration` and `evaluation` of the model in the config",
        )


def _every(data: Dataset, takes: Takes) -> Iterator[Sample]:
    """All samples of test data, whole and with their labels."""
    root, table = Path(data.test_data), Path(data.labels)
    labels = read_labels(table) if data.labels else {}
    used = set[str]()
    for number, sample in enumerate(_given(data, takes)):
        label = sample.label
        if data.labels:
            # A line may call a sample by its path in the folder or its name with and without ending; what is no file
            # has a number
            path = Path(sample.name)
            inside = path.relative_to(root).as_posix() if path != root and path.is_relative_to(root) else path.name
            names = tuple(dict.fromkeys((inside, path.name, path.stem))) if path.exists() else (str(number),)
            labelled = next((name for name in names if name in labels), None)
            if labelled is None:
                raise ConfigError(
                    "no label for this sample",
                    where=sample.name,
                    why=f"{table} has {len(labels)} labels, none for {' or '.join(map(repr, names))}",
                    remedy="add a line, or remove the sample",
                )
            line, label = labels[labelled]
            if labelled in used:
                raise ConfigError(
                    "two samples have the same label line",
                    where=f"{table}:{line}",
                    why=f"{labelled!r} names {sample.name}, and another one before it",
                    remedy="name files with their folders, as in `a/1.jpg,3`",
                )
            used.add(labelled)
        yield replace(sample, inputs=_complete(data, takes, sample.inputs, number, sample.name), label=label)
    if unused := [name for name in labels if name not in used]:
        raise ConfigError(
            "a label without a sample",
            where=f"{table}:{labels[unused[0]][0]}",
            why=f"there is no sample {unused[0]!r}; {len(unused)} of {len(labels)} labels have none",
            remedy="remove the line, or add the sample; names are relative to the folder of `test_data`",
        )


def _complete(data: Dataset, takes: Takes, given: Mapping[str, Array], number: int, where: str) -> dict[str, Array]:
    """Every input of the model: declared values before given arrays before declared ranges and random numbers."""
    import numpy as np

    generator = np.random.Generator(np.random.PCG64(data.seed + number))
    arrays = {}
    for info in takes:
        in_range = isinstance(data.inputs.get(info.name), config_tables.Range)
        declared = info.name in data.inputs and not (in_range and info.name in given)
        if declared or (not data.test_data and info.name not in given):
            arrays[info.name] = value_array(info, data.inputs.get(info.name), data.sizes, generator)
            continue
        if info.name not in given:
            raise ConfigError(
                f"the test data lacks the input {info.name!r}",
                where=where,
                why=f"it has {', '.join(given) or 'none'}",
                remedy=f"add it, or give it a value: `inputs.{info.name} = …` in the config, --input {info.name}=…",
            )
        array = arrays[info.name] = given[info.name]
        sizes_fit = info.shape is None or (
            len(array.shape) == len(info.shape)
            and all(not isinstance(size, int) or size == n for size, n in zip(info.shape, array.shape, strict=True))
        )
        if not sizes_fit or np.dtype(array.dtype.type) != plain_dtype(info):  # strings may have any length
            raise ConfigError(
                f"the test data does not fit the input {info.name!r}",
                where=where,
                why=f"it is {array.dtype} {list(array.shape)}, the model takes {info}",
                remedy="make the test data again for this model, or change `dimensions`",
            )
    for name, length in full_lengths(takes, arrays).items():
        if name not in given and name not in data.inputs:
            arrays[name] = np.full_like(arrays[name], length)
    return arrays


def first_sample(data: Dataset, takes: Takes) -> Sample:
    """The first sample; raises as `samples` does."""
    return next(samples(data, takes))


def check_data(data: Dataset, takes: Takes) -> int:
    """How many samples there are; raises as `samples` does for the first that is wrong."""
    return sum(1 for _ in samples(data, takes))


def sizes_in(data: Dataset, takes: Takes) -> dict[str, int]:
    """Sizes that the first sample of test data gives to open axes, by `input[axis]`; none without test data.

    Raises as `samples` does.
    """
    if not data.test_data:
        return {}
    arrays = first_sample(data, takes).inputs
    return {axis.key: int(arrays[axis.input].shape[axis.axis]) for axis in signature.open_axes(takes)}


def given_sizes(data: Dataset, model: "ModelProto", named: Mapping[str, int], where: str) -> dict[str, int]:
    """Sizes for open dimensions by `input[axis]`: those that are named before those of the test data.

    ConfigError for a name that the model, `where`, does not have; else raises as `samples` does.
    """
    takes = signature.own_inputs(model)
    return sizes_in(data, takes) | signature.resolve_dimensions(takes, named, where)


def overlap(calibration: Dataset, evaluation: Dataset, takes: Takes) -> Finding | None:
    """A warning where samples stand in both: accuracy on data that ranges were taken from is too good.

    Reads both, and keeps the digests of one; raises as `samples` does.
    """
    names = {sample.digest: sample.name for sample in samples(calibration, takes)}
    both = [(sample.name, names[sample.digest]) for sample in samples(evaluation, takes) if sample.digest in names]
    if not both:
        return None
    if calibration.least and len(both) < calibration.least and calibration.test_data == evaluation.test_data:
        return Finding(
            severity=Severity.WARNING,
            what=f"the ranges come from all samples, the {len(both)} that accuracy is measured on among them",
            where=evaluation.source,
            why=f"there are fewer than {calibration.least}, too few to divide",
            remedy=f"give {calibration.least} or more, or max_drop or labels: then they are kept apart",
        )
    return Finding(
        severity=Severity.WARNING,
        what=f"{len(both)} samples are in the calibration data and in the evaluation data",
        where=evaluation.source,
        why=f"{both[0][0]} has the content of {both[0][1]}",
        remedy="take them out of one of the two: accuracy on calibration data is too good",
    )


INPUTS, LABELS = "inputs", "labels"
"""The arrays of a stacked labelled set, an .npz file."""
SAMPLE_BYTES = 1 << 30
"""A sample above this is a mistake in the file's header."""
IMAGES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".gif"})
RECORDINGS = frozenset({".wav"})
READABLE = IMAGES | RECORDINGS | {".npz", ".npy", ".pb"}
LABEL = "label"
"""The array of an .npz file that is the sample's label, where no input has that name."""
TENSOR_BYTES = 2 << 30
"""A message of protobuf ends there."""


def _given(data: Dataset, takes: Takes) -> Iterator[Sample]:
    """The same as `_found`, of what the app has where it is no tensor."""
    from pipeline.dataset import app_files

    if data.takes and (files := app_files.files_in(Path(data.test_data), data.takes)):
        for file in _sorted(files):
            yield from app_files.samples(data.takes, file, takes)
    else:
        yield from _found(data, takes)


def _found(data: Dataset, takes: Takes) -> Iterator[Sample]:
    """Every sample of the test data, in the order of names with numbers by value: what it gives of the inputs.

    ConfigError names what is wrong.
    """
    if config_tables.is_function(data.test_data):
        for sample in function_samples(data.test_data):
            yield replace(sample, inputs=_matched(list(sample.inputs.items()), data, takes, sample.name))
        return
    path = Path(data.test_data)
    if path.is_file():
        yield from _stacked(path, data, takes) if _is_stacked(path, takes) else (_read(path, data, takes),)
        return
    if not path.is_dir():
        raise ConfigError(
            "no such test data", where=str(path), why=f"searched for {path.resolve()}", remedy="check `test_data`"
        )
    sets = _sorted(child for child in path.glob("test_data_set_*") if child.is_dir())
    if sets or any(path.glob("input_*.pb")):
        for folder in sets or [path]:
            if not (inputs := _numbered(folder, "input")):
                raise ConfigError(
                    "no inputs in this test data set",
                    where=str(folder),
                    why="there is no input_0.pb",
                    remedy="check `test_data`",
                )
            by_name = _matched(inputs, data, takes, str(folder), by_number=True)
            yield Sample(name=str(folder), inputs=by_name, expected=_numbered(folder, "output"))
        return
    files = _sorted(child for child in path.iterdir() if child.is_file() and child.suffix.lower() in READABLE)
    if not files:
        # A folder for each class: its number where all are called by numbers, else its place by name
        folders = _sorted(child for child in path.iterdir() if child.is_dir())
        classes = [
            _sorted(file for file in folder.iterdir() if file.is_file() and file.suffix.lower() in READABLE)
            for folder in folders
        ]
        if not any(classes):
            endings = Counter(child.suffix.lower() or child.name for child in path.iterdir())
            seen = ", ".join(f"{count} {ending}" for ending, count in endings.most_common(4)) or "nothing"
            raise ConfigError(
                "no test data in this folder",
                where=str(path),
                why=f"it has {seen}",
                remedy="give a folder with test_data_set_0/input_0.pb …, .npz, .npy, images or WAV files, or one such "
                "file",
            )
        numbered = all(re.fullmatch(r"[0-9]{1,9}", folder.name) for folder in folders)
        for index, (folder, of_class) in enumerate(zip(folders, classes, strict=True)):
            label = int(folder.name) if numbered else index
            yield from (replace(_read(file, data, takes), label=label) for file in of_class)
    elif all(file.suffix.lower() == ".npy" for file in files) and len(_open(data, takes)) > 1:
        stems = [(file.stem, _array(file)) for file in files]
        yield Sample(name=str(path), inputs=_matched(stems, data, takes, str(path)))
    else:
        yield from (_read(file, data, takes) for file in files)


def _open(data: Dataset, takes: Takes) -> list[TensorInfo]:
    """The inputs without a declared value."""
    return [info for info in takes if info.name not in data.inputs]


def _matched(arrays: Named, data: Dataset, takes: Takes, where: str, *, by_number: bool = False) -> dict[str, Array]:
    """Arrays of a sample by the model's names: by name, by the name's letters that files can have, else by number.

    `by_number`: names may be anything, as long as there are as many as inputs (ONNX's own layout).
    """
    names = {_safe(info.name): info.name for info in takes} | {info.name: info.name for info in takes}
    if len({name for name, _ in arrays}) == len(arrays) and all(name in names for name, _ in arrays):
        return {names[name]: array for name, array in arrays}
    if by_number:
        for infos in (takes, _open(data, takes)):
            if len(infos) == len(arrays):
                return {info.name: array for info, (_, array) in zip(infos, arrays, strict=True)}
        raise ConfigError(
            f"the test data has {len(arrays)} inputs, the model {len(takes)}",
            where=where,
            remedy="give input_0.pb … for every input of the model, and for no initializer",
        )
    extra = [name for name, _ in arrays if name not in names]
    if not extra:
        twice = next(name for name, count in Counter(name for name, _ in arrays).items() if count > 1)
        raise ConfigError(f"the test data has {twice!r} more than once", where=where, remedy="keep one of them")
    raise ConfigError(
        f"the test data has {', '.join(map(repr, extra[:5]))}, which the model does not take",
        where=where,
        remedy=f"name arrays after the model's inputs: {', '.join(info.name for info in takes)}",
    )


def _safe(name: str) -> str:
    """An input's name in the letters that every file system has."""
    return re.sub(r"[^\w.-]", "_", name)


def _sorted(files: Iterable[Path]) -> list[Path]:
    def key(file: Path) -> list[tuple[int, str]]:
        return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", file.name)]

    return sorted(files, key=key)


def _read(file: Path, data: Dataset, takes: Takes) -> Sample:
    """The sample in a file."""
    suffix, name = file.suffix.lower(), str(file)
    if suffix in IMAGES | RECORDINGS:
        if data.preprocess is None:
            raise ConfigError(
                "it is not said how these files become inputs",
                where=name,
                remedy="declare it in the config: `preprocess = { resize = [224, 224], scale = 0.0039 }` for images, "
                "`preprocess = { sample_rate = 16000 }` for recordings; docs/guide.md has more",
            )
        info = _only_open(file, data, takes, data.preprocess.input)
        convert = image_tensor if suffix in IMAGES else wav_tensor
        return Sample(name=name, inputs={info.name: convert(file, data.preprocess, info)})
    if suffix == ".npz":
        return _archive(file, data, takes)
    if suffix == ".npy":
        named = next((info for info in takes if _safe(info.name) == _safe(file.stem)), None)
        info = named or _only_open(file, data, takes)
        return Sample(name=name, inputs={info.name: _array(file)})
    if suffix == ".pb":
        raise ConfigError("one tensor of a test data set", where=name, remedy=f"name its folder, {file.parent}")
    raise ConfigError(
        "this file is no test data",
        where=name,
        remedy="give .npz, .npy, an image, a WAV file, or a folder of them, or ONNX's test_data_set folders",
    )


def _only_open(file: Path, data: Dataset, takes: Takes, name: str | None = None) -> TensorInfo:
    """The input that a file of one tensor is for."""
    for info in takes:
        if info.name == name:
            return info
    if name is not None:
        names = ", ".join(info.name for info in takes) or "none"
        raise ConfigError(f"the model has no input {name!r}", where="preprocess.input", remedy=f"inputs: {names}")
    left = _open(data, takes)
    if len(left) != 1:
        names = ", ".join(info.name for info in left) or "none"
        raise ConfigError(
            "it is not said for which input this is",
            where=str(file),
            why=f"the model has {len(left)} inputs without a value: {names}",
            remedy="give the others as `inputs.NAME = value`, or name it by `preprocess.input`",
        )
    return left[0]


def _array(file: Path) -> Array:
    import numpy as np

    try:
        array = np.load(file, allow_pickle=False)
    except (*untrusted_files.ZIP_ERRORS, SyntaxError) as error:
        raise _damaged(file, error) from error
    if not isinstance(array, np.ndarray):
        raise _damaged(file, ValueError("it is an archive of arrays; name it .npz"))
    return array


def _archive(file: Path, data: Dataset, takes: Takes) -> Sample:
    import numpy as np

    try:
        with np.load(file, allow_pickle=False) as arrays:
            if isinstance(arrays, np.ndarray):
                raise _damaged(file, ValueError("it is one array; name it .npy"))
            labelled = LABEL in arrays.files and all(info.name != LABEL for info in takes)
            inputs = [(key, arrays[key]) for key in arrays.files if key != LABEL or not labelled]
            label = arrays[LABEL] if labelled else None
            _check_arrays([*inputs, *([(LABEL, label)] if labelled else [])], file)
    except (*untrusted_files.ZIP_ERRORS, KeyError, SyntaxError) as error:
        raise _damaged(file, error) from error
    return Sample(name=str(file), inputs=_matched(inputs, data, takes, str(file)), label=label)


def _check_arrays(members: Iterable[tuple[str, object]], file: Path) -> None:
    """ConfigError for a member of an archive that numpy takes for bytes: it has no header of an array."""
    import numpy as np

    if strange := next((name for name, content in members if not isinstance(content, np.ndarray)), None):
        raise _damaged(file, ValueError(f"its member {strange[:100]!r} is no array"))


def _damaged(file: Path, error: Exception) -> ConfigError:
    why = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
    return ConfigError("this test data cannot be read", where=str(file), why=why, remedy="write the file again")


def _numbered(folder: Path, kind: str) -> Named:
    """input_K.pb or output_K.pb of a test data set in the order of K, with the names inside."""
    files = {int(m.group(1)): f for f in folder.glob(f"{kind}_*.pb") if (m := re.search(r"_([0-9]{1,9})\.pb$", f.name))}
    return [_tensor(file) for _, file in sorted(files.items())]


def _tensor(file: Path) -> tuple[str, Array]:
    import onnx
    from onnx import numpy_helper

    tensor = onnx.TensorProto()
    try:
        tensor.ParseFromString(untrusted_files.read_regular(file, TENSOR_BYTES))
        if tensor.data_location == tensor.EXTERNAL:
            raise _damaged(file, ValueError("its data lie in another file"))  # noqa: TRY301 - reported like the rest
        return tensor.name, numpy_helper.to_array(tensor)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            "not a tensor in ONNX's format", where=str(file), why=_damaged(file, error).why, remedy="write it again"
        ) from error


def _is_stacked(file: Path, takes: Takes) -> bool:
    """Whether a file is a labelled set: an .npz file with both arrays, of which none is an input of the model."""
    if file.suffix.lower() != ".npz" or any(info.name in (INPUTS, LABELS) for info in takes):
        return False
    try:
        with zipfile.ZipFile(file) as archive:
            return {f"{INPUTS}.npy", f"{LABELS}.npy"} <= set(archive.namelist())
    except untrusted_files.ZIP_ERRORS:
        return False


def _stacked(file: Path, data: Dataset, takes: Takes) -> Iterator[Sample]:
    """The samples of a labelled set, for the model's one input; ConfigError for a file that is damaged, has no sample,
    or as many labels as samples not.
    """
    info = _only_open(file, data, takes)
    try:
        with (
            zipfile.ZipFile(file) as archive,
            archive.open(f"{INPUTS}.npy") as inputs,
            archive.open(f"{LABELS}.npy") as labels,
        ):
            (count, shape, dtype), (label_count, label_shape, label_dtype) = (
                _header(file, part) for part in (inputs, labels)
            )
            if count != label_count or not count:
                raise ConfigError(
                    "the labelled set is not inputs [N, ...] with labels [N]",
                    where=str(file),
                    why=f"inputs {[count, *shape]}, labels {[label_count, *label_shape]}",
                    remedy="write one label for each sample",
                )
            for number in range(count):
                name = f"{file} sample {number}"
                label = _next(file, labels, label_shape, label_dtype)
                array = _as_input(_next(file, inputs, shape, dtype), info, name)
                yield Sample(name=name, inputs={info.name: array}, label=label if label_shape else label.item())
    except (*untrusted_files.ZIP_ERRORS, SyntaxError) as error:
        raise _damaged_set(file, str(error) or type(error).__name__) from error


class _Header(NamedTuple):
    """Of an .npy stream: length of the first axis, shape of a sample and element type."""

    length: int
    shape: tuple[int, ...]
    dtype: "np.dtype[Any]"


def _header(file: Path, part: IO[bytes]) -> _Header:
    """The header of a stream, which is then at its data."""
    from numpy.lib import format as npy

    version = npy.read_magic(part)
    shape, fortran, dtype = (npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0)(part)
    if not shape or fortran or dtype.hasobject:
        raise _damaged_set(file, "its arrays need a first axis for samples, C order, and numbers or texts as elements")
    return _Header(shape[0], tuple(shape[1:]), dtype)


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
            f"the labelled set does not fit the input {info.name!r}",
            where=name,
            why=f"its elements are {sample.dtype}, the model takes {info}",
            remedy=f"save them as {dtype}",
        )
    return sample.astype(dtype)


def _damaged_set(file: Path, why: str) -> ConfigError:
    return ConfigError(
        "the labelled set cannot be read",
        where=str(file),
        why=why.splitlines()[0][:300],
        remedy="give an .npz file with the arrays `inputs` [N, ...] and `labels` [N]",
    )


def write_tensor(path: Path, name: str, array: Array) -> TensorFile:
    """Write an array as little-endian elements in C order, strings with a NUL behind; raises as writing files does."""
    import numpy as np

    if array.dtype.kind in "UO":
        kind, content = ElementType.STRING, b"".join(str(text).encode() + b"\0" for text in array.ravel())
    else:
        kind = ElementType("bool" if array.dtype == np.bool_ else array.dtype.name)
        content = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes()
    storage.write_bytes(path, content)
    return TensorFile(name=name, dtype=kind, shape=tuple(array.shape), file=str(path), crc32=zlib.crc32(content))
