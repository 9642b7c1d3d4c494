"""Models and a build of ONNX Runtime as app teams depend on them: AARs in a Maven repository that is a folder.

Gradle chooses between two AARs with the same libraries by their capabilities alone. Layout, and what Gradle reads of
it: docs/facts/release_consumers.md, R.2, R.6.
"""

import contextlib
import filecmp
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import msgspec

from device_runner import files as runner_files
from device_runner import library as ort_library
from pipeline import config as configs
from pipeline.config import Config
from pipeline.core import abis as core_abis
from pipeline.core import files as storage
from pipeline.core import releases as ort_releases
from pipeline.core.errors import CheckFailed, ConfigError, PipelineError
from pipeline.features.android import text_inputs
from pipeline.features.android.package import (
    JAVA_WORDS,
    ai_pack,
    asset_folder,
    asset_path,
    compiled,
    is_taken,
    java_compiler,
    java_sources,
    pack_name,
    sample_asset,
)
from pipeline.features.android.protection import Protection, protection
from pipeline.features.android.runtime import (
    CLASSES,
    KEEP_RULES,
    MANIFEST,
    METADATA,
    METADATA_LINES,
    runtime_libraries,
    runtime_warnings,
    write_runtime,
)
from pipeline.features.packages import release as packages_release
from pipeline.release import chip_contexts, selection, signature, source_code, target_choice
from pipeline.release import manifest as bundle_manifest
from pipeline.release import shipped as release_shipped

STORE_BYTES = 200_000_000
"""What Google Play lets the base of an app have, compressed; models hardly compress."""

LOWEST_API = 21
"""The lowest API level that the sources need (Context.getNoBackupFilesDir)."""

TEMPLATES = "pipeline.features.android"

RUNTIME = ("com.microsoft.onnxruntime", "onnxruntime-android")
"""Group and artifact of the published runtime."""
LICENCE = ("MIT License", "https://opensource.org/licenses/MIT")
"""ONNX Runtime's, of every build of it."""
SOURCES_JAR = "-sources.jar"
CHECKSUM_NAMES = ("md5", "sha1", "sha256", "sha512")
INDEX = "maven-metadata.xml"
INDEX_TEXT = """\
<?xml version="1.0" encoding="UTF-8"?>
<metadata>
  <groupId>{group}</groupId>
  <artifactId>{artifact}</artifactId>
  <versioning>
    <latest>{newest}</latest>
    <release>{newest}</release>
    <versions>
{versions}    </versions>
  </versioning>
</metadata>
"""
"""The versions that are there; without a date, which would differ each time."""

GROUP = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*(\.[A-Za-z_][A-Za-z0-9_-]*)*")
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
MOVING = re.compile(r"-SNAPSHOT$|^latest\.|^(latest|release)$", re.IGNORECASE)
"""Versions that build tools do not take for one."""
TAKEN_PACKAGE = re.compile(r"(java|javax|android|androidx|dalvik|kotlin|ai\.onnxruntime)(\.|$)")
"""Class loaders refuse classes of others in java.*; in the rest they would hide or be hidden."""
JAVA_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)+")

