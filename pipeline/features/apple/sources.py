"""The Swift sources of a package: a class for each model."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from device_runner import options as runner_options
from device_runner import providers as runner_providers
from device_runner.spec import ElementType, RunOptions
from pipeline.campaign import run_options
from pipeline.core import features
from pipeline.core import releases as ort_releases
from pipeline.core.errors import ConfigError
from pipeline.core.releases import Release
from pipeline.features.apple import own_data
from pipeline.model.signature import TensorInfo
from pipeline.release import app_code, code_names, guards, selection, source_code, tensor_texts
from pipeline.release import bundle as release_bundle
from pipeline.release import manifest as bundle_manifest
from pipeline.release import sizes as release_sizes

ELEMENTS: dict[ElementType, tuple[str, str]] = {
    ElementType.FLOAT32: ("Float", "float"),
    ElementType.INT8: ("Int8", "int8"),
    ElementType.UINT8: ("UInt8", "uInt8"),
    ElementType.INT32: ("Int32", "int32"),
    ElementType.UINT32: ("UInt32", "uInt32"),
    ElementType.INT64: ("Int64", "int64"),
    ElementType.UINT64: ("UInt64", "uInt64"),
    ElementType.STRING: ("String", "string"),
}
"""Element type to Swift's and to ONNX Runtime's ORTTensorElementDataType: the Objective-C API has no others."""

MAPS_FILES = Release(1, 27)
"""The first release that maps a file with session.use_memory_mapped_ort_model."""


TAKEN = frozenset({
    "Answers", "Any", "Array", "ArraySlice", "Bool", "Box", "Bundle", "CChar", "Character", "CryptoKit", "Data",
    "Date", "DateFormatter", "DeviceClass", "DispatchQueue", "DispatchSemaphore", "DispatchTime",
    "DispatchWorkItem", "Double", "Error", "FileHandle", "FileManager", "Float", "Foundation", "Int", "Int16",
    "Int32", "Int64", "Int8", "Label", "Locale", "Mask", "MemoryLayout", "ModelFile", "NSLock", "NSMutableData",
    "NSNumber", "NSRecursiveLock", "ObjCBool", "P256", "P384", "P521", "Pixels", "ProcessInfo", "Protocol",
    "Result", "Runtime", "Self", "Sendable", "Set", "String", "Swift", "Thread", "TimeZone", "Tokenizer", "Type",
    "UInt32", "UInt64", "UInt8", "URL", "URLResourceValues", "UTF8", "Unicode", "UnsafeMutableRawPointer",
    "UnsafeRawBufferPointer", "Way",
})  # fmt: skip
"""Names that the sources use; what begins with ORT may be ONNX Runtime's."""

SWIFT_WORDS = frozenset({
    "Any", "Self", "Type", "actor", "as", "associatedtype", "async", "await", "break", "case", "catch", "class",
    "continue", "convenience", "default", "defer", "deinit", "do", "dynamic", "else", "enum", "extension",
    "fallthrough", "false", "fileprivate", "final", "for", "func", "get", "guard", "if", "import", "in", "indirect",
    "infix", "init", "inout", "internal", "is", "lazy", "let", "mutating", "nil", "nonisolated", "nonmutating", "open",
    "operator", "optional", "override", "postfix", "precedencegroup", "prefix", "private", "protocol", "public",
    "repeat", "required", "rethrows", "return", "self", "set", "some", "static", "struct", "subscript", "super",
    "switch", "throw", "throws", "true", "try", "typealias", "unowned", "var", "weak", "where", "while",
})  # fmt: skip
"""Swift's words: those that may be names only in backticks, and those that read badly as names."""

OWN_NAMES = frozenset({
    "background", "error", "firstRun", "flag", "guarded", "held", "inputs", "outputs", "result", "run", "session",
    "skipped", "starting", "verify", "warmUp", "way", "ways",
})  # fmt: skip
"""What no parameter of `run` may be called: the sources have these."""


GUARD_NAMES = "Guard"
"""What the names of the guard's types begin with, and no model's."""

GUARDS = features.Place[Callable[[Mapping[str, object]], dict[str, str]]]("apple.guard")
"""The sources of a guard for a package: file name to source, from the values of its templates."""


