"""The recipes of build_configs/ci: checked by linters, and their shell steps run where they need no phone."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline import __version__
from tests.configs import BASIC, short
from tests.onnx_samples import linear, save

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
ELSEWHERE = re.compile(r"ort-mobile prove|ort-mobile library|ort-mobile devices")
"""What needs an Android library from a registry, or an adb server."""

WHEEL = f"ort_mobile_pipeline-{__version__}-py3-none-any.whl"
"""What `pip wheel` makes in a clone."""

PYTHON = """#!/bin/sh
# stands for a Python that installs: everything else is the real one
case "$1 $2" in
  "-m venv") mkdir -p venv/bin && cp "{shims}/python" "{shims}/ort-mobile" venv/bin ;;
  "-m pip") test "$3" = install -a -f "${{4%%\\[android]}}" ;;
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


@pytest.fixture
def shims(tmp_path: Path) -> Path:
    folder = tmp_path / "shims"
    folder.mkdir()
    own = f'#!/bin/sh\nPYTHONPATH="{RECIPES.parents[1]}" exec "{sys.executable}" -m pipeline "$@"\n'
    python = PYTHON.format(shims=folder, python=sys.executable)
    for name, text in (("ort-mobile", own), ("python", python), ("python3", python)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "github-hosted.yml", "github-phones.yml", "gitlab-ci.yml",
        pytest.param("Jenkinsfile", marks=pytest.mark.nightly),  # the commands of GitLab's once more
    ],
)  # fmt: skip
def test_the_shell_steps_of_a_recipe_do_what_they_should(name: str, shims: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    save(linear(8), work / "my.onnx")
    (work / "my.toml").write_text(CONFIG)
    (work / "tools").mkdir()
    (work / "tools" / WHEEL).touch()
    given = {"GITHUB_OUTPUT": str(tmp_path / "outputs"), "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
             "CI_PROJECT_DIR": str(work), "DATABASE": "sqlite:///lab.sqlite"}  # fmt: skip
    run = 0
    for step, variables in steps(name):
        if ELSEWHERE.search(step):
            continue
        environment = {**os.environ, **variables, **given, "DEVICE": "local", "PATH": f"{shims}:{os.environ['PATH']}"}
        environment.pop("XDG_CACHE_HOME", None)
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step], cwd=work, env=environment,
            capture_output=True, text=True, check=False, timeout=240, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, f"{step}\n{done.stdout}{done.stderr}"
        run += 1
    assert run >= 3
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["github-hosted.yml", "gitlab-ci.yml", "Jenkinsfile"])
def test_a_library_is_fetched_before_a_bundle_is_proven_in_it(name: str) -> None:
    texts = "\n".join(text for text, _ in steps(name))
    assert 0 < texts.index('ort-mobile library get "$LIBRARY"') < texts.index("ort-mobile prove")


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
