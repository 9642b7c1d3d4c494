"""A detector that is small enough to read, and pictures for it: it finds red and blue squares, trained by nobody.

The picture is divided into 8 x 8 cells. How much redder or bluer than the rest a cell is, is what the detector is sure
of; a box lies around each cell's middle. What several cells find of one square, `gives` makes one box of.
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from PIL import Image, ImageDraw

SIDE, CELLS = 64, 8

MODEL = """
<ir_version: 8, opset_import: ["" : 18]>
squares (float[1, 3, 64, 64] image) => (float[1, 6, 64] head) {
    cells = AveragePool<kernel_shape = [8, 8], strides = [8, 8]>(image)
    likely = Conv(cells, colours, least)
    sure = Sigmoid(likely)
    rows = Reshape(sure, shape)
    head = Concat<axis = 1>(places, rows)
}
"""


def detector() -> onnx.ModelProto:
    """Middle, width and height of a box for each of 64 cells, then how sure it is of red and blue: [1, 4 + 2, 64]."""
    step = SIDE // CELLS
    y, x = np.divmod(np.arange(CELLS * CELLS), CELLS)
    middle = [(number + 0.5) * step for number in (x, y)]
    places = np.stack([*middle, np.full(x.size, 2 * step), np.full(x.size, 2 * step)])[None]
    constants = {
        "colours": np.array([[12, -6, -6], [-6, -6, 12]], np.float32)[:, :, None, None],
        "least": np.array([-6, -6], np.float32),
        "shape": np.array([1, 2, CELLS * CELLS]),
        "places": places.astype(np.float32),
    }
    model = onnx.parser.parse_model(MODEL)
    model.graph.initializer.extend(numpy_helper.from_array(values, name) for name, values in constants.items())
    onnx.checker.check_model(model)
    return model


def make(folder: Path, count: int = 40) -> None:
    """The detector, and pictures of up to four squares on grey."""
    onnx.save(detector(), folder / "squares.onnx")
    generator = np.random.default_rng(3)
    (folder / "squares").mkdir(exist_ok=True)
    for number in range(count):
        width, height = generator.integers(80, 400, 2).tolist()
        picture = Image.new("RGB", (width, height), tuple([int(generator.integers(90, 180))] * 3))
        drawing, side = ImageDraw.Draw(picture), max(width, height) // 4
        for _ in range(int(generator.integers(1, 5))):
            left, top = int(generator.integers(0, width - side // 2)), int(generator.integers(0, height - side // 2))
            drawing.rectangle((left, top, left + side, top + side), fill=str(generator.choice(["red", "blue"])))
        picture.save(folder / f"squares/{number:02}.png")
