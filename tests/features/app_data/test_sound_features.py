"""Features of sound in a graph, against those that models were trained with, and what does not fit."""

import tarfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest

from pipeline.config import read
from pipeline.config.app_data import KEPT, NEXT_KEPT, SAMPLES, Gives, SampleKind, SoundFeatures, Takes, WindowType
from pipeline.core.errors import ConfigError
from pipeline.features.app_data import mel_filters
from tests import python_packages
from tests.features.app_data.sounds import speech
from tests.features.app_data.test_windows import attached, streamed

TEXT = """<ir_version: 8, opset_import: ["" : {opset}]>
m (float[{batch}, {first}, {second}] x) => (float[{batch}, {first}, {second}] y) {{ y = Identity(x) }}"""
LOG_MEL = Takes(samples=SampleKind.INT16, rate=16000, divide=32768, features=SoundFeatures.LOG_MEL)
FBANK = Takes(samples=SampleKind.INT16, rate=16000, features=SoundFeatures.FBANK)


def model(first: int | str, second: int | str, batch: int | str = "batch", opset: int = 17) -> onnx.ModelProto:
    """One that gives what it takes."""
    return onnx.parser.parse_model(TEXT.format(first=first, second=second, batch=batch, opset=opset))


def changed(takes: Takes, **values: Any) -> Takes:
    return msgspec.structs.replace(takes, **values)


def whisper(sound: Any, bins: int, filters: Any = None) -> Any:
    """What whisper/audio.py computes, in float64."""
    padded = np.pad(sound.astype(np.float64), 200, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, 400)[::160][:-1]
    power = np.abs(np.fft.rfft(frames * np.hanning(401)[:-1])) ** 2
    weights = mel_filters.slaney(bins, 400, 16000) if filters is None else filters
    values = np.log10(np.maximum(weights @ power.T, 1e-10))
    return (np.maximum(values, values.max() - 8) + 4) / 4


@pytest.mark.parametrize(("samples", "bins"), [(48_000, 80), (30_011, 128), (52_345, 80), (1, 80)])
def test_log_mel_is_whispers_of_a_recording_of_any_length(tmp_path: Path, samples: int, bins: int) -> None:
    session = attached(tmp_path, model(bins, 300), LOG_MEL)
    sound = speech(4)[:samples]
    (given,) = session.get_inputs()
    assert (given.name, given.type, given.shape) == (SAMPLES, "tensor(int16)", [1, "length"])
    (values,) = session.run(None, {SAMPLES: sound[None]})
    filled = np.zeros(48_000)
    filled[: min(samples, 48_000)] = sound[:48_000] / 32768
    assert values.shape == (1, bins, 300)
    np.testing.assert_allclose(values[0], whisper(filled, bins), atol=5e-5)


def test_log_mel_is_half_a_minute_where_nothing_says_another_length(tmp_path: Path) -> None:
    session = attached(tmp_path, model("bins", "frames"), changed(LOG_MEL, bins=80))
    assert session.run(None, {SAMPLES: speech(1)[None]})[0].shape == (1, 80, 3000)
    session = attached(tmp_path, model("bins", "frames"), changed(LOG_MEL, bins=80, window=16_000))
    assert session.run(None, {SAMPLES: speech(3)[None]})[0].shape == (1, 80, 100)


def kaldi(sound: Any, takes: Takes, bins: int) -> Any:
    """What kaldi-native-fbank gives of samples."""
    library = pytest.importorskip("kaldi_native_fbank")
    options = library.FbankOptions()
    options.frame_opts.dither = 0
    options.frame_opts.samp_freq = takes.rate
    options.frame_opts.window_type = takes.window_type.value
    options.frame_opts.snip_edges = takes.snip_edges
    options.mel_opts.num_bins = bins
    options.mel_opts.low_freq, options.mel_opts.high_freq = takes.low_freq, takes.high_freq
    computer = library.OnlineFbank(options)
    computer.accept_waveform(takes.rate, np.asarray(sound, np.float32).tolist())
    computer.input_finished()
    return np.stack([computer.get_frame(number) for number in range(computer.num_frames_ready)])


