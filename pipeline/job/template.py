"""The commented config that `ort-mobile init` writes, and the config of a run that has none."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from device_runner import files as runner_files
from device_runner import safe_text
from pipeline import config as configs
from pipeline.config import Config
from pipeline.core import file_names, workers
from pipeline.core import providers as provider_rules
from pipeline.core import releases as ort_releases
from pipeline.core.errors import ModelError
from pipeline.core.releases import Release
from pipeline.dataset import Dataset
from pipeline.dataset import guess as data_guess
from pipeline.job import attachment as job_attachment
from pipeline.library import fetch
from pipeline.model import signature
from pipeline.model import sources as model_sources
from pipeline.model.sources import SourceModel
from pipeline.release import shipped as release_shipped

TEMPLATE = """\
# How to convert, check, measure and ship {model}.
# Every key: docs/reference/config.md. Paths are relative to this file; results go to output/NAME in
# the folder in which you run it, or to --output.
name = {name}
# Where to run: this computer, and phones by their serials ("adb:SERIAL", or "adb:*" for every ready one).
devices = ["local"]
# Compare accelerators with the CPU in every sensible way: {compared}.
# Without this line and any [[runs]] phones run webgpu (the GPU, Android 10 and later) and nnapi on level basic beside
# the CPU. `ort-mobile check` says which to try first for this model.
# compare = ["webgpu", "nnapi"]

[[models]]
path = {path}
# Its inputs:
{inputs}# What it is run on: a folder with test_data_set_0/input_0.pb … (ONNX's own layout), .npz, .npy, images or WAV
# files, or "module:function"; without it, random numbers.
{test_data}
# Values of single inputs: a number, a list of all elements, or a range of random numbers (`high` is not in it).
{values}
# Labels of `test_data` (a CSV file with a line `file,label` for each sample), or a labelled set of its own (.npz with
# `inputs` and `labels`).
# labels = "evaluation.npz"
{app_data}{state}{dimensions}

[[targets]]
name = "android-arm64"
platform = "android"            # android, ios, linux, macos
abis = ["arm64-v8a"]
min_api_level = 27              # NNAPI needs 27
# The ONNX Runtime release in your app: {why}
{mark}ort_release = "{release}"
# The library that ships, exactly: the released package pins it, and on x86-64 Linux the bundle is proven in it. Without
# it, apps get any patch of the release (docs/android-release.md). An AAR's path, or a release:
{library}

{ios}[[targets]]
{ios}name = "ios"
{ios}platform = "ios"
{ios}min_os_version = "15.1"
{ios}ort_release = "{swift}"           # the newest with a Swift package that is known

[variants]
levels = ["none", "basic", "extended", "all"]
styles = ["fixed", "runtime"]
# aware = ["nnapi"]             # provider-aware variants: {aware}, or joined by +
# precisions = ["float", "auto"]    # 8-bit and half precision by the rules of each provider; most need `test_data`

# What artifacts in another precision may lose of the metric on labelled samples; others do not ship.
# [accuracy]
# max_drop = 0.01

# How to run. Without any [[runs]]: NNAPI and the GPU on basic, and CPU on everything, as ONNX Runtime's documentation
# advises.
# [[runs]]
# provider = "nnapi"
# variants = ["basic-*"]
# flags = ["USE_FP16"]

# A list is tried in every combination that can work; the others are reported with the reason.
# [[runs]]
# provider = "cpu"
# threads = [1, 2, 4]
# spinning = [true, false]

[measure]
rounds = 5                      # every variant runs once in each, in a fresh process
min_runs = 20
min_seconds = 0.2
margin_percent = 5              # closer than this is the same
# profile = true                # after the rounds: times by operator, and a trace of each for Perfetto
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ships:
    """What the app of a new config ships: a release for Android, as 1.29.0, and whether it is for iOS, too."""

    android: str = ""
    ios: bool = False

    @property
    def library(self) -> str:
        """The library of the Android target; "" where none was named."""
        patch = self.android if self.android.count(".") == 2 else f"{self.android}.0"
        return f"android:{patch}" if self.android else ""

    @property
    def at_hand(self) -> bool:
        """Whether the library needs not be fetched first."""
        return not self.library or any(
            library.name == self.library and library.at_hand for library in fetch.known_libraries()
        )


MOST_OPTIONAL = 8

NO_TABLES = job_attachment.TableLines(lines=())


