"""Two campaigns compared, of every form: in pairs or not, what changed named, nothing said that rounds do not show."""

import json
import shutil
from pathlib import Path

import jsonschema
import msgspec
import numpy as np
import pytest

from device_runner.device import DeviceFacts
from device_runner.result import Failure, FailureKind, Mark
from pipeline.campaign.changed_facts import ChangedFact
from pipeline.campaign.record import Host
from pipeline.campaign.statistics.compare import Verdict
from pipeline.core.errors import ConfigError, PipelineError
from pipeline.features.pairs import comparison
from pipeline.features.pairs.comparison import compare_sides, read_side, unpaired_interval
from pipeline.features.pairs.report import change_text
from pipeline.report import wording
from pipeline.report.model import CampaignReport, MeasuredRun, make_rows
from pipeline.report.show import plain_lines
from tests.command import ort_mobile
from tests.configs import BASIC, DESK, short
from tests.onnx_samples import linear, save
from tests.report_samples import lane, make_report, record, runs

SCHEMA = Path(__file__).resolve().parents[3] / "docs" / "comparison.schema.json"


def campaign(
    name: str, *rows: MeasuredRun, host: Host | None = None, devices: tuple[DeviceFacts, ...] = ()
) -> CampaignReport:
    """A report of these rows."""
    return CampaignReport(
        name="my", campaign=name, created_at="2026-01-31T08:15:30.123Z", margin=0.05, host=host or Host(), versions={},
        rows=make_rows(rows, {}), devices=devices,
    )  # fmt: skip


def row(factor: float, seed: int, variant: str = "all-fixed", device: str = "local", rounds: int = 8) -> MeasuredRun:
    return lane(*runs(factor, seed, rounds=rounds), device=device, variant=variant)


def test_two_campaigns_are_not_paired_and_say_so() -> None:
    found = compare_sides(campaign("1", row(1.0, 1)), campaign("2", row(1.5, 2)))
    (one,) = found.rows
    assert (one.verdict, one.paired, one.a_rounds) == (Verdict.SLOWER, False, 8)
    assert one.low is not None
    assert one.high is not None
    assert one.low < 1.5 < one.high
    assert [note.title for section in comparison.sections(found) for note in section.notes] == ["", "unpaired"]


def test_runs_of_one_campaign_are_compared_in_pairs() -> None:
    """Drift that both rows share is in no interval of pairs, and widens an unpaired one."""
    both = campaign("1", row(1.0, 1, "none-fixed"), row(1.1, 2, "all-fixed"))
    (one,) = compare_sides(both, both, runs=("none-fixed", "all-fixed/cpu")).rows
    assert one.paired
    assert one.a == "none-fixed/cpu"
    assert one.verdict is Verdict.SLOWER


def test_a_round_that_failed_leaves_nothing_to_pair_by() -> None:
    crash = record(6, (), Failure(code=FailureKind.CRASH, what="gone"))
    failed = lane(*runs(1.0, 1, rounds=6), crash, device="local", variant="b")
    both = campaign("1", row(1.0, 1, "a", rounds=6), failed)
    (one,) = compare_sides(both, both, runs=("a", "b")).rows
    assert not one.paired


def test_what_changed_is_named() -> None:
    before, after = row(1.0, 1, device="adb:1"), row(1.0, 2, device="adb:1")
    first = campaign(
        "1", before, host=Host(cpu="old"), devices=(DeviceFacts(name="adb:1", platform="android", fingerprint="b/1"),)
    )
    second = campaign("2", after, host=Host(cpu="new"),
                      devices=(DeviceFacts(name="adb:1", platform="android", fingerprint="b/2"),))  # fmt: skip
    changed = msgspec.structs.replace(
        second.rows[0], measured_with={**(second.rows[0].measured_with or {}), "ONNX Runtime": "1.31.1"}
    )
    second = msgspec.structs.replace(second, rows=(changed,))
    (one,) = compare_sides(first, second).rows
    assert [(c.what, c.before, c.after) for c in one.changes] == [
        ("ONNX Runtime", "not known", "1.31.1"),
        ("system", "android b/1", "android b/2"),
        ("driven by", "old", "new"),
    ]


def test_only_settings_that_differ_are_named() -> None:
    def measured(min_runs: int, max_seconds: float) -> MeasuredRun:
        found = tuple(
            msgspec.structs.replace(
                run, spec=msgspec.structs.replace(run.spec, min_runs=min_runs, max_seconds=max_seconds)
            )
            for run in runs(1.0, 1)
        )
        return lane(*found, device="local", variant="a")

    found = compare_sides(
        campaign("1", measured(20, 60.0)),
        campaign("2", measured(50, 1.5)),
    )
    notes = next(section.notes for section in comparison.sections(found) if section.title.startswith("What changed"))
    assert [(note.title, note.text) for note in notes] == [
        ("measurement min_runs", "20 → 50"),
        ("measurement max_seconds", "60 → 1.5"),
    ]


