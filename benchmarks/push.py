"""Pushes to a real adbd of this computer: throughput beside `adb push` and adbutils, and the bytes of a campaign.

The campaign is the eight usual variants of a model. Every way pushes the same random or converted bytes; some of the
ground truth's real models (tests/ground_truth) are pushed too.
"""

import hashlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from benchmarks.models import LARGE
from device_runner.adb.link import Link, server_at
from device_runner.adb.pieces import READ_BYTES
from device_runner.adb.store import DeviceStore
from device_runner.build import build_probe
from tests.device.adb_farm import Farm, Phone, farm_in
from tests.ground_truth import ORACLE

ROOT = Path(__file__).resolve().parent.parent
REAL = ORACLE / "real.zip"
LARGE_MODELS = ("bert_base", "resnet50_wide")
REAL_MODELS = ("mobilenet_v2.base", "mobilenet_v2.qdq_s8s8", "resnet50.qdq_u8u8")
SIZE = 200 << 20
ROUNDS = 12


def ways_to_push(farm: Farm, phone: Phone, source: Path) -> dict[str, Callable[[], object]]:
    """Name to a call that pushes a file once."""
    import adbutils

    link, target = link_to(farm, phone), f"{phone.folder}/tmp/pushed"
    sync = adbutils.AdbClient(port=farm.port).device(phone.serial).sync
    return {
        "ours": lambda: link.push(parts_of(source), target, seconds=60),
        "adb push": lambda: farm.adb("-s", phone.serial, "push", str(source), target),
        "adb push -Z": lambda: farm.adb("-s", phone.serial, "push", "-Z", str(source), target),
        "adbutils": lambda: sync.push(str(source), target),
    }


def parts_of(source: Path) -> Iterator[bytes]:
    """The bytes of a file as the store of a device reads them."""
    with source.open("rb") as file:
        yield from iter(partial(file.read, READ_BYTES), b"")


def link_to(farm: Farm, phone: Phone) -> Link:
    """The way to a phone of the farm."""
    return Link(server_at(f"127.0.0.1:{farm.port}"), phone.serial)


def print_throughput(farm: Farm, folder: Path) -> None:
    """Megabytes a second, medians of rounds in which the ways take turns."""
    source, phone = folder / "random", farm.phone()
    source.write_bytes(os.urandom(SIZE))
    seconds: dict[str, list[float]] = {}
    ways = list(ways_to_push(farm, phone, source).items())
    for number in range(ROUNDS):
        turn = number % len(ways)
        for name, push in ways[turn:] + ways[:turn]:
            started = time.perf_counter()
            push()
            seconds.setdefault(name, []).append(time.perf_counter() - started)
            pushed = phone.folder / "tmp" / "pushed"
            assert pushed.stat().st_size == SIZE
            pushed.unlink()
    print(f"{SIZE >> 20} MB, {ROUNDS} rounds\n")
    print("| way | MB/s | slowest to fastest | time to `adb push` |\n| --- | --- | --- | --- |")
    for name, times in seconds.items():
        ratio = statistics.median(own / other for own, other in zip(times, seconds["adb push"], strict=True))
        speeds = [SIZE / 1e6 / value for value in (statistics.median(times), max(times), min(times))]
        print(f"| {name} | {speeds[0]:.0f} | {speeds[1]:.0f} to {speeds[2]:.0f} | {ratio:.2f} |")


def models_in(folder: Path) -> Iterator[Path]:
    """Models to convert: two large ones that are made, and real ones."""
    for name in LARGE_MODELS:
        LARGE[name](folder / f"{name}.onnx")
        yield folder / f"{name}.onnx"
    with zipfile.ZipFile(REAL) as archive:
        yield from (Path(archive.extract(f"{name}.onnx", folder)) for name in REAL_MODELS)


def convert(model: Path, folder: Path) -> list[Path]:
    """The eight variants, the largest first."""
    code = "import sys; from pipeline.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "convert", str(model), "--output", str(folder), "--no-config"]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return sorted(folder.glob("*.ort"), key=lambda path: (-path.stat().st_size, path.name))


def blocks_of(paths: Sequence[Path], size: int) -> int:
    """Bytes of the different blocks of one size: what cutting at fixed places would push."""
    found: dict[bytes, int] = {}
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(size):
                found[hashlib.sha256(block).digest()] = len(block)
    return sum(found.values())


def pushed_bytes(farm: Farm, phone: Phone, paths: Sequence[Path], joiner: Path | None) -> tuple[int, float]:
    """Bytes and seconds of a campaign's pushes, without the probe's."""
    store = DeviceStore(link_to(farm, phone), phone.root)
    store.joiner = joiner
    store.put(build_probe(), ".probe")
    before, started = store.pushed_bytes, time.perf_counter()
    for path in paths:
        store.put(path, ".ort")
    return store.pushed_bytes - before, time.perf_counter() - started


def print_campaigns(farm: Farm, folder: Path) -> None:
    """Megabytes that eight variants cost, by way; the last column says how often the largest one."""
    print(
        "\n| model | 8 files | different files | blocks of 4 KB | pieces | second time | largest | pieces / largest |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for model in models_in(folder):
        paths = convert(model, folder / model.stem)
        model.unlink()
        phone, other = farm.phone(), farm.phone()
        whole, whole_seconds = pushed_bytes(farm, other, paths, None)
        joined, joined_seconds = pushed_bytes(farm, phone, paths, build_probe())
        again, _ = pushed_bytes(farm, phone, paths, build_probe())
        sizes = (sum(path.stat().st_size for path in paths), whole, blocks_of(paths, 4096), joined)
        cells = [f"{size / 1e6:.1f}" for size in sizes]
        cells[1] += f" ({whole_seconds:.1f} s)"
        cells[3] += f" ({joined_seconds:.1f} s)"
        largest = paths[0].stat().st_size
        cells += [f"{again} bytes", f"{largest / 1e6:.1f}", f"{joined / largest:.3f}"]
        print(f"| {model.stem} | {' | '.join(cells)} |", flush=True)
        for path in (*paths, *(Path(phone.root) / "store").iterdir(), *(Path(other.root) / "store").iterdir()):
            path.unlink()


def main() -> None:
    """Print both tables."""
    with tempfile.TemporaryDirectory() as name, farm_in(Path(name)) as farm:
        folder = Path(name) / "models"
        folder.mkdir()
        print_throughput(farm, folder)
        print_campaigns(farm, folder)
    print(f"\nload of this machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
