"""The Swift sources of a package: a class for each model that opens it as it was released. Pure functions.

They need Swift 5.9 and ONNX Runtime's Objective-C API of 1.16 or newer (docs/facts/release_consumers.md, R.8).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from device_runner.providers import provider_named
from device_runner.spec import ElementType, RunOptions
from pipeline.campaign.plan import options_name
from pipeline.core.errors import ConfigError
from pipeline.core.releases import Release, line_of
from pipeline.release.app_code import (
    SWIFT,
    class_name,
    comment_text,
    identifiers,
    lacks,
    refuse_equal_names,
    render_source,
    rows_of,
    swift_calls,
    swift_text,
    tensor_text,
)
from pipeline.release.bundle import basis_text
from pipeline.release.manifest import Content, Manifest, ModelSignature, SelectionRow, Shipped, TensorSignature

_render = partial(render_source, "pipeline.features.apple")

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

GENERIC_COREML = Release(1, 21)
"""The first release whose generic append call knows CoreML."""

TAKEN = frozenset({
    "Any", "Array", "Bool", "Bundle", "Data", "DeviceClass", "Error", "FileHandle", "FileManager", "Float",
    "Foundation", "Int", "Int32", "Int64", "Int8", "MemoryLayout", "ModelFile", "NSMutableData", "NSNumber",
    "ProcessInfo", "Protocol", "Result", "Runtime", "Self", "Sendable", "Set", "String", "Swift", "Type",
    "UInt32", "UInt64", "UInt8", "URL", "Way",
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

OWN_NAMES = frozenset({"inputs", "outputs", "result", "session", "verify", "way", "run"})
"""What no parameter of `run` may be called: the sources have these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwiftTensor:
    """An input or output as its Swift expressions; `shape` is "" where the caller gives it."""

    name: str
    identifier: str
    doc: str
    element: str
    ort_type: str
    shape: str = ""

    @property
    def parameters(self) -> tuple[str, ...]:
        """Those of `run` for an input."""
        values = f"{self.identifier}: [{self.element}]"
        return (values,) if self.shape else (values, f"{self.identifier}Shape: [Int]")


@dataclass(frozen=True, slots=True, kw_only=True)
class SwiftFile:
    """A file of a model: resource, digest, session options in their order as names and statements."""

    stem: str
    suffix: str
    sha256: str
    ways: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SwiftModel:
    """A model as its class needs it: files, and which devices have which, as conditions of Swift in their order."""

    name: str
    class_name: str
    basis: tuple[str, ...]
    files: tuple[SwiftFile, ...]
    rows: tuple[tuple[str, int], ...]
    inputs: tuple[SwiftTensor, ...]
    outputs: tuple[SwiftTensor, ...]

    @property
    def parameters(self) -> tuple[str, ...]:
        """Those of `run`."""
        return tuple(parameter for tensor in self.inputs for parameter in tensor.parameters)


def swift_sources(manifest: Manifest, target: str, module: str, *, telemetry: bool = True) -> dict[str, str]:
    """File name to source of the classes for models that ship to a target; without `telemetry` they switch it off.

    Raises ConfigError for models that the Objective-C API cannot run, providers that Apple's systems or the release do
    not have, and two models with a class of one name.
    """
    content = manifest.content
    release = min(line_of(shipped.ort_release) for shipped in content.ships if shipped.target == target)
    models = [_model(content, name, rows, release, module) for name, rows in rows_of(content, target).items()]
    refuse_equal_names((model.name, model.class_name) for model in models)
    common = {"bundle": comment_text(content.name), "digest": manifest.content_sha256, "module": module}
    sources = {
        f"{model.class_name}.swift": _render("Model.swift", model=model, maps=release >= MAPS_FILES, **common)
        for model in models
    }
    by_device = any(len(model.rows) > 1 for model in models)
    return {
        **sources,
        "ModelFile.swift": _render("ModelFile.swift", by_device=by_device, telemetry=telemetry, **common),
    }


def swift_class(model: str, module: str) -> str:
    """The name of a model's class in a module; a class with the module's own name would hide the module."""
    return class_name(model, TAKEN | {module, f"{module}Error"}, ("ORT", "CC_"))


def warnings(content: Content, target: str) -> Iterator[str]:
    """What differs from what was measured, or is left out, because the Objective-C API has no call for it."""
    signatures = {signature.model: signature for signature in content.models}
    for model, rows in rows_of(content, target).items():
        ways = [options for shipped in _ships(content, rows) for options in shipped.runs]
        for name, options in {options_name(options): options for options in ways}.items():
            if missing := lacks(SWIFT, options):
                yield (
                    f"{model}: {name} runs without {', '.join(missing)}: ONNX Runtime's Objective-C API cannot set "
                    "that, and times and memory differ from those measured"
                )
        for tensor in signatures[model].outputs:
            if tensor.dtype not in ELEMENTS:
                yield (
                    f"{model}: the output {tensor.name} is left out: ONNX Runtime's Objective-C API reads no "
                    f"{tensor.dtype or 'sequences and maps'}"
                )