def swift_sources(
    manifest: bundle_manifest.Manifest,
    target: str,
    module: str,
    *,
    telemetry: bool = True,
    guard: bool = True,
    deny_key: str = "",
) -> dict[str, str]:
    """File name to source of the classes for models that ship to a target; without `telemetry` they switch it off.

    With `guard` models that something else than the CPU runs are opened behind a guard, where the feature is there;
    `deny_key` is the public key of who may forbid session options later, a point of X9.63 in hexadecimal digits.
    Raises ConfigError for models that the Objective-C API cannot run, providers that Apple's systems or the release do
    not have, and two models with a class of one name.
    """
    content = manifest.content
    release = min(ort_releases.line_of(shipped.ort_release) for shipped in content.ships if shipped.target == target)
    guards = list(GUARDS) if guard else []
    models = [
        _model(content, name, rows, release, module, guard=bool(guards))
        for name, rows in selection.rows_of(content, target).items()
    ]
    code_names.refuse_equal_names((model["name"], model["class_name"]) for model in models)
    guards = guards if any(model["guarded"] for model in models) else []
    common: dict[str, object] = {
        "bundle": content.name,
        "digest": manifest.content_sha256,
        "module": module,
        "guard": bool(guards),
        "deny_key": deny_key,
        "rollback": ",".join(fallback for fallback in content.rollback if fallback is not bundle_manifest.Fallback.RUN),
    }
    sources: dict[str, str] = {
        f"{model['class_name']}.swift": render("Model.swift", model=model, maps=release >= MAPS_FILES, **common)
        for model in models
    }
    by_class = {model["class_name"]: model for model in models}
    for sizes in release_sizes.sizes_of(content, target):
        title = sizes[-1].model
        name = swift_class(f"{title} sizes", module)
        code_names.refuse_equal_names([(title, name), *((model["name"], model["class_name"]) for model in models)])
        sources[f"{name}.swift"] = render(
            "Sizes.swift",
            class_name=name,
            classes=[by_class[swift_class(size.model, module)] for size in sizes],
            inputs=list(release_sizes.sized_inputs(sizes, SWIFT_WORDS | OWN_NAMES)),
            names=[size.model for size in sizes],
            **common,
        )
    needed = {
        "Tokenizer.swift": any(model["text"] for model in models),
        "Pixels.swift": any(model["picture"] for model in models),
        "Answers.swift": any(model["answer"] for model in models),
    }
    sources |= {name: render(name, **common) for name, is_needed in needed.items() if is_needed}
    by_device = any(len(model["rows"]) > 1 for model in models)
    for write in guards:
        sources |= write(common)
    return {
        **sources,
        "ModelFile.swift": render("ModelFile.swift", by_device=by_device, telemetry=telemetry, **common),
    }


def swift_class(model: str, module: str) -> str:
    """The name of a model's class in a module; a class with the module's own name would hide the module."""
    return code_names.class_name(model, TAKEN | {module, f"{module}Error"}, ("ORT", "CC_", GUARD_NAMES))


def is_taken(name: str) -> bool:
    """Whether a file of the sources is none of a model."""
    return name in TAKEN or name.startswith(GUARD_NAMES)


def _require_usable(
    model: str, signature: bundle_manifest.ModelSignature, ways: Iterable[RunOptions], release: Release
) -> None:
    """Raise ConfigError for types and providers that ONNX Runtime's API for Swift does not have."""
    wrong = [tensor for tensor in signature.inputs if tensor.dtype not in ELEMENTS]
    if not any(tensor.dtype in ELEMENTS for tensor in signature.outputs):
        wrong += signature.outputs
    if wrong:
        kinds = sorted({tensor.dtype or "sequence or map" for tensor in wrong})
        raise ConfigError(
            f"Swift cannot run the model {model}: {wrong[0].name} is {wrong[0].dtype or kinds[0]}",
            where="the bundle's manifest",
            why=f"ONNX Runtime's Objective-C API has no tensors of {', '.join(kinds)}",
            remedy=own_data.remedy(signature)
            or "make float64, float16 and bool float32 (`ort-mobile transform MODEL OUT.onnx --do float-io`, or "
            "`transforms` of the model in the config), or use the C++ API: `ort-mobile release snippet --for cpp`",
        )
    for provider in (runner_providers.provider_named(options.provider) for options in ways):
        why = f"it belongs to {provider.owner}" if provider.never_on("ios") else ""
        if release < provider.named_since:
            since = Release(*provider.named_since)
            why = f"the generic append call of release {release} does not know it; releases from {since} on do"
        if why:
            raise ConfigError(
                f"the provider {provider.title} cannot be used here",
                where="the bundle's manifest",
                why=why,
                remedy="leave it out of [[runs]] for this target, or change ort_release, and make the bundle again",
            )


