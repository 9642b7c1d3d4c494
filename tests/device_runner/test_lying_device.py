"""Devices that answer what cannot be: a typed failure of the run, within bounds of time, disk and memory."""

import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from device_runner.adb.device import AdbDevice, list_devices, open_adb
from device_runner.adb.link import OUTPUT_LIMIT, Link, server_at
from device_runner.adb.server import list_serials, reconnect
from device_runner.device import Readiness
from device_runner.failures import failure_of
from device_runner.local import wheel_library
from device_runner.probe.protocol import RUNS_KEPT, answer_limit
from device_runner.result import FailureKind, RunResult, Status
from device_runner.shell_facts import PROPERTIES
from device_runner.spec import MOST_STRING_BYTES, RunSpec
from tests.lying_adb import Document, Lie, LyingAdb, document, endless, repeated
from tests.values import present

SOCKET_BYTES = 16 << 20
"""What a kernel may hold of a connection that nobody reads any more."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The device's folder: what one test has pushed, the next one finds."""
    return str(tmp_path_factory.mktemp("phone") / "ort-mobile")


@pytest.fixture(autouse=True)
def no_adb_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is started or connected by an adb program."""
    monkeypatch.setenv("ADBUTILS_ADB_PATH", "/bin/false")


def connected(adb: LyingAdb, root: str, probe: Path) -> AdbDevice:
    return AdbDevice(Link(server_at(f"127.0.0.1:{adb.port}"), "fake1"), root=root, tools=(probe, wheel_library()))


@pytest.fixture
def lied_to(root: str, probe: Path, models: Path, tmp_path: Path) -> Callable[..., RunResult]:
    """The result of a run on a device that lies, and that no file of it is left."""

    def run(lie: Lie, **values: object) -> RunResult:
        values = {"min_runs": 3, "min_seconds": 0.0, "timeout_seconds": 30.0, "outputs_limit_bytes": 1 << 20, **values}
        spec = RunSpec(id="x", model=str(models / "null.onnx"), outputs_folder=str(tmp_path / "out"), **values)  # type: ignore[arg-type]  # by name
        with LyingAdb(lie) as adb, connected(adb, root, probe) as device:
            result = device.run(spec)
        if result.failure:
            assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
            assert result.failure.why
            assert result.failure.remedy
            assert len(result.failure.what) < 10_000
        return result

    return run


def test_a_device_that_tells_the_truth_is_measured(lied_to: Callable[..., RunResult]) -> None:
    result = lied_to(Lie())
    assert result.status is Status.OK, result.failure
    assert [Path(tensor.file).stat().st_size for tensor in result.outputs] == [16]


def shape(*sizes: int) -> Callable[[Document], None]:
    return lambda answer: answer["outputs"][0].update(shape=list(sizes))


def outputs(count: int) -> Callable[[Document], None]:
    def change(answer: Document) -> None:
        (one,) = answer["outputs"]
        answer["outputs"] = [{**one, "name": f"y{n}", "file": f"output_{n}.raw"} for n in range(count)]

    return change


def wide(answer: Document) -> None:
    for output in answer["outputs"]:
        output.update(shape=[1000])


def value(**values: object) -> Callable[[Document], None]:
    return lambda answer: answer.update(values)


FALSE_DOCUMENTS: dict[str, Callable[[Document], object]] = {
    "a shape of 4 TiB": shape(1 << 40),
    "a shape beyond time_t": shape(1 << 62),
    "a shape beyond a float": shape(*[10**9] * 40),
    "a shape of empty and endless dimensions": shape(0, *[1 << 40] * 30),
    "a shape beyond a double": shape(*[1 << 40] * 30),
    "a negative shape": shape(-1, 4),
    "a shape of 100 dimensions": shape(*[1] * 100),
    "an output of more than the spec allows": shape(1 << 18, 2),
    "5,000 outputs": outputs(5_000),
    "1,000 outputs that are too many together": lambda answer: [change(answer) for change in (outputs(1000), wide)],
    "an output twice": lambda answer: answer["outputs"].append(answer["outputs"][0]),
    "an output of unknown type": lambda answer: answer["outputs"][0].update(type=99),
    "a checksum beyond 32 bits": lambda answer: answer["outputs"][0].update(crc32=1 << 40),
    "a latency of 2**63": value(latencies_ns=[2**63]),
    "latencies of 2**63 - 1": value(latencies_ns=[2**63 - 1] * 3),
    "latencies of a day each": value(latencies_ns=[86_400 * 10**9] * 3),
    "latencies of 0": value(latencies_ns=[0] * 20),
    "latencies of 1 ns": value(latencies_ns=[1] * 20),
    "a negative latency": value(latencies_ns=[-1, 5000, 5000]),
    "no latencies": value(latencies_ns=[]),
    "a fraction of a nanosecond": value(latencies_ns=[1e300]),
    "loading in negative time": value(load_ns=-5),
    "loading for a week": value(load_ns=7 * 86_400 * 10**9),
    "one inference of three": value(latencies_ns=[5000]),
    "a peak below what it has after loading": value(memory_after_load_bytes=9 << 20, memory_peak_bytes=1 << 20),
    "a peak of 2**70 bytes": value(memory_peak_bytes=2**70),
    "a kind of failure that is none": value(status="failed", kind="\x1b[2J"),
    "a release of 1 MB": value(ort_version="1" * 1_000_000),
    "600,000 lines of log": value(log=["W x: y"] * 600_000),
    "one line of 1 MB": value(log=["x" * 1_000_000]),
    "10,000 providers": value(available_providers=["x"] * 10_000),
}  # fmt: skip


AT_NIGHT = {
    "a shape beyond time_t", "a shape beyond a double", "a shape of empty and endless dimensions",
    "latencies of 2**63 - 1", "latencies of 1 ns", "a negative latency", "loading for a week",
    "1,000 outputs that are too many together", "one line of 1 MB", "10,000 providers", "a peak of 2**70 bytes",
}  # fmt: skip
"""Lies of a kind that others tell as well: of each, the device's files are looked at again."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly if name in AT_NIGHT else ()) for name in FALSE_DOCUMENTS]
)
def test_a_document_that_cannot_be_true_is_a_garbled_run(name: str, lied_to: Callable[..., RunResult]) -> None:
    result = lied_to(Lie(run=document(FALSE_DOCUMENTS[name])))
    assert present(result.failure).code is FailureKind.GARBAGE
    assert result.latencies_ns == ()
    assert result.log == ()


