"""Reading the TOML that a user writes, and what it means where it is silent: targets, runs, variants, paths.

Unknown keys are refused with a suggestion, and what cannot be meant.
"""

import difflib
import math
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TypeVar, get_args, get_type_hints

import msgspec

from device_runner import library as ort_library
from device_runner import providers as runner_providers
from device_runner import untrusted_files
from pipeline.config import app_data, model_ends
from pipeline.config.tables import (
    COMPARING,
    WITHOUT_DROP,
    AccuracyConfig,
    BuildConfig,
    MetricName,
    OneOrMore,
    PartConfig,
    RunConfig,
    Table,
    is_function,
)
from pipeline.config.values import Accelerator, Config, ModelConfig, Platform, Target, VariantsConfig
from pipeline.core import abis as core_abis
from pipeline.core import providers as provider_rules
from pipeline.core import releases as ort_releases
from pipeline.core import toml as core_toml
from pipeline.core import variant as core_variant
from pipeline.core.errors import ConfigError
from pipeline.core.variant import Level, Style, Variant

APPLE = frozenset({Platform.IOS, Platform.MACOS})
DEFAULT_TARGET = Target(name="android-arm64", platform=Platform.ANDROID, abis=("arm64-v8a",), min_api_level=27)

ADVISED_RUNS = (
    RunConfig(provider=runner_providers.NNAPI, variants=("basic-*", "*-nnapi*")),
    RunConfig(provider=provider_rules.WEBGPU, variants=("basic-fixed",)),
    RunConfig(provider=runner_providers.CPU, variants=("none-*", "basic-*", "extended-*", "layout-*", "all-*")),
)
"""ONNX Runtime's documentation: the NNAPI provider with basic, the CPU with extended or all; `none` as baseline.

WebGPU on basic runs where a device names its GPU (`plan_runs`): a GPU in software tells no times.
"""

REPLAY_KEY = "session.enable_saved_runtime_optimizations"
"""Session config entry from 1.30 on: replay the fusions that runtime style recorded."""


def with_defaults(config: Config) -> Config:
    """Fill in the target and the runs that the documentation advises where the config names none.

    Targets for iOS and macOS get the newest release of which a Swift package is known: many releases have none.
    `compare` becomes aware variants and runs. Raises ConfigError when there are both `compare` and `runs`, and for a
    written [[runs]] that matches no variant of the config: nobody means that.
    """
    if config.compare and config.runs:
        raise ConfigError(
            "`compare` and [[runs]] exclude each other", remedy="leave out `compare`, or write all runs as [[runs]]"
        )
    # What `auto` and recipes stand for is not known yet: with precisions no run is refused.
    possible = [*wanted_variants(config.variants), *map(core_variant.context_variant, config.variants.contexts)]
    asked = {*config.variants.precisions, *(name for model in config.models for name in model.precisions)}
    for run in config.runs if asked == {core_variant.OWN_PRECISION} else ():
        if not any(variant.matches(pattern) for variant in possible for pattern in run.variants):
            raise ConfigError(
                f"no variant is called {' or '.join(map(repr, run.variants))}",
                where=f"[[runs]] provider = {run.provider!r}",
                remedy=f"variants of this config: {', '.join(variant.name for variant in possible)}",
            )
    rows = [provider_rules.PROVIDER_RULES[name] for name in config.compare]
    aware, styles = [row.name for row in rows if row.aware], [Style.ONNX for row in rows if row.run.gpu]
    variants = msgspec.structs.replace(
        config.variants,
        aware=tuple(dict.fromkeys((*config.variants.aware, *aware))),
        styles=tuple(dict.fromkeys((*config.variants.styles, *styles))),
    )
    newest = str(max(ort_releases.SWIFT_PACKAGES))
    targets = (
        msgspec.structs.replace(target, ort_release=newest)
        if target.platform in APPLE and not target.ort_release and takes_package(target, config)
        else target
        for target in config.targets or (DEFAULT_TARGET,)
    )
    return msgspec.structs.replace(
        config,
        targets=tuple(targets),
        variants=variants if config.compare else config.variants,
        compare=(),
        runs=config.runs or comparing_runs(config.compare) or ADVISED_RUNS,
    )


def takes_package(target: Target, config: Config) -> bool:
    """Whether apps take the published package of ONNX Runtime: they have no library and no build of their own."""
    released = config.release.apple if target.platform in APPLE else config.release.android
    library = target.library or (released and released.runtime)
    return not library and config.build == BuildConfig(max_library_bytes=config.build.max_library_bytes)


