"""Contradictions between settings, target, release and operator config, found before hours are spent on a build."""

import ast
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from device_runner.providers import NNAPI, NNAPI_API_LEVEL
from pipeline.config import Platform
from pipeline.config.tables import BuildKind, Dependencies
from pipeline.core.errors import ConfigError, Finding, FindingRule, Severity, findings
from pipeline.core.providers import BUILD_PROVIDERS, XNNPACK
from pipeline.ort_build.plan import (
    AAR_SCRIPT,
    APPLE_SCRIPT,
    BUILD_SCRIPT,
    SETTINGS_FILE,
    BuildPlan,
    has_ml_ops,
)
from pipeline.ort_build.request import Request, minimum_version, version_key

BUILD_ARGS = "tools/ci_build/build_args.py"
"""Where build.py keeps its parser from 1.22."""


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """An option of a script: whether it takes values, and which when these are few."""

    name: str
    takes_value: bool
    choices: tuple[str, ...] = ()


def options_in(text: str) -> dict[str, Option]:
    """The options that a Python script declares with `add_argument`; raises ValueError when it is no Python."""
    try:
        script = ast.parse(text)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"cannot read the script: {error}") from error
    options = (_option(node) for node in ast.walk(script) if isinstance(node, ast.Call))
    return {option.name: option for option in options if option is not None}


