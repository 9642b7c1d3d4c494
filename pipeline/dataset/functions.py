"""Samples from a Python function of the user's, named as `module:function`."""

import importlib
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.core.errors import ConfigError
from pipeline.model.signature import Array

FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""The last part of a path that names a function; what stands before it is the folder to import from."""


def is_function(path: str) -> bool:
    """Whether test data is named as `module:function`, and not as a file of such a name."""
    return bool(FUNCTION.fullmatch(Path(path).name)) and not Path(path).exists()


def function_samples(path: str) -> Iterator[tuple[str, dict[str, Array]]]:
    """What the function gives: one sample or any iterable of them, each a dict from input name to array.

    `path` is FOLDER/module:function; the module is imported from FOLDER (a config's own) or from where Python finds
    modules, and the function called without arguments.
    ConfigError for a module or function that is not there, for what it raises, and for what is no sample.
    """
    made = _call(path)
    found = iter((made,) if isinstance(made, Mapping) else made) if hasattr(made, "__iter__") else None
    if found is None:
        raise _bad(path, f"it returned {type(made).__name__}")
    number = 0
    while (sample := _next(path, found)) is not None:
        name = f"{path} sample {number}"
        if not isinstance(sample, Mapping) or not all(isinstance(key, str) for key in sample):
            raise _bad(name, f"it gave {type(sample).__name__}")
        yield name, {key: _array(name, key, value) for key, value in sample.items()}
        number += 1


def _call(path: str) -> Any:
    module, _, name = Path(path).name.partition(":")
    place = str(Path(path).parent.resolve())
    if place not in sys.path:
        sys.path.insert(0, place)
    try:
        function = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        raise ConfigError(
            "no such module for test data", where=path, why=f"{error}; searched {place} and Python's own folders",
            remedy="put MODULE.py beside the config, or install it",
        ) from error  # fmt: skip
    except Exception as error:
        raise _raised(path, error) from error
    if not callable(function):
        raise ConfigError(f"the module {module!r} has no function {name!r}", where=path, remedy="check `test_data`")
    try:
        return function()
    except Exception as error:
        raise _raised(path, error) from error


def _next(path: str, found: Iterator[Any]) -> Any:
    try:
        return next(found, None)
    except Exception as error:
        raise _raised(path, error) from error


def _array(name: str, key: str, value: Any) -> Array:
    import numpy as np

    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise ConfigError(f"the input {key!r} is no array of numbers", where=name, why=f"its type is {array.dtype}")
    return array


def _raised(path: str, error: Exception) -> ConfigError:
    return ConfigError(
        "the function for test data failed", where=path, why=f"{type(error).__name__}: {error}"[:500],
        remedy="run it alone in Python; it is called without arguments",
    )  # fmt: skip


def _bad(where: str, why: str) -> ConfigError:
    return ConfigError(
        "the function for test data gives no samples", where=where, why=why,
        remedy="return an iterable of dicts from input name to numpy array",
    )  # fmt: skip
