"""A package for iPhones: its folder and its project; built by Swift on Linux, run there, and collected."""

import json
import plistlib
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import onnxruntime
import pytest

from device_runner.result import Mark
from pipeline.features.away.ios import FOLDER, HOME_DIGITS
from pipeline.features.away.linked import BUILD as FRAMEWORK
from tests.command import ort_mobile
from tests.configs import EXAMPLE, MNIST, short
from tests.consumers import swift
from tests.features.apple.frameworks import xcframework
from tests.features.away.conftest import Job

CONFIG = f"""name = "away"
{MNIST}[[models]]
name = "again"
path = "{EXAMPLE / "mnist.onnx"}"
test_data = "{EXAMPLE}"
[[targets]]
name = "phone"
platform = "ios"
[variants]
levels = ["none", "basic"]
styles = ["fixed"]
[[runs]]
variants = ["*"]
[[runs]]
variants = ["*"]
threads = 2
{short(3, 20)}
mode = ["steady", "cold", "sustained"]
sustained_seconds = 1
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A package that links a build of one's own."""
    folder = tmp_path_factory.mktemp("ios")
    (folder / "away.toml").write_text(CONFIG)
    build = xcframework(folder / "build")
    ort_mobile("export", "away.toml", "--for", "ios", "--library", build, "--to", "pack", cwd=folder)
    return Job(folder)


def project(job: Job) -> dict[str, Any]:
    content = (job.package / FOLDER / "Package.xcodeproj/project.pbxproj").read_bytes()
    return dict(plistlib.loads(content))


@pytest.mark.long
def test_a_package_for_iphones_has_no_programs_of_a_shell(exported: Job) -> None:
    names = {path.relative_to(exported.package).parts[0] for path in exported.package.rglob("*")}
    assert names == {"plan.json", "package", "turns", "requests", "files", FOLDER}
    plan = exported.plan.plan
    assert (plan.platform, plan.abi, plan.library) == ("ios", "arm64", None)
    assert plan.made_with["library"].startswith(f"{FRAMEWORK} ")
    requests = b"".join(path.read_bytes() for path in (exported.package / "requests").iterdir())
    assert requests.count(b"library\0linked\0") == len(plan.turns)
    assert {skipped.text.rpartition(": ")[2] for skipped in exported.plan.skipped} == {"no cold start is measured"}


@pytest.mark.long
def test_the_project_is_whole(exported: Job) -> None:
    """Every object that another names is there, every file that is built lies there, and the scheme has its targets."""
    document = project(exported)
    objects = document["objects"]
    text = json.dumps(objects)
    assert set(re.findall(r"\b[0-9A-F]{24}\b", text)) == set(objects)
    assert objects[document["rootObject"]]["isa"] == "PBXProject"
    folder = exported.package / FOLDER
    files = [item["path"] for item in objects.values() if item.get("sourceTree") == "SOURCE_ROOT"]
    assert files
    assert all((folder / file).exists() for file in files)
    assert (folder / "PackageRunner" / FRAMEWORK / "Info.plist").is_file()
    (package,) = (item for item in objects.values() if item["isa"] == "XCLocalSwiftPackageReference")
    assert (folder / package["relativePath"] / "Package.swift").is_file()
    targets = {item["name"]: name for name, item in objects.items() if item["isa"] == "PBXNativeTarget"}
    scheme = ET.parse(folder / "Package.xcodeproj/xcshareddata/xcschemes/Package.xcscheme")
    named = {item.get("BlueprintName"): item.get("BlueprintIdentifier") for item in scheme.iter("BuildableReference")}
    assert named == targets
    assert plistlib.loads((folder / "Info.plist").read_bytes())["UIFileSharingEnabled"]
    settings = next(
        one["buildSettings"] for one in objects.values() if "INFOPLIST_FILE" in one.get("buildSettings", {})
    )
    assert (folder / settings["INFOPLIST_FILE"]).is_file()


@pytest.mark.long
def test_run_sh_starts_the_app_for_each_turn_and_brings_the_session(exported: Job, tmp_path: Path) -> None:
    shutil.copytree(exported.package / FOLDER, tmp_path / "ios")
    (tmp_path / "xcrun").write_text('#!/bin/sh\necho "$@" >> "${0%/*}/words"\n')
    (tmp_path / "xcrun").chmod(0o755)
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    subprocess.run(["sh", str(tmp_path / "ios/run.sh"), "PHONE", "com.example"], check=True, env=path)
    install, *launches, copy = (tmp_path / "words").read_text().splitlines()
    assert install.endswith("device install app --device PHONE build/Build/Products/Release-iphoneos/Package.app")
    launch = (
        "devicectl device process launch --console --terminate-existing --device PHONE com.example.package --turns 1"
    )
    assert launches == [launch] * len(exported.plan.plan.turns)
    assert f"--source Documents/{exported.plan.plan.digest[:HOME_DIGITS]}/session --destination session" in copy