def comparing_runs(accelerators: tuple[Accelerator, ...]) -> tuple[RunConfig, ...]:
    """Each accelerator on basic and on what is aware of it, on runtime style with and without replay; and the CPU.

    A GPU is given level basic and what a full library optimizes itself, in both layouts: it has no aware variants, and
    what runtime style records is for the CPU.
    """
    runs = []
    for accelerator in accelerators:
        rules = provider_rules.PROVIDER_RULES[accelerator]
        provider, options = rules.provider, dict[str, OneOrMore[str]](rules.options)
        if rules.run.gpu:
            options["preferredLayout"] = tuple(rules.run.values["preferredLayout"].split("|"))
            files = ("basic-fixed", "none-onnx", "extended-onnx")
            runs.append(RunConfig(provider=provider, options=options, variants=files))
            continue
        plain = RunConfig(provider=provider, options=options, variants=("basic-fixed", f"*-fixed-{accelerator}*"))
        runs.append(plain)
        runs += [
            RunConfig(provider=provider, options=options, variants=("*-runtime",), session_config={REPLAY_KEY: replay})
            for replay in ("0", "1")
        ]
    return (*runs, RunConfig(provider=runner_providers.CPU, variants=("*-fixed",))) if runs else ()


def resolved(config: Config, folder: Path) -> Config:
    """The config with its paths made relative to the current folder instead of the config's own."""

    def place(path: str | None) -> str | None:
        return None if path is None else str(folder / path)

    def part(data: PartConfig | None) -> PartConfig | None:
        return data and msgspec.structs.replace(data, test_data=place(data.test_data), labels=place(data.labels))

    def library(text: str | None) -> str | None:
        return text if text and ort_library.name_of(text) else place(text)

    def table(m: ModelConfig) -> ModelConfig:
        return msgspec.structs.replace(
            m,
            path=str(folder / m.path) if m.path else "",
            source=place(m.source),
            test_data=place(m.test_data),
            labels=place(m.labels),
            takes=m.takes and msgspec.structs.replace(m.takes, text=place(m.takes.text)),
            state={**m.state, **app_data.state_of(m.takes)},
            gives=m.gives and m.gives.placed(folder),
            oracle=place(m.oracle),
            calibration=part(m.calibration),
            evaluation=part(m.evaluation),
        )

    models, features = tuple(map(table, config.models)), tuple(map(table, config.features))
    targets = tuple(msgspec.structs.replace(t, library=library(t.library)) for t in config.targets)
    build = msgspec.structs.replace(config.build, onnx_source=place(config.build.onnx_source))
    plugins = {name: tuple(str(folder / file) for file in files) for name, files in config.measure.plugins.items()}
    measure = msgspec.structs.replace(config.measure, perf_test=place(config.measure.perf_test), plugins=plugins)
    metric = config.accuracy.metric
    metric = place(metric) if metric and is_function(metric) else metric
    accuracy = msgspec.structs.replace(config.accuracy, metric=metric, vocabulary=place(config.accuracy.vocabulary))
    android, apple = config.release.android, config.release.apple
    release = msgspec.structs.replace(
        config.release,
        key=place(config.release.key),
        android=android
        and msgspec.structs.replace(
            android,
            repository=place(android.repository),
            runtime=library(android.runtime),
            ai_pack=place(android.ai_pack),
        ),
        apple=apple and msgspec.structs.replace(apple, folder=place(apple.folder), runtime=place(apple.runtime)),
    )
    custom_ops = tuple(str(folder / file) for file in config.custom_ops)
    return msgspec.structs.replace(
        config,
        models=models,
        features=features,
        targets=targets,
        build=build,
        measure=measure,
        accuracy=accuracy,
        release=release,
        custom_ops=custom_ops,
    )


def wanted_variants(config: VariantsConfig, precision: str = "") -> list[Variant]:
    """Every variant of a precision that the config asks for, in the order of its lists; aware ones after the others."""
    plain = [
        Variant(level=level, style=style, precision=precision) for style in config.styles for level in config.levels
    ]
    aware = [
        Variant(level=level, providers=tuple(providers.split("+")), precision=precision)
        for providers in config.aware
        for level in config.levels
        if level is not Level.NONE
    ]
    return plain + aware


T = TypeVar("T")

