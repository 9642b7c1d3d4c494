"""A bundle with a model for each answer, and what a program of any language must print of it: equal bits.

A line for each answer: texts as they are, floats as the integers of their bits, columns with `|` between them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from device_runner.spec import ElementType
from pipeline.config import ModelConfig
from pipeline.config.app_data import KEPT, BoxLayout, Filter, Gives, ImageBytes, SampleKind, Takes, state_of
from pipeline.features.app_data import attach
from pipeline.model.onnx_model import LeanModel
from pipeline.model.signature import TextTokens
from pipeline.passes.base import PassContext
from pipeline.passes.saving import write_model
from pipeline.release.bundle import make_bundle
from pipeline.release.manifest import ModelSignature
from pipeline.release.reference_files import signature_of
from tests.features.android.samples import CPU, shipped
from tests.features.app_data import vocabularies
from tests.features.app_data.samples import classifier, labels
from tests.features.app_data.test_text_job import SENTENCES, words
from tests.features.app_data.test_windows import streamed
from tests.ort_models import convert

BOXES = """1, 2, 6] head) {
        shape = Constant<value_ints = [1, 2, 6]>()
        start = Constant<value_ints = [0]>()
        end = Constant<value_ints = [12]>()
        axis = Constant<value_ints = [1]>()
        some = Slice(logits, start, end, axis)
        likely = Sigmoid(some)
        rows = Reshape(likely, shape)
        factors = Constant<value_floats = [20.0, 20.0, 30.0, 30.0, 1.0, 1.0]>()
        head = Mul(rows, factors)
    }"""
TEXT = """1, 5, 4] head) {
        shape = Constant<value_ints = [1, 5, 4]>()
        head = Reshape(logits, shape)
    }"""
MASK = """1, 5, 2, 2] head) {
        shape = Constant<value_ints = [1, 5, 2, 2]>()
        head = Reshape(logits, shape)
    }"""

VOICES = """<ir_version: 8, opset_import: ["" : 17]>
m (float[1, 10] x, float[batch, 2] h, int64 sr) => (float[1, 1] y, float[batch, 2] hn) {
    mean = ReduceMean<axes = [1], keepdims = 1>(x)
    hn = Add(h, mean)
    rate = Cast<to = 1>(sr)
    sum = ReduceSum<keepdims = 1>(hn)
    y = Div(sum, rate)
}"""
"""A model of a window of sound with a state of its own, and its rate."""


def headed(text: str) -> onnx.ModelProto:
    """The classifier with another head behind the 20 values of each picture."""
    model = classifier()
    more = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 18]>
    m (float[1, 20] logits) => (float[{text}""")
    del model.graph.output[:]
    model.graph.node.extend(more.graph.node)
    model.graph.output.extend(more.graph.output)
    return model


WIDTH, HEIGHT = 101, 77
TEXTS = (*SENTENCES, "한국어 Éa 😀")
CHUNKS = (1, 5, 6, 7, 64, 0)
"""Samples of the pieces of a recording; 0 is for pieces of sizes that change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A bundle in a folder with `picture` (RGBA) and `sound` beside it, and the lines that are wanted of it."""

    folder: Path
    lines: tuple[str, ...]

    @property
    def bundle(self) -> Path:
        return self.folder / "bundle"


def _pictures(folder: Path) -> Mapping[str, tuple[onnx.ModelProto, Gives, ImageBytes]]:
    (folder / "characters.txt").write_text("é\nb\n \n", "utf-8")
    file, rgba, rgb = str(labels(folder)), ImageBytes.RGBA, ImageBytes.RGB
    boxes = Gives(boxes=True, layout=BoxLayout.XYXY_SCORE_CLASS, score=0.01)
    text = Gives(text=str(folder / "characters.txt"), softmax=True)
    return {
        "classifier": (classifier(), Gives(classes=file, softmax=True, top=3), rgba),
        "detector": (headed(BOXES), boxes, rgb),
        "labelled": (headed(BOXES), Gives(boxes=file, layout=boxes.layout, score=boxes.score), rgba),
        "reader": (headed(TEXT), text, rgba),
        "embedder": (classifier(), Gives(embedding=True, normalize=True), rgb),
        "segmenter": (headed(MASK), Gives(mask=True), rgba),
        "scorer": (classifier(), Gives(probability=True, softmax=True, index=7), rgba),
    }


def _attached(folder: Path, name: str, proto: onnx.ModelProto, takes: Takes | None, gives: Gives | None) -> Path:
    model, context = LeanModel(proto=proto, folder=folder, weights={}), PassContext(folder=folder, where=name)
    write_model(attach.attach(model, attach.AttachOptions(takes=takes, gives=gives), context), folder / f"{name}.onnx")
    return convert(folder / f"{name}.onnx", folder / f"{name}.ort")


