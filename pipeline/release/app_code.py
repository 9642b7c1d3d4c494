"""Code for apps: session options as lines of each language, and the buffers of Java.

Names of calls are those of ONNX Runtime 1.20 to 1.31: ai.onnxruntime of Maven's onnxruntime-android,
onnxruntime_cxx_api.h, and the Objective-C headers ort_session.h as Swift sees them. What a language has no call for is
written as a comment.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import msgspec

from device_runner import providers as runner_providers
from device_runner import spec as run_spec
from device_runner.spec import ElementType, OptimizationLevel, RunOptions
from pipeline.core import providers as provider_rules  # noqa: F401 - their folders bring rows to runner_providers
from pipeline.release.source_code import (
    Code,
    codes,
    comment,
    cpp_text,
    identifier,
    java_text,
    joined,
    kotlin_text,
    render_source,
    swift_text,
    word,
)

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
    settings: Mapping[str, Code]
    text: Callable[[str], Code]


def session_calls(language: SessionCalls, options: RunOptions) -> Iterator[Code]:
    """What sets `options` in a language, the provider apart; nothing for settings that it lacks."""
    if "bind" not in language.settings:
        options = without_capture(options)
    level = language.levels.get(options.optimization_level)
    values: dict[str, object] = {
        "level": level and identifier(level),
        "intra": options.intra_op_threads,
        "inter": options.inter_op_threads,
        "parallel": options.execution_mode is run_spec.ExecutionMode.PARALLEL,
        "pattern": not options.memory_pattern,
        "arena": not options.cpu_arena,
        "threads": _places_threads(options) and Code("{}, {}").format(_cores(options), options.thread_nice),
        "bind": options.captures_graph or options.device_tensors,
        "allocator": options.allocator is not run_spec.Allocator.DEFAULT and identifier(options.allocator.value),
    }
    for setting, value in values.items():
        if value and setting in language.settings:
            yield language.settings[setting].format(*([] if value is True else [value]))
    for name in options.custom_ops:
        if call := language.settings.get(_registers(name)):
            yield call.format(language.text(name))
    for key, value in sorted(options.session_config.items()) if "entry" in language.settings else ():
        yield language.settings["entry"].format(language.text(key), language.text(value))


def without_capture(options: RunOptions) -> RunOptions:
    """Options for APIs without IoBinding: a session that captures and binds nothing repeats its first outputs."""
    if not options.captures_graph:
        return options
    capture = runner_providers.provider_named(options.provider).capture
    return msgspec.structs.replace(
        options,
        provider_options={key: value for key, value in options.provider_options.items() if key != capture},
        session_config={k: v for k, v in options.session_config.items() if not k.endswith(f".{capture}")},
    )


def _cores(options: RunOptions) -> Code:
    if options.thread_cores == run_spec.BIG_CORES:
        return Code("FastCores()")
    return Code("{{{}}}").format(joined(run_spec.cores_from_zero(options.thread_cores)))


def _places_threads(options: RunOptions) -> bool:
    return bool(options.thread_cores or options.thread_nice)


def lacks(language: SessionCalls, options: RunOptions) -> list[str]:
    """What of these options a language has no call for, the provider's apart."""
    level, settings = options.optimization_level, language.settings
    missing = {
        "custom operators": any(_registers(name) not in settings for name in options.custom_ops),
        "session config entries": options.session_config and "entry" not in settings,
        "the optimization level": level is not OptimizationLevel.ALL and "level" not in settings,
        f"the optimization level {level.value}": level not in language.levels and "level" in settings,
        "inter-op threads": options.inter_op_threads and "inter" not in settings,
        "parallel execution": options.execution_mode is run_spec.ExecutionMode.PARALLEL and "parallel" not in settings,
        "memory pattern": not options.memory_pattern and "pattern" not in settings,
        "memory arena": not options.cpu_arena and "arena" not in settings,
        "graph capture": options.captures_graph and "bind" not in settings,
        "device tensors": options.device_tensors and "bind" not in settings,
        "the allocator": options.allocator is not run_spec.Allocator.DEFAULT and "allocator" not in settings,
        "cores and nice value of threads": _places_threads(options) and "threads" not in settings,
    }
    return [name for name, is_needed in missing.items() if is_needed]


def _registers(library: str) -> str:
    """The setting that registers a library of custom operators: one that the app opens, or an xcframework in it."""
    return "linked_ops" if library.endswith(".zip") else "custom_ops"