@pytest.mark.parametrize(
    ("limit_bytes", "why"),
    [
        (MOST_STRING_BYTES, "has not the strings of its shape"),
        (MOST_STRING_BYTES - 1, "outputs of more than 16777215 bytes"),  # a string has no length in the document
    ],
)
def test_numbers_in_the_place_of_strings_are_a_garbled_run(
    lied_to: Callable[..., RunResult], limit_bytes: int, why: str
) -> None:
    lie = Lie(run=document(lambda answer: answer["outputs"][0].update(type=8)))
    result = lied_to(lie, outputs_limit_bytes=limit_bytes)
    assert why in present(result.failure).what


@pytest.mark.parametrize(
    "file", ["../../etc/passwd", "/etc/passwd", "output_0.raw/../x", "output_٣.raw", "output_0.raw\n", "profile/../x"]
)
def test_only_files_of_runs_are_fetched(file: str, lied_to: Callable[..., RunResult]) -> None:
    change = document(lambda answer: answer["outputs"][0].update(file=file))
    failure = present(lied_to(Lie(run=change)).failure)
    assert failure.code is FailureKind.DEVICE_ERROR
    assert "none of ours" in failure.what


def test_a_profile_that_nobody_asked_for_is_not_fetched(lied_to: Callable[..., RunResult]) -> None:
    result = lied_to(Lie(run=document(value(profile="profile_1.json"))))
    assert result.status is Status.OK, result.failure
    assert result.profile_file is None


@pytest.mark.parametrize(
    "answer", [repeated(b"[", 2 << 20), repeated(b'{"probe":', 2 << 20), repeated(b'"\\ud800', 1 << 20)],
    ids=["arrays", "objects", "surrogates"],
)  # fmt: skip
def test_what_is_no_document_is_a_garbled_run(
    answer: Callable[[bytes], Iterator[bytes]], lied_to: Callable[..., RunResult]
) -> None:
    failure = present(lied_to(Lie(run=answer)).failure)
    assert failure.code is FailureKind.GARBAGE


def test_a_file_that_never_ends_is_cut_off(root: str, probe: Path, models: Path, tmp_path: Path) -> None:
    spec = RunSpec(id="x", model=str(models / "null.onnx"), outputs_folder=str(tmp_path / "out"), min_runs=3)
    with LyingAdb(Lie(file=endless)) as adb, connected(adb, root, probe) as device:
        before = adb.sent
        failure = device.run(spec).failure
        assert adb.sent - before < SOCKET_BYTES
    assert failure is not None
    assert failure.code is FailureKind.DEVICE_ERROR
    assert "longer than it can be" in failure.what
    assert not any(path.is_file() for path in (tmp_path / "out").rglob("*"))