KeyPath = tuple[str | int, ...]
"""Where a value stands: keys, and numbers for the tables of a list, as in ("targets", 1, "abis")."""

KeyProblem = tuple[KeyPath, ConfigError]
"""A value that cannot be meant: where it stands, and what is said of it."""

FILL_IN = "# FILL IN"
"""Ends a commented line that `ort-mobile init` could not fill in."""

MODEL_SUFFIXES = (".onnx", ".ort", ".zip")


def read_config(path: Path, *, existing: bool = False) -> Config:
    """Read and check a config file; raises ConfigError with file, line where known, key and remedy.

    With `existing` every file that it names must be there: a build makes what a target names as its library.
    """
    if path.suffix.lower() in MODEL_SUFFIXES:
        raise ConfigError(
            "this is a model, not a config",
            where=str(path),
            remedy=f"give it with --model, as in ort-mobile run --model {shlex.quote(str(path))}",
        )
    try:
        text = untrusted_files.read_regular(path).decode("utf-8-sig")  # editors on Windows put a mark before it
    except FileNotFoundError as error:
        raise ConfigError(
            "no such config file", where=str(path), remedy="check the path, or make one with `ort-mobile init MODEL`"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "the config file cannot be read",
            where=str(path),
            why=str(error),
            remedy="a config is a TOML file in UTF-8; `ort-mobile init MODEL` writes one",
        ) from error
    document = core_toml.read_toml(text, str(path), "fix the line; see docs/reference/config.md")
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") and line.rstrip().endswith(FILL_IN):
            raise ConfigError(
                "this line is to be filled in",
                where=f"{path}:{number}",
                why=line.strip(),
                remedy="put in the sizes and texts of your app, and remove the first #; or delete the line",
            )
    # ConfigError for an `ort_release` that is none; other mistakes are found later.
    targets = document.get("targets")
    for number, target in enumerate(targets if isinstance(targets, list) else ()):
        if isinstance(target, dict) and "ort_release" in target:
            key = ("targets", number, "ort_release")
            ort_releases.read_release(target["ort_release"], key[-1], _place(path, text, key))
    try:
        config = msgspec.convert(document, Config)
    except msgspec.ValidationError as error:
        raise _explain(path, text, str(error)) from error
    resolved_config = resolved(config, path.parent)
    for key, problem in (*problems(config), *(missing_files(resolved_config) if existing else ())):
        problem.at(_place(path, text, key))
        raise problem
    return with_defaults(resolved_config)


ORT_WORDS = {
    "intra_op_threads": "threads",
    "intra_op_num_threads": "threads",
    "num_threads": "threads",
    "inter_op_num_threads": "inter_op_threads",
    "ep": "provider",
    "execution_provider": "provider",
    "providers": "provider",
    "provider_options": "options",
    "nnapi_flags": "flags",
    "arena": "memory_arena",
    "cpu_arena": "memory_arena",
    "enable_cpu_mem_arena": "memory_arena",
    "enable_mem_pattern": "memory_pattern",
    "allow_spinning": "spinning",
    "intra_op_thread_affinities": "affinities",
    "session_options": "session_config",
    "config_entries": "session_config",
}
"""What ONNX Runtime and `ort-mobile perf` call keys of [[runs]], whose letters are nearer to those of others."""


def _explain(path: Path, text: str, message: str) -> ConfigError:
    """Turn a message of msgspec into ours: key, line, and what was most likely meant."""
    reason, _, key_path = message.partition(" - at `")
    parts: KeyPath = tuple(key or int(number) for key, number in re.findall(r"\.(\w+)|\[(\d+)\]", key_path))
    table, values = _hint_at([part for part in parts if isinstance(part, str)])
    if unknown := re.search(r"unknown field `(.*)`", reason):
        key, keys = unknown.group(1), list(table.__struct_fields__)
        meant = ORT_WORDS.get(key, "") if table is RunConfig else ""
        close = [meant] if meant else difflib.get_close_matches(key, keys, n=1)
        return ConfigError(
            f"unknown key `{key}`",
            where=_place(path, text, (*parts, key)),
            why=f"this table takes: {', '.join(keys)}",
            remedy=f"did you mean `{close[0]}`?" if close else "remove it, or see docs/reference/config.md",
        )
    allowed = ", ".join(str(value) for value in values)
    return ConfigError(
        f"the value of `{key_path.rstrip('`').removeprefix('$.') or 'the document'}` is not allowed",
        where=_place(path, text, parts),
        why=reason,
        remedy=f"it takes one of: {allowed}" if allowed else "see docs/reference/config.md for what it takes",
    )


