"""Provider-aware files by the library of the target's release: who is asked, and what is said of it."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import onnx
import pytest

from pipeline.convert import ConvertRequest, convert_model
from pipeline.convert.aware_reference import choose_reference
from pipeline.core.variant import Level, Variant, Way
from pipeline.model.sources import SourceModel
from tests.android_host.conftest import NEWEST, OLDEST, fetch
from tests.command import Done, ort_mobile
from tests.configs import short
from tests.convert.test_aware import digits
from tests.onnx_samples import save
from tests.partition_samples import chain

pytestmark = pytest.mark.android_host

LINE = NEWEST.rpartition(".")[0]
CONFIG = """
name = "aware"
[[models]]
path = "{model}"
[[targets]]
name = "phone"
platform = "android"
abis = ["x86_64"]
library = "{library}"
[[targets]]
name = "desk"
platform = "linux"
[variants]
levels = ["extended"]
styles = ["fixed"]
aware = ["nnapi"]
reference = "{reference}"
[[runs]]
variants = ["*-nnapi"]
""" + short(min_runs=1)


def call(tmp_path: Path, name: str, *arguments: str) -> tuple[Done, list[dict[str, Any]]]:
    """`convert --ep nnapi` into a folder of its own, with the rows of its JSON."""
    rows = tmp_path / f"{name}.json"
    given = ["--output", str(tmp_path / name), "--ep", "nnapi", "--no-config", "--json", str(rows), *arguments]
    result = ort_mobile("convert", *given, code=None)
    return result, json.loads(rows.read_bytes())["artifacts"]


def test_auto_takes_the_library_of_the_release_and_finds_its_file_again(mnist: Path, tmp_path: Path) -> None:
    library = fetch(NEWEST)
    arguments = (
        str(mnist),
        "--level",
        "basic,all",
        "--ort-release",
        LINE,
        "--abi",
        "x86_64",
        "--cache",
        str(tmp_path / "cache"),
        "--check",
    )
    first, rows = call(tmp_path, "first", *arguments)
    assert first.code == 0, first.text
    assert f"provider-aware artifacts saved by libonnxruntime {NEWEST} (sha256 {library.sha256[:12]}): 2" in first.text
    assert "2 of 2 give the original model's outputs" in first.text
    assert {row["variant"] for row in rows} == {"basic-fixed-nnapi", "all-fixed-nnapi"}
    made_by = {"way": "library", "release": NEWEST, "sha256": library.sha256, "rules": "", "abi": ""}
    assert [row["aware_by"] for row in rows] == [made_by] * 2
    second, again = call(tmp_path, "second", *arguments)
    assert "2 of them unchanged since the last time" in second.text
    assert [row["sha256"] for row in again] == [row["sha256"] for row in rows]
    for row in rows:
        assert hashlib.sha256((tmp_path / "first" / row["file"]).read_bytes()).hexdigest() == row["sha256"]


def test_the_same_bytes_without_a_cache(mnist: Path, tmp_path: Path) -> None:
    fetch(NEWEST)
    asked = (str(mnist), "--level", "all", "--ort-release", LINE, "--abi", "x86_64")
    digests = {name: [row["sha256"] for row in call(tmp_path, name, *asked)[1]] for name in ("one", "two")}
    assert digests["one"] == digests["two"]


def test_our_claims_on_request_and_where_the_library_cannot_be_told(mnist: Path, tmp_path: Path) -> None:
    fetch(NEWEST)
    for name, more in {"none": ("--reference", "none"), "safe": ("--safe",)}.items():
        result, rows = call(tmp_path, name, str(mnist), "--level", "all", "--ort-release", LINE, *more)
        assert "provider-aware artifacts saved with our claims: 1" in result.text
        assert rows[0]["aware_by"]["way"] == "plugin"


def test_a_library_by_its_file(mnist: Path, tmp_path: Path) -> None:
    own = shutil.copy(fetch("1.26.0").path, tmp_path / "libonnxruntime.so")
    _, rows = call(tmp_path, "own", str(mnist), "--level", "all", "--ort-release", "1.26", "--reference", str(own))
    assert (rows[0]["aware_by"]["way"], rows[0]["aware_by"]["release"]) == ("library", "1.26.0")


def test_the_library_claims_what_our_rules_claim_of_a_network(tmp_path: Path) -> None:
    fetch("1.29.0")
    path = save(digits(), tmp_path / "digits.onnx")
    options = ("--level", "extended", "--ort-release", "1.29", "--reference", "1.29.0")
    result, rows = call(tmp_path, "out", str(path), *options)
    assert result.code == 0, result.text
    assert rows[0]["aware_by"]["way"] == "library"
    assert rows[0]["notes"] == []
    assert "com.microsoft:FusedConv" not in rows[0]["operators"]


def test_a_model_that_the_library_refuses_is_saved_with_our_claims_under_auto(tmp_path: Path) -> None:
    """Opset 21 came after the oldest library."""
    reference = choose_reference(fetch(OLDEST).path, "")
    path = tmp_path / "m.onnx"
    model = chain("Relu", "Relu")
    model.opset_import[0].version = 21
    onnx.save(model, path)

    def request(name: str, *, optional: bool) -> ConvertRequest:
        return ConvertRequest(
            source=SourceModel(path=str(path)),
            variants=(Variant(level=Level.ALL, providers=("nnapi",)),),
            stem="m",
            output_folder=str(tmp_path / name),
            work_folder=str(tmp_path / f"{name}.work"),
            aware=msgspec.structs.replace(reference, optional=optional),
        )

    (artifact,) = convert_model(request("auto", optional=True)).artifacts
    assert artifact.aware_by
    assert artifact.aware_by.way is Way.PLUGIN
    assert artifact.notes[-1].startswith(f"our rules decided, because the library of {OLDEST} cannot save this model")
    (failure,) = convert_model(request("named", optional=False)).failures
    assert "till opset 20" in failure.why
    assert list((tmp_path / "named").iterdir()) == []


@pytest.mark.parametrize(
    "reference", [(), pytest.param(("--reference", "1.29.0"), marks=pytest.mark.nightly)], ids=["auto", "named"]
)
def test_the_library_of_the_abi_saves(mnist: Path, tmp_path: Path, reference: tuple[str, ...]) -> None:
    """`auto` without a library for the ABI keeps our claims, as x86_64's claims other nodes."""
    library = fetch("1.29.0", "arm64-v8a")
    options = ("--level", "all", "--ort-release", "1.29", "--abi", "arm64-v8a")
    result, rows = call(tmp_path, "arm64", str(mnist), *options, *reference)
    assert result.code == 0, result.text
    assert "saved by libonnxruntime 1.29.0 for arm64-v8a" in result.text
    assert rows[0]["aware_by"] == {
        "way": "library",
        "release": "1.29.0",
        "sha256": library.sha256,
        "rules": "",
        "abi": "arm64-v8a",
    }
    assert rows[0]["notes"] == []
    result, rows = call(tmp_path, "x86", str(mnist), *options[:-1], "x86")
    assert rows[0]["aware_by"] == {"way": "plugin", "release": "", "sha256": "", "rules": "", "abi": ""}


@pytest.mark.parametrize(("reference", "way"), [("auto", "library"), ("none", "plugin")])
def test_a_run_asks_the_library_of_its_target(mnist: Path, tmp_path: Path, reference: str, way: str) -> None:
    """Another release than the newest at hand: the target's own library goes before what lies in a cache."""
    library = fetch("1.26.0")
    config = tmp_path / "c.toml"
    config.write_text(CONFIG.format(model=mnist, library=library.path, reference=reference))
    ort_mobile("run", config, "--output", tmp_path / "out")
    artifacts = json.loads((tmp_path / "out" / "results.json").read_bytes())["artifacts"]
    ships = json.loads((tmp_path / "out" / "bundle" / "manifest.json").read_bytes())["content"]["ships"]
    (shipped,) = [one for one in ships if one["target"] == "desk"]
    assert [one["aware_by"] for one in artifacts] == [None, shipped["aware_by"]]
    assert shipped["aware_by"]["way"] == way
    assert shipped["aware_by"]["sha256"] == (library.sha256 if way == "library" else "")
    assert ("saved by libonnxruntime 1.26.0" in (tmp_path / "out" / "report.md").read_text()) == (way == "library")
