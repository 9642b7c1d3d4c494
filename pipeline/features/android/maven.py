"""A Maven repository in a folder: what Gradle and Maven need to add a package by one line.

Layout, and what Gradle reads of it: docs/facts/release_consumers.md, R.2.
"""

import contextlib
import filecmp
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import msgspec

from device_runner.files import staging_folder, take_place
from pipeline.core.errors import ConfigError, PipelineError
from pipeline.core.files import make_folder, storage_errors, write_bytes, write_text
from pipeline.core.releases import range_of
from pipeline.features.android.facade import JAVA_WORDS
from pipeline.features.android.package import AndroidPackage, write_aar, write_sources
from pipeline.features.android.runtime import RuntimePackage, write_runtime

RUNTIME = ("com.microsoft.onnxruntime", "onnxruntime-android")
"""Group and artifact of the published runtime."""
LICENCE = ("MIT License", "https://opensource.org/licenses/MIT")
"""ONNX Runtime's, of every build of it."""
SOURCES_JAR = "-sources.jar"
CHECKSUM_NAMES = ("md5", "sha1", "sha256", "sha512")
INDEX = "maven-metadata.xml"
MARK = "do_not_remove: published-with-gradle-metadata"
"""Without this comment in the POM Gradle does not look for the module metadata."""

GROUP = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*(\.[A-Za-z_][A-Za-z0-9_-]*)*")
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
MOVING = re.compile(r"-SNAPSHOT$|^latest\.|^(latest|release)$", re.IGNORECASE)
"""Versions that build tools do not take for one."""
TAKEN_PACKAGE = re.compile(r"(java|javax|android|androidx|dalvik|kotlin|ai\.onnxruntime)(\.|$)")
"""Class loaders refuse classes of others in java.*; in the rest they would hide or be hidden."""
JAVA_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)+")