@pytest.mark.parametrize("samples", [400, 401, 559, 560, 16_000, 31_919])
@pytest.mark.parametrize("snip_edges", [True, False])
def test_fbank_is_kaldis_of_a_recording_of_any_length(tmp_path: Path, samples: int, *, snip_edges: bool) -> None:
    takes = changed(FBANK, snip_edges=snip_edges, high_freq=-400.0)
    session = attached(tmp_path, model("frames", 80), takes)
    sound = speech(2)[:samples]
    (values,) = session.run(None, {SAMPLES: sound[None]})
    wanted = kaldi(sound, takes, 80)
    assert values[0].shape == wanted.shape
    np.testing.assert_allclose(values[0], wanted, atol=5e-4)


@pytest.mark.parametrize(
    ("bins", "changes"),
    [
        (23, {"rate": 8000}),
        (40, {"rate": 11025, "low_freq": 64.0, "high_freq": 4000.0}),
        (80, {"window_type": WindowType.HAMMING}),
        (64, {"window_type": WindowType.HANNING, "low_freq": 0.0}),
        (80, {"divide": 32768.0}),
    ],
)
def test_fbank_has_the_options_of_kaldi(tmp_path: Path, bins: int, changes: dict[str, Any]) -> None:
    takes = changed(FBANK, **changes)
    sound = speech(1, takes.rate or 0)
    (values,) = attached(tmp_path, model("frames", bins), takes).run(None, {SAMPLES: sound[None]})
    np.testing.assert_allclose(values[0], kaldi(sound / (takes.divide or 1), takes, bins), atol=5e-4)


def test_an_offset_of_the_microphone_costs_no_more_digits_than_in_kaldi(tmp_path: Path) -> None:
    """Beside the same in float64: the library's own difference is up to 0.014 here."""
    sound = (16_000 + 33 * np.random.default_rng(0).standard_normal(16_000)).astype(np.int16)
    (values,) = attached(tmp_path, model("frames", 80), FBANK).run(None, {SAMPLES: sound[None]})
    frames = np.lib.stride_tricks.sliding_window_view(sound.astype(np.float64), 400)[::160]
    frames = frames - frames.mean(1, keepdims=True)
    frames = frames - 0.97 * np.concatenate([frames[:, :1], frames[:, :-1]], 1)
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 399)) ** 0.85
    power = np.abs(np.fft.rfft(frames * window, 512)) ** 2
    np.testing.assert_allclose(values[0], np.log(power @ mel_filters.kaldi(80, 512, 16000, 20, 8000).T), atol=5e-3)


def test_a_recording_is_filled_up_to_a_models_frames_and_to_one(tmp_path: Path) -> None:
    session = attached(tmp_path, model(98, 80), FBANK)
    sound = speech(2)
    for count in (1, 9000, 32_000):
        filled = np.zeros(98 * 160 + 240)
        filled[: min(count, filled.size)] = sound[: min(count, filled.size)]
        (values,) = session.run(None, {SAMPLES: sound[None, :count]})
        np.testing.assert_allclose(values[0], kaldi(filled, FBANK, 80), atol=5e-4)
    session = attached(tmp_path, model("frames", 80), FBANK)
    assert session.run(None, {SAMPLES: sound[None, :7]})[0].shape == (1, 1, 80)


@pytest.mark.parametrize(
    ("frames", "window", "hop"), [(8, None, 1280), ("n", None, 1280), (20, None, 160), (8, 1520, 320)]
)
def test_fbank_in_steps_is_that_of_the_sound_behind_silence(
    tmp_path: Path, frames: int | str, window: int | None, hop: int
) -> None:
    takes = changed(FBANK, hop=hop, window=window)
    session = attached(tmp_path, model(frames, 80), takes)
    taken = frames if isinstance(frames, int) else hop // 160
    kept = (taken - 1) * 160 + 400 - hop
    assert {given.name: given.shape for given in session.get_inputs()} == {SAMPLES: [1, hop], KEPT: [1, kept]}
    sound = speech(1)
    steps = streamed(session, sound, hop, {NEXT_KEPT: KEPT}, {KEPT: np.zeros((1, kept), np.float32)})
    wanted = kaldi(np.concatenate([np.zeros(kept), sound]), takes, 80)
    assert len(steps) == 16_000 // hop
    for number, values in enumerate(steps):
        begin = number * hop // 160
        np.testing.assert_allclose(values[0], wanted[begin : begin + taken], atol=5e-4)


def test_what_steps_keep_is_no_output_to_choose_from(tmp_path: Path) -> None:
    session = attached(tmp_path, model(8, 80), changed(FBANK, hop=1280), Gives(probability=True, index=3))
    assert [output.name for output in session.get_outputs()] == [NEXT_KEPT, "probability"]


