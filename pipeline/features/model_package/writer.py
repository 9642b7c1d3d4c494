"""The model package of a target: a component for each model, a variant for each provider, and each file once.

The format is that of ONNX Runtime 1.32 (model_package/README.md and onnxruntime/core/session/model_package/README.md of
its sources): manifest.json names components, their variants and, for the executor `ort`, file and options. A session
takes the first variant of its first provider. Options that are no entries of the session's config go by keys that
AddSessionConfigEntry knows since 1.32.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from device_runner import files as runner_files
from device_runner import providers as runner_providers
from device_runner import spec as run_spec
from device_runner.spec import RunOptions
from pipeline.campaign import run_options
from pipeline.core import files as storage
from pipeline.core.errors import ConfigError
from pipeline.release import app_code, selection
from pipeline.release import manifest as bundle_manifest

MANIFEST = "manifest.json"
MODELS = "models"
"""The folder of all files: variants of one file, and weights that several files have, name it once."""

SCHEMA = "1.0"
RELEASE = "1.32"
"""The first release of ONNX Runtime with the C API of such packages; no minimal build has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPackage:
    """A package to be written: its manifest, its files by their path, and what differs from what was measured."""

    manifest: dict[str, object]
    files: dict[str, storage.VerifiedFile]
    lost: tuple[str, ...]

    @property
    def variants(self) -> list[str]:
        """`component/variant` of all."""
        components = msgspec.convert(self.manifest["components"], dict[str, dict[str, dict[str, object]]])
        return [f"{name}/{variant}" for name, table in components.items() for variant in table["variants"]]


def model_package(bundle: Path, manifest: bundle_manifest.Manifest, target: str) -> ModelPackage:
    """The package of what a verified bundle ships to a target. ConfigError for models with custom operators."""
    content = manifest.content
    components: dict[str, object] = {}
    files: dict[str, storage.VerifiedFile] = {}
    lost: list[str] = []
    for model, rows in selection.rows_of(content, target).items():
        ships = [content.ships[number] for number in dict.fromkeys(row.ships for row in rows)]
        contexts = [npu for npu in content.contexts if (npu.target, npu.model) == (target, model)]
        variants: dict[str, object] = {}
        for context in contexts:
            variants[context.chip] = _context(context)
        for shipped in (ships[-1], *ships[:-1]):  # the last row fits every device
            for options in shipped.runs:
                name = runner_providers.provider_named(options.provider).name
                if name in variants:
                    lost.append(_second(model, shipped, options))
                    continue
                variants[name] = _variant(shipped, options)
                lost += [f"{model}/{name}: without {what}" for what in lacks(options)]
        components[model] = {"variants": variants}
        shipped_files = [path for shipped in ships for path in shipped.files]
        compiled = [path for context in contexts for path in context.files]
        for path in dict.fromkeys((*compiled, *shipped_files)):
            files[f"{MODELS}/{Path(path).name}"] = manifest.verified(bundle, path)
    document: dict[str, object] = {
        "schema_version": SCHEMA,
        "package_name": content.name,
        "components": components,
        "additional_metadata": {"ort-mobile": {"target": target, "digest": manifest.content_sha256}},
    }
    return ModelPackage(manifest=document, files=files, lost=tuple(lost))


def _second(model: str, shipped: bundle_manifest.Shipped, options: RunOptions) -> str:
    way = run_options.options_name(options)
    return f"{model}: {way} of {Path(shipped.file).name} is left out: a session takes its provider's first variant"


def _variant(shipped: bundle_manifest.Shipped, options: RunOptions) -> dict[str, object]:
    provider = runner_providers.provider_named(options.provider)
    if options.custom_ops:
        raise ConfigError(
            f"{shipped.model} needs custom operators",
            where="the bundle's manifest",
            why="a model package cannot name their library",
            remedy="use the packages of `release`, or `release snippet`, which register it",
        )
    info: dict[str, object] = {"model_file": Path(shipped.file).name, "session_options": session_options(options)}
    if options.provider_options and _has_devices(provider):
        info["provider_options"] = dict(sorted(options.provider_options.items()))
    name = provider.ort_name or provider.name
    return {"ep": name, "variant_directory": MODELS, "executor_info": {"ort": info}}


def _context(context: bundle_manifest.ShippedContext) -> dict[str, object]:
    """What was compiled for an NPU, which the provider judges by what it wrote of it."""
    provider = next(
        provider for provider in runner_providers.PROVIDERS.values() if provider.plugin and provider.plugin.by_chip
    )
    info = {"model_file": Path(context.file).name, "session_options": {}}
    return {
        "ep": provider.ort_name,
        "device": "npu",
        "compatibility_string": context.compatibility,
        "variant_directory": MODELS,
        "executor_info": {"ort": info},
    }


def _has_devices(provider: runner_providers.ExecutionProvider) -> bool:
    """Whether ONNX Runtime takes a package's options of the provider: it refuses those of others."""
    return bool(provider.devices_since or provider.plugin)


def session_options(options: RunOptions) -> dict[str, str]:
    """Session options as a package has them: texts by the keys of a session's config."""
    level = app_code.CPP_LEVELS[options.optimization_level].removeprefix("ORT_").lower()
    values = {
        "session.intra_op_num_threads": str(options.intra_op_threads or ""),
        "session.inter_op_num_threads": str(options.inter_op_threads or ""),
        "session.execution_mode": "parallel" if options.execution_mode is run_spec.ExecutionMode.PARALLEL else "",
        "session.enable_mem_pattern": "" if options.memory_pattern else "0",
        "session.enable_cpu_mem_arena": "" if options.cpu_arena else "0",
        "session.graph_optimization_level": "" if level == "enable_all" else level,
    }
    return {key: value for key, value in values.items() if value} | dict(sorted(options.session_config.items()))


def lacks(options: RunOptions) -> Iterator[str]:
    """What of these options a package cannot have."""
    provider = runner_providers.provider_named(options.provider)
    missing = {
        f"options of {provider.title}, which the app gives where it appends it": options.provider_options
        and not _has_devices(provider),
        f"flags of {provider.title}": options.flags,
        "the allocator": options.allocator is not run_spec.Allocator.DEFAULT,
        "cores and nice value of threads": options.thread_cores or options.thread_nice,
        "bound tensors": options.device_tensors or options.captures_graph,
    }
    yield from (what for what, is_needed in missing.items() if is_needed)


def write_package(package: ModelPackage, folder: Path) -> None:
    """Write a package to a folder that is not there, whole or not at all; ConfigError where one is."""
    with storage.storage_errors(folder):
        is_there = folder.exists() or folder.is_symlink()
    if is_there:
        raise ConfigError(
            "this folder is there already",
            where=str(folder),
            why="a package is written whole, and what is there would be lost",
            remedy="choose another folder with --output",
        )
    document = msgspec.json.format(msgspec.json.encode(package.manifest), indent=2).decode()
    storage.make_folder(folder.parent)
    with storage.storage_errors(folder), runner_files.staging_folder(folder) as new:
        storage.write_files(new, {MANIFEST: document + "\n", **package.files})
        runner_files.take_place(new, folder)
