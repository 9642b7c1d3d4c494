"""The vectors of a bundle, given to the Android classes of its models in a real JVM: their bits are compared."""

import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from device_runner.spec import TensorFile
from pipeline.check.compare import read_tensor
from pipeline.config.app_data import AnswerKind
from pipeline.features.android.package import java_class
from pipeline.release.kept import KeptTensor, KeptVector
from pipeline.release.manifest import ModelSignature, read_manifest
from tests.features.android.jvm import fetched, released, run
from tests.features.app_data.test_on_jvm import BITMAP, BUILD, CODE, COLOR_SPACE

MAIN = """
import @IMPORT@com.example.demo.*;
import java.io.File;
import java.nio.*;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;

public class Vectors {
    static int bits(float value) { return Float.floatToIntBits(value); }

    static byte[] bytes(String path) throws Exception { return Files.readAllBytes(Paths.get(path)); }

    static ByteBuffer buffer(String path) throws Exception {
        return ByteBuffer.wrap(bytes(path)).order(ByteOrder.LITTLE_ENDIAN);
    }

    static void given(@MODEL@ model, String[] paths, int width) throws Exception {
        @CODE@
    }

    public static void main(String[] arguments) throws Exception {
        try (@MODEL@ model = @MODEL@.open(new File(arguments[0]))) {
            for (String line : Files.readAllLines(Paths.get(arguments[1]), StandardCharsets.UTF_8)) {
                String[] words = line.split("\\t");
                given(model, words[1].split(" "), Integer.parseInt(words[0]));
                System.out.println("#");
            }
        }
        System.exit(0);
    }
}
"""

IMAGE = "Bitmap bitmap = new Bitmap(Bitmap.Config.ARGB_8888, bytes(paths[0]), width, false);\n        "
TEXT = """for (float number : model.embed(new String(bytes(paths[0]), StandardCharsets.UTF_8))) {
            System.out.println("|" + bits(number));
        }"""
SOUND = """ShortBuffer sound = buffer(paths[0]).asShortBuffer();
        short[] samples = new short[sound.remaining()];
        sound.get(samples);
        for (float number : model.stream().push(samples)) {
            System.out.println("|" + bits(number));
        }"""


def _floats(values: Any) -> Iterator[str]:
    return ("|" + str(number) for number in np.ravel(values).astype("<f4").view(np.int32).tolist())


def _rows(*columns: Any) -> Iterator[str]:
    """A text with the bits of floats, a line for each."""
    for text, *numbers in zip(*columns, strict=True):
        yield text + "".join(_floats(np.concatenate([np.ravel(number) for number in numbers])))


Outputs = Mapping[str, Any]
ANSWERS: Mapping[AnswerKind, Callable[[Outputs], Iterator[str]]] = {
    AnswerKind.CLASSES: lambda outputs: _rows(outputs["labels"][0], outputs["scores"][0]),
    AnswerKind.BOXES: lambda outputs: _rows(
        outputs["labels"] if "labels" in outputs else [""] * len(outputs["scores"]), outputs["scores"], outputs["boxes"]
    ),
    AnswerKind.TEXT: lambda outputs: iter(["".join(outputs["text"].ravel())]),
    AnswerKind.EMBEDDING: lambda outputs: _floats(outputs["embedding"]),
    AnswerKind.MASK: lambda outputs: ("".join(f"{number} " for number in row) for row in outputs["mask"]),
    AnswerKind.PROBABILITY: lambda outputs: _floats(outputs["probability"]),
}
"""What a class prints of an answer."""


def _array(bundle: Path, kept: KeptTensor) -> Any:
    return read_tensor(TensorFile(name=kept.name, dtype=kept.dtype, shape=kept.shape, file=str(bundle / kept.path)))


def _wanted(bundle: Path, signature: ModelSignature, vector: KeptVector) -> list[str]:
    outputs = {kept.name: _array(bundle, kept) for kept in vector.outputs}
    answer = signature.answer
    return list(ANSWERS[answer](outputs) if answer else _floats(next(iter(outputs.values()))))


def _line(bundle: Path, signature: ModelSignature, vector: KeptVector, file: Path) -> str:
    """What the program is given of a vector: a width, and paths of what the app has and of tensors."""
    width = 0
    if signature.takes_image:
        pixels = _array(bundle, vector.inputs[0])[0]
        opaque = np.full((*pixels.shape[:2], 4), 255, np.uint8)
        opaque[..., : pixels.shape[2]] = pixels
        width = pixels.shape[1]
        file.write_bytes(opaque.tobytes())
    elif vector.text:
        file.write_text(vector.text, "utf-8")
    elif signature.rate:
        file.write_bytes((bundle / vector.inputs[0].path).read_bytes())
    else:
        return f"0\t{' '.join(str(bundle / kept.path) for kept in vector.inputs)}"
    return f"{width}\t{file}"


def equal(bundle: Path, code: str = "") -> int:
    """How many vectors of a bundle's only model its class gives again in all bits; fails for one that it does not.

    `code` prints what the class gives of tensors, where the app has no other data. The JVM has the ONNX Runtime of the
    release that made the vectors.
    """
    manifest, folder = read_manifest(bundle), bundle.parent
    (kept,) = manifest.vectors
    assert kept.vectors, kept.none
    signature = manifest.content.signature(kept.model)
    library, aar = fetched(f"jvm:{kept.ort_release}"), released(bundle)
    if signature.takes_image:
        _compile_stubs(folder)
        assert signature.answer
        code = IMAGE + CODE[signature.answer]
    elif not code:
        code = TEXT if signature.takes_text else SOUND
    lines = [_line(bundle, signature, vector, folder / f"given_{number}") for number, vector in enumerate(kept.vectors)]
    (folder / "vectors.txt").write_text("\n".join(lines), "utf-8")
    source = MAIN.replace("@MODEL@", java_class(kept.model)).replace("@CODE@", code)
    source = source.replace("@IMPORT@", "android.graphics.Bitmap;\nimport " if signature.takes_image else "")
    arguments = (str(bundle / kept.file), str(folder / "vectors.txt"))
    printed: Sequence[str] = run(source, arguments, (library, aar.parent / "classes.jar"), folder)
    answers = "\n".join(printed).split("#")[:-1]
    for answer, vector in zip(answers, kept.vectors, strict=True):
        assert answer.strip("\n").split("\n") == _wanted(bundle, signature, vector)
    return len(kept.vectors)


def _compile_stubs(folder: Path) -> None:
    """Android's bitmaps, as far as classes need them."""
    for name, text in (("graphics/Bitmap", BITMAP), ("graphics/ColorSpace", COLOR_SPACE), ("os/Build", BUILD)):
        file = folder / f"android/{name}.java"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    sources = [str(file) for file in (folder / "android").rglob("*.java")]
    subprocess.run(["javac", "-d", str(folder), *sources], check=True)
