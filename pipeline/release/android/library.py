"""All of a release for Android: models with their classes, a runtime in place of the published one, an AI pack.

Everything is checked before anything is written.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.release.android.ai_pack import AiPack, ai_pack, pack_name, write_pack
from pipeline.release.android.facade import java_class
from pipeline.release.android.maven import (
    MavenModule,
    Publication,
    default_artifact,
    java_package,
    models_module,
    publication,
    publish,
    runtime_module,
)
from pipeline.release.android.package import AndroidPackage, android_package, java_compiler
from pipeline.release.android.runtime import RuntimePackage, runtime_package
from pipeline.release.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class AndroidOrder:
    """What is to be published, and under which names; None stands for what `ort-mobile release android` takes then.

    `runtime` is an AAR or a release by name, `pack` the folder of an AI pack that gets the models.
    """

    group: str
    version: str
    artifact: str | None = None
    package: str | None = None
    target: str | None = None
    telemetry: bool = True
    runtime: str | None = None
    pack: Path | None = None

    def named(self, bundle: str) -> Publication:
        """The name of the models' module; ConfigError for one that Maven or Gradle refuse."""
        return publication(self.group, self.artifact or default_artifact(bundle), self.version)

    def check(self, releases: Sequence[str], abis: Collection[str]) -> None:
        """Raise as `android_library` would for what needs no bundle: names, the runtime, a missing Java compiler."""
        java_package(self.package, self.named("models"))
        if self.pack:
            pack_name(self.pack)
        if self.runtime:
            runtime_package(self.runtime, releases, abis)
        java_compiler()


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

    def write(self, repository: Path) -> bool:
        """Publish into a repository and write the pack; False where the models' module is there already."""
        modules: list[MavenModule] = [models_module(self.package, self.named, self.beside)]
        if self.runtime and self.beside:
            modules.append(runtime_module(self.runtime, self.beside))
        new = publish(modules, repository)[0]
        if self.pack and self.pack_folder:
            write_pack(self.pack, self.pack_folder)
        return new


def android_library(bundle: Path, manifest: Manifest, order: AndroidOrder) -> AndroidLibrary:
    """The release of a verified bundle. Raises as its parts do, for names, targets, sizes and runtimes."""
    named = order.named(manifest.content.name)
    java = java_package(order.package, named)
    package = android_package(
        bundle, manifest, java, order.target, telemetry=order.telemetry, assets=order.pack is None
    )
    pack = ai_pack(order.pack, bundle, manifest.content, package.target, java) if order.pack else None
    releases, abis = [one.ort_release for one in package.ships], {abi for one in package.ships for abi in one.abis}
    runtime = runtime_package(order.runtime, releases, abis) if order.runtime else None
    return AndroidLibrary(
        package=package,
        named=named,
        runtime=runtime,
        beside=publication(order.group, f"{named.artifact}-runtime", order.version) if runtime else None,
        pack=pack,
        pack_folder=order.pack,
    )
