"""From error texts of ONNX Runtime, linkers and devices to kinds, causes and remedies. One table, first match wins."""

import errno
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import msgspec

from device_runner.errors import NoLibraryError, RunnerError, SpecError, UnavailableError
from device_runner.result import Failure, FailureKind
from device_runner.safe_text import visible


class Topic(StrEnum):
    """What a text speaks of, for those whom one kind of it concerns; `LIBRARY` is what only a device can say."""

    LIBRARY = "library"
    MODEL = "model"
    OPERATOR = "operator"
    KERNEL = "kernel"
    FORMAT = "format"
    BUILD = "build"
    ROOM = "room"


@dataclass(frozen=True, slots=True)
class Text:
    """A fragment (regular expression) of a message, and what it means; without `code` the reporter's stays.

    In `why`, {0} and {1} are what the fragment's groups matched.
    """

    fragment: str
    why: str
    remedy: str
    code: FailureKind | None = None
    topic: Topic = Topic.LIBRARY


CHECKER = "check it with `onnx.checker.check_model(model, full_check=True)`"

TEXTS = (
    Text(r"no NNAPI in this libonnxruntime", "this libonnxruntime was built without NNAPI",
         "run with the Android library of the app (its AAR), or remove nnapi", FailureKind.PROVIDER_MISSING),
    Text(r"this system has no NNAPI", "the device has no libneuralnetworks.so",
         "use a device with API level 27 or higher, or remove nnapi", FailureKind.PROVIDER_MISSING),
    Text(r"shaderUniform\*?\w*ArrayDynamicIndexing required",
         "the Vulkan driver lacks what WebGPU needs: this Mesa is too old",
         "use Mesa 25 or newer (Debian: bookworm-backports, trixie), or vulkan=swiftshader",
         FailureKind.PROVIDER_REFUSED),
    Text(r"no Vulkan driver: ", "the driver that is to play a GPU cannot be used here",
         "name another by vulkan= (swiftshader, lavapipe, or its library), built for this computer's processor",
         FailureKind.PROVIDER_REFUSED),
    Text(r"cannot use the graph capture feature.* control flow nodes",
         "a captured graph has no control flow, and this one has control flow (If, Loop or Scan)",
         "leave the option that captures the graph out", FailureKind.PROVIDER_REFUSED),
    Text(r"cannot use the graph capture feature",
         "a session captures its graph only where every node is on the GPU, and some stay on the CPU",
         "leave enableGraphCapture out, or see which and why: ort-mobile partition MODEL --ep webgpu --advise",
         FailureKind.PROVIDER_REFUSED),
    Text(r"several callers of a provider that captures", "captures and copies are of one session that runs alone",
         "leave enableGraphCapture out, and device_tensors, or measure without --concurrent", FailureKind.BAD_OPTIONS),
    Text(r"no device tensors", "the provider has no memory of its own, or every node at the model's ends is the CPU's",
         "leave device_tensors out, or see which nodes: ort-mobile partition MODEL", FailureKind.BAD_OPTIONS),
    Text(r"output (.*) is no tensor: what is bound", "sequences, maps and optional values are the CPU's",
         "leave enableGraphCapture out, and device_tensors, or that output", FailureKind.BAD_OPTIONS),
    Text(r"a captured graph neither reads nor writes", "sizes and indices that change between steps stay on the CPU",
         "leave enableGraphCapture out, or that input or state", FailureKind.BAD_OPTIONS),
    Text(r"OrtValue provided for output '([^']*)'", "the output {0} changes its shape from one inference to the next",
         "measure a model whose outputs keep their shape: a stream needs states of one size, as in a cache"),
    Text(r"Couldn't load Vulkan", "the library has WebGPU, and found no libvulkan",
         "install a driver with Vulkan (Debian: libvulkan1), or name a driver that computes on the CPU by vulkan=",
         FailureKind.PROVIDER_REFUSED),
    Text(r"Failed to get a WebGPU adapter",
         "the library has WebGPU, and found no GPU here with a driver that it can use",
         "use a device with a GPU and its driver (Vulkan; on Apple's systems Metal), or remove webgpu",
         FailureKind.PROVIDER_REFUSED),
    Text(r"Failed to get a WebGPU device", "the driver of the GPU lacks something that WebGPU needs",
         "update the driver, use another device, or remove webgpu", FailureKind.PROVIDER_REFUSED),
    Text(r"execution provider is not (?:supported|enabled) in this build",
         "the library was built without that provider: it is not compiled in",
         "use a library that has it, build it in, or remove the provider", FailureKind.PROVIDER_MISSING, Topic.BUILD),
    Text(r"Unknown provider name", "the library has no provider of that name",
         "check the name; NNAPI is called `nnapi` here", FailureKind.PROVIDER_MISSING),
    Text(r"Both NNAPI_FLAG_CPU_DISABLED and NNAPI_FLAG_CPU_ONLY", "the two flags exclude each other",
         "give one of CPU_DISABLED and CPU_ONLY", FailureKind.BAD_OPTIONS),
    Text(r"explicitly added the CPU EP", "session.disable_cpu_ep_fallback cannot be combined with the CPU provider",
         "remove the key, or use an accelerator", FailureKind.BAD_OPTIONS),
    Text(r"fallback to CPU EP has been explicitly disabled",
         "the provider left nodes to the CPU, and session.disable_cpu_ep_fallback forbids that",
         "list them with `ort-mobile partition`, or remove the key", FailureKind.PROVIDER_REFUSED),
    Text(r"more callers need about .* of memory", "all callers hold their memory at the same time",
         "ask for fewer, for callers of one session (without :own), or for a smaller model or batch",
         FailureKind.OUT_OF_MEMORY),
    Text(r"bad.alloc|[Ff]ailed to allocate memory|[Oo]ut of memory|Cannot allocate memory|no memory for"
         r"|Not enough memory|ArenaExtend|Requested.*exceeds|failed to map segment|no thread with nice .*Resource temp",
         "it asks for more memory than there is",
         "use a smaller model or batch, or more memory; look for constants of an enormous shape in the model; on a "
         "device, use an ORT format file with its bytes used directly", FailureKind.OUT_OF_MEMORY, Topic.ROOM),
    Text(r"Failed to save ORT format model", "the file could not be written: the disk is full, or it passed 2 GiB",
         "free some space, or quantize the model", topic=Topic.ROOM),
    Text(r"No space left on device|ENOSPC", "the disk is full",
         "free some space (on a phone under /data/local/tmp), or choose another folder with --output",
         FailureKind.NO_SPACE, Topic.ROOM),
    Text(r"program alignment \(\d+\) cannot be smaller than system page size",
         "the library is aligned to smaller memory pages than this device uses (16 KB)",
         "use a release whose library is aligned to 16 KB (1.20 and later), or build it with that alignment",
         FailureKind.WRONG_LIBRARY),
    Text(r"wrong ELF class|is for EM_|unexpected e_machine|invalid ELF header|has bad ELF magic|file too short"
         r"|unsupported file type",
         "the file is not a library for this device's processor", "use the library for the device's ABI",
         FailureKind.WRONG_LIBRARY),
    Text(r"version `?\W?(?:GLIBC|GLIBCXX|CXXABI)_[\d.]+'? not found",
         "the library was built for a newer system than this device runs",
         "use an older library, or a device with a newer system", FailureKind.WRONG_LIBRARY),
    Text(r"version .?VERS_[\d.]+.? not found|cannot locate symbol",
         "libraries of two releases of ONNX Runtime are mixed", "use libraries from one package",
         FailureKind.WRONG_LIBRARY),
    Text(r"requested API version .* is not available|has no API version",
         "the library is older than the probe supports (before 1.12)", "use a newer libonnxruntime",
         FailureKind.WRONG_LIBRARY),
    Text(r"has no OrtGetApiBase", "the file is a library, but not ONNX Runtime",
         "give the path of libonnxruntime itself", FailureKind.WRONG_LIBRARY),
    Text(r"(?:libc|liblog|libandroid|libdl|libm)\.so: (?:cannot open shared object file|invalid ELF header)",
         "the library was built for Android, and this computer runs Linux",
         "run it with --device android-host:LIBRARY, or on a phone (adb:SERIAL)", FailureKind.WRONG_LIBRARY),
    Text(r"cannot open shared object file|library \".*\" not found|image not found|dlopen failed",
         "the library, or one that it depends on, is missing",
         "check the path; put the libraries that it depends on into the same folder", FailureKind.MISSING_LIBRARY),
    Text(r"ONNX Runtime \S+ cannot load plugins", "the library is older than 1.24, which tells what a plugin took",
         "use libonnxruntime 1.24 or later", FailureKind.WRONG_LIBRARY),
    Text(r"(?:Failed to get symbol|undefined symbol:?) CreateEpFactories",
         "the file is a library, but no plugin of ONNX Runtime",
         "give the library of a plugin execution provider", FailureKind.WRONG_LIBRARY),
    Text(r"took none of the model's \d+ nodes",
         "the plugin refused every node, as QNN does where dimensions are open, or an option names a chip or a backend "
         "that it does not have",
         "fix the sizes, check provider_options (for qnn: soc_model of one chip); the log of the run has its reasons",
         FailureKind.PROVIDER_REFUSED),
    Text(r"plugin \S+ offers no device of", "the plugin does not support this device, or is of another provider",
         "use a device that it is for, or ask for a provider that it has", FailureKind.PROVIDER_MISSING),
    Text(r"Failed to get context binary info|Empty cache file encountered|QNN graph execute error.*Code: 1100",
         "the binary of the context is cut or damaged, or no context at all",
         "copy both files of the context again, or make it again: `ort-mobile convert MODEL --context CHIP`"),
    Text(r"contextCreateFromBinary failed|Failed to create context from binary",
         "the context is for another NPU, or was made by a newer QAIRT than the runtime here",
         "make it for this chip with the QAIRT of the runtime: `ort-mobile convert MODEL --context CHIP`"),
    Text(r"file path in ep_cache_context does not exist", "the binary of the context is not beside its ONNX file",
         "keep both files in one folder under the names that they were made with, and open the ONNX file by its path"),
    Text(r"data size does not match QNN tensor data size", "the binary beside the context's file is another model's",
         "copy both files of the context again, or make it again: `ort-mobile convert MODEL --context CHIP`"),
    Text(r"Failed to (?:compose|finalize) Q[Nn][Nn] graph",
         "the NPU's compiler has no implementation of a node that its provider took",
         "`ort-mobile partition MODEL --ep qnn --chip CHIP --advise` names the node, or what is wrong with its shapes"),
    Text(r"EPContext node generated by '(\w+)' is not compatible.*execution providers: \[[^\]]*\1",
         "{0} made the context, is here and takes it not: the libraries that it runs on are not beside it, or the "
         "device has no such NPU",
         "give them with the plugin, as in --plugin qnn=libonnxruntime_providers_qnn.so,libQnnHtp.so,… (docs/npu.md)"),
    Text(r"EPContext node generated by '\w+' is not compatible|Failed to find kernel for com\.microsoft\.EPContext",
         "the file is a context, which only the provider runs that made it",
         "run it with that provider (QNN's with qnn, on a Snapdragon or simulated with soc_model=CHIP), or give the "
         "model that it was made from"),
    Text(r"ep_cache_context field has|outside the directory",
         "the context's ONNX file names a binary in another folder, which ONNX Runtime does not open",
         "make it again: `ort-mobile convert MODEL --context CHIP`"),
    Text(r"No matching hash for|kernel def hash",
         "the file has an old ORT format version (4, of release 1.12 and older), and the library lacks a kernel that "
         "it names", "convert the model again with the release that the app ships", topic=Topic.FORMAT),
    Text(r"[Cc]ould not find an implementation for|Failed to find kernel|Kernel not found",
         "the library has no kernel for an operator or its type: a reduced build, or a type that no kernel supports",
         "use another data type or operator; for a reduced build, add the operator (and type) to its operator config",
         topic=Topic.KERNEL),
    Text(r"ORT format model version \[.*?\] is not supported|doesn't support ORT format models older than",
         "the library does not read the file's ORT format version",
         "convert the model again with the onnxruntime of the release that the app ships", topic=Topic.FORMAT),
    Text(r"ORT model verification failed",
         "the bytes are no whole ORT format model: truncated, empty or of another format",
         "convert again, or compare the file's digest with the bundle's manifest; in an app, keep .ort files "
         "uncompressed (aapt noCompress)", topic=Topic.FORMAT),
    Text(r"Invalid fd was supplied|File doesn't exist|NO_SUCHFILE", "the model file is missing", "check the path"),
    Text(r"INVALID_PROTOBUF|Protobuf parsing failed",
         "it is no valid ONNX protobuf; perhaps an ORT format file without the suffix .ort",
         "export it again, or check the file and its suffix", topic=Topic.MODEL),
    Text(r"ONNX format model is not supported in this build",
         "a minimal build was given an ONNX model: it loads only the ORT format",
         "convert the model, and load the .ort file", topic=Topic.FORMAT),
    Text(r"No graph was found in the protobuf", "the file is empty", "export or convert the model again",
         topic=Topic.MODEL),
    Text(r"Unsupported model IR version(?:: (\d+), max supported IR version: (\d+))?",
         "the model's IR version {0} is newer than this release reads (at most {1})",
         "export with an older IR version, or use a newer release", topic=Topic.MODEL),
    Text(r"Opset \d+ is under development|only \*guarantees\* support for models stamped",
         "the model's opset is newer than this release supports", "export with a lower opset, or use a newer release",
         topic=Topic.MODEL),
    Text(r"No Op registered for (\S+)(?: with domain_version of (-?\d+))?",
         "operator {0} does not exist in opset {1} of this release",
         "export the model again with another opset, or use a later release; a target's `ort_release` must be that of "
         "what ships", topic=Topic.OPERATOR),
    Text(r"(\S+?):(\S+?)\(-?\d+\) is not a registered function/op|is not a registered function/op",
         "operator {1} of domain {0} is unknown: of a custom domain, or misspelt",
         "give the library that has it (--custom-ops; custom_ops in a config), or replace it by standard operators",
         topic=Topic.MODEL),
    Text(r"two nodes with same node name \(([^)]*)\)", "two of its nodes have the name {0}",
         "give each node a name of its own, or none: onnx's checker lets it pass, ONNX Runtime does not",
         topic=Topic.MODEL),
    Text(r"Failed to construct locale with name:([\w.@-]+)",
         "its StringNormalizer asks for the locale {0}, which this system does not have",
         "install it (Debian: localedef of the package locales), or set the node's attribute locale to C",
         topic=Topic.MODEL),
    Text(r"[Mm]issing opset in the model|opset import.*(?:missing|not)|no opset import for domain",
         "the model does not say which opset it uses", "export the model again", topic=Topic.MODEL),
    Text(r"We do not support type \[9\]", "it has values of optional type, which the ORT format cannot hold",
         "remove optional inputs, outputs and operators of type Optional", topic=Topic.MODEL),
    Text(r"MLDataType for: tensor\(u?int4\)", "this release does not support 4-bit types", "use 1.19 or later",
         topic=Topic.MODEL),
    Text(r"External data path", "the model stores its weights in external files, which are missing",
         "convert it to ORT format, which keeps everything in one file"),
    Text(r"(?:SparseTensor|Map type|Custom operator libraries|Compiling capabilities) (?:is|are) not supported in this",
         "the build left out more than operators",
         "build without --disable_types and --disable_ml_ops, or with minimal_build extended", topic=Topic.BUILD),
    Text(r"not supported in this build", "this build was made without a part of ONNX Runtime that the model needs",
         "build it with that part, or use the full package"),
    Text(r"Invalid rank for input|Got invalid dimensions for input",
         "an input does not have the shape that the model expects",
         "give inputs of the model's shapes, or sizes for its dynamic dimensions", FailureKind.BAD_INPUT),
    Text(r"Invalid rank for output|Got invalid dimensions for output",
         "an output does not have the shape that the model declares for it",
         "correct its shape in the model's graph.output; or let ONNX Runtime make the output's memory: it checks the "
         "shape of memory that it is given only"),
    Text(r"Unexpected input data type", "an input does not have the type that the model expects",
         "give inputs of the model's types", FailureKind.BAD_INPUT),
    Text(r"dimension \d+ \(.*\) is not fixed", "the model has a dynamic dimension, and no size is given for it",
         "set its size (`--dimension NAME=N`, or `dimensions` in a config), or give inputs", FailureKind.BAD_INPUT),
    Text(r"indices element out of data bounds|indices must be in|out of bounds",
         "the inputs contain indices that are out of range, as random inputs may", "give real inputs (test data)",
         FailureKind.BAD_INPUT),
    Text(r"Number of affinities does not equal|Processor id must|stoi", "a session config entry has an invalid value",
         "check session_config", FailureKind.BAD_OPTIONS),
    Text(r"no thread .*with nice -.*(?:denied|permitted)",
         "the system lets this user make threads slower only (apps of Android may go to -20)",
         "run as root or raise its limit (ulimit -e), or take a nice value of 0 or more", FailureKind.BAD_OPTIONS),
    Text(r"no thread on the cores", "the process may not run on these cores: they do not exist or are taken from it",
         "name others, or leave thread_cores out", FailureKind.BAD_OPTIONS),
    Text(r"Config key is empty or longer", "a session config key is empty or too long", "check session_config",
         FailureKind.BAD_OPTIONS),
    Text(r"Schema was not found for fused node\. Domain:com\.ms\.internal\.nhwc|find op_id: com\.ms\.internal\.nhwc",
         "XNNPACK changes the layout of nodes, and has no schema for what comes of that in an ORT format file "
         "(1.28 and 1.29: of Conv with an activation behind it; 1.17: of any)",
         "ship a level at which the activation is fused before (extended, fixed style), or leave xnnpack out",
         FailureKind.PROVIDER_REFUSED),
    Text(r"input/initializer of graph (?:doesn't have valid|has unsupported quantized) type",
         "NNAPI claimed a node and then could not build its model: it has no such quantized values there",
         "quantize per tensor and with uint8 weights, make an aware file that leaves such nodes to the CPU "
         "(`ort-mobile convert --ep nnapi --safe`), or leave nnapi out", FailureKind.PROVIDER_REFUSED),
    Text(r"The model cannot run using (?:the )?current set of target devices|ANEURALNETWORKS_|while running Nnapi_",
         "the phone's NNAPI driver refused the model", "try other flags, or do not use nnapi on this device",
         FailureKind.PROVIDER_REFUSED),
    Text(r"Type Error|TypeInferenceError|[Tt]ype.*mismatch", "the types in its graph contradict each other", CHECKER,
         topic=Topic.MODEL),
    Text(r"ShapeInferenceError|[Mm]ismatch between number of|[Ii]nvalid (?:shape|rank|dimension)|incompatible "
         r"dimensions", "the shapes in its graph contradict each other", CHECKER, topic=Topic.MODEL),
    Text(r"This is an invalid model|INVALID_GRAPH|Invalid model", "its graph breaks ONNX's rules", CHECKER,
         topic=Topic.MODEL),
)  # fmt: skip
"""Fragments of facts measured with the stock wheels 1.7 to 1.31 and read in their sources; the first match counts."""

