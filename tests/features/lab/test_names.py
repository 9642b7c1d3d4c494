"""What a host accepts of names and sizes: everything in a lab's database may have been written by somebody else."""

import contextlib
import re
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa

from device_runner.device import DeviceFacts
from device_runner.spec import ElementType, Stream, TensorFile
from pipeline.campaign.plan import plan_runs, recorded
from pipeline.campaign.record import CampaignRecord, Host, JobRecord
from pipeline.campaign.store import Store, StoreError, open_store
from pipeline.check.compare import OutputPrecision
from pipeline.check.result import LabelledSet, Reference, StreamReference
from pipeline.config import Config, MeasureConfig, ModelConfig, OutputConfig, RunConfig
from pipeline.core.errors import ConfigError, MissingError
from pipeline.core.progress import NoProgress
from pipeline.features.lab.campaigns import (
    carried_folder,
    close,
    fetched,
    submit,
)
from pipeline.features.lab.content import (
    MOST_BYTES,
    MOST_FILES,
    PART_BYTES,
    LabFile,
    checked_files,
    checked_id,
    fetch_file,
    file_in,
    files_of,
)
from pipeline.features.lab.tables import blobs, files, jobs
from pipeline.job import carrying
from pipeline.job.run import JobOptions
from tests.campaign.test_plan import context
from tests.features.lab.farm import entered

BAD_NAMES = (
    "", "m.ort", "/etc/passwd", "//artifacts/m.ort", "artifacts/", "artifacts", "artifacts/../m.ort", "../artifacts/m",
    "artifacts/..", "artifacts/.", "artifacts//m.ort", "artifacts/a/b", "reference/x", "reference/../x",
    "reference/a/../b", "reference/a/b/c", "libraries/a/b", "artifacts/a\0b", "artifacts/\x1b[31mred", "artifacts/a\nb",
    "artifacts/a\\..\\b", "artifacts/\u202egnp.exe", "Artifacts/m.ort", "bundle/manifest.json",
    "artifacts/" + "x" * 256,
)  # fmt: skip

DIGEST = "a" * 64


def test_contexts_are_run_by_hosts_of_a_lab_with_the_plugin_and_what_the_simulator_computed(tmp_path: Path) -> None:
    phone = DeviceFacts(name="adb:s24", platform="android", abis=("arm64-v8a",), soc="QTI SM8650")
    plugins: dict[str, tuple[str, ...]] = {"qnn": ("/there/libqnn.so", "/sdk/libStub.so")}
    config = Config(
        name="lab", models=(ModelConfig(path="m.onnx"),), measure=MeasureConfig(rounds=1, plugins=plugins),
        runs=(RunConfig(provider="qnn", variants=("qnn-*",)),),
    )  # fmt: skip
    contexts = (context("SM8650"), context("SM8850"))
    legal, _ = plan_runs(config.runs, [], [phone], contexts=contexts)
    names = ("x", "y", "float_y", "labelled_x", "labelled_y", "qnn-SM8650.y", "steps_x", "streamed_y")
    x, y, float_y, labelled_x, labelled_y, simulated_y, steps_x, streamed_y = (
        TensorFile(name=name, dtype=ElementType.FLOAT32, shape=(1,), file=f"/there/reference/m/{name}")
        for name in names
    )
    reference = Reference(
        inputs=(x,), outputs=(y,), original=(float_y,), precision=OutputPrecision.FLOAT16,
        labelled=LabelledSet(samples=1, inputs=labelled_x, outputs=labelled_y, accuracy=None, labels=(7,)),
        simulated={"qnn-SM8650": (simulated_y,)},
        stream=StreamReference(stream=Stream(steps=2, states={}, sequences=(steps_x,)), outputs=(streamed_y,)),
    )  # fmt: skip
    record = JobRecord(
        config=config, host=Host(), versions={}, models=(), planned=tuple(recorded(legal, None)), skipped=(),
        failures=(), warnings=(), checks={}, references={"m": reference}, contexts=contexts,
    )  # fmt: skip
    campaign = CampaignRecord(id="c", name="lab", created_at="2026-01-01T00:00:00.000Z", document=record)
    carried = carrying.Carried(campaign=campaign, record=record, artifacts=(), folder=tmp_path)
    assert [run.text for run in carrying.planned_here(carried, phone)] == ["adb:s24/m/qnn-SM8650/qnn"]
    files = carrying.carried_files(tmp_path, (), record.references, config, contexts)
    assert {f"reference/m/{name}" for name in names} <= files.keys()
    assert files["libraries/qnn-libqnn.so"] == Path("/there/libqnn.so")
    here = tuple(str(tmp_path / "plugins/qnn" / name) for name in ("libqnn.so", "libStub.so"))
    assert carried.config.measure.plugins == {"qnn": here}
    moved = msgspec.json.encode(carried.references)
    assert all(f'"{tmp_path}/reference/m/{name}"'.encode() in moved for name in names)
    assert b"/there/reference" not in moved


