"""A picture becomes labels, and a text an embedding, in an app's classes, in a real JVM with the real ONNX Runtime."""

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from pipeline.config import ModelConfig
from pipeline.config.app_data import KEPT, AnswerKind, BoxLayout, Filter, Gives, ImageBytes, SampleKind, Takes, state_of
from pipeline.features.app_data import attach
from pipeline.model.onnx_model import LeanModel
from pipeline.model.signature import TextTokens
from pipeline.passes.base import PassContext
from pipeline.passes.saving import write_model
from tests.android_host.bundles import bundle_of
from tests.features.android.jvm import fetched, released, run
from tests.features.app_data import every_answer, vocabularies
from tests.features.app_data.samples import classifier, labels
from tests.features.app_data.test_text_job import SENTENCES, words
from tests.features.app_data.test_windows import streamed

pytestmark = pytest.mark.network

BITMAP = """
package android.graphics;

import java.nio.Buffer;
import java.nio.ByteBuffer;

public class Bitmap {
    public enum Config { ARGB_8888, RGB_565, HARDWARE }

    private final Config config;
    private final byte[] pixels;
    private final int width;
    private final boolean wide;

    public Bitmap(Config config, byte[] pixels, int width, boolean wide) {
        this.config = config;
        this.pixels = pixels;
        this.width = width;
        this.wide = wide;
    }

    public Config getConfig() { return config; }
    public int getWidth() { return width; }
    public int getHeight() { return pixels.length / 4 / width; }
    public int getRowBytes() { return 4 * width + 16; }

    public ColorSpace getColorSpace() {
        return new ColorSpace() {
            @Override public boolean isSrgb() { return !wide; }
            @Override public String toString() { return "Display P3"; }
        };
    }

    public void copyPixelsToBuffer(Buffer into) {
        for (int y = 0; y < getHeight(); y++) {
            ((ByteBuffer) into).put(pixels, 4 * width * y, 4 * width).put(new byte[16]);
        }
    }
}
"""

COLOR_SPACE = """
package android.graphics;

public abstract class ColorSpace {
    public abstract boolean isSrgb();
}
"""

BUILD = """
package android.os;

public class Build {
    public static class VERSION {
        public static final int SDK_INT = 33;
    }
}
"""

MAIN = """
import android.graphics.Bitmap;
import com.example.demo.*;
import java.io.File;
import java.nio.file.Files;
import java.nio.file.Paths;

public class Pictures {
    static int bits(float value) { return Float.floatToIntBits(value); }

    static void given(Model model, Bitmap bitmap) throws Exception {
        %s
    }

    static void refused(Model model, Bitmap bitmap) throws Exception {
        try {
            given(model, bitmap);
        } catch (IllegalArgumentException error) {
            System.out.println(error.getMessage());
        }
    }

    public static void main(String[] arguments) throws Exception {
        byte[] pixels = Files.readAllBytes(Paths.get(arguments[1]));
        int width = Integer.parseInt(arguments[2]);
        try (Model model = Model.open(new File(arguments[0]))) {
            given(model, new Bitmap(Bitmap.Config.ARGB_8888, pixels, width, false));
            refused(model, new Bitmap(Bitmap.Config.HARDWARE, pixels, width, false));
            refused(model, new Bitmap(Bitmap.Config.ARGB_8888, pixels, width, true));
        }
        System.exit(0);
    }
}
"""

CODE = {
    AnswerKind.CLASSES: """for (Label label : model.classify(bitmap)) {
            System.out.println(label.text + "|" + bits(label.score));
        }""",
    AnswerKind.BOXES: """for (Box box : model.detect(bitmap)) {
            System.out.println(box.text + "|" + bits(box.score) + "|" + bits(box.left) + "|" + bits(box.top)
                    + "|" + bits(box.right) + "|" + bits(box.bottom) + "|" + box.index);
        }""",
    AnswerKind.TEXT: "System.out.println(model.read(bitmap));",
    AnswerKind.EMBEDDING: """for (float number : model.embed(bitmap)) {
            System.out.println("|" + bits(number));
        }""",
    AnswerKind.MASK: """Mask mask = model.segment(bitmap);
        for (int y = 0; y < mask.height; y++) {
            StringBuilder line = new StringBuilder();
            for (int x = 0; x < mask.width; x++) {
                line.append(mask.at(x, y)).append(' ');
            }
            System.out.println(line);
        }""",
    AnswerKind.PROBABILITY: """System.out.println("|" + bits(model.probability(bitmap)));""",
}
"""What prints what a class gives of a bitmap."""


def numbers(lines: list[str]) -> Any:
    """The floats of lines, of which each has the bits behind its first column."""
    rows = [[int(text) for text in line.split("|")[1:]] for line in lines]
    return np.array(rows, np.int32).view(np.float32)