ENFORCED = re.compile(r"\S+\.(?:cc|h):\d+ .*? was false\. (?=\S)", re.DOTALL)
"""What ORT_ENFORCE writes before its message: source file, function and condition, for its developers alone."""

MOST_QUOTED = 80
"""Characters of a message that a cause repeats."""


def text_of_message(message: str, *topics: Topic) -> Text | None:
    """The first text that a message has, of the topics if any are named, its `why` with the message's own words."""
    for text in TEXTS:
        if (not topics or text.topic in topics) and (match := re.search(text.fragment, message)):
            words = [visible(group or "?")[:MOST_QUOTED] for group in match.groups()]
            return replace(text, why=text.why.format(*words))
    return None


KINDS: dict[FailureKind, tuple[str, str]] = {
    FailureKind.CRASH: (
        "the library, a driver or the model crashed the process",
        "run it again; if it still crashes, try other flags or another provider",
    ),
    FailureKind.TIMEOUT: (
        "the run took longer than its limit and was killed",
        "raise the time limit, or lower the number of runs",
    ),
    FailureKind.OUT_OF_MEMORY: (
        "the system killed the process, most likely because it used too much memory",
        "use a smaller model or batch, or a device with more memory",
    ),
    FailureKind.PROVIDER_MISSING: ("the provider is not available", "use a library or device that has it"),
    FailureKind.PROVIDER_REFUSED: ("the provider rejected its options", "check provider_options and flags"),
    FailureKind.MODEL_LOAD: ("ONNX Runtime could not load the model", "check it with onnxruntime on this computer"),
    FailureKind.MISSING_LIBRARY: ("libonnxruntime could not be opened", "check the path of the library"),
    FailureKind.WRONG_LIBRARY: ("the probe cannot use this library", "use another libonnxruntime"),
    FailureKind.BAD_INPUT: (
        "the inputs cannot be generated or do not fit the model",
        "give inputs of the model's names, types and shapes",
    ),
    FailureKind.RUN_ERROR: ("ONNX Runtime could not run the model", "check it with onnxruntime on this computer"),
    FailureKind.BAD_OPTIONS: ("ONNX Runtime rejected an option", "check the run options"),
    FailureKind.GARBAGE: (
        "the answer of the device is invalid",
        "run it again; if it stays, look at the log of the device",
    ),
    FailureKind.LOST_DEVICE: ("the connection to the device was lost", "check cable and power; then run it again"),
    FailureKind.NO_SPACE: ("the device is full", "free space on it"),
    FailureKind.WRONG_DEVICE: ("the device does not support this", "choose another device"),
    FailureKind.DEVICE_ERROR: ("the device's system reported an error", "see the message and the log of the device"),
    FailureKind.SET_UP: ("the device's set-up forbids it", "let its shell user store and execute files there"),
    FailureKind.DENIED: ("the combination is on the deny list", "remove it from the list to try it again"),
}
"""What a kind means where no text says more."""


