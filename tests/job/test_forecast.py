"""Before the first run it is said about how long the whole job takes."""

import re
from collections import Counter
from pathlib import Path

import pytest

from pipeline.campaign.store import open_store
from pipeline.job.forecast import last_proof_seconds, total_text
from tests.command import ort_mobile
from tests.configs import BASIC, DESK, MNIST, short


def test_the_parts_add_up_to_the_whole() -> None:
    runs = Counter({"local": 120, "adb:A": 30, "adb:B": 30})
    text = total_text(60, runs, 2.0, 1, auto=False, proof="the proof in the libraries that ship", proof_seconds=100.0)
    assert text == (
        "about 7 min in all: 60 s so far, 4 min for 120 runs here, 2 min for the proof, as the last time; "
        "beside it 2 other devices, known after the first run of each"
    )


def test_what_is_not_known_is_named_and_nothing_is_said_of_seconds() -> None:
    proof = "the proof in the libraries that ship"
    text = total_text(30, Counter(local=10), 1.0, 0, auto=True, proof=proof, proof_seconds=None)
    assert text == f"about 40 s in all: 30 s so far, at most 10 s for 10 runs here; beside it {proof}"
    assert total_text(3, Counter(local=10), 0.5, 0, auto=False, proof="", proof_seconds=None) == ""
    assert "1 other device" in total_text(3, Counter({"adb:A": 9}), None, 1, auto=False, proof="", proof_seconds=None)


def test_a_run_says_it_before_it_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.core.progress.WORTH_SAYING_SECONDS", 0.0)
    (tmp_path / "c.toml").write_text(f'name = "demo"\n{MNIST}{DESK}{BASIC}{short(rounds=2)}')
    said = ort_mobile("run", "c.toml", "--output", "out", cwd=tmp_path).err.splitlines()
    (told,) = [number for number, line in enumerate(said) if line.startswith("about ")]
    (measured,) = [number for number, line in enumerate(said) if re.match(r"measure: \d+ to do", line)]
    assert told < measured
    assert re.fullmatch(r"about \d+ s in all: \d+ s so far, \d+ s for \d+ runs here", said[told])
    count = said[measured].split()[1]
    assert f"for {count} runs here" in said[told]


def test_quiet_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.core.progress.WORTH_SAYING_SECONDS", 0.0)
    (tmp_path / "c.toml").write_text(f'name = "demo"\n{MNIST}{DESK}{BASIC}{short()}')
    assert "in all" not in ort_mobile("--quiet", "run", "c.toml", "--output", "out", cwd=tmp_path).err


def test_a_store_without_proofs_knows_none(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path / 'c.sqlite'}") as store:
        assert last_proof_seconds(store, "demo") is None
