"""What a lab does to a run: adbd and server killed, connections cut, stalls, garbled bytes, a full disk."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from device_runner.adb.device import AdbDevice, Tools
from device_runner.adb.link import Link, server_at
from device_runner.adb.store import RESERVE_BYTES, DeviceStore, StoredFile, choose_victims
from device_runner.build import build_probe
from device_runner.errors import UnavailableError
from device_runner.result import FailureKind, RunResult, Status
from device_runner.spec import RunSpec, encode
from tests.device.adb_farm import Farm, Open, Phone, farm_in, stop
from tests.device.fault_proxy import FaultProxy
from tests.values import present


def quick(models: Path, model: str = "null.onnx", **values: object) -> RunSpec:
    return RunSpec(id=model, model=str(models / model), min_runs=3, min_seconds=0.0, **values)  # type: ignore[arg-type]  # by name


def during(act: Callable[[], object], device: AdbDevice, spec: RunSpec, after: float = 0.7) -> RunResult:
    """The result of a run in which something happens after so many seconds."""
    timer = threading.Timer(after, act)
    timer.start()
    try:
        return device.run(spec)
    finally:
        timer.cancel()
        timer.join()


def probes_of(phone: Phone) -> list[int]:
    """Processes that are a probe of this phone, and not a shell that starts one."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        program, _, arguments = read(path).partition(b"\0")
        if program.startswith(phone.root.encode()) and arguments == b"request\0":
            found.append(int(path.parent.name))
    return found


