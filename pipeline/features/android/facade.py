"""The Java sources of an app's package: a class for each model that opens it as it was released. Pure functions.

They need Java 8 and ONNX Runtime's Java API of 1.16 or newer; sessions from bytes exist from 1.20 on
(docs/facts/release_consumers.md, R.1).
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from device_runner.device import SOC_MAKER, SOC_PROPERTIES
from device_runner.providers import provider_named
from device_runner.spec import RunOptions
from pipeline.campaign.plan import options_name
from pipeline.core.errors import ConfigError
from pipeline.core.releases import Release, line_of
from pipeline.model.signature import TensorInfo
from pipeline.release.app_code import (
    BUFFERS,
    class_name,
    comment_text,
    contexts_of,
    has_java_call,
    identifiers,
    java_calls,
    java_text,
    refuse_equal_names,
    render_source,
    rows_of,
    tensor_text,
)
from pipeline.release.bundle import basis_text
from pipeline.release.manifest import Content, Manifest, SelectionRow
from pipeline.release.shipped import gradle_notations, sizes_of

_render = partial(render_source, "pipeline.features.android")

ASSETS = "ort_mobile"
"""The folder of the models among an app's assets, so that no file of the app has the same path."""

FROM_BYTES = Release(1, 20)
"""The first release whose Java API creates a session from a ByteBuffer."""

TAKEN = frozenset({
    "ModelFile", "DeviceClass", "NpuContext", "Result", "Context", "AssetFileDescriptor", "AssetManager", "Build",
    "Os", "NonNull", "Nullable", "NNAPIFlags", "File", "FileInputStream", "FileNotFoundException", "FileOutputStream",
    "BigInteger", "BufferedReader", "IOException", "MessageDigest", "NoSuchAlgorithmException", "InputStream",
    "InputStreamReader", "FileChannel", "FloatBuffer", "DoubleBuffer", "LongBuffer", "IntBuffer",
    "ShortBuffer", "ByteBuffer", "ArrayList", "Arrays", "Collection", "ConcurrentHashMap", "EnumSet", "HashSet",
    "LinkedHashMap", "LinkedHashSet", "List", "Map", "Set", "TensorInfo",
    "AutoCloseable", "Exception", "IllegalArgumentException", "IllegalStateException", "NoClassDefFoundError", "Object",
    "Override", "Process", "ProcessBuilder", "RuntimeException", "String", "System", "Thread", "InterruptedException",
})  # fmt: skip
"""Names that the sources use; what begins with Ort or Onnx may be ONNX Runtime's."""

JAVA_WORDS = frozenset({
    "abstract", "assert", "boolean", "break", "byte", "case", "catch", "char", "class", "const", "continue", "default",
    "do", "double", "else", "enum", "extends", "false", "final", "finally", "float", "for", "goto", "if", "implements",
    "import", "instanceof", "int", "interface", "long", "native", "new", "null", "package", "private", "protected",
    "public", "return", "short", "static", "strictfp", "super", "switch", "synchronized", "this", "throw", "throws",
    "transient", "true", "try", "void", "volatile", "while",
})  # fmt: skip
"""What nothing in Java may be called."""

OWN_NAMES = frozenset({
    "closed", "environment", "input", "inputs", "result", "session", "way", "close", "error", "firstRun",
    "clone", "equals", "finalize", "getClass", "hashCode", "notify", "notifyAll", "toString", "wait",
})  # fmt: skip
"""What no parameter of `run` and no method of a result may be called: the sources, or every object, have these."""

UNUSABLE = JAVA_WORDS | OWN_NAMES

TemplateModel = dict[str, Any]
"""A model as Model.java needs it. Without `typed` it has no `run`: the Java API has no such tensors.

`ways` are session options: their name in reports as a literal, and the statements that set them. `files` are opened by
their path where they are not `mapped`: so they were measured. `rows` say which devices run which file, the last one all
others; () where all run the only one. `contexts` come before them. `gpu`: the first run of a way compiles shaders.
`skips`: it keeps why something faster was not opened.
"""


