"""The config that `init` writes for an app whose library and platforms are named."""

from pathlib import Path

import pytest

from pipeline.config import read_config
from tests.command import ort_mobile
from tests.job.test_job import EXAMPLE

MNIST = EXAMPLE / "mnist.onnx"


@pytest.mark.parametrize("release", ["1.29.0", "1.29"])
def test_the_config_of_an_app_needs_no_edit(tmp_path: Path, release: str) -> None:
    file = tmp_path / "m.toml"
    ort_mobile("init", MNIST, "--output", file, "--android", release, "--ios")
    android, ios = read_config(file).targets
    assert (android.library, android.ort_release) == ("android:1.29.0", "1.29")
    assert (ios.platform.value, bool(ios.ort_release)) == ("ios", True)


def test_a_word_that_is_no_release_leaves_no_file(tmp_path: Path) -> None:
    told = ort_mobile("init", MNIST, "--output", tmp_path / "m.toml", "--android", "newest", code=2).err
    assert "--android: 'newest' is not a release of ONNX Runtime" in told
    assert not list(tmp_path.iterdir())
