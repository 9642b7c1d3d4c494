"""Whether the releases that a bundle is for open its files: asked of the bundle alone, whoever made it and when."""

from pathlib import Path

from device_runner import providers as runner_providers
from pipeline.compat import defects as compat_defects
from pipeline.compat import rules as compat_rules
from pipeline.config import tables as config_tables
from pipeline.core import errors as core_errors
from pipeline.core import releases as ort_releases
from pipeline.core.errors import CheckFailed
from pipeline.release.manifest import Manifest


def refuse_unopened(folder: Path, manifest: Manifest) -> None:
    """Raise CheckFailed where a file of a bundle asks for what the release of its app lacks."""
    read = compat_rules.read_artifacts({shipped.file: folder / shipped.file for shipped in manifest.content.ships})
    refused = []
    for shipped in manifest.content.ships:
        facts = read.get(shipped.file)
        if not isinstance(facts, compat_rules.ArtifactFacts):
            continue  # the digest says that it is what was made
        kind = config_tables.BuildKind(shipped.library_kind or config_tables.BuildKind.FULL)
        runtime = compat_defects.Runtime(
            release=ort_releases.line_of(shipped.ort_release), kind=kind, abis=shipped.abis
        )
        use = (
            compat_rules.DEFAULT_USE
            if runner_providers.provider_named(shipped.runs[0].provider).gpu
            else shipped.runs[0]
        )
        refused += [(shipped, error) for error in core_errors.errors(compat_rules.check_opening(facts, runtime, use))]
    if refused:
        shipped, error = refused[0]
        raise CheckFailed(
            f"the app's release does not open {len({shipped.file for shipped, _ in refused})} of {len(read)} files",
            where=str(folder),
            why=f"{shipped.file} for {shipped.target}: {error.what}",
            remedy=f"make the bundle again with this ort-mobile, or: {error.remedy}",
        )