def read(path: Path) -> bytes:
    """A file of /proc, which may be gone."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


LONG_SECONDS = 300.0
"""What takes longer never happens; a busy computer may take some seconds for what is done at once."""


def wait_for_probe(phone: Phone) -> list[int]:
    """The probes of this phone as soon as there is one; none when there never is."""
    end = time.monotonic() + LONG_SECONDS
    while not (found := probes_of(phone)) and time.monotonic() < end:
        time.sleep(0.02)
    return found


def gone(phone: Phone) -> bool:
    """Whether the last probe of this phone ended in time."""
    end = time.monotonic() + LONG_SECONDS
    while (left := probes_of(phone)) and time.monotonic() < end:
        time.sleep(0.02)
    return not left


def test_adbd_killed_during_a_run_and_back(opened: Open, farm: Farm, models: Path) -> None:
    phone = farm.phone()
    device = opened(phone)
    assert device.run(quick(models)).status is Status.OK
    failure = present(during(phone.stop, device, quick(models, "endless.onnx")).failure)
    assert failure.code is FailureKind.LOST_DEVICE
    again = device.run(quick(models)).failure
    assert again
    assert again.code is FailureKind.LOST_DEVICE
    phone.start()
    assert device.run(quick(models)).status is Status.OK


def test_the_probe_ends_when_the_connection_does(opened: Open, farm: Farm, models: Path) -> None:
    phone = farm.phone()
    device = opened(phone)
    assert device.run(quick(models)).status is Status.OK
    running: list[int] = []

    def disconnect() -> None:
        running.extend(wait_for_probe(phone))
        farm.adb("disconnect", phone.serial)

    failure = during(disconnect, device, quick(models, "endless.onnx")).failure
    assert running
    assert present(failure).code is FailureKind.LOST_DEVICE
    assert gone(phone)


def test_the_probe_ends_when_its_caller_is_killed(farm: Farm, models: Path, tmp_path: Path, tools: Tools) -> None:
    phone = farm.phone()
    (tmp_path / "spec.json").write_bytes(encode(quick(models, "endless.onnx", library=str(tools[1]))))
    code = (
        "from device_runner.adb import device; import sys; device.REMOTE_ROOT = sys.argv.pop(1)\n"
        "device.AdbDevice.__init__.__kwdefaults__['root'] = device.REMOTE_ROOT\n"
        "from device_runner.__main__ import main; sys.exit(main())"
    )
    environment = {**os.environ, "ANDROID_ADB_SERVER_PORT": str(farm.port)}
    command = [sys.executable, "-c", code, phone.root, str(tmp_path / "spec.json"), "--device", f"adb:{phone.serial}"]
    caller = subprocess.Popen(command, env=environment)
    assert wait_for_probe(phone), caller.poll()
    assert caller.poll() is None
    caller.send_signal(signal.SIGKILL)
    caller.wait()
    assert gone(phone)


def test_the_server_is_killed_and_back(tools: Tools, tmp_path_factory: pytest.TempPathFactory, models: Path) -> None:
    with farm_in(tmp_path_factory.mktemp("farm")) as farm:
        phone = farm.phone()
        link = Link(server_at(f"127.0.0.1:{farm.port}"), phone.serial)
        with AdbDevice(link, root=phone.root, tools=tools) as device:
            assert device.run(quick(models)).status is Status.OK
            failure = present(during(lambda: stop(farm.server), device, quick(models, "endless.onnx")).failure)
            assert failure.code is FailureKind.LOST_DEVICE
            farm.start_server()
            assert device.run(quick(models)).status is Status.OK


@pytest.fixture
def proxy(farm: Farm) -> Iterator[FaultProxy]:
    with FaultProxy(farm.port) as proxy:
        yield proxy


@pytest.fixture
def through(proxy: FaultProxy, farm: Farm, tools: Tools) -> Iterator[AdbDevice]:
    """A fresh phone, reached over a proxy in front of the server."""
    phone = farm.phone()
    device = AdbDevice(Link(server_at(f"127.0.0.1:{proxy.port}"), phone.serial), root=phone.root, tools=tools)
    yield device
    proxy.heal()
    device.close()


KINDS = {
    "cut": (FailureKind.LOST_DEVICE,),
    "garble": (FailureKind.GARBAGE, FailureKind.DEVICE_ERROR),
}
"""What a fault on the way may make of a run."""


def check_struck(device: AdbDevice, proxy: FaultProxy, fault: str, spec: RunSpec) -> None:
    """A run reaches the fault, which is a failure of its kind or does no harm; the next one goes well."""
    result = device.run(spec)
    assert proxy.hits[fault], "the fault was never reached"
    output = None
    if result.status is Status.OK:
        output = Path(result.outputs[0].file).read_bytes()  # before the next run replaces it
    else:
        failure = present(result.failure)
        assert failure.code in KINDS[fault], failure
        assert failure.remedy
        assert not result.outputs
    proxy.heal()
    good = device.run(spec)
    assert good.status is Status.OK, good.failure
    assert output in (None, Path(good.outputs[0].file).read_bytes())


@pytest.mark.parametrize(
    ("fault", "place"),
    [
        ("garble", 100),
        ("garble", 70_000),
        ("garble", 3_000_000),
        pytest.param("cut", 100, marks=pytest.mark.nightly),
        pytest.param("cut", 70_000, marks=pytest.mark.nightly),
        ("cut", 3_000_000),
    ],
)
def test_a_push_gone_wrong_is_never_taken_for_a_good_one(
    through: AdbDevice, proxy: FaultProxy, models: Path, tmp_path: Path, fault: str, place: int
) -> None:
    proxy.upload(fault, place)
    check_struck(through, proxy, fault, quick(models, outputs_folder=str(tmp_path / "out")))


@pytest.mark.parametrize(
    ("fault", "place"),
    [
        ("garble", 5),
        ("garble", 40),
        ("garble", 200),
        pytest.param("cut", 5, marks=pytest.mark.nightly),
        ("cut", 40),
        pytest.param("cut", 200, marks=pytest.mark.nightly),
    ],
)
def test_an_answer_gone_wrong_is_a_typed_failure(
    through: AdbDevice, proxy: FaultProxy, models: Path, tmp_path: Path, fault: str, place: int
) -> None:
    assert through.run(quick(models)).status is Status.OK
    proxy.download(fault, place)
    check_struck(through, proxy, fault, quick(models, outputs_folder=str(tmp_path / "out")))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["output_0.raw"]


def test_a_stall_ends_with_the_runs_limit(
    through: AdbDevice, proxy: FaultProxy, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert through.run(quick(models)).status is Status.OK
    monkeypatch.setattr("device_runner.device.GRACE_SECONDS", 0.5)
    proxy.download("stall", 30)
    failure = present(through.run(quick(models, timeout_seconds=0.5)).failure)
    assert failure.code is FailureKind.TIMEOUT
    proxy.heal()
    assert through.run(quick(models)).status is Status.OK


def test_a_push_that_stalls_says_nothing_of_the_run(
    through: AdbDevice, proxy: FaultProxy, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device counts as lost, so that the same run is tried again; a run's own time-out would be its last."""
    through.facts()
    usual = Link.push
    monkeypatch.setattr(Link, "push", lambda self, *arguments, seconds: usual(self, *arguments, seconds=0.5))
    proxy.upload("stall", 2_000_000)
    failure = present(through.run(quick(models)).failure)
    assert failure.code is FailureKind.LOST_DEVICE
    proxy.heal()
    monkeypatch.setattr(Link, "push", usual)
    assert through.run(quick(models)).status is Status.OK


