"""The recipes of build_configs/ci: checked by linters, and their shell steps run where they need no phone.

They run in an app's repository beside a clone of this project, with an empty HOME; nox installs what they need.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import fresh_clone
from tests.configs import BASIC, short
from tests.onnx_samples import linear, save
from tests.postgres import own_server

RECIPES = Path(__file__).resolve().parents[1] / "build_configs" / "ci"
PROGRAMS = Path(sys.executable).parent
CONFIG = (
    """
name = "my"
[[models]]
path = "my.onnx"
dimensions = { batch = 1 }
"""
    + BASIC
    + short(min_runs=2)
)
GITHUB = sorted(path.name for path in RECIPES.glob("github-*.yml"))
LINTS = {
    **{name: ("actionlint", "-ignore", 'label "phones" is unknown', name) for name in GITHUB},
    "gitlab-ci.yml": ("check-jsonschema", "--builtin-schema", "vendor.gitlab-ci", "gitlab-ci.yml"),
    "Containerfile": ("hadolint", "Containerfile"),
}
ELSEWHERE = re.compile(r"-s prove|library get|-s devices")
"""What needs an Android library from a registry, or an adb server."""

PYTHON = """#!/bin/sh
# stands for a Python that installs nox: everything else is the real one
case "$1 $2" in
  "-m venv") mkdir -p venv/bin && cp "{shims}/python" "{shims}/nox" venv/bin ;;
  "-m pip") test "$3 $4" = "install nox" ;;
  *) exec "{python}" "$@" ;;
esac
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", LINTS)
def test_a_recipe_passes_the_linter_of_its_system(name: str) -> None:
    program, *arguments = LINTS[name]
    done = subprocess.run(
        [str(PROGRAMS / program), *arguments], cwd=RECIPES, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def yaml(name: str) -> Any:
    from ruamel.yaml import YAML

    return YAML(typ="safe", pure=True).load((RECIPES / name).read_text())


def steps(name: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Each shell step of a recipe, with the recipe's variables."""
    if name == "Jenkinsfile":
        text = (RECIPES / name).read_text()
        variables = dict(re.findall(r"^ {8}([A-Z_]+) = '(.*)'$", text, re.MULTILINE))
        for step in re.findall(r"^ +sh '(.*)'$", text, re.MULTILINE):
            yield step, variables
    elif name == "gitlab-ci.yml":
        document = yaml(name)
        for job in ("models", "phones"):
            for step in (*document[".job"]["before_script"], *document[job]["script"]):
                yield step, document["variables"]
    else:
        document = yaml(name)
        for job in document["jobs"].values():
            for step in job["steps"]:
                if "run" in step:
                    yield step["run"], {key: value for key, value in document["env"].items() if "${{" not in value}


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fresh_clone.clone(tmp_path_factory.mktemp("submodule") / "ort-mobile")


@dataclass(frozen=True, slots=True)
class Checkout:
    """An app's repository with ort-mobile in tools/, a new user's HOME, and programs that stand for an install."""

    folder: Path
    home: Path
    shims: Path

    def run(self, step: str, **variables: str) -> str:
        """A shell step as GitHub's runner starts it; what it prints."""
        path = f"{self.shims}:{os.environ['PATH']}:{fresh_clone.ROOT}/.venv/bin"  # uv, where the clone has one
        environment = fresh_clone.environment(self.home, path)
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step], cwd=self.folder,
            env={**environment, **variables}, capture_output=True, text=True, check=False, timeout=240,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, f"{step}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr


@pytest.fixture
def checkout(clone: Path, tmp_path: Path) -> Checkout:
    made = Checkout(tmp_path / "work", tmp_path / "home", tmp_path / "shims")
    for folder in (made.folder / "tools", made.home, made.shims):
        folder.mkdir(parents=True)
    subprocess.run(["git", "init", "--quiet"], cwd=made.folder, check=True)
    (made.folder / "tools/ort-mobile").symlink_to(clone)
    save(linear(8), made.folder / "my.onnx")
    (made.folder / "my.toml").write_text(CONFIG)
    nox = f'#!/bin/sh\nexec "{sys.executable}" -m nox "$@"\n'
    python = PYTHON.format(shims=made.shims, python=sys.executable)
    for name, text in (("nox", nox), ("python", python), ("python3", python)):
        (made.shims / name).write_text(text)
        (made.shims / name).chmod(0o755)
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "github-hosted.yml", "github-phones.yml", "gitlab-ci.yml",
        pytest.param("Jenkinsfile", marks=pytest.mark.nightly),  # the commands of GitLab's once more
    ],
)  # fmt: skip
def test_the_shell_steps_of_a_recipe_do_what_they_should(name: str, checkout: Checkout, tmp_path: Path) -> None:
    work = checkout.folder
    given = {"GITHUB_OUTPUT": str(tmp_path / "outputs"), "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
             "CI_PROJECT_DIR": str(work), "DATABASE": "sqlite:///lab.sqlite", "DEVICE": "local"}  # fmt: skip
    if name.startswith("github"):
        given["GITHUB_ACTIONS"] = "true"
    here = [(step, variables) for step, variables in steps(name) if not ELSEWHERE.search(step)]
    for step, variables in here:
        checkout.run(step, **{**variables, **given})
    assert len(here) >= 3
    assert (work / "output" / "bundle" / "manifest.json").is_file()
    if name.startswith("github"):
        summary = (tmp_path / "summary").read_text()
        assert len(re.findall("^# ", summary, re.MULTILINE)) == 1  # not once more by a step of its own
        assert len(summary) <= 60_000
    if name == "github-hosted.yml":
        assert re.fullmatch(r"onnxruntime=\d+\.\d+\.\d+\S*\n", (tmp_path / "outputs").read_text())
    if name == "github-phones.yml":
        assert (work / "lab.sqlite").is_file()
        assert "<testsuite" in (work / "junit.xml").read_text()


