"""The ONNX Runtime that an app for iPhones links: a build of one's own, or the published Swift package of a release."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from pipeline import config as configs
from pipeline.config import Config
from pipeline.core import files as storage
from pipeline.core import releases as ort_releases
from pipeline.core.errors import ConfigError
from pipeline.library import xcframework
from pipeline.release import shipped as release_shipped

BUILD = "onnxruntime.xcframework"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkedRuntime:
    """`build` is the folder of one's own, None for `version` of the published package; `lowest` is of iOS."""

    version: str
    lowest: str
    build: Path | None = None

    @property
    def name(self) -> str:
        """What a plan says that the package was made with."""
        if self.build is None:
            return f"{ort_releases.SWIFT_REPOSITORY.rpartition('/')[2]} {self.version}"
        digests = "".join(f"{name} {storage.sha256_of(path)}\n" for name, path in sorted(self.files.items()))
        return f"{BUILD} {hashlib.sha256(digests.encode()).hexdigest()[:12]}"

    @property
    def files(self) -> dict[str, Path]:
        """The files of the build by their path in its folder."""
        paths = (path for path in self.build.rglob("*") if path.is_file()) if self.build else ()
        return {path.relative_to(self.build).as_posix(): path for path in paths if self.build}


def linked_runtime(target: configs.Target, config: Config, given: str | None, work: Path) -> LinkedRuntime:
    """What an app for a target links: the build that is `given` or that [release.apple] names, else the published one.

    The slices for iPhones of a build lie in `work`. Raises ConfigError and CheckFailed for a file that is no
    xcframework for iPhones or of another release, and for a release of which no package is published.
    """
    table = config.release.apple
    release = ort_releases.line_of(release_shipped.release_for(target))
    build = given or (table.runtime if table else None)
    if build:
        storage.make_folder(work)
        with xcframework.opened(Path(build)) as framework:
            built = framework.release(Path(build))
            members = framework.members().items()
            storage.write_files(work, {k: v if isinstance(v, Path) else v.decode() for k, v in members})
            lowest = ".".join(map(str, framework.lowest[:2]))
        if target.ort_release and built != release:
            raise ConfigError(
                f"the build is of ONNX Runtime {built}, and the target {target.name} names {release}",
                where=build,
                why="files are converted for the target's release",
                remedy=f'give a build of {release}, or set ort_release = "{built}"',
            )
        return LinkedRuntime(version=str(built), lowest=lowest, build=work)
    published = ort_releases.SWIFT_PACKAGES.get(release)
    version = table.onnxruntime if table else None
    if published is None and version is None:
        raise ConfigError(
            f"no Swift package of ONNX Runtime {release} is known",
            where=f"target {target.name}",
            why=f"there are packages of {', '.join(map(str, ort_releases.SWIFT_PACKAGES))}",
            remedy="pass a build of your own with --library NAME.xcframework.zip, or change ort_release",
        )
    lowest = published.ios if published else max(ort_releases.SWIFT_PACKAGES.items())[1].ios
    return LinkedRuntime(version=version or (published.version if published else ""), lowest=f"{lowest}.0")
