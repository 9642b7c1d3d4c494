"""Makes a bundle and its README.md: a new folder takes the old one's place when every byte is written and proven."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from device_runner import files as runner_files
from device_runner import library as ort_library
from device_runner import providers as runner_providers
from device_runner import result as run_result
from device_runner import safe_text
from pipeline.campaign import tuned as campaign_tuned
from pipeline.compat import contexts as npu_contexts
from pipeline.config import app_data
from pipeline.config import tables as config_tables
from pipeline.core import files as storage
from pipeline.core import releases as ort_releases
from pipeline.core.errors import ConfigError
from pipeline.model.signature import TensorInfo
from pipeline.release.app_code import code_for
from pipeline.release.app_fit import ROLLBACK
from pipeline.release.chip_contexts import gradle_notations, other_phones
from pipeline.release.kept import BundledFile, KeptReference, KeptVectors
from pipeline.release.manifest import (
    MANIFEST_FILE,
    MEASURED_FILE,
    SEAL_FILE,
    AppRule,
    Content,
    Manifest,
    ModelSignature,
    SelectionRow,
    Shipped,
    ShippedContext,
    content_digest,
    encode_manifest,
    failures,
    refuse_foreign,
    sealed,
    verify_bundle,
)
from pipeline.release.sbom import SBOM_FILE, bill_of_materials
from pipeline.release.selection import selection, selection_text

README_FILE = "README.md"

HEAD = """\
# {name}: how to use this bundle

For developers who put these models into an app. `manifest.json` has the same as data for programs;
`ort-mobile bundle verify` checks every byte of the bundle. [{measured}]({measured}) shows what was measured on which
device, and how far the outputs are from the original models'; it is not part of the bundle's digest.
"""

PACKAGES = {
    "android": """\
Gradle:

```kotlin
implementation("com.microsoft.onnxruntime:onnxruntime-android:{version}"){any}
```
""",
    "ios": """\
CocoaPods:

```ruby
pod 'onnxruntime-objc', '{pod}'
```

{swift}""",
    "linux": """\
Get ONNX Runtime {line} from its release page, from Maven (`com.microsoft.onnxruntime:onnxruntime`), or from PyPI
(`onnxruntime`).
""",
}
PACKAGES["macos"] = PACKAGES["ios"]
SWIFT = """\
or the Swift package, product `onnxruntime`:

