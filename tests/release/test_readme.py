"""The bundle's README.md: everything that an app needs, from the content alone."""

from pathlib import Path

import msgspec
import pytest

from device_runner.spec import ElementType, NnapiFlag, RunOptions
from pipeline.config.tables import Channels, ImageLayout, PreprocessConfig, Range
from pipeline.model.signature import TensorInfo
from pipeline.release.bundle import README_FILE, make_bundle, package_lines, readme
from pipeline.release.manifest import ModelSignature, verify_bundle
from tests.features.android.samples import shipped

PHONE = shipped(
    runs=(RunOptions(provider="nnapi", flags=(NnapiFlag.USE_FP16,), intra_op_threads=2), RunOptions()),
    ort_release="1.29.0", min_api_level=29,
)  # fmt: skip
MODEL = ModelSignature(
    model="m",
    inputs=(
        TensorInfo(name="image", dtype=ElementType.FLOAT32, shape=(1, 3, 320, "width")),
        TensorInfo(name="sr", dtype=ElementType.INT64, shape=()),
    ),
    outputs=(TensorInfo(name="boxes|`x`\n", dtype=ElementType.FLOAT32, shape=(1, None)),),
    dimensions={"height": 320},
    guessed=("height",),
    preprocess=PreprocessConfig(
        resize=(320, 240), channels=Channels.BGR, layout=ImageLayout.NCHW, mean=(1.5, 2.0, 3.0), scale=0.5
    ),
    values={"sr": 16000, "tokens": Range(low=0, high=178)},
)


@pytest.fixture(scope="module")
def text() -> str:
    return readme("demo", (PHONE,), (MODEL,))


@pytest.mark.parametrize(
    "line",
    [
        "## Target `phone`: android, API level 29 or higher, ONNX Runtime 1.29.0",
        'implementation("com.microsoft.onnxruntime:onnxruntime-android:1.29.0")',
        "### Model `m`: `models/m.basic-fixed.ort`",
        "| `image` | float32 | 1 x 3 x 320 x `width` |",
        "| `sr` | int64 | scalar |",
        "| `boxes\\|'x'\\n` | float32 | 1 x ? |",
        "Dimensions that were fixed for this file: `height` = 320. It takes no other sizes.",
        "Sizes that were guessed, and confirmed by nobody: `height`.",
        "1. resize to 320 x 240 (height x width), bilinear with antialiasing, stretch",
        "2. channels BGR",
        "3. (value - (1.5, 2, 3)) * 0.5, with values from 0 to 255",
        "4. layout NCHW",
        "Values of inputs in the test data: `sr`: 16000, `tokens`: random from 0 to below 178.",
        "options.addNnapi(EnumSet.of(NNAPIFlags.USE_FP16))",
        "options.setIntraOpNumThreads(2)",
    ],
)
def test_it_says_what_an_app_does(text: str, line: str) -> None:
    assert line in text.splitlines()


def test_states_are_told_with_their_first_values() -> None:
    states = {"h|n": "h", "c1": "c", "k1": "k"}
    model = msgspec.structs.replace(MODEL, state=states, values={"c": 1.5, "k": Range(low=0, high=2)})
    lines = readme("demo", (PHONE,), (model,)).splitlines()
    start = lines.index("| output | input of the next inference | first value |")
    assert lines[start + 2 : start + 5] == [
        "| `h\\|n` | `h` | zeros |",
        "| `c1` | `c` | 1.5 in each element |",
        "| `k1` | `k` | as in the test data (below) |",
    ]
    assert "state" not in readme("demo", (PHONE,), (MODEL,))


def test_recordings_have_their_own_steps() -> None:
    model = msgspec.structs.replace(MODEL, preprocess=PreprocessConfig(sample_rate=16000, length=512, scale=0.5))
    lines = readme("demo", (PHONE,), (model,)).splitlines()
    wanted = (
        "1. mono: the mean of all channels",
        "2. resample to 16000 samples a second",
        "3. cut, or pad with zeros, to 512 samples",
        "4. (value - 0) * 0.5, with values from -1 to 1",
    )
    assert [line for line in lines if line[:2] in ("1.", "2.", "3.", "4.", "5.")] == list(wanted)


@pytest.mark.parametrize(
    ("platform", "release", "part"),
    [
        ("android", "1.29", "onnxruntime-android:1.29.+"),
        ("ios", "1.29", "pod 'onnxruntime-objc', '~> 1.29.0'"),
        ("ios", "1.24", '.upToNextMinor(from: "1.24.2")'),
        ("ios", "1.29", "No Swift package of ONNX Runtime 1.29 is known."),
        ("ios", "1.24.2", "pod 'onnxruntime-objc', '1.24.2'"),
        ("macos", "1.24.2", 'exact: "1.24.2"'),
        ("linux", "1.29.0", "ONNX Runtime 1.29"),
    ],
)
def test_packages_are_of_the_release_or_of_its_line(platform: str, release: str, part: str) -> None:
    assert part in package_lines(platform, release)


@pytest.mark.parametrize(
    ("library", "kind", "part"),
    [
        ("app.aar", "minimal", "The app ships the library `app.aar` (minimal build), not the package"),
        ("", "extended", "The app ships a reduced build of ONNX Runtime (extended)"),
        ("android:1.28.0", "full", "onnxruntime-android:1.28.0"),
        ("", "", "onnxruntime-android:1.29.0"),
    ],
)
def test_a_library_of_ones_own_stands_in_place_of_the_package(library: str, kind: str, part: str) -> None:
    one = msgspec.structs.replace(PHONE, library=library, library_kind=kind)
    found = readme("demo", (one,), (MODEL,))
    assert part in found
    assert ("implementation(" in found) is part.startswith("onnxruntime-android")


def bundle(folder: Path, measured: bytes) -> str:
    made = make_bundle(
        folder, name="demo", sources={"models/m.basic-fixed.ort": b"x"}, ships=(PHONE,), models=(MODEL,), made_with={},
        evidence={"created_at": str(len(measured))}, reports={"evidence/measured.md": measured},
    )  # fmt: skip
    return made.content_sha256


def test_it_is_in_the_digest_and_what_was_measured_is_not(tmp_path: Path) -> None:
    assert bundle(tmp_path / "a", b"1 ms") == bundle(tmp_path / "b", b"20 ms")
    first, second = ((tmp_path / name / README_FILE).read_bytes() for name in "ab")
    assert first == second
    files = {file.path for file in verify_bundle(tmp_path / "a").files}
    assert {README_FILE, "evidence/measured.md"} <= files
    assert README_FILE in {file.path for file in verify_bundle(tmp_path / "a").content.files}