@pytest.mark.postgresql
def test_nox_reaches_a_lab(checkout: Checkout) -> None:
    with own_server() as server:
        database = server.database_with_tables()
        shown = checkout.run(f"nox -f tools/ort-mobile/noxfile.py -s lab -- status --database {database}")
    assert "hosts: 0" in shown


@pytest.mark.slow
@pytest.mark.parametrize("name", ["github-hosted.yml", "gitlab-ci.yml", "Jenkinsfile"])
def test_a_library_is_fetched_before_a_bundle_is_proven_in_it(name: str) -> None:
    texts = "\n".join(text for text, _ in steps(name))
    assert 0 < texts.index('library get "$LIBRARY"') < texts.index("-s prove")


@pytest.mark.slow
def test_what_was_measured_outlasts_the_next_checkout_and_caches_have_valid_keys() -> None:
    """GitLab's runner ignores a cache whose key has a slash, as variables of branches and architectures do."""
    (checkout,) = (step for step in yaml("github-phones.yml")["jobs"]["phones"]["steps"] if "uses" in step
                   and step["uses"].startswith("actions/checkout"))  # fmt: skip
    assert checkout["with"]["clean"] is False
    document = yaml("gitlab-ci.yml")
    assert "/output/" in document["phones"]["variables"]["GIT_CLEAN_FLAGS"]
    assert document["phones"]["dependencies"] == []
    assert re.fullmatch(r"[\w-]+", document[".job"]["cache"]["key"])


@pytest.mark.slow
def test_without_kvm_no_emulator_is_started() -> None:
    (step,) = (text for text, _ in steps("github-emulator.yml") if "::error::/dev/kvm" in text)
    done = subprocess.run(["bash", "-e", "-c", step], capture_output=True, text=True, check=False, timeout=60)
    usable = os.access("/dev/kvm", os.R_OK | os.W_OK)
    assert (done.returncode, "::error::" in done.stdout) == ((0, False) if usable else (1, True))
