"""Code that opens the models of a bundle with the session options that they were released with, by kind of app.

For apps that do not take a package. What a package cannot set is listed beside the code. Names are those of the
packages' published interfaces: docs/facts/release_consumers.md, R.10.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from device_runner import providers as runner_providers
from device_runner.spec import OptimizationLevel, RunOptions
from pipeline.campaign import run_options
from pipeline.core import releases as ort_releases
from pipeline.core.errors import ConfigError
from pipeline.features.languages import cpp_classes
from pipeline.features.languages import guarded as guarding
from pipeline.release import app_code, chip_contexts, code_names, guards, selection, source_code
from pipeline.release import manifest as bundle_manifest
from pipeline.release import sizes as release_sizes

DART_PROVIDERS = {
    runner_providers.CPU: "CPU",
    runner_providers.NNAPI: "NNAPI",
    "coreml": "CORE_ML",
    "xnnpack": "XNNPACK",
    "qnn": "QNN",
}
"""The providers of Flutter's, React Native's and .NET's packages, as Dart names them."""
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

    `contexts` come before them: what was compiled for NPUs. `weights` is the file beside it with its sha256. `title` is
    the model's in the bundle, `model` has the file's number behind it where there are several.
    `folder` is where the bundle's files are among an app's assets.
    """

    folder: str
    title: str
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
    def digests(self) -> str:
        """The digests of its files, a line each."""
        return "\n".join((self.sha256, *self.weights[1:]))

    @property
    def type_name(self) -> str:
        """The model as part of a name in other languages."""
        return code_names.class_name(self.model, ())

    @property
    def name(self) -> str:
        """What the guard of C++ calls the model: the classes of one model share a sample."""
        return code_names.class_name(self.title, ())


def open_code(
    language: str, opening: Opening, calls: Callable[[RunOptions], Iterable[source_code.Code]]
) -> source_code.Code:
    """The lines that open one file in a language; `calls` are those that set a way's options.

    Raises ConfigError for a file of which the package has a call for no way's provider.
    """
    kind = LANGUAGES[language]
    ways = [
        (run_options.options_name(options), list(calls(options)))
        for options in opening.ways
        if kind.has(options.provider)
    ]
    if not ways:
        raise ConfigError(
            f"{kind.title} has no call for the provider {opening.ways[0].provider}",
            where="the bundle's manifest",
            remedy="leave the provider out of [[runs]], and make the bundle again",
        )
    return source_code.render_source("pipeline.features.languages", f"{language}.jinja", opening=opening, ways=ways)


def guarded_code(language: str, opening: Opening, guard: guarding.Guarded) -> source_code.Code:
    """The lines that open one file behind a guard."""
    kind = LANGUAGES[language]
    ways = [
        {"name": run_options.options_name(options), "safe": options.on_cpu, "calls": list(kind.write(options))}
        for options in opening.ways
    ]
    template = f"{language}-guard.jinja"
    return source_code.render_source("pipeline.features.languages", template, opening=opening, ways=ways, guard=guard)


def python(options: RunOptions) -> Iterator[source_code.Code]:
    """Python by the package onnxruntime; options of a provider that its build does not have are passed over."""
    yield from app_code.session_calls(PYTHON, options)
    provider = runner_providers.provider_named(options.provider)
    if provider.fallback:
        yield source_code.Code("return []")
        return
    given = sorted(options.provider_options.items())
    pairs = source_code.joined(
        source_code.Code("{}: {}").format(source_code.python_text(key), source_code.python_text(value))
        for key, value in given
    )
    yield source_code.Code("return [({}, {{{}}})]").format(
        source_code.python_text(provider.ort_name or provider.name), pairs
    )


def react_native(options: RunOptions) -> Iterator[source_code.Code]:
    """TypeScript by onnxruntime-react-native."""
    provider = runner_providers.provider_named(options.provider)
    if not provider.fallback:  # naming the CPU would switch its arena off
        settings = [source_code.Code("name: {}").format(source_code.javascript_text(provider.name))]
        settings += [
            source_code.Code("{}: true").format(source_code.identifier(REACT_NATIVE_FLAGS[flag.value]))
            for flag in options.flags
        ]
        settings += [source_code.Code("coreMlFlags: {}").format(_bits(options))] if provider.option_bits else []
        yield source_code.Code("executionProviders: [{{{}}}]").format(source_code.joined(settings))
    yield from app_code.session_calls(REACT_NATIVE, options)


def _bits(options: RunOptions) -> int:
    bits = runner_providers.provider_named(options.provider).option_bits
    return sum(bits.get(pair, 0) for pair in options.provider_options.items())


def flutter(options: RunOptions) -> list[source_code.Code]:
    """Dart by flutter_onnxruntime."""
    fields = list(app_code.session_calls(FLUTTER, options))
    provider = source_code.Code("providers: [OrtProvider.{}]").format(
        source_code.identifier(DART_PROVIDERS[options.provider])
    )
    fields.insert(len(fields) - (not options.cpu_arena), provider)
    return fields


def maui(options: RunOptions) -> Iterator[source_code.Code]:
    """C# by Microsoft.ML.OnnxRuntime."""
    yield from app_code.session_calls(MAUI, options)
    provider = runner_providers.provider_named(options.provider)
    if provider.has_flags:
        flags = [
            source_code.Code("NnapiFlags.NNAPI_FLAG_{}").format(source_code.identifier(flag.value))
            for flag in options.flags
        ]
        yield source_code.Code("options.AppendExecutionProvider_Nnapi({});").format(source_code.joined(flags, " | "))
    elif provider.option_bits:
        function = source_code.identifier(provider.function)
        call = source_code.Code("options.AppendExecutionProvider_{}(({}Flags){});")
        yield call.format(function, function, _bits(options))
    elif not provider.fallback:
        given = sorted(options.provider_options.items())
        pairs = source_code.joined(
            source_code.Code("[{}] = {}").format(source_code.csharp_text(key), source_code.csharp_text(value))
            for key, value in given
        )
        call = source_code.Code("options.AppendExecutionProvider({}, new Dictionary<string, string> {{ {} }});")
        yield call.format(source_code.csharp_text(provider.append_name), pairs)


