"""How sessions are opened with recorded options in languages that no package of ours is made for. Pure functions.

Names are those of the packages' published interfaces: docs/facts/release_consumers.md, R.10.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from device_runner.providers import CPU, NNAPI, provider_named
from device_runner.reading import visible
from device_runner.spec import ExecutionMode, OptimizationLevel, RunOptions
from pipeline.campaign.options import options_name
from pipeline.core.errors import ConfigError
from pipeline.release.app_code import CPP_LEVELS, cpp_calls, java_text
from pipeline.release.app_models import class_name

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
"""The providers of Flutter's and React Native's packages, as Dart names them."""
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
    """A file of a model and how it is opened: `where` says which devices have it, `ways` are tried in their order."""

    model: str
    file: str
    sha256: str
    where: str
    ways: tuple[RunOptions, ...]

    @property
    def function(self) -> str:
        """Its function in languages of small letters."""
        return "_".join(["open", *re.findall(r"[a-z0-9]+", self.model.lower())])

    @property
    def type_name(self) -> str:
        """The model as part of a name in other languages."""
        return class_name(self.model, ())


def remark(text: str) -> str:
    """Text for the rest of a line that is a comment; a backslash at its end would carry it on in C++."""
    return visible(text).replace("\\", "/")


def _tried(opening: Opening, start: str, end: str, calls: Callable[[RunOptions], Iterator[str]]) -> Iterator[str]:
    """A block for each way: `start` may contain {name}."""
    for options in opening.ways:
        yield start.format(name=remark(options_name(options)))
        yield from (f"            {call}" for call in calls(options))
        yield end


def cpp(opening: Opening) -> Iterator[str]:
    """C++17 by the header of every package."""
    yield f"inline Ort::Session {opening.function}(const Ort::Env& environment, const ORTCHAR_T* path) {{"
    yield "    const std::vector<std::function<void(Ort::SessionOptions&)>> ways = {"
    yield from _tried(opening, "        [](Ort::SessionOptions& options) {{  // {name}", "        },", cpp_calls)
    yield "    };"
    yield "    for (std::size_t way = 0;; ++way) {"
    yield "        try {"
    yield "            Ort::SessionOptions options;"
    yield "            ways[way](options);"
    yield "            return Ort::Session(environment, path, options);"
    yield "        } catch (const Ort::Exception&) {"
    yield "            if (way + 1 == ways.size()) throw;"
    yield "        }"
    yield "    }"
    yield "}"


def python(opening: Opening) -> Iterator[str]:
    """Python by the package onnxruntime; options of a provider that its build does not have are passed over."""
    names = [f"way_{number}" for number in range(1, len(opening.ways) + 1)]
    yield f"def {opening.function}(path: str) -> onnxruntime.InferenceSession:"
    for name, options in zip(names, opening.ways, strict=True):
        yield f"    def {name}(options):  # {remark(options_name(options))}"
        yield from (f"        {line}" for line in _python_settings(options))
        yield ""
    yield "    failure = None"
    yield f"    for way in [{', '.join(names)}]:"
    yield "        options = onnxruntime.SessionOptions()"
    yield "        providers = way(options)"
    yield "        if not {name for name, _ in providers} <= set(onnxruntime.get_available_providers()):"
    yield "            continue"
    yield "        try:"
    yield '            chain = [*providers, ("CPUExecutionProvider", {})]'
    yield "            return onnxruntime.InferenceSession(path, options, providers=chain)"
    yield "        except Exception as error:"
    yield "            failure = error"
    yield '    raise RuntimeError("no recorded session options work here") from failure'


def _python_settings(options: RunOptions) -> Iterator[str]:
    level = CPP_LEVELS[options.optimization_level]
    yield f"options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.{level}"
    yield from (f"options.intra_op_num_threads = {count}" for count in [options.intra_op_threads] if count)
    yield from (f"options.inter_op_num_threads = {count}" for count in [options.inter_op_threads] if count)
    if options.execution_mode is ExecutionMode.PARALLEL:
        yield "options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL"
    yield from () if options.memory_pattern else ("options.enable_mem_pattern = False",)
    yield from () if options.cpu_arena else ("options.enable_cpu_mem_arena = False",)
    for key, value in sorted(options.session_config.items()):
        yield f"options.add_session_config_entry({key!r}, {value!r})"
    provider = provider_named(options.provider)
    own = (provider.ort_name or provider.name, dict(sorted(options.provider_options.items())))
    yield "return []" if provider.name == CPU else f"return [{own!r}]"


def react_native(opening: Opening) -> Iterator[str]:
    """TypeScript by onnxruntime-react-native; ConfigError for a provider that it does not have."""
    yield "// path: a file of the app without file://; models among Android's assets must be copied out first."
    yield f"export async function open{opening.type_name}(path: string): Promise<InferenceSession> {{"
    yield "  const ways: InferenceSession.SessionOptions[] = ["
    for options in opening.ways:
        yield f"    // {remark(options_name(options))}"
        yield f"    {{{', '.join(_react_native_fields(options))}}},"
    yield "  ];"
    yield "  let failure: unknown;"
    yield "  for (const options of ways) {"
    yield "    try {"
    yield "      return await InferenceSession.create(path, options);"
    yield "    } catch (error) {"
    yield "      failure = error;"
    yield "    }"
    yield "  }"
    yield "  throw failure;"
    yield "}"


def _react_native_fields(options: RunOptions) -> Iterator[str]:
    provider = provider_named(options.provider)
    if options.provider not in DART_PROVIDERS:
        raise _no_call(options, "onnxruntime-react-native")
    if provider.name != CPU:  # naming the CPU would switch its arena off
        own = [f"{REACT_NATIVE_FLAGS[flag.value]}: true" for flag in options.flags]
        own += [f"coreMlFlags: {_coreml_flags(options)}"] if provider.name == "coreml" else []
        yield f"executionProviders: [{{{', '.join([f'name: {json.dumps(provider.name)}', *own])}}}]"
    if options.optimization_level in REACT_NATIVE_LEVELS:
        yield f"graphOptimizationLevel: {json.dumps(REACT_NATIVE_LEVELS[options.optimization_level])}"
    yield from (f"intraOpNumThreads: {count}" for count in [options.intra_op_threads] if count)
    yield from (f"interOpNumThreads: {count}" for count in [options.inter_op_threads] if count)
    yield from ("executionMode: 'parallel'",) if options.execution_mode is ExecutionMode.PARALLEL else ()
    yield from () if options.memory_pattern else ("enableMemPattern: false",)
    yield from () if options.cpu_arena else ("enableCpuMemArena: false",)


def _coreml_flags(options: RunOptions) -> int:
    return sum(COREML_FLAGS.get(pair, 0) for pair in options.provider_options.items())


def flutter(opening: Opening) -> Iterator[str]:
    """Dart by flutter_onnxruntime; ConfigError for a provider that it does not have."""
    asset = java_text(f"assets/models/{opening.file}").replace("$", "\\$")
    yield f"Future<OrtSession> open{opening.type_name}({{String asset = {asset}}}) async {{"
    yield "  final ways = ["
    for options in opening.ways:
        yield f"    // {remark(options_name(options))}"
        yield f"    OrtSessionOptions({', '.join(_flutter_fields(options))}),"
    yield "  ];"
    yield "  Object? failure;"
    yield "  for (final options in ways) {"
    yield "    try {"
    yield "      return await OnnxRuntime().createSessionFromAsset(asset, options: options);"
    yield "    } catch (error) {"
    yield "      failure = error;"
    yield "    }"
    yield "  }"
    yield "  throw failure!;"
    yield "}"


def _flutter_fields(options: RunOptions) -> Iterator[str]:
    yield from (f"intraOpNumThreads: {count}" for count in [options.intra_op_threads] if count)
    yield from (f"interOpNumThreads: {count}" for count in [options.inter_op_threads] if count)
    if options.provider not in DART_PROVIDERS:
        raise _no_call(options, "flutter_onnxruntime")
    yield f"providers: [OrtProvider.{DART_PROVIDERS[options.provider]}]"
    yield from () if options.cpu_arena else ("useArena: false",)


def maui(opening: Opening) -> Iterator[str]:
    """C# by Microsoft.ML.OnnxRuntime; ConfigError for a provider that it does not have."""
    yield f"public static class {opening.type_name}Model"
    yield "{"
    yield "    /// <summary>Opens the asset of Resources/Raw.</summary>"
    yield "    public static async Task<InferenceSession> OpenAsync()"
    yield "    {"
    yield f"        using var asset = await FileSystem.OpenAppPackageFileAsync({java_text(opening.file)});"
    yield "        using var model = new MemoryStream();"
    yield "        await asset.CopyToAsync(model);"
    yield "        return Open(model.ToArray());"
    yield "    }"
    yield ""
    yield "    public static InferenceSession Open(byte[] model)"
    yield "    {"
    yield "        var ways = new Action<SessionOptions>[]"
    yield "        {"
    yield from _tried(opening, "            options =>  // {name}\n            {{", "            },", _maui_calls)
    yield "        };"
    yield "        for (var way = 0; ; way++)"
    yield "        {"
    yield "            try"
    yield "            {"
    yield "                using var options = new SessionOptions();"
    yield "                ways[way](options);"
    yield "                return new InferenceSession(model, options);"
    yield "            }"
    yield "            catch (Exception) when (way + 1 < ways.Length)"
    yield "            {"
    yield "            }"
    yield "        }"
    yield "    }"
    yield "}"