def test_what_one_side_alone_has_is_listed() -> None:
    first, second = campaign("1", row(1, 1, "x"), row(1, 1, "y")), campaign("2", row(1, 1, "y"), row(1, 1, "y", "d"))
    found = compare_sides(first, second)
    assert found.only_a == ("local / m / x / cpu",)
    assert found.only_b == ("d / m / y / cpu",)


def test_few_rounds_and_times_of_no_phone_give_no_ratio() -> None:
    few = compare_sides(campaign("1", row(1, 1, rounds=3)), campaign("2", row(1, 1)))
    assert few.rows[0].ratio is None
    assert "at least 4" in few.rows[0].note
    of_no_phone = (record(n, (2_000_000,), marks=(Mark.NOT_A_PHONE,)) for n in range(6))
    marked = lane(*of_no_phone, device="local", variant="all-fixed")
    found = compare_sides(campaign("1", row(1, 1)), campaign("2", marked))
    assert found.rows[0].note == "times of B are not a phone's"


@pytest.mark.parametrize(
    ("run", "what"), [("nope", "no run 'nope'"), ("", "no run is named, and there are several of m on local")]
)
def test_a_run_that_is_not_one_is_refused(run: str, what: str) -> None:
    report, other = campaign("1", row(1, 1, "x"), row(1, 1, "y")), campaign("2", row(1, 1, "z"))
    with pytest.raises(ConfigError, match=what):
        compare_sides(report, other, runs=(run, "z"))


def test_a_campaign_that_measured_nothing_is_no_list_of_runs_to_choose_from() -> None:
    with pytest.raises(ConfigError, match="measured nothing") as refused:
        compare_sides(campaign("1"), campaign("2", row(1, 1, "z")), runs=("z", "z"))
    assert "#previous" in refused.value.remedy


def test_a_run_that_is_named_for_one_side_is_meant_on_both() -> None:
    first, second = (campaign(name, row(1, 1, "x"), row(1, 2, "y")) for name in ("1", "2"))
    for named in (("x", ""), ("", "x/cpu")):
        found = compare_sides(first, second, runs=named)
        assert [(one.a, one.b) for one in found.rows] == [("x/cpu", "x/cpu")]


def notes_of(found: comparison.SideComparison) -> str:
    return "; ".join(f"{note.title} {note.text} {note.remedy}" for s in comparison.sections(found) for note in s.notes)


def test_a_campaign_compared_with_itself_says_so_and_two_runs_of_one_do_not() -> None:
    both = campaign("1", row(1.0, 1, "x"), row(1.1, 2, "y"))
    itself = compare_sides(both, both)
    assert "compared with themselves" in notes_of(itself)
    runs_of_it = compare_sides(both, both, runs=("x", "y"))
    assert "themselves" not in notes_of(runs_of_it)


def test_where_devices_differ_the_remedy_does_not_blame_names_of_runs_alone() -> None:
    found = compare_sides(campaign("1", row(1, 1)), campaign("2", row(1, 1, device="adb:1")))
    assert "nothing was compared" in notes_of(found)
    assert "the same devices and models" in notes_of(found)


def test_of_a_run_that_failed_no_change_is_told() -> None:
    crash = record(0, (), Failure(code=FailureKind.CRASH, what="gone"))
    failed = lane(crash, device="local", variant="all-fixed")
    found = compare_sides(campaign("1", row(1, 1)), campaign("2", failed))
    assert "in B" in found.rows[0].note
    assert found.rows[0].changes == ()
    assert "not known" not in notes_of(found)
    assert "nothing that is known" not in notes_of(found)


@pytest.mark.long
def test_unpaired_intervals_hold_the_truth() -> None:
    """5,000 pairs of equal sides with seeded noise: a 95 % interval misses in about one of twenty."""
    random = np.random.default_rng(7)
    inside = 0
    for _ in range(5000):
        a, b = np.exp(random.normal(14, 0.02, (2, 6)))
        _, low, high = unpaired_interval(a, b)
        inside += low <= 1 <= high
    assert 0.94 <= inside / 5000 <= 0.97


def test_documents_keep_to_the_schema_and_hostile_names_do_nothing() -> None:
    report = make_report(model="m|<script>@all`", device="adb:\x1b[2J")
    found = compare_sides(report, report)
    jsonschema.validate(json.loads(msgspec.json.encode(found)), json.loads(SCHEMA.read_text(encoding="utf-8")))
    page = wording.markdown("Comparison", [comparison.listing(found), *comparison.sections(found)])
    assert "<script>" not in page
    assert "\x1b" not in page
    assert all("\x1b" not in line for line in plain_lines(comparison.listing(found)))


