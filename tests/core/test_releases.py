"""Releases: how versions and users' words are read, and which are known."""

import logging
from pathlib import Path

import pytest

from pipeline.cli.main import cli
from pipeline.config.read import read_config
from pipeline.core.errors import ConfigError
from pipeline.core.releases import (
    NEWEST_RULES,
    OLDEST_RULES,
    Release,
    by_rules,
    installed_release,
    line_of,
    newest_release,
    read_release,
    rules_of,
)


@pytest.mark.parametrize("version", ["1.23", "1.23.2", "1.23.0.dev20250801", "1.23rc1", "1.23.1+cpu"])
def test_versions_of_files_that_exist_give_their_line(version: str) -> None:
    assert line_of(version) == (1, 23)


@pytest.mark.parametrize("version", ["", "1", "x.y", "v1.23"])
def test_what_is_no_version_is_refused(version: str) -> None:
    with pytest.raises(ConfigError):
        line_of(version)


def test_lines_compare_as_numbers() -> None:
    assert line_of("1.9") < line_of("1.10")


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        (1.29, '"1.29"'),
        (1.3, '"1.3" or "1.30"'),
        (True, '"1.29"'),
        ("banana", "1.29"),
        ("", "1.29"),
        ("v1.29", "write 1.29"),
        ("onnxruntime 1.21.1", "write 1.21.1"),
        ("1.29.0.1", "1.29"),
        ("1", "1.29"),
        ("0.9", "app contains"),
    ],
)
def test_nonsense_is_refused_with_what_to_write(given: object, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_release(given, "key", "here")
    assert remedy in caught.value.remedy
    assert caught.value.what.startswith("key: ")
    assert caught.value.where == "here"


def test_known_releases_pass() -> None:
    assert read_release("1.16", "key") == (1, 16)
    assert read_release("1.29.0", "key") == (1, 29)
    assert read_release(str(newest_release()), "key") == newest_release() >= installed_release()


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.parametrize("given", ["1.98", "1.97.1", "2.0"])
def test_a_release_that_is_not_known_yet_is_taken_with_a_warning(given: str, caplog: pytest.LogCaptureFixture) -> None:
    release = read_release(given, "key")
    assert given.startswith(str(release))
    (warning,) = warnings_of(caplog)
    assert warning.startswith(f"ONNX Runtime {release} is newer than the newest known release, {newest_release()}")


def test_a_release_that_targets_share_is_warned_of_one_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = tmp_path / "c.toml"
    target = '[[targets]]\nname = "{}"\nplatform = "android"\nort_release = "1.96"\n'
    config.write_text('name = "c"\n[[models]]\npath = "m.onnx"\n' + target.format("a") + target.format("b"))
    assert [one.ort_release for one in read_config(config).targets] == ["1.96", "1.96"]
    assert len(warnings_of(caplog)) == 1


def test_releases_without_rules_of_their_own_name_those_that_judge_them() -> None:
    later = Release(1, NEWEST_RULES.minor + 1)
    assert rules_of(later) == NEWEST_RULES
    assert rules_of((1, 2)) == OLDEST_RULES
    assert by_rules(NEWEST_RULES) == str(NEWEST_RULES)
    assert by_rules(later) == f"{later} (by the rules of {NEWEST_RULES})"
    assert by_rules((1, 25)) == "1.25 (by rules checked with 1.23 and 1.26)"
    assert by_rules((1, 20)) == "1.20 (by rules checked with 1.21)"


@pytest.mark.parametrize("value", ['"banana"', '"v1.29"', "1.29", "true", "[]"])
def test_configs_refuse_them_with_the_line(value: str, tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text(
        'name = "c"\n[[models]]\npath = "m.onnx"\n[[targets]]\nname = "t"\nplatform = "android"\n'
        f"ort_release = {value}\n"
    )
    with pytest.raises(ConfigError) as caught:
        read_config(config)
    assert caught.value.where == f"{config}:7"
    assert caught.value.remedy


@pytest.mark.parametrize("command", [["partition", "--ep", "nnapi"], ["convert", "--output", "o"]])
@pytest.mark.parametrize("value", ["banana", "v1.29"])
def test_commands_refuse_them_alike(command: list[str], value: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        cli.main([*command, str(tmp_path), "--ort-release", value], standalone_mode=False)
    assert caught.value.what.startswith("--ort-release: ")
    assert caught.value.exit_code == 2
