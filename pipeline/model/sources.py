"""Where models come from: files, folders and zip archives, under names that do not clash."""

import contextlib
import logging
import os
import re
import shutil
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from pathlib import Path, PurePosixPath

import msgspec

from device_runner import untrusted_files
from pipeline.core import file_names
from pipeline.core.errors import ConfigError, ModelError

# An ORT format file ends at 2 GiB, and so does a protobuf message: no model and its data are larger together.
MAX_MEMBER_BYTES = 2 << 30
COPY_BYTES = 1 << 20
log = logging.getLogger(__name__)


class SourceModel(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A model where it was found: a file, or a member of a zip archive."""

    path: str
    member: str = ""
    called: str = ""
    """Its name, where the path is that of a file in a folder of work, which is gone when the name is read."""

    @property
    def name(self) -> str:
        """How errors, tables and JSON call it: the path, or archive/member."""
        return self.called or (f"{self.path}/{self.member}" if self.member else self.path)


def require_model_file(path: Path) -> None:
    """ConfigError for a path that is no file, for commands that take one model."""
    if path.is_dir():
        raise ConfigError("this is a folder, and no model file", where=str(path), remedy="name one model in it")
    if not path.is_file():
        raise ConfigError("no such model file", where=str(path), remedy="check the path")


def find_models(paths: Iterable[str | Path], suffixes: tuple[str, ...] = (".onnx",)) -> list[SourceModel]:
    """The models under files, folders (recursive, in sorted order) and zip archives; each file once.

    A path that is named is taken whatever its suffix, members and files in folders by `suffixes` (any case). A path may
    name one member, as `SourceModel.name` does. Other members of an archive are passed over. ConfigError for a path
    that does not exist, a folder or archive without models, an archive that cannot be read.
    """
    models: dict[SourceModel, None] = {}
    for path in paths:
        models.update(dict.fromkeys(_models_of(Path(path), suffixes)))
        if len(models) > MOST_MODELS:
            raise ConfigError(
                "too many models",
                where=str(path),
                why=f"{len(models):,}; at most {MOST_MODELS:,} are taken at once",
                remedy="name a part of them: folders inside it, or single files",
            )
    return list(models)


def _models_of(path: Path, suffixes: tuple[str, ...]) -> list[SourceModel]:
    if not path.exists():
        archive = next((folder for folder in path.parents if folder.is_file()), None)
        members = [model for model in _models_of(archive, suffixes) if Path(model.name) == path] if archive else []
        if members:
            return members
        raise ConfigError("no such file or folder", where=str(path), remedy="check the path")
    if not path.is_file() and not path.is_dir():
        raise ConfigError("this is no regular file", where=str(path), remedy="name a model, a folder or a zip archive")
    if path.is_dir():
        return _required(
            sorted(
                [
                    SourceModel(path=str(file))
                    for file in _walked(path)
                    if file.name.lower().endswith(suffixes) and file.is_file()
                ]
            ),
            path,
            suffixes,
        )
    if path.suffix.lower() == ".zip" or (path.suffix.lower() not in suffixes and zipfile.is_zipfile(path)):
        try:
            with zipfile.ZipFile(path) as opened:
                count = Counter(info.filename for info in untrusted_files.files_of(opened))
        except untrusted_files.ZIP_ERRORS as error:
            raise ConfigError(
                "not a readable zip archive", where=str(path), why=str(error), remedy="make the archive anew"
            ) from error
        models = [name for name in sorted(count) if name.lower().endswith(suffixes)]
        for name in models:
            if count[name] > 1:
                log.warning("%s: %s is in it %d times: the last one is read", path, name, count[name])
        return _required([SourceModel(path=str(path), member=name) for name in models], path, suffixes)
    return [SourceModel(path=str(path))]


MOST_FILES = 200_000
"""Files of a folder that is searched: more has a disk, and no folder of models."""
MOST_MODELS = 10_000


def _walked(folder: Path) -> Iterator[Path]:
    for number, file in enumerate(Path(root, file) for root, _, files in os.walk(folder) for file in files):
        if number >= MOST_FILES:
            raise ConfigError(
                "this folder has too many files",
                where=str(folder),
                why=f"over {MOST_FILES:,}",
                remedy="name the folder inside it that holds the models",
            )
        yield file


def _required(models: list[SourceModel], path: Path, suffixes: tuple[str, ...]) -> list[SourceModel]:
    if models:
        return models
    raise ConfigError(
        "no models in it",
        where=str(path),
        why=f"nothing ends in {' or '.join(suffixes)}",
        remedy="name the folder or archive that holds the models",
    )


def _archive(path: str) -> zipfile.ZipFile:
    """An archive, kept open for its next member: reading the directory of thousands costs more than most models."""
    status = Path(path).stat()
    return _open_archive(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=1)
def _open_archive(path: str, _mtime_ns: int, _size: int) -> zipfile.ZipFile:
    return zipfile.ZipFile(path)


class Spool:
    """Brings members of an archive to a folder of its own, where their sizes are bounded and their names are ours."""

    def __init__(self, source: SourceModel, folder: Path) -> None:
        self.source = source
        self.folder = folder
        suffix = PurePosixPath(source.member).suffix.lower()  # by it the formats are told
        self.path = folder / ("model.ort" if suffix == ".ort" else "model.onnx")
        self.spooled_bytes = 0

    def fetch_model(self) -> Path:
        """Extract the model; ModelError when it cannot be read, lies outside the archive's root or is too large."""
        self._fetch(self.source.member, self.path)
        return self.path

    def head(self, count: int) -> bytes:
        """The first bytes of the model, without extracting it; ModelError as for `fetch_model`."""
        where = self.source.name
        try:
            with _archive(self.source.path).open(self.source.member) as packed:
                return packed.read(count)
        except KeyError as error:
            raise ModelError("no such member in the archive", where=where, remedy="list the archive") from error
        except untrusted_files.ZIP_ERRORS as error:
            raise ModelError(
                "the archive's member cannot be extracted",
                where=where,
                why=str(error),
                remedy="make the archive anew, without a password",
            ) from error

    def fetch_beside(self, location: str) -> None:
        """Extract the file that the model names as external data, to the same place relative to the model.

        `location` must have been checked to be relative and free of `..`. A member that is missing is left missing.
        """
        member = PurePosixPath(self.source.member).parent / location
        target = self.folder / location
        if target != self.path and not target.exists():
            self._fetch(str(member), target, optional=True)

    def _fetch(self, member: str, target: Path, *, optional: bool = False) -> None:
        where = self.source.name
        if member.startswith(("/", "\\")) or ".." in PurePosixPath(member).parts:
            raise ModelError(
                "the archive's entry lies outside its root",
                where=where,
                why=member,
                remedy="make the archive anew with relative names",
            )
        try:
            archive = _archive(self.source.path)
            if optional and member not in archive.NameToInfo:
                return
            self._extract(archive, archive.getinfo(member), target)
        except KeyError as error:
            raise ModelError("no such member in the archive", where=where, remedy="list the archive") from error
        except untrusted_files.ZIP_ERRORS as error:
            raise ModelError(
                "the archive's member cannot be extracted",
                where=where,
                why=str(error),
                remedy="make the archive anew, without a password",
            ) from error

    def _extract(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo, target: Path) -> None:
        try:
            untrusted_files.check_unpacked(info, MAX_MEMBER_BYTES - self.spooled_bytes)
        except OSError as error:
            raise ModelError(
                "the archive's member is too large",
                where=self.source.name,
                why=error.strerror or "",
                remedy="models over 2 GiB cannot become ORT format files",
            ) from error
        self.spooled_bytes += info.file_size
        target.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(info) as packed, target.open("wb") as out:
            shutil.copyfileobj(packed, out, COPY_BYTES)


DATA_ENDINGS = (".data", "_data", ".weight")
"""What exporters put behind a model's name for the file of its weights."""
MOST_READ_BYTES = 16 << 20
"""A larger model file is not searched for the names of its data files: its weights are in it, as a rule."""
LOCATION = re.compile(rb"\n\x08location\x12([\x01-\x7f])")
"""An entry of an external tensor with the key `location`, up to the length of its value."""

MOST_LINES = 40
"""So many models of equal names are told apart; the JSON has every one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedModel:
    """A model with the name that its files and tables carry; no two of a run share one.

    `numbered`: others wanted the same name, and it has a number behind.
    """

    name: str
    source: SourceModel
    dimensions: dict[str, int] = field(default_factory=dict)
    optional_inputs: tuple[str, ...] = ()
    """Those that its files keep as inputs."""
    size_bytes: int = 0
    numbered: bool = False
    error: ModelError | None = None
    """Why there is no file: those that it would be made of cannot be read."""


def name_models(
    sources: Sequence[SourceModel], names: Sequence[str | None], dimensions: Sequence[dict[str, int]]
) -> list[NamedModel]:
    """Give every source a name: the one configured, or its stem; those that clash get a number behind."""
    bases = [
        file_names.readable_name(name or (PurePosixPath(source.member or Path(source.path).name).stem or "model"))
        for source, name in zip(sources, names, strict=True)
    ]
    total = Counter(name.lower() for name in bases)
    taken = {name for name, times in total.items() if times == 1}
    numbers: dict[str, Iterator[int]] = {name: count(1) for name in total}
    models = []
    for source, name, fixed in zip(sources, bases, dimensions, strict=True):
        clashes = total[key := name.lower()] > 1
        number = next(n for n in numbers[key] if f"{key}-{n}" not in taken) if clashes else 0
        models.append(
            NamedModel(
                name=f"{name}-{number}" if clashes else name,
                source=source,
                dimensions=fixed,
                size_bytes=source_bytes(source),
                numbered=clashes,
            )
        )
    return models


def numbered_lines(models: Iterable[NamedModel]) -> tuple[str, ...]:
    """Which model is which among those of equal names, one line each."""
    lines = [f"{model.name} is {model.source.name}" for model in models if model.numbered]
    more = (f"and {len(lines) - MOST_LINES} more with equal names",) if len(lines) > MOST_LINES else ()
    return (*lines[:MOST_LINES], *more)


def _data_files(content: bytes) -> set[str]:
    """The names of files beside a model that its external tensors name; a message is not read for that."""
    ends = ((match.end(), match[1][0]) for match in LOCATION.finditer(content))
    names = {content[at : at + length] for at, length in ends}
    return {os.fsdecode(name) for name in names if name not in (b".", b"..") and not set(name) & set(b"/\0")}


def source_bytes(source: SourceModel) -> int:
    """Bytes of a model with the data files that exporters usually put beside it, and those that a small file names; 0
    where they cannot be had.
    """
    with contextlib.suppress(*untrusted_files.ZIP_ERRORS, KeyError):
        if source.member:
            return _archive(source.path).getinfo(source.member).file_size
        path = Path(source.path)
        usual = {path.name, *(f"{path.name}{end}" for end in DATA_ENDINGS), f"{path.stem}.data", "weights.pb"}
        if path.stat().st_size <= MOST_READ_BYTES:
            usual |= _data_files(path.read_bytes())
        return sum(file.stat().st_size for name in usual if (file := path.with_name(name)).is_file())
    return 0
