"""The bill of materials of a bundle: CycloneDX 1.6 with a model card for each model file, as plain JSON.

It is a function of the manifest: no clock, no random number. What is not known (a licence, the patch of a release) is
left out where the format has a place for it, and said in a property where a reader would miss it.
"""

import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec
import numpy as np

from device_runner import library as ort_library
from device_runner import providers as runner_providers
from pipeline.campaign.statistics import groups as run_groups
from pipeline.core import releases as ort_releases
from pipeline.model.signature import TensorInfo
from pipeline.release.chip_contexts import gradle_notations, shipped_files
from pipeline.release.manifest import AppRule, Content, Shipped
from pipeline.release.signature import Evidence

SBOM_FILE = "evidence/sbom.cdx.json"
SPEC_VERSION = "1.6"
NAMESPACE = uuid.UUID("6f0ef59e-6d3f-5d27-9d1c-0a6d6d0b7c11")
"""Of serial numbers; any fixed one does."""

PURLS = {
    "android": "pkg:maven/com.microsoft.onnxruntime/onnxruntime-android",
    "ios": "pkg:cocoapods/onnxruntime-objc",
    "macos": "pkg:cocoapods/onnxruntime-objc",
    "linux": "pkg:maven/com.microsoft.onnxruntime/onnxruntime",
}
"""The package that an app of a platform takes ONNX Runtime from."""

EXPRESSION = re.compile(r"\(*[A-Za-z0-9][A-Za-z0-9.+-]*\)*( (AND|OR|WITH) \(*[A-Za-z0-9][A-Za-z0-9.+-]*\)*)*")
"""What may be an SPDX expression; any other text is the name of a licence."""

NANOSECONDS_PER_MS = 1e6
Json = dict[str, Any]


def bill_of_materials(content: Content, digest: str, evidence: Mapping[str, Any]) -> bytes:
    """The document of a bundle with this content and digest. Raises msgspec.ValidationError for other evidence."""
    read = ("created_at", "measured", "accuracy", "datasets")
    figures = msgspec.convert({name: evidence[name] for name in read if name in evidence}, Evidence)
    # What apps need for contexts beside ONNX Runtime
    qualcomms: list[Json] = [
        {
            "type": "library",
            "bom-ref": notation,
            "name": artifact,
            "version": version,
            "purl": f"pkg:maven/{group}/{artifact}@{version}",
            "licenses": [licence],
        }
        for notation, licence in zip(
            gradle_notations(content.contexts) if content.contexts else (), QNN_LICENSES, strict=False
        )
        for group, artifact, version in [notation.split(":")]
    ]
    data = [
        {"type": "data", "bom-ref": f"data: {name}", "name": name, "data": [{"type": "dataset"}]}
        for name in dict.fromkeys(data.get("name", "") for data in figures.datasets)
    ]
    models = [
        _model(content, shipped, figures)
        for shipped in list({shipped.file: shipped for shipped in reversed(content.ships)}.values())[::-1]
    ]
    libraries = _libraries(content)
    plugins = _plugins(content)
    needs = _needs(content, models, libraries, plugins, qualcomms)
    leaves = sorted({part["bom-ref"] for part in (*libraries.values(), *plugins.values(), *data, *qualcomms)})
    bundle = {
        "type": "library",
        "bom-ref": "bundle",
        "name": content.name,
        "properties": [{"name": "ort-mobile:digest", "value": digest}],
    }
    tools = [{"type": "application", "name": name, "version": text} for name, text in sorted(content.made_with.items())]
    document: Json = {
        "$schema": f"http://cyclonedx.org/schema/bom-{SPEC_VERSION}.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "version": 1,
        "metadata": {
            **({"timestamp": figures.created_at} if figures.created_at else {}),
            **({"tools": {"components": tools}} if tools else {}),
            "component": bundle,
        },
        "components": [
            *models,
            *_contexts(content),
            *{part["bom-ref"]: part for part in libraries.values()}.values(),
            *qualcomms,
            *{part["bom-ref"]: part for part in plugins.values()}.values(),
            *data,
        ],
        "dependencies": [
            {"ref": "bundle", "dependsOn": sorted(needs)},
            *({"ref": ref, "dependsOn": needed} for ref, needed in sorted(needs.items())),
            *({"ref": ref} for ref in leaves),
        ],
    }
    serial = uuid.uuid5(NAMESPACE, msgspec.json.encode(document, order="sorted").decode())
    return (
        msgspec.json.format(
            msgspec.json.encode({**document, "serialNumber": f"urn:uuid:{serial}"}, order="sorted"), indent=2
        )
        + b"\n"
    )


