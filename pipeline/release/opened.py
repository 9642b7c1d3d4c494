"""Whether the releases that a bundle is for open its files: asked of the bundle alone, whoever made it and when."""

from pathlib import Path

from device_runner.providers import provider_named
from pipeline.compat.defects import Runtime
from pipeline.compat.rules import DEFAULT_USE, ArtifactFacts, check_opening, read_artifacts
from pipeline.config.tables import BuildKind
from pipeline.core.errors import CheckFailed, errors
from pipeline.core.releases import line_of
from pipeline.release.manifest import Manifest


def refuse_unopened(folder: Path, manifest: Manifest) -> None:
    """Raise CheckFailed where a file of a bundle asks for what the release of its app lacks."""
    read = read_artifacts({shipped.file: folder / shipped.file for shipped in manifest.content.ships})
    found = []
    for shipped in manifest.content.ships:
        facts = read.get(shipped.file)
        if not isinstance(facts, ArtifactFacts):
            continue  # the digest says that it is what was made
        kind = BuildKind(shipped.library_kind or BuildKind.FULL)
        runtime = Runtime(release=line_of(shipped.ort_release), kind=kind, abis=shipped.abis)
        use = DEFAULT_USE if provider_named(shipped.runs[0].provider).gpu else shipped.runs[0]
        found += [(shipped, error) for error in errors(check_opening(facts, runtime, use))]
    if found:
        shipped, error = found[0]
        raise CheckFailed(
            f"the app's release does not open {len({row.file for row, _ in found})} of {len(read)} files",
            where=str(folder),
            why=f"{shipped.file} for {shipped.target}: {error.what}",
            remedy=f"make the bundle again with this ort-mobile, or: {error.remedy}",
        )