def config_text(
    model: Path,
    folder: Path,
    guess: data_guess.Guess,
    data: Dataset,
    ships: Ships,
    tables: job_attachment.TableLines = NO_TABLES,
) -> str:
    """A config for a model, to stand in `folder`, with what was found for its inputs, and `tables` of an app's data."""
    release, installed = _android_release(), ort_releases.installed_release()
    if ships.android:
        release = ort_releases.read_release(ships.android, "--android")
    why = f"the newest whose AAR is known; this computer has {installed}" if release else "by default as installed"
    why = "that of the library" if ships.android else why
    return TEMPLATE.format(
        model=quoted(model.name).strip('"'),
        name=quoted(campaign_name(model)),
        path=quoted(os.path.relpath(model, folder)),
        inputs="".join(f"#   {safe_line(str(info))}\n" for info in guess.inputs) + _optional(guess.optional),
        test_data='# test_data = "samples"'
        if not data.test_data
        else f"test_data = {quoted(os.path.relpath(data.test_data, folder))}",
        values=_values_text(guess, data),
        app_data="".join(f"{line}\n" for line in tables.lines),
        state=_state_text(guess),
        dimensions="# Sizes: an image has any." if tables.attached else _dimensions_text(guess),
        compared=", ".join(provider_rules.on_any_chip()),
        aware=", ".join(provider_rules.aware_names()),
        why=why,
        mark="" if release else "# ",
        release=release or installed,
        library=f'library = "{ships.library}"' if ships.library else f'# library = "android:{release or installed}.0"',
        ios="" if ships.ios else "# ",
        swift=max(ort_releases.SWIFT_PACKAGES),
    )


def _android_release() -> Release | None:
    """The release that a new target for Android names: None where the default, the installed one, has a known AAR."""
    newest = release_shipped.newest_android()
    return newest if newest < ort_releases.installed_release() else None


def config_for_model(model: Path, data: Dataset, dimensions: Mapping[str, int] = {}) -> tuple[Config, data_guess.Guess]:
    """The config of `ort-mobile run --model`, everything by default, and what was found for the model's inputs.

    `dimensions` are sizes that are given. ConfigError when no size is found for another dynamic dimension.
    """
    guess = guess_for(model, data, dimensions)
    if guess.missing:
        raise data_guess.no_size(str(model), guess.missing, guess.why)
    if guess.texts:
        raise data_guess.no_text(str(model), list(guess.texts))
    table = configs.ModelConfig(
        path=str(model),
        test_data=data.test_data or None,
        inputs=guess.values | data.inputs,
        preprocess=data.preprocess,
        labels=data.labels or None,
        dimensions={**guess.to_fix},
        guessed=_guessed(guess),
        state=guess.states,
    )
    release = _android_release()
    target = msgspec.structs.replace(configs.DEFAULT_TARGET, ort_release=str(release) if release else None)
    return configs.with_defaults(Config(name=campaign_name(model), models=(table,), targets=(target,))), guess


def data_beside(model: Path, data: Dataset) -> Dataset:
    """The data as given, or else the test data sets in the model's folder (ONNX's own layout)."""
    if data.test_data or not (model.parent / "test_data_set_0").is_dir():
        return data
    return msgspec.structs.replace(data, test_data=str(model.parent))


def guess_for(model: Path, data: Dataset, dimensions: Mapping[str, int] = {}) -> data_guess.Guess:
    """What a model takes, and sizes and values for it: those given, and likely ones for the rest.

    They are found in a process of its own; raises what that meets.
    """
    with runner_files.scratch_folder() as work:
        source = SourceModel(path=str(model))
        call = partial(data_guess.guess_inputs, source, dict(dimensions), data, str(work))
        needed = workers.needed_bytes(2 * model_sources.source_bytes(source)) + data.file_bytes
        (outcome,) = workers.run_tasks([workers.Task(label=str(model), call=call, memory_bytes=needed)])
    if outcome.value is None:
        raise outcome.error or ModelError("no answer", where=str(model))
    return outcome.value


def guessed_lines(guess: data_guess.Guess) -> list[str]:
    """What was guessed, one line each, as `height = 320 (from the model's metadata)`."""
    sizes = {name: size for name, size in guess.dimensions.items() if guess.reasons[name] != data_guess.GIVEN}
    values: dict[str, configs.InputValue] = {**guess.values, **sizes}
    return [f"{safe_line(name)} = {_toml(value)} ({guess.reasons[name]})" for name, value in values.items()]


def campaign_name(model: Path) -> str:
    """A campaign's name from a model's file name, in the letters that a name may have."""
    return file_names.readable_name(model.stem)[:64].lstrip("._-") or "model"


def _guessed(guess: data_guess.Guess) -> tuple[str, ...]:
    """The dimensions to fix whose sizes neither data nor the user said, and inputs that get a guessed constant.

    A state begins with zeros, which is no guess.
    """
    sizes = (name for name in guess.to_fix if guess.reasons[name] not in (data_guess.DATA, data_guess.GIVEN))
    constants = (name for name, value in guess.values.items() if not isinstance(value, configs.Range))
    return (*sizes, *(name for name in constants if name not in guess.states.values()))


def _guessed_line(guess: data_guess.Guess) -> str:
    names = ", ".join(map(quoted, _guessed(guess)))
    return f"guessed = [{names}]  # reports warn of these: take out what is right, or corrected" if names else ""


def _state_text(guess: data_guess.Guess) -> str:
    """The line of the states that were found, with what it means."""
    if not guess.states:
        return ""
    pairs = ", ".join(f"{quoted(output)} = {quoted(name)}" for output, name in guess.states.items())
    return (
        "# Outputs that look like an input's next value: the model is checked, judged and measured as a stream.\n"
        f"state = {{ {pairs} }}  # GUESSED\n# stream_steps = 100\n"
    )