def lab_file(name: str = "artifacts/m.ort", sha256: str = DIGEST, size_bytes: int = 1) -> LabFile:
    return LabFile(name, sha256, size_bytes)


@pytest.fixture
def plain(tmp_path: Path) -> "contextlib.closing[Store]":
    return contextlib.closing(open_store(f"sqlite:///{tmp_path / 'lab.sqlite'}"))


@pytest.mark.parametrize("name", ["artifacts/m.all-fixed.ort", "reference/m@u8s8pc/in put", "libraries/0a-lib ä.so"])
def test_good_names_lie_in_the_folder(tmp_path: Path, name: str) -> None:
    assert file_in(tmp_path, name) == tmp_path / name


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError, match="is no name of a campaign's file") as refused:
        file_in(tmp_path, name)
    assert "\x1b" not in str(refused.value)


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "here").mkdir()
    (tmp_path / "here/artifacts").symlink_to(tmp_path / "outside")
    with pytest.raises(StoreError, match="no name of a campaign's file"):
        file_in(tmp_path / "here", "artifacts/m.ort")


@pytest.mark.parametrize("name", ["", "..", ".", "../x", "/tmp/x", "a/b", "a\0b", "a b", "\x1b[31m", "a\n", "x" * 129])
def test_ids_that_lead_elsewhere_are_refused(name: str) -> None:
    with pytest.raises(StoreError, match="is no id of a campaign"):
        carried_folder(name)


def test_ids_of_campaigns_are_good() -> None:
    assert checked_id("2026-11-23T00:44:48.527Z-03e437") == "2026-11-23T00:44:48.527Z-03e437"
    assert carried_folder("c:1") != carried_folder("c-1")


@pytest.mark.parametrize("size", [-1, MOST_BYTES + 1, 1 << 62])
def test_sizes_that_cannot_be_are_refused(size: int) -> None:
    with pytest.raises(StoreError, match="a file has 0 to"):
        checked_files([lab_file(size_bytes=size)])