PYTHON = app_code.SessionCalls(
    levels=app_code.CPP_LEVELS,
    settings=source_code.codes(
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
    text=source_code.python_text,
)
REACT_NATIVE = app_code.SessionCalls(
    levels=REACT_NATIVE_LEVELS,
    settings=source_code.codes(
        level='graphOptimizationLevel: "{}"',
        intra="intraOpNumThreads: {}",
        inter="interOpNumThreads: {}",
        parallel="executionMode: 'parallel'",
        pattern="enableMemPattern: false",
        arena="enableCpuMemArena: false",
    ),
    text=source_code.javascript_text,
)
FLUTTER = app_code.SessionCalls(
    levels={},
    settings=source_code.codes(intra="intraOpNumThreads: {}", inter="interOpNumThreads: {}", arena="useArena: false"),
    text=source_code.dart_text,
)
MAUI = app_code.SessionCalls(
    levels=app_code.CPP_LEVELS,
    settings=source_code.codes(
        level="options.GraphOptimizationLevel = GraphOptimizationLevel.{};",
        intra="options.IntraOpNumThreads = {};",
        inter="options.InterOpNumThreads = {};",
        parallel="options.ExecutionMode = ExecutionMode.ORT_PARALLEL;",
        pattern="options.EnableMemoryPattern = false;",
        arena="options.EnableCpuMemArena = false;",
        entry="options.AddSessionConfigEntry({}, {});",
        custom_ops="options.RegisterCustomOpLibrary({});",
    ),
    text=source_code.csharp_text,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """How code for one kind of app is written, which providers its package has, and what of their options it lacks.

    `blank` is a comment's start; `head` comes once, `write` gives the calls that set a way's options. `support` is a
    template that comes once, too, with what opens `contexts`, where it does, and picks sizes; a language without one
    does neither. `classes` says whether models have such. `has` says of a provider whether the package can append it.
    `brings` says by platform which ONNX Runtime the package brings itself, and `pins` its release where that is one; of
    other platforms it is not known.
    """

    title: str
    blank: source_code.Code
    head: source_code.Code
    write: Callable[[RunOptions], Iterable[source_code.Code]]
    calls: app_code.SessionCalls
    lacks: frozenset[str]
    platforms: tuple[str, ...] = ("android", "ios", "linux", "macos")
    support: str = ""
    contexts: bool = False
    classes: bool = False
    has: Callable[[str], bool] = lambda _provider: True
    brings: Mapping[str, str] = field(default_factory=dict)
    pins: Mapping[str, str] = field(default_factory=dict)

    def remark(self, text: str) -> source_code.Code:
        """A comment on a line of its own."""
        return source_code.Code("{} {}").format(self.blank, source_code.comment(text))


def openings(content: bundle_manifest.Content, target: str, model: str | None) -> list[Opening]:
    """What a target's devices open, of one model or all, the file for devices in general first.

    Raises ConfigError for a model that does not ship there, and two whose functions would have one name.
    """
    tables = selection.rows_of(content, target)
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
            for position, number in enumerate(dict.fromkeys(row.ships for row in (rows[-1], *rows)), 1):
                shipped = content.ships[number]
                classes = [_class(row) for row in rows if row.ships == number] if len(rows) > 1 else []
                weights = shipped.weights
                opened.append(
                    Opening(
                        folder=folder,
                        title=name,
                        model=f"{name} {position}" if position > 1 else name,
                        file=shipped.file.rpartition("/")[2],
                        sha256=digests[shipped.file],
                        weights=(weights.rpartition("/")[2], digests[weights]) if weights else (),
                        where="; ".join(classes) or "every device",
                        ways=shipped.runs,
                        contexts=selection.contexts_of(content, target, name, f"{folder}/{{}}".format),
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


def _class(row: bundle_manifest.SelectionRow) -> str:
    parts = [f"chip {row.soc}"] if row.soc else []
    parts += [f"ABI {row.abi}"] if row.abi else []
    parts += [f"API level {row.min_api_level} or higher"] if row.min_api_level else []
    return ", ".join(parts) or "all other devices"


def snippet(
    language: str,
    opened: Sequence[Opening],
    contexts: Sequence[bundle_manifest.ShippedContext],
    sizes: Sequence[Sequence[bundle_manifest.ModelSignature]] = (),
    notes: Iterable[str] = (),
    guard: guarding.Guarded | None = None,
    *,
    models: Sequence[bundle_manifest.ModelSignature] = (),
    digest: str = "",
) -> source_code.Code:
    """The code for a language of `LANGUAGES`; what its package cannot set, and `notes`, stand in comments.

    `contexts` are those of the target, `sizes` those of its models that come in several. With a `guard` models that
    something else than the CPU may run have code behind it, too. C++ has a class for each of the `models`, in a
    namespace after the bundle's `digest`.
    """
    kind = LANGUAGES[language]
    ways = [way for opening in opened for way in opening.ways]
    inputs = {rows[-1].model: list(release_sizes.sized_inputs(rows, frozenset())) for rows in sizes}
    guarded = [opening for opening in opened if guard and guards.is_guarded(opening.ways, opening.ways)]
    functions = {opening.title: opening.function for opening in reversed(opened)}
    classes = cpp_classes.classes(functions, models, {opening.title for opening in guarded}) if kind.classes else []
    lines = [kind.head] if kind.head else []
    lines += [source_code.Code("#include <ort_mobile_guard.h>  // in the folder of --guard")] if guard else []
    if not guard and any(guards.is_guarded(opening.ways, opening.ways) for opening in opened):
        lines.append(kind.remark(guarding.LACKS[language]))
    lines += [kind.remark(text) for text in notes] + (app_code.cpp_helpers(ways) if kind.calls is app_code.CPP else [])
    if kind.support:
        plugin, runtime = chip_contexts.gradle_notations(contexts) if contexts else ("", "")
        filled = [row for rows in inputs.values() for row in rows if row.filled]
        values = {
            "contexts": bool(contexts),
            "plugin": plugin,
            "runtime": runtime,
            "sizes": bool(sizes),
            "digest": digest,
            "classes": bool(classes),
            "texts": any(values["text"] for values in classes),
            "pictures": any(values["channels"] for values in classes),
            "answers": any(values["answer"] for values in classes),
            "buffers": sorted(
                {app_code.BUFFERS[tensor.dtype][0] for tensor in filled if tensor.dtype in app_code.BUFFERS}
            ),
            "weights": any(shipped.weights for shipped in opened),
        }
        support = source_code.render_source("pipeline.features.languages", kind.support, **values).stripped()
        lines += [support] if support else []
    for opening in opened:
        lines += [source_code.Code(""), kind.remark(f"{opening.file}, sha256 {opening.sha256}")]
        if opening.weights:
            lines.append(kind.remark("in one folder with its weights, {}, sha256 {}".format(*opening.weights)))
        lines.append(kind.remark(f"for {opening.where}"))
        picked = [rows for rows in sizes if opening.model == rows[-1].model]
        lines += [kind.remark(text) for text in lost(language, [opening], picked)]
        lines.append(open_code(language, opening, kind.write).stripped())
        if guard and opening in guarded:
            lines.append(guarded_code(language, opening, guard).stripped())
    by_model = {opening.model: opening for opening in opened}
    values = {"buffers": app_code.BUFFERS, "types": cpp_classes.ELEMENTS}
    for rows in sizes if kind.support else ():
        title = rows[-1].model
        text = source_code.render_source(
            "pipeline.features.languages",
            f"{language}-sizes.jinja",
            model=title,
            openings=[by_model[row.model] for row in rows],
            inputs=inputs[title],
            **values,
        )
        lines.append(text.stripped())
    if classes:
        values = {"classes": classes, "digest": digest}
        text = source_code.render_source("pipeline.features.languages", "cpp-classes.jinja", **values)
        lines.append(text.stripped())
    return source_code.Code("{}\n").format(source_code.Code("\n").join(lines))


def state_texts(models: Iterable[bundle_manifest.ModelSignature]) -> list[str]:
    """For each state of the models, what an app carries from one inference to the next."""
    return [
        f"state of {signature.model}: the output {output} is the input {name} of the next inference, which begins with "
        f"{signature.first_value(name)}"
        for signature in models
        for output, name in signature.state.items()
    ]


def text_notes(models: Iterable[bundle_manifest.ModelSignature]) -> list[str]:
    """For each model that takes texts, what makes its inputs of one."""
    return [
        f"text of {signature.model}: {Path(text.file).name} makes {text.ids} of it, {text.most} ids at most"
        + f"; {text.mask} is 1 for each" * bool(text.mask)
        + f"; {text.types} is 0" * bool(text.types)
        + " (the classes for C++, Android, iOS and macOS do so)"
        for signature in models
        if (text := signature.text)
    ]


def lost(
    language: str, opened: Sequence[Opening], sizes: Sequence[Sequence[bundle_manifest.ModelSignature]] = ()
) -> list[str]:
    """For each way of a model that a package cannot run as it was measured: what it leaves out."""
    kind = LANGUAGES[language]
    texts = [
        f"{source_code.word(rows[-1].model)}: without the choice of the size that inputs fit into, which C++ and "
        "Kotlin "
        "(--for cpp, kotlin), and the classes of `release android` and `release apple` have"
        for rows in sizes
        if not kind.support
    ]
    for opening in opened:
        if opening.contexts and not kind.contexts:
            chips = ", ".join(context["chip"] for context in opening.contexts)
            texts.append(
                f"{opening.model}: without what was compiled for the NPU of {chips}, which Kotlin (--for kotlin) and "
                "the classes of `release android` open"
            )
        for options in opening.ways:
            way, missing = (
                run_options.options_name(options),
                [*app_code.lacks(kind.calls, options), *_provider_lacks(kind, options)],
            )
            if not kind.has(options.provider):
                texts.append(
                    f"{opening.model}: without {way}, as {kind.title} has no call for the provider {options.provider}"
                )
            elif missing:
                texts.append(f"{opening.model}: {way} without {', '.join(missing)}, which {kind.title} cannot set")
    return texts


def other_release(language: str, tested: str, platform: str) -> list[str]:
    """What a package brings in place of the release that was tested; nothing where it brings none of its own."""
    kind, release = LANGUAGES[language], ort_releases.line_of(tested) if tested else None
    pinned = kind.pins.get(platform)
    if not kind.brings or (pinned and release == ort_releases.line_of(pinned)):
        return []
    tested = f"ONNX Runtime {tested}" if tested else "the release of this bundle"
    if brings := kind.brings.get(platform):
        return [f"{brings}, not {tested}, which was tested: build the app with that one, or release for what it brings"]
    unknown = f"which ONNX Runtime {kind.title} brings on {platform} is not known here, and {tested} was tested"
    return [f"{unknown}: look it up in the lock file of the app's pods or packages, and release for that one"]


def _provider_lacks(language: Language, options: RunOptions) -> list[str]:
    """What of a provider's options the package cannot set, as people call it."""
    bits = runner_providers.provider_named(options.provider).option_bits
    as_bits = bool(bits and options.provider_options)
    needs = {
        "flags of NNAPI": ("flags", bool(options.flags)),
        "options of the provider": ("options", bool(options.provider_options) and not as_bits),
        "options of CoreML": ("coreml flags", as_bits),
        "some options of CoreML": (
            "coreml options",
            as_bits and not options.provider_options.items() <= bits.keys(),
        ),
    }
    return [name for name, (ability, is_needed) in needs.items() if is_needed and ability in language.lacks]


LANGUAGES: dict[str, Language] = {
    "kotlin": Language(
        title="onnxruntime-android",
        blank=source_code.Code("//"),
        write=app_code.kotlin_calls,
        calls=app_code.KOTLIN,
        platforms=("android",),
        head=source_code.Code(""),
        lacks=frozenset(),
        support="kotlin-head.jinja",
        contexts=True,
        has=app_code.has_java_call,
    ),
    "react-native": Language(
        title="onnxruntime-react-native",
        blank=source_code.Code("//"),
        write=react_native,
        calls=REACT_NATIVE,
        platforms=("android", "ios"),
        head=source_code.Code("import { InferenceSession } from 'onnxruntime-react-native';"),
        brings={
            "android": "onnxruntime-react-native 1.24.3 takes the newest ONNX Runtime when the app is built "
            "(latest.integration)",
            "ios": "onnxruntime-react-native takes the newest ONNX Runtime when its pods are installed (onnxruntime-c, "
            "without a release)",
        },
        lacks=frozenset({"options", "coreml options"}),
        has=DART_PROVIDERS.__contains__,
    ),
    "flutter": Language(
        title="flutter_onnxruntime",
        blank=source_code.Code("//"),
        write=flutter,
        calls=FLUTTER,
        platforms=("android", "ios"),
        head=source_code.Code("import 'package:flutter_onnxruntime/flutter_onnxruntime.dart';"),
        brings={"android": "flutter_onnxruntime 1.8.3 brings ONNX Runtime 1.25.0"},
        pins={"android": "1.25.0"},
        lacks=frozenset({"flags", "options", "coreml flags"}),
        has=DART_PROVIDERS.__contains__,
    ),
    "maui": Language(
        title="Microsoft.ML.OnnxRuntime",
        blank=source_code.Code("//"),
        write=maui,
        calls=MAUI,
        platforms=("android", "ios", "macos"),
        head=source_code.Code(
            "using Microsoft.ML.OnnxRuntime;\n"
            "using System;\n"
            "using System.Collections.Generic;\n"
            "using System.IO;\n"
            "using System.Threading.Tasks;\n"
            "using Microsoft.Maui.Storage;"
        ),
        lacks=frozenset({"coreml options"}),
        has=DART_PROVIDERS.__contains__,
    ),
    "cpp": Language(
        title="C++",
        blank=source_code.Code("//"),
        write=app_code.cpp_calls,
        calls=app_code.CPP,
        lacks=frozenset(),
        support="cpp-head.jinja",
        classes=True,
        head=source_code.Code(
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
        title="Python",
        blank=source_code.Code("#"),
        write=python,
        calls=PYTHON,
        head=source_code.Code("import onnxruntime"),
        lacks=frozenset({"flags"}),
    ),
}
"""By the word after --for."""
