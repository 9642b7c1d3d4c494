"""The APK of a package: what is in it, how it is signed, and its runner on a JVM with the probe as a real process."""

import os
import re
import shutil
import subprocess
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from device_runner import files as runner_files
from pipeline import config as configs
from pipeline.core.errors import ConfigError
from pipeline.features.away import apk, device_farm
from pipeline.features.away.plan import MadePackage
from tests import package_runner
from tests.command import ort_mobile
from tests.consumers.jars import needs, run
from tests.debian_packages import unpacked
from tests.features.android.jvm import fetched
from tests.features.away.conftest import CONFIG, TURNS, Job

JAVA = Path(__file__).with_name("java")


def start_of(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> int:
    """Where the bytes of a member begin."""
    assert archive.fp
    archive.fp.seek(member.header_offset + 26)
    lengths = archive.fp.read(4)
    return member.header_offset + 30 + int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")


def made(job: Job, folder: Path) -> MadePackage:
    """A copy of a job's package."""
    plan = job.plan.plan
    return MadePackage(folder=folder, plan=plan, turns=plan.turns, conditions=configs.ConditionsConfig())


@pytest.fixture(scope="module")
def package(done: Job, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of this computer's own, which no phone could run, with an APK."""
    folder = tmp_path_factory.mktemp("apk") / "package"
    shutil.copytree(done.package, folder, ignore=shutil.ignore_patterns("session", "lock"))
    apk.write_android_test(made(done, folder))
    return folder


@pytest.mark.long
def test_an_apk_has_the_package_and_its_runner(package: Path) -> None:
    files = {path.relative_to(package).as_posix() for path in package.rglob("*") if path.is_file()}
    packed = {name for name in files if not name.startswith(apk.FOLDER)} - {"probe"}
    with zipfile.ZipFile(package / apk.FOLDER / apk.APK) as archive:
        names = set(archive.namelist())
        library = next(name for name in packed if name.endswith(".so"))
        assert names == {
            "AndroidManifest.xml",
            "classes.dex",
            "lib/x86_64/libprobe.so",
            f"lib/x86_64/{Path(library).name}",
            *(f"{apk.ASSETS}/{name}" for name in packed - {library}),
        }
        stored = [member for member in archive.infolist() if member.compress_type == zipfile.ZIP_STORED]
        assert {start_of(archive, member) % apk.ALIGNMENT for member in stored} == {0}
        assert [member.filename for member in stored if member.filename.endswith(".ort")]
        for name in packed - {library, "state.sh"}:
            assert archive.read(f"{apk.ASSETS}/{name}") == (package / name).read_bytes()
        assert b"dumpsys" not in archive.read(f"{apk.ASSETS}/state.sh")


@pytest.mark.long
def test_equal_packages_make_equal_apks_by_one_key(done: Job, package: Path, tmp_path: Path) -> None:
    apks = []
    for name in ("first", "second"):
        shutil.copytree(package, tmp_path / name, ignore=shutil.ignore_patterns(apk.FOLDER))
        apk.write_android_test(made(done, tmp_path / name))
        apks.append((tmp_path / name / apk.FOLDER / apk.APK).read_bytes())
    assert apks[0] == apks[1]
    assert (runner_files.state_folder() / apk.KEY).stat().st_mode & 0o777 == 0o600


@pytest.mark.long
def test_a_key_that_is_none_is_named(done: Job, package: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ORT_MOBILE_STATE", str(tmp_path / "state"))
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / apk.KEY).write_text("nothing")
    shutil.copytree(package, tmp_path / "again", ignore=shutil.ignore_patterns(apk.FOLDER))
    with pytest.raises(ConfigError, match="key of packages") as error:
        apk.write_android_test(made(done, tmp_path / "again"))
    assert error.value.problem.where.endswith(apk.KEY)
    assert not list((tmp_path / "again" / apk.FOLDER).iterdir())


@dataclass
class Installed:
    """An APK as Android unpacks it, on a JVM with stand-ins of Android's classes."""

    folder: Path

    @property
    def taken_home(self) -> Path:
        """The session where a farm may take it."""
        return self.folder / "outside/session"

    def instrument(self, **properties: int) -> list[str]:
        """What `am instrument` prints."""
        words = {"inside": "inside", "outside": "outside", "assets": "apk/assets", "libraries": "apk/lib/x86_64"}
        paths = [f"-D{key}={self.folder / value}" for key, value in words.items()]
        numbers = [f"-D{key}={value}" for key, value in properties.items()]
        return run("java", *paths, *numbers, "-cp", self.folder / "classes", "Start", folder=self.folder).splitlines()


@pytest.fixture
def installed(package: Path, tmp_path: Path) -> Installed:
    needs("javac", "java")
    with zipfile.ZipFile(package / apk.FOLDER / apk.APK) as archive:
        archive.extractall(tmp_path / "apk")
    (tmp_path / "apk/lib/x86_64/libprobe.so").chmod(0o755)
    sources = [package_runner.SOURCES / "PackageRunner.java", *sorted(JAVA.rglob("*.java"))]
    run("javac", "-nowarn", "-Xlint:-options", "--release", "8", "-d", tmp_path / "classes", *sources, folder=tmp_path)
    return Installed(tmp_path)


@pytest.mark.long
def test_the_runner_reports_each_turn_and_its_session_is_collected(installed: Installed, job: Job) -> None:
    said = installed.instrument()
    reports = [re.findall(r"status (-?\d) .*current=(\d+).*numtests=(\d+), test=turn(\d+)", line) for line in said[:-1]]
    expected = [(code, str(number + 1), str(TURNS), f"{number:04d}") for number in range(TURNS) for code in ("1", "0")]
    assert [report for (report,) in reports] == expected
    assert said[-1].startswith(f"finish -1 {{stream= OK ({TURNS} tests)")
    (collected,) = job.collected(installed.taken_home)
    assert (collected.new, collected.failed, collected.left) == (TURNS, 0, 0)
    with job.store() as store:
        states = [run.result.after for run in store.runs(job.plan.campaign)]
    said_of_device = {
        (state.battery_percent, state.battery_celsius, state.charging, state.screen_on, state.thermal_status)
        for state in states
    }
    assert said_of_device == {(50, 25.1, True, True, 0)}
    again = installed.instrument()
    assert again[-1] == said[-1]


@pytest.mark.long
def test_a_turn_that_fails_is_a_failed_test(installed: Installed) -> None:
    model = next((installed.folder / "apk" / apk.ASSETS / "files").glob("*.ort"))
    model.write_bytes(b"not a model")
    said = installed.instrument()
    assert [line for line in said if line.startswith("status -2 ") and "stack=exit code" in line]
    assert re.fullmatch(rf"finish -1 .*{TURNS} of {TURNS} turns, [1-9]\d* failed .*", said[-1])


@pytest.mark.long
def test_a_package_that_cannot_run_says_why(installed: Installed) -> None:
    (installed.folder / "apk/lib/x86_64/libprobe.so").unlink()
    (said,) = installed.instrument()
    assert re.fullmatch(rf"finish 0 \{{stream= run.sh ended with \d+: 0 of {TURNS} turns, 0 failed \}}", said)


@pytest.mark.long
def test_device_farm_gets_what_its_commands_take(done: Job, tmp_path: Path) -> None:
    """The programs of aws and curl are stand-ins that keep their words, in the order and form of the documentation."""
    folder = tmp_path / "package"
    shutil.copytree(done.package, folder, ignore=shutil.ignore_patterns("session", "lock"))
    device_farm.write_device_farm(made(done, folder))
    answers = {
        "create-upload": 'printf "arn:%s https://farm\\n" "$8"',
        "get-upload": "echo SUCCEEDED",
        "schedule-run": "true",
    }
    cases = "".join(f"{command}) {answer} ;;\n" for command, answer in answers.items())
    for name, script in {"aws": f'case "$2" in\n{cases}esac\n', "curl": ""}.items():
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$*" >> {tmp_path}/words\n{script}')
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    submit = folder / device_farm.FOLDER / device_farm.SUBMIT
    subprocess.run(["sh", str(submit), "arn:project", "arn:pool"], check=True, env=environment)
    words = (tmp_path / "words").read_text().splitlines()
    uploads = [re.findall(r"--name (\S+) --type (\S+)", line)[0] for line in words if "create-upload" in line]
    assert uploads == [
        (apk.APK, "ANDROID_APP"),
        (apk.APK, "INSTRUMENTATION_TEST_PACKAGE"),
        (device_farm.SPEC, "INSTRUMENTATION_TEST_SPEC"),
    ]
    sent = [line.split()[-2] for line in words if line.startswith("curl")]
    assert all((submit.parent / name).is_file() for name in sent)
    scheduled = words[-1]
    assert "--project-arn arn:project --app-arn arn:ANDROID_APP --device-pool-arn arn:pool" in scheduled
    test = (
        "type=INSTRUMENTATION,testPackageArn=arn:INSTRUMENTATION_TEST_PACKAGE,testSpecArn=arn:INSTRUMENTATION_TEST_SPEC"
    )
    assert test in scheduled


def test_a_computer_is_no_phone_of_a_farm(tmp_path: Path) -> None:
    (tmp_path / "away.toml").write_text(CONFIG)
    ended = ort_mobile("export", "away.toml", "--for", "android-test", "--platform", "linux", cwd=tmp_path, code=2)
    assert "what is to run the package runs programs for android" in ended.err


@pytest.mark.consumer
def test_apksigner_verifies_it_and_no_changed_one(package: Path, tmp_path: Path) -> None:
    needs("java")
    tree = unpacked("apksigner", with_dependencies=False)
    tool = next(tree.rglob("apksigner.jar"))
    library = next(unpacked("libapksig-java", with_dependencies=False).rglob("apksig*.jar"))
    verify = ("java", "-cp", f"{tool}:{library}", "com.android.apksigner.ApkSignerTool", "verify", "--verbose")
    made = package / apk.FOLDER / apk.APK
    said = run(*verify, made, folder=tmp_path)
    assert "Verified using v2 scheme (APK Signature Scheme v2): true" in said
    content = bytearray(made.read_bytes())
    content[len(content) // 3] ^= 1
    (tmp_path / "changed.apk").write_bytes(content)
    assert "DOES NOT VERIFY" in run(*verify, tmp_path / "changed.apk", folder=tmp_path, fails=True)


@pytest.mark.consumer
def test_app_finds_no_error_in_the_apk_of_a_phone(tmp_path: Path) -> None:
    (tmp_path / "away.toml").write_text(CONFIG)
    asked = ("--for", "android-test", "--platform", "android", "--abi", "arm64-v8a", "--to", "package")
    library = fetched("android:1.29.0")
    made = ort_mobile("export", "away.toml", *asked, "--library", library, cwd=tmp_path).out
    assert "run it:  sh package/android-test/run.sh" in made
    found = ort_mobile("app", "package/android-test/package.apk", "--json", "-", cwd=tmp_path, code=None).document()
    assert {Path(library["path"]).name for library in found["libraries"]} > {"libprobe.so"}
    assert [finding for finding in found["findings"] if finding["severity"] == "error"] == []


@pytest.mark.consumer
def test_the_compiled_runner_is_that_of_its_source(tmp_path: Path) -> None:
    needs("javac")
    version = run("javac", "-version", folder=tmp_path)
    if not version.startswith("javac 17."):
        pytest.skip(f"another compiler makes other bytes: {version.strip()}, not javac 17")
    assert package_runner.make_dex(tmp_path) == (package_runner.SOURCES / package_runner.DEX).read_bytes()
    assert len((package_runner.SOURCES / package_runner.DEX).read_bytes()) < 10_000
    assert package_runner.make_manifest(tmp_path) == (package_runner.SOURCES / package_runner.MANIFEST).read_bytes()
