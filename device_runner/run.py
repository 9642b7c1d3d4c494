"""A run on one device, from its spec to its result: what goes there, what the probe answers, what comes back."""

import math
import mmap
import re
import shutil
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path

from msgspec.structs import replace

from device_runner.custom_ops import CustomLibrary, fitting, process_of
from device_runner.device import Device, DeviceFacts
from device_runner.errors import RunnerError
from device_runner.failures import explain, failure_of
from device_runner.files import RUN_PREFIX, scratch_folder, sha256
from device_runner.perf_test import Execute, measured_with
from device_runner.probe import elf as elf_file
from device_runner.probe import protocol
from device_runner.profile import PROFILE_LIMIT_BYTES
from device_runner.result import (
    Conditions,
    Failure,
    FailureKind,
    RailReading,
    RunResult,
    status_of,
    utc_now,
    without_measurement,
)
from device_runner.spec import ElementType, RunSpec, TensorFile, tensor_bytes

Fetch = Callable[[str, Path, int], object]
"""Brings the file of that name from the run folder to a path; it has at most so many bytes."""


class FilePlacement:
    """Where the files of specs lie in the eyes of the probe; who derives it brings them there."""

    def _put(self, path: Path, suffix: str = "") -> str:
        """Bring a file of this computer there; its path in the eyes of the probe. Raises RunnerError, OSError."""
        return str(path.absolute())

    def _put_named(self, files: Sequence[str], folder: str) -> list[str]:
        """As `_put`, for files that find each other by name in one folder, such as the run's."""
        return [self._put(Path(file)) for file in files]

    def _fitting(self, spec: RunSpec, library: Path) -> tuple[CustomLibrary, ...]:
        """The spec's libraries of custom operators for a process with a libonnxruntime. Raises RunnerError."""
        given = spec.options.custom_ops
        return fitting(given, *process_of(library)) if given else ()

    def _put_model(self, model: Path, folder: str) -> str:
        """As `_put`; an ONNX file finds its weights, or a context its binary, in the folder where it lies itself."""
        status = model.stat()
        names = _names_beside(model, status.st_mtime_ns, status.st_size)
        if beside := [str(path) for name in names if (path := model.parent / name).is_file()]:
            return self._put_named((str(model), *beside), folder)[0]
        return self._put(model, model.suffix.lower())

    def placed(self, spec: RunSpec, library: Path, folder: str) -> RunSpec:
        """The same spec with the paths that files have in the eyes of the probe."""
        options, plugin, concurrent, stream = spec.options, spec.plugin, spec.concurrent, spec.stream
        if plugin:  # and provider options that name files of it
            there, *files = self._put_named((plugin.library, *plugin.files), folder)
            places = dict(zip(plugin.files, files, strict=True))
            named = {key: places.get(value, value) for key, value in options.provider_options.items()}
            plugin = replace(plugin, library=there, files=tuple(files))
            options = replace(options, provider_options=named)
        if fit := self._fitting(spec, library):
            options = replace(
                options,
                custom_ops=tuple(self._put(fitting.path, fitting.path.suffix) for fitting in fit),
            )

        def put(tensor: TensorFile) -> TensorFile:
            return replace(tensor, file=self._put(Path(tensor.file)))

        return replace(
            spec,
            plugin=plugin,
            options=options,
            library=self._put(library, ".so"),
            model=self._put_model(Path(spec.model), folder),
            inputs=tuple(map(put, spec.inputs)),
            labelled=spec.labelled and put(spec.labelled),
            concurrent=concurrent
            and replace(concurrent, beside=tuple(self._put_model(Path(model), folder) for model in concurrent.beside)),
            stream=stream and replace(stream, sequences=tuple(map(put, stream.sequences))),
            outputs_folder=None if spec.outputs_folder is None else folder,
        )


