"""Claims of a genuine library, asked in a process here, and compared with ours (`ort-mobile partition --reference`).

Our rules say why, for every platform; the library that ships is what they are checked against. Where there are no rules
for its release, its claims are the answer. They are those of the saving mode (session saved in ORT format without the
compile step), as our rules compute them. Every node is first named after its first output, because the library reports
names only.
"""

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from device_runner import files as runner_files
from device_runner import host_device, vulkan
from device_runner import library as ort_library
from device_runner import spec as run_spec
from device_runner.android_host import device as android_host_device
from device_runner.android_host import inspection
from device_runner.spec import OptimizationLevel
from pipeline.core import providers as provider_rules
from pipeline.core import releases as ort_releases
from pipeline.core import workers
from pipeline.core.errors import ConfigError, MissingError, ModelError
from pipeline.model import edit as onnx_edit
from pipeline.model import onnx_model
from pipeline.model import sources as model_sources
from pipeline.model.sources import SourceModel
from pipeline.partition.answer import (
    NO_SIZES,
    SUFFIXES,
    ClaimDiff,
    LibraryReference,
    ModelAnswer,
    Optimize,
    PartitionDocument,
    Settings,
)
from pipeline.partition.claiming import claims_of
from pipeline.partition.library_claims import LibraryClaims, as_answer, diff_claims
from pipeline.partition.subject import open_views, remove_model, write_model, written_bytes
from pipeline.partition.undone import undone_for_provider

EXTERNAL_SINCE = (1, 23)
"""Providers before refuse weights that lie in other files than the model (ep_rules A.4)."""


def show(source: SourceModel, settings: Settings, optimize: Optimize, target: str, sizes: dict[str, int]) -> str:
    """Write a model to a file, with weights inside, each node of the main graph named after its first output.

    As it stands or, as `judge` shows it to the rules, after level basic; with sizes for its dynamic dimensions. ""
    where that was done, else why not.
    """
    try:
        with runner_files.scratch_folder(parent=Path(target).parent) as folder:
            views = open_views(source, optimize, folder, sizes)
            if views.loaded is None:
                return "an ORT format file cannot be shown to a library; it reports its claims of ONNX models only"
            shown = views.loaded
            if optimize is Optimize.BASIC:
                shown = views.basic()
                proto = undone_for_provider(shown.proto, views.before(settings)) or shown.proto
                # A saved model imports every domain that the installed onnxruntime knows, at versions that older ones
                # refuse.
                used = {node.domain for node in onnx_edit.all_nodes(proto.graph)} | {"", "ai.onnx"}
                used |= {node.domain for function in proto.functions for node in function.node}
                onnx_edit.keep_only(proto.opset_import, lambda opset: opset.domain in used)
                shown = replace(shown, proto=proto)
            write_model(shown, Path(target), named=True, external=settings.ort_release >= EXTERNAL_SINCE)
    except ModelError as error:
        return error.reason
    return ""


SAVE_ORT = {"session.save_model_format": "ORT"}
SAVE_ONLY = {"session.disable_prepacking": "1"}
"""The session is thrown away as soon as it has saved."""
OPTIMIZERS_OFF = "optimization.disable_specified_optimizers"
NCHWC = "NchwcTransformer"
"""NchwcTransformer makes files for one x86 machine only; the library that answers is one for x86."""
SUPPORTED = re.compile(r"Node supported: \[(\d)\] Operator type: \[.*?\] index: \[\d+\] name: \[(.*?)\] as part of")
PLACED = re.compile(r"placed on \[(\w+)\]")
NONE_AT_ALL = re.compile(r"All ops will fallback to CPU EP, because (.*)")
COUNTED = re.compile(r"number of partitions supported by NNAPI: (\d+) ")


def _session(
    settings: Settings,
    config: Mapping[str, str],
    *,
    level: OptimizationLevel = OptimizationLevel.NONE,
    verbose: bool = False,
    cpu: str = "",
) -> inspection.Session:
    """The sessions of a library that answer what our rules answer; `cpu` is a profile of an emulator."""
    log = claims_of(settings).library_log
    options = log.entries(settings) if log else {}
    return inspection.Session(
        provider=settings.rules.run.append_name,
        flags=tuple(run_spec.NnapiFlag(flag) for flag in settings.nnapi_flags),
        level=level,
        config={**config, inspection.STOP_OPS: ",".join(settings.stop_ops), **options},
        verbose=verbose,
        phone=android_host_device.Phone(api_level=settings.api_level, cpu=cpu),
    )


