"""An Android library of a bundle's models: Java classes that open them, the AAR with models as assets, or an AI pack.

A class for each model opens it as it was released; the sources need Java 8 and ONNX Runtime's Java API of 1.16 or
newer; sessions from bytes exist from 1.20 on (docs/facts/release_consumers.md, R.1). What an AAR holds and what R8 must
keep: R.1 and R.3. A Play AI pack may have the models in its place, each device getting those of its class: what Google
Play and the Android Gradle plugin read of it is in R.7.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from device_runner import device as runner_device
from device_runner import local as local_device
from device_runner import providers as runner_providers
from device_runner.spec import ElementType
from pipeline.campaign import run_options
from pipeline.core import files as storage
from pipeline.core import releases as ort_releases
from pipeline.core.errors import CheckFailed, ConfigError, Finding, MissingError, PipelineError
from pipeline.core.releases import Release
from pipeline.features.android import java_answers, protection, sound, text_inputs
from pipeline.features.packages import objections as package_objections
from pipeline.model.signature import TensorInfo
from pipeline.release import app_code, chip_contexts, code_names, guards, selection, source_code, tensor_texts
from pipeline.release import bundle as release_bundle
from pipeline.release import manifest as bundle_manifest
from pipeline.release import sizes as release_sizes

_render = partial(source_code.render_source, "pipeline.features.android")

ASSETS = "ort_mobile"
"""The folder of all packages' models among an app's assets, so that no file of the app has the same path."""
LEFT_OUT = re.compile(r"_.*|.*\.scc|cvs|thumbs\.db|picasa\.ini", re.IGNORECASE)
"""Folders of assets that the build of an app leaves out without a word: `aapt`'s default patterns, where a group or an
artifact may be one."""

FROM_BYTES = Release(1, 20)
"""The first release whose Java API creates a session from a ByteBuffer."""

TAKEN = frozenset({
    "ModelFile", "DeviceClass", "NpuContext", "Pixels", "Label", "Box", "Mask", "Bitmap", "Result",
    "Stream", "Tokenizer", "WordPiece", "BytePairs", "Ids", "ByteArrayOutputStream", "Charset", "HashMap",
    "NullPointerException",
    "Context", "AssetFileDescriptor", "AssetManager", "Build",
    "Os", "NonNull", "Nullable", "NNAPIFlags", "File", "FileInputStream", "FileNotFoundException", "FileOutputStream",
    "BigInteger", "BufferedReader", "IOException", "MessageDigest", "NoSuchAlgorithmException", "InputStream",
    "InputStreamReader", "FileChannel", "FloatBuffer", "DoubleBuffer", "LongBuffer", "IntBuffer",
    "ShortBuffer", "ByteBuffer", "ArrayList", "Arrays", "Collection", "ConcurrentHashMap", "EnumSet", "HashSet",
    "LinkedHashMap", "LinkedHashSet", "List", "Map", "Set", "TensorInfo",
    "AutoCloseable", "Exception", "IllegalArgumentException", "IllegalStateException", "NoClassDefFoundError", "Object",
    "Double", "ExecutionException", "Future", "Integer", "LinkageError", "Long", "Math", "Number",
    "NumberFormatException", "StringBuilder", "Throwable", "Class", "Boolean", "Float", "Short", "Byte", "Character",
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

GUARD_NAMES = "Guard"
"""What the names of the guard's classes begin with, and no model's."""

UNUSABLE = JAVA_WORDS | OWN_NAMES

ALWAYS_IMPORTED = (
    "ai.onnxruntime.OrtEnvironment",
    "ai.onnxruntime.OrtException",
    "ai.onnxruntime.OrtSession",
    "android.content.Context",
    "androidx.annotation.NonNull",
    "java.io.File",
    "java.io.IOException",
)
"""What the class of every model imports."""

GUARD_IMPORTS = (
    "androidx.annotation.Nullable",
    "java.util.concurrent.ExecutionException",
    "java.util.concurrent.Future",
)
"""What the class of a guarded model imports."""

STRINGS = source_code.Code("String[]")
"""What a tensor of strings is in Java: there is no buffer of them."""

TemplateModel = dict[str, Any]
"""A model as Model.java needs it. Without `typed` it has no `run`: the Java API has no such tensors.

