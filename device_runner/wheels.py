"""Libonnxruntime out of onnxruntime's wheels for Linux, fetched by pip, which compares each file with a digest.

The digest is the known one of the release (`known_digests`), else the one that the package index states: that shows
that a file came whole, not that it is what was released, and whoever uses it is warned.
"""

import ast
import base64
import html
import importlib.metadata
import importlib.util
import logging
import os
import platform
import re
import shutil
import ssl
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from msgspec.structs import replace

from device_runner.errors import UnavailableError, pip_install
from device_runner.files import (
    ZIP_ERRORS,
    are_sound,
    check_unpacked,
    note_digests,
    own_folder_errors,
    public_address,
    scratch_folder,
)
from device_runner.library import LIBRARY, MACHINES, MAX_BYTES, Library, LibraryFacts, known_digests, wheel_folder
from device_runner.probe.elf import NotElf, read_header
from device_runner.providers import CHIPS, chip_of_phone, provider_named
from device_runner.result import Failure, FailureKind
from device_runner.spec import Plugin, RunSpec

log = logging.getLogger(__name__)

PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux2014")
"""glibc levels that onnxruntime's wheels were built for (1.19 to 1.31), newest first."""

WHEEL_LIBRARY = re.compile(r"onnxruntime/capi/libonnxruntime\.so\.\d[\d.]*")
SECONDS = 600.0
ANSWER_SECONDS = 30
PAGE_BYTES = 64 << 20
"""Most that is read of an index's page; that of onnxruntime has one megabyte."""

INDEX = "https://pypi.org/simple"
"""What pip asks where nothing else is configured."""
PAGE_TYPES = "application/vnd.pypi.simple.v1+html, text/html;q=0.5"
STATED = re.compile(r"""href=["'][^"'#]*?(onnxruntime-[^/"'#]+\.whl)#sha256=([0-9a-f]{64})["'&]""")
"""A file of an index's page with its digest (PEP 503)."""

SOURCE = "source.txt"
"""Beside a library: which indexes were asked for it."""


def foreign_library(abi: str, version: str = "") -> Path:
    """Libonnxruntime of the wheel for that ABI and release (the installed one's by default), from the cache or by pip.

    Raises UnavailableError where there is no such wheel, or it cannot be fetched.
    """
    release = version or importlib.metadata.version("onnxruntime")
    machine = MACHINES.get(abi)
    if machine is None:
        raise UnavailableError(
            f"there is no onnxruntime wheel for {abi}", remedy="name a library for it with --library"
        )
    target = wheel_folder() / f"{release}-{machine}" / LIBRARY
    if not are_sound(target.parent, [target.name]):
        with own_folder_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
        with scratch_folder(parent=target.parent) as folder:
            wheel, asked = _download(release, machine, folder)
            _unpack(wheel, folder / "library").replace(target)
        with own_folder_errors(target):
            (target.parent / SOURCE).write_text(asked, encoding="utf-8")
            note_digests(target.parent, [target.name])
    return target


def source_of(library: Path) -> str:
    """The indexes that were asked for a library of `foreign_library`."""
    try:
        return (library.parent / SOURCE).read_text(encoding="utf-8")
    except OSError:
        return "an index that was not noted"