def _lacking(name: str, language: SessionCalls, options: RunOptions) -> Iterator[Code]:
    """A comment on what a language has no call for."""
    if missing := lacks(language, options):
        text = Code("// The {} API cannot set {}: use the C++ API for the same times.")
        yield text.format(comment(name), comment(", ".join(missing)))


def code_for(platform: str, options: RunOptions, file: str) -> dict[str, tuple[str, ...]]:
    """How an app on a platform opens a model file in its usual languages: lines of code by the language's name."""
    android = {"Kotlin": kotlin, "Java": java, "C++": cpp}
    apple = {"Swift": swift, "C++": cpp}
    writers = {"android": android, "ios": apple, "macos": apple}.get(platform, {"C++": cpp, "Java": java})
    return {language: write(options, file) for language, write in writers.items()}


FIRST_RUN = "// The first run compiles shaders, for seconds: not on the main thread, and before anybody waits for it."
"""A comment that all of these languages share."""


def _no_gpu(options: RunOptions) -> Code:
    return Code("{} is not there, so the CPU runs the model").format(
        word(runner_providers.provider_named(options.provider).title)
    )


def kotlin(options: RunOptions, file: str) -> tuple[str, ...]:
    """Kotlin for Android: from a file, or from the bytes of an asset; on a GPU, or on the CPU and says so."""
    if not runner_providers.provider_named(options.provider).gpu:
        return (
            *(f"import {name}" for name in _jvm_imports(options)),
            "",
            "val environment = OrtEnvironment.getEnvironment()",
            "val options = OrtSession.SessionOptions()",
            *kotlin_calls(options),
            "// From a file:",
            "val session = environment.createSession(path, options)",
            "// Or from an asset that the app stores uncompressed, where it lies: bytes that are read fill the heap.",
            f"// val bytes = context.assets.openFd({kotlin_text(file)}).use {{ asset ->",
            "//     val mode = java.nio.channels.FileChannel.MapMode.READ_ONLY",
            "//     asset.createInputStream().channel.use { it.map(mode, asset.startOffset, asset.declaredLength) }",
            "// }",
            "// val session = environment.createSession(bytes, options)  // ONNX Runtime 1.20 and later",
        )
    return (
        *(f"import {name}" for name in (*_jvm_imports(options), "ai.onnxruntime.OrtException")),
        "import java.util.logging.Logger",
        "",
        "fun optionsFor(gpu: Boolean): OrtSession.SessionOptions {",
        "    val options = OrtSession.SessionOptions()",
        *(f"    {call}" for call in (*session_calls(KOTLIN, options), *_lacking("Java", KOTLIN, options))),
        *(f"    if (gpu) {call}" for call in _jvm_provider(options, _kotlin_map)),
        "    return options",
        "}",
        "val environment = OrtEnvironment.getEnvironment()",
        "val session = try {",
        "    environment.createSession(path, optionsFor(gpu = true))",
        "} catch (error: OrtException) {",
        f'    Logger.getLogger("model").warning("{_no_gpu(options)}: $error")',
        "    environment.createSession(path, optionsFor(gpu = false))",
        "}",
        FIRST_RUN,
        "// kotlin.concurrent.thread { session.run(inputs).close() }",
    )


def kotlin_calls(options: RunOptions) -> list[Code]:
    """The statements of Kotlin that set `options`, an OrtSession.SessionOptions of that name."""
    calls = session_calls(KOTLIN, options)
    return [*calls, *_lacking("Java", KOTLIN, options), *_jvm_provider(options, _kotlin_map)]


def java(options: RunOptions, file: str) -> tuple[str, ...]:
    """Java, on Android and on desktops: from a file, or from bytes; on a GPU, or on the CPU and says so."""
    provider = runner_providers.provider_named(options.provider)
    if not provider.gpu:
        maps = ("java.util.Map",) if provider.java and provider.has_options else ()
        return (
            *(f"import {name};" for name in (*_jvm_imports(options), *maps)),
            "",
            "OrtEnvironment environment = OrtEnvironment.getEnvironment();",
            "OrtSession.SessionOptions options = new OrtSession.SessionOptions();",
            *java_calls(options),
            f"// From a file ({comment(file)}):",
            "OrtSession session = environment.createSession(path, options);",
            "// Or from its bytes, in place of the line before:",
            "// OrtSession session = environment.createSession(bytes, options);",
        )
    opened = (
        "    OrtSession.SessionOptions options = new OrtSession.SessionOptions();",
        *(f"    {call}" for call in _ended(session_calls(JAVA, options))),
    )
    create = "    session = environment.createSession(path, options);"
    return (
        *(f"import {name};" for name in (*_jvm_imports(options), "ai.onnxruntime.OrtException", "java.util.Map")),
        "import java.util.logging.Logger;",
        "",
        "OrtEnvironment environment = OrtEnvironment.getEnvironment();",
        "OrtSession session;",
        "try {",
        *opened,
        *(f"    {call}" for call in _ended([*_lacking("Java", JAVA, options), *_jvm_provider(options, _java_map)])),
        create,
        "} catch (OrtException error) {",
        f'    Logger.getLogger("model").warning("{_no_gpu(options)}: " + error);',
        *opened,
        create,
        "}",
        FIRST_RUN,
        "// new Thread(() -> warmUp(session)).start();  // warmUp calls session.run(inputs).close()",
    )


