"""Both commands of the README on a machine with Python, pip, git and a shell alone, that for the tests at night.

.ci/run begins with the latter, where uv installs. No compiler is on PATH, HOME is empty, the locale is C, and the clone
and HOME have blanks in their paths.
"""

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import fresh_clone
from tests.release.test_signature import write_keys

QUICK_TESTS = "tests/core/test_files.py tests/device_runner/test_local.py"


@dataclass(frozen=True, slots=True)
class Machine:
    clone: Path
    home: Path
    programs: Path

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """A line of the README, typed into a shell in the clone."""
        environment = fresh_clone.environment(self.home, str(self.programs))
        return subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=self.clone, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip


def readme_command(session: str) -> str:
    lines = (fresh_clone.ROOT / "README.md").read_text().splitlines()
    (line,) = [line for line in lines if line.endswith(f"nox -s {session}")]
    return line


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    folder = tmp_path_factory.mktemp("fresh machine")
    made = Machine(folder / "a clone of it", folder / "an empty home", folder / "programs")
    made.home.mkdir()
    made.programs.mkdir()
    python = Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")
    for name, program in (("python3", python), ("git", shutil.which("git") or "git"), ("sh", "/bin/sh")):
        (made.programs / name).symlink_to(program)
    fresh_clone.clone(made.clone)
    return made


@pytest.mark.fresh_machine
def test_the_whole_job_works_and_tests_pass(machine: Machine) -> None:
    assert [name for name in ("cc", "gcc", "clang", "zig") if shutil.which(name, path=str(machine.programs))] == []
    done = machine.run(readme_command("pipeline"))
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((machine.clone / "output/mnist/results.json").read_text())
    assert results["rows"]
    assert all(row["checks"][0]["passed"] for row in results["rows"])
    for name in ("report.html", "report.md", "bundle/manifest.json"):
        assert (machine.clone / "output/mnist" / name).is_file()

    # With packages that are here: the README's command itself, below, needs as much time as all of the above.
    tested = machine.run(f"PYTHONPATH=\"$PWD\" '{sys.executable}' -m pytest -n 0 {QUICK_TESTS}")
    assert tested.returncode == 0, tested.stdout + tested.stderr
    check_leftovers(machine)


SIGNED_RELEASE = """
name = "mnist"
[[models]]
path = "mnist.onnx"
[[runs]]
provider = "cpu"
[measure]
rounds = 1
min_runs = 2
min_seconds = 0.01
[release]
version = "1.0"
gates = ["signature"]
"""


@pytest.mark.fresh_machine
def test_nox_signs_a_release_in_the_repository_of_an_app(machine: Machine, tmp_path: Path) -> None:
    """As a CI calls it: the key's file in ORT_MOBILE_KEY, the noxfile of the clone, paths of the app's folder."""
    app = tmp_path / "an app"
    app.mkdir()
    shutil.copy(machine.clone / "build_configs/examples/mnist/mnist.onnx", app)
    (app / "my.toml").write_text(SIGNED_RELEASE)
    write_keys(app)
    install = readme_command("pipeline").partition(".venv/bin/nox")[0]
    nox = f"'{machine.clone}/.venv/bin/nox' -f '{machine.clone}/noxfile.py' -s"
    done = machine.run(
        f"{install} cd '{app}' && ORT_MOBILE_KEY=key.pem {nox} release -- my.toml --output out"
        f" && {nox} ort_mobile -- bundle verify out/bundle --key key.pub"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    check_leftovers(machine)


@pytest.mark.fresh_machine
@pytest.mark.nightly
def test_the_command_for_the_tests_works(machine: Machine) -> None:
    done = machine.run(f"{readme_command('tests')} -- -n 2 {QUICK_TESTS}")
    assert done.returncode == 0, done.stdout + done.stderr
    check_leftovers(machine)


def check_leftovers(machine: Machine) -> None:
    """Nothing in the clone that git does not ignore, nothing in HOME but caches."""
    changed = subprocess.run(["git", "status", "--porcelain"], cwd=machine.clone, capture_output=True, check=True)
    assert changed.stdout == b"", "the commands left files in the clone that git does not ignore"
    ours = {"ort-mobile", "zig", "pip", "uv", "virtualenv"}
    assert {path.name for path in machine.home.iterdir()} <= {".cache", ".local"}
    assert {path.name for path in (machine.home / ".cache").iterdir()} <= ours