`ways` are session options: their name in reports, and the statements that set them. `files` are opened by
their path where they are not `mapped`: so they were measured. `rows` say which devices run which file, the last one all
others; () where all run the only one. `contexts` come before them. `gpu`: the first run of a way compiles shaders.
`skips`: it keeps why something faster was not opened.
"""


def sample_asset(assets: str, model: str) -> str:
    """The path of a self-test's data among the assets."""
    return f"{assets}/{java_class(model)}.sample"


def java_sources(
    manifest: bundle_manifest.Manifest,
    target: str,
    package: str,
    assets: str,
    *,
    telemetry: bool = True,
    guard: bool = True,
    samples: Mapping[str, str] = {},
    deny_key: str = "",
    helper: bool = False,
) -> dict[str, str]:
    """File name to source of the classes for the models of a target; without `telemetry` they switch it off.

    With `guard` models that something else than the CPU runs are opened behind a guard, where the feature is there.
    `assets` is the models' folder among an app's assets, `samples` are the assets with their self-tests,
    `deny_key` the public key of who may forbid session options later, in hexadecimal digits. With `helper` the guard
    tries models by the program `trial_name` among the app's native libraries. Raises ConfigError when
    two models would have classes of one name.
    """
    content = manifest.content
    models = [
        _model(content, target, model, rows, assets) for model, rows in selection.rows_of(content, target).items()
    ]
    for model in models:  # sizes of one model have their copies, and those of their weights, in one folder
        alike = [other["kept"] for other in models if other["copies"] == model["copies"]]
        model["kept"] = sorted(set().union(*alike))
    code_names.refuse_equal_names((model["name"], model["class_name"]) for model in models)
    release = min(ort_releases.line_of(shipped.ort_release) for shipped in content.ships if shipped.target == target)
    contexts = [context for context in content.contexts if context.target == target]
    guards = list(protection.GUARDS) if guard and any(model["guarded"] for model in models) else []
    for model in models:
        model["guarded"] = model["guarded"] and bool(guards)
        model["skips"] |= model["guarded"]
        model["sample"] = samples.get(model["name"], "")
    common: dict[str, object] = {
        "guard": bool(guards),
        "helper": protection.trial_name(package) if helper and guards else "",
        "deny_key": deny_key,
        "rollback": ",".join(fallback for fallback in content.rollback if fallback is not bundle_manifest.Fallback.RUN),
        "bundle": content.name,
        "digest": manifest.content_sha256,
        "package": package,
        "from_bytes": release >= FROM_BYTES,
        "telemetry": telemetry,
        "contexts": bool(contexts),
        "weights": any(file["weights"] for model in models for file in model["files"]),
        "gpu": any(model["gpu"] for model in models),
        "strings": any(tensor["java_type"] == STRINGS for model in models for tensor in model["outputs"]),
    }
    templates = ["ModelFile.java", *(["DeviceClass.java"] if any(model["rows"] for model in models) else [])]
    if any(model["image"] for model in models):
        templates.append("Pixels.java")
    templates += java_answers.templates(model["answer"] for model in models)
    common["tokenizers"] = tokenizers = text_inputs.tokenizers(signature for signature in content.models)
    templates += [*(["Tokenizer.java"] if tokenizers else []), *(f"{name}.java" for _, name in tokenizers)]
    if contexts:
        templates.append("NpuContext.java")
        common |= {**dict(zip(("plugin", "runtime"), chip_contexts.gradle_notations(contexts), strict=True))}
    properties = {"properties": runner_device.SOC_PROPERTIES, "maker": runner_device.SOC_MAKER}
    sources: dict[str, str] = {name: _render(name, **common, **properties) for name in templates}
    for write in guards:
        sources |= write(common)
    for model in models:
        imports = _imports(model, from_bytes=release >= FROM_BYTES)
        sources[f"{model['class_name']}.java"] = _render("Model.java", model=model, imports=imports, **common)
    for name, values in _sizes(content, target, models):
        sources[f"{name}.java"] = _render("Sizes.java", class_name=name, **values, **common)
    return sources


