"""Code that opens the models of a bundle with the session options that they were released with, by kind of app.

For apps that do not take a package. What a package cannot set is listed beside the code.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from device_runner.providers import provider_named
from device_runner.spec import ExecutionMode, OptimizationLevel, RunOptions
from pipeline.campaign.options import options_name
from pipeline.core.errors import ConfigError
from pipeline.release.bundle import ways_of
from pipeline.release.manifest import Content, SelectionRow, Shipped
from pipeline.release.selection import rows_of
from pipeline.release.snippet_code import COREML_FLAGS, Opening, cpp, flutter, maui, python, react_native, remark


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """How code for one kind of app is written, and which settings its package cannot make.

    `blank` is a comment's start; `head` comes once, `write` gives the lines that open one file.
    """

    title: str
    blank: str
    head: tuple[str, ...]
    write: Callable[[Opening], Iterator[str]]
    lacks: frozenset[str]
    platforms: tuple[str, ...] = ("android", "ios", "linux", "macos")


def openings(content: Content, target: str, model: str | None) -> list[Opening]:
    """What a target's devices open, of one model or all, the file for devices in general first.

    Raises ConfigError for a model that does not ship there, and two whose functions would have one name.
    """
    found = rows_of(content, target)
    if model is not None and model not in found:
        raise ConfigError(
            f"the model {model!r} does not ship to {target}",
            where="--model",
            remedy=f"name one that does: {', '.join(found)}",
        )
    digests = {file.path: file.sha256 for file in content.files}
    opened: list[Opening] = []
    for name, rows in found.items():
        if model in (None, name):
            for place, number in enumerate(dict.fromkeys(row.ships for row in (rows[-1], *rows)), 1):
                one = content.ships[number]
                own = [row for row in rows if row.ships == number] if len(rows) > 1 else []
                opened.append(_opening(one, own, f"{name} {place}" if place > 1 else name, digests[one.file]))
    _refuse_equal(opened)
    return opened


def _opening(one: Shipped, rows: Sequence[SelectionRow], name: str, sha256: str) -> Opening:
    return Opening(
        model=name,
        file=one.file.rpartition("/")[2],
        sha256=sha256,
        where="; ".join(_class(row) for row in rows) or "every device",
        ways=ways_of(one),
    )


def _class(row: SelectionRow) -> str:
    parts = [f"chip {row.soc}"] if row.soc else []
    parts += [f"ABI {row.abi}"] if row.abi else []
    parts += [f"API level {row.min_api_level} or higher"] if row.min_api_level else []
    return ", ".join(parts) or "all other devices"


def _refuse_equal(opened: Sequence[Opening]) -> None:
    seen: dict[str, str] = {}
    for one in opened:
        other = seen.setdefault(one.function, one.model)
        if other != one.model:
            raise ConfigError(
                f"the models {other} and {one.model} would both be opened by {one.function}",
                where="[[models]] name",
                remedy="ask for one with --model, or rename one of them in the config and make the bundle again",
            )


def snippet(language: str, opened: Sequence[Opening]) -> str:
    """The code for a language of `LANGUAGES`; what its package cannot set stands in comments."""
    one = LANGUAGES[language]
    lines = [*one.head]
    for opening in opened:
        lines += ["", f"{one.blank} {remark(opening.file)}, sha256 {opening.sha256}"]
        lines += [f"{one.blank} for {remark(opening.where)}"]
        lines += [f"{one.blank} {remark(text)}" for text in lost(language, [opening])]
        lines += one.write(opening)
    return "\n".join(lines) + "\n"


def lost(language: str, opened: Sequence[Opening]) -> list[str]:
    """For each way of a model that a package cannot run as it was measured: what it leaves out."""
    found = []
    for opening in opened:
        for options in opening.ways:
            missing = [name for name, wanted in _settings(options).items() if wanted & LANGUAGES[language].lacks]
            if missing:
                found.append(
                    f"{opening.model}: {options_name(options)} without {', '.join(missing)}, "
                    f"which {LANGUAGES[language].title} cannot set"
                )
    return found


def _settings(options: RunOptions) -> dict[str, frozenset[str]]:
    """What differs from the defaults, as people call it, and the abilities that it needs."""
    provider = provider_named(options.provider)
    coreml = provider.name == "coreml" and bool(options.provider_options)
    unknown = coreml and not options.provider_options.items() <= COREML_FLAGS.keys()
    needs = {
        "session config entries": ("entries", bool(options.session_config)),
        "the optimization level": ("level", options.optimization_level is not OptimizationLevel.ALL),
        "the optimization level layout": ("layout", options.optimization_level is OptimizationLevel.LAYOUT),
        "inter-op threads": ("inter", bool(options.inter_op_threads)),
        "parallel execution": ("parallel", options.execution_mode is ExecutionMode.PARALLEL),
        "memory pattern": ("pattern", not options.memory_pattern),
        "flags of NNAPI": ("flags", bool(options.flags)),
        "options of the provider": ("options", bool(options.provider_options) and not coreml),
        "options of CoreML": ("coreml flags", coreml),
        "some options of CoreML": ("coreml options", unknown),
    }
    return {name: frozenset({ability} if wanted else ()) for name, (ability, wanted) in needs.items()}


LANGUAGES: dict[str, Language] = {
    "react-native": Language(
        title="onnxruntime-react-native", blank="//", write=react_native, platforms=("android", "ios"),
        head=("import { InferenceSession } from 'onnxruntime-react-native';",),
        lacks=frozenset({"entries", "layout", "options", "coreml options"}),
    ),
    "flutter": Language(
        title="flutter_onnxruntime", blank="//", write=flutter, platforms=("android", "ios"),
        head=("import 'package:flutter_onnxruntime/flutter_onnxruntime.dart';",),
        lacks=frozenset({"entries", "level", "parallel", "pattern", "flags", "options", "coreml flags"}),
    ),
    "maui": Language(
        title="Microsoft.ML.OnnxRuntime", blank="//", write=maui, platforms=("android", "ios", "macos"),
        head=(
            "using Microsoft.ML.OnnxRuntime;", "using System;", "using System.Collections.Generic;", "using System.IO;",
            "using System.Threading.Tasks;", "using Microsoft.Maui.Storage;",
        ),
        lacks=frozenset({"coreml options"}),
    ),
    "cpp": Language(
        title="C++", blank="//", write=cpp, lacks=frozenset(),
        head=(
            "#include <onnxruntime_cxx_api.h>", "#ifdef __ANDROID__", "#include <nnapi_provider_factory.h>", "#endif",
            "#include <cstddef>", "#include <functional>", "#include <vector>",
        ),
    ),
    "python": Language(title="Python", blank="#", write=python, head=("import onnxruntime",), lacks=frozenset()),
}  # fmt: skip
"""By the word after --for."""