def test_long_texts_are_cut_where_they_differ() -> None:
    change = ChangedFact(what="host", before="x" * 100 + "1" + "y" * 100, after="x" * 100 + "2" + "y" * 100)
    text = change_text(change)
    assert "1" in text
    assert "2" in text
    assert len(text) < 140


CONFIG = (
    """
name = "my"
[[models]]
path = "my.onnx"
dimensions = { batch = 1 }
"""
    + DESK
    + BASIC
    + short(4, 2)
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job that was run twice."""
    made = tmp_path_factory.mktemp("sides")
    save(linear(8), made / "my.onnx")
    (made / "my.toml").write_text(CONFIG)
    for _ in range(2):
        ort_mobile("run", "my.toml", cwd=made)
    return made


@pytest.mark.long
def test_every_form_of_a_campaign_is_the_same(folder: Path) -> None:
    out = folder / "output/my"
    forms = [out, out / "results.json", out / "results.sqlite", out / "bundle", f"sqlite:///{out}/results.sqlite"]
    reports = [read_side(str(form)) for form in forms]
    assert len({report.campaign for report in reports}) == 1
    assert {report.rows[0].measured_with.get("ONNX Runtime") for report in reports if report.rows[0].measured_with} == {
        json.loads((out / "results.json").read_text())["versions"]["onnxruntime"]
    }


def test_the_campaign_before_the_newest_and_one_by_its_id(folder: Path) -> None:
    out = folder / "output/my"
    before, newest = read_side(f"{out}#previous"), read_side(str(out))
    assert before.created_at < newest.created_at
    assert read_side(f"{out}/results.sqlite#{before.campaign}").campaign == before.campaign
    done = ort_mobile("compare", f"{out}#previous", out, cwd=folder)
    assert "nothing that is known" in done.out
    named = ort_mobile("compare", out, out, "--run-a", "basic-fixed/cpu", "--run-b", "basic-fixed", cwd=folder)
    assert "4 and 4, paired" in named.out
    (folder / "phone.json").write_text((out / "results.json").read_text().replace('"local"', '"adb:1"'))
    nothing = ort_mobile("compare", out, "phone.json", cwd=folder, code=1)
    assert "nothing was compared" in nothing.out


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("text.json", b"hello", 1),
        ("newer.json", b'{"version": 9}', 2),
        ("results.sqlite", b"SQLite format 3\0" + bytes(4096), 1),
        ("empty.json", b"", 1),
        ("deep.json", b'{"version": 1, "more": ' + b"[" * 200_000, 1),
        ("absent.json", None, 2),
        ("folder", None, 2),
    ],
)
def test_what_is_no_campaign_is_refused(name: str, content: bytes | None, code: int, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    if name == "folder":
        (tmp_path / name).mkdir()
    done = ort_mobile("compare", name, name, cwd=tmp_path, code=code)
    assert done.err.startswith("error: ")
    assert "remedy: " in done.err


def test_a_bundle_without_evidence_says_so(folder: Path, tmp_path: Path) -> None:
    import msgspec

    from pipeline.release.manifest import content_digest, encode_manifest, read_manifest, sealed

    bundle = tmp_path / "bundle"
    shutil.copytree(folder / "output/my/bundle", bundle)
    manifest = read_manifest(bundle)
    text = encode_manifest(
        msgspec.structs.replace(manifest, evidence={}, content_sha256=content_digest(manifest.content))
    )
    (bundle / "manifest.json").write_bytes(text)
    (bundle / "manifest.sha256").write_bytes(sealed(text))
    with pytest.raises(PipelineError, match="does not say what was measured"):
        read_side(str(bundle))


def test_negative_times_are_refused(folder: Path, tmp_path: Path) -> None:
    document = json.loads((folder / "output/my/results.json").read_bytes())
    document["rows"][0]["statistics"]["median_ns"] = -1.0
    (tmp_path / "negative.json").write_text(json.dumps(document))
    done = ort_mobile("compare", "negative.json", "negative.json", cwd=tmp_path, code=1)
    assert "has a negative time" in done.err


def test_a_damaged_schema_is_an_error(folder: Path, tmp_path: Path) -> None:
    content = (folder / "output/my/results.sqlite").read_bytes()
    (tmp_path / "results.sqlite").write_bytes(content.replace(b"CREATE TABLE runs", b"CREATE TABL\x97 runs"))
    for words in (("compare", "results.sqlite", "results.sqlite"), ("report", ".")):
        done = ort_mobile(*words, cwd=tmp_path, code=1)
        assert "the database is damaged" in done.err
        assert "Internal error" not in done.err