```swift
.package(url: "{}", {})
```
"""


def readme(
    name: str,
    ships: Sequence[Shipped],
    models: Sequence[ModelSignature],
    rows: Sequence[SelectionRow] = (),
    contexts: Sequence[ShippedContext] = (),
) -> str:
    """The text, for a bundle of this name with these parts."""
    signatures = {model.model: model for model in models}
    parts = [HEAD.format(name=safe_text.visible(name), measured=MEASURED_FILE)]
    for target in dict.fromkeys(shipped.target for shipped in ships):
        of_target = [shipped for shipped in ships if shipped.target == target]
        parts += _target(of_target)
        parts += selection_text([row for row in rows if row.target == target], ships, of_target[0].platform, _code)
        parts += [line for shipped in of_target for line in _model(shipped, signatures.get(shipped.model))]
        by_npu = [context for context in contexts if context.target == target]
        cells = []
        for context in by_npu:
            others = [
                name for name in other_phones(context).get(npu_contexts.Loading.SUPPORTED, ()) if name != context.chip
            ]
            names = map(_code, (context.model, context.chip, context.file, context.binary))
            cells.append(f"| {' | '.join(names)} | {', '.join(others)} |")
        if by_npu:
            plugin, runtime = gradle_notations(by_npu)
            not_run = ", ".join(dict.fromkeys(context.model for context in by_npu if context.not_run))
            simulated = not all(context.not_run for context in by_npu)
            compared = ["compared with the original in a simulator, never measured"] if simulated else []
            if not_run:
                compared.append(f"of {not_run} it was made and run on no computer, as sizes share a binary")
            parts.append(
                NPU.format(
                    compared="; ".join(compared),
                    qairt=by_npu[0].qairt,
                    rows="\n".join(cells),
                    plugin=plugin,
                    runtime=runtime,
                )
            )
    return "\n".join(parts)


def _target(ships: Sequence[Shipped]) -> Iterator[str]:
    """The heading of a target, and the package that the app needs there."""
    shipped = ships[0]
    lowest = f", API level {shipped.min_api_level} or higher" if shipped.min_api_level else ""
    lowest += f", version {shipped.min_os_version} or higher" if shipped.min_os_version else ""
    yield f"## Target {_code(shipped.target)}: {shipped.platform}{lowest}, ONNX Runtime {shipped.ort_release}\n"
    if shipped.library and not ort_library.release_of(shipped.library):
        kind = f" ({shipped.library_kind} build)" if shipped.library_kind else ""
        yield f"The app ships the library {_code(shipped.library)}{kind}, not the package of the release.\n"
    elif shipped.library_kind not in ("", "full"):
        yield (
            f"The app ships a reduced build of ONNX Runtime ({shipped.library_kind}), not the package of the release. "
            "Build it with `ort-mobile build run`; it needs at least the operators of `operators/`.\n"
        )
    else:
        yield package_lines(shipped.platform, ort_library.release_of(shipped.library) or shipped.ort_release)


def package_lines(platform: str, release: str) -> str:
    """Where an app gets ONNX Runtime of a release (1.29.0) or of any patch of a line (1.29)."""
    exact, line = release.count(".") == 2, ort_releases.line_of(release)
    swift = f"No Swift package of ONNX Runtime {line} is known.\n"
    if package := ort_releases.SWIFT_PACKAGES.get(line):
        swift = SWIFT.format(
            ort_releases.SWIFT_REPOSITORY,
            f'exact: "{release}"' if exact else f'.upToNextMinor(from: "{package.version}")',
        )
    return PACKAGES[platform].format(
        line=line,
        version=release if exact else f"{line}.+",
        any="" if exact else f"  // the newest patch of {line}; write the one that you tested",
        pod=release if exact else f"~> {line}.0",
        swift=swift,
    )


def _model(shipped: Shipped, signature: ModelSignature | None) -> Iterator[str]:
    yield f"### Model {_code(shipped.model)}: `{shipped.file}`\n"
    yield f"{basis_text(shipped)}\n"
    if shipped.weights:
        yield (
            f"Its weights, and those of its other sizes, are in `{shipped.weights}`: keep both files in one folder and "
            "open the model by its path, from bytes it does not find them.\n"
        )
    if signature:
        yield _table("input", signature.inputs)
        if signature.optional_inputs:
            yield "Optional inputs; where the app gives none, the file has the value:\n"
            yield _table("input", signature.optional_inputs)
        if names := signature.constant_inputs:
            yield (
                f"Optional inputs of the original model that are constants here: {', '.join(map(_code, names))}. "
                "The app cannot set them; `optional_inputs` in the config keeps one an input.\n"
            )
        yield _table("output", signature.outputs)
        yield from _states(signature)
        if signature.dimensions:
            sizes = ", ".join(f"{_code(name)} = {size}" for name, size in signature.dimensions.items())
            yield f"Dimensions that were fixed for this file: {sizes}. It takes no other sizes.\n"
        if signature.guessed:
            yield f"Sizes that were guessed, and confirmed by nobody: {', '.join(map(_code, signature.guessed))}.\n"
        open_axes = {axis for tensor in signature.inputs for axis in tensor.shape or () if not isinstance(axis, int)}
        if open_axes:
            yield "Axes without a number are dynamic: any size that the model can compute.\n"
        # How inputs were prepared where that was declared: the app must do the same
        if signature.preprocess:
            yield "The files of the test data became inputs in these steps; the app must do the same:\n"
            yield "\n".join((*(f"{number}. {step}" for number, step in enumerate(steps(signature.preprocess), 1)), ""))
        yield from _app_data(signature)
        if signature.values:
            values = ", ".join(
                f"{_code(name)}: random from {value.low} to below {value.high}"
                if isinstance(value, config_tables.Range)
                else f"{_code(name)}: {list(value) if isinstance(value, tuple) else value}"
                for name, value in signature.values.items()
            )
            yield f"Values of inputs in the test data: {values}.\n"
    options = shipped.runs[0]
    yield f"Open it with the provider {_code(options.provider)} and exactly these options:\n"
    for language, lines in code_for(shipped.platform, options, shipped.file.rpartition("/")[2]).items():
        fence = "cpp" if language == "C++" else language.lower()
        yield "\n".join((f"{language}:\n", f"```{fence}", *lines, "```\n"))


ANSWERS = {
    app_data.AnswerKind.CLASSES: "`labels` are those of the best classes, the best first, `scores` their values.\n",
    app_data.AnswerKind.BOXES: (
        "`boxes` are left, top, right and bottom in pixels of the image, the best first; `scores` are their values, "
        "`classes` the numbers of their classes.\n"
    ),
    app_data.AnswerKind.TEXT: "`text` is the characters of the text in their order, `scores` their values.\n",
    app_data.AnswerKind.EMBEDDING: "`embedding` is compared with others: it stands for what the model was given.\n",
    app_data.AnswerKind.MASK: "`mask` has the number of its class for each pixel of the image.\n",
    app_data.AnswerKind.PROBABILITY: "`probability` is one number.\n",
}


def _states(signature: ModelSignature) -> Iterator[str]:
    if signature.state:
        yield (
            "The model has a state: a stream begins with the first values, and each inference then gets in these "
            "inputs what the inference before it gave.\n"
        )
        cells = (
            f"| {_code(output)} | {_code(name)} | {_first_value(signature, name)} |"
            for output, name in signature.state.items()
        )
        yield "\n".join(("| output | input of the next inference | first value |", "|---|---|---|", *cells, ""))


def _app_data(signature: ModelSignature) -> Iterator[str]:
    """What an app has and gets in place of tensors."""
    if signature.takes_image:
        name = _code(signature.inputs[0].name)
        yield f"{name} takes the bytes of an image of any size as they are, {signature.image}, row by row.\n"
    if signature.rate and any(given.name == app_data.SAMPLES and not given.fixed for given in signature.inputs):
        yield (
            f"{_code(app_data.SAMPLES)} takes a recording of any length, one channel of {signature.rate} samples a "
            "second; the graph computes what the model takes of it.\n"
        )
    if text := signature.text:
        names = ", ".join(f"{key} {_code(name)}" for key, name in text.inputs.items() if name)
        yield (
            f"The app has a text: the tokenizer in {_code(text.file)} makes {names} of it, {text.most} tokens at most. "
            f"It was made of {text.library}, and takes no Unicode table of the phone.\n"
        )
    if signature.answer:
        yield ANSWERS[signature.answer]


def _first_value(signature: ModelSignature, name: str) -> str:
    values = isinstance(signature.values.get(name), config_tables.Range | tuple)
    return "as in the test data (below)" if values else signature.first_value(name)


NPU = """\
### On a Snapdragon's NPU

