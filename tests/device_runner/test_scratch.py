"""Scratch folders: gone at the end, kept while their process runs, removed when it was killed; folders replaced."""

import subprocess
import sys
from pathlib import Path

import pytest

from device_runner import files
from device_runner.errors import RunnerError, SpecError
from device_runner.files import remove_abandoned, restore_place, scratch_folder, staging_folder, take_place

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


def test_links_files_and_longer_names_that_begin_alike_are_left_alone(tmp_path: Path) -> None:
    kept = {"mine", "work-", "work-abcdefghi", "work-other-abcdefgh"}
    for name in (*kept, "work-abcdefgh"):
        (tmp_path / name).mkdir()
    (tmp_path / "work-symlinks").symlink_to(tmp_path / "mine")
    (tmp_path / "work-filename").write_text("x")
    remove_abandoned("work-", tmp_path)
    remove_abandoned("work-", tmp_path / "not-there")
    assert {path.name for path in tmp_path.iterdir()} == {*kept, "work-symlinks", "work-filename"}


def test_an_error_of_the_block_is_not_taken_for_a_lock(tmp_path: Path) -> None:
    with pytest.raises(BlockingIOError), scratch_folder("work-", tmp_path):
        raise BlockingIOError


STOPS = """
import errno, os, signal, sys
from pathlib import Path
from device_runner import files

parent, way, name = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
place = parent / name
if way == "renames":
    files._exchange = lambda new, place: False

def replace(content):
    with files.staging_folder(place) as new:
        for part in ("a", "b"):
            (new / part).write_text(content)
        files.take_place(new, place)

def kill(): os.kill(os.getpid(), signal.SIGKILL)
def interrupt(): raise KeyboardInterrupt
def fail(): raise OSError(errno.EIO, "stopped")
def fill(): raise OSError(errno.ENOSPC, "stopped")

left, action = None, None
def count(event, arguments):
    global left
    if left is not None and event in ("open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.scandir"):
        left -= 1
        if left < 0:
            left = None
            action()
sys.addaudithook(count)

for action in (kill, interrupt, fail, fill):
    stops, old = 0, "start"
    replace(old)
    while True:
        child = os.fork()
        if not child:
            left = stops
            try:
                replace(f"{action.__name__} {stops}")
                os._exit(0 if left is not None else 1)  # what is only cleaned up may fail
            except (OSError, KeyboardInterrupt):
                os._exit(2)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if way == "exchange" or ended >= 0:
            assert place.is_dir(), (action, stops, "there is nothing")
        if ended < 0:
            files.restore_place(place)
        assert sorted(path.name for path in parent.iterdir()) == sorted({name, *sys.argv[4:]}), (action, stops)
        found = {(place / part).read_text() for part in ("a", "b")}
        assert found in ({old}, {f"{action.__name__} {stops}"}), (action, stops, found, old)
        (old,) = found
        if ended == 0:
            assert old == f"{action.__name__} {stops}"
            break
        stops += 1
    print(stops)
"""


@pytest.mark.parametrize("way", ["exchange", "renames"])
def test_wherever_it_is_stopped_the_old_or_the_new_folder_is_there_whole(tmp_path: Path, way: str) -> None:
    (tmp_path / "m[1].v2").mkdir()
    command = [sys.executable, "-c", STOPS, str(tmp_path), way, "m[1]", "m[1].v2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(int(stops) >= 10 for stops in done.stdout.split())


@pytest.mark.parametrize("other", ["m.v2", ".m", "m.ort-mobile", "M"])
def test_what_a_kill_left_of_one_folder_is_not_taken_for_anothers(tmp_path: Path, other: str) -> None:
    left = files.staging_of(tmp_path / other) / files.OLD
    left.mkdir(parents=True)
    (left / "model").write_text("the only copy")
    restore_place(tmp_path / "m")
    assert not (tmp_path / "m").exists()
    with staging_folder(tmp_path / "m") as new:
        take_place(new, tmp_path / "m")
    restore_place(tmp_path / other)
    assert (tmp_path / other / "model").read_text() == "the only copy"


def test_of_two_at_once_the_second_is_told(tmp_path: Path) -> None:
    with (
        staging_folder(tmp_path / "m") as new,
        pytest.raises(SpecError, match="another process is replacing this"),
        staging_folder(tmp_path / "m"),
    ):
        pass
    with staging_folder(tmp_path / "m") as new:
        take_place(new, tmp_path / "m")
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_nothing_is_put_back_while_another_process_replaces_it(tmp_path: Path) -> None:
    with staging_folder(tmp_path / "m") as new:
        (new.parent / files.OLD).mkdir()
        restore_place(tmp_path / "m")
        assert not (tmp_path / "m").exists()


def test_names_of_any_length_can_be_replaced(tmp_path: Path) -> None:
    place = tmp_path / ("m" * 255)
    with staging_folder(place) as new:
        take_place(new, place)
    assert [path.name for path in tmp_path.iterdir()] == [place.name]


def test_the_folder_that_a_link_names_is_replaced_and_the_link_stays(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "current").symlink_to("1")
    with staging_folder(tmp_path / "current") as new:
        (new / "model").write_text("x")
        take_place(new, tmp_path / "current")
    assert (tmp_path / "current").readlink() == Path("1")
    assert (tmp_path / "1" / "model").read_text() == "x"


def test_what_cannot_be_put_back_stays_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "m"
    place.mkdir()
    (place / "model").write_text("x")
    rename = Path.rename
    monkeypatch.setattr(files, "_exchange", lambda new, place: False)

    def broken(self: Path, target: Path) -> Path:
        if target == place:
            raise OSError(5, "Input/output error")
        return rename(self, target)

    def replace() -> None:
        with staging_folder(place) as new:
            monkeypatch.setattr(Path, "rename", broken)
            take_place(new, place)

    with pytest.raises(RunnerError, match="could not be put back") as caught:
        replace()
    assert str(files.staging_of(place) / files.OLD) in caught.value.remedy
    monkeypatch.setattr(Path, "rename", rename)
    restore_place(place)
    assert (place / "model").read_text() == "x"
