"""Pieces of files, patches of them, and the probe that joins them: here, in a folder, without a device."""

import hashlib
import os
import random
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from device_runner.adb.pieces import (
    BUFFER,
    LONGEST,
    SHORTEST,
    SMALLEST_BYTES,
    WINDOW,
    Patch,
    PatchStep,
    cut,
    find_patch,
    pieces_of,
    usual_bytes,
)
from device_runner.build import build_probe

USUAL = 1024


def noise(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


contents = st.builds(
    lambda seed, size, repeated: (noise(size, seed) * repeated)[: 4 * size],
    st.integers(0, 50), st.integers(0, 30_000), st.integers(1, 20),
)  # fmt: skip


def parts(data: bytes) -> list[bytes]:
    ends = cut(data, USUAL, last=True)
    return [data[start:end] for start, end in zip((0, *ends), ends, strict=False)]


@given(contents)
def test_pieces_are_the_file_and_as_long_as_they_may_be(data: bytes) -> None:
    pieces = parts(data)
    assert b"".join(pieces) == data
    assert all(USUAL * SHORTEST <= len(piece) <= USUAL * LONGEST for piece in pieces[:-1])
    assert parts(data) == pieces


@given(contents, st.integers(0, 40_000))
def test_pieces_of_a_part_are_those_of_the_whole(data: bytes, size: int) -> None:
    ends = cut(data[:size], USUAL, last=False)
    assert ends == cut(data, USUAL, last=True)[: len(ends)]


@given(st.integers(0, 200), st.integers(0, 300_000), st.integers(0, 300_000), st.binary(max_size=9))
def test_a_change_touches_few_pieces(seed: int, at: int, left_out: int, put_in: bytes) -> None:
    data = noise(300_000, seed)
    changed = data[:at] + put_in + data[at + left_out :]
    known = {*parts(data)}
    assert sum(len(piece) for piece in parts(changed) if piece not in known) <= len(put_in) + 3 * USUAL * LONGEST


@pytest.mark.parametrize("period", [1, 4, 100, 1000, 5000])
def test_periodic_weights_are_found_again(period: int) -> None:
    """Zeros, constants, patterns: no hash may be high in them, and pieces still fall alike."""
    tensor = (noise(period) * 300_000)[:300_000]
    known = {*parts(noise(5000, 2) + tensor)}
    again = parts(noise(7013, 3) + tensor)
    assert sum(len(piece) for piece in again if piece not in known) <= 7013 + 4 * USUAL * LONGEST
    assert cut(bytes(100_000), USUAL, last=True) == [*range(USUAL * LONGEST, 100_000, USUAL * LONGEST), 100_000]


def test_pieces_do_not_depend_on_how_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(data := noise(2 * BUFFER + 4321))
    whole, pieces = parts(data), pieces_of(tmp_path / "x", USUAL)
    assert pieces[0].tolist() == np.cumsum([len(piece) for piece in whole]).tolist()
    digests = [hashlib.sha256(piece).digest()[:8] for piece in whole]
    assert pieces[1].tolist() == [int.from_bytes(digest, "little") for digest in digests]
    assert len(data) / len(whole) == pytest.approx(USUAL, rel=0.1)


def test_large_files_have_larger_pieces() -> None:
    assert [usual_bytes(size) for size in (0, (64 << 20) - 1, 64 << 20, 2 << 30)] == [1024, 1024, 4096, 4096]
    assert WINDOW < USUAL * SHORTEST


@pytest.fixture(scope="session")
def probe() -> Path:
    return build_probe(flags=("-Werror",))


def join(probe: Path, folder: Path, patch: bytes, target: str = ".part-2") -> subprocess.CompletedProcess[str]:
    (folder / ".part-1").write_bytes(patch)
    command = [str(probe), "join", ".part-1", target]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=30, check=False)


