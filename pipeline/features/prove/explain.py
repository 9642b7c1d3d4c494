"""From what the library said when it failed to a finding: what, why, what to do, the config line that is missing."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from device_runner.failures import Topic, text_of_message
from device_runner.library import LibraryFacts
from device_runner.result import Failure, FailureKind
from device_runner.spec import RunOptions
from pipeline.check.compare import OutputCheck, remedy_of
from pipeline.check.library_proof import FindingKind, ProofFinding
from pipeline.core.errors import ModelError, Severity
from pipeline.features.prove.causes import circumstances, with_cause
from pipeline.features.prove.plan import ProofPlace
from pipeline.model.ort_format import read_ort
from pipeline.required_ops import EMPTY, Needs, needs_of
from pipeline.required_ops.proof import LogFinding, read_log

MOST_SAID = 400
"""Characters of a library's own words that a finding keeps."""

KINDS: dict[FailureKind, FindingKind] = {
    FailureKind.CRASH: FindingKind.CRASH,
    FailureKind.TIMEOUT: FindingKind.HANG,
    FailureKind.PROVIDER_MISSING: FindingKind.PROVIDER_MISSING,
    FailureKind.PROVIDER_REFUSED: FindingKind.PROVIDER_REFUSED,
}
"""Kinds of failures that say all; the others are told apart by their texts."""

TOPICS: dict[Topic, tuple[FindingKind, str]] = {
    Topic.FORMAT: (FindingKind.REFUSED_FORMAT, "the library refuses the file's format"),
    Topic.OPERATOR: (FindingKind.UNKNOWN_OPERATOR, "the library does not know an operator"),
}
"""Texts of ONNX Runtime by what they speak of: the kind of finding, and what is wrong."""

WHATS: dict[FindingKind, str] = {
    FindingKind.CRASH: "the library crashed",
    FindingKind.HANG: "the library did not come back in time",
    FindingKind.PROVIDER_MISSING: "the library lacks the provider",
    FindingKind.PROVIDER_REFUSED: "the provider refused",
    FindingKind.CANNOT_RUN: "the library could not load or run it",
}

REMEDIES: dict[FindingKind, str] = {
    FindingKind.CRASH: "leave {provider} out of [[runs]] for this artifact, or change the model: "
    "`ort-mobile partition` knows the usual causes; the CPU's row says whether the artifact itself is sound",
    FindingKind.HANG: "give it more time (--timeout), or leave {provider} out of [[runs]] for this artifact",
    FindingKind.PROVIDER_MISSING: "build the library with {provider} ([build] providers), or leave it out of [[runs]]",
}
"""What to do where the way to run, or the bundle itself, is what has to change."""


def explain_run(
    failure: Failure | None,
    checks: Sequence[OutputCheck],
    file: Path,
    options: RunOptions,
    ran_in: tuple[LibraryFacts, ProofPlace],
    *,
    stock: bool,
    origin: str,
) -> Iterator[ProofFinding]:
    """Findings on a run that failed, or on its outputs, with the cause where the processor is known to be one.

    `stock` as in `explain_failure`, `origin` as in Expected.
    """
    library, place = ran_in
    here = circumstances(library, place.abi, place.cpu, options)
    findings = (
        (explain_failure(failure, file, options.provider, stock=stock),)
        if failure
        else explain_checks(checks, options.provider, origin)
    )
    for finding in findings:
        yield with_cause(finding, file, here, options.provider)


