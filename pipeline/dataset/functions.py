"""Samples that a user's function gives."""

import importlib
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from device_runner import errors as runner_errors
from pipeline.core.errors import ConfigError
from pipeline.dataset.dataset import Sample


def function_samples(path: str) -> Iterator[Sample]:
    """What the function gives: one sample or any iterable of them, each a dict from input name to array, or a pair of
    that and a label; None where there is no label. The inputs are as the function gives them, in its order.

    The function is called without arguments. ConfigError for a module or function that is not there, for what it
    raises, and for what is no sample.
    """
    import numpy as np

    try:
        result = load_function(path, "test data")()
    except ConfigError:
        raise
    except Exception as error:
        raise _raised(path, error) from error
    given = iter((result,) if isinstance(result, Mapping) else result) if hasattr(result, "__iter__") else None
    if given is None:
        raise _bad(path, f"it returned {type(result).__name__}")
    for number in itertools.count():
        name, label = f"{path} sample {number}", None
        try:
            sample = next(given, None)
        except Exception as error:
            raise _raised(path, error) from error
        if sample is None:
            return
        if isinstance(sample, tuple) and len(sample) == 2:
            sample, label = sample
        if not isinstance(sample, Mapping) or not all(isinstance(key, str) for key in sample):
            raise _bad(name, f"it gave {type(sample).__name__}")
        arrays = {key: np.asarray(value) for key, value in sample.items()}
        for key, array in arrays.items():
            if array.dtype.kind not in "fiubU":
                what = f"the input {key!r} is no array of numbers or strings"
                raise ConfigError(what, where=name, why=f"its type is {array.dtype}")
        yield Sample(name=name, inputs=arrays, label=label)


def load_function(path: str, purpose: str) -> Callable[..., Any]:
    """The function that FOLDER/module:function names: imported from FOLDER (a config's own) or from where Python finds
    modules. ConfigError, which names the purpose, where there is none or its module fails.
    """
    module, _, name = Path(path).name.partition(":")
    folder = str(Path(path).parent.resolve())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        function = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise ConfigError(
                f"the module {module!r} needs one that is not installed",
                where=path,
                why=str(error),
                remedy=runner_errors.pip_install(str(error.name)),
            ) from error
        raise ConfigError(
            f"no such module for {purpose}",
            where=path,
            why=f"{error}; searched {folder} and Python's own folders",
            remedy=f"put {module}.py into that folder, or install the module",
        ) from error
    except Exception as error:
        raise _raised(path, error, f"the module {module!r} cannot be imported") from error
    if not callable(function):
        raise ConfigError(
            f"the module {module!r} has no function {name!r}", where=path, remedy=f"check what is given for {purpose}"
        )
    loaded: Callable[..., Any] = function
    return loaded


def _raised(path: str, error: Exception, what: str = "the function for test data failed") -> ConfigError:
    return ConfigError(
        what,
        where=path,
        why=f"{type(error).__name__}: {error}"[:500],
        remedy="run it alone in Python; a function is called without arguments",
    )


def _bad(where: str, why: str) -> ConfigError:
    return ConfigError(
        "the function for test data gives no samples",
        where=where,
        why=why,
        remedy="give dicts from input name to numpy array, or pairs of a dict and a label",
    )
