"""AI packs: which devices get which files, the module's texts, and what is refused."""

import zipfile
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest

from pipeline.features.android import package
from pipeline.features.android.package import device_groups
from tests.features.android.samples import FLAGSHIP, OLD_CHIP, bundle, needs_java, shipped, two_classes
from tests.features.android.test_maven import released
from tests.values import files_of

CONFIG = "{http://schemas.android.com/apk/config}"


def test_each_group_of_devices_gets_what_it_may_open(tmp_path: Path) -> None:
    needs_java()
    two_classes(tmp_path)
    released(tmp_path, "--ai-pack", str(tmp_path / "models_pack"))
    pack = tmp_path / "models_pack"
    own, other = (f"src/main/assets/ort_mobile#group_{name}" for name in ("qualcomm_sm8550", "other"))
    assert {name for name in files_of(pack) if name.endswith(".ort")} == {
        f"{own}/m.basic-fixed.ort",
        f"{own}/m.layout-fixed.ort",
        f"{other}/m.basic-fixed.ort",
    }
    (group,) = ET.parse(pack / "device_targeting_config.xml").getroot()
    assert (group.tag, group.attrib) == (f"{CONFIG}device-group", {"name": "qualcomm_sm8550"})
    assert [chip.attrib for chip in group.iter(f"{CONFIG}system-on-chip")] == [
        {"manufacturer": "Qualcomm", "model": "SM8550"}
    ]
    assert 'packName = "models_pack"' in (pack / "build.gradle.kts").read_text()
    assert 'deviceTargetingConfig = file("../models_pack/' in (pack / "README.md").read_text()
    with zipfile.ZipFile(next((tmp_path / "repo").rglob("*.aar"))) as aar:
        assert not any(name.startswith("assets") for name in aar.namelist())


def test_models_for_all_devices_need_no_groups(tmp_path: Path) -> None:
    needs_java()
    bundle(tmp_path)
    (tmp_path / "models_pack").mkdir()
    for _ in range(2):
        released(tmp_path, "--ai-pack", str(tmp_path / "models_pack"))
    assert set(files_of(tmp_path / "models_pack")) == {
        "build.gradle.kts",
        "README.md",
        "src/main/assets/ort_mobile/m.basic-fixed.ort",
    }


def test_chips_that_get_the_same_share_groups_of_at_most_five(tmp_path: Path) -> None:
    chips = [msgspec.structs.replace(FLAGSHIP, chip=f"Maker X{number}") for number in range(7)]
    ships = (shipped(), shipped(file="models/fast.ort"))
    groups = device_groups(bundle(tmp_path, ships, classes=((), chips)).content, "phone")
    assert [(name, len(chips)) for name, chips, _ in groups] == [("maker_x0", 5), ("maker_x5", 2), ("other", 0)]
    basic, fast = "models/m.basic-fixed.ort", "models/fast.ort"
    assert [files for _, _, files in groups] == [(fast, basic), (fast, basic), (basic,)]
    # Google Play does not know the chips of older devices: all others get what these may open
    groups = device_groups(bundle(tmp_path, ships, classes=((), (*chips, OLD_CHIP))).content, "phone")
    assert [(name, files) for name, _, files in groups] == [("other", (fast, basic))]


@pytest.mark.parametrize(
    ("name", "limit", "message", "code"),
    [
        ("2nd", 0, "'2nd' is no name for an AI pack", 2),
        ("my-pack", 0, "'my-pack' is no name for an AI pack", 2),
        ("bundle", 0, "this folder is no AI pack of ours", 2),
        ("pack", 100, "the models of devices in the group other have", 4),
    ],
)
def test_packs_that_tools_or_stores_refuse_are_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, limit: int, message: str, code: int
) -> None:
    needs_java()
    bundle(tmp_path)
    if limit:
        monkeypatch.setattr(package, "PACK_BYTES", limit)
    result = released(tmp_path, "--ai-pack", str(tmp_path / name), code=code)
    assert message in result.err
    assert not (tmp_path / "repo").exists()
    assert not (tmp_path / "pack").exists()