def _needs(
    content: Content,
    models: Sequence[Json],
    libraries: Mapping[str, Json],
    plugins: Mapping[str, Json],
    qualcomms: Sequence[Json],
) -> dict[str, list[str]]:
    """What the bundle is made of, models and contexts, each with the libraries of its targets that it needs."""
    needs: dict[str, list[str]] = {
        model["bom-ref"]: sorted(
            {
                parts[shipped.target]["bom-ref"]
                for shipped in content.ships
                for parts in (libraries, plugins)
                if shipped.file == model["bom-ref"] and shipped.target in parts
            }
        )
        for model in models
    }
    beside_context = [library["bom-ref"] for library in qualcomms]
    for path, context in shipped_files(content.contexts).items():
        needs[path] = sorted({libraries[context.target]["bom-ref"], *beside_context})
    return needs


def _plugins(content: Content) -> dict[str, Json]:
    """The libraries that bring a GPU to computers, by the target whose runs need it."""
    plugins: dict[str, Json] = {}
    for shipped in content.ships:
        rows = (runner_providers.provider_named(options.provider) for options in shipped.runs)
        package = next((row.plugin.distribution for row in rows if row.gpu and row.plugin), "")
        if package and shipped.platform == "linux":
            purl = f"pkg:pypi/{package}"
            plugins[shipped.target] = {
                "type": "library",
                "bom-ref": purl,
                "name": package,
                "purl": purl,
                "properties": [*GPU_PLUGIN],
            }
    return plugins


def _model(content: Content, shipped: Shipped, figures: Evidence) -> Json:
    """A model file: where it comes from, and its card."""
    sizes = {file.path: file.sha256 for file in content.files}
    signature = next((model for model in content.models if model.model == shipped.model), None)
    licensed = _license(signature.license if signature else "")
    original = {
        "type": "machine-learning-model",
        "name": shipped.model,
        "hashes": _hashes(shipped.model_sha256),
        **licensed,
    }
    steps = [{"name": "ort-mobile:pass", "value": step} for step in shipped.steps]
    if shipped.weights:
        steps.append({"name": "ort-mobile:weights", "value": f"{shipped.weights} {sizes.get(shipped.weights, '')}"})
    parameters: Json = {}
    key = shipped.model, shipped.variant.name
    formats = {".onnx": "ONNX", ".ort": "ORT"}
    if signature:
        parameters["inputs"] = [{"format": _format(tensor)} for tensor in signature.inputs]
        parameters["outputs"] = [{"format": _format(tensor)} for tensor in signature.outputs]
    if data := [dataset.get("name", "") for dataset in figures.datasets if dataset.get("model") == shipped.model]:
        parameters["datasets"] = [{"ref": f"data: {name}"} for name in data]
    metrics: list[Json] = []
    for result in (
        accuracy.result
        for accuracy in figures.accuracy
        if (accuracy.model, accuracy.variant) == key and accuracy.result
    ):
        # The metric, and how much worse it is than the original, with its 95 % interval where there is one
        where = f"{result.samples} samples of {result.data.rpartition('/')[2]}"
        if result.value is not None:
            metrics.append({"type": result.metric, "value": f"{result.value:.6g}", "slice": where})
        if result.drop is not None:
            drop = {"type": f"{result.metric}, drop from the original", "value": f"{result.drop:.6g}", "slice": where}
            metrics.append(drop | _interval(result.drop_low, result.drop_high, 1))
    for run in figures.measured:
        if (run.model, run.variant) != key or run.statistics is None:
            continue
        # Median and 90th percentile in milliseconds for each device and way to run: the median is that of processes,
        # with the interval that comparisons of runs use; the percentile has its own bounds
        statistics = msgspec.convert(run.statistics, run_groups.Statistics)
        where = f"{run.device}, {run.run}"
        medians = np.asarray(statistics.round_medians_ns, np.float64)
        within = run_groups.ratio_interval(np.log(medians)) if len(medians) and medians.min() > 0 else None
        value = within.ratio if within else statistics.median_ns
        median = {"type": "latency, median, ms", "value": f"{value / NANOSECONDS_PER_MS:.6g}", "slice": where}
        metrics.append(median | (_interval(within.low, within.high, NANOSECONDS_PER_MS) if within else {}))
        if statistics.p90_ns is not None:
            low, high = statistics.p90_bounds_ns or (None, None)
            p90 = {"type": "latency, p90, ms", "value": f"{statistics.p90_ns / NANOSECONDS_PER_MS:.6g}", "slice": where}
            metrics.append(p90 | _interval(low, high, NANOSECONDS_PER_MS))
    return {
        "type": "machine-learning-model",
        "bom-ref": shipped.file,
        "name": shipped.model,
        "description": f"{shipped.model} as {shipped.variant.name} in {formats[shipped.variant.style.suffix]} format",
        "hashes": _hashes(sizes.get(shipped.file, "")),
        **licensed,
        "properties": [*_unknown(licensed), {"name": "ort-mobile:variant", "value": shipped.variant.name}, *steps],
        "pedigree": {"ancestors": [original]},
        "modelCard": {
            **({"modelParameters": parameters} if parameters else {}),
            **({"quantitativeAnalysis": {"performanceMetrics": metrics}} if metrics else {}),
        },
    }


