"""What apps need of a release, and whether a bundle is for the app that has an older one.

A newer bundle that does not fit an app is refused before it takes the old one's place (docs/facts/release_consumers.md,
R.12).
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from device_runner import library as ort_library
from device_runner import providers as runner_providers
from pipeline import config as configs
from pipeline import required_ops
from pipeline.convert import onnx_needs
from pipeline.core import files as storage
from pipeline.core import releases as ort_releases
from pipeline.core.errors import CheckFailed
from pipeline.model import ort_format
from pipeline.release.manifest import AppRule, Content, Fallback, Manifest, ModelSignature, Shipped
from pipeline.required_ops import value as required_ops_value

ROLLBACK = tuple(Fallback)
"""The order of every bundle: another way to open the same file first, the app's own models last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """What is known of an app: the target that it is of, its ONNX Runtime's release and providers, and the operator
    config that a reduced library was built from. What is "", empty or None is not checked.
    """

    target: str = ""
    release: str = ""
    providers: tuple[str, ...] = ()
    operators: Path | None = None


def requirements(
    ships: Sequence[Shipped],
    models: Sequence[ModelSignature],
    files: Mapping[str, Path],
    operators: Mapping[str, str],
    licenses: Mapping[str, str],
) -> Iterator[AppRule]:
    """What apps need, for each target of `ships`, whose files are `files`.

    `operators` are operator configs by their file names, `licenses` those of the targets' libraries.
    """
    typed = hashlib.sha256(operators[storage.TYPED_CONFIG_FILE].encode()).hexdigest()
    for target in dict.fromkeys(shipped.target for shipped in ships):
        of_target = [shipped for shipped in ships if shipped.target == target]
        read = [ort_format.read_artifact(files[name]) for name in dict.fromkeys(shipped.file for shipped in of_target)]
        lowest, below = ort_releases.range_of(ort_library.release_of(of_target[0].library) or of_target[0].ort_release)
        domains = {node.domain for model in read for graph in model.graph.walk() for node in graph.nodes}
        names = {shipped.model for shipped in of_target}
        yield AppRule(
            target=target,
            lowest_release=lowest,
            below_release=below,
            format_version=max(int(model.format_version) if model.format_version.isdigit() else 0 for model in read),
            providers=tuple(sorted({shipped.runs[0].provider for shipped in of_target})),
            custom_domains=tuple(sorted(domains - required_ops_value.KNOWN_DOMAINS - {""})),
            operators_sha256=typed,
            signature_sha256=signature_digest([model for model in models if model.model in names]),
            library_license=licenses.get(target, ""),
        )


def signature_digest(models: Sequence[ModelSignature]) -> str:
    """The sha256 of the names, types and shapes of inputs and outputs: what the app's code was written for."""
    ordered = sorted(models, key=lambda model: model.model)
    parts = [(model.model, model.inputs, model.outputs, *([model.text] if model.text else [])) for model in ordered]
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()


def refuse_misfit(app: App, old: Manifest, new: Manifest, folder: Path) -> None:
    """Raise CheckFailed where the bundle in `folder` is not for an app that has the old one, as far as it is known."""
    if not (app.target or app.release or app.providers or app.operators):
        return
    if objections := list(_objections(app, old.content, new.content, folder)):
        targets = [] if app.target else [requirement.target for requirement in new.content.requires]
        fits = [
            target
            for target in targets
            if not any(_objections(replace(app, target=target), old.content, new.content, folder))
        ]
        raise CheckFailed(
            "this update is not for this app",
            where=f"bundle {new.content_sha256[:16]}",
            why="; ".join(dict.fromkeys(objections)),
            remedy=f"name the app's target: --target {' or --target '.join(fits)}"
            if fits
            else "keep the old bundle, and ship the new one with an app that has what it requires",
        )


def _objections(app: App, old: Content, new: Content, folder: Path) -> Iterator[str]:
    if not new.requires:
        yield "it does not say what it requires of apps"
        return
    rows = [requirement for requirement in new.requires if app.target in ("", requirement.target)]
    if not rows:
        targets = ", ".join(requirement.target for requirement in new.requires)
        yield f"it has nothing for target {app.target}; it has {targets}"
    for row in rows:
        lowest, below = ort_releases.numbers_of(row.lowest_release), ort_releases.numbers_of(row.below_release)
        if app.release and not lowest <= ort_releases.numbers_of(app.release) < below:
            yield (
                f"target {row.target} needs ONNX Runtime {row.lowest_release} or later and below {row.below_release}; "
                f"the app has {app.release}"
            )
        if app.providers and (
            missing := [
                name for name in row.providers if name not in app.providers and not runner_providers.on_cpu(name)
            ]
        ):
            yield f"target {row.target} needs the execution provider {', '.join(missing)}"
        if app.operators is not None:  # what the artifacts need that the app's operator config does not list
            has = required_ops.read_config(app.operators)
            for shipped in (shipped for shipped in new.ships if shipped.target == row.target):
                providers = sorted({shipped.runs[0].provider} - {"cpu"})
                extended = shipped.library_kind != configs.BuildKind.MINIMAL
                needs, error = onnx_needs.needs_of_one(folder / shipped.file, providers=providers, extended=extended)
                if error:
                    yield f"{shipped.file}: {error.what}"
                yield from (
                    f"the app's library has no {lack.domain}:{lack.op} ({lack.line})"
                    for lack in required_ops.covers(has, needs or {})
                )
        before = next((rule for rule in old.requires if rule.target == row.target), None)
        if before:
            if before.signature_sha256 != row.signature_sha256:
                yield (
                    f"target {row.target}: names, types or shapes of inputs or outputs are others than in the old "
                    "bundle"
                )
            if domains := sorted({*row.custom_domains} - {*before.custom_domains}):
                yield f"target {row.target} needs custom operators of {', '.join(domains)}"
