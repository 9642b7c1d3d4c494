"""The file format of required operators, and the needs of artifacts where they lie.

# comment
!globally_allowed_types;float,int64_t
!no_ops_specified_means_all_ops_are_required
ai.onnx;13,14;Add,Cast{"inputs": {"0": ["float"]}, "outputs": {"0": ["int64_t"]}}
"""

import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import msgspec

from device_runner.reading import read_regular
from pipeline.core.errors import ConfigError, ModelError
from pipeline.model.ort_format import OrtModel, read_ort
from pipeline.model.sources import SourceModel, Spool, find_models
from pipeline.required_ops.line import ALL_REQUIRED, GLOBAL_TYPES, parse_line
from pipeline.required_ops.needs import Needs, needs_of, replays
from pipeline.required_ops.value import CUSTOM, TRIPLE, OperatorKey, OpTypes, RequiredOps, union_of

CONFIG_BYTES = 64 << 20
"""Most that is read of an operator config; one with every operator and type has a tenth of a megabyte."""
HEADER = "# Operators that this build must contain, a line for each domain and opset: domain;opset;operators\n"


def render(required: RequiredOps) -> str:
    """The canonical text: sorted, one line a domain and opset, nothing in it that changes between machines or runs."""
    lines = [HEADER]
    if required.global_types is not None:
        lines.append(f"{GLOBAL_TYPES}{','.join(sorted(required.global_types))}\n")
    if required.everything:
        lines.append(f"{ALL_REQUIRED}\n")
    lines += [f"{line}\n" for line in operator_lines(required)]
    return "".join(lines)


def operator_lines(required: RequiredOps) -> Iterator[str]:
    """The lines of operators without line ends."""
    for (domain, opset), ops in sorted(required.operators.items()):
        entries = [op + render_types(required.types.get((domain, op))) for op in sorted(ops)]
        yield f"{domain};{opset};{','.join(entries)}"


def render_types(types: OpTypes | None) -> str:
    """The JSON behind an operator's name; empty when nothing is restricted."""
    if types is None:
        return ""
    if TRIPLE in types:
        return json.dumps({CUSTOM: [triple.split(",") for triple in sorted(types[TRIPLE])]})
    kinds: dict[str, dict[str, list[str]]] = {}
    for (kind, index), names in sorted(types.items()):
        kinds.setdefault(kind, {})[str(index)] = sorted(names)
    return json.dumps(kinds)


def parse(text: str, source: str) -> RequiredOps:
    """What a build made with this text contains. Raises ConfigError with file, line and column.

    ONNX Runtime lets the last line win where two lines restrict an operator to different types, which takes kernels
    away from a model: such a text is refused (`ort-mobile op-config merge` repairs it).
    """
    lines = _lines(text, source)
    _refuse_conflicts(source, lines)
    directives = [number for number, value in lines if value.global_types is not None]
    if len(directives) > 1:
        raise ConfigError("globally allowed types a second time", where=f"{source}:{directives[1]}:1",
                          why=f"line {directives[0]} has them already", remedy="keep one line with all")  # fmt: skip
    if directives and (typed := [number for number, value in lines if value.types]):
        raise ConfigError("globally allowed types beside types per operator", where=f"{source}:{typed[0]}:1",
                          why=f"line {directives[0]} allows types globally; ONNX Runtime refuses both together",
                          remedy="keep one of them")  # fmt: skip
    return _joined(value for _, value in lines)


def parse_merged(text: str, source: str) -> RequiredOps:
    """The union of the lines: what someone meant who put configs one behind the other. Raises ConfigError."""
    return _joined(value for _, value in _lines(text, source))