def _toml(value: configs.InputValue) -> str:
    if isinstance(value, configs.Range):
        return f"{{ low = {value.low}, high = {value.high} }}"
    return msgspec.json.encode(value).decode()


def _values_text(guess: data_guess.Guess, data: Dataset) -> str:
    """The line of the inputs' values with the reasons of those that were guessed; texts are left to the user."""
    values: dict[str, configs.InputValue] = dict.fromkeys(guess.texts, "") | guess.values | data.inputs
    if not values:
        return "# inputs = { sr = 16000, tokens = { low = 0, high = 178 } }"
    lines = ["; ".join(f"{safe_line(name)}: {guess.reasons[name]}" for name in guess.values)]
    pairs = ", ".join(f"{quoted(name)} = {_toml(value)}" for name, value in values.items())
    line = f"inputs = {{ {pairs} }}"
    if guess.texts:
        known = "; ".join(
            f"the model knows {', '.join(map(quoted, texts))} for {safe_line(name)}"
            for name, texts in guess.texts.items()
            if texts
        )
        lines.append(
            f'Texts are not guessed: put one that your app gives for "" and remove the first #. {known}'.strip()
        )
        line = f"# {line}  {configs.FILL_IN}"
    elif guess.values:
        line += "  # GUESSED"
    return "\n".join([*(f"# {text}" for text in lines if text), line])


def left_to_user(guess: data_guess.Guess) -> str:
    """What of a config is to be filled in before it runs; "" where nothing is."""
    sizes = f"no size was found for {safe_line(', '.join(guess.missing))}" if guess.missing else ""
    texts = f"no text is known for {safe_line(', '.join(guess.texts))}" if guess.texts else ""
    return ", ".join(filter(None, (sizes, texts)))


def _dimensions_text(guess: data_guess.Guess) -> str:
    if guess.missing:  # the line is left to the user; the reader of configs refuses the file until it is filled in
        open_names = signature.names_of(signature.open_axes(guess.inputs))
        axes = {name: 0 if name in guess.missing else guess.dimensions.get(name, 1) for name in open_names}
        pairs = ", ".join(f"{quoted(name)} = {size}" for name, size in axes.items())
        return (
            f"# No usual size was found for {', '.join(map(safe_line, guess.missing))}: put sizes for the zeros and "
            f"remove the first #.\n# dimensions = {{ {pairs} }}  {configs.FILL_IN}"
        )
    if not guess.dimensions:
        fixed = "# All dimensions of the inputs are fixed, or differ between the samples of the test data."
        return "\n".join(filter(None, (fixed, _guessed_line(guess))))
    reasons = "; ".join(f"{safe_line(name)}: {guess.reasons[name]}" for name in guess.dimensions)
    lines = [
        "# Sizes of dynamic dimensions: the files take no others, so give those that your app uses. A dimension that",
        "# is left out stays open, for the CPU only: NNAPI supports no dynamic shapes.",
        f"# {reasons}",
    ]
    if not guess.fixable:
        lines += [
            "# The model runs with these sizes only while its dimensions stay dynamic.",
            f"# {_sizes_line(guess, guess.dimensions)}",
        ]
    if guess.to_fix:
        lines.append(_sizes_line(guess, guess.to_fix))
    lines += filter(None, [_guessed_line(guess)])
    return "\n".join(lines)


def _sizes_line(guess: data_guess.Guess, sizes: Mapping[str, int]) -> str:
    pairs = ", ".join(f"{quoted(name)} = {size}" for name, size in sizes.items())
    guessed = not {guess.reasons[name] for name in sizes} <= {data_guess.DATA, data_guess.GIVEN}
    return f"dimensions = {{ {pairs} }}" + ("  # GUESSED" if guessed else "")


def line_to_fill_in(config: Path) -> int:
    """The number of the line that is left to the user in a config just written."""
    lines = config.read_text(encoding="utf-8").splitlines()
    return next((number for number, line in enumerate(lines, 1) if line.endswith(configs.FILL_IN)), 1)


def quoted(text: str) -> str:
    """A TOML basic string, in which nothing acts or hides."""
    return safe_text.INVISIBLE.sub(lambda match: f"\\u{ord(match.group()):04x}", msgspec.json.encode(text).decode())


def _optional(names: tuple[str, ...]) -> str:
    """The lines about inputs that have a value in the file; "" without any."""
    few = f"[{', '.join(map(quoted, names[:MOST_OPTIONAL]))}]" + "  # and more" * (len(names) > MOST_OPTIONAL)
    head = "# Inputs with a value in the file are constants in the artifacts, unless they are kept:"
    return f"{head}\n# optional_inputs = {few}\n" if names else ""


def safe_line(text: str) -> str:
    """Text for a comment: names come from the model's file and may hold anything."""
    return "".join(c if c.isprintable() else "?" for c in text)