def _download(release: str, machine: str, folder: Path) -> tuple[Path, str]:
    """The wheel in `folder`, and the places that were asked, without passwords."""
    # The pip of this environment, else that on PATH: environments of uv and `venv --without-pip` have none.
    program = None if importlib.util.find_spec("pip") else shutil.which("pip3") or shutil.which("pip")
    pip = (program,) if program else (sys.executable, "-m", "pip")
    folders, indexes, certificates = _pip_settings(pip)
    asked = ", ".join(public_address(place) for place in (*folders, *indexes))

    def unfetched(why: str) -> UnavailableError:
        return UnavailableError(
            f"the wheel of onnxruntime {release} for {machine} cannot be fetched",
            where=asked,
            why=why,
            remedy="check the network, or name a library for the device with --library",
        )

    digests = list(_of_release(known_digests().items(), release, machine))
    if not digests:  # what the indexes state, with a warning
        for index in indexes:
            try:
                page = _page(f"{index.rstrip('/')}/onnxruntime/", certificates)
            except (OSError, HTTPException, ValueError) as error:
                raise unfetched(f"{public_address(index)}: {error}") from error
            digests += _of_release(STATED.findall(html.unescape(page)), release, machine)
        if not digests:
            raise unfetched(
                "the index has none of this release, or does not state the sha256 of its files: nothing can be checked"
            )
        log.warning(
            "onnxruntime %s is newer than the releases whose sha256 ort-mobile knows: its wheel was compared with what "
            "%s states, and with nothing else",
            release,
            asked,
        )
    requirement = folder / "requirement.txt"
    requirement.write_text(" ".join([f"onnxruntime=={release}", *(f"--hash=sha256:{digest}" for digest in digests)]))
    platforms = [word for name in PLATFORMS for word in ("--platform", f"{name}_{machine}")]
    command = [
        *pip, "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(folder), *platforms,
        "--require-hashes", "--requirement", str(requirement),
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise unfetched(f"pip took longer than {SECONDS:.0f} s") from error
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        last = [line.strip()[:300] for line in done.stderr.splitlines() if line.strip()][-2:]
        raise unfetched("; ".join(last) or "no wheel")
    return wheels[0], asked


def _of_release(files: Iterable[tuple[str, str]], release: str, machine: str) -> Iterator[str]:
    for name, digest in files:
        if name.startswith(f"onnxruntime-{release}-") and name.endswith(f"_{machine}.whl"):
            yield digest


def _page(address: str, certificates: str) -> str:
    """An index's page; raises OSError, HTTPException and ValueError, also for an address that is no HTTP."""
    parts = urlsplit(address)
    if parts.scheme not in ("https", "http"):
        raise ValueError("it is no address of an index")
    request = urllib.request.Request(public_address(address), headers={"Accept": PAGE_TYPES})  # noqa: S310 - https or http
    if parts.username:  # urllib does not read it out of an address
        login = f"{parts.username}:{parts.password or ''}".encode()
        request.add_header("Authorization", f"Basic {base64.b64encode(login).decode()}")
    context = ssl.create_default_context(cafile=certificates or None)
    with urllib.request.urlopen(request, timeout=ANSWER_SECONDS, context=context) as answer:  # noqa: S310
        content: bytes = answer.read(PAGE_BYTES)
    return content.decode("utf-8", "replace")


def _pip_settings(pip: tuple[str, ...]) -> tuple[list[str], list[str], str]:
    """The folders and indexes where `pip download` looks, and the certificates that it trusts ("": the system's).

    The environment's settings come before the command's, and these before pip's.
    """
    done = subprocess.run([*pip, "config", "list"], capture_output=True, text=True, timeout=60, check=False)
    listed: dict[str, str] = {}
    for line in done.stdout.splitlines():
        name, _, value = line.partition("=")
        if value:
            listed[name] = str(ast.literal_eval(value))

    def value_of(key: str) -> list[str]:
        values = (listed[name] for part in (":env:", "download", "global") if (name := f"{part}.{key}") in listed)
        return next(values, "").split()

    no_index = value_of("no-index") not in ([], ["0"], ["false"], ["no"], ["off"])
    indexes = [] if no_index else [*(value_of("index-url") or [INDEX]), *value_of("extra-index-url")]
    return value_of("find-links"), indexes, "".join(value_of("cert"))


def _unpack(wheel: Path, target: Path) -> Path:
    """The one library of a wheel as `target`; nothing else is unpacked, and no name in it counts."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if WHEEL_LIBRARY.fullmatch(name)]
            for name in names[:1]:
                check_unpacked(archive.getinfo(name), MAX_BYTES)
            content = archive.read(names[0]) if names else b""
    except ZIP_ERRORS as error:
        raise UnavailableError(
            "this wheel cannot be unpacked", where=wheel.name, why=str(error), remedy="fetch it again"
        ) from error
    if not names:
        raise UnavailableError(
            "this wheel has no libonnxruntime",
            where=wheel.name,
            why="wheels have a C library of their own from 1.19 on",
            remedy="name a library with --library",
        )
    with target.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return target


PLUGINS_SINCE = (1, 24, 0)
"""Registering came with 1.22, but only 1.24 tells what a provider took: without that a run may be the CPU's."""

CONTEXT_KEY = "ep.context_enable"

PluginRule = tuple[Callable[[RunSpec, LibraryFacts, tuple[int, ...]], bool], str, str]
"""Whether a spec breaks it, by the facts of its library and the first release that will do; why, and the remedy."""


def _release(facts: LibraryFacts) -> tuple[int, ...]:
    """() for a library that does not tell: the probe asks it."""
    return tuple(map(int, facts.release.split("."))) if facts.release else ()


RULES: tuple[PluginRule, ...] = (
    (
        lambda spec, _facts, _since: spec.perf_test is not None,
        "onnxruntime_perf_test is not given plugins",
        "leave perf_test out: the probe loads them",
    ),
    (
        lambda _spec, facts, since: bool(_release(facts)) and _release(facts) < since,
        "ONNX Runtime {release} does not load this plugin: it needs {since}",
        "use libonnxruntime {since} or later",
    ),
    (
        lambda _spec, facts, _since: facts.kind != "full",
        "a minimal build loads no plugins",
        "use a full build of libonnxruntime, such as that of the package",
    ),
    (
        lambda spec, _facts, _since: (
            spec.options.session_config.get(CONTEXT_KEY) == "1" and Path(spec.model).suffix.lower() == ".ort"
        ),
        "of an ORT format file no context model is made, and none can be saved as one",
        f"give the .onnx file, or leave {CONTEXT_KEY} out",
    ),
)
"""What forbids a run with a plugin anywhere (ONNX Runtime 1.24 to 1.32, measured or read)."""


def installed_plugin(provider: str) -> Plugin | Failure:
    """The plugin of a provider whose package is installed here; why there is none."""
    row = provider_named(provider)
    package = row.plugin
    if package is None:
        text = f"no package is known to have a plugin for {provider}"
        return Failure(kind=FailureKind.PROVIDER_MISSING, message=text, remedy="name its library")
    if (platform.system(), platform.machine()) not in package.systems:
        machines = " and ".join(machine.replace("_", "-") for _, machine in package.systems)
        return Failure(
            kind=FailureKind.PROVIDER_MISSING,
            message=f"{row.title} runs on Linux on {machines} only, beside phones",
            cause=f"this computer is {platform.system()} {platform.machine()}",
            remedy="use such a computer (most CI runners are), or a phone",
        )
    module = importlib.util.find_spec(package.module)
    library = Path(module.origin).parent / package.library if module and module.origin else None
    if library is None or not library.is_file():
        return Failure(
            kind=FailureKind.PROVIDER_MISSING,
            message=f"{row.title} needs the package {package.distribution}, which is not installed",
            cause=f"libonnxruntime has no {row.title} of its own; the package brings it as a plugin",
            remedy=pip_install(package.distribution),
        )
    files = (library.with_name(file) for file in package.files.values())
    return Plugin(library=str(library), files=tuple(str(file) for file in files if file.is_file()))


def with_plugin(spec: RunSpec, library: Library) -> RunSpec | Failure:
    """The spec with the plugin that its provider needs on this computer, or why it cannot run.

    A provider that is compiled into the library needs none. Raises UnavailableError for a file that is no library.
    """
    package = provider_named(spec.options.provider).plugin
    if spec.plugin is None and (package is None or spec.perf_test is not None):
        return spec
    facts = library.facts
    if spec.plugin is None and spec.options.provider in facts.providers:
        return spec
    plugin = spec.plugin or installed_plugin(spec.options.provider)
    if isinstance(plugin, Failure):
        return plugin
    spec = replace(spec, plugin=plugin)
    if failure := refused(spec, facts):
        return failure
    chosen = _with_chip(spec) if package and package.by_chip else spec
    return chosen if isinstance(chosen, Failure) else with_files(chosen)


def _with_chip(spec: RunSpec) -> RunSpec | Failure:
    """The spec with the numbers of its chip, which may be named (SM8650); why the simulator cannot be used.

    Without a chip it computes as no phone does, and a number that is no chip's takes nothing: both without a word.
    """
    options = spec.options.provider_options
    soc_model, arch = options.get("soc_model", ""), options.get("htp_arch", "")
    by_number = next((row for row in CHIPS.values() if str(row.soc_model) == soc_model), None)
    chip = by_number or chip_of_phone(soc_model)
    if chip is None or arch not in ("", str(chip.htp_arch)):
        why = "without it the simulator computes in float32, which no phone does"
        if chip is not None:
            why = f"htp_arch={arch} is given, and {chip.title} is V{chip.htp_arch}"
        elif soc_model:
            why = f"soc_model={soc_model} is no chip that is known"
        return Failure(
            kind=FailureKind.BAD_OPTIONS,
            message=f"{spec.options.provider} on this computer needs the chip whose NPU it simulates",
            cause=why,
            remedy=f"give soc_model={next(iter(CHIPS))} or another of {', '.join(CHIPS)}, and leave htp_arch out",
        )
    return replace(spec, options=replace(spec.options, provider_options={**options, **chip.options}))


def with_files(spec: RunSpec) -> RunSpec:
    """The spec with provider options that its package fills with a file of the plugin, where they are not given."""
    package = provider_named(spec.options.provider).plugin
    if package is None or spec.plugin is None:
        return spec
    beside = [str(Path(spec.plugin.library).with_name(file)) for file in package.files.values()]
    files = {Path(file).name: file for file in (*(file for file in beside if Path(file).is_file()), *spec.plugin.files)}
    options = {key: files[file] for key, file in package.files.items() if file in files}
    return replace(
        spec,
        plugin=replace(spec.plugin, files=tuple(dict.fromkeys((*spec.plugin.files, *options.values())))),
        options=replace(spec.options, provider_options={**options, **spec.options.provider_options}),
    )


def refused(spec: RunSpec, facts: LibraryFacts) -> Failure | None:
    """Why the spec's plugin cannot be used with a library, by the rules and its own file; None when it can."""
    if spec.plugin is None:
        return None
    package = provider_named(spec.options.provider).plugin
    since = package.since if package else PLUGINS_SINCE
    words: Mapping[str, str] = {"release": facts.release, "since": ".".join(map(str, since))}
    for broken, reason, remedy in RULES:
        if broken(spec, facts, since):
            return Failure(
                kind=FailureKind.BAD_OPTIONS,
                message=reason.format_map(words),
                cause=f"plugin {spec.plugin.library} with {facts.path}",
                remedy=remedy.format_map(words),
            )
    for file in (spec.plugin.library, *spec.plugin.files):
        if not Path(file).is_file():
            kind = FailureKind.MISSING_LIBRARY
            return Failure(kind=kind, message=f"{file}: no such file", cause="no plugin", remedy="check the path")
    try:
        abi = read_header(Path(spec.plugin.library)).abi
    except (NotElf, OSError) as error:
        text = f"{spec.plugin.library}: {error}"
        return Failure(kind=FailureKind.WRONG_LIBRARY, message=text, cause="no plugin", remedy="check its path")
    if abi != facts.abi:
        return Failure(
            kind=FailureKind.WRONG_LIBRARY,
            message=f"{spec.plugin.library} is for {abi}; libonnxruntime is for {facts.abi}",
            cause="the plugin is for another processor",
            remedy=f"give the plugin for {facts.abi}",
        )
    return None
