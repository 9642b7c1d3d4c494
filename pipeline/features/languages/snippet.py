"""Code that opens the models of a bundle with the session options that they were released with, by kind of app.

For apps that do not take a package. What a package cannot set is listed beside the code. Names are those of the
packages' published interfaces: docs/facts/release_consumers.md, R.10.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from device_runner.providers import CPU, NNAPI, provider_named
from device_runner.spec import ElementType, OptimizationLevel, RunOptions
from pipeline.campaign.run_options import options_name
from pipeline.core.errors import ConfigError
from pipeline.core.releases import line_of
from pipeline.release.app_code import (
    BUFFERS,
    CPP,
    CPP_LEVELS,
    KOTLIN,
    SessionCalls,
    class_name,
    contexts_of,
    cpp_calls,
    cpp_helpers,
    has_java_call,
    kotlin_calls,
    lacks,
    rows_of,
    session_calls,
)
from pipeline.release.chip_contexts import gradle_notations
from pipeline.release.manifest import Content, ModelSignature, SelectionRow, ShippedContext
from pipeline.release.sizes import sized_inputs
from pipeline.release.source_code import (
    Code,
    codes,
    comment,
    csharp_text,
    dart_text,
    identifier,
    javascript_text,
    joined,
    python_text,
    render_source,
    word,
)

COREML_FLAGS: dict[tuple[str, str], int] = {
    ("MLComputeUnits", "ALL"): 0,
    ("MLComputeUnits", "CPUOnly"): 0x001,
    ("MLComputeUnits", "CPUAndGPU"): 0x020,
    ("EnableOnSubgraphs", "0"): 0,
    ("EnableOnSubgraphs", "1"): 0x002,
    ("RequireStaticInputShapes", "0"): 0,
    ("RequireStaticInputShapes", "1"): 0x008,
    ("ModelFormat", "NeuralNetwork"): 0,
    ("ModelFormat", "MLProgram"): 0x010,
}
"""Options of CoreML that its older flags have too (coreml_provider_factory.h)."""

DART_PROVIDERS = {CPU: "CPU", NNAPI: "NNAPI", "coreml": "CORE_ML", "xnnpack": "XNNPACK", "qnn": "QNN"}
"""The providers of Flutter's, React Native's and .NET's packages, as Dart names them."""
CPP_TYPES: dict[ElementType, Code] = {
    ElementType.FLOAT32: Code("float"), ElementType.FLOAT64: Code("double"), ElementType.BOOL: Code("char"),
    ElementType.FLOAT16: Code("Ort::Float16_t"), ElementType.BFLOAT16: Code("Ort::BFloat16_t"),
    **{
        kind: Code("std::{}_t").format(identifier(kind.value))
        for kind in ElementType if kind.value.lstrip("u").startswith("int")
    },
}  # fmt: skip
"""Element types in C++; a vector of bool has no array of them."""
REACT_NATIVE_FLAGS = {
    "USE_FP16": "useFP16",
    "USE_NCHW": "useNCHW",
    "CPU_DISABLED": "cpuDisabled",
    "CPU_ONLY": "cpuOnly",
}
REACT_NATIVE_LEVELS = {
    OptimizationLevel.NONE: "disabled",
    OptimizationLevel.BASIC: "basic",
    OptimizationLevel.EXTENDED: "extended",
    OptimizationLevel.ALL: "all",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """A file of a model and how it is opened: `where` says which devices have it, `ways` are tried in their order.

    `contexts` come before them: what was compiled for NPUs. `weights` is the file beside it with its sha256.
    `folder` is where the bundle's files are among an app's assets.
    """

    folder: str
    model: str
    file: str
    sha256: str
    where: str
    ways: tuple[RunOptions, ...]
    contexts: Sequence[Mapping[str, Any]]
    weights: tuple[str, ...] = ()

    @property
    def function(self) -> str:
        """Its function in languages of small letters."""
        return "_".join(["open", *re.findall(r"[a-z0-9]+", self.model.lower())])

    @property
    def assets(self) -> list[str]:
        """Where the file, and that of its weights, are among an app's assets."""
        return [f"{self.folder}/models/{file}" for file in (self.file, *self.weights[:1])]

    @property
    def type_name(self) -> str:
        """The model as part of a name in other languages."""
        return class_name(self.model, ())


def open_code(language: str, opening: Opening, calls: Callable[[RunOptions], Iterable[Code]]) -> Code:
    """The lines that open one file in a language; `calls` are those that set a way's options.

    Raises ConfigError for a file of which the package has a call for no way's provider.
    """
    kind = LANGUAGES[language]
    ways = [(options_name(options), list(calls(options))) for options in opening.ways if kind.has(options.provider)]
    if not ways:
        raise ConfigError(
            f"{kind.title} has no call for the provider {opening.ways[0].provider}",
            where="the bundle's manifest",
            remedy="leave the provider out of [[runs]], and make the bundle again",
        )
    return render_source("pipeline.features.languages", f"{language}.jinja", opening=opening, ways=ways)


def python(options: RunOptions) -> Iterator[Code]:
    """Python by the package onnxruntime; options of a provider that its build does not have are passed over."""
    yield from session_calls(PYTHON, options)
    provider = provider_named(options.provider)
    if provider.name == CPU:
        yield Code("return []")
        return
    given = sorted(options.provider_options.items())
    pairs = joined(Code("{}: {}").format(python_text(key), python_text(value)) for key, value in given)
    yield Code("return [({}, {{{}}})]").format(python_text(provider.ort_name or provider.name), pairs)


def react_native(options: RunOptions) -> Iterator[Code]:
    """TypeScript by onnxruntime-react-native."""
    provider = provider_named(options.provider)
    if provider.name != CPU:  # naming the CPU would switch its arena off
        settings = [Code("name: {}").format(javascript_text(provider.name))]
        settings += [Code("{}: true").format(identifier(REACT_NATIVE_FLAGS[flag.value])) for flag in options.flags]
        settings += [Code("coreMlFlags: {}").format(_coreml_flags(options))] if provider.name == "coreml" else []
        yield Code("executionProviders: [{{{}}}]").format(joined(settings))
    yield from session_calls(REACT_NATIVE, options)


def _coreml_flags(options: RunOptions) -> int:
    return sum(COREML_FLAGS.get(pair, 0) for pair in options.provider_options.items())


def flutter(options: RunOptions) -> list[Code]:
    """Dart by flutter_onnxruntime."""
    fields = list(session_calls(FLUTTER, options))
    provider = Code("providers: [OrtProvider.{}]").format(identifier(DART_PROVIDERS[options.provider]))
    fields.insert(len(fields) - (not options.cpu_arena), provider)
    return fields


def maui(options: RunOptions) -> Iterator[Code]:
    """C# by Microsoft.ML.OnnxRuntime."""
    yield from session_calls(MAUI, options)
    provider = provider_named(options.provider)
    if provider.has_flags:
        flags = [Code("NnapiFlags.NNAPI_FLAG_{}").format(identifier(flag.value)) for flag in options.flags]
        yield Code("options.AppendExecutionProvider_Nnapi({});").format(joined(flags, " | "))
    elif provider.name == "coreml":
        yield Code("options.AppendExecutionProvider_CoreML((CoreMLFlags){});").format(_coreml_flags(options))
    elif provider.name != CPU:
        given = sorted(options.provider_options.items())
        pairs = joined(Code("[{}] = {}").format(csharp_text(key), csharp_text(value)) for key, value in given)
        call = Code("options.AppendExecutionProvider({}, new Dictionary<string, string> {{ {} }});")
        yield call.format(csharp_text(provider.append_name), pairs)


PYTHON = SessionCalls(
    levels=CPP_LEVELS,
    settings=codes(
        level="options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.{}",
        intra="options.intra_op_num_threads = {}",
        inter="options.inter_op_num_threads = {}",
        parallel="options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL",
        pattern="options.enable_mem_pattern = False",
        arena="options.enable_cpu_mem_arena = False",
        entry="options.add_session_config_entry({}, {})",
        bind="# Measured so: bind inputs and outputs in GPU memory (io_binding), and run with these.",
        allocator="# Start the process with LD_PRELOAD=lib{}.so: no API replaces the allocator.",
        custom_ops="options.register_custom_ops_library({})",
    ),
    text=python_text,
)
REACT_NATIVE = SessionCalls(
    levels=REACT_NATIVE_LEVELS,
    settings=codes(
        level='graphOptimizationLevel: "{}"',
        intra="intraOpNumThreads: {}",
        inter="interOpNumThreads: {}",
        parallel="executionMode: 'parallel'",
        pattern="enableMemPattern: false",
        arena="enableCpuMemArena: false",
    ),
    text=javascript_text,
)
FLUTTER = SessionCalls(
    levels={},
    settings=codes(intra="intraOpNumThreads: {}", inter="interOpNumThreads: {}", arena="useArena: false"),
    text=dart_text,
)
MAUI = SessionCalls(
    levels=CPP_LEVELS,
    settings=codes(
        level="options.GraphOptimizationLevel = GraphOptimizationLevel.{};",
        intra="options.IntraOpNumThreads = {};",
        inter="options.InterOpNumThreads = {};",
        parallel="options.ExecutionMode = ExecutionMode.ORT_PARALLEL;",
        pattern="options.EnableMemoryPattern = false;",
        arena="options.EnableCpuMemArena = false;",
        entry="options.AddSessionConfigEntry({}, {});",
        custom_ops="options.RegisterCustomOpLibrary({});",
    ),
    text=csharp_text,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """How code for one kind of app is written, which providers its package has, and what of their options it lacks.

    `blank` is a comment's start; `head` comes once, `write` gives the calls that set a way's options. `support` is a
    template that comes once, too, with what opens `contexts`, where it does, and picks sizes; a language without one
    does neither. `has` says of a provider whether the package can append it. `brings` says by platform which ONNX
    Runtime the package brings itself, and `pins` its release where that is one; of other platforms it is not known.
    """

    title: str
    blank: Code
    head: Code
    write: Callable[[RunOptions], Iterable[Code]]
    calls: SessionCalls
    lacks: frozenset[str]
    platforms: tuple[str, ...] = ("android", "ios", "linux", "macos")
    support: str = ""
    contexts: bool = False
    has: Callable[[str], bool] = lambda _provider: True
    brings: Mapping[str, str] = field(default_factory=dict)
    pins: Mapping[str, str] = field(default_factory=dict)

    def remark(self, text: str) -> Code:
        """A comment on a line of its own."""
        return Code("{} {}").format(self.blank, comment(text))


def openings(content: Content, target: str, model: str | None) -> list[Opening]:
    """What a target's devices open, of one model or all, the file for devices in general first.

    Raises ConfigError for a model that does not ship there, and two whose functions would have one name.
    """
    tables = rows_of(content, target)
    if model is not None and model not in tables:
        raise ConfigError(
            f"the model {model!r} does not ship to {target}",
            where="--model",
            remedy=f"name one that does: {', '.join(tables)}",
        )
    digests = {file.path: file.sha256 for file in content.files}
    folder = asset_folder(content.name)
    opened: list[Opening] = []
    for name, rows in tables.items():
        if model in (None, name):
            for place, number in enumerate(dict.fromkeys(row.ships for row in (rows[-1], *rows)), 1):
                shipped = content.ships[number]
                classes = [_class(row) for row in rows if row.ships == number] if len(rows) > 1 else []
                weights = shipped.weights
                opened.append(
                    Opening(
                        folder=folder,
                        model=f"{name} {place}" if place > 1 else name,
                        file=shipped.file.rpartition("/")[2],
                        sha256=digests[shipped.file],
                        weights=(weights.rpartition("/")[2], digests[weights]) if weights else (),
                        where="; ".join(classes) or "every device",
                        ways=shipped.runs,
                        contexts=contexts_of(content, target, name, f"{folder}/{{}}".format),
                    )
                )
    seen: dict[str, str] = {}
    for opening in opened:
        other = seen.setdefault(opening.function, opening.model)
        if other != opening.model:
            raise ConfigError(
                f"the models {other} and {opening.model} would both be opened by {opening.function}",
                where="[[models]] name",
                remedy="ask for one with --model, or rename one of them in the config and make the bundle again",
            )
    return opened


def asset_folder(bundle: str) -> str:
    """The folder of a bundle's files among an app's assets, which may have files of one name from several bundles."""
    plain = re.sub(r"[^a-z0-9]+", "-", bundle.lower()).strip("-")
    return plain if plain not in ("", "cvs") else f"bundle-{plain}".strip("-")  # Android leaves a folder CVS out


def _class(row: SelectionRow) -> str:
    parts = [f"chip {row.soc}"] if row.soc else []
    parts += [f"ABI {row.abi}"] if row.abi else []
    parts += [f"API level {row.min_api_level} or higher"] if row.min_api_level else []
    return ", ".join(parts) or "all other devices"


def snippet(
    language: str,
    opened: Sequence[Opening],
    contexts: Sequence[ShippedContext],
    sizes: Sequence[Sequence[ModelSignature]] = (),
    notes: Iterable[str] = (),
) -> Code:
    """The code for a language of `LANGUAGES`; what its package cannot set, and `notes`, stand in comments.

    `contexts` are those of the target, `sizes` those of its models that come in several.
    """
    kind = LANGUAGES[language]
    ways = [way for opening in opened for way in opening.ways]
    inputs = {rows[-1].model: list(sized_inputs(rows, frozenset())) for rows in sizes}
    lines = [kind.head] if kind.head else []
    lines += [kind.remark(text) for text in notes] + (cpp_helpers(ways) if kind.calls is CPP else [])
    if kind.support:
        plugin, runtime = gradle_notations(contexts) if contexts else ("", "")
        filled = [row for rows in inputs.values() for row in rows if row.filled]
        values = {
            "contexts": bool(contexts), "plugin": plugin, "runtime": runtime, "sizes": bool(sizes),
            "buffers": sorted({BUFFERS[row.dtype][0] for row in filled if row.dtype in BUFFERS}),
            "weights": any(row.weights for row in opened),
        }  # fmt: skip
        support = render_source("pipeline.features.languages", kind.support, **values).stripped()
        lines += [support] if support else []
    for opening in opened:
        lines += [Code(""), kind.remark(f"{opening.file}, sha256 {opening.sha256}")]
        if opening.weights:
            lines.append(kind.remark("in one folder with its weights, {}, sha256 {}".format(*opening.weights)))
        lines.append(kind.remark(f"for {opening.where}"))
        picked = [rows for rows in sizes if opening.model == rows[-1].model]
        lines += [kind.remark(text) for text in lost(language, [opening], picked)]
        lines.append(open_code(language, opening, kind.write).stripped())
    by_model = {opening.model: opening for opening in opened}
    values = {"buffers": BUFFERS, "types": CPP_TYPES}
    for rows in sizes if kind.support else ():
        title = rows[-1].model
        text = render_source(
            "pipeline.features.languages", f"{language}-sizes.jinja", model=title,
            openings=[by_model[row.model] for row in rows], inputs=inputs[title], **values,
        )  # fmt: skip
        lines.append(text.stripped())
    return Code("{}\n").format(Code("\n").join(lines))


def lost(language: str, opened: Sequence[Opening], sizes: Sequence[Sequence[ModelSignature]] = ()) -> list[str]:
    """For each way of a model that a package cannot run as it was measured: what it leaves out."""
    kind = LANGUAGES[language]
    texts = [
        f"{word(rows[-1].model)}: without the choice of the size that inputs fit into, which C++ and Kotlin "
        "(--for cpp, kotlin), and the classes of `release android` and `release apple` have"
        for rows in sizes
        if not kind.support
    ]
    for opening in opened:
        if opening.contexts and not kind.contexts:
            chips = ", ".join(row["chip"] for row in opening.contexts)
            texts.append(
                f"{opening.model}: without what was compiled for the NPU of {chips}, which Kotlin (--for kotlin) and "
                "the classes of `release android` open"
            )
        for options in opening.ways:
            way, missing = options_name(options), [*lacks(kind.calls, options), *_provider_lacks(kind, options)]
            if not kind.has(options.provider):
                texts.append(
                    f"{opening.model}: without {way}, as {kind.title} has no call for the provider {options.provider}"
                )
            elif missing:
                texts.append(f"{opening.model}: {way} without {', '.join(missing)}, which {kind.title} cannot set")
    return texts


def other_release(language: str, tested: str, platform: str) -> list[str]:
    """What a package brings in place of the release that was tested; nothing where it brings none of its own."""
    kind, release = LANGUAGES[language], line_of(tested) if tested else None
    pinned = kind.pins.get(platform)
    if not kind.brings or (pinned and release == line_of(pinned)):
        return []
    tested = f"ONNX Runtime {tested}" if tested else "the release of this bundle"
    if brings := kind.brings.get(platform):
        return [f"{brings}, not {tested}, which was tested: build the app with that one, or release for what it brings"]
    unknown = f"which ONNX Runtime {kind.title} brings on {platform} is not known here, and {tested} was tested"
    return [f"{unknown}: look it up in the lock file of the app's pods or packages, and release for that one"]


def _provider_lacks(language: Language, options: RunOptions) -> list[str]:
    """What of a provider's options the package cannot set, as people call it."""
    coreml = provider_named(options.provider).name == "coreml" and bool(options.provider_options)
    needs = {
        "flags of NNAPI": ("flags", bool(options.flags)),
        "options of the provider": ("options", bool(options.provider_options) and not coreml),
        "options of CoreML": ("coreml flags", coreml),
        "some options of CoreML": (
            "coreml options", coreml and not options.provider_options.items() <= COREML_FLAGS.keys()
        ),
    }  # fmt: skip
    return [name for name, (ability, is_needed) in needs.items() if is_needed and ability in language.lacks]


LANGUAGES: dict[str, Language] = {
    "kotlin": Language(
        title="onnxruntime-android", blank=Code("//"), write=kotlin_calls, calls=KOTLIN, platforms=("android",),
        head=Code(""), lacks=frozenset(), support="kotlin-head.jinja", contexts=True, has=has_java_call,
    ),
    "react-native": Language(
        title="onnxruntime-react-native", blank=Code("//"), write=react_native, calls=REACT_NATIVE,
        platforms=("android", "ios"),
        head=Code("import { InferenceSession } from 'onnxruntime-react-native';"),
        brings={
            "android": "onnxruntime-react-native 1.24.3 takes the newest ONNX Runtime when the app is built "
            "(latest.integration)",
            "ios": "onnxruntime-react-native takes the newest ONNX Runtime when its pods are installed (onnxruntime-c, "
            "without a release)",
        },
        lacks=frozenset({"options", "coreml options"}), has=DART_PROVIDERS.__contains__,
    ),
    "flutter": Language(
        title="flutter_onnxruntime", blank=Code("//"), write=flutter, calls=FLUTTER, platforms=("android", "ios"),
        head=Code("import 'package:flutter_onnxruntime/flutter_onnxruntime.dart';"),
        brings={"android": "flutter_onnxruntime 1.8.3 brings ONNX Runtime 1.25.0"}, pins={"android": "1.25.0"},
        lacks=frozenset({"flags", "options", "coreml flags"}), has=DART_PROVIDERS.__contains__,
    ),
    "maui": Language(
        title="Microsoft.ML.OnnxRuntime", blank=Code("//"), write=maui, calls=MAUI,
        platforms=("android", "ios", "macos"),
        head=Code(
            "using Microsoft.ML.OnnxRuntime;\n"
            "using System;\n"
            "using System.Collections.Generic;\n"
            "using System.IO;\n"
            "using System.Threading.Tasks;\n"
            "using Microsoft.Maui.Storage;"
        ),
        lacks=frozenset({"coreml options"}), has=DART_PROVIDERS.__contains__,
    ),
    "cpp": Language(
        title="C++", blank=Code("//"), write=cpp_calls, calls=CPP, lacks=frozenset(), support="cpp-head.jinja",
        head=Code(
            "#include <onnxruntime_cxx_api.h>\n"
            "#ifdef __ANDROID__\n"
            "#include <nnapi_provider_factory.h>\n"
            "#endif\n"
            "#include <cstddef>\n"
            "#include <functional>\n"
            "#include <vector>"
        ),
    ),
    "python": Language(
        title="Python", blank=Code("#"), write=python, calls=PYTHON, head=Code("import onnxruntime"),
        lacks=frozenset({"flags"}),
    ),
}  # fmt: skip
"""By the word after --for."""