def _option(call: ast.Call) -> Option | None:
    if not (isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument" and call.args):
        return None
    name = _literal(call.args[0])
    if not isinstance(name, str) or not name.startswith("--"):
        return None
    keywords = {keyword.arg: _literal(keyword.value) for keyword in call.keywords if keyword.arg}
    choices = keywords.get("choices")
    return Option(
        name=name,
        takes_value=not str(keywords.get("action", "")).startswith("store_"),
        choices=tuple(str(value) for value in choices) if isinstance(choices, list | tuple) else (),
    )


def _literal(node: ast.expr) -> object:
    try:
        value: object = ast.literal_eval(node)
    except ValueError:
        return None
    return value


def tree_options(source: Path) -> dict[str, dict[str, Option]]:
    """Options by script of a source tree, for the scripts that plans call. Raises ConfigError when one is missing."""
    build = _options(source, BUILD_SCRIPT)
    if (source / BUILD_ARGS).is_file():
        build |= _options(source, BUILD_ARGS)
    packages = {script: _options(source, script) for script in (AAR_SCRIPT, APPLE_SCRIPT)}
    return {BUILD_SCRIPT: build, **packages}


def _options(source: Path, name: str) -> dict[str, Option]:
    try:
        return options_in((source / name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            "this is no source tree of ONNX Runtime", where=str(source), why=f"{name} cannot be read",
            remedy="give the folder that holds VERSION_NUMBER and tools/ci_build",
        ) from error  # fmt: skip


def unaccepted(plan: BuildPlan, options: dict[str, dict[str, Option]]) -> tuple[str, ...]:
    """What the scripts would refuse of a plan: unknown options, and values that are not among the choices."""
    complaints: list[str] = []
    for step in plan.steps:
        script = next(name for name in options if step.arguments[1].endswith(name))
        complaints += _refused(script, step.arguments[2:], options[script])
    complaints += _refused(BUILD_SCRIPT, _build_params(plan), options[BUILD_SCRIPT])
    return tuple(dict.fromkeys(complaints))


def _build_params(plan: BuildPlan) -> Iterator[str]:
    """What the packaging scripts pass on to build.py."""
    for file in plan.files:
        if file.path.endswith(SETTINGS_FILE):
            params = json.loads(file.content)["build_params"]
            for group in params.values() if isinstance(params, dict) else [params]:
                yield from group


def _refused(script: str, arguments: Iterable[str], options: dict[str, Option]) -> Iterator[str]:
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not name.startswith("--"):
            continue
        option = options.get(name)
        if option is None:
            yield f"{script} has no option {name}"
        elif equals and not option.takes_value:
            yield f"{name} of {script} takes no value"
        elif option.choices and value and value not in option.choices:
            yield f"{name} of {script} does not take {value}"


def lint(request: Request) -> tuple[Finding, ...]:
    """Everything that speaks against a request, errors first."""
    against = findings(_RULES, request, f"target {request.target.name}", _words(request))
    return tuple(sorted(against, key=lambda finding: finding.severity is not Severity.ERROR))


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
        if platform not in (row := BUILD_PROVIDERS[name]).platforms
        or (row.abis and not abis <= row.abis)
        or (platform in row.converting_only and request.kind is not BuildKind.FULL)
    ]


def _not_in_release(request: Request) -> list[str]:
    return [name for name in request.providers if request.release < BUILD_PROVIDERS[name].since]


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


_RULES: tuple[FindingRule[Request], ...] = (
    FindingRule(
        lambda r: not has_ml_ops(r) and bool(_operators(r, "ai.onnx.ml")), Severity.ERROR,
        "the build drops ai.onnx.ml, and the operator config needs {ml_ops}",
        "--disable_ml_ops wins over the operator config (issue 19466)",
        "remove `ml_ops = false` from [build]",
    ),
    FindingRule(
        lambda r: not r.settings.contrib_ops and bool(_operators(r, "com.microsoft")), Severity.ERROR,
        "the build drops com.microsoft, and the operator config needs {contrib_ops}",
        "--disable_contrib_ops wins over the operator config",
        "remove `contrib_ops = false` from [build], or convert at level basic",
    ),
    FindingRule(
        lambda r: not r.settings.contrib_ops and XNNPACK in r.providers, Severity.ERROR,
        "XNNPACK cannot be built without com.microsoft",
        "its kernels are in the NHWC part of that domain (cmake refuses both together)",
        "remove `contrib_ops = false` from [build]",
    ),
    FindingRule(
        lambda r: r.kind is BuildKind.MINIMAL and bool(r.providers), Severity.ERROR,
        "a minimal build cannot contain {providers}",
        "providers compile or change the layout at load, which only extended and full builds can",
        'write kind = "extended" (or "auto") in [build]',
    ),
    FindingRule(
        lambda r: r.kind is BuildKind.MINIMAL and r.runtime_style, Severity.ERROR,
        "a minimal build does not replay saved runtime optimizations",
        "runtime style artifacts run there without their fusions",
        'write kind = "extended" (or "auto") in [build], or ship fixed style',
    ),
    FindingRule(
        lambda r: r.settings.wheel and r.kind is not BuildKind.FULL, Severity.ERROR,
        "a Python wheel cannot be {kind}",
        "Python bindings are not supported in a minimal build (build.py refuses it)",
        'write kind = "full" (or "auto") in [build]',
    ),
    FindingRule(
        lambda r: r.settings.wheel and r.target.platform in (Platform.ANDROID, Platform.IOS), Severity.ERROR,
        "there is no Python wheel for {platform}", "a wheel is for the computer that converts models",
        "use a linux or macos target for the wheel",
    ),
    FindingRule(
        lambda r: not r.settings.exceptions and r.kind is BuildKind.FULL, Severity.ERROR,
        "a full build needs exceptions", "--disable_exceptions requires --minimal_build",
        "remove `exceptions = false` from [build], or build minimal",
    ),
    FindingRule(
        lambda r: bool(_not_on_platform(r)), Severity.ERROR,
        "{absent} cannot be part of a build of kind {kind} for {platform} {abis}",
        "NNAPI is Android's, CoreML is Apple's, QNN is for arm64-v8a; on Linux they only convert (full builds)",
        "remove it from [build] providers, or make a target of its own",
    ),
    FindingRule(
        lambda r: bool(_not_in_release(r)), Severity.ERROR,
        "ONNX Runtime {version} cannot be built with {young}", "the option came with a later release",
        "choose a newer ort_release",
    ),
    FindingRule(
        lambda r: r.settings.dependencies is Dependencies.SYSTEM and r.target.platform is not Platform.LINUX,
        Severity.ERROR,
        "libraries of this system cannot be built into a library for {platform}", "they are compiled for Linux",
        'write dependencies = "download" in [build]',
    ),
    FindingRule(
        lambda r: r.settings.dependencies is Dependencies.SYSTEM and r.kind is BuildKind.FULL, Severity.ERROR,
        "system dependencies are for minimal and extended builds", "a full build needs ONNX's own library as well",
        'write dependencies = "download" in [build]',
    ),
    FindingRule(
        lambda r: r.settings.dependencies is Dependencies.SYSTEM and not r.settings.onnx_source, Severity.ERROR,
        "with system dependencies the build needs the source of ONNX",
        "minimal builds compile three of its files, which no package contains",
        "unpack the release that cmake/deps.txt of the tree names, and name its folder as onnx_source in [build]",
    ),
    FindingRule(
        _below_minimum, Severity.WARNING,
        "{platform} {wanted} is below what ONNX Runtime {version} supports", "its own packages begin at {lowest}",
        "raise the target's minimum to {lowest}, or choose an older ort_release",
    ),
    FindingRule(
        lambda r: NNAPI in r.providers and 0 < (r.target.min_api_level or 0) < NNAPI_API_LEVEL, Severity.WARNING,
        "below API level 27 NNAPI supports no node", "the target's min_api_level is {wanted}",
        "nothing, when those phones may run on the CPU; the operator config must cover that",
    ),
    FindingRule(
        _nothing_to_reduce, Severity.WARNING,
        "types are to be reduced, and the operator config lists none", "it was made without types",
        "make it with `ort-mobile op-config create --types`, or write reduce_types = false in [build]",
    ),
    FindingRule(
        lambda r: r.operators is None and r.kind is not BuildKind.FULL, Severity.WARNING,
        "no operator config: the library will contain all operators", "",
        "make one with `ort-mobile op-config create ARTIFACT...` and pass it with --op-config",
    ),
    FindingRule(
        lambda r: bool(_operators(r, "com.microsoft.nchwc")), Severity.WARNING,
        "the operator config lists {nchwc_ops} of com.microsoft.nchwc",
        "a file with them fits the x86 processor that converted it; others give wrong numbers or none",
        "convert again without NchwcTransformer, as `ort-mobile convert` does",
    ),
)  # fmt: skip