def stored(folder: Path, data: bytes, suffix: str = ".ort") -> tuple[str, Path]:
    name = hashlib.sha256(data).hexdigest() + suffix
    (folder / name).write_bytes(data)
    return name, folder / name


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 1000), st.lists(st.integers(0, 9), min_size=8, max_size=30))
def test_a_patch_joined_is_the_file(probe: Path, tmp_path: Path, seed: int, order: list[int]) -> None:
    tensors = [noise(100_000 + 7 * number, number) for number in range(10)]
    sources = dict(
        stored(tmp_path, head + b"".join(tensors[number] for number in chosen))
        for head, chosen in ((b"one", range(6)), (noise(5000), (7, 6, 3)))
    )
    wanted = noise(seed, seed) + b"".join(noise(50, seed + number) + tensors[number] for number in order)
    wanted += noise(SMALLEST_BYTES - len(wanted)) if len(wanted) < SMALLEST_BYTES else b""
    (tmp_path / "new").write_bytes(wanted)
    patch = find_patch(tmp_path / "new", sources)
    differing = sum(len(tensors[number]) for number in order if number > 7) + max(
        0, SMALLEST_BYTES - 100_000 * len(order)
    )
    if patch is None:
        assert differing > 0.4 * len(wanted)
        return
    pushed = b"".join(patch.chunks())
    assert len(pushed) == patch.size <= differing + len(order) * 100 + 4096 * (len(order) + 2) + seed
    done = join(probe, tmp_path, pushed)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / ".part-2").read_bytes() == wanted
    (tmp_path / ".part-2").unlink()


def test_what_does_not_pay_goes_whole(tmp_path: Path) -> None:
    name, source = stored(tmp_path, noise(3_000_000))
    (tmp_path / "small").write_bytes(noise(3_000_000)[: SMALLEST_BYTES - 1])
    (tmp_path / "other").write_bytes(noise(3_000_000, 2))
    (tmp_path / "quarter").write_bytes(noise(3_000_000)[:700_000] + noise(2_300_000, 2))
    (tmp_path / "half").write_bytes(noise(3_000_000)[:1_500_000] + noise(1_500_000, 2))
    found = {path: find_patch(tmp_path / path, {name: source}) for path in ("small", "other", "quarter", "half")}
    assert [path for path, patch in found.items() if patch] == ["half"]
    assert isinstance(found["half"], Patch)
    assert found["half"].sources == {name}
    assert found["half"].steps[0] == PatchStep(0, found["half"].steps[0].size, source=0)
    assert find_patch(tmp_path / "half", {}) is None


NAME = "a" * 64
CONTENT = noise(10_000)
START = b"ort-mobile pieces 1\nsize 6\n"