def _imports(model: TemplateModel, *, from_bytes: bool) -> list[str]:
    """What the class of a model imports; `from_bytes`: it opens them, too."""
    buffers = {tensor["java_type"] for tensor in (*model["inputs"], *model["outputs"])}
    buffers = buffers - {STRINGS} | ({"ByteBuffer"} if from_bytes else set())
    calls = " ".join(call for _, calls in model["ways"] for call in calls)
    groups = (
        (ALWAYS_IMPORTED, True),
        ((f"java.nio.{buffer}" for buffer in buffers), True),
        (("ai.onnxruntime.OnnxTensor",), model["typed"] or model["outputs"]),
        (("java.util.LinkedHashMap", "java.util.Map"), model["typed"]),
        (
            ("java.util.ArrayList", "java.util.List"),
            model["rows"] or model["skips"] or model["listed"],
        ),
        (("java.util.LinkedHashSet", "java.util.Set"), model["rows"]),
        (("ai.onnxruntime.OnnxJavaType",), any("OnnxJavaType" in tensor["create"] for tensor in model["inputs"])),
        (("ai.onnxruntime.providers.NNAPIFlags",), "NNAPIFlags" in calls),
        (("java.util.EnumSet",), "EnumSet" in calls),
        (GUARD_IMPORTS, model["guarded"]),
        (("android.graphics.Bitmap",), model["image"]),
        (("java.util.Arrays",), model["stream"]),
    )
    return sorted(name for names, is_needed in groups if is_needed for name in names)


def objections(manifest: bundle_manifest.Manifest) -> Iterator[Finding]:
    """What `release android` would refuse of the models of each target, whatever coordinates it is given."""
    group, artifact = "com.example", "models"
    write = partial(java_sources, manifest, package=f"{group}.{artifact}", assets=asset_folder(group, artifact))
    yield from package_objections.objections(manifest, ("android",), "android", write)


def _sizes(
    content: bundle_manifest.Content, target: str, models: Sequence[TemplateModel]
) -> Iterator[tuple[str, dict[str, object]]]:
    """For each model of several sizes the class that opens the one for its inputs, and what its template needs."""
    classes = {model["class_name"]: model for model in models}
    for sizes in release_sizes.sizes_of(content, target):
        title = sizes[-1].model
        model, inputs = classes[java_class(title)], tuple(release_sizes.sized_inputs(sizes, UNUSABLE))
        name = java_class(f"{title} sizes")
        code_names.refuse_equal_names([(title, name), *((other["name"], other["class_name"]) for other in models)])
        if model["typed"]:
            filled = [tensor for tensor in inputs if tensor.filled]
            buffers = {tensor["identifier"]: tensor["java_type"] for tensor in model["inputs"]}
            needs_type = any("OnnxJavaType" in tensor["create"] for tensor in model["inputs"])
            imports = {
                *(f"ai.onnxruntime.{name}" for name in ("OnnxTensor", "OrtEnvironment", "OrtException", "OrtSession")),
                *("android.content.Context", "androidx.annotation.NonNull", "java.io.IOException"),
                *("java.util.LinkedHashMap", "java.util.Map"),
                *(f"java.nio.{buffer}" for buffer in buffers.values() if buffer != STRINGS),
                *(["java.util.Arrays"] if filled else []),
                *(["ai.onnxruntime.OnnxJavaType"] if needs_type else []),
            }
            yield (
                name,
                {
                    "model": model,
                    "inputs": inputs,
                    "filled": filled,
                    "buffers": buffers,
                    "imports": sorted(imports),
                    "names": [size.model for size in sizes],
                    "classes": [java_class(size.model) for size in sizes],
                },
            )