def read_config(path: Path, *, merged: bool = False) -> RequiredOps:
    """`parse` (or `parse_merged`) a file. Raises ConfigError when it cannot be read or is wrong."""
    try:
        text = read_regular(path, CONFIG_BYTES).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except OSError as error:
        raise ConfigError("cannot read the operator config", where=str(path), why=error.strerror or str(error),
                          remedy="check the path") from error  # fmt: skip
    except UnicodeDecodeError as error:
        raise ConfigError("the operator config is not text", where=str(path), why=str(error),
                          remedy="make it with `ort-mobile op-config create`") from error  # fmt: skip
    return (parse_merged if merged else parse)(text, str(path))


def _lines(text: str, source: str) -> list[tuple[int, RequiredOps]]:
    """Line numbers and values of the lines that say something."""
    values = [(number, parse_line(source, number, line)) for number, line in enumerate(text.split("\n"), 1)]
    return [(number, value) for number, value in values if value is not None]


def _joined(values: Iterable[RequiredOps]) -> RequiredOps:
    """Directives hold for the whole file, wherever they stand; types are dropped where the two kinds meet."""
    values = list(values)
    listed = [value for value in values if value.operators]
    allowed = [value.global_types for value in values if value.global_types is not None]
    required = union_of(listed)
    if allowed:
        both_kinds = bool(required.types)
        required = (
            required.without_types() if both_kinds else replace(required, global_types=allowed[0].union(*allowed))
        )
    return required if listed else replace(required, everything=any(value.everything for value in values))


def _refuse_conflicts(source: str, lines: list[tuple[int, RequiredOps]]) -> None:
    seen: dict[OperatorKey, tuple[OpTypes | None, int]] = {}
    for number, value in lines:
        for key in sorted(value.operator_keys()):
            types, before = seen.setdefault(key, (value.types.get(key), number))
            if types != value.types.get(key):
                _refuse_conflict(source, number, before, key)


def _refuse_conflict(source: str, number: int, before: int, key: OperatorKey) -> NoReturn:
    raise ConfigError(
        f"other types for {key[1]} of {key[0]}", where=f"{source}:{number}:1",
        why=f"line {before} says otherwise, and ONNX Runtime would keep the types of the last line only",
        remedy="merge them with `ort-mobile op-config merge`",
    )  # fmt: skip


SUFFIXES = (".ort",)


class ArtifactNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """What one artifact needs; `name` as in find_models."""

    name: str
    needs: Needs


def needs_of_artifacts(
    paths: Iterable[str | Path], *, providers: Sequence[str] = (), extended: bool = False
) -> tuple[list[ArtifactNeeds], list[ModelError]]:
    """The needs of all artifacts under paths that one build is to run, and the errors of those that cannot be read.

    One artifact with saved optimizations makes the build an extended one, and so for all. Raises ConfigError for
    paths without artifacts.
    """
    read: list[_Read] = []
    errors: list[ModelError] = []
    for source in find_models(paths, SUFFIXES):
        try:
            read.append(_needs_either_way(source, providers))
        except ModelError as error:
            errors.append(ModelError(error.what, where=source.name, why=error.why, remedy=error.remedy))
    extended = extended or bool(providers) or any(artifact.replays for artifact in read)
    found = [
        ArtifactNeeds(name=artifact.name, needs=artifact.extended if extended else artifact.plain) for artifact in read
    ]
    return found, errors


class _Read(msgspec.Struct, frozen=True, kw_only=True):
    """The needs in both kinds of build, because the last artifact may decide which kind it is."""

    name: str
    replays: bool
    plain: Needs
    extended: Needs


def _needs_either_way(source: SourceModel, providers: Sequence[str]) -> _Read:
    model = _read(source)
    return _Read(
        name=source.name,
        replays=replays(model),
        plain=needs_of(model, providers=providers),
        extended=needs_of(model, providers=providers, extended=True),
    )


def _read(source: SourceModel) -> OrtModel:
    """Read a file, or a member of an archive by way of a temporary file (so that weights never fill the memory)."""
    if not source.member:
        return read_ort(Path(source.path))
    with tempfile.TemporaryDirectory(prefix="ort-mobile-") as folder:
        return read_ort(Spool(source, Path(folder)).fetch_model())
