"""All of a release for Android: models with their classes, a runtime in place of the published one, an AI pack.

Everything is checked before anything is written.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pipeline.config import AndroidRelease, Telemetry
from pipeline.core.abis import abis_of_target
from pipeline.core.errors import ConfigError
from pipeline.core.output import BUNDLE
from pipeline.features.android.ai_pack import AiPack, ai_pack, pack_name, write_pack
from pipeline.features.android.facade import java_class
from pipeline.features.android.maven import (
    MavenModule,
    Publication,
    default_artifact,
    java_package,
    models_module,
    publication,
    publish,
    release_range,
    runtime_module,
)
from pipeline.features.android.package import AndroidPackage, android_package, java_compiler
from pipeline.features.android.runtime import RuntimePackage, runtime_package
from pipeline.features.packages.release import AppPackage, ReleaseOrder
from pipeline.release.app_models import target_in
from pipeline.release.manifest import Manifest
from pipeline.release.shipped import release_for

MAVEN = "maven"
"""The Maven repository in a job's output folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AndroidLibrary:
    """What was checked and can be written; `beside` is the name that `runtime` is published under."""

    package: AndroidPackage
    named: Publication
    runtime: RuntimePackage | None
    beside: Publication | None
    pack: AiPack | None
    pack_folder: Path | None

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes that open the models, with their package."""
        return tuple(f"{self.package.package}.{java_class(model)}" for model in self.package.models)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to know of the ONNX Runtime that apps get with the models."""
        release = self.package.release
        if self.runtime or not release or release.count(".") == 2:
            return self.runtime.warnings if self.runtime else ()
        newest = (
            f"apps get the newest patch of ONNX Runtime {release} that their build finds ({release_range(release)}), "
            "which need not be the one that was tested; to pin it, name the version in the target, as in "
            f'library = "android:{release}.0", and make the bundle again'
        )
        return (newest,)

    def write(self, repository: Path) -> bool:
        """Publish into a repository and write the pack; False where the models' module is there already."""
        modules: list[MavenModule] = [models_module(self.package, self.named, self.beside)]
        if self.runtime and self.beside:
            modules.append(runtime_module(self.runtime, self.beside))
        new = publish(modules, repository)[0]
        if self.pack and self.pack_folder:
            write_pack(self.pack, self.pack_folder)
        return new


def android_library(bundle: Path, manifest: Manifest, table: AndroidRelease, version: str) -> AndroidLibrary:
    """The release of a verified bundle. Raises as its parts do, for names, targets, sizes and runtimes."""
    named = publication(table.group, table.artifact or default_artifact(manifest.content.name), version)
    java = java_package(table.package, named)
    telemetry, folder = table.telemetry is not Telemetry.OFF, Path(table.ai_pack) if table.ai_pack else None
    package = android_package(bundle, manifest, java, table.target, telemetry=telemetry, assets=folder is None)
    pack = ai_pack(folder, bundle, manifest.content, package.target, java) if folder else None
    releases, abis = [row.ort_release for row in package.ships], {abi for row in package.ships for abi in row.abis}
    runtime = runtime_package(table.runtime, releases, abis) if table.runtime else None
    return AndroidLibrary(
        package=package,
        named=named,
        runtime=runtime,
        beside=publication(table.group, f"{named.artifact}-runtime", version) if runtime else None,
        pack=pack,
        pack_folder=folder,
    )


def check_order(order: ReleaseOrder) -> None:
    """Raise as `android_library` would for what needs no bundle: names, the runtime, a missing Java compiler."""
    table = order.config.release.android
    if table is None:
        return
    if not order.version:
        raise ConfigError(
            "the packages have no version",
            where="[release] version",
            why="what is published under a version never changes",
            remedy="write version in [release], or give --version",
        )
    target = target_in(order.config, ("android",), "Android", table.target, "[release.android]")
    java_package(table.package, publication(table.group, table.artifact or default_artifact("models"), order.version))
    if table.ai_pack:
        pack_name(Path(table.ai_pack))
    if table.runtime:
        runtime_package(table.runtime, [release_for(target)], abis_of_target(target.platform, target.abis))
    java_compiler()


@contextlib.contextmanager
def package(order: ReleaseOrder, manifest: Manifest) -> Iterator[AppPackage | None]:
    """The library that [release.android] wants, where it is there."""
    table = order.config.release.android
    if table is None:
        yield None
        return
    library = android_library(order.folder / BUNDLE, manifest, table, order.version or "")
    repository = Path(table.repository or order.folder / MAVEN)
    names = {"android": f"{library.named.notation} in {repository}"}
    if library.beside:
        names["runtime"] = f"{library.beside.notation} in {repository}"
    if library.pack_folder:
        names["ai pack"] = str(library.pack_folder)
    yield AppPackage(names=names, warnings=library.warnings, write=partial(library.write, repository))