def is_taken(name: str) -> bool:
    """Whether a class is none of a model."""
    return name in TAKEN or name.startswith(GUARD_NAMES)


def java_class(model: str) -> str:
    """The name of a model's class."""
    return code_names.class_name(model, TAKEN, ("Ort", "Onnx", GUARD_NAMES))


def _model(
    content: bundle_manifest.Content, target: str, model: str, rows: Sequence[bundle_manifest.SelectionRow], assets: str
) -> TemplateModel:
    signature = content.signature(model)
    digests = {file.path: file.sha256 for file in content.files}
    numbers = list(dict.fromkeys(row.ships for row in rows))
    ships = [content.ships[number] for number in numbers]
    ways = list({run_options.options_name(options): options for shipped in ships for options in shipped.runs}.items())
    if lacking := [options.provider for _, options in ways if not app_code.has_java_call(options.provider)]:
        raise ConfigError(
            f"ONNX Runtime's Java API has no call for the provider {lacking[0]}",
            where="the bundle's manifest",
            remedy="leave the provider out of [[runs]] for Android, and make the bundle again",
        )
    places = {name: index for index, (name, _) in enumerate(ways)}
    contexts = selection.contexts_of(content, target, model, partial(asset_path, assets))
    inputs, outputs = list(_inputs(signature)), list(_outputs(signature))
    parameters = [parameter for tensor in inputs for parameter in tensor["parameters"]]
    gpu = any(runner_providers.provider_named(options.provider).gpu for _, options in ways)
    weights = {shipped.weights: digests[shipped.weights] for shipped in ships if shipped.weights}
    kept = [f"{digests[shipped.file]}.{shipped.file.rpartition('.')[2]}" for shipped in ships]
    return {
        "name": model,
        "class_name": java_class(model),
        "copies": java_class(signature.size_of if weights and signature.size_of else model),
        "kept": [*kept, *(file.rpartition("/")[2] for file in weights)],
        "weights": bool(weights),
        "basis": list(dict.fromkeys(release_bundle.basis_text(shipped) for shipped in ships)),
        "ways": [(name, tuple(app_code.java_calls(options, _pairs))) for name, options in ways],
        "files": [
            {
                "asset": asset_path(assets, shipped.file),
                "sha256": digests[shipped.file],
                "mapped": shipped.loading != "path",
                "weights": asset_path(assets, shipped.weights) if shipped.weights else "",
                "weights_sha256": weights.get(shipped.weights, ""),
                "ways": [places[run_options.options_name(options)] for options in shipped.runs],
            }
            for shipped in ships
        ],
        "rows": [
            {
                "chip": row.soc,
                "abi": row.abi,
                "min_api_level": row.min_api_level,
                "file": numbers.index(row.ships),
            }
            for row in (rows if len(numbers) > 1 or contexts else ())
        ],
        "contexts": contexts,
        "inputs": inputs,
        "outputs": outputs,
        "parameters": parameters,
        "arguments": [source_code.identifier(parameter.rpartition(" ")[2]) for parameter in parameters],
        "requests": [protection.trial_request(options) for _, options in ways],
        "safe": [options.on_cpu for _, options in ways],
        "guarded": guards.is_guarded(
            (options for _, options in ways), content.ships[rows[-1].ships].runs, has_contexts=bool(contexts)
        ),
        "image": signature.image if signature.takes_image else None,
        **java_answers.of_model(signature),
        "stream": sound.of_sound(signature, {output["name"]: output["identifier"] for output in outputs}),
        "text": text_inputs.of_text(signature, digests, assets, _java_type),
        "typed": all(_java_type(tensor) for tensor in signature.inputs),
        "gpu": gpu,
        "skips": gpu or bool(contexts),
    }