def printed(folder: Path, form: ImageBytes, model: onnx.ModelProto, gives: Gives) -> tuple[list[str], dict[str, Any]]:
    """What the class prints of a bitmap, and the outputs for its bytes in Python."""
    library = fetched("jvm:1.28.0")
    takes = Takes(image=form, filter=Filter.PILLOW_BILINEAR, divide=255)
    lean = LeanModel(proto=model, folder=folder, weights={})
    context = PassContext(folder=folder, where="m.onnx")
    write_model(attach.attach(lean, attach.AttachOptions(takes=takes, gives=gives), context), folder / "whole.onnx")
    table = ModelConfig(path="m.onnx", takes=takes, gives=gives)
    bundle = bundle_of(folder / "made", folder / "whole.onnx", reference=False, table=table)
    aar = released(bundle)
    for name, text in (("graphics/Bitmap", BITMAP), ("graphics/ColorSpace", COLOR_SPACE), ("os/Build", BUILD)):
        file = folder / f"android/{name}.java"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    sources = [str(file) for file in (folder / "android").rglob("*.java")]
    subprocess.run(["javac", "-d", str(folder), *sources], check=True)

    pixels = np.random.default_rng(3).integers(0, 256, (77, 101, 4), np.uint8)
    (folder / "pixels").write_bytes(pixels.tobytes())
    arguments = (str(bundle / "models/model.ort"), str(folder / "pixels"), "101")
    lines = run(MAIN % CODE[gives.answer], arguments, (library, aar.parent / "classes.jar"), folder)
    *lines, hardware, wide = lines
    assert hardware.startswith("the bitmap is HARDWARE, not ARGB_8888: bitmap.copy(")
    assert wide.startswith("the bitmap's colours are Display P3, not sRGB: ")
    session = onnxruntime.InferenceSession(onnx.load(folder / "whole.onnx").SerializeToString())
    outputs = session.run(None, {"image": pixels[None, ..., : form.channels]})
    return lines, dict(zip((output.name for output in session.get_outputs()), outputs, strict=True))


@pytest.mark.parametrize("form", ImageBytes)
def test_a_bitmap_becomes_labels(tmp_path: Path, form: ImageBytes) -> None:
    lines, wanted = printed(tmp_path, form, classifier(), Gives(classes=str(labels(tmp_path)), softmax=True, top=3))
    assert [line.split("|")[0] for line in lines] == list(wanted["labels"][0])
    np.testing.assert_allclose(numbers(lines)[:, 0], wanted["scores"][0], atol=1e-6)  # another release


EMBED = """
import com.example.demo.Model;
import java.io.File;

public class Sentences {
    public static void main(String[] arguments) throws Exception {
        try (Model model = Model.open(new File(arguments[0]))) {
            for (int i = 1; i < arguments.length; i++) {
                StringBuilder line = new StringBuilder();
                for (float value : model.embed(arguments[i])) {
                    line.append(Float.floatToIntBits(value)).append(' ');
                }
                System.out.println(line);
            }
        }
        System.exit(0);
    }
}
"""


@pytest.mark.parametrize(("length", "kind"), [("n", "int64"), ("40", "int32")])
def test_a_text_becomes_an_embedding(tmp_path: Path, length: str, kind: str) -> None:
    library = fetched("jvm:1.28.0")
    tokenizer, tokens = vocabularies.made("bert")
    gives = Gives(embedding=True)
    lean = LeanModel(proto=words(length, kind), folder=tmp_path, weights={})
    context = PassContext(folder=tmp_path, where="m.onnx")
    text = TextTokens(
        file="tokenizers/model.tokens", algorithm="wordpiece", library="tokenizers", ids="ids", mask="mask", most=24
    )
    whole = tmp_path / "whole.onnx"
    write_model(attach.attach(lean, attach.AttachOptions(gives=gives), context), whole)
    table = ModelConfig(path="m.onnx", gives=gives)
    bundle = bundle_of(tmp_path / "made", whole, reference=False, table=table, text=text, more={text.file: tokens})
    aar = released(bundle)
    sentences = [*SENTENCES, "한국어 Éa 😀"]
    arguments = (str(bundle / "models/model.ort"), *sentences)
    lines = run(EMBED, arguments, (library, aar.parent / "classes.jar"), tmp_path)
    session, ids_of = onnxruntime.InferenceSession(whole), vocabularies.oracle(tokenizer, 24)
    for line, sentence in zip(lines, sentences, strict=True):
        ids = ids_of(sentence)
        filled = 40 - len(ids) if length == "40" else 0
        given = {
            "ids": np.array([[*ids, *[0] * filled]], np.int64),
            "mask": np.array([[*[1] * len(ids), *[0] * filled]], kind),
        }
        found = np.array(line.split(), np.int64).astype(np.int32).view(np.float32)
        np.testing.assert_allclose(found, session.run(None, given)[0][0], atol=1e-5)  # another release


