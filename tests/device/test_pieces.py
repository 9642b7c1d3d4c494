"""Variants of a model on a real adbd: only what differs is pushed, and nothing broken is ever taken for a file."""

import hashlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.models import bert_base
from device_runner.adb.device import Tools
from device_runner.adb.link import Link, LinkLost, server_at
from device_runner.adb.store import PIECES_VARIABLE, RESERVE_BYTES, DeviceStore, NoSpace
from device_runner.result import Status
from device_runner.spec import RunOptions, RunSpec
from pipeline.model.ort_format import read_ort
from tests.device.adb_farm import Farm, Open, Phone

ROOT = Path(__file__).resolve().parents[2]


def convert(model: Path, output: Path) -> list[Path]:
    """All eight variants, the largest first."""
    command = [sys.executable, "-c", "from pipeline.cli.main import main; main()", "convert", str(model)]
    options = ["--output", str(output), "--no-config"]
    subprocess.run([*command, *options], cwd=ROOT, check=True, capture_output=True, timeout=600)
    return sorted(output.glob("*.ort"), key=lambda path: (-path.stat().st_size, path.name))


@pytest.fixture(scope="session")
def variants(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Of a small BERT: 13 MB, most of it a table of words."""
    folder = tmp_path_factory.mktemp("bert")
    bert_base(folder / "bert.onnx", layers=2, width=96)
    return convert(folder / "bert.onnx", folder / "out")


def differing_bytes(paths: list[Path]) -> int:
    """Bytes of files that the first does not have: tensors that none before has, and everything but tensors."""
    known: set[bytes] = set()
    total = 0
    for number, path in enumerate(paths):
        data = path.read_bytes()
        tensors = [tensor for graph in read_ort(path).graph.walk() for tensor in graph.initializers.values()]
        contents = [data[tensor.offset : tensor.offset + tensor.length] for tensor in tensors]
        new = {hashlib.sha256(content).digest(): len(content) for content in contents}
        if number:
            total += sum(size for digest, size in new.items() if digest not in known)
            total += len(data) - sum(map(len, contents))
        known |= new.keys()
    return total


def broken(phone: Phone) -> list[str]:
    """Files of the store that are not what their name says, those without a final name left out."""
    files = (path for path in (Path(phone.root) / "store").iterdir() if not path.name.startswith(".part-"))
    return [path.name for path in files if hashlib.sha256(path.read_bytes()).hexdigest() != path.name[:64]]


def store_of(farm: Farm, phone: Phone, joiner: Path | None) -> DeviceStore:
    store = DeviceStore(Link(server_at(f"127.0.0.1:{farm.port}"), phone.serial), phone.root)
    store.joiner = joiner
    return store


def campaign(opened: Open, phone: Phone, models: Path, paths: list[Path]) -> int:
    """Run each once; the bytes that were pushed, without library and probe."""
    device = opened(phone)
    quick = {"min_runs": 1, "min_seconds": 0.0, "warmup": 0, "options": RunOptions(intra_op_threads=1)}
    assert device.run(RunSpec(id="null", model=str(models / "null.onnx"), **quick)).status is Status.OK  # type: ignore[arg-type]  # by name
    before = device.store.pushed_bytes
    for path in paths:
        result = device.run(RunSpec(id=path.stem, model=str(path), **quick))  # type: ignore[arg-type]  # by name
        assert result.status is Status.OK, result.failure
    pushed = device.store.pushed_bytes - before
    device.close()
    return pushed


def judge(opened: Open, farm: Farm, models: Path, paths: list[Path]) -> None:
    phone = farm.phone()
    assert len(paths) == 8
    largest = paths[0].stat().st_size
    distinct = list({path.read_bytes(): path for path in reversed(paths)}.values())[::-1]
    pushed = campaign(opened, phone, models, paths)
    assert pushed <= 1.05 * largest + differing_bytes(distinct)
    assert not broken(phone)
    assert campaign(opened, phone, models, paths) == 0


def test_a_campaign_pushes_its_largest_variant_and_what_differs(
    opened: Open, farm: Farm, models: Path, variants: list[Path]
) -> None:
    judge(opened, farm, models, variants)
    assert differing_bytes(variants[:1] + variants) < 0.5 * variants[0].stat().st_size


@pytest.mark.parametrize(
    "name", [pytest.param("mobilenet_v2.base", marks=pytest.mark.nightly), "mobilenet_v2.qdq_s8s8"]
)
def test_as_much_of_real_models(
    opened: Open, farm: Farm, models: Path, oracle: Path, tmp_path: Path, name: str
) -> None:
    with zipfile.ZipFile(oracle / "real.zip") as archive:
        model = Path(archive.extract(f"{name}.onnx", tmp_path))
    judge(opened, farm, models, convert(model, tmp_path / "out"))


def test_pieces_can_be_turned_off(
    farm: Farm, variants: list[Path], tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PIECES_VARIABLE, "0")
    store = store_of(farm, farm.phone(), tools[0])
    for path in (variants[0], variants[-1]):
        store.put(path)
    assert store.pushed_bytes == variants[0].stat().st_size + variants[-1].stat().st_size


def test_files_of_an_earlier_session_are_used(farm: Farm, variants: list[Path], tools: Tools) -> None:
    phone = farm.phone()
    store_of(farm, phone, None).put(variants[0], ".ort")
    later = store_of(farm, phone, tools[0])
    place = later.put(variants[-1], ".ort")
    assert later.pushed_bytes < 0.1 * variants[-1].stat().st_size
    assert Path(place).read_bytes() == variants[-1].read_bytes()
    assert Path(place).stat().st_mode & 0o777 == 0o755
    assert not list(Path(place).parent.glob(".part-*"))


def test_a_file_that_broke_on_the_device_is_found_and_replaced(farm: Farm, variants: list[Path], tools: Tools) -> None:
    phone = farm.phone()
    store = store_of(farm, phone, tools[0])
    source = Path(store.put(variants[0], ".ort"))
    data = bytearray(variants[0].read_bytes())
    data[len(data) // 2] ^= 1
    source.write_bytes(data)
    place = store.put(variants[-1], ".ort")
    assert Path(place).read_bytes() == variants[-1].read_bytes()
    assert not source.exists()
    store.put(variants[0], ".ort")
    assert source.read_bytes() == variants[0].read_bytes()
    assert not broken(phone)


JOINERS = {
    "killed in the middle": 'head -c 9000000 /dev/zero > "$3"; kill -9 $$',
    "lies": 'head -c 9000000 /dev/zero > "$3"',
    "writes nothing": "exit 0",
    "cannot run": "exit 126",
    "joins another place": 'cp "$2" ../escaped; exit 0',
}


def test_a_joiner_of_any_size_is_pushed_whole(farm: Farm, variants: list[Path], tmp_path: Path, tools: Tools) -> None:
    """A probe with everything for a debugger in it: it cannot be joined by itself."""
    joiner = tmp_path / "joiner"
    joiner.write_text(f'#!/bin/sh\nexec "{tools[0]}" "$@"\n' + "#" * 3_000_000)
    store = store_of(farm, farm.phone(), joiner)
    store.put(variants[0], ".ort")
    store.put(variants[-1], ".ort")
    assert store.pushed_bytes < 1.2 * variants[0].stat().st_size + joiner.stat().st_size


@pytest.mark.parametrize("case", JOINERS)
def test_a_joiner_gone_wrong_costs_a_push_of_the_whole(
    farm: Farm, variants: list[Path], tmp_path: Path, case: str
) -> None:
    phone = farm.phone()
    joiner = tmp_path / "joiner"
    joiner.write_text(f"#!/bin/sh\n{JOINERS[case]}\n")
    store = store_of(farm, phone, joiner)
    store.put(variants[0], ".ort")
    place = store.put(variants[-1], ".ort")
    assert Path(place).read_bytes() == variants[-1].read_bytes()
    assert store.pushed_bytes > variants[0].stat().st_size + variants[-1].stat().st_size
    assert not broken(phone)
    assert not list((Path(phone.root) / "store").glob(".part-*"))


def stop_at(phone: Phone, sign: Path) -> None:
    end = time.monotonic() + 300
    while not sign.exists() and time.monotonic() < end:
        time.sleep(0.01)
    phone.stop()


def test_a_device_lost_while_it_joins(farm: Farm, variants: list[Path], tools: Tools, tmp_path: Path) -> None:
    phone = farm.phone()
    joiner = tmp_path / "joiner"
    sign, go = phone.folder / "joining", phone.folder / "go"
    joiner.write_text(f'#!/bin/sh\ntouch {sign}\nuntil [ -e {go} ]; do sleep 0.02; done\nexec "{tools[0]}" "$@"\n')
    store = store_of(farm, phone, joiner)
    store.put(variants[0], ".ort")
    stopper = threading.Thread(target=stop_at, args=(phone, sign))
    stopper.start()
    with pytest.raises(LinkLost):
        store.put(variants[-1], ".ort")
    stopper.join()
    assert not broken(phone)
    phone.start()
    farm.adb("disconnect", phone.serial)
    farm.join(phone)
    store.forget()
    store.joiner = tools[0]
    before = store.pushed_bytes
    assert Path(store.put(variants[-1], ".ort")).read_bytes() == variants[-1].read_bytes()
    assert store.pushed_bytes - before < 0.1 * variants[-1].stat().st_size + tools[0].stat().st_size
    go.touch()  # what ran on without a connection must not do harm
    end = time.monotonic() + 300
    while list((Path(phone.root) / "store").glob(".part-*")) and time.monotonic() < end:
        time.sleep(0.02)
    assert not broken(phone)
    assert not list((Path(phone.root) / "store").glob(".part-*"))


PUT_ALL = """
import sys
from pathlib import Path
from device_runner.adb.link import Link, server_at
from device_runner.adb.store import DeviceStore
port, serial, root, joiner, *paths = sys.argv[1:]
store = DeviceStore(Link(server_at(f"127.0.0.1:{port}"), serial), root)
store.joiner = Path(joiner)
for path in paths:
    store.put(Path(path), ".ort")
print(store.pushed_bytes)
"""


def test_killed_at_any_time_and_resumed(farm: Farm, variants: list[Path], tools: Tools) -> None:
    phone = farm.phone()
    arguments = [str(farm.port), phone.serial, phone.root, str(tools[0]), *map(str, variants)]
    command = [sys.executable, "-c", PUT_ALL, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    chance = random.Random(10)
    for _ in range(5):
        caller = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        time.sleep(chance.uniform(0.15, 0.8))
        caller.send_signal(signal.SIGKILL)
        caller.wait()
        time.sleep(0.05)
        assert not (Path(phone.root) / "store").exists() or not broken(phone)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
    names = {f"{hashlib.sha256(path.read_bytes()).hexdigest()}.ort" for path in variants}
    assert names <= {path.name for path in (Path(phone.root) / "store").iterdir()}
    assert not broken(phone)
    again = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
    assert (again.stdout.strip(), done.returncode) == ("0", 0)


def test_room_is_made_for_the_pushed_part_and_the_whole_but_not_of_what_is_joined_from(
    farm: Farm, variants: list[Path], tools: Tools, tmp_path: Path
) -> None:
    phone = farm.phone()
    store = store_of(farm, phone, None)
    old = [Path(store.put(variants[0], ".ort"))]
    for number in range(2):
        (tmp_path / f"{number}").write_bytes(random.Random(number).randbytes(20 << 20))
        old.append(Path(store.put(tmp_path / f"{number}", ".ort")))
    for number, path in enumerate(old):
        os.utime(path, (1000 + number, 1000 + number))
    phone.says_free((RESERVE_BYTES + variants[-1].stat().st_size - (10 << 20)) // 1024)
    later = store_of(farm, phone, tools[0])
    place = Path(later.put(variants[-1], ".ort"))
    assert later.pushed_bytes < 0.1 * variants[-1].stat().st_size
    assert [path.exists() for path in (*old, place)] == [True, False, True, True]


def test_no_room_is_said(farm: Farm, variants: list[Path], tools: Tools) -> None:
    phone = farm.phone()
    store = store_of(farm, phone, tools[0])
    store.put(variants[0], ".ort")
    phone.says_free(RESERVE_BYTES // 1024)
    with pytest.raises(NoSpace, match=str(RESERVE_BYTES)):
        store.put(variants[-1], ".ort")
    assert not broken(phone)


@pytest.fixture
def small_disk(farm: Farm) -> Iterator[Phone]:
    """A phone whose folder lies on a file system of 22 MB."""
    phone = farm.phone()
    Path(phone.root).mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=22m", "tmpfs", phone.root]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no file system of 22 MB can be mounted: that needs root")
    yield phone
    subprocess.run(["umount", "-l", phone.root], check=True)


def test_a_disk_that_is_really_full(small_disk: Phone, farm: Farm, variants: list[Path], tools: Tools) -> None:
    """df lies, so that nothing is checked before: the push and the joining themselves must fail, and be told."""
    small_disk.says_free(1 << 30)
    store = store_of(farm, small_disk, tools[0])
    store.put(variants[0], ".ort")
    with pytest.raises(NoSpace):
        store.put(variants[-1], ".ort")
    assert not broken(small_disk)
    store.put(variants[0], ".ort")
    with pytest.raises(NoSpace):
        store_of(farm, small_disk, None).put(variants[-1], ".ort")
    assert not broken(small_disk)
