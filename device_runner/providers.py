"""The registry of execution providers that a run can ask for: names, abilities and bounds, as data.

A provider without a row can be asked for too: its name goes to the library's generic append call as it is. Sources:
ONNX Runtime's headers and Java API, 1.20 to 1.31.
"""

import difflib
import re
from dataclasses import dataclass, field
from typing import Final

from device_runner.errors import SpecError

CPU: Final = "cpu"
NNAPI: Final = "nnapi"

NNAPI_API_LEVEL: Final = 27
NNAPI_RELAXED_API_LEVEL: Final = 28
NNAPI_DEVICES_API_LEVEL: Final = 29
"""Android's API levels from which NNAPI is there, from which it can be told to compute in half precision
(relaxComputationFloat32toFloat16), and from which it names its devices and takes NCHW (ONNX Runtime's NNAPI provider,
1.19 to 1.31)."""
NNAPI_NEWEST_API_LEVEL: Final = 31
"""The last API level by which its claims differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginPackage:
    """The Python package that brings a provider's plugin for computers, to be loaded beside a stock libonnxruntime.

    `module` is its folder with the `library` in it; `files` are provider options that name a file of that folder, where
    none is given. `since` is the first release of ONNX Runtime that will do. `by_chip`: it computes as one of `CHIPS`,
    in a simulator. `systems` are those that there is a package for, as `platform` calls them.
    """

    distribution: str
    module: str
    library: str
    since: tuple[int, int, int]
    files: dict[str, str] = field(default_factory=dict)
    by_chip: bool = False
    systems: tuple[tuple[str, str], ...] = (("Linux", "x86_64"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionProvider:
    """What a run with an execution provider is.

    `name` is the one in run options, configs and ONNX Runtime's source folders; `ort_name` the one under which it is
    registered, in logs and records; `appended` what the generic append call takes, where that is another than `name`.
    `function` ends the name of a C function of its own, OrtSessionOptionsAppendExecutionProvider_FUNCTION; `java` is
    the method of Java's SessionOptions. `nhwc` says whether it has layouts changed to channels last at load; None where
    that is not known, so that the operators of that change cannot be computed. `perf_test`: onnxruntime_perf_test has
    it, by `name`. `plugin` brings it where the library has it not compiled in. `values` are its options, each with the
    regular expression of what it takes: it ignores others without a word, or makes no session. `capture` is the one
    that captures a graph. `gpu`: it computes on a GPU by Vulkan, for which a computer may have a driver in software.
    `nnapi`: it computes by Android's NNAPI, which a device may lack. `fallback`: every session has it unasked, for what
    others leave: the CPU. `own_threads`: its pool of threads is its own, as large as its option intra_op_num_threads
    says. `fixed_shapes`: it wants inputs whose sizes are fixed. `named_since` is the release from which the generic
    append call knows it, `devices_since` that from which it is appended by its devices as well. `option_bits` are its
    options as older calls have them, in one number. `cache_key` is the option with the folder for what it compiles,
    `layout_key` the one with its layout, NHWC or NCHW. Platforms in `excluded` can never have it, as it is `owner`'s:
    `instead` says what they have, and may name {platform}; `remedy` what to do.
    """

    name: str
    title: str = ""
    ort_name: str = ""
    appended: str = ""
    function: str = ""
    java: str = ""
    has_flags: bool = False
    has_options: bool = True
    nhwc: bool | None = None
    min_api_level: int = 0
    owner: str = ""
    excluded: frozenset[str] = frozenset()
    instead: str = ""
    remedy: str = ""
    perf_test: bool = False
    plugin: PluginPackage | None = None
    values: dict[str, str] = field(default_factory=dict)
    capture: str = ""
    gpu: bool = False
    nnapi: bool = False
    fallback: bool = False
    own_threads: bool = False
    fixed_shapes: bool = False
    named_since: tuple[int, int] = (0, 0)
    devices_since: str = ""
    option_bits: dict[tuple[str, str], int] = field(default_factory=dict)
    layout_key: str = ""
    cache_key: str = ""

    @property
    def append_name(self) -> str:
        """What the generic append call takes."""
        return self.appended or self.name

    def never_on(self, platform: str) -> bool:
        """Whether no device of a platform can have it."""
        return platform in self.excluded


_CACHE_MODE = "disabled|lazyRelease|simple|bucket"

CAPTURE_KEY: Final = "enableGraphCapture"

_WEBGPU_OPTIONS = {
    "preferredLayout": "NHWC|NCHW", CAPTURE_KEY: "0|1", "enableInt64": "0|1", "forceCpuNodeNames": r"[^\0]+",
    "validationMode": "disabled|wgpuOnly|basic|full", "powerPreference": "high-performance|low-power",
    "dawnBackendType": "Vulkan|D3D12", "deviceId": "0", "preserveDevice": "0|1", "enablePIXCapture": "0|1",
    "storageBufferCacheMode": _CACHE_MODE, "uniformBufferCacheMode": _CACHE_MODE,
    "queryResolveBufferCacheMode": _CACHE_MODE, "defaultBufferCacheMode": _CACHE_MODE,
    "maxStorageBufferBindingSize": r"\d+", "maxNumPendingDispatches": r"\d+", "sessionBufferPoolGenerations": r"\d+",
    "multiRotaryCacheConcatOffset": r"\d+", "kvCacheQuantizationBits": "0|4|8",
}  # fmt: skip
"""Of plugin 0.4.0 and Android 1.29.0 alike. Handles of an app (webgpuInstance, webgpuDevice, dawnProcTable, another
deviceId) are nothing that a run can give."""

_COREML_OPTIONS = {
    "ModelFormat": "NeuralNetwork|MLProgram",
    "RequireStaticInputShapes": "0|1",
    "EnableOnSubgraphs": "0|1",
    "MLComputeUnits": "ALL|CPUOnly|CPUAndGPU|CPUAndNeuralEngine",
    "SpecializationStrategy": "Default|FastPrediction",
    "ProfileComputePlan": "0|1",
    "AllowLowPrecisionAccumulationOnGPU": "0|1",
    "ModelCacheDirectory": r"[^\0]+",
}
"""The same by name and by devices (1.31.1); for others CoreML makes no session (ep_rules E.1)."""

_COREML_BITS = {
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
"""Options that its older flags have too (coreml_provider_factory.h)."""

_FLAG, _COUNT, _TEXT = "0|1|True|true|False|false", r"\d+", r"[^\0]+"
"""How CUDA and TensorRT read their options (onnxruntime/core/common/parse_string.h)."""

_CUDA_OPTIONS = {
    "arena_extend_strategy": "kNextPowerOfTwo|kSameAsRequested",
    "cudnn_conv_algo_search": "EXHAUSTIVE|HEURISTIC|DEFAULT",
    **dict.fromkeys(("device_id", "gpu_mem_limit", "sdpa_kernel", "tunable_op_max_tuning_duration_ms"), _COUNT),
    **dict.fromkeys((
        "do_copy_in_default_stream", "cudnn_conv_use_max_workspace", "cudnn_conv1d_pad_to_nc1d", "enable_cuda_graph",
        "enable_cudnn", "enable_skip_layer_norm_strict_mode", "prefer_nhwc", "use_tf32", "fuse_conv_bias",
        "use_ep_level_unified_stream", "tunable_op_enable", "tunable_op_tuning_enable",
    ), _FLAG),
}  # fmt: skip
_TENSORRT_OPTIONS = {
    "device_id": _COUNT, "trt_builder_optimization_level": "0|1|2|3|4|5", "trt_auxiliary_streams": r"-?\d+",
    **{f"trt_{name}": _FLAG for name in (
        "fp16_enable", "bf16_enable", "int8_enable", "int8_use_native_calibration_table", "dla_enable",
        "dump_subgraphs", "engine_cache_enable", "engine_decryption_enable", "force_sequential_engine_build",
        "context_memory_sharing_enable", "layer_norm_fp32_fallback", "timing_cache_enable", "force_timing_cache",
        "detailed_build_log", "build_heuristics_enable", "sparsity_enable", "cuda_graph_enable", "engine_hw_compatible",
        "weight_stripped_engine_enable", "dump_ep_context_model", "load_user_initializer", "ep_context_embed_mode",
    )},
    **{f"trt_{name}": _COUNT for name in (
        "max_partition_iterations", "min_subgraph_size", "max_workspace_size", "dla_core",
    )},
    **{f"trt_{name}": _TEXT for name in (
        "int8_calibration_table_name", "engine_cache_path", "engine_cache_prefix", "engine_decryption_lib_path",
        "tactic_sources", "timing_cache_path", "extra_plugin_lib_paths", "profile_min_shapes", "profile_max_shapes",
        "profile_opt_shapes", "ep_context_file_path", "onnx_model_folder_path", "op_types_to_exclude",
        "preview_features",
    )},
}  # fmt: skip
"""Both of onnxruntime-gpu 1.31.1. What an app alone can give is left out: streams, allocators, bytes of a model."""


def _nvidia(title: str, ort_name: str, capture: str, values: dict[str, str]) -> ExecutionProvider:
    return ExecutionProvider(
        name=title.lower(),
        title=title,
        ort_name=ort_name,
        function=title,
        perf_test=True,
        capture=capture,
        values=values,
        owner="NVIDIA",
        excluded=frozenset({"android", "ios", "macos"}),
        instead="no device with {platform} has its hardware",
        remedy="run it on a computer with such a GPU, with the libonnxruntime of onnxruntime-gpu",
    )


_ROWS = (
    ExecutionProvider(
        name=CPU, title="CPU", ort_name="CPUExecutionProvider", has_options=False, nhwc=False, perf_test=True,
        fallback=True,
    ),
    ExecutionProvider(
        name=NNAPI, title="NNAPI", ort_name="NnapiExecutionProvider", function="Nnapi", java="addNnapi",
        has_flags=True, has_options=False, nhwc=True, nnapi=True, min_api_level=NNAPI_API_LEVEL, perf_test=True,
        fixed_shapes=True,
        owner="Android", excluded=frozenset({"ios", "macos"}), instead="{platform} has CoreML",
        remedy="run it on a phone with Android, or ask for coreml",
    ),
    ExecutionProvider(
        name="xnnpack", title="XNNPACK", ort_name="XnnpackExecutionProvider", appended="XNNPACK", java="addXnnpack",
        nhwc=True, perf_test=True, own_threads=True,
    ),
    ExecutionProvider(
        name="coreml", title="CoreML", ort_name="CoreMLExecutionProvider", appended="CoreML", function="CoreML",
        java="addCoreML", nhwc=False, perf_test=True, fixed_shapes=True, values=_COREML_OPTIONS,
        option_bits=_COREML_BITS, named_since=(1, 21), devices_since="1.31.1", cache_key="ModelCacheDirectory",
        owner="Apple", excluded=frozenset({"android", "linux"}), instead="not on {platform}",
        remedy="run it on a Mac or an iPhone",
    ),
    ExecutionProvider(
        name="qnn", title="QNN", ort_name="QNNExecutionProvider", appended="QNN", java="addQnn", nhwc=True,
        perf_test=True, fixed_shapes=True,
        plugin=PluginPackage(
            distribution="onnxruntime-qnn", module="onnxruntime_qnn",
            library="libonnxruntime_providers_qnn.so", since=(1, 24, 2),
            files={"backend_path": "libQnnHtp.so"}, by_chip=True,
        ),
    ),
    ExecutionProvider(
        name="webgpu", title="WebGPU", ort_name="WebGpuExecutionProvider", appended="WebGPU", java="addWebGPU",
        perf_test=True, nhwc=True, gpu=True, values=_WEBGPU_OPTIONS, capture=CAPTURE_KEY, layout_key="preferredLayout",
        plugin=PluginPackage(
            distribution="onnxruntime-ep-webgpu", module="onnxruntime_ep_webgpu",
            library="libonnxruntime_providers_webgpu.so", since=(1, 24, 4),
            systems=(("Linux", "x86_64"), ("Linux", "aarch64")),
        ),
    ),
    _nvidia("CUDA", "CUDAExecutionProvider", "enable_cuda_graph", _CUDA_OPTIONS),
    _nvidia("TensorRT", "TensorrtExecutionProvider", "trt_cuda_graph_enable", _TENSORRT_OPTIONS),
)  # fmt: skip

PROVIDERS: dict[str, ExecutionProvider] = {provider.name: provider for provider in _ROWS}
"""The registry, by name in run options; help texts and messages list them in this order."""


def register(provider: ExecutionProvider) -> None:
    """Add a provider that is described elsewhere, behind those that are known here; a second time is nothing new."""
    PROVIDERS.setdefault(provider.name, provider)


OTHER_NAMES = (
    "acl", "armnn", "azure", "cann", "dml", "dnnl", "js", "migraphx", "nvtensorrtrtx", "openvino", "rknpu",
    "rocm", "snpe", "tvm", "vitisai", "vsinpu", "webnn",
)  # fmt: skip
"""Further execution providers of ONNX Runtime, known by name only."""


def provider_named(name: str) -> ExecutionProvider:
    """The row of a provider; for a name without one, what a provider is of which nothing is known."""
    return PROVIDERS.get(name) or ExecutionProvider(name=name, title=name)


def on_cpu(name: str) -> bool:
    """Whether a provider of a run is the CPU, which computes what no other takes."""
    return provider_named(name).fallback


def accepted_values(pattern: str) -> str:
    """What an option takes in words, of its regular expression in `ExecutionProvider.values`."""
    if pattern == _FLAG:
        return "0 or 1, True or False"
    words = {r"\d+": "a whole number", r"[^\0]+": "any text that is not empty"}
    return " or ".join(words.get(value, value) for value in pattern.split("|"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """A chip: `name` is Android's Build.SOC_MODEL without the letters of a variant, `title` what shops call it.

    `soc_model` is the compiler's number of it, `htp_arch` the generation of its NPU (75 is V75). `floats` says whether
    the NPU of a phone with it computes floats: that depends on the chip, not on the generation.
    """

    name: str
    title: str
    soc_model: int
    htp_arch: int
    floats: bool

    @property
    def options(self) -> dict[str, str]:
        """The provider's options that name the chip.

        Without a chip its library for computers computes in float32, which no phone does.
        """
        return {"soc_model": str(self.soc_model), "htp_arch": str(self.htp_arch)}


NEW_LAYOUT = 73
"""The generation from which on an NPU takes no context of an earlier one."""

_CHIPS = (
    Chip(name="SM8350", title="Snapdragon 888", soc_model=30, htp_arch=68, floats=False),
    Chip(name="SM8325", title="Snapdragon 888 without modem", soc_model=34, htp_arch=68, floats=False),
    Chip(name="SM7325", title="Snapdragon 778G", soc_model=35, htp_arch=68, floats=False),
    Chip(name="SM8450", title="Snapdragon 8 Gen 1", soc_model=36, htp_arch=69, floats=True),
    Chip(name="SM7450", title="Snapdragon 7 Gen 1", soc_model=41, htp_arch=69, floats=True),
    Chip(name="SM8475", title="Snapdragon 8+ Gen 1", soc_model=42, htp_arch=69, floats=True),
    Chip(name="SM8550", title="Snapdragon 8 Gen 2", soc_model=43, htp_arch=73, floats=True),
    Chip(name="SM8635", title="Snapdragon 8s Gen 3", soc_model=68, htp_arch=73, floats=False),
    Chip(name="SM7675", title="Snapdragon 7+ Gen 3", soc_model=70, htp_arch=73, floats=False),
    Chip(name="SM7635", title="Snapdragon 7s Gen 3", soc_model=73, htp_arch=73, floats=False),
    Chip(name="SM7750", title="Snapdragon 7 Gen 4", soc_model=86, htp_arch=73, floats=False),
    Chip(name="SM8650", title="Snapdragon 8 Gen 3", soc_model=57, htp_arch=75, floats=True),
    Chip(name="SM8750", title="Snapdragon 8 Elite", soc_model=69, htp_arch=79, floats=True),
    Chip(name="SM8850", title="Snapdragon 8 Elite Gen 5", soc_model=87, htp_arch=81, floats=True),
    Chip(name="SM8975", title="SM8975", soc_model=103, htp_arch=85, floats=True),
)

CHIPS: dict[str, Chip] = {chip.name: chip for chip in _CHIPS}
"""The chips by name, the oldest NPU first. Sources: the QNN provider's own table of chips (onnxruntime-qnn 2.7), and
one session of a float model for each number (docs/npu.md)."""


def chip_of_phone(soc_model: str) -> Chip | None:
    """The chip by a phone's Build.SOC_MODEL (ro.soc.model), such as SM8550-AC; None for one without a row."""
    name = re.fullmatch(r"([A-Z]+\d+)[A-Z-]*", soc_model.strip().upper())
    return CHIPS.get(name[1]) if name else None


def chip_named(text: str) -> Chip:
    """The chip that a user names; SpecError for one without a row.

    The compiler takes a wrong number without a word, and then nothing of any model.
    """
    chip = chip_of_phone(text)
    if chip is None:
        close = difflib.get_close_matches(text.upper(), CHIPS, n=1, cutoff=0.8)
        names = ", ".join(
            f"{chip.name} ({chip.title})" if chip.title != chip.name else chip.name for chip in CHIPS.values()
        )
        raise SpecError(
            f"no Snapdragon chip is called {text!r}",
            why="a chip is named by Android's Build.SOC_MODEL (adb shell getprop ro.soc.model)",
            remedy=f"did you mean {close[0]}?" if close else f"use one of {names}",
        )
    return chip
