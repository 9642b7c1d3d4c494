"""`ort-mobile bundle deny`."""

from pathlib import Path

from device_runner.options import add_denied
from tests.command import ort_mobile
from tests.features.android import samples
from tests.features.guard.phones import keys
from tests.features.guard.test_deny import denied


def test_a_list_of_the_desk_has_a_line_for_each_but_the_cpu(tmp_path: Path) -> None:
    samples.bundle(tmp_path)
    private, _ = keys(tmp_path)
    source, target = tmp_path / "denied.json", tmp_path / "deny.list"
    for options in (samples.NNAPI, samples.WEBGPU, samples.CPU):
        add_denied(source, denied(options))
    given = ("--key", private, "--serial", "3", "--from", source, "--output", target)
    said = ort_mobile("bundle", "deny", tmp_path / "bundle", *map(str, given)).out
    lines = target.read_text().splitlines()
    assert [line.split("\t")[0] for line in lines[:-1]] == ["ort-mobile deny 1", *map(str, said_ways(said))]
    assert lines[0].split("\t")[1:3] == ["Demo app", "3"]


def said_ways(said: str) -> list[str]:
    return [line.split()[1] for line in said.splitlines() if line.startswith("denied")]
