"""The vectors of a bundle, given to the Android class of its model in a real JVM."""

import subprocess
from pathlib import Path

from pipeline.config.app_data import AnswerKind
from pipeline.features.android.package import java_class
from tests.features.android.jvm import fetched, released, run
from tests.features.app_data.test_on_jvm import BITMAP, BUILD, CODE, COLOR_SPACE
from tests.features.vectors import program

MAIN = """
import @IMPORT@com.example.demo.*;
import java.io.File;
import java.nio.*;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;

public class Replay {
    static int bits(float value) { return Float.floatToIntBits(value); }

    static byte[] bytes(String path) throws Exception { return Files.readAllBytes(Paths.get(path)); }

    static ByteBuffer buffer(String path) throws Exception {
        return ByteBuffer.wrap(bytes(path)).order(ByteOrder.LITTLE_ENDIAN);
    }

    static void given(@MODEL@ model, String[] words) throws Exception {
        @CODE@
    }

    public static void main(String[] arguments) throws Exception {
        try (@MODEL@ model = @MODEL@.open(new File(arguments[0]))) {
            for (String line : Files.readAllLines(Paths.get(arguments[1]), StandardCharsets.UTF_8)) {
                given(model, line.split(" "));
                System.out.println("#");
            }
        }
        System.exit(0);
    }
}
"""

IMAGE = "Bitmap bitmap = new Bitmap(Bitmap.Config.ARGB_8888, bytes(words[2]), Integer.parseInt(words[0]), false);\n"
TEXT = """for (float number : model.embed(new String(bytes(words[2]), StandardCharsets.UTF_8))) {
            System.out.println("|" + bits(number));
        }"""
SOUND = """ShortBuffer sound = buffer(words[2]).asShortBuffer();
        short[] samples = new short[sound.remaining()];
        sound.get(samples);
        for (float number : model.stream().push(samples)) {
            System.out.println("|" + bits(number));
        }"""


def equal(bundle: Path, code: str = "") -> int:
    """How many vectors of a bundle's only model its class gives again in all bits; fails for one that it does not.

    `code` prints what the class gives of tensors, where the app has no other data. The JVM has the ONNX Runtime of the
    release that made the vectors.
    """
    (vectors,), folder = program.of_bundle(bundle), bundle.parent
    kept, signature = vectors.kept, vectors.signature
    library, aar = fetched(f"jvm:{kept.ort_release}"), released(bundle)
    if signature.takes_image and signature.answer:
        _compile_stubs(folder)
        code = IMAGE + CODE[signature.answer]
    elif signature.answer is AnswerKind.EMBEDDING:
        code = TEXT
    source = MAIN.replace("@MODEL@", java_class(kept.model)).replace("@CODE@", code or SOUND)
    source = source.replace("@IMPORT@", "android.graphics.Bitmap;\nimport " if signature.takes_image else "")
    arguments = (str(bundle / kept.file), str(vectors.written()))
    return vectors.equal(run(source, arguments, (library, aar.parent / "classes.jar"), folder))


def _compile_stubs(folder: Path) -> None:
    """Android's bitmaps, as far as classes need them."""
    for name, text in (("graphics/Bitmap", BITMAP), ("graphics/ColorSpace", COLOR_SPACE), ("os/Build", BUILD)):
        file = folder / f"android/{name}.java"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    sources = [str(file) for file in (folder / "android").rglob("*.java")]
    subprocess.run(["javac", "-d", str(folder), *sources], check=True)