def java_calls(options: RunOptions, mapping: Callable[[Mapping[str, str]], Code] | None = None) -> list[Code]:
    """The statements of Java that set `options`, an OrtSession.SessionOptions of that name.

    `mapping` writes a map of strings; by default `Map.of`, which Java 8 does not have.
    """
    calls = session_calls(JAVA, options)
    return _ended([*calls, *_lacking("Java", JAVA, options), *_jvm_provider(options, mapping or _java_map)])


def _ended(calls: Iterable[Code]) -> list[Code]:
    """Calls of Java as statements; comments as they are."""
    return [call if call.startswith("//") else Code("{};").format(call) for call in calls]


def _jvm_imports(options: RunOptions) -> tuple[str, ...]:
    flags = ("ai.onnxruntime.providers.NNAPIFlags", "java.util.EnumSet") if options.flags else ()
    return ("ai.onnxruntime.OrtEnvironment", "ai.onnxruntime.OrtSession", *flags)


def has_java_call(provider: str) -> bool:
    """Whether ONNX Runtime's Java API, which Kotlin has, too, can append a provider."""
    return runner_providers.on_cpu(provider) or bool(runner_providers.provider_named(provider).java)


def _jvm_provider(options: RunOptions, mapping: Callable[[Mapping[str, str]], Code]) -> list[Code]:
    options = without_capture(options)
    provider = runner_providers.provider_named(options.provider)
    if provider.fallback:
        return []
    if not has_java_call(options.provider):
        text = Code("// The Java API has no call for the provider {}: use the C++ API.")
        return [text.format(word(options.provider))]
    given = Code("")
    if provider.has_flags and options.flags:
        flags = [Code("NNAPIFlags.{}").format(identifier(flag.value)) for flag in options.flags]
        given = Code("EnumSet.of({})").format(joined(flags))
    elif provider.has_options:
        given = mapping(options.provider_options)
    return [Code("options.{}({})").format(identifier(provider.java), given)]


def _java_map(values: Mapping[str, str]) -> Code:
    return Code("Map.of({})").format(joined(java_text(text) for pair in sorted(values.items()) for text in pair))


def _kotlin_map(values: Mapping[str, str]) -> Code:
    pairs = [Code("{} to {}").format(kotlin_text(key), kotlin_text(value)) for key, value in sorted(values.items())]
    return Code("mapOf({})").format(joined(pairs)) if pairs else Code("emptyMap()")


def swift(options: RunOptions, file: str) -> tuple[str, ...]:
    """Swift by the Objective-C package, which opens files only; on a GPU, or on the CPU and says so."""
    stem, _, suffix = file.rpartition(".")
    path = f"let path = Bundle.main.path(forResource: {swift_text(stem)}, ofType: {swift_text(suffix)})!"
    if not runner_providers.provider_named(options.provider).gpu:
        return (
            "import OnnxRuntimeBindings  // with CocoaPods: import onnxruntime_objc",
            "",
            "let environment = try ORTEnv(loggingLevel: .warning)",
            "let options = try ORTSessionOptions()",
            *swift_calls(options),
            "// From a file of the app's bundle; this API has no call for bytes:",
            path,
            "let session = try ORTSession(env: environment, modelPath: path, sessionOptions: options)",
        )
    return (
        "import OnnxRuntimeBindings  // with CocoaPods: import onnxruntime_objc",
        "",
        "func optionsFor(gpu: Bool) throws -> ORTSessionOptions {",
        "    let options = try ORTSessionOptions()",
        *(f"    {call}" for call in (*session_calls(SWIFT, options), *_lacking("Objective-C", SWIFT, options))),
        *(f"    if gpu {{ {call} }}" for call in _swift_provider(options)),
        "    return options",
        "}",
        "",
        "let environment = try ORTEnv(loggingLevel: .warning)",
        path,
        "let session: ORTSession",
        "do {",
        "    session = try ORTSession(env: environment, modelPath: path, sessionOptions: optionsFor(gpu: true))",
        "} catch {",
        f'    print("{_no_gpu(options)}: \\(error)")',
        "    session = try ORTSession(env: environment, modelPath: path, sessionOptions: optionsFor(gpu: false))",
        "}",
        FIRST_RUN,
        "// DispatchQueue.global().async {",
        "//     _ = try? session.run(withInputs: inputs, outputNames: outputs, runOptions: nil)",
        "// }",
    )