def test_what_a_host_takes_is_bounded() -> None:
    with pytest.raises(StoreError, match="a host takes at most"):
        checked_files([lab_file(name=f"artifacts/{n}", size_bytes=MOST_BYTES // 2) for n in range(3)])
    with pytest.raises(StoreError, match="a host takes at most"):
        checked_files([lab_file(name=f"artifacts/{n}") for n in range(MOST_FILES + 1)])
    with pytest.raises(StoreError, match="has no SHA-256"):
        checked_files([lab_file(sha256="../x")])


@pytest.mark.parametrize("column", ["name", "size_bytes"])
def test_a_campaign_with_a_bad_row_writes_nothing(
    plain: "contextlib.closing[Store]", tmp_path: Path, column: str
) -> None:
    bad: object = f"{tmp_path}/outside" if column == "name" else 1 << 62
    with plain as store:
        campaign = entered(store, ["rig:0@h"], 1)
        good = {"campaign_id": campaign.id, "name": "artifacts/a", "sha256": DIGEST, "size_bytes": 0}
        rows = [good, {**good, "name": "artifacts/b", column: bad}]
        store.write(lambda connection: connection.execute(files.insert(), rows))
        with pytest.raises(StoreError):
            fetched(store, campaign, tmp_path / "out")
    assert not (tmp_path / "outside").exists()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("plugins", [{"..": ("p.so",)}, {"a/b": ("p.so",)}, {"qnn": ("..",)}, {"qnn": ("",)}])
def test_a_plugin_that_would_lie_elsewhere_writes_nothing(
    plain: "contextlib.closing[Store]", tmp_path: Path, plugins: dict[str, tuple[str, ...]]
) -> None:
    with plain as store:
        campaign = entered(store, ["rig:0@h"], 1)
        config = campaign.job().config
        measure = msgspec.structs.replace(config.measure, plugins=plugins)
        record = msgspec.structs.replace(campaign.job(), config=msgspec.structs.replace(config, measure=measure))
        with pytest.raises(StoreError, match="is no name of a campaign's file"):
            fetched(store, msgspec.structs.replace(campaign, document=record), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_plugin_that_is_not_there_is_an_error_before_anything_is_prepared(tmp_path: Path) -> None:
    plugins: dict[str, tuple[str, ...]] = {"qnn": (str(tmp_path / "libqnn.so"),)}
    config = Config(
        name="lab", models=(ModelConfig(path="m.onnx"),), measure=MeasureConfig(plugins=plugins),
        output=OutputConfig(database="postgresql://nobody@192.0.2.1/lab"),
    )  # fmt: skip
    with pytest.raises(MissingError, match=r"libqnn\.so"):
        submit(config, JobOptions(), NoProgress())


def test_files_of_a_plugin_with_one_name_are_refused(tmp_path: Path) -> None:
    """They would lie in one folder of a host."""
    files = (tmp_path / "v75" / "libSkel.so", tmp_path / "v79" / "libSkel.so")
    for file in files:
        file.parent.mkdir()
        file.touch()
    config = Config(
        name="lab", models=(ModelConfig(path="m.onnx"),),
        measure=MeasureConfig(plugins={"qnn": tuple(map(str, files))}),
        output=OutputConfig(database="postgresql://nobody@192.0.2.1/lab"),
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"v79/libSkel\.so"):
        submit(config, JobOptions(), NoProgress())


@pytest.mark.parametrize(("part", "content"), [(1, b""), (1, b"x" * 5), (0, b"x"), (0, b"x" * (PART_BYTES + 1))])
def test_parts_that_are_missing_short_or_long_are_refused(
    plain: "contextlib.closing[Store]", tmp_path: Path, part: int, content: bytes
) -> None:
    """Also where more parts are there than the file's size says: they are not read."""
    parts = {0: bytes(PART_BYTES), 1: b"end", 2: b"more"} | {part: content}
    rows = [{"sha256": f"{number:064}", "content": value} for number, value in parts.items() if value]
    file = LabFile("artifacts/m.ort", DIGEST, PART_BYTES + 3, tuple(f"{number:064}" for number in parts))
    with plain as store:
        store.write(lambda connection: connection.execute(blobs.insert(), rows))
        with pytest.raises(StoreError, match="not as it was submitted"):
            fetch_file(store, file, tmp_path / "x")
    assert not list(tmp_path.glob("x*"))


def test_a_file_that_is_not_needed_any_more_is_not_fetched(plain: "contextlib.closing[Store]", tmp_path: Path) -> None:
    file = LabFile("artifacts/m.ort", DIGEST, 5 * PART_BYTES, (DIGEST,) * 5)
    with plain as store, pytest.raises(StoreError, match="the job is cancelled"):
        fetch_file(store, file, tmp_path / "x", lambda: "the job is cancelled")


@pytest.mark.parametrize("file", ["../m.ort", "/etc/passwd", ""])
def test_an_artifact_whose_file_leads_elsewhere_is_refused(
    plain: "contextlib.closing[Store]", tmp_path: Path, file: str
) -> None:
    with plain as store:
        campaign = entered(store, ["rig:0@h"], 1, file=file)
        with pytest.raises(StoreError, match="is no name of a campaign's file"):
            fetched(store, campaign, tmp_path / "out")


def test_more_files_than_a_host_takes_are_not_read(plain: "contextlib.closing[Store]") -> None:
    with plain as store:
        campaign = entered(store, ["rig:0@h"], 1)
        names = [f"artifacts/{number}" for number in range(MOST_FILES + 5)]
        rows = [{"campaign_id": campaign.id, "name": name, "sha256": DIGEST, "size_bytes": 1} for name in names]
        store.write(lambda connection: connection.execute(sa.insert(files), rows))
        with pytest.raises(StoreError, match=re.escape(f"{MOST_FILES + 1} files")):
            files_of(store, campaign.id)


def test_close_writes_into_no_folder_that_was_submitted(
    plain: "contextlib.closing[Store]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with plain as store:
        campaign = entered(store, ["rig:0@h"], 1, folder=str(tmp_path / "named"), file="../x")
        row = {"campaign_id": campaign.id, "device": "rig:0@h", "state": "done", "stage": "fresh"}
        store.write(lambda connection: connection.execute(jobs.insert().values(changed=sa.func.now(), **row)))
    with pytest.raises(StoreError, match="is no name of a campaign's file"):
        close(f"sqlite:///{tmp_path / 'lab.sqlite'}", None, None, NoProgress())
    assert not (tmp_path / "named").exists()
    assert (tmp_path / "output/lab").is_dir()