@pytest.mark.parametrize("labelled", [False, True])
def test_a_bitmap_becomes_boxes(tmp_path: Path, labelled: bool) -> None:
    gives = Gives(boxes=str(labels(tmp_path)) if labelled else True, layout=BoxLayout.XYXY_SCORE_CLASS, score=0.01)
    lines, wanted = printed(tmp_path, ImageBytes.RGBA, every_answer.headed(every_answer.BOXES), gives)
    texts = list(wanted["labels"]) if labelled else [""] * len(lines)
    assert [line.split("|")[0] for line in lines] == texts
    assert lines
    np.testing.assert_allclose(numbers(lines)[:, 0], wanted["scores"], atol=1e-6)
    np.testing.assert_allclose(numbers(lines)[:, 1:5], wanted["boxes"], atol=1e-4)
    assert [int(line.split("|")[-1]) for line in lines] == list(wanted["classes"])


def test_a_bitmap_becomes_text(tmp_path: Path) -> None:
    (tmp_path / "characters.txt").write_text("é\nb\n \n", "utf-8")
    gives = Gives(text=str(tmp_path / "characters.txt"), softmax=True)
    lines, wanted = printed(tmp_path, ImageBytes.RGBA, every_answer.headed(every_answer.TEXT), gives)
    assert lines == ["".join(wanted["text"])]
    assert lines[0]


def test_a_bitmap_becomes_numbers(tmp_path: Path) -> None:
    lines, wanted = printed(tmp_path, ImageBytes.RGBA, classifier(), Gives(embedding=True, normalize=True))
    assert len(lines) == 20
    np.testing.assert_allclose(numbers(lines)[:, 0], wanted["embedding"][0], atol=1e-6)


def test_a_bitmap_becomes_a_mask_as_large(tmp_path: Path) -> None:
    lines, wanted = printed(tmp_path, ImageBytes.RGBA, every_answer.headed(every_answer.MASK), Gives(mask=True))
    made = np.array([[int(number) for number in line.split()] for line in lines])
    assert made.shape == wanted["mask"].shape == (77, 101)
    assert len(np.unique(made)) > 1
    assert np.mean(made != wanted["mask"]) < 1e-3  # another release


def test_a_bitmap_becomes_one_number(tmp_path: Path) -> None:
    lines, wanted = printed(tmp_path, ImageBytes.RGBA, classifier(), Gives(probability=True, softmax=True, index=7))
    np.testing.assert_allclose(numbers(lines)[0], wanted["probability"], atol=1e-6)


VOICES = """
import com.example.demo.Model;
import java.io.File;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Arrays;

public class Voices {
    public static void main(String[] arguments) throws Exception {
        ByteBuffer bytes = ByteBuffer.wrap(Files.readAllBytes(Paths.get(arguments[1]))).order(ByteOrder.LITTLE_ENDIAN);
        short[] sound = new short[bytes.remaining() / 2];
        bytes.asShortBuffer().get(sound);
        try (Model model = Model.open(new File(arguments[0]))) {
            Model.Stream stream = model.stream();
            for (int size : new int[] {1, 5, 6, 7, 64, sound.length}) {
                StringBuilder line = new StringBuilder();
                for (int at = 0; at < sound.length; at += size) {
                    for (float value : stream.push(Arrays.copyOfRange(sound, at, Math.min(sound.length, at + size)))) {
                        line.append(Float.floatToIntBits(value)).append(' ');
                    }
                }
                System.out.println(line);
                stream.reset();
            }
        }
        System.exit(0);
    }
}
"""


def test_pieces_of_any_size_give_the_bits_of_the_whole(tmp_path: Path) -> None:
    library = fetched("jvm:1.28.0")
    takes = Takes(samples=SampleKind.INT16, rate=8000, divide=32768, hop=6, input="x")
    model = LeanModel(proto=onnx.parser.parse_model(every_answer.VOICES), folder=tmp_path, weights={})
    context = PassContext(folder=tmp_path, where="m.onnx")
    write_model(attach.attach(model, attach.AttachOptions(takes=takes), context), tmp_path / "whole.onnx")
    states = {"hn": "h", **state_of(takes)}
    table = ModelConfig(path="m.onnx", takes=takes, state=states, inputs={"sr": 8000, "h": 0.5})
    bundle = bundle_of(tmp_path / "made", tmp_path / "whole.onnx", reference=False, table=table)
    aar = released(bundle)
    sound: Any = np.random.default_rng(3).integers(-32768, 32768, 6 * 40 + 3, np.int16)
    (tmp_path / "sound").write_bytes(sound.tobytes())
    arguments = (str(bundle / "models/model.ort"), str(tmp_path / "sound"))
    lines = run(VOICES, arguments, (library, aar.parent / "classes.jar"), tmp_path)
    assert len(lines) == 6
    assert len(set(lines)) == 1
    found = np.array(lines[0].split(), np.int64).astype(np.int32).view(np.float32)
    session = onnxruntime.InferenceSession(tmp_path / "whole.onnx")
    first = {"h": np.full((1, 2), 0.5, np.float32), "sr": np.array(8000), KEPT: np.zeros((1, 4), np.float32)}
    wanted = [value[0, 0] for value in streamed(session, sound, 6, states, first)]
    assert len(wanted) == 40
    np.testing.assert_allclose(found, wanted, rtol=1e-5)  # another release