DISK_FULL = (errno.ENOSPC, errno.EDQUOT)

ERROR_KINDS: tuple[tuple[type[Exception], FailureKind], ...] = (
    (NoLibraryError, FailureKind.MISSING_LIBRARY),
    (SpecError, FailureKind.BAD_OPTIONS),
    (UnavailableError, FailureKind.MISSING_LIBRARY),
    (Exception, FailureKind.DEVICE_ERROR),
)
"""What an error on the way to a run makes of it; the first that fits."""


def failure_of(error: Exception, kinds: Sequence[tuple[type[Exception], FailureKind]] = ERROR_KINDS) -> Failure:
    """The failure of a run that an error ended, with what the error itself knows of cause and remedy."""
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        # Errors of the system are this computer's: a device that is full says so in its own words
        full = error.filename2 or error.filename  # of a copy: where it goes to
        where = f" at {full}" if full else ""
        return Failure(
            code=FailureKind.NO_SPACE,
            what=f"the disk of this computer is full{where} ({error.strerror})",
            why="no room for the outputs or temporary files of the run on this computer, not on the device",
            remedy="make room there, or set TMPDIR and --output to folders on another disk",
        )
    code = next(kind for sort, kind in kinds if isinstance(error, sort))
    why, remedy = (error.why, error.remedy) if isinstance(error, RunnerError) else ("", "")
    return explain(Failure(code=code, what=str(error), why=why, remedy=remedy))


def explain(failure: Failure) -> Failure:
    """The failure with code, why and remedy filled in from its message; what it already has stays.

    A message that a text explains loses the place in ONNX Runtime's sources; in all others that is all there is.
    """
    text = None if failure.code in (FailureKind.CRASH, FailureKind.TIMEOUT) else text_of_message(failure.what)
    why, remedy = (text.why, text.remedy) if text else KINDS[failure.code]
    words = failure.what[match.end() :].rstrip() if (match := ENFORCED.match(failure.what)) else failure.what
    return msgspec.structs.replace(
        failure,
        what=words if text and re.search(text.fragment, words) else failure.what,
        code=(text and text.code) or failure.code,
        why=failure.why or why,
        remedy=failure.remedy or remedy,
    )
