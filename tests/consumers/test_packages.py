"""aapt2 and bundletool make an app of what is published: what is stored, where it lies, and which device gets what."""

import json
import struct
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.command import ort_mobile
from tests.consumers.android import aapt2, framework_of_aapt2, unpacked_aar
from tests.consumers.jars import classpath, jars, needs, run
from tests.features.android.samples import two_classes

pytestmark = pytest.mark.consumer

BUNDLETOOL = "com.android.tools.build:bundletool:1.18.1"
PAGE = 16384
APP = """\
<manifest xmlns:android="http://schemas.android.com/apk/res/android" package="com.example.app"
    android:versionCode="1"><uses-sdk android:minSdkVersion="27" />
    <application android:label="app" android:hasCode="false" android:extractNativeLibs="false" /></manifest>
"""
PACK = """\
<manifest xmlns:dist="http://schemas.android.com/apk/distribution" package="com.example.app" split="{}">
    <dist:module dist:type="ai-pack"><dist:fusing dist:include="true" />
    <dist:delivery><dist:install-time /></dist:delivery></dist:module></manifest>
"""
BUNDLE_CONFIG = {
    "compression": {"uncompressedGlob": ["assets/**/*.ort"]},
    "optimizations": {
        "uncompressNativeLibraries": {"enabled": True, "alignment": "PAGE_ALIGNMENT_16K"},
        "splitsConfig": {
            "splitDimension": [
                {"value": "DEVICE_GROUP", "suffixStripping": {"enabled": True, "defaultSuffix": "other"}}
            ]
        },
    },
}
DEVICE = {"supportedAbis": ["arm64-v8a"], "supportedLocales": ["en"], "screenDensity": 420, "sdkVersion": 35}
KEY = "-keystore key.jks -storepass secret -alias app -keyalg RSA -keysize 2048 -dname CN=app -validity 9999"


def linked(folder: Path, manifest: str, name: str, *options: str | Path) -> Path:
    """What aapt2 makes of a manifest."""
    (folder / f"{name}.xml").write_text(manifest)
    made = folder / name
    framework = ("-I", framework_of_aapt2())
    run(aapt2(folder), "link", "-o", made, *framework, "--manifest", folder / f"{name}.xml", *options, folder=folder)
    return made


def module(folder: Path, name: str, manifest: str, files: Mapping[str, bytes]) -> Path:
    """A module of an app bundle, as bundletool wants it."""
    made = folder / f"{name}.zip"
    with zipfile.ZipFile(linked(folder, manifest, f"{name}.proto", "--proto-format")) as proto:
        parts = {
            ("manifest/" if one == "AndroidManifest.xml" else "") + one: proto.read(one) for one in proto.namelist()
        }
    if name != "base":
        parts.pop("resources.pb", None)
    with zipfile.ZipFile(made, "w") as archive:
        for one, content in {**parts, **files}.items():
            archive.writestr(one, content)
    return made


def start_of(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> int:
    """Where the bytes of a stored member begin."""
    assert archive.fp is not None
    archive.fp.seek(member.header_offset + 26)
    name, extra = struct.unpack("<HH", archive.fp.read(4))
    return member.header_offset + 30 + int(name) + int(extra)


def test_aapt2_stores_models_where_the_app_lists_their_ending(tmp_path: Path) -> None:
    needs("javac")
    assets = ("-A", unpacked_aar() / "assets")
    for options, kind in ((("-0", "ort"), zipfile.ZIP_STORED), ((), zipfile.ZIP_DEFLATED)):
        with zipfile.ZipFile(linked(tmp_path, APP, "app.apk", *assets, *options)) as apk:
            (model,) = [one for one in apk.infolist() if one.filename.endswith(".ort")]
            assert model.compress_type == kind
            assert apk.read(model) == (unpacked_aar() / model.filename).read_bytes()


def app_bundle(folder: Path, packs: Sequence[Path], groups: Sequence[str]) -> None:
    """An app with a native library and these AI packs, split for every kind of device: a folder of APKs for each."""
    tool = ("java", "-cp", classpath(jars(BUNDLETOOL)), "com.android.tools.build.bundletool.BundleToolMain")
    base = module(folder, "base", APP, {"lib/arm64-v8a/libonnxruntime.so": b"\x7fELF" * 9999})
    modules = [base, *(module(folder, pack.name, PACK.format(pack.name), assets_of(pack)) for pack in packs)]
    (folder / "config.json").write_text(json.dumps(BUNDLE_CONFIG))
    run("keytool", "-genkeypair", *KEY.split(), folder=folder)
    signed = ("--ks=key.jks", "--ks-pass=pass:secret", "--ks-key-alias=app", "--key-pass=pass:secret")
    run(
        *tool,
        "build-bundle",
        f"--modules={','.join(map(str, modules))}",
        "--output=app.aab",
        "--config=config.json",
        folder=folder,
    )
    program = f"--aapt2={folder / 'aapt2'}"
    run(*tool, "build-apks", "--bundle=app.aab", "--output=app.apks", program, *signed, folder=folder)
    for group in groups:
        (folder / f"{group}.json").write_text(json.dumps({**DEVICE, "deviceGroups": [group]}))
        spec = (f"--device-spec={group}.json", f"--output-dir={group}")
        run(*tool, "extract-apks", "--apks=app.apks", *spec, folder=folder)


def assets_of(pack: Path) -> dict[str, bytes]:
    """The models of an AI pack by their path in its module."""
    assets = pack / "src/main/assets"
    return {f"assets/{file.relative_to(assets).as_posix()}": file.read_bytes() for file in assets.rglob("*.ort")}


def models_of(folder: Path) -> dict[str, bytes]:
    """The models in a device's APKs by their path; all of them, and its libraries, are stored."""
    found = {}
    for apk in folder.glob("*.apk"):
        with zipfile.ZipFile(apk) as archive:
            for one in archive.infolist():
                if one.filename.endswith(".ort"):
                    assert one.compress_type == zipfile.ZIP_STORED
                    assert one.filename not in found
                    found[one.filename] = archive.read(one)
                if one.filename.endswith(".so"):
                    assert one.compress_type == zipfile.ZIP_STORED
                    assert start_of(archive, one) % PAGE == 0
    return found


def test_each_group_of_devices_gets_the_models_of_two_packs_stored(tmp_path: Path) -> None:
    """Both packs have a model of one name, and are for the same classes of devices."""
    needs("javac", "keytool", "mvn")
    packs = [tmp_path / "models_pack", tmp_path / "models_v2_pack"]
    for pack, artifact in zip(packs, ("models", "models-v2"), strict=True):
        (tmp_path / artifact).mkdir()
        two_classes(tmp_path / artifact)
        named = ("--output", tmp_path / "repo", "--group", "com.example", "--artifact", artifact, "--version", "1.0")
        ort_mobile("release", "android", tmp_path / artifact / "bundle", *named, "--ai-pack", pack)
    groups = ("other", "qualcomm_sm8550")
    app_bundle(tmp_path, packs, (*groups, "of_another_pack"))
    assert models_of(tmp_path / "of_another_pack") == {}
    both = assets_of(packs[0]) | assets_of(packs[1])
    for group in groups:
        ending = f"#group_{group}/"
        expected = {path.replace(ending, "/"): content for path, content in both.items() if ending in path}
        assert models_of(tmp_path / group) == expected
        assert len(expected) == (2 if group == "other" else 4)