def java_sources(manifest: Manifest, target: str, package: str, *, telemetry: bool = True) -> dict[str, str]:
    """File name to source of the classes for the models of a target; without `telemetry` they switch it off.

    Raises ConfigError when two models would have classes of one name.
    """
    content = manifest.content
    models = [_model(content, target, model, rows) for model, rows in rows_of(content, target).items()]
    for model in models:  # sizes of one model have their copies, and those of their weights, in one folder
        alike = [other["kept"] for other in models if other["copies"] == model["copies"]]
        model["kept"] = sorted(set().union(*alike))
    refuse_equal_names((model["name"], model["class_name"]) for model in models)
    release = min(line_of(shipped.ort_release) for shipped in content.ships if shipped.target == target)
    contexts = [context for context in content.contexts if context.target == target]
    common: dict[str, object] = {
        "bundle": comment_text(content.name),
        "digest": manifest.content_sha256,
        "package": package,
        "from_bytes": release >= FROM_BYTES,
        "telemetry": telemetry,
        "contexts": bool(contexts),
        "weights": any(file["weights"] for model in models for file in model["files"]),
        "gpu": any(model["gpu"] for model in models),
    }
    templates = ["ModelFile.java", *(["DeviceClass.java"] if any(model["rows"] for model in models) else [])]
    if contexts:
        templates.append("NpuContext.java")
        common |= {**dict(zip(("plugin", "runtime"), gradle_notations(contexts), strict=True))}
    properties = {"properties": ", ".join(map(java_text, SOC_PROPERTIES)), "maker": java_text(SOC_MAKER)}
    sources = {name: _render(name, **common, **properties) for name in templates}
    for model in models:
        imports = sorted(_imports(model, from_bytes=release >= FROM_BYTES))
        sources[f"{model['class_name']}.java"] = _render("Model.java", model=model, imports=imports, **common)
    for name, values in _sizes(content, target, models):
        sources[f"{name}.java"] = _render("Sizes.java", class_name=name, **values, **common)
    return sources


def _sizes(content: Content, target: str, models: Sequence[TemplateModel]) -> Iterator[tuple[str, dict[str, object]]]:
    """For each model of several sizes the class that opens the one for its inputs, and what its template needs."""
    classes = {model["class_name"]: model for model in models}
    for row in sizes_of(content, target):
        model, inputs = classes[java_class(row.model.model)], tuple(row.inputs(UNUSABLE))
        name = java_class(f"{row.model.model} sizes")
        refuse_equal_names([(row.model.model, name), *((other["name"], other["class_name"]) for other in models)])
        if model["typed"]:
            filled = [each for each in inputs if each.filled]
            buffers = {tensor["identifier"]: tensor["java_type"] for tensor in model["inputs"]}
            needs_type = any("OnnxJavaType" in tensor["create"] for tensor in model["inputs"])
            imports = {
                *(f"ai.onnxruntime.{name}" for name in ("OnnxTensor", "OrtEnvironment", "OrtException", "OrtSession")),
                *("android.content.Context", "androidx.annotation.NonNull", "java.io.IOException"),
                *("java.util.LinkedHashMap", "java.util.Map", *(f"java.nio.{buffer}" for buffer in buffers.values())),
                *(["java.util.Arrays"] if filled else []),
                *(["ai.onnxruntime.OnnxJavaType"] if needs_type else []),
            }
            yield name, {
                "model": model, "inputs": inputs, "filled": filled, "buffers": buffers, "imports": sorted(imports),
                "names": [java_text(each) for each in row.names],
                "classes": [java_class(each) for each in row.names],
            }  # fmt: skip


def java_class(model: str) -> str:
    """The name of a model's class."""
    return class_name(model, TAKEN, ("Ort", "Onnx"))


def _model(content: Content, target: str, model: str, rows: Sequence[SelectionRow]) -> TemplateModel:
    signature = next((row for row in content.models if row.model == model), None)
    if signature is None:
        raise ConfigError(
            f"the bundle does not say what the model {model} takes and gives",
            where="the bundle's manifest",
            why="it lists no such model",
            remedy="make the bundle again: `ort-mobile bundle rebuild FOLDER`",
        )
    digests = {file.path: file.sha256 for file in content.files}
    numbers = list(dict.fromkeys(row.ships for row in rows))
    ships = [content.ships[number] for number in numbers]
    ways = list({options_name(options): options for shipped in ships for options in shipped.runs}.items())
    places = {name: place for place, (name, _) in enumerate(ways)}
    contexts = contexts_of(content, target, model, asset_path)
    inputs = list(_inputs(signature.inputs))
    parameters = [parameter for tensor in inputs for parameter in tensor["parameters"]]
    gpu = any(provider_named(options.provider).gpu for _, options in ways)
    weights = {shipped.weights: digests[shipped.weights] for shipped in ships if shipped.weights}
    kept = [f"{digests[shipped.file]}.{shipped.file.rpartition('.')[2]}" for shipped in ships]
    return {
        "name": comment_text(model),
        "class_name": java_class(model),
        "copies": java_class(signature.size_of if weights and signature.size_of else model),
        "kept": [*kept, *(file.rpartition("/")[2] for file in weights)],
        "weights": bool(weights),
        "basis": list(dict.fromkeys(basis_text(shipped) for shipped in ships)),
        "ways": [_way(options) for _, options in ways],
        "files": [
            {
                "asset": java_text(asset_path(shipped.file)),
                "sha256": digests[shipped.file],
                "mapped": shipped.loading != "path",
                "weights": java_text(asset_path(shipped.weights)) if shipped.weights else "",
                "weights_sha256": weights.get(shipped.weights, ""),
                "ways": [places[options_name(options)] for options in shipped.runs],
            }
            for shipped in ships
        ],
        "rows": [
            {
                "chip": java_text(row.soc),
                "abi": java_text(row.abi),
                "min_api_level": row.min_api_level,
                "file": numbers.index(row.ships),
            }
            for row in (rows if len(numbers) > 1 or contexts else ())
        ],
        "contexts": contexts,
        "inputs": inputs,
        "outputs": list(_outputs(signature.outputs)),
        "parameters": parameters,
        "arguments": [parameter.rpartition(" ")[2] for parameter in parameters],
        "typed": all(tensor.dtype in BUFFERS for tensor in signature.inputs),
        "gpu": gpu,
        "skips": gpu or bool(contexts),
    }


