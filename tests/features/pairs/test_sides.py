"""What compare reads: documents, databases, output folders and bundles, sound, foreign and damaged."""

import json
import shutil
from pathlib import Path

import pytest

from pipeline.core.errors import PipelineError
from pipeline.features.pairs.comparison import read_side
from tests.command import ort_mobile
from tests.configs import BASIC, DESK, short
from tests.onnx_samples import linear, save

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
