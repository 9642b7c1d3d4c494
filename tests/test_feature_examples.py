"""The examples of build_configs/features as a user runs them: models of packages, and equal bits in apps' classes."""

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.command import ort_mobile
from tests.features.vectors import cpp, jvm
from tests.npm_packages import library_entry

FOLDER = Path(__file__).parents[1] / "build_configs/features"
NAMES = sorted(file.stem for file in FOLDER.glob("*.toml"))
CONFIRMED = {"captcha": 200, "sentences": 8}
"""Samples of which the makers' own code gives the same."""

TOKENS = {
    jvm: """try (Romanizer.Result result = model.run(buffer(words[2]).asLongBuffer(), buffer(words[3]))) {
            for (LongBuffer tokens = result.tokens(); tokens.hasRemaining();) {
                System.out.println("|" + tokens.get());
            }
        }""",
    cpp: """const auto letters = Content<std::int64_t>(words[2]);
    const std::string mask = Text(words[3]);
    const auto output = model.Run(letters, {reinterpret_cast<const bool*>(mask.data()), mask.size()});
    for (std::int64_t token : output.tokens) std::printf("|%d\\n", static_cast<int>(token));""",
}
"""Code that prints what a class gives of tensors."""


@pytest.mark.parametrize("name", NAMES)
def test_an_example_says_how_it_is_run_and_in_the_readme_what_it_shows(name: str) -> None:
    text = (FOLDER / f"{name}.toml").read_text("utf-8")
    assert f"nox -s features -- {name}\n" in text
    assert f"[{name}.toml]({name}.toml)" in (FOLDER / "README.md").read_text("utf-8")
    assert tomllib.loads(text)["name"] == name


@pytest.mark.first_hour
@pytest.mark.parametrize("name", NAMES)
def test_an_example_runs_and_apps_get_its_bits(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "features"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("fetched", "__pycache__"))
    command = [sys.executable, str(folder / "fetch.py"), name]
    fetched = subprocess.run(command, capture_output=True, text=True, check=False)
    if fetched.returncode:
        pytest.skip(f"no packages: {fetched.stderr.strip()[-200:]}")
    library_entry("android:1.29.0")
    ort_mobile("run", folder / f"{name}.toml", "--output", tmp_path / "out", "--device", "local")
    results = json.loads((tmp_path / "out/results.json").read_text("utf-8"))
    assert {row["status"] for row in results["rows"]} == {"ok"}
    assert f"gives the same for {CONFIRMED[name]} samples" in json.dumps(results) if name in CONFIRMED else True
    bundle = tmp_path / "out/bundle"
    ort_mobile("prove", bundle, "--library", "android:1.29.0")
    replayed = json.loads(ort_mobile("bundle", "replay", bundle, "--json", "-").out)["replays"]
    assert all(replay["place"].startswith("android-host:") for replay in replayed)
    assert all(0 < replay["vectors"] == replay["equal"] for replay in replayed)
    codes = TOKENS if name == "romanizer" else dict.fromkeys(TOKENS, "")
    assert [language.equal(bundle, code) for language, code in codes.items()] == [replayed[0]["vectors"]] * 2