def asset_folder(group: str, artifact: str) -> str:
    """The folder of a package's models among an app's assets: an app merges those of all its packages by their path.

    Of two files with one path it gets one, and no build says so; so no two packages have the same folder.
    """
    parts = (f"-{part}-" if LEFT_OUT.fullmatch(part) else part for part in (group, artifact))  # none begins with a `-`
    return "/".join((ASSETS, *parts))


def asset_path(folder: str, file: str) -> str:
    """The path of a model's file among the assets; `folder` is that of its package."""
    return f"{folder}/{file.rpartition('/')[2]}"


def _pairs(values: Mapping[str, str]) -> source_code.Code:
    """A map of strings in Java 8: the sources have a function for it."""
    texts = (source_code.java_text(text) for pair in sorted(values.items()) for text in pair)
    return source_code.Code("ModelFile.pairs({})").format(source_code.joined(texts))


def _java_type(tensor: TensorInfo, *, output: bool = False) -> source_code.Code | None:
    """The buffer or array that holds a tensor's elements; None where ONNX Runtime's Java API has none."""
    if tensor.dtype is ElementType.STRING:
        return STRINGS
    if tensor.dtype not in app_code.BUFFERS:
        return None
    of_input, _, of_output = app_code.BUFFERS[tensor.dtype]
    return source_code.Code(of_output if output else of_input)


def _inputs(signature: bundle_manifest.ModelSignature) -> Iterator[dict[str, Any]]:
    for tensor, own_name in code_names.identifiers(signature.inputs, UNUSABLE):
        kind = _java_type(tensor)
        if not kind:
            continue
        name = source_code.identifier(own_name)
        shape = source_code.Code("{}Shape").format(name)
        if tensor.fixed:
            shape = source_code.Code("new long[] {{{}}}").format(source_code.joined(tensor.shape or ()))
        arguments = [source_code.Code("environment"), name, shape]
        if tensor.dtype in app_code.BUFFERS and (element := app_code.BUFFERS[tensor.dtype][1]):
            arguments.append(source_code.Code("OnnxJavaType.{}").format(source_code.identifier(element)))
        yield {
            "name": tensor.name,
            "identifier": own_name,
            "doc": tensor_texts.input_text(tensor, signature),
            "java_type": kind,
            "parameters": [
                source_code.Code("@NonNull {} {}").format(kind, name),
                *([] if tensor.fixed else [source_code.Code("@NonNull long[] {}Shape").format(name)]),
            ],
            "create": source_code.Code("OnnxTensor.createTensor({})").format(source_code.joined(arguments)),
        }


def _outputs(signature: bundle_manifest.ModelSignature) -> Iterator[dict[str, Any]]:
    for index, (tensor, own_name) in enumerate(code_names.identifiers(signature.outputs, UNUSABLE, "output")):
        kind = _java_type(tensor, output=True)
        if kind:
            value = source_code.Code("((OnnxTensor) result.get({}))").format(index)
            read = source_code.Code("ModelFile.strings({})" if kind == STRINGS else "{}.get{}()").format(value, kind)
            yield {
                "name": tensor.name,
                "identifier": own_name,
                "doc": tensor_texts.output_text(tensor, signature),
                "java_type": kind,
                "tensor": value,
                "read": read,
            }


SIGNATURES = Path(__file__).parent / "java"
"""The classes of Android and ONNX Runtime that our sources use, without their bodies."""

JAVA = "8"
"""The Java release of the classes: what every toolchain for Android reads."""

JAVAC_SECONDS = 300