@pytest.mark.long
def test_the_published_package_is_linked_where_no_build_is_named(exported: Job, tmp_path: Path) -> None:
    (tmp_path / "away.toml").write_text(CONFIG)
    ort_mobile("export", "away.toml", "--for", "ios", "--to", "pack", cwd=tmp_path)
    manifest = (tmp_path / "pack/ios/PackageRunner/Package.swift").read_text()
    assert '/onnxruntime-swift-package-manager", exact: "1.24.2")' in manifest
    assert "binaryTarget" not in manifest
    assert Job(tmp_path).plan.plan.made_with["library"] == "onnxruntime-swift-package-manager 1.24.2"


BUILD = "cd /build/ios/PackageRunner && swift build -c release --disable-sandbox -j 2 -Xlinker -L/build/lib"
TURNS = "/build/ios/PackageRunner/.build/release/turns"
PHONE = "model iPhone16,2\nsystem 18.1\ncores 6\nmemory 8000000000\nplatform ios\nabi arm64\nidentity 7F3A\n"


@pytest.fixture(scope="module")
def built(exported: Job, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Swift package of an export, built for this computer with the wheel's library."""
    work = tmp_path_factory.mktemp("swift") / "work"
    shutil.copytree(exported.package, work)
    (work / "lib").mkdir()
    library = next((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so*"))
    for name in ("libonnxruntime.so", "libonnxruntime.so.1"):
        shutil.copy(library, work / "lib" / name)
    done = swift.run(work, "sh", "-c", BUILD)
    assert done.returncode == 0, done.stdout + done.stderr
    return work


def session_in(built: Path, job: Job, home: str) -> Path:
    """What turns left in a folder of documents, as of an iPhone."""
    session = built / home / job.plan.plan.digest[:HOME_DIGITS] / "session"
    (session / "device").write_text(PHONE)
    return session


@pytest.mark.consumer
def test_turns_in_processes_of_their_own_give_what_a_run_here_gives(exported: Job, built: Path) -> None:
    count = len(exported.plan.plan.turns)
    assert count >= 25
    loop = f"n=0; while [ $n -lt {count} ]; do {TURNS} /build /build/each 1 || exit 1; n=$((n + 1)); done"
    ran = swift.run(built, "sh", "-c", loop)
    assert ran.returncode == 0, ran.stderr
    (collected,) = exported.collected(session_in(built, exported, "each"))
    assert (collected.new, collected.failed, collected.left) == (count, 0, 0)
    assert collected.device.startswith("ios:iPhone16,2-")
    ort_mobile("run", "away.toml", "--resume", "--device", "local", "--no-proof", cwd=exported.folder)
    report = json.loads((exported.output / "results.json").read_bytes())
    rows = {(row["device"], row["model"], row["variant"], row["run"]): row for row in report["rows"]}
    phone = {key[1:]: row for key, row in rows.items() if key[0] == collected.device}
    here = {key[1:]: row for key, row in rows.items() if key[0] == "local"}
    assert set(phone) == set(here)
    for key, row in phone.items():
        assert row["status"] == here[key]["status"] == "ok"
        assert row["load_ns"] > 0
        theirs, ours = (side["comparison"] for side in (row, here[key]))
        if theirs and ours:
            assert theirs["verdict"] == ours["verdict"] or max(theirs["low"], ours["low"]) <= min(
                theirs["high"], ours["high"]
            )


@pytest.mark.consumer
def test_of_turns_in_one_process_the_first_alone_says_how_models_load(exported: Job, built: Path) -> None:
    ran = swift.run(built, TURNS, "/build", "/build/one")
    assert ran.returncode == 0, ran.stderr
    (collected,) = exported.collected(session_in(built, exported, "one"))
    assert (collected.failed, collected.left) == (0, 0)
    with exported.store() as store:
        runs = [run for run in store.runs(exported.plan.campaign) if run.result.device == collected.device]
    shared = [run for run in runs if Mark.SHARED_PROCESS in run.result.marks]
    assert len(shared) == len(runs) - 1
    assert all(run.result.load_ns == run.result.memory_peak_bytes == 0 for run in shared)
    assert all(run.result.latencies_ns for run in shared if not run.spec.sustain_seconds)
    assert all(run.checks and all(check.passed for check in run.checks) for run in runs)