def _ships(content: Content, rows: Sequence[SelectionRow]) -> list[Shipped]:
    """What the rows of a model select, each once."""
    return [content.ships[number] for number in dict.fromkeys(row.ships for row in rows)]


def _model(content: Content, model: str, rows: Sequence[SelectionRow], release: Release, module: str) -> SwiftModel:
    signature = next((row for row in content.models if row.model == model), None)
    if signature is None:
        raise ConfigError(
            f"the manifest does not say what the model {model} takes and gives",
            where="manifest.json",
            why="it lists no such model",
            remedy="make the bundle again",
        )
    _refuse_types(signature)
    ships = _ships(content, rows)
    for each in ships:
        for options in each.runs:
            _refuse_provider(options, release)
    digests = {file.path: file.sha256 for file in content.files}
    numbers = list(dict.fromkeys(row.ships for row in rows))
    return SwiftModel(
        name=comment_text(model),
        class_name=swift_class(model, module),
        basis=tuple(dict.fromkeys(basis_text(shipped) for shipped in ships)),
        files=tuple(_file(each, digests[each.file]) for each in ships),
        rows=tuple((_condition(row), numbers.index(row.ships)) for row in (rows if len(ships) > 1 else rows[-1:])),
        inputs=tuple(_tensors(signature.inputs)),
        outputs=tuple(_tensors([tensor for tensor in signature.outputs if tensor.dtype in ELEMENTS], "output")),
    )


def _refuse_types(signature: ModelSignature) -> None:
    wrong = [tensor for tensor in signature.inputs if tensor.dtype not in ELEMENTS]
    if not any(tensor.dtype in ELEMENTS for tensor in signature.outputs):
        wrong += signature.outputs
    if wrong:
        kinds = sorted({tensor.dtype or "sequence or map" for tensor in wrong})
        raise ConfigError(
            f"Swift cannot run the model {signature.model}: {wrong[0].name} is {wrong[0].dtype or kinds[0]}",
            where="the bundle's manifest",
            why=f"ONNX Runtime's Objective-C API has no tensors of {', '.join(kinds)}",
            remedy="convert the model with inputs and outputs of float32 (`ort-mobile transform` has passes for that), "
            "or use the C++ API: `ort-mobile release snippet --for cpp`",
        )


def _refuse_provider(options: RunOptions, release: Release) -> None:
    provider = provider_named(options.provider)
    why = ""
    if provider.never_on("ios"):
        why = f"it belongs to {provider.owner}"
    elif provider.name == "coreml" and release < GENERIC_COREML:
        why = f"the generic append call of release {release} does not know it; releases from {GENERIC_COREML} on do"
    if why:
        raise ConfigError(
            f"the provider {provider.title} cannot be used here",
            where="the bundle's manifest",
            why=why,
            remedy="leave it out of [[runs]] for this target, or change ort_release, and make the bundle again",
        )


def _file(shipped: Shipped, sha256: str) -> SwiftFile:
    stem, _, suffix = resource(shipped).rpartition(".")
    return SwiftFile(
        stem=swift_text(stem),
        suffix=swift_text(suffix),
        sha256=sha256,
        ways=tuple(
            (swift_text(options_name(each)), tuple(line for line in swift_calls(each) if not line.startswith("//")))
            for each in shipped.runs
        ),
    )


def resource(shipped: Shipped) -> str:
    """The name of a model's file among the package's resources."""
    return shipped.file.rpartition("/")[2]


def _condition(row: SelectionRow) -> str:
    """Whether a device is of a row's class, in Swift. API levels are Android's."""
    parts = [f"device.chips.contains({swift_text(row.soc)})"] if row.soc else []
    parts += [f"device.abi == {swift_text(row.abi)}"] if row.abi else []
    return " && ".join(parts) or "true"


def _tensors(tensors: Sequence[TensorSignature], alone: str = "") -> Iterator[SwiftTensor]:
    for tensor, identifier in identifiers(tensors, SWIFT_WORDS | OWN_NAMES, alone):
        if tensor.dtype is None:
            continue
        fixed = tensor.shape is not None and all(isinstance(axis, int) for axis in tensor.shape)
        element, ort_type = ELEMENTS[tensor.dtype]
        yield SwiftTensor(
            name=swift_text(tensor.name),
            identifier=identifier,
            doc=tensor_text(tensor),
            element=element,
            ort_type=ort_type,
            shape=f"[{', '.join(map(str, tensor.shape or ()))}]" if fixed else "",
        )
