"""Contradictions that would cost hours: settings, target, release and operator config held against one another."""

from device_runner import providers as runner_providers
from pipeline import config as configs
from pipeline import required_ops
from pipeline.config import tables as config_tables
from pipeline.core import errors as core_errors
from pipeline.core import providers as provider_rules
from pipeline.core.errors import Finding, Severity
from pipeline.core.variant import Style
from pipeline.ort_build.plan import has_ml_ops
from pipeline.ort_build.request import (
    Request,
    minimum_version,
    version_key,
)


def lint(request: Request) -> tuple[Finding, ...]:
    """Everything that speaks against a request, errors first."""
    against = core_errors.findings(
        _RULES,
        request,
        f"target {request.target.name}",
        {
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
        },
    )
    return tuple(sorted(against, key=lambda finding: finding.severity is not Severity.ERROR))


def _operators(request: Request, domain: str) -> list[str]:
    """Operators that the operator config lists in a domain."""
    listed = request.operators.operators if request.operators else {}
    return sorted({op for (name, _), ops in listed.items() if name == domain for op in ops})


def _not_on_platform(request: Request) -> list[str]:
    platform, abis = request.target.platform, set(request.abis)
    return [
        name
        for name in request.providers
        if platform not in (provider := provider_rules.BUILD_PROVIDERS[name]).platforms
        or (provider.abis and not abis <= provider.abis)
        or (platform in provider.converting_only and request.kind is not config_tables.BuildKind.FULL)
    ]


def _not_in_release(request: Request) -> list[str]:
    return [name for name in request.providers if request.release < provider_rules.BUILD_PROVIDERS[name].since]


def _wanted_version(request: Request) -> str | None:
    level = request.target.min_api_level
    android = request.target.platform is configs.Platform.ANDROID
    return (str(level) if level else None) if android else request.target.min_os_version


def _below_minimum(request: Request) -> bool:
    version = _wanted_version(request)
    lowest = minimum_version(request.target.platform, request.release)
    return bool(version and lowest) and version_key(version or "") < version_key(lowest or "")