def explain_failure(failure: Failure, file: Path, provider: str, *, stock: bool) -> ProofFinding:
    """The finding of a failed run. `stock`: the library is ONNX Runtime's own package, so no config can fix it."""
    message = shortened(failure.message.replace(str(file.absolute()), file.name))
    logged = _of_log(failure, file, provider)
    if logged and logged.kernel:
        return _missing_kernel(logged, message, stock=stock)
    text = text_of_message(failure.message, *TOPICS)
    known, what = TOPICS[text.topic] if text else (FindingKind.CANNOT_RUN, "")
    kind = KINDS.get(failure.kind) or known
    what = what if what and kind is known else WHATS[kind]
    signal = f" ({failure.signal})" if failure.signal and kind is FindingKind.CRASH else ""
    cause = logged.why if logged else failure.cause
    remedy = REMEDIES.get(kind, logged.remedy if logged else failure.remedy)
    return ProofFinding(
        severity=Severity.ERROR,
        kind=kind,
        what=what + signal,
        why=f"{cause}: {message}" if cause else message,
        remedy=failure.remedy if failure.signal == "SIGILL" else remedy.format(provider=provider),
    )


def _of_log(failure: Failure, file: Path, provider: str) -> LogFinding | None:
    """What the text says of operators, checked against an empty config so that every kernel is one that is missing."""
    if failure.kind in (FailureKind.CRASH, FailureKind.TIMEOUT):
        return None
    return next(iter(read_log(failure.message, EMPTY, [_needs(file, provider)])), None)


def _needs(file: Path, provider: str) -> Needs:
    try:
        return needs_of(read_ort(file), providers=[] if provider == "cpu" else [provider])
    except ModelError:
        return {}


def _missing_kernel(logged: LogFinding, message: str, *, stock: bool) -> ProofFinding:
    remedy = (
        "no config can bring it: ship a release that has the kernel, or export the model with another type or opset"
        if stock
        else "build the library with the bundle's operators/required_operators.config (or _and_types), which has this "
        "line; if it is ONNX Runtime's own package, no config can bring it: ship a release that has the kernel"
    )
    return ProofFinding(
        severity=Severity.ERROR,
        kind=FindingKind.MISSING_KERNEL,
        what=f"the library has no kernel for {logged.kernel}",
        why=message,
        remedy=remedy,
        config_line=logged.kernel_line,
    )


def explain_checks(checks: Sequence[OutputCheck], provider: str, origin: str) -> tuple[ProofFinding, ...]:
    """Findings on outputs that are too far from what they must be, or cannot show it; `origin` as in Expected."""
    return tuple(
        finding
        for finding in (_differing([c for c in checks if c.failed], provider, origin),
                        _unknown([c for c in checks if c.unknown]))
        if finding
    )  # fmt: skip


def _differing(bad: Sequence[OutputCheck], provider: str, origin: str) -> ProofFinding | None:
    if not bad:
        return None
    other = "" if provider == "cpu" else f"if the CPU's outputs pass, leave {provider} out of [[runs]]; else "
    return ProofFinding(
        severity=Severity.ERROR,
        kind=FindingKind.OUTPUTS_DIFFER,
        what=f"outputs are not those of {origin or 'the original model'}",
        why="; ".join(f"{check.output}: {check.reason}" for check in bad),
        remedy=other + remedy_of(bad[0]),
    )


def _unknown(checks: Sequence[OutputCheck]) -> ProofFinding | None:
    if not checks:
        return None
    return ProofFinding(
        severity=Severity.WARNING,
        kind=FindingKind.NOT_COMPARED,
        what="it ran, but these inputs cannot show whether its outputs are right",
        why="; ".join(f"{check.output}: {check.reason}" for check in checks),
        remedy=f"{remedy_of(checks[0])} and make the bundle again",
    )


def not_compared(why: str) -> ProofFinding:
    """The finding when there is nothing that outputs could be checked against."""
    return ProofFinding(
        severity=Severity.WARNING,
        kind=FindingKind.NOT_COMPARED,
        what="it ran, but its outputs were compared with nothing",
        why=f"the bundle keeps no reference, and this computer has none ({why})",
        remedy="make the bundle again with this release of ort-mobile: it keeps inputs and outputs of the original",
    )


def shortened(text: str) -> str:
    """A library's own words on one line, without what is over `MOST_SAID`."""
    line = " ".join(text.split())
    return line if len(line) <= MOST_SAID else f"{line[:MOST_SAID]}..."