def claims_of_many(
    models: Sequence[Path], library: str, settings: Settings, *, reasons: bool = False
) -> Iterator[LibraryClaims]:
    """The claims of many models in one process, in their order; `library` is an AAR, a .so or a release.

    Raises ModelError for what is no model; refusals and crashes of the library are in the answers.
    """
    with runner_files.scratch_folder() as folder:
        named = [folder / f"{index}.onnx" for index in range(len(models))]
        for model, target in zip(models, named, strict=True):
            write_model(onnx_model.load_model(SourceModel(path=str(model)), folder), target, named=True, external=False)
        answers = claims_of_named(named, ort_library.resolve(library).android(), settings, reasons=reasons)
        for model, claims in zip(models, answers, strict=True):
            yield msgspec.structs.replace(claims, id=str(model))


def claims_of_named(
    models: Sequence[Path], library: ort_library.LibraryFacts, settings: Settings, *, reasons: bool = False
) -> Iterator[LibraryClaims]:
    """The claims of models whose nodes go by their first outputs already (`name_nodes`), in their order.

    With `reasons` they have the library's own words for what it refuses.
    """
    # Claims of older libraries, and those of providers with kernels, are in the verbose log only.
    recorded = tells_claims(library) and not claims_of(settings).library_log
    asked: Iterable[tuple[Sequence[Path], Settings]] = [(models, settings)]
    if names := settings.webgpu.cpu_nodes:  # names are a model's own
        asked = (([model], _renamed(model, settings, names)) for model in models)
    for together, options in asked:
        with runner_files.scratch_folder() as folder:
            # A provider with kernels has nothing to compile, so that its session need not be the one that saves.
            saved = None if claims_of(options).library_log else folder / "saved.ort"
            questions = [(str(index), model, saved) for index, model in enumerate(together)]
            session = _session(options, {**(SAVE_ORT if saved else {}), **SAVE_ONLY}, verbose=reasons or not recorded)
            for answer in inspection.ask(library, questions, session):
                yield _claims_of(answer, str(together[int(answer.id)]), library, options)


def _renamed(model: Path, settings: Settings, names: Container[str]) -> Settings:
    """The settings with the names that the nodes of forceCpuNodeNames go by in a model."""
    import onnx

    nodes = onnx.load(model, load_external_data=False).graph.node
    cpu_nodes = tuple(node.name for node in nodes if node.doc_string in names)
    return msgspec.structs.replace(settings, webgpu=msgspec.structs.replace(settings.webgpu, cpu_nodes=cpu_nodes))


def check_asked(facts: ort_library.LibraryFacts, provider: str) -> None:
    """MissingError for a library that cannot claim nodes of an ONNX model."""
    if facts.kind != "full":
        raise MissingError(
            f"a {facts.kind} build cannot be asked for claims",
            where=facts.path,
            why="it loads ORT format files only",
            remedy="use the full library of the same release (`ort-mobile library get`)",
        )
    name = provider_rules.PROVIDER_RULES[provider].provider
    if name not in facts.providers:
        raise MissingError(
            f"this library was built without {name}",
            where=facts.path,
            why=f"it has {', '.join(facts.providers)}",
            remedy="use a library with the provider",
        )


def tells_claims(facts: ort_library.LibraryFacts) -> bool:
    """Whether a library records what it assigns (the C API's version 24); older ones log it for NNAPI."""
    return facts.release == "" or tuple(map(int, facts.release.split(".")[:2])) >= (1, 24)


def _claims_of(
    answer: inspection.LibraryAnswer, model: str, facts: ort_library.LibraryFacts, settings: Settings
) -> LibraryClaims:
    provider = settings.rules.run.ort_name
    failed = answer.failed
    claims = LibraryClaims(
        id=model,
        release=facts.release,
        error=_failure(answer) if failed else None,
        crashed=bool(failed and answer.signal),
    )
    if log := claims_of(settings).library_log:  # what it refused stands in the log of a session that failed, too
        told = log.read(answer.log, settings)
        return msgspec.structs.replace(
            claims, rest=not told.nothing, kinds=told.kinds, reasons=told.reasons, reason=told.nothing
        )
    if failed:
        return claims
    recorded = answer.recorded
    groups = tuple(
        tuple(name for name, _, _ in subgraph.nodes) for subgraph in answer.subgraphs if subgraph.provider == provider
    )
    nodes = {name for group in groups for name in group} if recorded else _placed(answer.log, provider)
    counted = (int(match.group(1)) for line in answer.log if (match := COUNTED.search(line)))
    return msgspec.structs.replace(
        claims,
        partitions=groups if recorded else None,
        nodes=frozenset(nodes),
        count=len(groups) if recorded else next(counted, 0) if nodes else 0,  # it counts groups that it then drops
        inlined=any(not name for subgraph in answer.subgraphs for name, _, _ in subgraph.nodes),
        reasons=_reasons(answer.log),
        reason=next((match.group(1) for line in answer.log if (match := NONE_AT_ALL.search(line))), ""),
    )


