"""A classifier of pictures with its labels, small and made here."""

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from PIL import Image

CLASSES = 20
SIZE = (32, 48)

TEXT = """
<ir_version: 8, opset_import: ["" : {opset}]>
classifier (float[batch, 3, 32, 48] x) => (float[batch, {classes}] logits) {{
    features = Conv<strides = [2, 2]>(x, kernel)
    kept = Relu(features)
    pooled = GlobalAveragePool(kept)
    flat = Flatten(pooled)
    logits = Gemm(flat, weight)
}}
"""


def classifier(opset: int = 18) -> onnx.ModelProto:
    generator = np.random.default_rng(0)
    model = onnx.parser.parse_model(TEXT.format(opset=opset, classes=CLASSES))
    for name, shape in (("kernel", (8, 3, 3, 3)), ("weight", (8, CLASSES))):
        values = generator.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    return model


def labels(folder: Path, count: int = CLASSES) -> Path:
    file = folder / "labels.txt"
    file.write_text("".join(f"class {number} é\n" for number in range(count)), "utf-8")
    return file


def pictures(folder: Path, count: int = 8) -> Path:
    """Pictures of every size, no two with one content."""
    generator = np.random.default_rng(1)
    (folder / "pictures").mkdir()
    for number in range(count):
        coarse = Image.fromarray(generator.integers(0, 256, (4, 6, 3), np.uint8))
        coarse.resize((60 + 30 * number, 90 + 11 * number)).save(folder / f"pictures/{number}.png")
    return folder / "pictures"
