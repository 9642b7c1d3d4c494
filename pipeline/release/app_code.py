"""Session options as the lines of code that an app needs, in the languages of ONNX Runtime's packages. Pure functions.

Names are those of ONNX Runtime 1.20 to 1.31: ai.onnxruntime of Maven's onnxruntime-android, onnxruntime_cxx_api.h, and
the Objective-C headers ort_session.h as Swift sees them. What a language has no call for is written as a comment.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from device_runner.providers import CPU, provider_named
from device_runner.spec import ExecutionMode, OptimizationLevel, RunOptions

JAVA_LEVELS = {
    OptimizationLevel.NONE: "NO_OPT",
    OptimizationLevel.BASIC: "BASIC_OPT",
    OptimizationLevel.EXTENDED: "EXTENDED_OPT",
    OptimizationLevel.LAYOUT: "LAYOUT_OPT",
    OptimizationLevel.ALL: "ALL_OPT",
}
CPP_LEVELS = {
    OptimizationLevel.NONE: "ORT_DISABLE_ALL",
    OptimizationLevel.BASIC: "ORT_ENABLE_BASIC",
    OptimizationLevel.EXTENDED: "ORT_ENABLE_EXTENDED",
    OptimizationLevel.LAYOUT: "ORT_ENABLE_LAYOUT",
    OptimizationLevel.ALL: "ORT_ENABLE_ALL",
}
SWIFT_LEVELS = {
    OptimizationLevel.NONE: "none",
    OptimizationLevel.BASIC: "basic",
    OptimizationLevel.EXTENDED: "extended",
    OptimizationLevel.ALL: "all",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCalls:
    """How a language sets session options: its levels, a template for each setting that it can make, its literals."""

    levels: Mapping[OptimizationLevel, str]
    settings: Mapping[str, str]
    text: Callable[[str], str]


ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
CONTROL = re.compile("[\x00-\x1f\x7f]")


def session_calls(language: SessionCalls, options: RunOptions) -> Iterator[str]:
    """What sets `options` in a language, the provider apart; nothing for settings that it lacks."""
    values: dict[str, object] = {
        "level": language.levels.get(options.optimization_level),
        "intra": options.intra_op_threads,
        "inter": options.inter_op_threads,
        "parallel": options.execution_mode is ExecutionMode.PARALLEL,
        "pattern": not options.memory_pattern,
        "arena": not options.cpu_arena,
    }
    for setting, value in values.items():
        if value and setting in language.settings:
            yield language.settings[setting].format(value)
    for key, value in sorted(options.session_config.items()) if "entry" in language.settings else ():
        yield language.settings["entry"].format(language.text(key), language.text(value))


def lacks(language: SessionCalls, options: RunOptions) -> list[str]:
    """What of these options a language has no call for, the provider's apart."""
    level, settings = options.optimization_level, language.settings
    missing = {
        "session config entries": options.session_config and "entry" not in settings,
        "the optimization level": level is not OptimizationLevel.ALL and "level" not in settings,
        f"the optimization level {level.value}": level not in language.levels and "level" in settings,
        "inter-op threads": options.inter_op_threads and "inter" not in settings,
        "parallel execution": options.execution_mode is ExecutionMode.PARALLEL and "parallel" not in settings,
        "memory pattern": not options.memory_pattern and "pattern" not in settings,
        "memory arena": not options.cpu_arena and "arena" not in settings,
    }
    return [name for name, wanted in missing.items() if wanted]


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """Code of one language: the name that Markdown gives it, and its lines."""

    language: str
    title: str
    lines: tuple[str, ...]


def code_for(platform: str, options: RunOptions, file: str) -> tuple[Code, ...]:
    """How an app on a platform opens a model file in its usual languages."""
    writers = {"android": (kotlin, java, cpp), "ios": (swift, cpp), "macos": (swift, cpp)}.get(platform, (cpp, java))
    return tuple(writer(options, file) for writer in writers)


def kotlin(options: RunOptions, file: str) -> Code:
    """Kotlin for Android: from a file, or from the bytes of an asset."""
    calls = _jvm_calls(replace(JAVA, text=_kotlin_text), options, _kotlin_map)
    return Code(
        language="kotlin",
        title="Kotlin",
        lines=(
            *(f"import {name}" for name in _jvm_imports(options)),
            "",
            "val environment = OrtEnvironment.getEnvironment()",
            "val options = OrtSession.SessionOptions()",
            *calls,
            "// From a file:",
            "val session = environment.createSession(path, options)",
            "// Or from the bytes of an asset, in place of the line before:",
            f"// val bytes = context.assets.open({_kotlin_text(file)}).use {{ it.readBytes() }}",
            "// val session = environment.createSession(bytes, options)",
        ),
    )