def _failure(answer: inspection.LibraryAnswer) -> str:
    if not answer.signal:
        return answer.message or f"ONNX Runtime gives error code {answer.code} and no reason"
    how = "did not answer in time and was ended" if answer.signal == inspection.HANG else f"ended by {answer.signal}"
    return f"the library {how}" + (f": {answer.message}" if answer.message else "")


def _placed(log: Sequence[str], ort_name: str) -> set[str]:
    """Nodes placed on a provider: behind a line `Node(s) placed on [PROVIDER]` stands one ` OPERATOR (NAME)` each."""
    placed: set[str] = set()
    provider = ""
    supported = {match.group(2) for line in log if (match := SUPPORTED.search(line)) and match.group(1) == "1"}
    for line in log:
        if match := PLACED.search(line):
            provider = match.group(1)
            if provider == ort_name and "All nodes placed" in line:
                return supported
        elif provider == ort_name and (node := re.fullmatch(r"\s+\S+ \((.*)\)", line)):
            placed.add(node.group(1))
    return placed


def _reasons(log: Sequence[str]) -> dict[str, str]:
    """The library's reason for each refused node: what it said just before `Node supported: [0]`, first answer only."""
    reasons: dict[str, str] = {}
    lines: list[str] = []
    for line in log:
        match = SUPPORTED.search(line)
        if match is None:
            lines = [*lines, line] if not line.startswith(PREAMBLE) else []
            continue
        if match.group(1) == "0":
            reasons.setdefault(match.group(2), "; ".join(lines) or "not among its operators")
        lines = []
    return reasons


PREAMBLE = ("Using default partitioning", "Found devices", "Effective NNAPI feature level")
"""Lines that belong to no node."""


def reference_aware(
    model: Path,
    target: Path,
    library: ort_library.LibraryFacts,
    settings: Settings,
    level: OptimizationLevel,
    *,
    cpu: str = "",
    config: Mapping[str, str] = {},
    left_out: Sequence[str] = (),
) -> None:
    """Let the genuine provider's session save its EP-aware ORT format file of `model` at a level.

    `config` are further session config entries, as the stock converter's for its style and platform, `left_out` names
    optimizers that are off. The model is shown as it stands: its node names steer names in the file. Raises ModelError
    with the library's reason when it fails or crashes; `target` is then not there.
    """
    off = {OPTIMIZERS_OFF: ";".join((NCHWC, *left_out))}
    session = _session(settings, {**SAVE_ORT, **SAVE_ONLY, **off, **config}, level=level, cpu=cpu)
    with runner_files.scratch_folder(parent=target.parent) as folder:
        part = folder / "saved.ort"
        question = (str(model), model, part)
        answer = next(inspection.ask(library, [question], session))
        if answer.failed or not part.is_file():
            raise ModelError(
                f"the library of {library.release} cannot save this model",
                where=str(model),
                why=_failure(answer) or "it saved no file",
                remedy="keep the claims of our rules instead (convert without --reference), or change the model",
            )
        part.replace(target)


AT_ONCE, AT_ONCE_BYTES = 64, 512 << 20
"""So many models, or so much of them, lie in the scratch folder at once and are asked about in one process."""


def open_reference(text: str, provider: str, release: str, abi: str = "") -> ort_library.LibraryFacts:
    """The library that can be asked about a provider; `release` is the one that the user named, "" for none.

    `abi` is by Android's name, "" for the one that needs no emulator here.

    Raises ConfigError for what no Android library reports, MissingError where it is not available or cannot run here.
    """
    run = provider_rules.PROVIDER_RULES[provider].run
    if provider_rules.PROVIDER_RULES[provider].by_chip:
        raise ConfigError(
            f"an Android library is not asked about {provider}",
            why="its claims are those of the chip's own compiler already",
            remedy="leave --reference out",
        )
    if run.never_on("android"):
        owner = run.owner
        raise ConfigError(
            f"no Android library can be asked about {provider}",
            why=f"{run.title} is in {owner}'s libraries only, which run on {owner}'s systems only",
            remedy=f"leave --reference out, or ask about {' or '.join(provider_rules.in_android_libraries())}",
        )
    abi_name = abi or host_device.default_abi()
    if run.gpu and abi_name != host_device.default_abi():
        raise ConfigError(
            f"a library for {abi_name} is not asked about {provider}",
            why="it runs in an emulator here, which has no GPU",
            remedy=f"leave --abi out: what {run.title} takes depends on no ABI",
        )
    host_device.check_host(abi_name)
    if run.gpu:
        vulkan.find_driver()
    facts = ort_library.resolve(text, abi_name).android()
    check_asked(facts, provider)
    if not provider_rules.PROVIDER_RULES[provider].logs_claims and not tells_claims(facts):
        raise ConfigError(
            f"a library of {facts.release} does not report what {run.title} claims",
            why="that came with release 1.24; before, only NNAPI logs its claims",
            remedy="ask about nnapi, or a library of 1.24 or later",
        )
    if release and facts.release and not (facts.release + ".").startswith(release.rstrip(".") + "."):
        raise ConfigError(
            f"the library is of release {facts.release}, not {release}",
            where=text,
            why="claims of one release are checked against the rules of the same",
            remedy="leave --ort-release out: it is the library's then",
        )
    return facts


