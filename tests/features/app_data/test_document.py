"""The config of docs/app-data.md, run as it stands there."""

import json
import re
from pathlib import Path

import onnx
import pytest

from tests.command import ort_mobile
from tests.features.app_data.samples import classifier, labels, pictures

DOCUMENT = Path(__file__).parents[3] / "docs/app-data.md"

pytestmark = pytest.mark.long

VARIANTS = ("basic-fixed", "basic-fixed-s8s8pc")


def config(folder: Path) -> Path:
    """The document's config beside its files."""
    block = re.search(r"```toml\n(.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL)
    assert block
    onnx.save(classifier(), folder / "classifier.onnx")
    labels(folder)
    pictures(folder)
    file = folder / "pictures.toml"
    file.write_text(block[1] + "\n[measure]\nrounds = 1\nmin_seconds = 0.05\n", "utf-8")
    return file


def test_pictures_become_labels_in_each_precision(tmp_path: Path) -> None:
    done = ort_mobile("run", config(tmp_path), "--output", tmp_path / "out", "--device", "local")
    results = json.loads((tmp_path / "out/results.json").read_text("utf-8"))
    assert {(row["variant"], row["status"]) for row in results["rows"]} == {(name, "ok") for name in VARIANTS}
    assert "Ready to ship" in done.out
    (signature,) = json.loads((tmp_path / "out/bundle/manifest.json").read_text("utf-8"))["content"]["models"]
    assert (signature["image"], signature["answer"]) == ("rgba", "classes")
    assert [output["name"] for output in signature["outputs"]] == ["labels", "scores"]
    assert "takes the bytes of an image of any size" in (tmp_path / "out/bundle/README.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ('"labels.txt"', '"none.txt"', "no such file: classes"),
        ("pillow-bilinear", "area", "the value of `models[0].takes.filter` is not allowed"),
        ("crop = [32, 48]", "crop = [32, 32]", "does not fit the input 'x'"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_remedy(tmp_path: Path, old: str, new: str, what: str) -> None:
    file = config(tmp_path)
    file.write_text(file.read_text("utf-8").replace(old, new), "utf-8")
    done = ort_mobile("run", file, "--output", tmp_path / "out", "--device", "local", code=None)
    assert done.code
    assert what in done.err + done.out
    assert "remedy: " in done.err
    assert not (tmp_path / "out/bundle").exists()