def _maui_calls(options: RunOptions) -> Iterator[str]:
    yield f"    options.GraphOptimizationLevel = GraphOptimizationLevel.{CPP_LEVELS[options.optimization_level]};"
    yield from (f"    options.IntraOpNumThreads = {count};" for count in [options.intra_op_threads] if count)
    yield from (f"    options.InterOpNumThreads = {count};" for count in [options.inter_op_threads] if count)
    if options.execution_mode is ExecutionMode.PARALLEL:
        yield "    options.ExecutionMode = ExecutionMode.ORT_PARALLEL;"
    yield from () if options.memory_pattern else ("    options.EnableMemoryPattern = false;",)
    yield from () if options.cpu_arena else ("    options.EnableCpuMemArena = false;",)
    for key, value in sorted(options.session_config.items()):
        yield f"    options.AddSessionConfigEntry({java_text(key)}, {java_text(value)});"
    provider = provider_named(options.provider)
    if provider.has_flags:
        flags = " | ".join(f"NnapiFlags.NNAPI_FLAG_{flag.value}" for flag in options.flags)
        yield f"    options.AppendExecutionProvider_Nnapi({flags});"
    elif provider.name == "coreml":
        yield f"    options.AppendExecutionProvider_CoreML((CoreMLFlags){_coreml_flags(options)});"
    elif provider.name in ("xnnpack", "qnn"):
        pairs = ", ".join(f"[{java_text(k)}] = {java_text(v)}" for k, v in sorted(options.provider_options.items()))
        text = f"new Dictionary<string, string> {{ {pairs} }}"
        yield f"    options.AppendExecutionProvider({java_text(provider.append_name)}, {text});"
    elif provider.name != CPU:
        raise _no_call(options, "Microsoft.ML.OnnxRuntime")


def _no_call(options: RunOptions, package: str) -> ConfigError:
    return ConfigError(
        f"{package} has no call for the provider {options.provider}",
        where="the bundle's manifest",
        remedy="leave the provider out of [[runs]], and make the bundle again",
    )