def swift_calls(options: RunOptions, more: Mapping[str, Code] = {}) -> Iterator[Code]:
    """The statements of Swift that set `options`, an ORTSessionOptions of that name, and `more` of the provider's."""
    if any(_registers(name) == "linked_ops" for name in options.custom_ops):
        yield Code("// The app links the bundle's xcframework; a bridging header declares its RegisterCustomOps.")
    lacking = _lacking("Objective-C", SWIFT, options)
    yield from (*session_calls(SWIFT, options), *lacking, *_swift_provider(options, more))


def _swift_provider(options: RunOptions, more: Mapping[str, Code] = {}) -> Iterator[Code]:
    provider = runner_providers.provider_named(options.provider)
    if provider.never_on("ios"):
        yield Code("// {} is {}'s.").format(comment(provider.title), comment(provider.owner))
    elif not provider.fallback:
        given = sorted(without_capture(options).provider_options.items())
        pairs = [Code("{}: {}").format(swift_text(key), swift_text(value)) for key, value in given]
        pairs += [Code("{}: {}").format(swift_text(key), value) for key, value in more.items()]
        call = Code("try options.appendExecutionProvider({}, providerOptions: [{}])")
        yield call.format(swift_text(provider.append_name), joined(pairs) if pairs else Code(":"))


def cpp(options: RunOptions, file: str) -> tuple[str, ...]:
    """C++ by the header of every package: from a file, or from bytes."""
    provider = runner_providers.provider_named(options.provider)
    factory = (f"#include <{provider.name}_provider_factory.h>",) if provider.has_flags else ()
    by_devices: tuple[str, ...] = ()
    if since := provider.devices_since:  # the other way to append it, which later releases have: code that compiles
        pairs = f"std::unordered_map<std::string, std::string>{_cpp_map(options)}"
        by_devices = (
            f"// Or by its devices (ONNX Runtime {since} and later), in place of AppendExecutionProvider:",
            "// std::vector<Ort::ConstEpDevice> devices;",
            "// for (Ort::ConstEpDevice device : environment.GetEpDevices())",
            f"//     if (std::string(device.EpName()) == {cpp_text(provider.ort_name)}) devices.push_back(device);",
            f"// options.AppendExecutionProvider_V2(environment, devices, {pairs});",
        )
    return (
        "#include <onnxruntime_cxx_api.h>",
        *factory,
        *cpp_helpers([options]),
        "",
        'Ort::Env environment(ORT_LOGGING_LEVEL_WARNING, "app");',
        "Ort::SessionOptions options;",
        *cpp_calls(options),
        *by_devices,
        f"// From a file ({comment(file)}):",
        "Ort::Session session(environment, path, options);",
        "// Or from its bytes, in place of the line before:",
        "// Ort::Session session(environment, bytes.data(), bytes.size(), options);",
    )


def _cpp_map(options: RunOptions) -> Code:
    given = sorted(options.provider_options.items())
    return Code("{{{}}}").format(
        joined(Code("{{{}, {}}}").format(cpp_text(key), cpp_text(value)) for key, value in given)
    )


def cpp_helpers(ways: Iterable[RunOptions]) -> list[Code]:
    """What C++ needs before the calls that set any of these options."""
    ways = list(ways)
    lines = [render_source("pipeline.release", "threads.jinja").stripped()] if any(map(_places_threads, ways)) else []
    linked = any(_registers(name) == "linked_ops" for way in ways for name in way.custom_ops)
    declared = Code('extern "C" OrtStatus* ORT_API_CALL RegisterCustomOps(OrtSessionOptions*, const OrtApiBase*);')
    return [*lines, declared] if linked else lines