def test_files_that_do_not_come_have_one_time_limit_together(
    lied_to: Callable[..., RunResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("device_runner.adb.device.FETCH_GRACE_SECONDS", 0.3)
    failure = present(lied_to(Lie(run=document(outputs(500)), file=None)).failure)
    assert failure.code is FailureKind.LOST_DEVICE


def test_an_answer_that_never_ends_is_cut_off(root: str, probe: Path, models: Path) -> None:
    spec = RunSpec(id="x", model=str(models / "null.onnx"), min_runs=3, min_seconds=0.0)
    with LyingAdb(Lie(run=endless)) as adb, connected(adb, root, probe) as device:
        before = adb.sent
        failure = device.run(spec).failure
        assert adb.sent - before < answer_limit(spec) + SOCKET_BYTES
    assert failure is not None
    assert failure.code is FailureKind.DEVICE_ERROR
    assert "answers with more than" in failure.what


def test_an_answer_with_all_latencies_is_within_its_limit() -> None:
    spec = RunSpec(id="x", model="m", min_runs=RUNS_KEPT)
    assert answer_limit(spec) > RUNS_KEPT * len("999999999999999,")
    assert answer_limit(RunSpec(id="x", model="m")) < 64 << 20


def test_devices_of_a_server_that_answers_without_end_cost_a_bounded_amount_of_memory() -> None:
    serials = tuple(f"fake{n}" for n in range(32))
    with LyingAdb(Lie(shell=repeated(b"x", 250 << 20), serials=serials)) as adb:
        found = list_devices(f"*@127.0.0.1:{adb.port}")
        assert adb.sent < 32 * (OUTPUT_LIMIT + SOCKET_BYTES)
    assert [facts.readiness for facts in found] == [Readiness.UNUSABLE] * 32
    assert {facts.advice for facts in found} == {f"the device answers with more than {OUTPUT_LIMIT} bytes"}


@pytest.mark.parametrize(
    "said", [b"\0" * 4096, b"\n" * 100_000, b"1" * 200_000, b"1 " * 100_000, b"9" * 5000 + b" 1 1 1%", b"\xff" * 99]
)
def test_facts_that_are_none_are_refused_at_once(said: bytes) -> None:
    with LyingAdb(Lie(shell=lambda _: iter([said]))) as adb:
        (facts,) = list_devices(f"*@127.0.0.1:{adb.port}")
    assert facts.readiness is Readiness.UNUSABLE
    assert facts.advice.startswith("the device answers nonsense")


@pytest.mark.parametrize(
    "said", [b"\n" * 20_000, b"1" * 20_000, b"1 " * 20_000, b"9" * 5000 + b" 1 1 1%\n", b"\xd9\xa3" * 99]
)
def test_facts_with_sections_of_nonsense_are_read_at_once(said: bytes) -> None:
    """Each section in turn: numbers without end and blank lines are neither an error of ours nor a matter of time."""
    machine = len(PROPERTIES)  # the first section behind the properties: without it there is no ABI

    def changed(data: bytes) -> Iterator[bytes]:
        sections = data.split(b"\0")
        yield b"\0".join([*(said if n != machine else b"x86_64" for n, _ in enumerate(sections[:-1])), sections[-1]])

    with LyingAdb(Lie(shell=changed)) as adb:
        (facts,) = list_devices(f"*@127.0.0.1:{adb.port}")
    assert facts.readiness is Readiness.READY
    assert facts.memory_bytes < 1 << 44
    assert facts.free_bytes < 1 << 60


def test_a_full_disk_of_this_computer_is_not_the_devices(root: str, probe: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(100_000))
    with LyingAdb(Lie()) as adb, connected(adb, root, probe) as device, pytest.raises(OSError) as caught:  # noqa: PT011  # ENOSPC below
        device.link.pull(str(tmp_path / "file"), Path("/dev/full"), seconds=5.0, limit_bytes=100_000)
    assert caught.value.errno == errno.ENOSPC
    failure = failure_of(caught.value)
    assert failure.code is FailureKind.NO_SPACE
    assert "the disk of this computer is full" in failure.what
    assert "TMPDIR" in failure.remedy
    assert "/data/local/tmp" not in failure.remedy


def test_opening_a_device_that_is_not_listed_says_so() -> None:
    with LyingAdb(Lie(serials=("\x1b[2J",))) as adb, pytest.raises(Exception, match="no device 'fake9'"):
        open_adb(f"fake9@127.0.0.1:{adb.port}")


def test_a_lost_device_is_joined_again_after_the_server_let_it_go() -> None:
    """The server answers a disconnect before it is done; connecting before makes no connection."""
    phone = "10.0.0.7:5555"

    def joining(service: str) -> None:
        if service == f"host:disconnect:{phone}":
            threading.Timer(0.3, lambda: setattr(adb, "lie", Lie(joining=joining, serials=()))).start()
        elif not adb.lie.others:
            adb.lie = Lie(joining=joining, serials=(phone,))

    with LyingAdb(Lie(joining=joining, serials=(), others=((phone, "offline"),))) as adb:
        reconnect(server_at(f"127.0.0.1:{adb.port}"), phone)
        assert list_serials(server_at(f"127.0.0.1:{adb.port}")) == [(phone, "device")]
