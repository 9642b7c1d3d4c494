"""The output folder: one job at a time, nothing of others overwritten, cleaned after a kill."""

import subprocess
import sys
from pathlib import Path

import pytest

from device_runner.files import scratch_folder
from pipeline.core.errors import ConfigError, ExitCode
from pipeline.core.files import WRITTEN
from pipeline.job.stored import locked
from pipeline.release.manifest import MANIFEST_FILE

KILLED = """
import os, sys
from pathlib import Path
from pipeline.job.stored import locked
with locked(Path(sys.argv[1])):
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("name", WRITTEN)
def test_files_of_others_are_refused_by_name_and_left_alone(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "out"
    theirs = folder / name if "." in name else folder / name / "precious"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("precious")
    with (
        pytest.raises(ConfigError, match=f"{name} in the output folder is not of an earlier run") as caught,
        locked(folder),
    ):
        pass
    assert caught.value.exit_code is ExitCode.USAGE
    assert caught.value.where == str(folder / name)
    assert theirs.read_text() == "precious"
    assert len(list(folder.iterdir())) == 1, "nothing was written before the refusal"


def test_a_folder_with_other_names_and_empty_folders_may_be_used(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").touch()
    (tmp_path / "artifacts").mkdir()
    with locked(tmp_path):
        (tmp_path / "report.html").write_text("ours")
    with locked(tmp_path):
        pass
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "app.kt").touch()
    with pytest.raises(ConfigError, match="no bundle of ours"), locked(tmp_path):
        pass


def test_one_job_at_a_time(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(ConfigError, match="another job"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


def test_the_lock_is_neither_followed_nor_emptied(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / ".lock").symlink_to(victim)
    with pytest.raises(ConfigError, match="symbolic link"), locked(folder):
        pass
    assert victim.read_text() == "precious"
    (folder / ".lock").unlink()
    (folder / ".lock").write_text("kept")
    with locked(folder):
        assert (folder / ".lock").read_text() == "kept"


def test_what_killed_jobs_left_is_removed_and_what_is_in_use_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, temporary = tmp_path / "out", tmp_path / "tmp"
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    left = [
        folder / ".work.aaaaaaaa/models",
        folder / "artifacts/.work.bbbbbbbb",
        folder / ".bundle.ort-mobile/new",
        temporary / "ort-mobile-run-dddddddd",
    ]
    for path in left:
        path.mkdir(parents=True)
    for name in (".report.html.x.part", "artifacts/.m.ort.y.part"):
        (folder / name).touch()
    (folder / "results.sqlite").touch()
    with scratch_folder("ort-mobile-run-") as running, locked(folder):
        assert running.is_dir()
        assert {path.name for path in folder.rglob("*")} == {".lock", "results.sqlite", "artifacts"}
        assert list(temporary.iterdir()) == [running]


def test_a_bundle_that_was_being_replaced_is_put_back(tmp_path: Path) -> None:
    old = tmp_path / ".bundle.ort-mobile" / "old"
    old.mkdir(parents=True)
    (old / MANIFEST_FILE).write_text("{}")
    with locked(tmp_path):
        assert (tmp_path / "bundle" / MANIFEST_FILE).read_text() == "{}"
    assert {path.name for path in tmp_path.iterdir()} == {".lock", "bundle"}


def test_a_killed_job_leaves_its_folder_free(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, tmp_path], check=False, cwd=Path(__file__).parents[2])
    with locked(tmp_path):
        pass