def java(options: RunOptions, file: str) -> Code:
    """Java, on Android and on desktops: from a file, or from bytes."""
    provider = provider_named(options.provider)
    maps = ("java.util.Map",) if provider.java and provider.has_options else ()
    return Code(
        language="java",
        title="Java",
        lines=(
            *(f"import {name};" for name in (*_jvm_imports(options), *maps)),
            "",
            "OrtEnvironment environment = OrtEnvironment.getEnvironment();",
            "OrtSession.SessionOptions options = new OrtSession.SessionOptions();",
            *java_calls(options),
            f"// From a file ({file}):",
            "OrtSession session = environment.createSession(path, options);",
            "// Or from its bytes, in place of the line before:",
            "// OrtSession session = environment.createSession(bytes, options);",
        ),
    )


def java_calls(options: RunOptions, mapping: Callable[[Mapping[str, str]], str] | None = None) -> list[str]:
    """The statements of Java that set `options`, an OrtSession.SessionOptions of that name.

    `mapping` writes a map of strings; by default `Map.of`, which Java 8 does not have.
    """
    calls = _jvm_calls(JAVA, options, mapping or _java_map)
    return [call if call.startswith("//") else f"{call};" for call in calls]


def _jvm_imports(options: RunOptions) -> tuple[str, ...]:
    flags = ("ai.onnxruntime.providers.NNAPIFlags", "java.util.EnumSet") if options.flags else ()
    return ("ai.onnxruntime.OrtEnvironment", "ai.onnxruntime.OrtSession", *flags)


def _jvm_calls(language: SessionCalls, options: RunOptions, mapping: Callable[[Mapping[str, str]], str]) -> list[str]:
    return [*session_calls(language, options), *_jvm_provider(options, mapping)]


def _jvm_provider(options: RunOptions, mapping: Callable[[Mapping[str, str]], str]) -> list[str]:
    provider = provider_named(options.provider)
    if provider.name == CPU:
        return []
    if not provider.java:
        return [f"// The Java API has no call for the provider {comment_text(options.provider)}: use the C++ API."]
    if provider.has_flags:
        flags = ", ".join(f"NNAPIFlags.{flag.value}" for flag in options.flags)
        return [f"options.{provider.java}({f'EnumSet.of({flags})' if flags else ''})"]
    return [f"options.{provider.java}({mapping(options.provider_options) if provider.has_options else ''})"]


def _java_map(values: Mapping[str, str]) -> str:
    return f"Map.of({', '.join(f'{java_text(key)}, {java_text(value)}' for key, value in sorted(values.items()))})"


def _kotlin_map(values: Mapping[str, str]) -> str:
    pairs = ", ".join(f"{_kotlin_text(key)} to {_kotlin_text(value)}" for key, value in sorted(values.items()))
    return f"mapOf({pairs})" if pairs else "emptyMap()"


def swift(options: RunOptions, file: str) -> Code:
    """Swift by the Objective-C package: it opens files only."""
    stem, _, suffix = file.rpartition(".")
    resource = f"forResource: {swift_text(stem)}, ofType: {swift_text(suffix)}"
    return Code(
        language="swift",
        title="Swift",
        lines=(
            "import OnnxRuntimeBindings  // with CocoaPods: import onnxruntime_objc",
            "",
            "let environment = try ORTEnv(loggingLevel: .warning)",
            "let options = try ORTSessionOptions()",
            *swift_calls(options),
            "// From a file of the app's bundle; this API has no call for bytes:",
            f"let path = Bundle.main.path({resource})!",
            "let session = try ORTSession(env: environment, modelPath: path, sessionOptions: options)",
        ),
    )


def swift_calls(options: RunOptions) -> Iterator[str]:
    """The statements of Swift that set `options`, an ORTSessionOptions of that name; a comment for what it lacks."""
    yield from session_calls(SWIFT, options)
    missing = lacks(SWIFT, options)
    if missing:
        yield f"// The Objective-C API cannot set {', '.join(missing)}: use the C++ API for the same times."
    provider = provider_named(options.provider)
    if provider.never_on("ios"):
        yield f"// {provider.title} is {provider.owner}'s."
    elif provider.name != CPU:
        pairs = ", ".join(f"{swift_text(k)}: {swift_text(v)}" for k, v in sorted(options.provider_options.items()))
        name = swift_text(provider.append_name)
        yield f"try options.appendExecutionProvider({name}, providerOptions: [{pairs or ':'}])"