class ProbeDevice(FilePlacement, Device):
    """A device that runs the probe, with the files of this computer. Who derives it says how a process is started, and
    how files get there and back where it has others.
    """

    watch_stdin = False
    """Whether the probe ends with its standard input: then nobody is left who wants its answer."""

    put_ns = 0
    """Time that bringing files to the device, or seeing that they are there, took since it was opened."""

    def run(self, spec: RunSpec) -> RunResult:
        """Execute one spec in a fresh process; it dies with all that it started."""
        try:
            ready = self._prepare(spec)
            if isinstance(ready, Failure):
                return without_measurement(spec, self.name, ready)
            spec, library = ready
            with self._run_folder() as folder:
                started, before, put_ns = utc_now(), self._conditions_around(spec), self.put_ns
                if spec.perf_test:
                    result = measured_with(spec, self.name, partial(self._prepare_tool, spec, library, folder))
                else:
                    placed = self.placed(spec, library, folder)
                    request = protocol.encode_request(placed, watch_stdin=self.watch_stdin)
                    answer = self._ask(request, folder, spec.timeout_seconds, protocol.answer_limit(spec))
                    if isinstance(answer, Failure):
                        result = without_measurement(spec, self.name, answer)
                    else:
                        result = protocol.to_result(spec, self.name, answer)
                result = self._looked_into(keep_files(spec, result, self._fetch_from(folder, result)), before)
                return replace(
                    result,
                    started_at=started,
                    push_ns=self.put_ns - put_ns,
                    before=before,
                    after=self._conditions_around(spec),
                )
        except (RunnerError, OSError) as error:
            return without_measurement(spec, self.name, self._failed(error))

    def inspect(self, asked: Iterable[tuple[str, str, str]], limit_seconds: float) -> protocol.ProbeAnswer | Failure:
        """What NNAPI there says to these questions (probe/inspect.h), or why nothing came of it."""
        request = protocol.encode_inspection(asked, limit_seconds=limit_seconds, watch_stdin=self.watch_stdin)
        try:
            with self._run_folder() as folder:
                return self._ask(request, folder, limit_seconds, protocol.ANSWER_BYTES)
        except (RunnerError, OSError) as error:
            return self._failed(error)

    @abstractmethod
    def _prepare(self, spec: RunSpec) -> tuple[RunSpec, Path] | Failure:
        """The spec as it is executed here and the library for it on this computer, or why it is not. RunnerError."""

    @contextmanager
    def _run_folder(self) -> Iterator[str]:
        """The folder of a run where the probe sees it."""
        with scratch_folder(RUN_PREFIX) as folder:
            yield str(folder)

    @abstractmethod
    def _ask(
        self, request: bytes, folder: str, limit_seconds: float, limit_bytes: int
    ) -> protocol.ProbeAnswer | Failure:
        """The document of the probe in a process of its own. Raises RunnerError, OSError."""

    @abstractmethod
    def _prepare_tool(self, spec: RunSpec, library: Path, folder: str, program: Path, library_name: str) -> Execute:
        """Make a run folder for onnxruntime_perf_test (`perf_test.measured_with`). Raises RunnerError, OSError."""

    def _fetch_from(self, folder: str, result: RunResult) -> Fetch:
        """What brings the files of a result out of a run folder."""
        return lambda name, path, _: shutil.move(f"{folder}/{name}", path)

    @abstractmethod
    def _conditions_now(self) -> Conditions:
        """State of the device around the run."""

    def _conditions_around(self, spec: RunSpec) -> Conditions:
        """That state; with energy where a run takes so long that it shows."""
        conditions = self._conditions_now()
        return replace(conditions, rails=self._rails_now()) if spec.sustain_seconds else conditions

    def _rails_now(self) -> dict[str, RailReading]:
        """Energy by power rail; none where the device does not tell."""
        return {}

    def _looked_into(self, result: RunResult, before: Conditions) -> RunResult:
        """A result with what the device can say of a failure besides, and what a reader must know of the device."""
        return result

    def _failed(self, error: Exception) -> Failure:
        """What an error on the way makes of a run."""
        return failure_of(error)


LOCATION = b"\x0a\x08location\x12"
"""In an ONNX file, before the length and the name of a file of weights: field 1 "location", field 2 its value."""


@lru_cache(maxsize=256)
def _names_beside(model: Path, _modified_ns: int, size: int) -> list[str]:
    """The names of files in its folder that an ONNX file has, and that of a context's binary."""
    if model.suffix.lower() != ".onnx" or not size:
        return []
    names = {f"{model.stem}_qnn.bin"}  # as the QNN provider names it
    with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        at = content.find(LOCATION)
        while at >= 0:
            start = at + len(LOCATION)
            length, start = int.from_bytes(content[start : start + 1]), start + 1
            if length > 0x7F:  # seven bits and more
                length, start = length & 0x7F | int.from_bytes(content[start : start + 1]) << 7, start + 1
            names.add(content[start : start + length].decode("utf-8", "replace"))
            at = content.find(LOCATION, start)
    return sorted(name for name in names - {model.name} if re.fullmatch(r"[^/\\\0]{1,255}", name))


