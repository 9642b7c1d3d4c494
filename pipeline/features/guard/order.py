"""What of a bundle's target needs a self-test: models that something else than the CPU may run, with all that ships."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from device_runner.spec import RunOptions
from pipeline.release import kept as kept_files
from pipeline.release import manifest as bundle_manifest


class TriedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that ships, with the session options that are tried with it."""

    path: str
    digests: str
    runs: tuple[RunOptions, ...]


class TriedContext(msgspec.Struct, frozen=True, kw_only=True):
    """A model compiled for a chip, and why no computer runs it, "" where one does."""

    path: str
    chip: str
    not_run: str = ""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A model whose self-test is wanted: what the bundle keeps of its original, and the files that ship of it.

    `library` is the Android library that runs them at the desk, "" for none.
    """

    model: str
    bundle: str
    reference: kept_files.KeptReference
    outputs: tuple[str, ...]
    files: tuple[TriedFile, ...]
    contexts: tuple[TriedContext, ...] = ()
    library: str = ""


def orders(bundle: Path, manifest: bundle_manifest.Manifest, target: str) -> Iterator[Order]:
    """The models of which the bundle keeps outputs of the original."""
    references = {reference.model: reference for reference in manifest.references if reference.outputs}
    digests = {file.path: file.sha256 for file in manifest.content.files}
    for model, rows in tried(manifest, target).items():
        if model in references:
            files = tuple(
                TriedFile(path=row.file, digests="\n".join(digests[path] for path in row.files if path), runs=row.runs)
                for row in rows
            )
            contexts = tuple(
                TriedContext(path=context.file, chip=context.chip, not_run=context.not_run)
                for context in manifest.content.contexts
                if (context.target, context.model) == (target, model)
            )
            names = tuple(tensor.name for tensor in manifest.content.signature(model).outputs)
            yield Order(
                model=model,
                bundle=str(bundle),
                reference=references[model],
                outputs=names,
                files=files,
                contexts=contexts,
                library=_library(rows[0]),
            )


def tried(manifest: bundle_manifest.Manifest, target: str) -> dict[str, list[bundle_manifest.Shipped]]:
    """What ships of the models that something else than the CPU may run, by model."""
    ships: dict[str, list[bundle_manifest.Shipped]] = {}
    for shipped in manifest.content.ships:
        if shipped.target == target:
            ships.setdefault(shipped.model, []).append(shipped)
    tried = {context.model for context in manifest.content.contexts if context.target == target}
    tried |= {model for model, rows in ships.items() if any(_tries(row) for row in rows)}
    return {model: rows for model, rows in ships.items() if model in tried}


def _tries(shipped: bundle_manifest.Shipped) -> bool:
    return any(not options.on_cpu for options in shipped.runs)


def _library(shipped: bundle_manifest.Shipped) -> str:
    """The Android library that a target ships; "" for another system."""
    if shipped.platform != "android":
        return ""
    return shipped.library or f"android:{shipped.ort_release}"
