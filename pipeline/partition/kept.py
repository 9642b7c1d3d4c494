"""What the compiler of chips said, kept by content: what was asked before starts no process and loads no model.

This module is all that a kept answer loads, beside what shows it.
"""

import hashlib
import importlib.util
import logging
import os
import platform
import re
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import TypeVar

import msgspec

from device_runner import errors as runner_errors
from device_runner import files as runner_files
from device_runner import providers as runner_providers
from device_runner import untrusted_files
from device_runner.errors import RunnerError
from pipeline.core import errors as core_errors
from pipeline.core import files as storage
from pipeline.core import own_sources
from pipeline.core import provider as core_provider
from pipeline.core import providers as provider_rules
from pipeline.core import releases as ort_releases
from pipeline.core.errors import MissingError, PipelineError
from pipeline.core.releases import Release
from pipeline.model.sources import SourceModel
from pipeline.partition import answer as claim_answer

log = logging.getLogger(__name__)

Kept = TypeVar("Kept", bound=msgspec.Struct)


def compiler_facts() -> core_provider.Compiler:
    """The compiler of chips: one provider has it."""
    return next(rules.compiler for rules in provider_rules.PROVIDER_RULES.values() if rules.compiler)


def compiler_name() -> str:
    """The compiler as answers name it, with the release of its package; MissingError without it."""
    if error := compiler_lacking():
        raise error
    package = compiler_facts().package
    return f"{package} {metadata.version(package)}"


def require_compilers(asked: Iterable[claim_answer.Settings]) -> None:
    """MissingError where one of the providers is asked of a compiler that is not installed."""
    if any(settings.rules.by_chip for settings in asked):
        compiler_name()


def compiler_lacking() -> MissingError | None:
    """Why the compiler cannot be asked: no such host, no package, or an ONNX Runtime that it does not go with."""
    facts = compiler_facts()
    system = f"{sys.platform} on {platform.machine()}"
    if importlib.util.find_spec(facts.module) is None:
        need = "" if system == facts.host else f"; it needs {facts.host_title}, this is {system}"
        return MissingError(
            f"{facts.title} is not installed",
            why=f"{facts.knows}{need}",
            remedy=f"{core_errors.install_extra(facts.extra)} ({facts.licence})",
        )
    if system != facts.host:
        return MissingError(
            f"{facts.title} does not work here",
            why=f"its package offers no NPU on {system}",
            remedy=f"use a computer with {facts.host_title}",
        )
    needs = [re.match(r"onnxruntime *\(?>= *(\d+)\.(\d+)", requirement) for requirement in requires(facts.package)]
    least = next(((int(match[1]), int(match[2])) for match in needs if match), None)
    if least and ort_releases.installed_release() < least:
        return MissingError(
            f"{facts.title} does not go with the installed onnxruntime",
            why=f"it needs {Release(*least)} or later, installed is {Release(*ort_releases.installed_release())}",
            remedy=f"install a later onnxruntime: {runner_errors.pip_install('--upgrade', 'onnxruntime')}",
        )
    return None


def requires(package: str) -> list[str]:
    """The requirements that an installed package declares."""
    return metadata.requires(package) or []


def entry_of(ending: str, chip: runner_providers.Chip, *parts: str) -> Path:
    """Where what the compiler gave is kept, by the compiler, ONNX Runtime, the chip and whatever else it depends on."""
    parts = (compiler_name(), metadata.version("onnxruntime"), repr(chip), *parts)
    return runner_files.cache_folder() / "npu" / (hashlib.sha256("\0".join(parts).encode()).hexdigest() + ending)


def kept(entry: Path, kind: type[Kept]) -> Kept | None:
    """What an entry has; None where there is none that can be read."""
    try:
        return untrusted_files.decode_json(untrusted_files.read_regular(entry), kind)
    except (OSError, RunnerError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def keep(entry: Path, answer: msgspec.Struct) -> None:
    """Keep an answer; it is there all the same where it cannot be kept."""
    try:
        storage.write_bytes(entry, msgspec.json.encode(answer))
    except PipelineError as error:
        log.warning("the answer is not kept: %s", error)


def entry_of_chip_answer(
    source: SourceModel,
    settings: claim_answer.Settings,
    optimize: claim_answer.Optimize,
    sizes: Mapping[str, int],
    *,
    likely: bool,
) -> Path | None:
    """Where the answer to a question about a model is kept; None where none is: no chip, a member of an archive.

    The digest covers the file (not files that it names: such answers are not kept), question, chip, releases, sources.
    """
    if not settings.chip or source.member or not Path(source.path).is_file():
        return None
    # Names, sizes and times of change of our sources: a tenth of the time that reading them takes
    rows, waiting = [], [str(own_sources.ROOT / "pipeline"), str(own_sources.ROOT / "device_runner")]
    while waiting:
        for entry in os.scandir(waiting.pop()):
            if entry.name.endswith(".py"):
                state = entry.stat()
                rows.append(f"{entry.path} {state.st_size} {state.st_ctime_ns}")
            elif entry.is_dir():
                waiting.append(entry.path)
    question = msgspec.json.encode((settings, optimize, sizes, likely)).decode()
    parts = (storage.sha256_of(Path(source.path)), question, "\n".join(sorted(rows)))
    return entry_of(".answer.json", runner_providers.CHIPS[settings.chip], *parts)


def kept_answer(entry: Path | None, name: str) -> claim_answer.ModelAnswer | None:
    """The answer of an entry under a model's name; None where there is none that can be read."""
    answer = kept(entry, claim_answer.ModelAnswer) if entry else None
    return msgspec.structs.replace(answer, path=name) if answer else None


def keep_answer(entry: Path | None, answer: claim_answer.ModelAnswer) -> None:
    """Keep an answer; not one that a busy machine gave."""
    if entry and not answer.error and not (answer.load and answer.load.code == "hang"):
        keep(entry, answer)