def missing_input(spec: RunSpec) -> Failure | None:
    """Why the spec's own files cannot be used: one that is not there, or a model with another digest."""
    tensors = (*spec.inputs, *(spec.stream.sequences if spec.stream else ()), *filter(None, (spec.labelled,)))
    beside = spec.concurrent.beside if spec.concurrent else ()
    for name in (spec.model, *beside, *(tensor.file for tensor in tensors)):
        if not Path(name).is_file():
            kind = FailureKind.MODEL_LOAD if name in (spec.model, *beside) else FailureKind.BAD_INPUT
            return Failure(code=kind, what=f"{name}: no such file", why="a file is missing", remedy="check the path")
    if spec.model_sha256 and spec.model_sha256 != sha256(Path(spec.model)):
        return Failure(
            code=FailureKind.MODEL_LOAD,
            what=f"{spec.model} has another digest than the spec says",
            why="the file was changed after the spec was written",
            remedy="write the spec again",
        )
    return None


def wrong_library(library: Path | None, facts: DeviceFacts) -> Failure | None:
    """Why a library cannot be loaded there, seen from its header: another ABI, or too small an alignment."""
    if library is None:
        return None
    try:
        elf = elf_file.read_header(library)
    except (elf_file.NotElf, OSError) as error:
        kind = FailureKind.MISSING_LIBRARY if isinstance(error, OSError) else FailureKind.WRONG_LIBRARY
        return Failure(
            code=kind, what=f"{library}: {error}", why="no library to push", remedy="check the path of the library"
        )
    if elf.abi not in facts.abis:
        return Failure(
            code=FailureKind.WRONG_LIBRARY,
            what=f"{library} is for {elf.abi}; the device runs {', '.join(facts.abis)}",
            why="the library is for another processor",
            remedy=f"give the library of {facts.abis[0]}",
        )
    if facts.page_bytes > elf.page_bytes:
        sizes = f"program alignment ({elf.page_bytes}) cannot be smaller than system page size ({facts.page_bytes})"
        return explain(Failure(code=FailureKind.WRONG_LIBRARY, what=f"{library}: {sizes}"))
    return None


def keep_files(spec: RunSpec, result: RunResult, fetch: Fetch) -> RunResult:
    """The result with its files in the spec's folder, all or none; a Failure where one is not as it should be.

    The probe's word for a file is checked: only names that runs give are fetched, and only from the run folder.
    """
    bare = replace(result, outputs=(), labelled_outputs=None, profile_file=None)
    if spec.outputs_folder is None or result.failure:
        return bare
    target = Path(spec.outputs_folder)
    target.mkdir(parents=True, exist_ok=True)
    with scratch_folder(".part-", target) as folder:

        def taken(file: str, limit_bytes: int) -> str:
            name = file.rpartition("/")[2]
            if not re.fullmatch(r"output_[0-9]{1,6}\.raw|output_labelled\.raw|profile[A-Za-z0-9_.-]{0,100}", name):
                raise RunnerError(f"the device names a file that is none of ours: {file!r}")
            fetch(name, folder / name, limit_bytes)
            return str(folder / name)

        tensors = [*result.outputs, *([result.labelled_outputs] if result.labelled_outputs else [])]
        staged = [replace(tensor, file=taken(tensor.file, tensor_bytes(tensor))) for tensor in tensors]
        for tensor in staged:
            path, strings = Path(tensor.file), tensor.dtype is ElementType.STRING
            data = path.read_bytes() if path.is_file() else None
            if data is None:
                state = "is missing"
            elif strings and (data.count(0) != math.prod(tensor.shape) or data[-1:] not in (b"", b"\0")):
                state = "has not the strings of its shape"
            elif len(data) > tensor_bytes(tensor) or (len(data) < tensor_bytes(tensor) and not strings):
                state = f"has {len(data)} bytes, its shape wants {tensor_bytes(tensor)}"
            elif tensor.crc32 is not None and zlib.crc32(data) != tensor.crc32:
                state = "is not what the probe wrote: its checksum differs"
            else:
                continue
            failure = Failure(
                code=FailureKind.GARBAGE,
                what=f"output {tensor.name}: the file {state}",
                why="the device did not hand over what the run wrote",
                remedy="run it once more",
            )
            return replace(bare, status=status_of(failure), failure=failure)
        profile = taken(result.profile_file, PROFILE_LIMIT_BYTES) if result.profile_file and spec.profile else None
        for path in folder.iterdir():
            path.replace(target / path.name)
    kept = tuple(replace(tensor, file=str(target / Path(tensor.file).name)) for tensor in staged)
    outputs = kept[: len(result.outputs)]
    labelled = kept[-1] if result.labelled_outputs else None
    profile_file = profile and str(target / Path(profile).name)
    return replace(result, outputs=outputs, labelled_outputs=labelled, profile_file=profile_file)