def test_a_full_device_is_said(opened: Open, farm: Farm, models: Path) -> None:
    phone = farm.phone()
    phone.says_free(10)
    failure = present(opened(phone).run(quick(models)).failure)
    assert failure.code is FailureKind.NO_SPACE
    assert str(RESERVE_BYTES) in failure.what


@pytest.mark.skipif(os.geteuid() != 0, reason="a small disk of its own can only be mounted by root")
def test_a_disk_that_fills_up_during_a_push(opened: Open, farm: Farm, models: Path) -> None:
    """The device said that there is room; then the rest of the campaign goes on with what fits."""
    phone = farm.phone()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=9m", "tmpfs", str(phone.folder / "tmp")], check=True)
    try:
        phone.says_free(1 << 22)
        device = opened(phone)
        failure = present(device.run(quick(models)).failure)
        assert failure.code is FailureKind.NO_SPACE, failure
        assert failure.remedy
        subprocess.run(["mount", "-o", "remount,size=99m", str(phone.folder / "tmp")], check=True)
        assert device.run(quick(models)).status is Status.OK
        device.close()
    finally:
        subprocess.run(["umount", "--lazy", str(phone.folder / "tmp")], check=True)


@pytest.mark.parametrize("what", ["*", "*.onnx", "*.so"])
def test_files_that_vanish_from_a_device_are_pushed_again(opened: Open, farm: Farm, models: Path, what: str) -> None:
    phone = farm.phone()
    device = opened(phone)
    assert device.run(quick(models)).status is Status.OK
    gone = list((Path(phone.root) / "store").glob(what))
    assert gone
    for path in gone:
        path.unlink()
    failure = present(device.run(quick(models)).failure)
    assert failure.code is FailureKind.DEVICE_ERROR
    assert "no longer on the device" in failure.what
    assert device.run(quick(models)).status is Status.OK


def test_a_probe_that_does_not_answer_is_killed(
    farm: Farm, phone: Phone, tools: Tools, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("device_runner.device.GRACE_SECONDS", 2.0)
    (tmp_path / "probe").write_text(f"#!/bin/sh\n: {phone.root}\nexec sleep 987\n")
    link = Link(server_at(f"127.0.0.1:{farm.port}"), phone.serial)
    with AdbDevice(link, root=phone.root, tools=(tmp_path / "probe", tools[1])) as device:
        failure = device.run(quick(models, timeout_seconds=2.0)).failure
    assert present(failure).code is FailureKind.TIMEOUT
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if b"sleep\0987" in read(path)]


