"""What cannot be meant of `takes`, `gives` and `oracle` of a model."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from pipeline.config import app_data
from pipeline.config.tables import is_function
from pipeline.config.values import ModelConfig
from pipeline.core.errors import ConfigError

Problem = tuple[tuple[str, ...], ConfigError]
"""The keys in a model's table, and what is said of them."""


def problems(model: ModelConfig, *, by_hand: bool) -> Iterator[Problem]:
    """Of a table; `by_hand` says whether it has `preprocess` somewhere."""
    if model.takes:
        yield from _of_takes(model.takes)
    if model.takes and by_hand:
        what, why = "`preprocess` beside `takes`", "the graph does what `takes` says, and nothing is left to the app"
        yield _problem(("takes",), what, why, "remove `preprocess`, or `takes`")
    if model.gives:
        yield from _of_answer(model.gives)
    if model.oracle:
        yield from _of_oracle(model)


def _problem(key: tuple[str, ...], what: str, why: str, remedy: str) -> Problem:
    return key, ConfigError(what, why=why, remedy=remedy)


def _of_takes(takes: app_data.Takes) -> Iterator[Problem]:
    """Nothing that an app has, or two such; keys of another, and one that is lacking."""
    kinds = [kind for kind in app_data.KEYS if getattr(takes, kind) is not None]
    if len(kinds) != 1:
        what, why = "`takes` does not say what the app has", f"it has {' and '.join(kinds) or 'none of them'}"
        yield _problem(("takes",), what, why, f"give one of {', '.join(app_data.KEYS)}")
        return
    fields = {field.name: field.default for field in msgspec.structs.fields(takes)}
    for key in (key for key, default in fields.items() if getattr(takes, key) != default):
        if key not in (*kinds, *app_data.KEYS[kinds[0]]):
            what, why = f"`{key}` says nothing of a {kinds[0]}", f"its keys are {', '.join(app_data.KEYS[kinds[0]])}"
            yield _problem(("takes", key), what, why, "remove it")
    for needed in (key for key in app_data.NEEDED[kinds[0]] if getattr(takes, key) is None):
        what, why = f"`takes` lacks `{needed}`", f"{kinds[0]} cannot be made into tensors without"
        yield _problem(("takes",), what, why, f"give `{needed}`")
    if takes.samples:
        yield from _of_samples(takes)


def _of_samples(takes: app_data.Takes) -> Iterator[Problem]:
    """Windows and features of sound that cannot be."""
    own = app_data.FEATURE_KEYS[takes.features]
    fields = {field.name: field.default for field in msgspec.structs.fields(takes)}
    for key in app_data.FEATURE_KEYS[app_data.SoundFeatures.FBANK]:
        if key not in own and getattr(takes, key) != fields[key]:
            what = f"`{key}` says nothing of {takes.features or 'samples without `features`'}"
            yield _problem(("takes", key), what, f"its keys are {', '.join(own) or 'none of features'}", "remove it")
    if takes.features is None and takes.hop is None:
        what, why = "`takes` lacks `hop`", "samples cannot be made into tensors without"
        yield _problem(("takes",), what, why, "give `hop`: how many samples are new in each step")
    if takes.window and takes.hop and takes.window < takes.hop:
        what, why = "a window smaller than its hop", f"of {takes.hop} new samples the model would see {takes.window}"
        yield _problem(("takes", "window"), what, why, "give a window as large as the hop, or larger")
    if takes.features is app_data.SoundFeatures.LOG_MEL:
        yield from _of_log_mel(takes)
    elif takes.features:
        yield from _of_fbank(takes)


def _of_log_mel(takes: app_data.Takes) -> Iterator[Problem]:
    """What Whisper's features are not made of."""
    if takes.rate not in (None, app_data.LOG_MEL_RATE):
        what, why = (
            f"log-mel of {takes.rate:,} samples a second",
            "Whisper's filters are for 16,000; nothing resamples",
        )
        yield _problem(("takes", "rate"), what, why, f"set `rate` to {app_data.LOG_MEL_RATE}, and record with it")
    if takes.hop:
        what, why = "log-mel in steps", "its loudest value is that of the whole recording, which no step knows"
        yield _problem(("takes", "hop"), what, why, "remove `hop`: the app then gives a whole recording")


def _of_fbank(takes: app_data.Takes) -> Iterator[Problem]:
    """Frequencies that the rate does not have, and edges within a stream."""
    rate = takes.rate or 0
    if rate and rate < app_data.LEAST_FBANK_RATE:
        what, why = f"fbank of {rate:,} samples a second", "a frame begins each 10 ms, and would have too few samples"
        yield _problem(("takes", "rate"), what, why, f"record with {app_data.LEAST_FBANK_RATE} or more")
    elif rate and not takes.low_freq < takes.highest_freq <= rate / 2:
        what = f"mel filters from {takes.low_freq:g} to {takes.highest_freq:g} Hz"
        why = f"{rate:,} samples a second have 0 to {rate / 2:g} Hz"
        yield _problem(("takes", "high_freq"), what, why, "correct `low_freq` and `high_freq`")
    if takes.hop and not takes.snip_edges:
        what, why = "mirrored edges in steps", "the frames of a stream have samples before them, and no edges"
        yield _problem(("takes", "snip_edges"), what, why, "remove `snip_edges`, or `hop`")


def _of_answer(gives: app_data.Gives) -> Iterator[Problem]:
    """Not one thing that the app gets, and keys of another."""
    answers = ", ".join(app_data.AnswerKind)
    if len(gives.answers) != 1:
        what = f"`gives` has {' and '.join(gives.answers) or 'nothing that the app gets'}"
        yield _problem(("gives",), what, f"a model gives one of {answers}", "name one of them")
        return
    for name in gives.strange:
        meant = ", ".join(("output", *app_data.KEYS_OF[gives.answer]))
        what, remedy = (
            f"`{name}` means nothing for {gives.answer}",
            f"remove it; {gives.answer} has {meant}",
        )
        yield _problem(("gives", name), what, "it is for something else that an app gets", remedy)


def _of_oracle(model: ModelConfig) -> Iterator[Problem]:
    """An oracle that is no function, or is of nothing."""
    if not is_function(model.oracle or ""):
        what, remedy = "`oracle` names no function", 'write it as oracle = "module:function"'
        yield _problem(("oracle",), what, f"{Path(model.oracle or '').name} is something else", remedy)
    elif not (model.takes or model.gives):
        what, why = "`oracle` without `takes` and `gives`", "a model that takes and gives tensors is its own reference"
        yield _problem(("oracle",), what, why, "say what the app has and gets, or remove `oracle`")
    elif not model.test_data:
        what, why = "`oracle` without `test_data`", "nobody's code is right about random numbers"
        yield _problem(("oracle",), what, why, "give data as the app has them as `test_data`")
    elif model.state:
        what, why = "`oracle` beside `state`", "it would have to be given what the model gave before"
        yield _problem(("oracle",), what, why, "leave out `oracle`, and compare a stream in code of yours")