_RULES: tuple[core_errors.FindingRule[Request], ...] = (
    core_errors.FindingRule(
        lambda r: not has_ml_ops(r) and bool(_operators(r, "ai.onnx.ml")),
        Severity.ERROR,
        "the build drops ai.onnx.ml, and the operator config needs {ml_ops}",
        "--disable_ml_ops wins over the operator config (issue 19466)",
        "remove `ml_ops = false` from [build]",
    ),
    core_errors.FindingRule(
        lambda r: not r.settings.contrib_ops and bool(_operators(r, "com.microsoft")),
        Severity.ERROR,
        "the build drops com.microsoft, and the operator config needs {contrib_ops}",
        "--disable_contrib_ops wins over the operator config",
        "remove `contrib_ops = false` from [build], or convert at level basic",
    ),
    core_errors.FindingRule(
        lambda r: not r.settings.contrib_ops and r.needs_contrib_ops,
        Severity.ERROR,
        "XNNPACK cannot be built without com.microsoft",
        "its kernels are in the NHWC part of that domain (cmake refuses both together)",
        "remove `contrib_ops = false` from [build]",
    ),
    core_errors.FindingRule(
        lambda r: r.kind is config_tables.BuildKind.MINIMAL and bool(r.providers),
        Severity.ERROR,
        "a minimal build cannot contain {providers}",
        "providers compile or change the layout at load, which only extended and full builds can",
        'write kind = "extended" (or "auto") in [build]',
    ),
    core_errors.FindingRule(
        lambda r: r.kind is not config_tables.BuildKind.FULL and Style.ONNX in r.styles,
        Severity.ERROR,
        "a build of kind {kind} loads no ONNX file",
        "minimal and extended builds have no parser for it: styles of [variants] has onnx",
        'write kind = "full" (or "auto") in [build], or ship fixed style',
    ),
    core_errors.FindingRule(
        lambda r: r.operators == required_ops.EMPTY,
        Severity.ERROR,
        "the operator config lists no operator",
        "a build with it has no kernel, and loads no model",
        "make it anew with `ort-mobile run`, `convert` or `op-config create`, or leave it out for all operators",
    ),
    core_errors.FindingRule(
        lambda r: r.kind is config_tables.BuildKind.MINIMAL and Style.RUNTIME in r.styles,
        Severity.ERROR,
        "a minimal build does not replay saved runtime optimizations",
        "runtime style artifacts run there without their fusions",
        'write kind = "extended" (or "auto") in [build], or ship fixed style',
    ),
    core_errors.FindingRule(
        lambda r: r.settings.wheel and r.kind is not config_tables.BuildKind.FULL,
        Severity.ERROR,
        "a Python wheel cannot be {kind}",
        "Python bindings are not supported in a minimal build (build.py refuses it)",
        'write kind = "full" (or "auto") in [build]',
    ),
    core_errors.FindingRule(
        lambda r: r.settings.wheel and r.target.platform in (configs.Platform.ANDROID, configs.Platform.IOS),
        Severity.ERROR,
        "there is no Python wheel for {platform}",
        "a wheel is for the computer that converts models",
        "use a linux or macos target for the wheel",
    ),
    core_errors.FindingRule(
        lambda r: not r.settings.exceptions and r.kind is config_tables.BuildKind.FULL,
        Severity.ERROR,
        "a full build needs exceptions",
        "--disable_exceptions requires --minimal_build",
        "remove `exceptions = false` from [build], or build minimal",
    ),
    core_errors.FindingRule(
        lambda r: bool(_not_on_platform(r)),
        Severity.ERROR,
        "{absent} cannot be part of a build of kind {kind} for {platform} {abis}",
        "NNAPI is Android's, CoreML is Apple's, QNN is for arm64-v8a; on Linux they only convert (full builds)",
        "remove it from [build] providers, or make a target of its own",
    ),
    core_errors.FindingRule(
        lambda r: bool(_not_in_release(r)),
        Severity.ERROR,
        "ONNX Runtime {version} cannot be built with {young}",
        "the option came with a later release",
        "choose a newer ort_release",
    ),
    core_errors.FindingRule(
        lambda r: (
            r.settings.dependencies is config_tables.Dependencies.SYSTEM
            and r.target.platform is not configs.Platform.LINUX
        ),
        Severity.ERROR,
        "libraries of this system cannot be built into a library for {platform}",
        "they are compiled for Linux",
        'write dependencies = "download" in [build]',
    ),
    core_errors.FindingRule(
        lambda r: (
            r.settings.dependencies is config_tables.Dependencies.SYSTEM and r.kind is config_tables.BuildKind.FULL
        ),
        Severity.ERROR,
        "system dependencies are for minimal and extended builds",
        "a full build needs ONNX's own library as well",
        'write dependencies = "download" in [build]',
    ),
    core_errors.FindingRule(
        lambda r: r.settings.dependencies is config_tables.Dependencies.SYSTEM and not r.settings.onnx_source,
        Severity.ERROR,
        "with system dependencies the build needs the source of ONNX",
        "minimal builds compile three of its files, which no package contains",
        "unpack the release that cmake/deps.txt of the tree names, and name its folder as onnx_source in [build]",
    ),
    core_errors.FindingRule(
        _below_minimum,
        Severity.WARNING,
        "{platform} {wanted} is below what ONNX Runtime {version} supports",
        "its own packages begin at {lowest}",
        "raise the target's minimum to {lowest}, or choose an older ort_release",
    ),
    core_errors.FindingRule(
        lambda r: (
            any(runner_providers.provider_named(name).nnapi for name in r.providers)
            and 0 < (r.target.min_api_level or 0) < runner_providers.NNAPI_API_LEVEL
        ),
        Severity.WARNING,
        "below API level 27 NNAPI supports no node",
        "the target's min_api_level is {wanted}",
        "nothing, when those phones may run on the CPU; the operator config must cover that",
    ),
    core_errors.FindingRule(
        lambda r: (
            (operators := r.operators) is not None
            and r.settings.reduce_types
            and not operators.everything
            and bool(operators.operators)
            and not operators.types
            and operators.global_types is None
        ),
        Severity.WARNING,
        "types are to be reduced, and the operator config lists none",
        "it was made without types",
        "make it with `ort-mobile op-config create --types`, or write reduce_types = false in [build]",
    ),
    core_errors.FindingRule(
        lambda r: r.operators is None and r.kind is not config_tables.BuildKind.FULL,
        Severity.WARNING,
        "no operator config: the library will contain all operators",
        "",
        "make one with `ort-mobile op-config create ARTIFACT...` and pass it with --op-config",
    ),
    core_errors.FindingRule(
        lambda r: bool(_operators(r, "com.microsoft.nchwc")) and Style.ONNX not in r.styles,
        Severity.WARNING,
        "the operator config lists {nchwc_ops} of com.microsoft.nchwc",
        "a file with them fits the x86 processor that converted it; others give wrong numbers or none",
        "convert again without NchwcTransformer, as `ort-mobile convert` does",
    ),
)