def _hint_at(keys: list[str]) -> tuple[type[Table], tuple[StrEnum, ...]]:
    """The table that a path of keys leads to, and the values that its last key takes where these are few."""
    table: type[Table] = Config
    values: tuple[StrEnum, ...] = ()
    for key in keys:
        hint = get_type_hints(table).get(key)
        table = _type_in(hint, Table) or table
        values = tuple(_type_in(hint, StrEnum) or ())
    return table, values


def _type_in(hint: object, base: type[T]) -> type[T] | None:
    """The first type below `base` inside a type hint such as `tuple[Level, ...]`."""
    if isinstance(hint, type) and issubclass(hint, base):
        return hint
    return next((kind for part in get_args(hint) if (kind := _type_in(part, base))), None)


def _place(path: Path, text: str, key: KeyPath) -> str:
    """File and line of a key (tomllib gives lines for syntax errors only): in its table, else where it stands once."""
    names = [part for part in key if isinstance(part, str)]
    if not names:
        return str(path)
    lines = list(enumerate(text.splitlines(), 1))
    # The lines of its table: of `[measure]`, or of the second `[[targets]]`; none at the top.
    table, number = key[0], key[1] if len(key) > 1 and isinstance(key[1], int) else 0
    seen, inside, kept = -1, False, []
    for line in lines if len(key) > 1 else ():
        if heading := re.match(r"\s*\[+\s*([\w-]+)\s*\]", line[1]):
            seen += heading.group(1) == table
            inside = heading.group(1) == table and seen == number
        elif inside:
            kept.append(line)
    places = _lines_with(names[-1], kept) or _lines_with(names[-1], lines)
    return f"{path}:{places[0]}" if len(places) == 1 else str(path)


def _lines_with(key: str, lines: Iterable[tuple[int, str]]) -> list[int]:
    name = re.escape(key)
    pattern = re.compile(rf"^\s*(\[+\s*)?[\"']?{name}[\"']?\s*(=|\])|[{{,]\s*{name}\s*=")
    return [number for number, line in lines if pattern.search(line)]


OWN_KEYS = {
    "min_api_level": ((Platform.ANDROID,), "min_os_version"),
    "min_os_version": ((Platform.IOS, Platform.MACOS), "min_api_level"),
}
"""Keys of targets that only some platforms have, and the key of the others."""


def _problem(key: KeyPath, what: str, why: str, remedy: str) -> KeyProblem:
    return key, ConfigError(what, why=why, remedy=remedy)


def problems(config: Config) -> Iterator[KeyProblem]:
    """Every value of a config, as it was written, that cannot be meant; before defaults are filled in."""
    for number, target in enumerate(config.targets):
        yield from _of_target(("targets", number), target)
    names = Counter[str]()
    for number, target in enumerate(config.targets):
        names[target.name] += 1
        if names[target.name] == 2:
            what = f"two targets are called {target.name!r}"
            yield _problem(
                ("targets", number, "name"), what, "tables and the bundle name targets", "rename one of them"
            )
    for number, run in enumerate(config.runs):
        yield from provider_problems(("runs", number, "provider"), run.providers)
    yield from provider_problems(("measure", "plugins"), config.measure.plugins)
    possible = provider_rules.aware_names()
    for name in (name for joined in config.variants.aware for name in joined.split("+") if name not in possible):
        what, why = f"no variant can be aware of {name!r}", f"possible: {', '.join(possible)}, or joined by +"
        yield _problem(("variants", "aware"), what, why, _suggest(name, possible))
    for name in config.variants.contexts:
        if (
            name not in runner_providers.CHIPS
        ):  # a compiler takes their names without a word, and then nothing of a model
            what, why = f"no Snapdragon chip is called {name!r}", f"known: {', '.join(runner_providers.CHIPS)}"
            close = difflib.get_close_matches(name.upper(), runner_providers.CHIPS, n=1)
            yield _problem(("variants", "contexts"), what, why, _meant(close[0]) if close else "write one of these")
    if config.variants.share_weights and not (
        config.variants.contexts and any(model.lists for model in config.shipped)
    ):
        what, why = "there are no weights to share", "sizes of one model share them, in contexts"
        remedy = "give a model several sizes, as in dimensions = { width = [224, 320] }, and `contexts` chips"
        yield _problem(("variants", "share_weights"), what, why, remedy)
    metric, metrics = config.accuracy.metric, [metric.value for metric in MetricName]
    if metric and metric not in metrics and not is_function(metric):
        why = f"metrics: {', '.join(metrics)}, or a function as module:function"
        yield _problem(("accuracy", "metric"), f"there is no metric {metric!r}", why, _suggest(metric, metrics))
    yield from _of_outputs(config.accuracy)
    for key, tables in (("models", config.models), ("features", config.features)):
        for number, model in enumerate(tables):
            yield from _of_data((key, number), model)
            yield from _of_sizes((key, number), model)


