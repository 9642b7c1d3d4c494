"""What the scripts of a source tree really accept: their argument parsers, read without running them.

The tables of this package say what a release accepts; a tree available knows better. Reading is by `ast`, because
nothing of a tree may run before the user has asked for the build.
"""

import ast
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from pipeline.core.errors import ConfigError
from pipeline.ort_build.plan import AAR_SCRIPT, APPLE_SCRIPT, BUILD_SCRIPT, SETTINGS_FILE, BuildPlan, BuildStep

BUILD_ARGS = "tools/ci_build/build_args.py"
"""Where build.py keeps its parser from 1.22."""


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """An option of a script: whether it takes values, and which when these are few."""

    name: str
    takes_value: bool
    choices: tuple[str, ...] = ()


def options_in(text: str) -> dict[str, Option]:
    """The options that a Python script declares with `add_argument`; raises ValueError when it is no Python."""
    found = (_option(node) for node in ast.walk(_parsed(text)) if isinstance(node, ast.Call))
    return {option.name: option for option in found if option is not None}


def _parsed(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"cannot read the script: {error}") from error


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
        script = _script_of(step, options)
        complaints += _refused(script, step.arguments[2:], options[script])
    complaints += _refused(BUILD_SCRIPT, _build_params(plan), options[BUILD_SCRIPT])
    return tuple(dict.fromkeys(complaints))


def _script_of(step: BuildStep, options: Iterable[str]) -> str:
    return next(name for name in options if step.arguments[1].endswith(name))


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
