"""A file of build_configs/builds: one product that a user copies and changes."""

import tomllib
from pathlib import Path

import msgspec

from device_runner.reading import read_regular
from pipeline.config import Table, Target
from pipeline.config.build import BuildConfig
from pipeline.core.errors import ConfigError


class BuildFile(Table, frozen=True, kw_only=True):
    """A file of build_configs/builds: one product, for `ort-mobile build plan FILE`."""

    target: Target
    """What the library is for, as in a campaign's [[targets]]."""
    build: BuildConfig = BuildConfig()
    """How to build it."""
    operators: str | None = None
    """Operator config, as `ort-mobile op-config create` writes it; all operators without it."""
    runtime_style: bool = False
    """Whether artifacts of runtime style will run with it: they need an extended build."""


def read_build_file(path: Path) -> BuildFile:
    """Read and check a build file; its paths become relative to the current folder. Raises ConfigError."""
    try:
        found = msgspec.convert(tomllib.loads(read_regular(path).decode("utf-8-sig")), BuildFile)
    except OSError as error:
        raise ConfigError("the build file cannot be read", where=str(path), why=error.strerror or str(error)) from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(
            "this is no build file", where=str(path), why=str(error),
            remedy="compare it with those in build_configs/builds; docs/reference/config.md has the keys",
        ) from error  # fmt: skip
    onnx = found.build.onnx_source
    build = msgspec.structs.replace(found.build, onnx_source=None if onnx is None else str(path.parent / onnx))
    operators = None if found.operators is None else str(path.parent / found.operators)
    return msgspec.structs.replace(found, build=build, operators=operators)