def asset_path(file: str) -> str:
    """The path of a model's file among the assets."""
    return f"{ASSETS}/{file.rpartition('/')[2]}"


def _way(options: RunOptions) -> tuple[str, tuple[str, ...]]:
    if not has_java_call(options.provider):
        raise ConfigError(
            f"ONNX Runtime's Java API has no call for the provider {options.provider}",
            where="the bundle's manifest",
            remedy="leave the provider out of [[runs]] for Android, and make the bundle again",
        )
    return java_text(options_name(options)), tuple(java_calls(options, _pairs))


def _pairs(values: Mapping[str, str]) -> str:
    """A map of strings in Java 8: the sources have a function for it."""
    texts = (java_text(text) for pair in sorted(values.items()) for text in pair)
    return f"ModelFile.pairs({', '.join(texts)})"


def _inputs(tensors: Sequence[TensorInfo]) -> Iterator[dict[str, Any]]:
    for tensor, identifier in identifiers(tensors, UNUSABLE):
        if tensor.dtype not in BUFFERS:
            continue
        buffer, element, _ = BUFFERS[tensor.dtype]
        shape = f"new long[] {{{', '.join(map(str, tensor.shape or ()))}}}" if tensor.fixed else f"{identifier}Shape"
        arguments = ["environment", identifier, shape, *([f"OnnxJavaType.{element}"] if element else [])]
        yield {
            "name": java_text(tensor.name),
            "identifier": identifier,
            "doc": tensor_text(tensor),
            "java_type": buffer,
            "parameters": [
                f"@NonNull {buffer} {identifier}",
                *([] if tensor.fixed else [f"@NonNull long[] {identifier}Shape"]),
            ],
            "create": f"OnnxTensor.createTensor({', '.join(arguments)})",
        }


def _outputs(tensors: Sequence[TensorInfo]) -> Iterator[dict[str, Any]]:
    for place, (tensor, identifier) in enumerate(identifiers(tensors, UNUSABLE, "output")):
        if tensor.dtype in BUFFERS:
            buffer = BUFFERS[tensor.dtype][2]
            value = f"((OnnxTensor) result.get({place}))"
            yield {
                "name": java_text(tensor.name),
                "identifier": identifier,
                "doc": tensor_text(tensor),
                "java_type": buffer,
                "tensor": value,
                "read": f"{value}.get{buffer}()",
            }


def _imports(model: TemplateModel, *, from_bytes: bool) -> Iterator[str]:
    yield from ("ai.onnxruntime.OrtEnvironment", "ai.onnxruntime.OrtException", "ai.onnxruntime.OrtSession")
    yield from ("android.content.Context", "androidx.annotation.NonNull", "java.io.File", "java.io.IOException")
    buffers = {tensor["java_type"] for tensor in (*model["inputs"], *model["outputs"])}
    if from_bytes:
        buffers.add("ByteBuffer")
    yield from (f"java.nio.{buffer}" for buffer in buffers)
    if model["typed"]:
        yield from ("ai.onnxruntime.OnnxTensor", "java.util.LinkedHashMap", "java.util.Map")
    elif model["outputs"]:
        yield "ai.onnxruntime.OnnxTensor"
    if model["rows"] or model["skips"]:
        yield from ("java.util.ArrayList", "java.util.List")
    if model["rows"]:
        yield from ("java.util.LinkedHashSet", "java.util.Set")
    if any("OnnxJavaType" in tensor["create"] for tensor in model["inputs"]):
        yield "ai.onnxruntime.OnnxJavaType"
    calls = " ".join(call for _, calls in model["ways"] for call in calls)
    for word, name in (("NNAPIFlags", "ai.onnxruntime.providers.NNAPIFlags"), ("EnumSet", "java.util.EnumSet")):
        if word in calls:
            yield name