LIBRARY = {
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
class Publication:
    """The name of a package in a repository. `parse` checks it."""

    group: str
    artifact: str
    version: str

    @property
    def folder(self) -> Path:
        """Its folder in a repository."""
        return Path(*self.group.split("."), self.artifact, self.version)

    @property
    def stem(self) -> str:
        """What its files begin with."""
        return f"{self.artifact}-{self.version}"

    @property
    def notation(self) -> str:
        """As Gradle writes it."""
        return f"{self.group}:{self.artifact}:{self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MavenDependency:
    """What a module needs: `pom` is the version as Maven reads it, `rich` as Gradle's module metadata has it."""

    group: str
    artifact: str
    pom: str
    rich: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MavenModule:
    """What is published under a name. `files` are by their ending: the AAR, and the sources where there are any.

    `provides` are other modules that this one stands for: a build that has both must choose.
    """

    named: Publication
    description: str
    files: Mapping[str, Callable[[Path], None]]
    needs: tuple[MavenDependency, ...] = ()
    provides: tuple[Publication, ...] = ()
    licence: tuple[str, str] | None = None


def models_module(package: AndroidPackage, named: Publication, runtime: Publication | None) -> MavenModule:
    """The module of models; `runtime` is needed in place of the published runtime where one is given."""
    off = "" if package.telemetry else (
        " The classes switch ONNX Runtime's telemetry off when they open a model; not what other code that loads "
        "ONNX Runtime before them has sent by then."
    )  # fmt: skip
    names = ", ".join(package.models)
    return MavenModule(
        named=named,
        description=f"Models for ONNX Runtime, and Java classes that open them as they were released: {names}.{off}",
        files={".aar": partial(write_aar, package), SOURCES_JAR: partial(write_sources, package)},
        needs=tuple(_runtime_needed(package.release, runtime)),
    )


def _runtime_needed(release: str, runtime: Publication | None) -> Iterator[MavenDependency]:
    if runtime:
        exact = {"strictly": runtime.version}
        yield MavenDependency(group=runtime.group, artifact=runtime.artifact, pom=runtime.version, rich=exact)
    elif release:
        exact = {"prefers": release} if release.count(".") == 2 else {}
        yield MavenDependency(
            group=RUNTIME[0],
            artifact=RUNTIME[1],
            pom=release if exact else release_range(release),
            rich={"strictly": release_range(release), **exact},
        )


def runtime_module(runtime: RuntimePackage, named: Publication) -> MavenModule:
    """The module of a runtime, which stands for the published one of its release."""
    stock = Publication(group=RUNTIME[0], artifact=RUNTIME[1], version=runtime.release)
    return MavenModule(
        named=named,
        description=f"ONNX Runtime {runtime.release} for {', '.join(runtime.abis)}, in place of {stock.notation}",
        files={".aar": partial(write_runtime, runtime)},
        provides=(stock,),
        licence=LICENCE,
    )


def publication(group: str, artifact: str, version: str) -> Publication:
    """The name of a package; ConfigError for one that Maven or Gradle refuse."""
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
    return Publication(group=group, artifact=artifact, version=version)


def default_artifact(bundle: str) -> str:
    """The artifact of a bundle: its name in what Maven allows, with -models."""
    plain = re.sub(r"[^A-Za-z0-9_]+", "-", bundle).strip("-").lower()
    return f"{plain}-models" if plain else "models"


def java_package(given: str | None, named: Publication) -> str:
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

    A version appears whole or not at all, and none before all are made. Raises PipelineError for a version that is
    there with other content.
    """
    with contextlib.ExitStack() as stack:
        folders = [_made(module, repository, stack) for module in modules]
        for module, new in zip(modules, folders, strict=True):
            place = repository / module.named.folder
            if new:
                with storage_errors(place):
                    take_place(new, place)
                _write_index(module.named, place.parent)
    return tuple(new is not None for new in folders)


def _made(module: MavenModule, repository: Path, stack: contextlib.ExitStack) -> Path | None:
    """The module's folder beside its place, None where the same is there; raises as `publish`."""
    named = module.named
    place = repository / named.folder
    make_folder(place.parent)
    with storage_errors(place):
        new = stack.enter_context(staging_folder(place))
        _write_files(module, new)
        if not place.exists():
            return new
        _refuse_other(place, new, named)
        return None


def _write_files(module: MavenModule, folder: Path) -> None:
    stem = module.named.stem
    for ending, write in module.files.items():
        write(folder / f"{stem}{ending}")
    metadata = msgspec.json.format(msgspec.json.encode(_metadata(module, folder)), indent=2) + b"\n"
    write_bytes(folder / f"{stem}.module", metadata)
    write_text(folder / f"{stem}.pom", _pom(module))
    for file in sorted(folder.iterdir()):
        _write_checksums(file)


def _write_checksums(file: Path) -> None:
    for name, digest in _digests(file).items():
        write_text(file.with_name(f"{file.name}.{name}"), digest)


def _digests(file: Path) -> dict[str, str]:
    digests = {}
    for name in CHECKSUM_NAMES:
        with file.open("rb") as content:
            digests[name] = hashlib.file_digest(content, partial(hashlib.new, name, usedforsecurity=False)).hexdigest()
    return digests


def _refuse_other(place: Path, new: Path, named: Publication) -> None:
    same = filecmp.cmpfiles(place, new, [file.name for file in new.iterdir()], shallow=False)
    differing = sorted(same[1] + same[2])
    if differing:
        raise PipelineError(
            f"{named.notation} is published already, with other content",
            where=str(place),
            why=f"{differing[0]} differs; builds keep what they once resolved, so a version must never change",
            remedy="give the release a new --version, or remove the folder if nobody has used it",
        )


def _write_index(named: Publication, folder: Path) -> None:
    """maven-metadata.xml with the versions that are there; without a date, which would differ each time."""
    with storage_errors(folder):
        names = [place.name for place in folder.iterdir() if (place / f"{named.artifact}-{place.name}.pom").is_file()]
    versions = sorted(names, key=_order)
    items = "".join(f"      <version>{escape(version)}</version>\n" for version in versions)
    write_text(
        folder / INDEX,
        f"""\
<?xml version="1.0" encoding="UTF-8"?>
<metadata>
  <groupId>{named.group}</groupId>
  <artifactId>{named.artifact}</artifactId>
  <versioning>
    <latest>{escape(versions[-1])}</latest>
    <release>{escape(versions[-1])}</release>
    <versions>
{items}    </versions>
  </versioning>
</metadata>
""",
    )
    _write_checksums(folder / INDEX)


def _order(version: str) -> tuple[tuple[int, int, str], ...]:
    """Numbers by value, words before them: 1.0-rc1 is older than 1.0.1, and 1.10 newer than 1.9."""
    parts = re.findall(r"\d+|[A-Za-z]+", version)
    return tuple((1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts)


def release_range(release: str) -> str:
    """The releases of ONNX Runtime that fit one, as 1.29.0 or 1.29: from it on, below the next minor release."""
    return "[{},{})".format(*range_of(release))


def _metadata(module: MavenModule, folder: Path) -> dict[str, Any]:
    """Gradle's module metadata 1.1; it alone can hold a range that a build must not leave, and capabilities."""
    named = module.named
    needs = [{"group": row.group, "module": row.artifact, "version": row.rich} for row in module.needs]
    library: dict[str, Any] = {"dependencies": needs, "files": [_file(folder / f"{named.stem}.aar")]}
    if module.provides:
        stands_for = (named, *module.provides)
        library["capabilities"] = [
            {"group": row.group, "name": row.artifact, "version": row.version} for row in stands_for
        ]
    variants = [
        {"name": f"{name}Elements", "attributes": {**LIBRARY, "org.gradle.usage": f"java-{name}"}, **library}
        for name in ("api", "runtime")
    ]
    if SOURCES_JAR in module.files:
        files = [_file(folder / f"{named.stem}{SOURCES_JAR}")]
        variants.append({"name": "sourcesElements", "attributes": SOURCES, "files": files})
    return {
        "formatVersion": "1.1",
        "component": {
            "group": named.group,
            "module": named.artifact,
            "version": named.version,
            "attributes": {"org.gradle.status": "release"},
        },
        "variants": variants,
    }


def _file(path: Path) -> dict[str, Any]:
    digests = dict(reversed(_digests(path).items()))
    return {"name": path.name, "url": path.name, "size": path.stat().st_size, **digests}


def _pom(module: MavenModule) -> str:
    named = module.named
    return f"""\
<?xml version="1.0" encoding="UTF-8"?>
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <!-- {MARK} -->
  <modelVersion>4.0.0</modelVersion>
  <groupId>{named.group}</groupId>
  <artifactId>{named.artifact}</artifactId>
  <version>{named.version}</version>
  <packaging>aar</packaging>
  <description>{escape(module.description)}</description>
{"".join(_pom_licence(module.licence))}{"".join(_pom_needs(module.needs))}</project>
"""


def _pom_licence(licence: tuple[str, str] | None) -> Iterator[str]:
    if licence:
        yield f"  <licenses>\n    <license>\n      <name>{licence[0]}</name>\n      <url>{licence[1]}</url>\n"
        yield "    </license>\n  </licenses>\n"


def _pom_needs(needs: Sequence[MavenDependency]) -> Iterator[str]:
    if needs:
        yield "  <dependencies>\n"
        for row in needs:
            yield f"    <dependency>\n      <groupId>{row.group}</groupId>\n"
            yield f"      <artifactId>{row.artifact}</artifactId>\n      <version>{row.pom}</version>\n"
            yield "      <type>aar</type>\n      <scope>compile</scope>\n    </dependency>\n"
        yield "  </dependencies>\n"
