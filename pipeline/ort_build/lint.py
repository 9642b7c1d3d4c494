"""Contradictions between settings, target, release and operator config, found before hours are spent on a build."""

from collections.abc import Callable
from typing import NamedTuple

from pipeline.config import Platform
from pipeline.config.build import BuildKind, Dependencies
from pipeline.core.finding import Finding, Severity
from pipeline.ort_build.plan import has_ml_ops
from pipeline.ort_build.releases import CONVERTING_ONLY, PROVIDERS, minimum_version, version_key
from pipeline.ort_build.request import Request

NNAPI_API_LEVEL = 27


class _Rule(NamedTuple):
    """What is wrong when `applies`; the texts take the names of `_words`."""

    applies: Callable[[Request], bool]
    severity: Severity
    what: str
    why: str
    remedy: str


def lint(request: Request) -> tuple[Finding, ...]:
    """Everything that speaks against a request, errors first."""
    words = _words(request)
    found = [
        Finding(
            severity=rule.severity,
            what=rule.what.format(**words),
            where=f"target {request.target.name}",
            why=rule.why.format(**words),
            remedy=rule.remedy.format(**words),
        )
        for rule in _RULES
        if rule.applies(request)
    ]
    return tuple(sorted(found, key=lambda finding: finding.severity is not Severity.ERROR))


def _words(request: Request) -> dict[str, str]:
    return {
        "kind": request.kind.value,
        "platform": request.target.platform.value,
        "version": request.version,
        "providers": ", ".join(request.providers),
        "absent": ", ".join(_not_on_platform(request)),
        "young": ", ".join(_not_in_release(request)),
        "abis": ", ".join(request.abis),
        "lowest": minimum_version(request.target.platform, request.release) or "",
        "wanted": _wanted_version(request) or "",
        "ml_ops": ", ".join(_operators(request, "ai.onnx.ml")[:5]),
        "contrib_ops": ", ".join(_operators(request, "com.microsoft")[:5]),
        "nchwc_ops": ", ".join(_operators(request, "com.microsoft.nchwc")[:5]),
    }


def _operators(request: Request, domain: str) -> list[str]:
    """Operators that the operator config lists in a domain."""
    listed = request.operators.operators if request.operators else {}
    return sorted({op for (name, _), ops in listed.items() if name == domain for op in ops})


def _not_on_platform(request: Request) -> list[str]:
    platform, abis = request.target.platform, set(request.abis)
    return [
        name
        for name in request.providers
        if platform not in PROVIDERS[name].platforms
        or (PROVIDERS[name].abis and not abis <= PROVIDERS[name].abis)
        or ((name, platform) in CONVERTING_ONLY and request.kind is not BuildKind.FULL)
    ]


def _not_in_release(request: Request) -> list[str]:
    return [name for name in request.providers if request.release < PROVIDERS[name].since]


def _wanted_version(request: Request) -> str | None:
    level = request.target.min_api_level
    android = request.target.platform is Platform.ANDROID
    return (str(level) if level else None) if android else request.target.min_os_version


def _below_minimum(request: Request) -> bool:
    wanted = _wanted_version(request)
    lowest = minimum_version(request.target.platform, request.release)
    return bool(wanted and lowest) and version_key(wanted or "") < version_key(lowest or "")


def _nothing_to_reduce(request: Request) -> bool:
    operators = request.operators
    if operators is None or not request.settings.reduce_types or operators.everything:
        return False
    return bool(operators.operators) and not operators.types and operators.global_types is None