def _contexts(content: Content) -> Iterator[Json]:
    """Both files of every context, with the model that they were compiled from."""
    sizes = {file.path: file.sha256 for file in content.files}
    for path, context in shipped_files(content.contexts).items():
        original = {"type": "machine-learning-model", "name": context.model, "hashes": _hashes(context.model_sha256)}
        yield {
            "type": "machine-learning-model",
            "bom-ref": path,
            "name": context.model,
            "description": f"{context.model} as {context.variant.name}, compiled for the NPU of {context.chip}",
            "hashes": _hashes(sizes.get(path, "")),
            "properties": [{"name": "ort-mobile:compatibility", "value": context.compatibility}],
            "pedigree": {"ancestors": [original]},
        }


QNN_LICENSES = ({"license": {"id": "MIT"}}, {"license": {"name": "Qualcomm AI Stack License"}})
"""Of the plugin, and of the runtime, which the app's build fetches: nothing of either is in the bundle."""


TELEMETRY = {
    "name": "ort-mobile:telemetry",
    "value": "it can send to mobile.events.data.microsoft.com; ORT_DISABLE_TELEMETRY=1 switches that off",
}
TELEMETRY_SINCE = (1, 29)
"""The first release whose official builds for Android, Linux and macOS send it (docs/privacy.md)."""

GPU_PLUGIN = ({"name": "ort-mobile:size", "value": "16450888 bytes (its library, release 0.4.0)"}, TELEMETRY)
"""What is known of the WebGPU plugin (docs/facts/webgpu.md, W.1). Android's library has WebGPU built in instead."""


def _license(given: str) -> Json:
    if not given:
        return {}
    return {"licenses": [{"expression": given} if EXPRESSION.fullmatch(given) else {"license": {"name": given}}]}


def _unknown(licensed: Json) -> list[Json]:
    return [] if licensed else [{"name": "ort-mobile:license", "value": "unknown: the config has none"}]


def _hashes(digest: str) -> list[Json]:
    return [{"alg": "SHA-256", "content": digest}] if digest else []


def _format(tensor: TensorInfo) -> str:
    """As in `image float32[1, 3, 224, 224]`."""
    shape = (
        "any rank" if tensor.shape is None else ", ".join("?" if axis is None else str(axis) for axis in tensor.shape)
    )
    return f"{tensor.name} {tensor.dtype or 'no tensor'}[{shape}]"


def _interval(low: float | None, high: float | None, unit: float) -> Json:
    if low is None or high is None:
        return {}
    return {"confidenceInterval": {"lowerBound": f"{low / unit:.6g}", "upperBound": f"{high / unit:.6g}"}}


def _libraries(content: Content) -> dict[str, Json]:
    """ONNX Runtime as each target ships it, by the target; equal ones are one component."""
    rules: dict[str, AppRule] = {requirement.target: requirement for requirement in content.requires}
    components = {}
    for shipped in content.ships:
        foreign = shipped.library and not ort_library.release_of(shipped.library)
        version = ort_library.release_of(shipped.library) or shipped.ort_release
        licensed = _license(rules[shipped.target].library_license if shipped.target in rules else "")
        reduced = (
            [{"name": "ort-mobile:build", "value": shipped.library_kind}]
            if shipped.library_kind not in ("", "full")
            else []
        )
        official = not foreign and not reduced and shipped.platform != "ios"
        sends = [TELEMETRY] if official and ort_releases.line_of(version) >= TELEMETRY_SINCE else []
        exact = f"@{version}" if version.count(".") == 2 else ""
        purl = f"pkg:generic/{quote(shipped.library)}" if foreign else f"{PURLS[shipped.platform]}{exact}"
        components[shipped.target] = {
            "type": "library",
            "bom-ref": f"library of {shipped.platform}: {shipped.library or version} {shipped.library_kind}".strip(),
            "name": shipped.library if foreign else "onnxruntime",
            "version": version,
            "purl": purl,
            **licensed,
            "properties": [*_unknown(licensed), *reduced, *sends],
        }
    return components