def _of_outputs(accuracy: AccuracyConfig) -> Iterator[KeyProblem]:
    """Metrics of single outputs that compare with nothing, or have no drop; and outputs that are not judged."""
    for name, budget in accuracy.outputs.items():
        key_path = ("accuracy", "outputs", name)
        if budget.metric is not None and budget.metric not in COMPARING:
            what, why = f"{budget.metric!r} is no metric of a single output", f"possible: {', '.join(COMPARING)}"
            yield _problem((*key_path, "metric"), what, why, _suggest(budget.metric, COMPARING))
        elif budget.metric in WITHOUT_DROP and budget.max_drop is not None:
            what, why = f"{budget.metric} has no drop", "the original model's own is not a number"
            yield _problem((*key_path, "max_drop"), what, why, "leave it out, or take r2, agreement, equal or cosine")
        if accuracy.output not in (None, name):
            what, why = f"the output {name!r} is not judged", f"`output` says that {accuracy.output!r} alone is"
            yield _problem(key_path, what, why, "remove `output`, or this table")


def _of_target(key_path: KeyPath, target: Target) -> Iterator[KeyProblem]:
    abis = core_abis.PLATFORM_ABIS[target.platform]
    for abi in target.abis:
        if abi not in abis:
            what = f"{abi!r} is not an ABI of {target.platform}"
            yield _problem((*key_path, "abis"), what, f"its ABIs are: {', '.join(abis)}", _suggest(abi, abis))
    if target.qnn_runtime and target.platform is not Platform.ANDROID:
        what = f"`qnn_runtime` has no meaning on {target.platform}"
        yield _problem((*key_path, "qnn_runtime"), what, "only phones with Android have a Snapdragon", "remove it")
    for key, (platforms, other) in OWN_KEYS.items():
        if getattr(target, key) is not None and target.platform not in platforms:
            has_other = target.platform in OWN_KEYS[other][0]
            remedy = f"remove it; {target.platform} has {other}" if has_other else "remove it"
            names = " and ".join(platforms)
            yield _problem(
                (*key_path, key), f"`{key}` has no meaning on {target.platform}", f"it is for {names}", remedy
            )


def _of_data(key_path: KeyPath, model: ModelConfig) -> Iterator[KeyProblem]:
    """Guesses of nothing, states of one input, labels without samples, and data preprocessed in two ways: the app can
    repeat only one.
    """
    for name in model.guessed:
        if name not in model.dimensions and name not in model.inputs:
            sizes, values = (", ".join(names) or "nothing" for names in (list(model.dimensions), list(model.inputs)))
            why = f"`dimensions` has {sizes}, `inputs` {values}"
            remedy = "name what is in `dimensions` or `inputs`, or remove it from `guessed`"
            yield _problem((*key_path, "guessed"), f"{name!r} is no guess", why, remedy)
    if len(set(model.state.values())) < len(model.state):
        what, why = "`state` has an input twice", "two outputs cannot become one input"
        yield _problem((*key_path, "state"), what, why, 'write each input once: state = { hn = "h", cn = "c" }')
    by_hand = model.preprocess or any(part and part.preprocess for part in (model.calibration, model.evaluation))
    yield from (((*key_path, *key), error) for key, error in model_ends.problems(model, by_hand=bool(by_hand)))
    evaluation = model.evaluation or PartConfig()
    if not (evaluation.test_data or model.test_data):
        places = (((*key_path, "labels"), model.labels), ((*key_path, "evaluation", "labels"), evaluation.labels))
        for at, labels in places:
            if labels and not (labels.lower().endswith(".npz") and labels == model.labels):
                what, why = "`labels` without samples", "there is no test data that they could be of"
                yield _problem(at, what, why, "give `test_data`, or one .npz with `inputs` and `labels`")
    for key, part in (("calibration", model.calibration), ("evaluation", model.evaluation)):
        preprocess = model.preprocess or (model.evaluation.preprocess if model.evaluation else None)
        if part and part.preprocess and preprocess and part.preprocess != preprocess:
            what, why = f"`{key}` has another preprocessing", "the manifest has one for the app to repeat"
            yield _problem((*key_path, key, "preprocess"), what, why, "write `preprocess` once, under [[models]]")