def rules_known(facts: ort_library.LibraryFacts) -> bool:
    """Whether there are rules for a library's release; where it reports none, the user names the release."""
    return not facts.release or ort_releases.has_rules(ort_releases.line_of(facts.release))


def rules_release(facts: ort_library.LibraryFacts, named: str) -> str:
    """The release whose rules a library is compared with: its own or the nearest with rules; "": the installed one.

    `named` is the user's, for files that do not report their release.
    """
    release = facts.release or named
    if not release:
        return ""
    return str(ort_releases.rules_of(ort_releases.line_of(release)))


def compare_answers(
    paths: Sequence[str | Path],
    answers: Sequence[ModelAnswer],
    facts: ort_library.LibraryFacts,
    settings: Settings,
    optimize: Optimize,
    *,
    sizes: Mapping[str, int] = NO_SIZES,
    processes: int = 1,
) -> PartitionDocument:
    """The answers for the models under `paths`, in their order, compared with the library's.

    `sizes` are for dynamic dimensions, as in the answers.

    Models are read in worker processes and shown to the library in another one, so a crash costs one model. A model
    that has no answer of ours is not shown: what is wrong with it is known already.
    """
    has_rules = rules_known(facts)
    pairs = list(zip(model_sources.find_models(paths, SUFFIXES), answers, strict=True))
    with runner_files.scratch_folder() as name:
        files = {
            workers.Task(label=source.name, call=partial(show, source, settings, optimize, target, dict(sizes))): Path(
                target
            )
            for number, (source, answer) in enumerate(pairs)
            if not answer.error
            for target in [f"{name}/{number}.onnx"]
        }
        limit = workers.time_limit(model_sources.source_bytes(source) for source, _ in pairs)
        outcomes = workers.run_tasks(files, processes=processes, timeout_seconds=limit)
        shown = ((files[outcome.task], outcome) for outcome in outcomes)
        claims = {path: claimed for chunk in _chunks(shown) for path, claimed in _claims(chunk, facts, settings)}
    models, differences = [], []
    for answer in answers:
        if answer.error:
            differences.append(ClaimDiff(path=answer.path, asked=False))
            models.append(answer)
        else:
            difference = diff_claims(answer, claims[answer.path], settings, has_rules=has_rules)
            differences.append(difference)
            # Without rules for its release the library's claims are the answer that holds.
            models.append(answer if has_rules else as_answer(answer, difference, facts.release))
    reference = LibraryReference(
        library=facts.path,
        release=facts.release,
        sha256=facts.sha256,
        abi=facts.abi,
        rules=has_rules,
        different=sum(difference.same is False for difference in differences),
        models=tuple(differences),
    )
    return PartitionDocument(models=tuple(models), reference=reference)


Showing = tuple[Path, workers.TaskOutcome[str]]


def _chunks(showings: Iterable[Showing]) -> Iterator[list[Showing]]:
    """Models for one process of the library each: not too many, and not too large together."""
    chunk: list[Showing] = []
    size = 0
    for file, outcome in showings:
        chunk.append((file, outcome))
        size += written_bytes(file)
        if len(chunk) == AT_ONCE or size > AT_ONCE_BYTES:
            yield chunk
            chunk, size = [], 0
    yield chunk


def _claims(
    showings: Iterable[Showing], facts: ort_library.LibraryFacts, settings: Settings
) -> Iterator[tuple[str, LibraryClaims]]:
    """The library's claims by model; files are removed once they were asked about."""
    good = {}
    for file, outcome in showings:
        why = outcome.error or outcome.value
        if why:
            yield outcome.task.label, LibraryClaims(id="", release=facts.release, error=f"it was not asked: {why}")
        else:
            good[file] = outcome.task.label
    answers = claims_of_named(list(good), facts, settings, reasons=True)
    for (file, name), claims in zip(good.items(), answers, strict=True):
        error = claims.error and claims.error.replace(str(file), name)
        yield name, msgspec.structs.replace(claims, error=error)
    for file in good:
        remove_model(file)