_RULES: tuple[_Rule, ...] = (
    _Rule(
        lambda r: not has_ml_ops(r) and bool(_operators(r, "ai.onnx.ml")), Severity.ERROR,
        "the build drops ai.onnx.ml, and the operator config needs {ml_ops}",
        "--disable_ml_ops wins over the operator config (issue 19466)",
        "remove `ml_ops = false` from [build]",
    ),
    _Rule(
        lambda r: not r.settings.contrib_ops and bool(_operators(r, "com.microsoft")), Severity.ERROR,
        "the build drops com.microsoft, and the operator config needs {contrib_ops}",
        "--disable_contrib_ops wins over the operator config",
        "remove `contrib_ops = false` from [build], or convert at level basic",
    ),
    _Rule(
        lambda r: not r.settings.contrib_ops and "xnnpack" in r.providers, Severity.ERROR,
        "XNNPACK cannot be built without com.microsoft",
        "its kernels are in the NHWC part of that domain (cmake refuses both together)",
        "remove `contrib_ops = false` from [build]",
    ),
    _Rule(
        lambda r: r.kind is BuildKind.MINIMAL and bool(r.providers), Severity.ERROR,
        "a minimal build cannot contain {providers}",
        "providers compile or change the layout at load, which only extended and full builds can",
        'write kind = "extended" (or "auto") in [build]',
    ),
    _Rule(
        lambda r: r.kind is BuildKind.MINIMAL and r.runtime_style, Severity.ERROR,
        "a minimal build does not replay saved runtime optimizations",
        "runtime style artifacts run there without their fusions",
        'write kind = "extended" (or "auto") in [build], or ship fixed style',
    ),
    _Rule(
        lambda r: r.settings.wheel and r.kind is not BuildKind.FULL, Severity.ERROR,
        "a Python wheel cannot be {kind}",
        "Python bindings are not supported in a minimal build (build.py refuses it)",
        'write kind = "full" (or "auto") in [build]',
    ),
    _Rule(
        lambda r: r.settings.wheel and r.target.platform in (Platform.ANDROID, Platform.IOS), Severity.ERROR,
        "there is no Python wheel for {platform}", "a wheel is for the computer that converts models",
        "use a linux or macos target for the wheel",
    ),
    _Rule(
        lambda r: not r.settings.exceptions and r.kind is BuildKind.FULL, Severity.ERROR,
        "a full build needs exceptions", "--disable_exceptions requires --minimal_build",
        "remove `exceptions = false` from [build], or build minimal",
    ),
    _Rule(
        lambda r: bool(_not_on_platform(r)), Severity.ERROR,
        "{absent} cannot be part of a build of kind {kind} for {platform} {abis}",
        "NNAPI is Android's, CoreML is Apple's, QNN is for arm64-v8a; on Linux they only convert (full builds)",
        "remove it from [build] providers, or make a target of its own",
    ),
    _Rule(
        lambda r: bool(_not_in_release(r)), Severity.ERROR,
        "ONNX Runtime {version} cannot be built with {young}", "the option came with a later release",
        "choose a newer ort_release",
    ),
    _Rule(
        lambda r: r.settings.dependencies is Dependencies.SYSTEM and r.target.platform is not Platform.LINUX,
        Severity.ERROR,
        "libraries of this system cannot be built into a library for {platform}", "they are compiled for Linux",
        'write dependencies = "download" in [build]',
    ),
    _Rule(
        lambda r: r.settings.dependencies is Dependencies.SYSTEM and r.kind is BuildKind.FULL, Severity.ERROR,
        "system dependencies are for minimal and extended builds", "a full build needs ONNX's own library as well",
        'write dependencies = "download" in [build]',
    ),
    _Rule(
        lambda r: r.settings.dependencies is Dependencies.SYSTEM and not r.settings.onnx_source, Severity.ERROR,
        "with system dependencies the build needs the source of ONNX",
        "minimal builds compile three of its files, which no package contains",
        "unpack the release that cmake/deps.txt of the tree names, and name its folder as onnx_source in [build]",
    ),
    _Rule(
        _below_minimum, Severity.WARNING,
        "{platform} {wanted} is below what ONNX Runtime {version} supports", "its own packages begin at {lowest}",
        "raise the target's minimum to {lowest}, or choose an older ort_release",
    ),
    _Rule(
        lambda r: "nnapi" in r.providers and 0 < (r.target.min_api_level or 0) < NNAPI_API_LEVEL, Severity.WARNING,
        "below API level 27 NNAPI supports no node", "the target's min_api_level is {wanted}",
        "nothing, when those phones may run on the CPU; the operator config must cover that",
    ),
    _Rule(
        _nothing_to_reduce, Severity.WARNING,
        "types are to be reduced, and the operator config lists none", "it was made without types",
        "make it with `ort-mobile op-config create --types`, or write reduce_types = false in [build]",
    ),
    _Rule(
        lambda r: r.operators is None and r.kind is not BuildKind.FULL, Severity.WARNING,
        "no operator config: the library will contain all operators", "",
        "make one with `ort-mobile op-config create ARTIFACT...` and pass it with --op-config",
    ),
    _Rule(
        lambda r: bool(_operators(r, "com.microsoft.nchwc")), Severity.WARNING,
        "the operator config lists {nchwc_ops} of com.microsoft.nchwc",
        "a file with them fits the x86 processor that converted it; others give wrong numbers or none",
        "convert again without NchwcTransformer, as `ort-mobile convert` does",
    ),
)  # fmt: skip