REFUSED = {
    "absolute": ("copy /etc/passwd 0 6\nend\n", "no name of a stored file"),
    "parent": (f"copy ../{NAME} 0 6\nend\n", "no name of a stored file"),
    "suffix": (f"copy {NAME}.a/b 0 6\nend\n", "no name of a stored file"),
    "long suffix": (f"copy {NAME}.aaaaaaaaa 0 6\nend\n", "no name of a stored file"),
    "no suffix": (f"copy {NAME}. 0 6\nend\n", "no name of a stored file"),
    "upper case": (f"copy {NAME.upper()} 0 6\nend\n", "no name of a stored file"),
    "link": (f"copy {'b' * 64} 0 6\nend\n", "symbolic links"),
    "folder": (f"copy {'c' * 64} 0 6\nend\n", "cut off or unreadable"),
    "missing": (f"copy {'d' * 64} 0 6\nend\n", "No such file"),
    "behind the end": (f"copy {NAME} 9999 6\nend\n", "cut off"),
    "far": (f"copy {NAME} 2305843009213693952 6\nend\n", "cut off or unreadable"),
    "too far": (f"copy {NAME} 99999999999999999999 6\nend\n", "no line of a patch"),
    "negative": (f"copy {NAME} -1 6\nend\n", "no line of a patch"),
    "hexadecimal": (f"copy {NAME} 0x1 6\nend\n", "no line of a patch"),
    "empty number": (f"copy {NAME}  6\nend\n", "no line of a patch"),
    "more words": (f"copy {NAME} 0 6 6\nend\n", "no line of a patch"),
    "too much": (f"copy {NAME} 0 7\nend\n", "more than its size"),
    "too little": (f"copy {NAME} 0 5\nend\n", "less than its size"),
    "overflow": (f"copy {NAME} 0 6\ncopy {NAME} 0 2305843009213693951\nend\n", "more than its size"),
    "size again": (f"copy {NAME} 0 6\nsize 9\nend\n", "no line of a patch|more than its size"),
    "no data": ("data 6\nend\nabc", "cut off"),
    "no end": (f"copy {NAME} 0 6\n", "it has no end"),
    "long line": (f"copy {NAME} {'0' * 300} 6\nend\n", "no line of a patch"),
    "verb": ("run id 6\nend\n", "no line of a patch"),
    "nothing": ("\0\nend\n", "no line of a patch"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize(
    "flags",
    [("-Werror",), pytest.param(("-Werror", "-g", "-fsanitize=address,undefined"), marks=pytest.mark.native)],
    ids=["plain", "sanitized"],
)
def test_a_hostile_patch_is_refused_and_leaves_nothing(tmp_path: Path, case: str, flags: tuple[str, ...]) -> None:
    (tmp_path / NAME).write_bytes(CONTENT)
    (tmp_path / ("b" * 64)).symlink_to(NAME)
    (tmp_path / ("c" * 64)).mkdir()
    lines, said = REFUSED[case]
    before = {path.name for path in tmp_path.iterdir()} | {".part-1"}
    done = join(build_probe(flags=flags), tmp_path, START + lines.encode())
    assert done.returncode == 3, done
    assert re.search(said, done.stderr)
    assert "runtime error" not in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("patch", [b"", b"\0", b"ort-mobile pieces 2\n", b"\x7fELF" + noise(500), START[:-1]])
def test_what_is_no_patch_is_refused(probe: Path, tmp_path: Path, patch: bytes) -> None:
    done = join(probe, tmp_path, patch)
    assert done.returncode == 3
    assert done.stderr.startswith("join: ")
    assert not (tmp_path / ".part-2").exists()


def test_a_file_that_is_there_is_not_overwritten(probe: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes(b"mine")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    for target in ("mine", "link"):
        done = join(probe, tmp_path, START + b"data 6\nend\nabcdef", target)
        assert done.returncode == 3
        assert (tmp_path / "mine").read_bytes() == b"mine"
    assert join(probe, tmp_path, START + b"data 6\nend\nabcdef").returncode == 0
    assert (tmp_path / ".part-2").read_bytes() == b"abcdef"


def test_a_full_disk_is_said(probe: Path, tmp_path: Path) -> None:
    """The limit of a file's size stands for the disk's: the same call fails."""
    name, _ = stored(tmp_path, CONTENT)
    (tmp_path / ".part-1").write_bytes(f"ort-mobile pieces 1\nsize 9000\ncopy {name} 0 9000\nend\n".encode())
    script = 'trap "" XFSZ; ulimit -f 4; exec "$1" join .part-1 .part-2'
    command = ["sh", "-c", script, "sh", str(probe)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 4, done
    assert "cannot be written" in done.stderr
    assert not (tmp_path / ".part-2").exists()


def test_nothing_is_left_when_nobody_listens(probe: Path, tmp_path: Path) -> None:
    """The connection is gone, and with it the other end of stderr."""
    (tmp_path / ".part-1").write_bytes(START + b"data 6\nend\nabc")
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([str(probe), "join", ".part-1", ".part-2"], cwd=tmp_path, stderr=writer, check=False)
    os.close(writer)
    assert done.returncode == 3
    assert not (tmp_path / ".part-2").exists()
