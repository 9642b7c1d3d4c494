"""What an app needs for a bundle, and whether a newer bundle fits an app (docs/facts/release_consumers.md, R.12).

A bundle that does not fit is refused before it takes the old one's place.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from device_runner.library import release_of
from pipeline.config import BuildKind, Config, Target
from pipeline.convert.many import config_texts
from pipeline.core.errors import CheckFailed
from pipeline.core.output import TYPED_CONFIG_FILE
from pipeline.core.releases import range_of
from pipeline.model.ort_format import read_ort
from pipeline.release.manifest import AppRule, Content, Fallback, Manifest, ModelSignature, Shipped
from pipeline.release.shipped import planned_build
from pipeline.required_ops import covers, needs_of_artifacts, read_config
from pipeline.required_ops.value import KNOWN_DOMAINS

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

    @property
    def known(self) -> bool:
        """Whether anything is known of it."""
        return bool(self.target or self.release or self.providers or self.operators)


def operator_configs(config: Config, artifacts: Sequence[Path]) -> dict[str, str]:
    """Both operator configs that the builds of all targets need to run some artifacts in every way of the config."""
    builds = [planned_build(target, config) for target in config.targets]
    return config_texts(
        artifacts,
        providers=sorted({name for _, providers in builds for name in providers} - {"cpu"}),
        extended=any(kind is not BuildKind.MINIMAL for kind, _ in builds),
    )


LIBRARY_LICENSE = "MIT"
"""ONNX Runtime's own."""


def library_licenses(targets: Sequence[Target]) -> dict[str, str]:
    """The licence of each target's library: as the config has it; of ONNX Runtime's own packages and builds MIT."""
    published = {target.name: LIBRARY_LICENSE for target in targets if not target.library or release_of(target.library)}
    return published | {target.name: target.library_license for target in targets if target.library_license}


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
    typed = hashlib.sha256(operators[TYPED_CONFIG_FILE].encode()).hexdigest()
    for target in dict.fromkeys(shipped.target for shipped in ships):
        of_target = [shipped for shipped in ships if shipped.target == target]
        read = [read_ort(files[name]) for name in dict.fromkeys(shipped.file for shipped in of_target)]
        lowest, below = range_of(release_of(of_target[0].library) or of_target[0].ort_release)
        domains = {node.domain for model in read for graph in model.graph.walk() for node in graph.nodes}
        names = {shipped.model for shipped in of_target}
        yield AppRule(
            target=target,
            lowest_release=lowest,
            below_release=below,
            format_version=max(int(model.format_version) for model in read),
            providers=tuple(sorted({shipped.runs[0].provider for shipped in of_target})),
            custom_domains=tuple(sorted(domains - KNOWN_DOMAINS - {""})),
            operators_sha256=typed,
            signature_sha256=signature_digest([model for model in models if model.model in names]),
            library_license=licenses.get(target, ""),
        )


def signature_digest(models: Sequence[ModelSignature]) -> str:
    """The sha256 of the names, types and shapes of inputs and outputs: what the app's code was written for."""
    parts = [(model.model, model.inputs, model.outputs) for model in sorted(models, key=lambda model: model.model)]
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()


def refuse_misfit(app: App, old: Manifest, new: Manifest, folder: Path) -> None:
    """Raise CheckFailed where the bundle in `folder` is not for an app that has the old one."""
    if objections := list(_objections(app, old.content, new.content, folder)):
        targets = [] if app.target else [row.target for row in new.content.requires]
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
    rows = [row for row in new.requires if app.target in ("", row.target)]
    if not rows:
        yield f"it has nothing for target {app.target}; it has {', '.join(row.target for row in new.requires)}"
    for row in rows:
        yield from _of_library(app, row)
        yield from _of_operators(app, row, new, folder)
        before = next((rule for rule in old.requires if rule.target == row.target), None)
        if before:
            yield from _of_code(row, before)


def _of_library(app: App, row: AppRule) -> Iterator[str]:
    lowest, below = _numbers(row.lowest_release), _numbers(row.below_release)
    if app.release and not lowest <= _numbers(app.release) < below:
        yield (
            f"target {row.target} needs ONNX Runtime {row.lowest_release} or later and below {row.below_release}; "
            f"the app has {app.release}"
        )
    if app.providers and (missing := [name for name in row.providers if name not in {*app.providers, "cpu"}]):
        yield f"target {row.target} needs the execution provider {', '.join(missing)}"


def _of_operators(app: App, row: AppRule, new: Content, folder: Path) -> Iterator[str]:
    """What the artifacts need that the app's operator config does not list."""
    if app.operators is None:
        return
    has = read_config(app.operators)
    for shipped in (shipped for shipped in new.ships if shipped.target == row.target):
        extended = shipped.library_kind != BuildKind.MINIMAL
        needed, failed = needs_of_artifacts(
            [folder / shipped.file], providers=sorted({shipped.runs[0].provider} - {"cpu"}), extended=extended
        )
        yield from (f"{shipped.file} cannot be read" for _ in failed)
        for needs in needed:
            yield from (
                f"the app's library has no {lack.domain}:{lack.op} ({lack.line})" for lack in covers(has, needs.needs)
            )


def _of_code(row: AppRule, before: AppRule) -> Iterator[str]:
    """What the app's code would have to change for."""
    if before.signature_sha256 != row.signature_sha256:
        yield f"target {row.target}: names, types or shapes of inputs or outputs are others than in the old bundle"
    if domains := sorted({*row.custom_domains} - {*before.custom_domains}):
        yield f"target {row.target} needs custom operators of {', '.join(domains)}"


def _numbers(version: str) -> tuple[int, ...]:
    """A release as numbers, for comparison: 1.29 is 1.29.0."""
    parts = [int(part) for part in version.split(".")]
    return (*parts, *[0] * (3 - len(parts)))
