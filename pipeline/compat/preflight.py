"""The compatibility preflight: artifacts and session options, checked against what will load them."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.compat.int8_sums import weight_reader
from pipeline.compat.rules import ArtifactFacts, Runtime, Use, check_artifact, check_use, facts_of
from pipeline.core.errors import Finding, ModelError, errors, finding_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadArtifacts:
    """What could be read of artifacts by name, and what is wrong with the others."""

    facts: Mapping[str, ArtifactFacts]
    unreadable: Mapping[str, Finding]


def read_artifacts(files: Mapping[str, Path]) -> ReadArtifacts:
    """Read artifacts (ORT format files by name); equal files are read once. Files of another format are left out."""
    from pipeline.model.ort_format import read_ort

    known: dict[tuple[int, int], ArtifactFacts] = {}
    facts: dict[str, ArtifactFacts] = {}
    unreadable: dict[str, Finding] = {}
    for name, file in files.items():
        if file.suffix.lower() != ".ort":
            continue
        try:
            identity = (file.stat().st_dev, file.stat().st_ino)
            if identity not in known:
                known[identity] = facts_of(read_ort(file), name, weight_reader(file))
            facts[name] = _named(known[identity], name)
        except ModelError as error:
            unreadable[name] = finding_of(error, name)
        except OSError as error:
            unreadable[name] = finding_of(ModelError("the file cannot be read", why=str(error)), name)
    return ReadArtifacts(facts=facts, unreadable=unreadable)


def _named(facts: ArtifactFacts, name: str) -> ArtifactFacts:
    import msgspec

    return msgspec.structs.replace(facts, name=name)


def judged(read: ReadArtifacts, name: str, runtime: Runtime, use: Use) -> tuple[Finding, ...]:
    """All that speaks against running one artifact in this way; one that cannot be read has that as its error."""
    if name in read.unreadable:
        return (read.unreadable[name],)
    facts = read.facts.get(name)
    return (*(check_artifact(facts, runtime, use) if facts else ()), *check_use(use, runtime, name))


def first_error(findings: Iterable[Finding]) -> str:
    """The first thing that will not work on one line, "" where nothing speaks against it."""
    return next((finding.text for finding in errors(findings)), "")
