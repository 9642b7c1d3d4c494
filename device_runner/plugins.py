"""Plugin execution providers: where the library of one is on this computer, and what forbids a run with it."""

import importlib.util
import platform
import re
from pathlib import Path

from msgspec.structs import replace

from device_runner.errors import pip_install
from device_runner.library import Library, LibraryFacts
from device_runner.options import OptionRule, first_broken
from device_runner.probe import elf as elf_file
from device_runner.probe.elf import NotElf
from device_runner.providers import CHIPS, NEW_LAYOUT, chip_of_phone, provider_named
from device_runner.result import Failure, FailureKind
from device_runner.spec import Plugin, RunSpec

PLUGINS_SINCE = (1, 24, 0)
"""Registering came with 1.22, but only 1.24 tells what a provider took: without that a run may be the CPU's."""

CONTEXT_KEY = "ep.context_enable"
SHARED_KEY = "ort-mobile.shared-context"
"""The metadata of a context's ONNX file whose binary has others, too; the value names these."""
NOT_HERE = (
    (re.compile(rb"v2:\d+:[\d.]+:[\d.]+:(?:\d+,[\d,]+):"), "is for several chips, which the simulator loads none of"),
    (re.compile(SHARED_KEY.encode()), "shares its binary with others, on which the simulator crashes"),
)
"""Contexts that run on phones alone, by what their ONNX files say (docs/npu.md)."""
BUILT_FOR = re.compile(rb"v2:\d+:(\d{1,4}\.\d{1,4}\.\d{1,4}):[\d.]+:(\d{2,3}):")
"""The QAIRT that made a context and the generation of NPUs that it is for, as its ONNX file says."""
MOST_BYTES = 1 << 20
"""Of a context's ONNX file that is looked at."""


RULES: tuple[OptionRule, ...] = (
    OptionRule(
        lambda spec, _facts, _since: spec.perf_test is not None,
        "onnxruntime_perf_test is not given plugins",
        "leave perf_test out: the probe loads them",
    ),
    OptionRule(
        # Of a library that does not tell its release the probe asks it.
        lambda _spec, facts, since: bool(facts.release) and tuple(map(int, facts.release.split("."))) < since,
        "ONNX Runtime {release} does not load this plugin: it needs {since}",
        "use libonnxruntime {since} or later",
    ),
    OptionRule(
        lambda _spec, facts, _since: facts.kind != "full",
        "a minimal build loads no plugins",
        "use a full build of libonnxruntime, such as that of the package",
    ),
    OptionRule(
        lambda spec, _facts, _since: (
            spec.options.session_config.get(CONTEXT_KEY) == "1" and Path(spec.model).suffix.lower() == ".ort"
        ),
        "of an ORT format file no context model is made, and none can be saved as one",
        f"give the .onnx file, or leave {CONTEXT_KEY} out",
    ),
)
"""What forbids a run with a plugin anywhere, by its spec, the facts of its library and the first release that will do
(ONNX Runtime 1.24 to 1.32, measured or read)."""


def installed_plugin(provider: str) -> Plugin | Failure:
    """The plugin of a provider whose package is installed here; why there is none."""
    facts = provider_named(provider)
    package = facts.plugin
    if package is None:
        text = f"no package is known to have a plugin for {provider}"
        return Failure(code=FailureKind.PROVIDER_MISSING, what=text, remedy="name its library")
    if (platform.system(), platform.machine()) not in package.systems:
        machines = " and ".join(machine.replace("_", "-") for _, machine in package.systems)
        return Failure(
            code=FailureKind.PROVIDER_MISSING,
            what=f"{facts.title} runs on Linux on {machines} only, beside phones",
            why=f"this computer is {platform.system()} {platform.machine()}",
            remedy="use such a computer (most CI runners are), or a phone",
        )
    module = importlib.util.find_spec(package.module)
    library = Path(module.origin).parent / package.library if module and module.origin else None
    if library is None or not library.is_file():
        return Failure(
            code=FailureKind.PROVIDER_MISSING,
            what=f"{facts.title} needs the package {package.distribution}, which is not installed",
            why=f"libonnxruntime has no {facts.title} of its own; the package brings it as a plugin",
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
    if package is None or not package.by_chip:
        return with_files(spec)
    # The simulator needs the numbers of its chip, which may be named (SM8650). Without a chip it computes as no phone
    # does, and a number that is no chip's takes nothing: both without a word.
    options = spec.options.provider_options
    soc_model, htp_arch = options.get("soc_model", ""), options.get("htp_arch", "")
    by_number = next((chip for chip in CHIPS.values() if str(chip.soc_model) == soc_model), None)
    chip = by_number or chip_of_phone(soc_model)
    if chip is None or htp_arch not in ("", str(chip.htp_arch)):
        why = "without it the simulator computes in float32, which no phone does"
        if chip is not None:
            why = f"htp_arch={htp_arch} is given, and {chip.title} is V{chip.htp_arch}"
        elif soc_model:
            why = f"soc_model={soc_model} is no chip that is known"
        return Failure(
            code=FailureKind.BAD_OPTIONS,
            what=f"{spec.options.provider} on this computer needs the chip whose NPU it simulates",
            why=why,
            remedy=f"give soc_model={next(iter(CHIPS))} or another of {', '.join(CHIPS)}, and leave htp_arch out",
        )
    model = Path(spec.model)
    if model.suffix.lower() == ".onnx" and model.is_file() and model.stat().st_size <= MOST_BYTES:  # perhaps a context
        content = model.read_bytes()
        why = next(
            (f"made, not run here: this context {why}" for pattern, why in NOT_HERE if pattern.search(content)), ""
        )
        arch = int(built[2]) if (built := BUILT_FOR.search(content)) else chip.htp_arch
        if not why and (arch > chip.htp_arch or arch < NEW_LAYOUT <= chip.htp_arch):
            # The simulator computes it as the chip that it is for would, whatever chip is named.
            why = f"the context is for V{arch}, which the loader of {chip.name} (V{chip.htp_arch}) refuses"
        if why:
            return Failure(
                code=FailureKind.BAD_OPTIONS,
                what=f"{model.name}: {why}",
                remedy="run it on a phone that it is for, or make one of one model for one chip: "
                "`convert MODEL --context CHIP`",
            )
    return with_files(
        replace(spec, options=replace(spec.options, provider_options={**options, **chip.options})),
    )


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
    words = {"release": facts.release, "since": ".".join(map(str, since))}
    cause = f"plugin {spec.plugin.library} with {facts.path}"
    if failure := first_broken(RULES, spec, facts, since, why=cause, words=words):
        return failure
    for file in (spec.plugin.library, *spec.plugin.files):
        if not Path(file).is_file():
            kind = FailureKind.MISSING_LIBRARY
            return Failure(code=kind, what=f"{file}: no such file", why="no plugin", remedy="check the path")
    try:
        abi = elf_file.read_header(Path(spec.plugin.library)).abi
    except (NotElf, OSError) as error:
        text = f"{spec.plugin.library}: {error}"
        return Failure(code=FailureKind.WRONG_LIBRARY, what=text, why="no plugin", remedy="check its path")
    if abi != facts.abi:
        return Failure(
            code=FailureKind.WRONG_LIBRARY,
            what=f"{spec.plugin.library} is for {abi}; libonnxruntime is for {facts.abi}",
            why="the plugin is for another processor",
            remedy=f"give the plugin for {facts.abi}",
        )
    return None