def cpp(options: RunOptions, file: str) -> Code:
    """C++ by the header of every package: from a file, or from bytes."""
    provider = provider_named(options.provider)
    factory = (f"#include <{provider.name}_provider_factory.h>",) if provider.has_flags else ()
    return Code(
        language="cpp",
        title="C++",
        lines=(
            "#include <onnxruntime_cxx_api.h>",
            *factory,
            "",
            'Ort::Env environment(ORT_LOGGING_LEVEL_WARNING, "app");',
            "Ort::SessionOptions options;",
            *cpp_calls(options),
            f"// From a file ({file}):",
            "Ort::Session session(environment, path, options);",
            "// Or from its bytes, in place of the line before:",
            "// Ort::Session session(environment, bytes.data(), bytes.size(), options);",
        ),
    )


def cpp_calls(options: RunOptions) -> Iterator[str]:
    """The statements of C++ that set `options`, an Ort::SessionOptions of that name."""
    yield from session_calls(CPP, options)
    provider = provider_named(options.provider)
    if provider.has_flags:
        flags = " | ".join(f"NNAPI_FLAG_{flag.value}" for flag in options.flags) or "NNAPI_FLAG_USE_NONE"
        yield f"Ort::ThrowOnError(OrtSessionOptionsAppendExecutionProvider_{provider.function}(options, {flags}));"
    elif provider.name != CPU:
        pairs = ", ".join(f"{{{cpp_text(k)}, {cpp_text(v)}}}" for k, v in sorted(options.provider_options.items()))
        name = cpp_text(provider.append_name)
        yield f"options.AppendExecutionProvider({name}, {{{pairs}}});"


def java_text(text: str) -> str:
    """A string literal of Java; control characters by their number."""
    return _literal(text, "\\u{:04x}")


def _kotlin_text(text: str) -> str:
    return java_text(text).replace("$", "\\$")


def swift_text(text: str) -> str:
    """A string literal of Swift; control characters by their number."""
    return _literal(text, "\\u{{{:x}}}")


def cpp_text(text: str) -> str:
    """A string literal of C++; control characters by their number."""
    return _literal(text, "\\{:03o}")


def _literal(text: str, numbered: str) -> str:
    """Text between double quotes; `numbered` is how the language writes a character by its number."""
    plain = (ESCAPES.get(char) or (numbered.format(ord(char)) if CONTROL.match(char) else char) for char in text)
    return f'"{"".join(plain)}"'


def comment_text(text: str) -> str:
    """Text that cannot end a comment."""
    return re.sub(r"[^\w.-]", "_", text)


JAVA = SessionCalls(
    levels=JAVA_LEVELS,
    settings={
        "level": "options.setOptimizationLevel(OrtSession.SessionOptions.OptLevel.{})",
        "intra": "options.setIntraOpNumThreads({})",
        "inter": "options.setInterOpNumThreads({})",
        "parallel": "options.setExecutionMode(OrtSession.SessionOptions.ExecutionMode.PARALLEL)",
        "pattern": "options.setMemoryPatternOptimization(false)",
        "arena": "options.setCPUArenaAllocator(false)",
        "entry": "options.addConfigEntry({}, {})",
    },
    text=java_text,
)
"""And Kotlin's, but for the literals; statements without their semicolon."""
SWIFT = SessionCalls(
    levels=SWIFT_LEVELS,
    settings={
        "level": "try options.setGraphOptimizationLevel(.{})",
        "intra": "try options.setIntraOpNumThreads({})",
        "entry": "try options.addConfigEntry(withKey: {}, value: {})",
    },
    text=swift_text,
)
CPP = SessionCalls(
    levels=CPP_LEVELS,
    settings={
        "level": "options.SetGraphOptimizationLevel({});",
        "intra": "options.SetIntraOpNumThreads({});",
        "inter": "options.SetInterOpNumThreads({});",
        "parallel": "options.SetExecutionMode(ORT_PARALLEL);",
        "pattern": "options.DisableMemPattern();",
        "arena": "options.DisableCpuMemArena();",
        "entry": "options.AddConfigEntry({}, {});",
    },
    text=cpp_text,
)