def made(folder: Path, samples: SampleKind = SampleKind.INT16, **shipping: Any) -> Made:
    """The bundle; `shipping` is what else is said of each model in its list of what ships."""
    files: dict[str, Path] = {}
    signatures: list[ModelSignature] = []
    lines: list[str] = []
    picture = np.random.default_rng(3).integers(0, 256, (HEIGHT, WIDTH, 4), np.uint8)
    (folder / "picture").write_bytes(picture.tobytes())
    for name, (proto, gives, form) in _pictures(folder).items():
        takes = Takes(image=form, filter=Filter.PILLOW_BILINEAR, divide=255)
        files[name] = _attached(folder, name, proto, takes, gives)
        signatures.append(signature_of(name, files[name], ModelConfig(path="", takes=takes, gives=gives)))
        lines.append(_answer(_outputs(files[name], {"image": picture[None, ..., : form.channels]})))

    tokenizer, tokens = vocabularies.made("bert")
    text = TextTokens(
        file="tokenizers/words.tokens", algorithm="wordpiece", library="tokenizers", ids="ids", mask="mask", most=24
    )
    for name, length in (("words", "n"), ("sentences", "40")):
        gives = Gives(embedding=True)
        files[name] = _attached(folder, name, words(length), None, gives)
        signatures.append(signature_of(name, files[name], ModelConfig(path="", gives=gives), text=text))
        lines += _embeddings(files[name], tokenizer, length)

    takes = Takes(samples=samples, rate=8000, divide=32768, hop=6, input="x")
    files["vad"] = _attached(folder, "vad", onnx.parser.parse_model(VOICES), takes, None)
    states = {"hn": "h", **state_of(takes)}
    table = ModelConfig(path="", takes=takes, state=states, inputs={"sr": 8000, "h": 0.5})
    signatures.append(signature_of("vad", files["vad"], table))
    sound: Any = np.random.default_rng(3).integers(-32768, 32768, 6 * 40 + 3, np.int16)
    (folder / "sound").write_bytes(sound.tobytes())
    first = {"h": np.full((1, 2), 0.5, np.float32), "sr": np.array(8000), KEPT: np.zeros((1, 4), np.float32)}
    given = sound if samples is SampleKind.INT16 else sound.astype(np.float32)
    values = streamed(_session(files["vad"]), given, 6, states, first)
    lines += [bits(np.concatenate(values))] * (len(CHUNKS) + 1)

    ships = [shipped(name, **{"file": f"models/{name}.ort", "runs": (CPU,), **shipping}) for name in files]
    make_bundle(
        folder / "bundle", name="Demo app", ships=tuple(ships), made_with={}, evidence={}, models=tuple(signatures),
        sources={**{f"models/{name}.ort": file for name, file in files.items()}, text.file: tokens},
    )  # fmt: skip
    return Made(folder=folder, lines=tuple(lines))


def _session(file: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(file.read_bytes())


def _outputs(file: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    session = _session(file)
    outputs = session.run(None, dict(given))
    return dict(zip((output.name for output in session.get_outputs()), outputs, strict=True))


def bits(values: Any) -> str:
    """Floats as the integers of their bits."""
    return " ".join(str(number) for number in np.ravel(values).astype(np.float32).view(np.int32))


def _answer(outputs: Mapping[str, Any]) -> str:
    return "; ".join(_parts(outputs))


def _parts(outputs: Mapping[str, Any]) -> Iterator[str]:
    if "boxes" in outputs:
        names = outputs.get("labels", [""] * len(outputs["scores"]))
        rows = zip(names, outputs["classes"], outputs["scores"], outputs["boxes"], strict=True)
        yield from (f"{name}|{index}|{bits(score)}|{bits(edges)}" for name, index, score, edges in rows)
    elif "labels" in outputs:
        pairs = zip(outputs["labels"][0], outputs["scores"][0], strict=True)
        yield from (f"{name}|{bits(score)}" for name, score in pairs)
    elif "text" in outputs:
        yield "".join(outputs["text"])
    elif "mask" in outputs:
        yield f"{WIDTH}x{HEIGHT} " + " ".join(map(str, np.ravel(outputs["mask"])))
    else:
        (values,) = outputs.values()
        yield bits(values)


def _embeddings(file: Path, tokenizer: str, length: str) -> Iterator[str]:
    ids_of = vocabularies.oracle(tokenizer, 24)
    for text in TEXTS:
        ids = ids_of(text)
        filled = 40 - len(ids) if length == "40" else 0
        given = {
            "ids": np.array([[*ids, *[0] * filled]], np.int64),
            "mask": np.array([[*[1] * len(ids), *[0] * filled]], ElementType.INT64.value),
        }
        yield bits(_outputs(file, given)["embedding"])
