"""The run of the tests itself: homes of its own, skips by the table only."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from device_runner.errors import UnavailableError
from device_runner.files import cache_folder
from device_runner.library import find_archive
from tests import own_home
from tests.skips import ALLOWED

ROOT = Path(__file__).resolve().parent.parent
RUN = Path(os.environ[own_home.FOLDER_VARIABLE])


def test_home_and_cache_are_of_this_test_alone() -> None:
    assert Path.home().parent == RUN
    assert cache_folder() == Path.home() / ".cache" / "ort-mobile"
    assert sorted(path.name for path in cache_folder().iterdir()) == sorted(own_home.BUILT)
    with own_home.home(may_fetch=True) as other:
        assert other != Path.home()
        assert {path.name for path in (other / own_home.CACHE).iterdir()} == {*own_home.BUILT, *own_home.FETCHED}


def test_only_a_home_that_was_left_as_it_was_made_serves_again() -> None:
    with own_home.home(may_fetch=False) as first:
        pass
    with own_home.home(may_fetch=False) as second:
        assert second == first
        (second / own_home.CACHE / "left").touch()
    assert not second.exists()
    with own_home.home(may_fetch=False) as third:
        assert sorted(path.name for path in (third / own_home.CACHE).iterdir()) == sorted(own_home.BUILT)


def test_no_library_of_the_user_is_found() -> None:
    with pytest.raises(UnavailableError, match=r"1\.29\.0"):
        find_archive("android:1.29.0")


def test_no_adb_server_of_the_user_is_asked() -> None:
    port = int(os.environ["ANDROID_ADB_SERVER_PORT"])
    assert port != 5037
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5).close()


SUITE = """
import pytest

def test_passes():
    pass

def test_allowed():
    pytest.skip("gcc is not installed")

@pytest.mark.skipif(True, reason="{reason}")
def test_skipped():
    pass
"""


@pytest.mark.parametrize(
    ("reason", "options", "code"),
    [
        ("valgrind is not installed", ("-n", "0"), 0),
        ("valgrind is not installed", ("-n", "0", "--no-skips"), 1),
        ("no mood", ("-n", "0"), 1),
        ("no mood", ("-n", "1"), 1),
    ],
)
def test_a_skip_that_is_not_in_the_table_fails_the_run(
    tmp_path: Path, reason: str, options: tuple[str, ...], code: int
) -> None:
    (tmp_path / "test_it.py").write_text(SUITE.format(reason=reason))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "xdist", "-p", "tests.skips", "--rootdir", tmp_path, *options, tmp_path],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout
    assert (f"test_skipped: {reason}" in done.stdout) == bool(code)
    assert "2 skipped" in done.stdout


def test_reasons_in_the_table_are_those_of_a_test() -> None:
    """A row that no test gives any more is removed: the longest of its fixed parts is in some test."""
    texts = "\n".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("*.py") if path.name != "skips.py")
    fixed = [
        max(re.split(r"\[[^]]*\]\+|\\w\+|\.\*", pattern), key=len).replace("\\", "").strip() for pattern in ALLOWED
    ]
    assert [part for part in fixed if part not in texts] == []
