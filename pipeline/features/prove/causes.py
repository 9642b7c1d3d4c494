"""Why a file fails on one processor and not on another: what is known of it (docs/facts/arm64_host.md, section 5)."""

from pathlib import Path

import msgspec

from device_runner.host_device import CPUS
from device_runner.library import LibraryFacts
from device_runner.spec import RunOptions
from pipeline.check.library_proof import FindingKind, ProofFinding
from pipeline.compat.defects import DEFECTS, Circumstances
from pipeline.compat.rules import ArtifactFacts, read_artifacts
from pipeline.config.tables import BuildKind
from pipeline.core.errors import Severity
from pipeline.core.providers import NNAPI
from pipeline.core.releases import NEWEST_KNOWN, line_of
from pipeline.partition.units import BY_UNITS, clips_by_processor
from pipeline.partition.view import view_of_file

EXPLAINS: dict[str, frozenset[FindingKind]] = {
    **dict.fromkeys(("int8-sums", "replayed-int8-sums", "int8-rows"), frozenset({FindingKind.OUTPUTS_DIFFER})),
    **dict.fromkeys(("half-precision", "half-pools"), frozenset({FindingKind.MISSING_KERNEL, FindingKind.CANNOT_RUN})),
}
"""Defects that depend on the processor, by name, with the findings that each explains."""

AWARE_OF_ABI = (
    "make an EP-aware file by the rules of this ABI, which leave what cannot be built to the CPU (`ort-mobile convert "
    "--ep nnapi --safe --abi {abi}`), or leave nnapi out"
)


def circumstances(library: LibraryFacts, abi: str, cpu: str, options: RunOptions) -> Circumstances:
    """What decides whether a defect shows in a run; `cpu` is the profile that an emulator played, "" without one."""
    profile = CPUS.get(cpu)
    return Circumstances(
        release=line_of(library.release) if library.release else NEWEST_KNOWN,
        kind=BuildKind(library.kind),
        session_config=options.session_config,
        abis=(abi,),
        features=frozenset(profile.features.split()) if profile else None,
    )


def with_cause(finding: ProofFinding, file: Path, here: Circumstances, provider: str) -> ProofFinding:
    """The finding with what of the file is known to fail on such a processor as its cause, and the remedy of that.

    What nothing known explains stays as it is.
    """
    if finding.severity is not Severity.ERROR:
        return finding
    facts = read_artifacts({file.name: file}).get(file.name)
    known = facts if isinstance(facts, ArtifactFacts) else None
    for defect in DEFECTS:
        mark = known.defects.get(defect.name, "") if known else ""
        if mark and finding.kind in EXPLAINS.get(defect.name, ()) and defect.shows(here):
            why = f"{defect.what.format(mark=mark)}, because {defect.why}: {finding.why}"
            return msgspec.structs.replace(finding, why=why, remedy=defect.remedy, config_line="")
    refused = known is not None and finding.kind is FindingKind.PROVIDER_REFUSED
    if refused and provider in BY_UNITS and (clips := clips_by_processor(view_of_file(file))):
        remedy = AWARE_OF_ABI.format(abi=here.abis[0]) if provider == NNAPI else finding.remedy
        return msgspec.structs.replace(finding, why=f"{clips}: {finding.why}", remedy=remedy)
    return finding
