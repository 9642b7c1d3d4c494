"""Whether an app's code can find the files that ONNX models have their weights or the binary of a context in.

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

ASSETS = "assets"
OURS = "ort_mobile"
"""The folder below assets/ from which packages of `release android` copy such models with their files themselves."""
ANDROID = frozenset({"APK", "APK set", "AAB", "AAR"})


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

    def find(self, path: str) -> str:
        """The file at a path, or at the same one below assets/ in another part of an app; "" for none."""
        return path if path in self.file_bytes else self._assets.get(_asset(path), "") if self.android else ""

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
    path = posixpath.normpath(posixpath.join(posixpath.dirname(model.path), file.location))
    member, severity = package.find(path), Severity.ERROR if package.whole else Severity.WARNING
    needs = f"{file.needed_by or 'it'} lies in {file.location}"
    if not member:
        elsewhere = package.named(posixpath.basename(file.location))
        if elsewhere:
            yield finding(
                "external-data",
                severity,
                "data of this model are not where it looks for them",
                model.path,
                f"{needs}, which ONNX Runtime looks for beside the model; it is {elsewhere}",
                f"move it to {path}",
            )
        else:
            yield finding(
                "external-data",
                severity,
                "data of this model are missing",
                model.path,
                f"{needs}, and no file of the package has that name",
                f"put it at {path}, as it was exported, or convert the model to one file (`ort-mobile convert`)",
            )
    elif (size := package.file_bytes[member]) < file.least_bytes:
        yield finding(
            "external-data",
            Severity.ERROR,
            "data of this model are cut off",
            model.path,
            f"{needs}, which needs at least {file.least_bytes:,} bytes; {member} has {size:,}",
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
