"""Samples in steps become windows: a state keeps what the next one needs, and what does not fit is refused."""

import wave
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from pipeline.config.app_data import KEPT, NEXT_KEPT, SAMPLES, Gives, SampleKind, Takes
from pipeline.core.errors import ConfigError
from pipeline.features.app_data import app_samples, attach
from pipeline.model import signature
from pipeline.model.onnx_model import LeanModel
from pipeline.passes.base import PassContext
from pipeline.passes.saving import write_model
from tests import python_packages

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
m (float[1, {window}] x, float[1, 2] h) => (float[1, 1] y, float[1, 2] hn) {{
    one = Constant<value = int64[1] {{1}}>()
    mean = ReduceMean<axes = [1], keepdims = 1>(x)
    hn = Add(h, mean)
    y = ReduceMax<axes = [1], keepdims = 1>(x)
}}"""
SOUND = Takes(samples=SampleKind.INT16, rate=8000, divide=32768, hop=6, input="x")


def model(window: int | str = 10) -> onnx.ModelProto:
    return onnx.parser.parse_model(TEXT.format(window=window))


def attached(folder: Path, proto: onnx.ModelProto, takes: Takes, gives: Gives | None = None) -> Any:
    context = PassContext(folder=folder, where="m.onnx")
    lean = LeanModel(proto=proto, folder=folder, weights={})
    write_model(attach.attach(lean, attach.AttachOptions(takes=takes, gives=gives), context), folder / "made.onnx")
    return onnxruntime.InferenceSession(folder / "made.onnx", providers=["CPUExecutionProvider"])


def streamed(session: Any, sound: Any, hop: int, states: dict[str, str], first: dict[str, Any]) -> list[Any]:
    """The first output of each step."""
    names = [output.name for output in session.get_outputs()]
    feeds, found = dict(first), []
    for start in range(0, len(sound) - hop + 1, hop):
        outputs = dict(zip(names, session.run(None, {**feeds, SAMPLES: sound[None, start : start + hop]}), strict=True))
        found.append(outputs[names[0]])
        feeds.update({given: outputs[name] for name, given in states.items()})
    return found


@pytest.mark.parametrize("kind", SampleKind)
@pytest.mark.parametrize(("window", "hop"), [(10, 6), (10, 1), (8, 8)])
def test_each_window_is_what_was_kept_and_what_is_new(tmp_path: Path, kind: SampleKind, window: int, hop: int) -> None:
    divide = 32768.0 if kind is SampleKind.INT16 else None
    takes = Takes(samples=kind, rate=8000, divide=divide, hop=hop, input="x", window=window)
    session = attached(tmp_path, model("n" if hop == 1 else window), takes)
    sound: Any = np.random.default_rng(0).integers(-32768, 32768, 101, np.int16)
    values = sound.astype(np.float32) / np.float32(32768)
    sound = sound if kind is SampleKind.INT16 else values
    assert {given.name: (given.type, given.shape) for given in session.get_inputs()}[SAMPLES] == (
        "tensor(int16)" if kind is SampleKind.INT16 else "tensor(float)", [1, hop]
    )  # fmt: skip
    states, first = {"hn": "h"}, {"h": np.zeros((1, 2), np.float32)}
    if window > hop:
        states |= {NEXT_KEPT: KEPT}
        first |= {KEPT: np.zeros((1, window - hop), np.float32)}
    found = streamed(session, sound, hop, states, first)
    padded = np.concatenate([np.zeros(window - hop, np.float32), values])
    wanted = [padded[start : start + window].max() for start in range(0, len(values) - hop + 1, hop)]
    assert [float(value[0, 0]) for value in found] == wanted


def test_its_state_is_one_of_the_model(tmp_path: Path) -> None:
    from pipeline.config.app_data import state_of

    assert state_of(SOUND) == {NEXT_KEPT: KEPT}
    assert state_of(Takes(samples=SampleKind.FLOAT, rate=8000, window=6, hop=6)) == {}
    assert state_of(None) == {}
    attached(tmp_path, model(), SOUND)
    added = {node.name for node in onnx.load(tmp_path / "made.onnx").graph.node} - {
        node.name for node in model().graph.node
    }
    assert added
    assert all(name.startswith("app_data/") for name in added)  # by which passes leave them float


@pytest.mark.parametrize(
    ("window", "changes", "what"),
    [
        ("n", {}, "a window of no samples does not fit the input 'x'"),
        (10, {"window": 12}, "a window of 12 samples does not fit"),
        (4, {}, "a window of 4 samples does not fit"),
        (10, {"input": "h2"}, "the model has no 'h2'"),
        (10, {"input": None}, "it is not said which tensor is meant"),
    ],
)
def test_windows_that_do_not_fit_are_refused(tmp_path: Path, window: int | str, changes: Any, what: str) -> None:
    import msgspec

    with pytest.raises(ConfigError, match=what) as refusal:
        attached(tmp_path, model(window), msgspec.structs.replace(SOUND, **changes))
    assert refusal.value.remedy


def recording(file: Path, sound: Any, rate: int = 8000, channels: int = 1) -> Path:
    with wave.open(str(file), "wb") as written:
        written.setnchannels(channels)
        written.setsampwidth(sound.dtype.itemsize)
        written.setframerate(rate)
        written.writeframes(sound.tobytes())
    return file


def test_steps_of_a_recording_are_test_data(tmp_path: Path) -> None:
    sound = np.random.default_rng(0).integers(-32768, 32768, 20, np.int16)
    file = recording(tmp_path / "a.wav", sound)
    attached(tmp_path, model(), SOUND)
    inputs = signature.own_inputs(onnx.load(tmp_path / "made.onnx"))
    steps = list(app_samples.samples(SOUND, file, inputs))
    assert len(steps) == 3
    np.testing.assert_array_equal(np.concatenate([step.inputs[SAMPLES] for step in steps], 1)[0], sound[:18])
    assert steps[0].inputs[KEPT].shape == (1, 4)
    assert set(steps[0].inputs) == {SAMPLES, KEPT, "h"}


@pytest.mark.parametrize(("rate", "channels", "kind"), [(16000, 1, np.int16), (8000, 2, np.int16), (8000, 1, np.uint8)])
def test_a_recording_of_another_form_is_refused(tmp_path: Path, rate: int, channels: int, kind: Any) -> None:
    file = recording(tmp_path / "a.wav", np.zeros(20, kind), rate, channels)
    with pytest.raises(ConfigError, match="a recording of") as refusal:
        list(app_samples.samples(SOUND, file, ()))
    assert "ffmpeg" in (refusal.value.remedy or "")
    (tmp_path / "b.wav").write_bytes(b"RIFF\0\0")
    with pytest.raises(ConfigError, match="the recording cannot be read"):
        list(app_samples.samples(SOUND, tmp_path / "b.wav", ()))


@pytest.mark.trained
def test_a_detector_of_voices_gives_the_bits_of_its_own_loop(tmp_path: Path) -> None:
    """Silero's model, whose own code keeps 64 samples beside the state."""
    with zipfile.ZipFile(python_packages.download("silero-vad==6.2.3", tmp_path)) as wheel:
        (tmp_path / "vad.onnx").write_bytes(wheel.read("silero_vad/data/silero_vad_op18_ifless.onnx"))
    takes = Takes(samples=SampleKind.INT16, rate=16000, divide=32768, window=576, hop=512, input="input")
    session = attached(tmp_path, onnx.load(tmp_path / "vad.onnx"), takes)
    plain = onnxruntime.InferenceSession(tmp_path / "vad.onnx", providers=["CPUExecutionProvider"])
    generator = np.random.default_rng(0)
    time = np.arange(16000 * 20) / 16000
    voice = np.sin(2 * np.pi * 140 * time) * (np.sin(2 * np.pi * 3 * time) > 0) + 0.1 * generator.standard_normal(
        time.size
    )
    sound = (voice.clip(-1, 1) * 20000).astype(np.int16)
    state, sr = np.zeros((2, 1, 128), np.float32), np.array(16000, np.int64)
    first = {"state": state, "sr": sr, KEPT: np.zeros((1, 64), np.float32)}
    found = streamed(session, sound, 512, {"stateN": "state", NEXT_KEPT: KEPT}, first)
    kept: Any = np.zeros((1, 64), np.float32)
    for step, value in enumerate(found):
        new = sound[None, step * 512 : (step + 1) * 512].astype(np.float32) / np.float32(32768)
        whole = np.concatenate([kept, new], 1)
        wanted, state = plain.run(None, {"input": whole, "state": state, "sr": sr})
        np.testing.assert_array_equal(value.view(np.uint32), wanted.view(np.uint32))
        kept = whole[:, -64:]
    assert len(found) == 625
    assert np.ptp([value[0, 0] for value in found]) > 0.01
