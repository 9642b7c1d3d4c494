"""The options that the scripts of a source tree accept, and what of a plan they refuse."""

import ast
import json
from pathlib import Path

from pipeline.core.errors import ConfigError
from pipeline.ort_build.plan import AAR_SCRIPT, APPLE_SCRIPT, BUILD_ARGS, BUILD_SCRIPT, SETTINGS_FILE, BuildPlan

Options = dict[str, tuple[str, ...] | None]
"""Options of a script by name: the values that one takes where these are few, () for any, None for a flag."""


def options_in(text: str) -> Options:
    """The options that a Python script declares with `add_argument`; raises ValueError when it is no Python."""
    try:
        script = ast.parse(text)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"cannot read the script: {error}") from error
    options: Options = {}
    for node in ast.walk(script):
        match node:
            case ast.Call(func=ast.Attribute(attr="add_argument"), args=[ast.Constant(str(name)), *_], keywords=given):
                if not name.startswith("--"):
                    continue
                keywords = {keyword.arg: _literal(keyword.value) for keyword in given if keyword.arg}
                choices = keywords.get("choices")
                values = tuple(map(str, choices)) if isinstance(choices, list | tuple) else ()
                options[name] = None if str(keywords.get("action", "")).startswith("store_") else values
    return options


def _literal(node: ast.expr) -> object:
    try:
        value: object = ast.literal_eval(node)
    except ValueError:
        return None
    return value


def tree_options(source: Path) -> dict[str, Options]:
    """Options by script of a source tree, for the scripts that plans call. Raises ConfigError when one is missing."""
    options = {}
    for name in (BUILD_SCRIPT, BUILD_ARGS, AAR_SCRIPT, APPLE_SCRIPT):
        if name == BUILD_ARGS and not (source / name).is_file():
            continue
        try:
            options[name] = options_in((source / name).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(
                "this is no source tree of ONNX Runtime",
                where=str(source),
                why=f"{name} cannot be read",
                remedy="give the folder that holds VERSION_NUMBER and tools/ci_build",
            ) from error
    options[BUILD_SCRIPT] |= options.pop(BUILD_ARGS, {})
    return options


def unaccepted(plan: BuildPlan, options: dict[str, Options]) -> tuple[str, ...]:
    """What the scripts would refuse of a plan: unknown options, and values that are not among the choices."""
    given = [
        (next(name for name in options if step.arguments[1].endswith(name)), step.arguments[2:]) for step in plan.steps
    ]
    for file in plan.files:
        if file.path.endswith(SETTINGS_FILE):  # what the packaging scripts pass on to build.py
            params = json.loads(file.content)["build_params"]
            groups = params.values() if isinstance(params, dict) else [params]
            given += [(BUILD_SCRIPT, tuple(group)) for group in groups]
    complaints = []
    for script, arguments in given:
        for argument in arguments:
            name, equals, value = argument.partition("=")
            if not name.startswith("--"):
                continue
            if name not in options[script]:
                complaints.append(f"{script} has no option {name}")
            elif (values := options[script][name]) is None and equals:
                complaints.append(f"{name} of {script} takes no value")
            elif values and value and value not in values:
                complaints.append(f"{name} of {script} does not take {value}")
    return tuple(dict.fromkeys(complaints))