def _model(
    content: bundle_manifest.Content,
    model: str,
    rows: Sequence[bundle_manifest.SelectionRow],
    release: Release,
    module: str,
    *,
    guard: bool,
) -> dict[str, Any]:
    """A model as Model.swift needs it: files, and which devices have which, as conditions of Swift in their order.

    With `guard`, where it is guarded, what providers compile goes to the folder that the guard has for it.
    """
    signature = content.signature(model)
    ships = ships_of(content, rows)
    ways = [options for shipped in ships for options in shipped.runs]
    guarded = guard and guards.is_guarded(ways, content.ships[rows[-1].ships].runs)
    _require_usable(model, signature, ways, release)
    digests = {file.path: file.sha256 for file in content.files}
    numbers = list(dict.fromkeys(row.ships for row in rows))
    files, conditions = [], []
    for shipped in ships:
        stem, _, suffix = resource(shipped.file).rpartition(".")
        weights = shipped.weights
        files.append(
            {
                "stem": stem,
                "suffix": suffix,
                "sha256": digests[shipped.file],
                "ways": [
                    (
                        run_options.options_name(options),
                        [x for x in app_code.swift_calls(options, _cache(options, guarded)) if not x.startswith("//")],
                        options.on_cpu,
                    )
                    for options in shipped.runs
                ],
                "weights": weights
                and source_code.Code("{}: {}").format(
                    source_code.swift_text(resource(weights)), source_code.swift_text(digests[weights])
                ),
                "by_path": any(
                    options.session_config.get(runner_options.INITIALIZERS_KEY) == "0" for options in shipped.runs
                ),
            }
        )
    for row in rows if len(ships) > 1 else rows[-1:]:  # API levels are Android's
        parts = (
            [source_code.Code("device.chips.contains({})").format(source_code.swift_text(row.soc))] if row.soc else []
        )
        parts += [source_code.Code("device.abi == {}").format(source_code.swift_text(row.abi))] if row.abi else []
        conditions.append((source_code.joined(parts or [source_code.Code("true")], " && "), numbers.index(row.ships)))
    inputs = list(_tensors(signature.inputs, lambda tensor: tensor_texts.input_text(tensor, signature)))
    outputs = list(
        _tensors(
            [tensor for tensor in signature.outputs if tensor.dtype in ELEMENTS],
            lambda tensor: tensor_texts.output_text(tensor, signature),
            "output",
        )
    )
    parameters = [parameter for tensor in inputs for parameter in tensor["parameters"]]
    return {
        "name": model,
        "class_name": swift_class(model, module),
        "guarded": guarded,
        "places": [tensor.name for tensor in signature.outputs],
        "basis": list(dict.fromkeys(release_bundle.basis_text(shipped) for shipped in ships)),
        "files": files,
        "rows": conditions,
        "inputs": inputs,
        "outputs": outputs,
        "parameters": parameters,
        "arguments": [
            source_code.Code("{0}: {0}").format(source_code.identifier(text.partition(":")[0])) for text in parameters
        ],
        **own_data.of_model(signature, digests, inputs, outputs),
        "operators": f"{module}{OPERATORS}" if any(options.custom_ops for options in ways) else "",
        "gpu": any(runner_providers.provider_named(options.provider).gpu for options in ways),
    }


def _tensors(
    tensors: Sequence[TensorInfo], text: Callable[[TensorInfo], source_code.Code], alone: str = ""
) -> Iterator[dict[str, Any]]:
    """Inputs or outputs as Swift expressions; where a shape is not `fixed`, it is a parameter of `run`."""
    for tensor, own_name in code_names.identifiers(tensors, SWIFT_WORDS | OWN_NAMES, alone):
        if tensor.dtype is None:
            continue
        element, ort_type = ELEMENTS[tensor.dtype]
        name, kind = source_code.identifier(own_name), source_code.identifier(element)
        yield {
            "name": tensor.name,
            "identifier": own_name,
            "doc": text(tensor),
            "element": element,
            "ort_type": ort_type,
            "shape": source_code.Code("[{}]").format(source_code.joined(tensor.shape or ()))
            if tensor.fixed
            else source_code.Code("{}Shape").format(name),
            "fixed": tensor.fixed,
            "parameters": [
                source_code.Code("{}: [{}]").format(name, kind),
                *([] if tensor.fixed else [source_code.Code("{}Shape: [Int]").format(name)]),
            ],
        }


def _cache(options: RunOptions, guarded: bool) -> dict[str, source_code.Code]:
    """The option of a provider that keeps what it compiles, with the guard's folder for it."""
    key = runner_providers.provider_named(options.provider).cache_key
    return {key: source_code.Code("cache")} if guarded and key and key not in options.provider_options else {}


OPERATORS = "Operators"
"""What the name of the C module of custom operators has behind that of the package's module."""


def resource(path: str) -> str:
    """The name of a file of the bundle among the package's resources."""
    return path.rpartition("/")[2]


render = partial(source_code.render_source, "pipeline.features.apple")


def ships_of(
    content: bundle_manifest.Content, rows: Sequence[bundle_manifest.SelectionRow]
) -> list[bundle_manifest.Shipped]:
    """What the rows of a model select, each once."""
    return [content.ships[number] for number in dict.fromkeys(row.ships for row in rows)]