def compiled(package: str, sources: Mapping[str, str], work: Path) -> dict[str, Path | bytes]:
    """The classes of a Java package by their path; what they are compiled against is not among them.

    Raises MissingError without a Java compiler.
    """
    folder = work / "sources" / package.replace(".", "/")
    classes = work / "classes"
    with storage.storage_errors(work):
        classes.mkdir()
    for name, text in sources.items():
        storage.write_text(folder / name, text)
    arguments = ["--release", JAVA, "-Xlint:-options", "-encoding", "UTF-8", "-proc:none", "-implicit:none"]
    arguments += ["-d", str(classes), "-sourcepath", str(SIGNATURES)]
    files = [str(folder / name) for name in sorted(sources)]
    environment = {**os.environ, "LC_ALL": "C"}
    environment.pop("JAVA_TOOL_OPTIONS", None)
    code = local_device.run_group([java_compiler(), *QUICK_JVM, *arguments, *files], work, JAVAC_SECONDS, environment)
    if code != 0:
        raise PipelineError(
            "the Java classes could not be compiled",
            where="javac",
            why=local_device.tail(work / "stderr")
            or ("it did not end in time" if code is None else f"exit code {code}"),
            remedy="try another JDK (17 is tested); `ort-mobile --debug` shows more",
        )
    compiled = classes / package.replace(".", "/")
    return {file.relative_to(classes).as_posix(): file for file in sorted(compiled.glob("*.class"))}


QUICK_JVM = ("-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC")
"""A compiler of a few classes ends before the JVM's second compiler pays: two thirds of the processor time."""


def java_compiler() -> str:
    """The path of javac: of JAVA_HOME, else of PATH."""
    home = os.environ.get("JAVA_HOME")
    compiler = (shutil.which("javac", path=str(Path(home) / "bin")) if home else None) or shutil.which("javac")
    if not compiler:
        raise MissingError(
            "there is no Java compiler",
            why="javac is neither in JAVA_HOME nor on PATH",
            remedy="install a JDK, 11 or newer (Debian: openjdk-17-jdk-headless)",
        )
    return compiler


PACK_BYTES = 1_500_000_000
"""What Google Play lets one device download of one AI pack; models hardly compress."""
ALL_BYTES = 4_000_000_000
"""What Google Play allows for all packs of an app together; here with what every group of devices gets."""

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
PLAIN = re.compile(r"[A-Za-z0-9]+")
MOST_SELECTORS = 5
"""Of one group of devices."""
OTHER = "other"
"""The group of the devices that no other group has."""

BUILD_FILE = "build.gradle.kts"
TARGETING_FILE = "device_targeting_config.xml"
MARK = "// Written by ort-mobile; the folder is replaced when it is written again."
DeviceGroup = tuple[str, tuple[tuple[str, str], ...], tuple[str, ...]]
"""The name of a group of devices, their chips (manufacturer and model; () for all others) and the files of the bundle
that they get."""


def ai_pack(
    folder: Path, bundle: Path, manifest: bundle_manifest.Manifest, target: str, package: str, assets: str
) -> dict[str, str | storage.VerifiedFile]:
    """The files of a pack of a target's models, by their path in `folder`, whose name is the pack's.

    `package` is that of the Java classes, `assets` the folder of `asset_folder`.
    Raises ConfigError for a name that Gradle refuses and a folder with anything else in it, CheckFailed for models
    larger than a store allows.
    """
    name, content = pack_name(folder), manifest.content
    groups = device_groups(content, target)
    sizes = {group: sum((bundle / file).stat().st_size for file in files) for group, _, files in groups}
    group_name, largest = max(sizes.items(), key=lambda pair: pair[1])
    for size, most, what in (
        (largest, PACK_BYTES, f"the models of devices in the group {group_name} have"),
        (sum(sizes.values()), ALL_BYTES, "the models of all groups of devices together have"),
    ):
        if size > most:
            raise CheckFailed(
                f"{what} {size:,} bytes",
                where=str(bundle),
                why=f"Google Play allows {most:,} bytes",
                remedy="ship smaller variants (quantized ones), fewer models, or let the app download the bundle",
            )
    targeted = len(groups) > 1
    values: dict[str, object] = {
        "name": name,
        "bundle": content.name,
        "package": package,
        "targeted": targeted,
        "groups": groups,
        "other": OTHER,
        "chip_api_level": chip_contexts.CHIP_API_LEVEL,
        "pack": f"{PACK_BYTES:,}",
        "all": f"{ALL_BYTES:,}",
        "sizes": [(group, f"{size:,}") for group, size in sizes.items()],
    }
    texts = (BUILD_FILE, "README.md", *([TARGETING_FILE] if targeted else []))
    pack: dict[str, str | storage.VerifiedFile] = {file: _render(file, **values) for file in texts}
    for group, _, files in groups:
        asset_folder = f"src/main/assets/{assets}{f'#group_{group}' if targeted else ''}"
        pack |= {asset_path(asset_folder, file): manifest.verified(bundle, file) for file in files}
    return pack