def cpp_calls(options: RunOptions) -> Iterator[Code]:
    """The statements of C++ that set `options`, an Ort::SessionOptions of that name."""
    yield from session_calls(CPP, options)
    provider = runner_providers.provider_named(options.provider)
    if provider.has_flags:
        flags = [Code("NNAPI_FLAG_{}").format(identifier(flag.value)) for flag in options.flags]
        call = Code("Ort::ThrowOnError(OrtSessionOptionsAppendExecutionProvider_{}(options, {}));")
        yield call.format(identifier(provider.function), joined(flags or [Code("NNAPI_FLAG_USE_NONE")], " | "))
    elif provider.owner == "NVIDIA":
        name, function = identifier(provider.name), identifier(provider.function)
        yield Code("Ort::{}ProviderOptions {};").format(function, name)
        yield Code("{}.Update({});").format(name, _cpp_map(options))
        yield Code("options.AppendExecutionProvider_{}_V2(*{});").format(function, name)
    elif not provider.fallback:
        yield Code("options.AppendExecutionProvider({}, {});").format(cpp_text(provider.append_name), _cpp_map(options))


JAVA = SessionCalls(
    levels=JAVA_LEVELS,
    settings=codes(
        level="options.setOptimizationLevel(OrtSession.SessionOptions.OptLevel.{})",
        intra="options.setIntraOpNumThreads({})",
        inter="options.setInterOpNumThreads({})",
        parallel="options.setExecutionMode(OrtSession.SessionOptions.ExecutionMode.PARALLEL)",
        pattern="options.setMemoryPatternOptimization(false)",
        arena="options.setCPUArenaAllocator(false)",
        entry="options.addConfigEntry({}, {})",
        allocator="// Start the process with LD_PRELOAD=lib{}.so: no API replaces the allocator.",
        custom_ops="options.registerCustomOpLibrary({})",
    ),
    text=java_text,
)
"""Statements without their semicolon."""
KOTLIN = replace(JAVA, text=kotlin_text)
SWIFT = SessionCalls(
    levels=SWIFT_LEVELS,
    settings=codes(
        level="try options.setGraphOptimizationLevel(.{})",
        intra="try options.setIntraOpNumThreads({})",
        entry="try options.addConfigEntry(withKey: {}, value: {})",
        linked_ops="try options.registerCustomOps(functionPointer: RegisterCustomOps)",
    ),
    text=swift_text,
)
CPP = SessionCalls(
    levels=CPP_LEVELS,
    settings=codes(
        level="options.SetGraphOptimizationLevel({});",
        intra="options.SetIntraOpNumThreads({});",
        inter="options.SetInterOpNumThreads({});",
        parallel="options.SetExecutionMode(ORT_PARALLEL);",
        pattern="options.DisableMemPattern();",
        arena="options.DisableCpuMemArena();",
        threads="PlaceThreads(options, {});",
        entry="options.AddConfigEntry({}, {});",
        bind="// Measured so: bind inputs and outputs in GPU memory (Ort::IoBinding), and run with these.",
        allocator="// Start the process with LD_PRELOAD=lib{}.so: no API replaces the allocator.",
        custom_ops="options.RegisterCustomOpsLibrary({});",
        linked_ops="Ort::ThrowOnError(RegisterCustomOps(options, OrtGetApiBase()));",
    ),
    text=cpp_text,
)


BUFFERS: dict[ElementType, tuple[str, str, str]] = {
    ElementType.FLOAT32: ("FloatBuffer", "", "FloatBuffer"),
    ElementType.FLOAT64: ("DoubleBuffer", "", "DoubleBuffer"),
    ElementType.INT64: ("LongBuffer", "", "LongBuffer"),
    ElementType.INT32: ("IntBuffer", "", "IntBuffer"),
    ElementType.INT16: ("ShortBuffer", "", "ShortBuffer"),
    ElementType.FLOAT16: ("ShortBuffer", "FLOAT16", "FloatBuffer"),
    ElementType.BFLOAT16: ("ShortBuffer", "BFLOAT16", "FloatBuffer"),
    ElementType.INT8: ("ByteBuffer", "INT8", "ByteBuffer"),
    ElementType.UINT8: ("ByteBuffer", "UINT8", "ByteBuffer"),
    ElementType.BOOL: ("ByteBuffer", "BOOL", "ByteBuffer"),
}
"""Element type to the buffer of an input, its OnnxJavaType where the buffer does not say it, and that of an output.

ONNX Runtime gives 16-bit floats out as 32-bit ones. Its Java API cannot make tensors of the types that lack here.
"""
