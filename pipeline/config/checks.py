"""What a config says that its types allow and that cannot be meant: found before any work, with its line."""

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from device_runner.library import name_of
from device_runner.providers import OTHER_NAMES, PROVIDERS
from pipeline.config.tables import MetricName, PartConfig, is_function
from pipeline.config.values import Config, ModelConfig, Platform, Target
from pipeline.core.abis import PLATFORM_ABIS
from pipeline.core.providers import aware_names

OWN_KEYS = {
    "min_api_level": ((Platform.ANDROID,), "min_os_version"),
    "min_os_version": ((Platform.IOS, Platform.MACOS), "min_api_level"),
}
"""Keys of targets that only some platforms have, and the key of the others."""

KeyPath = tuple[str | int, ...]
"""Where a value stands: keys, and numbers for the tables of a list, as in ("targets", 1, "abis")."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A value that cannot be meant: where it stands, what, why and the remedy."""

    key: KeyPath
    what: str
    why: str
    remedy: str


def problems(config: Config) -> Iterator[Problem]:
    """Every such value of a config as it was written, before defaults are filled in."""
    for number, target in enumerate(config.targets):
        yield from _of_target(("targets", number), target)
    yield from _same_names(config.targets)
    for number, run in enumerate(config.runs):
        yield from provider_problems(("runs", number, "provider"), run.providers)
    yield from _of_aware(config.variants.aware)
    yield from _of_metric(config.accuracy.metric)
    for number, model in enumerate(config.models):
        yield from _of_parts(("models", number), model)


def _of_aware(aware: Iterable[str]) -> Iterator[Problem]:
    """Providers that no variant can be aware of."""
    possible = aware_names()
    for name in (name for joined in aware for name in joined.split("+") if name not in possible):
        what, why = f"no variant can be aware of {name!r}", f"possible: {', '.join(possible)}, or joined by +"
        yield Problem(("variants", "aware"), what, why, _suggest(name, possible))


def _of_metric(name: str | None) -> Iterator[Problem]:
    """A metric without a name of its own must be a function."""
    known = [metric.value for metric in MetricName]
    if name and name not in known and not is_function(name):
        why = f"metrics: {', '.join(known)}, or a function as module:function"
        yield Problem(("accuracy", "metric"), f"there is no metric {name!r}", why, _suggest(name, known))


def _of_parts(place: KeyPath, model: ModelConfig) -> Iterator[Problem]:
    """Guesses of nothing, labels without samples, and data preprocessed in two ways: the app can repeat only one."""
    for name in model.guessed:
        if name not in model.dimensions:
            what, why = f"{name!r} is no guess", f"`dimensions` has {', '.join(model.dimensions) or 'nothing'}"
            yield Problem((*place, "guessed"), what, why, "name what is in `dimensions`, or remove it from `guessed`")
    evaluation = model.evaluation or PartConfig()
    if not (evaluation.test_data or model.test_data):
        found = (((*place, "labels"), model.labels), ((*place, "evaluation", "labels"), evaluation.labels))
        for at, labels in found:
            if labels and not (labels.lower().endswith(".npz") and labels == model.labels):
                what, why = "`labels` without samples", "there is no test data that they could be of"
                yield Problem(at, what, why, "give `test_data`, or one .npz with `inputs` and `labels`")
    for key, part in (("calibration", model.calibration), ("evaluation", model.evaluation)):
        wanted = model.preprocess or (model.evaluation.preprocess if model.evaluation else None)
        if part and part.preprocess and wanted and part.preprocess != wanted:
            what, why = f"`{key}` has another preprocessing", "the manifest has one for the app to repeat"
            yield Problem((*place, key, "preprocess"), what, why, "write `preprocess` once, under [[models]]")


def missing_files(config: Config) -> Iterator[Problem]:
    """Files that the config names and that are not there; paths are those of `resolved`.

    A library's name, as in android:1.29.0, is no file: it is looked for where libraries are kept.
    """
    for number, model in enumerate(config.models):
        for key in ("path", "test_data", "labels"):
            yield from _missing(("models", number, key), getattr(model, key))
        for part in ("calibration", "evaluation"):
            for key in ("test_data", "labels"):
                yield from _missing(("models", number, part, key), getattr(getattr(model, part), key, None))
    yield from _missing(("accuracy", "vocabulary"), config.accuracy.vocabulary)
    for number, target in enumerate(config.targets):
        if target.library and not name_of(target.library):
            yield from _missing(("targets", number, "library"), target.library)


def _missing(key: KeyPath, path: str | None) -> Iterator[Problem]:
    if path is not None and not Path(path).exists() and not is_function(path):
        what = f"no such file: {key[-1]} = {path}"
        remedy = "check the path: it is relative to the config file"
        if key[-1] == "library":
            remedy += "; a release is named as android:1.29.0"
        yield Problem(key, what, "the file does not exist", remedy)


def _of_target(place: KeyPath, target: Target) -> Iterator[Problem]:
    known = PLATFORM_ABIS[target.platform]
    for abi in target.abis:
        if abi not in known:
            what = f"{abi!r} is not an ABI of {target.platform}"
            yield Problem((*place, "abis"), what, f"its ABIs are: {', '.join(known)}", _suggest(abi, known))
    for key, (platforms, other) in OWN_KEYS.items():
        if getattr(target, key) is not None and target.platform not in platforms:
            remedy = f"remove it; {target.platform} has {other}" if _has(target.platform, other) else "remove it"
            names = " and ".join(platforms)
            yield Problem((*place, key), f"`{key}` has no meaning on {target.platform}", f"it is for {names}", remedy)


def _has(platform: Platform, key: str) -> bool:
    return platform in OWN_KEYS[key][0]


def _same_names(targets: Iterable[Target]) -> Iterator[Problem]:
    seen: Counter[str] = Counter()
    for number, target in enumerate(targets):
        seen[target.name] += 1
        if seen[target.name] == 2:
            what = f"two targets are called {target.name!r}"
            yield Problem(("targets", number, "name"), what, "tables and the bundle name targets", "rename one of them")


def provider_problems(key: KeyPath, providers: Iterable[str]) -> Iterator[Problem]:
    """A provider that is nearly a known one is a typo: anything else may be a plug-in of the library."""
    known = (*PROVIDERS, *OTHER_NAMES)
    for provider in providers:
        if provider not in known and (close := _close(provider, known)):
            yield Problem(
                key, f"unknown execution provider {provider!r}", f"usual ones: {', '.join(PROVIDERS)}", _meant(close)
            )


def _suggest(text: str, known: Iterable[str]) -> str:
    close = _close(text, known)
    return _meant(close) if close else "write one of these"


def _meant(close: str) -> str:
    return f"did you mean `{close}`?"


def _close(text: str, known: Iterable[str]) -> str:
    """The known word that a text most likely means, or ""; `arm64` means arm64-v8a."""
    longer = [word for word in known if word.startswith(f"{text.lower()}-")]
    found = longer or difflib.get_close_matches(text.lower(), list(known), n=1)
    return found[0] if found else ""