def pack_name(folder: Path) -> str:
    """The name of the pack in a folder; ConfigError for one that Gradle refuses, and a folder with anything else."""
    name = folder.absolute().name
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is no name for an AI pack",
            where="--ai-pack",
            why="it begins with a letter, then letters, digits and `_` are allowed; the folder's name is the pack's",
            remedy="write it as in models_pack",
        )
    with storage.storage_errors(folder):
        names = [] if not folder.exists() else list(folder.iterdir()) if folder.is_dir() else [folder]
        build = folder / BUILD_FILE
        generated = build.is_file() and build.read_text("utf-8", "replace").startswith(MARK)
    if names and not generated:
        raise ConfigError(
            "this folder is no AI pack of ours",
            where=str(folder),
            why="it holds something else, which would be lost",
            remedy="name another folder with --ai-pack",
        )
    return name


def device_groups(content: bundle_manifest.Content, target: str) -> tuple[DeviceGroup, ...]:
    """Groups by chip, those that get the same together; the last one has what all other devices may open."""
    tables = selection.rows_of(content, target).values()
    contexts = [context for context in content.contexts if context.target == target]
    chips = sorted(
        {chip for rows in tables for row in rows if (chip := _chip(row))}
        | {(chip_contexts.SOC_MANUFACTURER, context.chip) for context in contexts}
    )
    others = _files(content, [row for rows in tables for row in rows if not _chip(row)])
    by_files: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for chip in chips:
        rows_here = [row for rows in tables for row in rows if _chip(row) == chip or not row.soc]
        own_npu = [context for context in contexts if (chip_contexts.SOC_MANUFACTURER, context.chip) == chip]
        by_chip = (name for context in own_npu for name in context.files)
        files = tuple(dict.fromkeys((*_files(content, rows_here), *by_chip)))
        if files != others:
            by_files.setdefault(files, []).append(chip)
    groups: list[DeviceGroup] = []
    for files, alike in by_files.items():
        for first in range(0, len(alike), MOST_SELECTORS):
            chips_of_group = tuple(alike[first : first + MOST_SELECTORS])
            groups.append((_group_name(chips_of_group), chips_of_group, files))
    return (*groups, (OTHER, (), others))


def _group_name(chips: Sequence[tuple[str, str]]) -> str:
    """The name of the group of these chips, and of no others: an app has one file of groups for all of its packs.

    Of one chip whose name has letters and digits alone it is that, else that of the first with a digest of all.
    """
    plain = re.sub(r"[^a-z0-9]+", "_", "_".join(chips[0]).lower()).strip("_")
    name = plain if NAME.fullmatch(plain) and plain != OTHER else f"chip_{plain}"
    if len(chips) == 1 and all(PLAIN.fullmatch(part) for part in chips[0]):
        return name
    return f"{name}_{hashlib.sha256(repr(sorted(chips)).encode()).hexdigest()[:8]}"


def _chip(row: bundle_manifest.SelectionRow) -> tuple[str, str] | None:
    """Manufacturer and model, where Google Play knows them: a board's name, of older devices, has no blank."""
    maker, _, model = row.soc.partition(" ")
    return (maker, model) if model and row.min_api_level >= chip_contexts.CHIP_API_LEVEL else None


def _files(content: bundle_manifest.Content, rows: Sequence[bundle_manifest.SelectionRow]) -> tuple[str, ...]:
    return tuple(sorted({file for row in rows for file in content.ships[row.ships].files}))