Phones with one of these chips open the model's context first: `FILE` by its path, with `BINARY` beside it. It was
compiled by QAIRT {qairt} for that very chip, and {compared}.

| model | chip | file | binary | other phones that would take it |
|---|---|---|---|---|
{rows}

Gradle, the releases that belong together; their libraries are Qualcomm's, and not in this bundle:

```kotlin
implementation("{plugin}")
implementation("{runtime}")
```

`ort-mobile release android` writes classes that find the chip, register the plugin, open the context and go on with the
next row where the phone refuses it.
"""


def basis_text(shipped: Shipped) -> str:
    """Why this variant ships, in a sentence."""
    gpu = runner_providers.provider_named(shipped.runs[0].provider)
    warm = f" {gpu.title} compiles shaders in the first run, for seconds: run it once in the background." * gpu.gpu
    if shipped.basis == "measured":
        where = "on which devices, and where another is faster"
        return (
            f"Variant {shipped.variant.name}, chosen by measurements on such devices ({MEASURED_FILE}: {where}).{warm}"
        )
    return f"Variant {shipped.variant.name}; not measured on such a device.{warm}"


def _table(kind: str, tensors: Iterable[TensorInfo]) -> str:
    rows = []
    for tensor in tensors:
        sizes = (str(axis) if isinstance(axis, int) else _code(axis) if axis else "?" for axis in tensor.shape or ())
        shape = "any" if tensor.shape is None else " x ".join(sizes) or "scalar"
        rows.append(f"| {_code(tensor.name)} | {tensor.dtype or 'no tensor'} | {shape} |")
    return "\n".join((f"| {kind} | type | shape |", "|---|---|---|", *rows, ""))


def steps(given: config_tables.PreprocessConfig) -> Iterator[str]:
    """The steps of a preprocessing in their order, one sentence each."""
    if given.sample_rate or given.length:
        if given.mono:
            yield "mono: the mean of all channels"
        if given.sample_rate:
            yield f"resample to {given.sample_rate} samples a second"
        if given.length:
            yield f"cut, or pad with zeros, to {given.length} samples"
    else:
        if given.resize:
            height, width = given.resize
            yield f"resize to {height} x {width} (height x width), bilinear with antialiasing, {given.fit}"
        if given.crop:
            yield f"crop {given.crop[0]} x {given.crop[1]} (height x width) from the middle"
        yield f"channels {given.channels}"
    if given.mean != 0.0 or given.scale != 1.0:
        unit = "-1 to 1" if given.sample_rate or given.length else "0 to 255"
        yield f"(value - {_numbers(given.mean)}) * {_numbers(given.scale)}, with values from {unit}"
    if not (given.sample_rate or given.length):
        yield f"layout {given.layout}"


def _numbers(value: float | tuple[float, ...]) -> str:
    return f"({', '.join(f'{number:g}' for number in value)})" if isinstance(value, tuple) else f"{value:g}"


def _code(text: str) -> str:
    """Text as code in Markdown, also within tables."""
    return f"`{safe_text.visible(text).replace('`', chr(39)).replace('|', chr(92) + '|')}`"


def make_bundle(
    folder: Path,
    *,
    name: str,
    sources: Mapping[str, Path | bytes],
    ships: tuple[Shipped, ...],
    made_with: Mapping[str, str],
    evidence: Mapping[str, Any],
    models: tuple[ModelSignature, ...] = (),
    contexts: tuple[ShippedContext, ...] = (),
    requires: tuple[AppRule, ...] = (),
    classes: Sequence[Sequence[campaign_tuned.TunedClass]] = (),
    reports: Mapping[str, bytes] | None = None,
    references: tuple[KeptReference, ...] = (),
    vectors: tuple[KeptVectors, ...] = (),
    tensors: Mapping[str, Path | bytes] | None = None,
    attest: Callable[[Path], Mapping[str, Any]] = lambda _: {},
) -> Manifest:
    """Write a bundle to `folder` from `sources` (path inside the bundle to a file or its bytes).

    README.md is made of `ships`, `models` and `classes` (of devices, by what ships). `reports` are texts on the
    evidence, beside the bill of materials, and `tensors` the files of `references` and `vectors`, by path. `attest` is
    given the finished bundle, whole and verified but not yet in its place; what it returns is added to the evidence. An
    older bundle there is replaced at once by renaming; a folder that holds anything else is left alone and refused.
    """
    storage.make_folder(folder.parent)
    refuse_foreign(folder)
    with contextlib.ExitStack() as stack:
        with storage.storage_errors(folder):
            building = stack.enter_context(runner_files.staging_folder(folder))
        rows = tuple(selection(ships, classes)) if classes else ()
        texts = {README_FILE: readme(name, ships, models, rows, contexts).encode()}
        made_at = run_result.utc_now()
        files = tuple(_put(building, path, source) for path, source in sorted({**sources, **texts}.items()))
        for path, source in (tensors or {}).items():
            _put(building, path, source)
        content = Content(
            name=name,
            made_with=dict(made_with),
            files=files,
            ships=ships,
            models=models,
            selection=rows,
            contexts=contexts,
            requires=requires,
            rollback=ROLLBACK,
        )

        def sealed_with(content: Content, shown: Mapping[str, Any]) -> Manifest:
            digest = content_digest(content)
            about = {**(reports or {}), SBOM_FILE: bill_of_materials(content, digest, evidence)}
            manifest = Manifest(
                content=content,
                content_sha256=digest,
                references=references,
                vectors=vectors,
                evidence=dict(shown),
                reports=tuple(_put(building, path, text) for path, text in sorted(about.items())),
                made_at=made_at,
            )
            text = encode_manifest(manifest)
            storage.write_bytes(building / MANIFEST_FILE, text)
            storage.write_bytes(building / SEAL_FILE, sealed(text))
            return verify_bundle(building)

        manifest = sealed_with(content, evidence)
        if added := attest(building):
            manifest = sealed_with(content, {**evidence, **added})
            if reasons := failures(manifest.proofs):
                content = msgspec.structs.replace(content, do_not_ship=reasons)
                manifest = sealed_with(content, manifest.evidence)
        with storage.storage_errors(folder):
            runner_files.take_place(building, folder)
    return manifest


def refuse_inside(bundle: Path, output: Path, option: str) -> None:
    """Raise ConfigError where what an option names is the bundle or in it: it would be lost, or spoil the bundle."""
    if output.resolve().is_relative_to(bundle.resolve()):
        raise ConfigError(
            f"{option} lies in the bundle",
            where=str(output),
            why="a bundle has only the files that its manifest lists",
            remedy=f"choose a place outside of {bundle} with {option}",
        )


def _put(building: Path, path: str, source: Path | bytes) -> BundledFile:
    target = building / path
    if isinstance(source, bytes):
        storage.write_bytes(target, source)
    else:
        storage.copy_file(source, target)
    return BundledFile(path=path, size_bytes=target.stat().st_size, sha256=storage.sha256_of(target))