@pytest.mark.parametrize(
    ("made", "takes", "what"),
    [
        (model(80, 3000), changed(LOG_MEL, bins=128), "128 mel filters do not fit the input 'x'"),
        (model("bins", 3000), LOG_MEL, "an open number of mel filters do not fit the input 'x'"),
        (model(80, 3000), changed(LOG_MEL, window=160_000), "a window of 160,000 samples does not fit the input 'x'"),
        (model(80, "n"), changed(LOG_MEL, window=1_000), "a window of 1,000 samples ends within a frame"),
        (model(80, "n"), changed(LOG_MEL, window=160), "a window of 160 samples does not fit"),
        (model(80, 3000, batch=2), LOG_MEL, "the input 'x' takes no log-mel"),
        (model(80, 3000, opset=12), LOG_MEL, "opset 12 has not all that `takes.features = log-mel` needs"),
        (model(3000, 80), changed(FBANK, bins=40), "40 mel filters do not fit"),
        (model(8, 80), changed(FBANK, hop=1000), "a hop of 1,000 samples does not fit frames of fbank"),
        (model(8, 80), changed(FBANK, hop=1600), "a hop of 1,600 samples does not fit frames of fbank"),
        (model(8, 80), changed(FBANK, window=1200), "a window of 1,200 samples does not fit the input 'x'"),
        (model(8, 80), changed(FBANK, input="z"), "the model has no 'z'"),
    ],
)
def test_what_does_not_fit_a_model_is_refused(tmp_path: Path, made: onnx.ModelProto, takes: Takes, what: str) -> None:
    with pytest.raises(ConfigError, match=what) as refusal:
        attached(tmp_path, made, takes)
    assert refusal.value.remedy


CONFIG = """name = "m"
[[models]]
path = "m.onnx"
takes = {{ samples = "int16", {takes} }}
"""


@pytest.mark.parametrize(
    ("takes", "what"),
    [
        ("rate = 16000", "`takes` lacks `hop`"),
        ('rate = 8000, features = "log-mel"', "log-mel of 8,000 samples a second"),
        ('rate = 16000, features = "log-mel", hop = 160', "log-mel in steps"),
        ('rate = 16000, features = "log-mel", low_freq = 30', "`low_freq` says nothing of log-mel"),
        ("rate = 16000, hop = 160, bins = 80", "`bins` says nothing of samples without `features`"),
        ('features = "fbank"', "`takes` lacks `rate`"),
        ('rate = 100, features = "fbank"', "fbank of 100 samples a second"),
        ('rate = 16000, features = "fbank", high_freq = 9000', "mel filters from 20 to 9000 Hz"),
        ('rate = 16000, features = "fbank", high_freq = -7990', "mel filters from 20 to 10 Hz"),
        ('rate = 16000, features = "fbank", hop = 160, snip_edges = false', "mirrored edges in steps"),
        ('rate = 16000, features = "mfcc"', "the value of `models[0].takes.features` is not allowed"),
        ('rate = 16000, features = "fbank", bins = 0', "models[0].takes.bins"),
    ],
)
def test_what_cannot_be_meant_is_refused_where_it_stands(tmp_path: Path, takes: str, what: str) -> None:
    (tmp_path / "m.onnx").write_bytes(b"")
    (tmp_path / "m.toml").write_text(CONFIG.format(takes=takes))
    with pytest.raises(ConfigError) as refusal:
        read.read_config(tmp_path / "m.toml")
    assert what in str(refusal.value)
    assert refusal.value.remedy


@pytest.mark.trained
def test_filters_are_those_that_whisper_ships(tmp_path: Path) -> None:
    """The file in the package of its makers, of which the package's code takes the filters."""
    archive = python_packages.download("openai-whisper==20250625", tmp_path, source=True)
    with tarfile.open(archive) as opened:
        content = opened.extractfile(f"{archive.name.removesuffix('.tar.gz')}/whisper/assets/mel_filters.npz")
        assert content
        (tmp_path / "mel_filters.npz").write_bytes(content.read())
    shipped = np.load(tmp_path / "mel_filters.npz")
    for bins in (80, 128):
        np.testing.assert_allclose(mel_filters.slaney(bins, 400, 16000), shipped[f"mel_{bins}"], atol=1e-7)
