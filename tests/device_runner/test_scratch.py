"""Scratch folders: gone at the end, kept while their process runs, removed when it was killed."""

import subprocess
import sys
from pathlib import Path

import pytest

from device_runner.files import remove_abandoned, scratch_folder

MAKER = """
import sys, time
from pathlib import Path
from device_runner.files import scratch_folder
with scratch_folder("work-", Path(sys.argv[1])) as folder:
    (folder / "model").write_text("x")
    print(folder, flush=True)
    time.sleep(60)
"""


def test_a_folder_is_gone_at_the_end_also_after_an_error(tmp_path: Path) -> None:
    def interrupted() -> None:
        with scratch_folder("work-", tmp_path) as folder:
            assert folder.is_dir()
            assert folder.parent == tmp_path
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed_and_what_a_running_one_has_is_not(tmp_path: Path) -> None:
    maker = subprocess.Popen([sys.executable, "-c", MAKER, tmp_path], stdout=subprocess.PIPE, text=True)
    assert maker.stdout is not None
    folder = Path(maker.stdout.readline().strip())
    try:
        remove_abandoned("work-", tmp_path)
        assert (folder / "model").is_file()
    finally:
        maker.kill()
        maker.communicate()
    assert folder.is_dir()
    remove_abandoned("other-", tmp_path)
    assert folder.is_dir()
    remove_abandoned("work-", tmp_path)
    assert not folder.exists()


def test_links_and_files_of_that_name_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "work-link").symlink_to(tmp_path / "mine")
    (tmp_path / "work-file").write_text("x")
    remove_abandoned("work-", tmp_path)
    remove_abandoned("work-", tmp_path / "not-there")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "work-file", "work-link"]