def test_the_longest_unused_files_make_room(farm: Farm, tmp_path: Path) -> None:
    phone = farm.phone()
    store = DeviceStore(Link(server_at(f"127.0.0.1:{farm.port}"), phone.serial), phone.root)
    for index in range(4):
        (tmp_path / f"{index}").write_bytes(bytes([index]) * 100_000)
        name = store.put(tmp_path / f"{index}")
        os.utime(name, (1000 + index, 1000 + index))
    store.forget()
    phone.says_free(RESERVE_BYTES // 1024)
    (tmp_path / "new").write_bytes(b"n" * 150_000)
    kept = store.put(tmp_path / "new")
    left = {path.read_bytes()[:1] for path in (Path(phone.root) / "store").iterdir()}
    assert left == {b"\x02", b"\x03", b"n"}
    assert Path(kept).stat().st_mode & 0o111


def test_any_number_of_files_can_make_room(farm: Farm, tmp_path: Path) -> None:
    """Their names are longer than one command for a device may be."""
    phone = farm.phone()
    folder = Path(phone.root) / "store"
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(1200):
        (folder / f"{index:064x}.ort").write_bytes(b"o" * 200)
    phone.says_free(RESERVE_BYTES // 1024)
    (tmp_path / "new").write_bytes(b"n" * 230_000)
    DeviceStore(Link(server_at(f"127.0.0.1:{farm.port}"), phone.serial), phone.root).put(tmp_path / "new")
    assert len(list(folder.iterdir())) == 1200 - 1150 + 1


def test_victims_are_the_oldest_and_never_those_in_use() -> None:
    files = [StoredFile(3, 10, "c"), StoredFile(1, 10, "a"), StoredFile(2, 10, "b")]
    assert [file.name for file in choose_victims(files, 15, set()) or ()] == ["a", "b"]
    assert [file.name for file in choose_victims(files, 15, {"a"}) or ()] == ["b", "c"]
    assert choose_victims(files, 31, set()) is None
    assert choose_victims(files, 0, set()) == []


def test_a_device_serves_one_at_a_time(opened: Open, farm: Farm) -> None:
    phone = farm.phone()
    opened(phone)
    with pytest.raises(UnavailableError, match=f"process {os.getpid()}"):
        opened(phone)


def test_another_device_at_the_same_address_is_not_taken_for_it(opened: Open, farm: Farm, models: Path) -> None:
    phone = farm.phone({"ro.build.version.sdk": "30", "ro.product.model": "A", "ro.product.cpu.abilist": "x86_64"})
    device = opened(phone)
    assert device.run(quick(models)).status is Status.OK
    during(phone.stop, device, quick(models, "endless.onnx"))
    phone.write("prop/ro.product.model", "B")
    phone.start()
    failure = present(device.run(quick(models)).failure)
    assert "another device" in failure.what


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ("echo nonsense", FailureKind.GARBAGE),
        ("kill -SEGV $$", FailureKind.CRASH),
        ("kill -KILL $$", FailureKind.OUT_OF_MEMORY),
        ("exit 126", FailureKind.SET_UP),
        ("echo '{\"probe\":1}'", FailureKind.GARBAGE),
    ],
)
def test_a_probe_gone_wrong_is_a_typed_failure(
    farm: Farm, phone: Phone, tools: Tools, models: Path, tmp_path: Path, script: str, kind: FailureKind
) -> None:
    (tmp_path / "probe").write_text(f"#!/bin/sh\n{script}\n")
    link = Link(server_at(f"127.0.0.1:{farm.port}"), phone.serial)
    with AdbDevice(link, root=phone.root, tools=(tmp_path / "probe", tools[1])) as device:
        failure = device.run(quick(models)).failure
    assert present(failure).code is kind


@pytest.mark.parametrize(
    ("tool", "said"),
    [
        ("chmod", "files there cannot be made executable (chmod) (not permitted)"),
        ("sha256sum", "files there cannot be compared (sha256sum)"),
        ("mkdir", "its folder cannot be made or entered"),
    ],
)
def test_what_a_phone_forbids_is_said_before_anything_is_pushed(
    opened: Open, farm: Farm, models: Path, tool: str, said: str
) -> None:
    phone = farm.phone()
    device = opened(phone)
    phone.write(f"bin/{tool}", "#!/bin/sh\necho not permitted >&2\nexit 1\n").chmod(0o755)
    failure = present(device.run(quick(models)).failure)
    assert failure.code is FailureKind.SET_UP
    assert said in failure.what
    assert "let its shell user write and execute" in failure.remedy
    assert device.store.pushed_bytes == 0
    assert not list(Path(phone.root).rglob(".part-*"))


def test_a_library_for_another_processor_is_not_pushed(opened: Open, phone: Phone, models: Path) -> None:
    device = opened(phone)
    failure = present(device.run(quick(models, library=str(build_probe("arm64-v8a")))).failure)
    assert failure.code is FailureKind.WRONG_LIBRARY
    assert "arm64-v8a" in failure.what
    assert device.store.pushed_bytes == 0