def _of_sizes(key_path: KeyPath, model: ModelConfig) -> Iterator[KeyProblem]:
    """Lists of sizes that cannot be read in step, sizes that are there twice, and padding for none."""
    if len({len(sizes) for sizes in model.lists.values()}) > 1:
        why = ", ".join(f"{name} has {len(sizes)}" for name, sizes in model.lists.items())
        yield _problem(
            (*key_path, "dimensions"),
            "lists of sizes are not as long as each other",
            why,
            "give each dimension as many: the first of each make one model, then the second",
        )
    elif len(set(steps := list(zip(*model.lists.values(), strict=True)))) < len(steps):
        twice = next(sizes for sizes in steps if steps.count(sizes) > 1)
        yield _problem(
            (*key_path, "dimensions"),
            f"the size {'x'.join(map(str, twice))} is there twice",
            "each makes a model of its own",
            "write each size once",
        )
    for name, number in model.padding.items():
        if not model.lists or not abs(number) < math.inf:
            why = f"{number} is no finite number" if model.lists else "no dimension has a list of sizes"
            yield _problem(
                (*key_path, "padding", name),
                "nothing can be filled up",
                why,
                "give a number, and sizes as in dimensions = { width = [224, 320] }",
            )


def missing_files(config: Config) -> Iterator[KeyProblem]:
    """Files that the config names and that are not there; paths are those of `resolved`.

    A library's name, as in android:1.29.0, is no file: it is looked for where libraries are kept.
    """
    tables = [("models", number, model) for number, model in enumerate(config.models)]
    tables += [("features", number, feature) for number, feature in enumerate(config.features)]
    for heading, number, model in tables:
        own = "source" if model.source else "path"  # the file of a feature is made
        for key in ("test_data", "labels") if heading == "features" else (own, "test_data", "labels"):
            yield from _missing((heading, number, key), getattr(model, key))
        for part in ("calibration", "evaluation"):
            for key in ("test_data", "labels"):
                yield from _missing((heading, number, part, key), getattr(getattr(model, part), key, None))
        yield from _missing((heading, number, "takes", "text"), model.takes.text if model.takes else None)
        if model.gives and model.gives.file:
            yield from _missing((heading, number, "gives", model.gives.answer.value), model.gives.file)
    yield from _missing(("accuracy", "vocabulary"), config.accuracy.vocabulary)
    for number, target in enumerate(config.targets):
        if target.library and not ort_library.name_of(target.library):
            yield from _missing(("targets", number, "library"), target.library)


def _missing(key: KeyPath, path: str | None) -> Iterator[KeyProblem]:
    if path is not None and not Path(path).exists() and not is_function(path):
        what = f"no such file: {key[-1]} = {path}"
        remedy = "check the path: it is relative to the config file"
        if key[-1] == "library":
            remedy += "; a release is named as android:1.29.0"
        yield _problem(key, what, "the file does not exist", remedy)


def provider_problems(key: KeyPath, providers: Iterable[str]) -> Iterator[KeyProblem]:
    """A provider that is nearly a known one is a typo: anything else may be a plug-in of the library."""
    provider_names = (*runner_providers.PROVIDERS, *runner_providers.OTHER_NAMES)
    for provider in providers:
        if provider not in provider_names and (close := _close(provider, provider_names)):
            yield _problem(
                key,
                f"unknown execution provider {provider!r}",
                f"usual ones: {', '.join(runner_providers.PROVIDERS)}",
                _meant(close),
            )


def _suggest(text: str, names: Iterable[str]) -> str:
    close = _close(text, names)
    return _meant(close) if close else "write one of these"


def _meant(close: str) -> str:
    return f"did you mean `{close}`?"


def _close(text: str, names: Iterable[str]) -> str:
    """The known word that a text most likely means, or ""; `arm64` means arm64-v8a."""
    longer = [word for word in names if word.startswith(f"{text.lower()}-")]
    words = longer or difflib.get_close_matches(text.lower(), list(names), n=1)
    return words[0] if words else ""