LIBRARY_ATTRIBUTES = {
    "org.gradle.category": "library",
    "org.gradle.dependency.bundling": "external",
    "org.gradle.libraryelements": "aar",
}
"""Attributes by which Gradle's Android plugin finds the variants of a library."""
SOURCES = {
    "org.gradle.category": "documentation",
    "org.gradle.dependency.bundling": "external",
    "org.gradle.docstype": "sources",
    "org.gradle.usage": "java-runtime",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MavenModule:
    """A package of a repository by its name, and what is published under it where it is ours.

    `files` are by their ending: the AAR, and the sources where there are any. `needs` are other modules, the version as
    Maven reads it, each with the versions as Gradle's module metadata has them. `provides` are modules that this one
    stands for: a build that has both must choose.
    """

    group: str
    artifact: str
    version: str
    description: str = ""
    files: Mapping[str, Callable[[Path], None]] = field(default_factory=dict)
    needs: "tuple[tuple[MavenModule, Mapping[str, str]], ...]" = ()
    provides: "tuple[MavenModule, ...]" = ()
    licence: tuple[str, str] | None = None

    @property
    def folder(self) -> Path:
        """Its folder in a repository."""
        return Path(*self.group.split("."), self.artifact, self.version)

    @property
    def stem(self) -> str:
        """What its files begin with."""
        return f"{self.artifact}-{self.version}"

    @property
    def assets(self) -> str:
        """The folder of its models among an app's assets."""
        return asset_folder(self.group, self.artifact)

    @property
    def notation(self) -> str:
        """As Gradle writes it."""
        return f"{self.group}:{self.artifact}:{self.version}"


def maven_module(group: str, artifact: str, version: str) -> MavenModule:
    """The package of a name; ConfigError for one that Maven or Gradle refuse."""
    for value, pattern, what, option, example in (
        (group, GROUP, "a group", "--group", "com.example"),
        (artifact, NAME, "an artifact", "--artifact", "my-models"),
        (version, NAME, "a version", "--version", "1.0.0"),
    ):
        if not pattern.fullmatch(value) or ".." in value or value.endswith("."):
            raise ConfigError(
                f"{value!r} cannot be {what} in a Maven repository",
                where=option,
                why="letters, digits, `_`, `-` and single dots are allowed, and a group begins its parts with a letter",
                remedy=f"write it as in {example}",
            )
    if MOVING.search(version):
        raise ConfigError(
            f"{version!r} is no version that stays the same",
            where="--version",
            why="Gradle and Maven look for the newest of what a snapshot or `latest` may mean; ours never change",
            remedy="give a plain version, as in 1.0.0 or 1.0.0-rc1",
        )
    return MavenModule(group=group, artifact=artifact, version=version)


def default_artifact(bundle: str) -> str:
    """The artifact of a bundle: its name in what Maven allows, with -models."""
    plain = re.sub(r"[^A-Za-z0-9_]+", "-", bundle).strip("-").lower()
    return f"{plain}-models" if plain else "models"


def java_package(given: str | None, named: MavenModule) -> str:
    """The Java package: `given`, or group and artifact with what Java does not allow replaced by `_`.

    Raises ConfigError for what Java or Android refuse.
    """
    parts = [*named.group.split("."), *named.artifact.split(".")]
    allowed = ".".join(re.sub(r"[^A-Za-z0-9_]", "_", part) for part in parts)
    name = given or ".".join(f"{part}_" if part in JAVA_WORDS else part for part in allowed.split("."))
    if not JAVA_NAME.fullmatch(name) or set(name.split(".")) & JAVA_WORDS or TAKEN_PACKAGE.match(name):
        raise ConfigError(
            f"{name!r} cannot be the Java package of your models",
            where="--package",
            why="it needs two or more parts with dots between; each begins with a letter and is no word of Java, and "
            "packages of Java, Android and ONNX Runtime are taken",
            remedy="write it as in com.example.models",
        )
    return name


def publish(modules: Sequence[MavenModule], repository: Path) -> tuple[bool, ...]:
    """Write modules into a repository, new or not; False for each of which the same bytes are there already.

    A version appears whole or not at all, and none before all are made. An index that does not list them, since a
    process was killed before, is made again. Raises PipelineError for a version that is there with other content.
    """
    with contextlib.ExitStack() as stack:
        folders: list[Path | None] = []
        for module in modules:
            folder, stem = repository / module.folder, module.stem
            storage.make_folder(folder.parent)
            with storage.storage_errors(folder):
                new = stack.enter_context(runner_files.staging_folder(folder))
                for ending, write in module.files.items():
                    write(new / f"{stem}{ending}")
                metadata = msgspec.json.format(msgspec.json.encode(_metadata(module, new)), indent=2) + b"\n"
                storage.write_bytes(new / f"{stem}.module", metadata)
                storage.write_text(
                    new / f"{stem}.pom", source_code.render_source(TEMPLATES, "library.pom", module=module)
                )
                for file in sorted(new.iterdir()):
                    _write_checksums(file)
                folders.append(None if folder.exists() else new)
                same = filecmp.cmpfiles(folder, new, [file.name for file in new.iterdir()], shallow=False)
            if folder.exists() and (differing := sorted(same[1] + same[2])):
                raise PipelineError(
                    f"{module.notation} is published already, with other content",
                    where=str(folder),
                    why=f"{differing[0]} differs; builds keep what they once resolved, so a version must never change",
                    remedy="give the release a new --version, or remove the folder if nobody has used it",
                )
        # What is needed comes before what needs it. The index may lack what a killed process published.
        for module, new_folder in reversed([*zip(modules, folders, strict=True)]):
            folder = repository / module.folder
            with storage.storage_errors(folder):
                if new_folder:
                    runner_files.take_place(new_folder, folder)
                _write_index(module, folder.parent)
    return tuple(folder is not None for folder in folders)


def _write_index(module: MavenModule, folder: Path) -> None:
    """Write the list of all versions in a module's folder, and its checksums, where they are not there as they should.

    What processes that were killed left of them goes; others that publish a version wait. Raises OSError.
    """
    with runner_files.taking_turns(folder):
        artifact = module.artifact
        versions = [path.name for path in folder.iterdir() if (path / f"{artifact}-{path.name}.pom").is_file()]
        # Numbers by value, words before them: 1.0-rc1 is older than 1.0.1, and 1.10 newer than 1.9.
        versions.sort(
            key=lambda version: [
                (1, int(part), "") if part.isdigit() else (0, 0, part) for part in re.findall(r"\d+|[A-Za-z]+", version)
            ]
        )
        items = "".join(f"      <version>{escape(version)}</version>\n" for version in versions)
        index = INDEX_TEXT.format(group=module.group, artifact=artifact, newest=escape(versions[-1]), versions=items)
        content = index.encode()
        files = {INDEX: content} | {
            f"{INDEX}.{name}": hashlib.new(name, content, usedforsecurity=False).hexdigest().encode()
            for name in CHECKSUM_NAMES
        }
        for name, wanted in files.items():
            runner_files.remove_parts(folder / name)
            if not (folder / name).is_file() or (folder / name).read_bytes() != wanted:
                storage.write_bytes(folder / name, wanted)


def _write_checksums(file: Path) -> None:
    for name, digest in _digests(file).items():
        storage.write_text(file.with_name(f"{file.name}.{name}"), digest)


def _digests(file: Path) -> dict[str, str]:
    digests = {}
    for name in CHECKSUM_NAMES:
        with file.open("rb") as content:
            digests[name] = hashlib.file_digest(content, partial(hashlib.new, name, usedforsecurity=False)).hexdigest()
    return digests


def release_range(release: str) -> str:
    """The releases of ONNX Runtime that fit one, as 1.29.0 or 1.29: from it on, below the next minor release."""
    return "[{},{})".format(*ort_releases.range_of(release))


def _metadata(module: MavenModule, folder: Path) -> dict[str, Any]:
    """Gradle's module metadata 1.1; it alone can hold a range that a build must not leave, and capabilities."""
    needs = [{"group": name.group, "module": name.artifact, "version": rich} for name, rich in module.needs]
    library: dict[str, Any] = {"dependencies": needs, "files": [_file(folder / f"{module.stem}.aar")]}
    if module.provides:
        stands_for = (module, *module.provides)
        library["capabilities"] = [
            {"group": module.group, "name": module.artifact, "version": module.version} for module in stands_for
        ]
    variants = [
        {"name": f"{name}Elements", "attributes": {**LIBRARY_ATTRIBUTES, "org.gradle.usage": f"java-{name}"}, **library}
        for name in ("api", "runtime")
    ]
    if SOURCES_JAR in module.files:
        files = [_file(folder / f"{module.stem}{SOURCES_JAR}")]
        variants.append({"name": "sourcesElements", "attributes": SOURCES, "files": files})
    return {
        "formatVersion": "1.1",
        "component": {
            "group": module.group,
            "module": module.artifact,
            "version": module.version,
            "attributes": {"org.gradle.status": "release"},
        },
        "variants": variants,
    }


def _file(path: Path) -> dict[str, Any]:
    digests = dict(reversed(_digests(path).items()))
    return {"name": path.name, "url": path.name, "size": path.stat().st_size, **digests}


MAVEN = "maven"
"""The Maven repository in a job's output folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AndroidLibrary:
    """The models of a bundle for one target as a library that was checked and can be written, named `named`.

    `package` is the Java package and namespace, `sources` are the files of its classes, which switch telemetry off
    without `telemetry`. The libraries of `runtime` (() for none) take the place of the published one. With `pack` the
    models are in that AI pack, whose folder is `pack_folder`, else they are assets of the library.
    """

    named: MavenModule
    package: str
    sources: Mapping[str, str]
    ships: tuple[bundle_manifest.Shipped, ...]
    contexts: tuple[bundle_manifest.ShippedContext, ...]
    bundle: Path
    manifest: bundle_manifest.Manifest
    telemetry: bool
    runtime: tuple[ort_library.Library, ...]
    protection: Protection
    pack: Mapping[str, str | storage.VerifiedFile] | None
    pack_folder: Path | None

    @property
    def beside(self) -> MavenModule | None:
        """The name that `runtime` is published under."""
        return replace(self.named, artifact=f"{self.named.artifact}-runtime") if self.runtime else None

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes that open the models, and those that pick a size, with their package."""
        names = (file.removesuffix(".java") for file in self.sources)
        return tuple(f"{self.package}.{name}" for name in names if not is_taken(name))

    @property
    def files(self) -> tuple[str, ...]:
        """The files of the bundle that devices open, each once."""
        rows: list[bundle_manifest.Shipped | bundle_manifest.ShippedContext] = [*self.ships, *self.contexts]
        return tuple(dict.fromkeys(file for row in rows for file in row.files))

    @property
    def mapped_endings(self) -> tuple[str, ...]:
        """The endings of the models that the classes map where the app stores them uncompressed."""
        mapped = (shipped.file for shipped in self.ships if shipped.loading != "path" and not shipped.weights)
        return tuple(sorted({file.rpartition(".")[2] for file in mapped}))

    @property
    def release(self) -> str:
        """ONNX Runtime's release, exact or a line; "" where the app brings another library than `runtime`."""
        if self.runtime:
            return self.runtime[0].release
        releases = {
            shipped.ort_release if not shipped.library else ort_library.release_of(shipped.library) or ""
            for shipped in self.ships
        }
        reduced = any(shipped.library_kind not in ("", "full") for shipped in self.ships)
        return "" if reduced or len(releases) != 1 else releases.pop()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to know of the ONNX Runtime that apps get with the models."""
        release, texts = self.release, list(runtime_warnings(self.runtime)) if self.runtime else []
        if not self.runtime and release.count(".") == 1:
            texts.append(
                f"apps get the newest patch of ONNX Runtime {release} that their build finds "
                f"({release_range(release)}), which need not be the one that was tested; to pin it, name the version "
                f'in the target, as in library = "android:{release}.0", and make the bundle again'
            )
        if self.contexts:
            plugin, runtime = chip_contexts.gradle_notations(self.contexts)
            texts.append(
                f"apps get {plugin} and {runtime} with the models, from Maven Central; the second is under Qualcomm's "
                "licence. In the app: android { packaging { jniLibs { useLegacyPackaging = true } } }, and leave "
                'libQnnHtpPrepare.so out (packaging { jniLibs { excludes += "**/libQnnHtpPrepare.so" } }), 90 MB that '
                "only compile on the phone"
            )
        return (*texts, *self.protection.warnings)

    def tokenizers(self) -> dict[str, storage.VerifiedFile]:
        """What the classes read as a resource, beside them: the tokenizers of models that take texts."""
        models = {shipped.model for shipped in self.ships}
        texts = [table.text for table in self.manifest.content.models if table.text and table.model in models]
        return {text_inputs.resource(self.named.assets, text.file): self.verified(text.file) for text in texts}

    def verified(self, path: str) -> storage.VerifiedFile:
        """A file of the bundle as it was verified."""
        return self.manifest.verified(self.bundle, path)

    def write_aar(self, path: Path) -> None:
        """Write the AAR. Raises MissingError without a Java compiler."""
        with runner_files.scratch_folder("ort-mobile-java-") as work:
            jar = work / CLASSES
            storage.write_zip(jar, {**compiled(self.package, self.sources, work), **self.tokenizers()})
            lowest = max(LOWEST_API, *(shipped.min_api_level or 0 for shipped in self.ships))
            values = {"package": self.package, "min_api_level": lowest, "npu": bool(self.contexts)}
            members: dict[str, Path | bytes | storage.VerifiedFile] = {
                MANIFEST: source_code.render_source(TEMPLATES, MANIFEST, **values).encode(),
                "R.txt": b"",
                CLASSES: jar,
                "proguard.txt": KEEP_RULES.encode(),
                METADATA: METADATA_LINES,
            }
            if not self.pack:
                members |= {f"assets/{asset_path(self.named.assets, file)}": self.verified(file) for file in self.files}
            for model, data in self.protection.samples.items():
                members[f"assets/{sample_asset(self.named.assets, model)}"] = data
            members |= self.protection.natives(self.package)
            operators = f"{bundle_manifest.CUSTOM_OPS}android/"
            members |= {
                f"jni/{file.path.removeprefix(operators)}": self.verified(file.path)
                for file in self.manifest.files
                if file.path.startswith(operators)
            }
            storage.write_zip(path, members)

    @property
    def modules(self) -> tuple[MavenModule, ...]:
        """What is published: the models' module, and that of `runtime`."""
        release, beside = self.release, self.beside
        needs: list[tuple[MavenModule, Mapping[str, str]]] = []
        if beside:
            needs.append((beside, {"strictly": beside.version}))
        elif release:
            allowed = release_range(release)
            exact = {"prefers": release} if release.count(".") == 2 else {}
            stock = MavenModule(group=RUNTIME[0], artifact=RUNTIME[1], version=release if exact else allowed)
            needs.append((stock, {"strictly": allowed, **exact}))
        # The NPU's plugin and its runtime by the very versions that belong together: another pair finds no NPU.
        for notation in chip_contexts.gradle_notations(self.contexts) if self.contexts else ():
            group, artifact, version = notation.split(":")
            needs.append((MavenModule(group=group, artifact=artifact, version=version), {"strictly": version}))
        off = (
            ""
            if self.telemetry
            else (
                " The classes switch ONNX Runtime's telemetry off when they open a model; not what other code that "
                "loads "
                "ONNX Runtime before them has sent by then."
            )
        )
        names = ", ".join(dict.fromkeys(shipped.model for shipped in self.ships))
        folder = self.package.replace(".", "/")
        sources: dict[str, Path | bytes] = {f"{folder}/{name}": text.encode() for name, text in self.sources.items()}
        modules = [
            replace(
                self.named,
                description=f"Models for ONNX Runtime, and Java classes that open them as they were released: {names}."
                + off,
                files={".aar": self.write_aar, SOURCES_JAR: partial(storage.write_zip, members=sources)},
                needs=tuple(needs),
            )
        ]
        if beside:  # which stands for the published one of its release
            stock = MavenModule(group=RUNTIME[0], artifact=RUNTIME[1], version=release)
            abis = ", ".join(library.abi for library in self.runtime)
            modules.append(
                replace(
                    beside,
                    description=f"ONNX Runtime {release} for {abis}, in place of {stock.notation}",
                    files={".aar": partial(write_runtime, self.runtime)},
                    provides=(stock,),
                    licence=LICENCE,
                )
            )
        return tuple(modules)

    def write(self, repository: Path) -> bool:
        """Publish into a repository and write the pack; False where the models' module is there already."""
        if not self.pack or not self.pack_folder:
            return publish(self.modules, repository)[0]
        storage.make_folder(self.pack_folder.parent)
        with storage.storage_errors(self.pack_folder), runner_files.staging_folder(self.pack_folder) as new:
            storage.write_files(new, self.pack)
            is_new = publish(self.modules, repository)[0]  # nothing is where a file of the pack has changed
            runner_files.take_place(new, self.pack_folder)  # an older one there is replaced
        return is_new


def android_library(
    bundle: Path, manifest: bundle_manifest.Manifest, table: configs.AndroidRelease, version: str
) -> AndroidLibrary:
    """The library of a verified bundle's models, for the only target for Android where the table names none.

    Raises ConfigError for names that Java, Gradle or Maven refuse and a target that the bundle does not have,
    CheckFailed for models larger than a store allows, MissingError without a Java compiler, and as `runtime_libraries`.
    """
    content = manifest.content
    named = maven_module(table.group, table.artifact or default_artifact(content.name), version)
    java = java_package(table.package, named)
    java_compiler()
    target = target_choice.target_of(bundle, manifest, ("android",), "Android", table.target)
    rows = [row for rows_of_model in selection.rows_of(content, target).values() for row in rows_of_model]
    ships = tuple(content.ships[number] for number in dict.fromkeys(row.ships for row in rows))
    telemetry = table.telemetry is not configs.Telemetry.OFF
    abis = {abi for shipped in ships for abi in shipped.abis}
    guarding = protection(bundle, manifest, target, abis) if table.guard else Protection()
    samples = {model: sample_asset(named.assets, model) for model in guarding.samples}
    sources = java_sources(
        manifest,
        target,
        java,
        named.assets,
        telemetry=telemetry,
        guard=table.guard,
        samples=samples,
        deny_key=signature.public_digits(table.deny_key),
        helper=guarding.has_program,
    )
    pack = ai_pack(Path(table.ai_pack), bundle, manifest, target, java, named.assets) if table.ai_pack else None
    releases = [shipped.ort_release for shipped in ships]
    library = AndroidLibrary(
        named=named,
        package=java,
        sources=sources,
        ships=ships,
        contexts=tuple(context for context in content.contexts if context.target == target),
        bundle=bundle,
        manifest=manifest,
        telemetry=telemetry,
        runtime=runtime_libraries(table.runtime, releases, abis) if table.runtime else (),
        protection=guarding,
        pack=pack,
        pack_folder=Path(table.ai_pack) if table.ai_pack else None,
    )
    size = sum((bundle / file).stat().st_size for file in library.files)
    if not pack and size > STORE_BYTES:
        raise CheckFailed(
            f"the models have {size:,} bytes",
            where=str(bundle),
            why=f"Google Play allows {STORE_BYTES:,} bytes for the base of an app",
            remedy="ship smaller variants (quantized ones) or fewer models, or put them into a pack with --ai-pack",
        )
    return library


def check_config(config: Config) -> None:
    """Raise as `android_library` would for what needs no bundle: names, the runtime, a missing Java compiler."""
    table = config.release.android
    if table is None:
        return
    if not config.release.version:
        raise ConfigError(
            "the packages have no version",
            where="[release] version",
            why="what is published under a version never changes",
            remedy="write version in [release], or give --version",
        )
    target = target_choice.target_in(config, ("android",), "Android", table.target, "[release.android]")
    named = maven_module(table.group, table.artifact or default_artifact("models"), config.release.version)
    java_package(table.package, named)
    if table.ai_pack:
        pack_name(Path(table.ai_pack))
    if table.runtime:
        abis = core_abis.abis_of_target(target.platform, target.abis)
        libraries = runtime_libraries(table.runtime, [release_shipped.release_for(target)], abis)
        tuple(runtime_warnings(libraries))  # which reads all libraries of the archive
    java_compiler()


@contextlib.contextmanager
def package(
    config: Config, folder: Path, manifest: bundle_manifest.Manifest
) -> Iterator[packages_release.AppPackage | None]:
    """The library that [release.android] wants, where it is there."""
    table = config.release.android
    if table is None:
        yield None
        return
    library = android_library(folder / storage.BUNDLE, manifest, table, config.release.version or "")
    repository = Path(table.repository or folder / MAVEN)
    names = {"android": f"{library.named.notation} in {repository}"}
    if library.beside:
        names["runtime"] = f"{library.beside.notation} in {repository}"
    if library.pack_folder:
        names["ai pack"] = str(library.pack_folder)
    yield packages_release.AppPackage(names, library.warnings, partial(library.write, repository))
