"""Deltas: the new bundle comes out byte by byte, small, at once or not at all, whatever is wrong or killed."""

import io
import json
import os
import shutil
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from device_runner.files import staging_folder
from device_runner.spec import RunOptions
from pipeline.features.updates import delta
from pipeline.features.updates.delta import DELTA_FILE, write_delta
from pipeline.features.updates.regions import Kind, Region, gaps_of, words_of, write_gaps, write_words
from pipeline.release import manifest
from pipeline.release.bundle import make_bundle
from pipeline.release.manifest import MANIFEST_FILE, SIGNATURE_FILE, verify_bundle
from tests.command import ort_mobile
from tests.features.android.samples import shipped
from tests.ort_models import convert, parsed
from tests.release.test_bundle import SHIPS, proof, reseal
from tests.release.test_signature import write_keys
from tests.stops import ACTIONS, STOPPED, stops
from tests.values import files_of

WEIGHTS = np.random.default_rng(0).normal(0, 0.05, 100_000).astype(np.float32)


def bundle(folder: Path, model: bytes, name: str = "bundle", product: str = "demo", **more: Any) -> Path:
    make_bundle(
        folder / name, name=product,
        **{
            "sources": {"models/m.ort": model, "operators/o.config": b"ai.onnx;13;Relu\n"},
            "ships": SHIPS, "made_with": {}, "evidence": {}, **more,
        },
    )  # fmt: skip
    return folder / name


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the bundles old and new, and their delta: compressing it is most of the work of these tests."""
    folder = tmp_path_factory.mktemp("delta")
    bundle(folder, WEIGHTS.tobytes(), "old")
    bundle(folder, (WEIGHTS * np.float32(1.0001)).tobytes(), "new")
    ort_mobile("bundle", "delta", folder / "old", folder / "new", "--output", folder / "d")
    return folder


@pytest.fixture
def made(packed: Path, tmp_path: Path) -> Path:
    """A copy of `packed` to damage."""
    return Path(shutil.copytree(packed, tmp_path, dirs_exist_ok=True))


TUNED = (WEIGHTS * np.random.default_rng(1).normal(1, 1e-4, WEIGHTS.size)).astype(np.float32).tobytes()
SHIFTED = b"one more node" + WEIGHTS.tobytes()
OTHER = np.random.default_rng(2).normal(0, 0.05, 100_000).astype(np.float32).tobytes()


@pytest.mark.parametrize(
    ("content", "how", "share"),
    [(TUNED, "words", 0.55), (SHIFTED, "patch", 0.001), (OTHER, "whole", 1.0), (bytes(400_000), "zstd", 0.001)],
    ids=["fine-tuned", "graph changed", "retrained", "zeros"],
)
def test_each_file_takes_its_smallest_form(tmp_path: Path, content: bytes, how: str, share: float) -> None:
    old, new = bundle(tmp_path, WEIGHTS.tobytes(), "old"), bundle(tmp_path, content, "new")
    result = ort_mobile("bundle", "delta", old, new, "--output", tmp_path / "d", "--json", "-")
    document = json.loads(result.out)
    forms = {file["path"]: file["how"] for file in document["files"]}
    assert forms["models/m.ort"] == how
    assert forms["operators/o.config"] == "kept"
    assert document["size_bytes"] <= share * len(content) + 20_000
    expected = files_of(new)
    ort_mobile("bundle", "apply", tmp_path / "d", old)
    assert files_of(old) == expected


def ort_file(path: Path, weights: np.ndarray[Any, Any], nodes: int) -> bytes:
    """An ORT file with these weights, and some nodes more or less behind them: its length and its offsets change."""
    element = {"float32": "float", "float16": "float16", "int8": "int8"}[weights.dtype.name]
    chain = " ".join(f"v{one + 1} = Transpose <perm = [1, 0]> (v{one})" for one in range(nodes))
    model = parsed(
        f"g (int64[n] x, int64[m] rows) => ({element}[a, b] y)"
        f" {{ v0 = Gather (w, x) {chain} y = Gather (v{nodes}, rows) }}"
    )
    model.graph.initializer.append(numpy_helper.from_array(weights.reshape(-1, 100), "w"))
    return convert(model, path, level="none").read_bytes()


@pytest.mark.parametrize(("type_", "share"), [("float32", 0.55), ("float16", 0.5), ("int8", 0.4)])
def test_all_weights_of_a_longer_model_changed(tmp_path: Path, type_: str, share: float) -> None:
    scale = 400 if type_ == "int8" else 1
    tuned = WEIGHTS * np.random.default_rng(1).normal(1, 1e-4 if type_ == "float32" else 1e-2, WEIGHTS.size)
    contents = [
        ort_file(tmp_path / "m.ort", (one * scale).round(0 if scale > 1 else 9).astype(type_), nodes)
        for one, nodes in ((WEIGHTS, 2), (tuned, 6))
    ]
    assert len(contents[0]) != len(contents[1])
    old, new = (bundle(tmp_path, content, name) for content, name in zip(contents, ("old", "new"), strict=True))
    document = json.loads(ort_mobile("bundle", "delta", old, new, "--output", tmp_path / "d", "--json", "-").out)
    assert {file["path"]: file["how"] for file in document["files"]}["models/m.ort"] == "words"
    assert document["size_bytes"] <= share * len(contents[1]) + 20_000
    expected = files_of(new)
    ort_mobile("bundle", "apply", tmp_path / "d", old)
    assert files_of(old) == expected


def test_the_delta_of_equal_bundles_is_small_and_changes_nothing(tmp_path: Path) -> None:
    old = bundle(tmp_path, WEIGHTS.tobytes(), "old")
    before = files_of(old)
    ort_mobile("bundle", "delta", old, old, "--output", tmp_path / "d")
    assert (tmp_path / "d").stat().st_size < 4000
    ort_mobile("bundle", "apply", tmp_path / "d", old)
    assert files_of(old) == before


def test_applying_twice_is_applying_once(made: Path) -> None:
    for said in ("bundle", "unchanged"):
        done = ort_mobile("bundle", "apply", made / "d", made / "old")
        assert done.text.startswith(said)
    assert files_of(made / "old") == files_of(made / "new")


def test_a_bundle_that_is_the_new_one_already_is_checked_alike(made: Path) -> None:
    key = write_keys(made)
    again = ("bundle", "apply", made / "d", made / "new")
    ort_mobile(*again)
    unsigned = ort_mobile(*again, "--key", key.with_suffix(".pub"), code=4)
    assert unsigned.err.startswith("error: this bundle is not signed\n")
    ort_mobile(*again, "--target", "elsewhere", code=4)


@pytest.mark.parametrize("place", ["old", "old/kept"])
def test_the_old_bundle_is_not_kept_where_the_new_one_replaces_it(made: Path, place: str) -> None:
    before = files_of(made / "old")
    refused = ort_mobile("bundle", "apply", made / "d", made / "old", "--keep", made / place, code=2)
    assert refused.err.startswith("error: --keep lies in the bundle\n")
    assert files_of(made / "old") == before


@pytest.mark.parametrize("name", ["old", "new"])
def test_a_delta_is_not_written_into_a_bundle(made: Path, name: str) -> None:
    ort_mobile("bundle", "delta", made / "old", made / "new", "--output", made / name / "models" / "d", code=2)
    verify_bundle(made / name)


def test_a_delta_for_another_bundle_is_refused(made: Path) -> None:
    other = bundle(made, b"another", "other")
    before = files_of(other)
    ort_mobile("bundle", "apply", made / "d", other, code=4)
    assert files_of(other) == before


def test_a_signed_update_is_checked_with_the_key(made: Path) -> None:
    key = write_keys(made)
    unsigned = ort_mobile("bundle", "apply", made / "d", made / "old", "--key", key.with_suffix(".pub"), code=4)
    assert f"where: {made / 'd'}\n" in unsigned.err
    ort_mobile("bundle", "sign", made / "new", "--key", key)
    ort_mobile("bundle", "delta", made / "old", made / "new", "--output", made / "d")
    ort_mobile("bundle", "apply", made / "d", made / "old", "--key", key.with_suffix(".pub"))
    assert (made / "old" / SIGNATURE_FILE).is_file()


def changed(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """The delta with another document."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    document = json.loads(members[DELTA_FILE])
    change(document)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**members, DELTA_FILE: json.dumps(document).encode()}.items():
            archive.writestr(name, content)


def model_of(document: dict[str, Any]) -> dict[str, Any]:
    return next(file for file in document["files"] if file["path"] == "models/m.ort")


REGION = [0, 0, 400_000, "f4"]
ATTACKS: dict[str, Callable[[dict[str, Any]], object]] = {
    "a file outside": lambda d: model_of(d).update(path="../evil"),
    "a base outside": lambda d: model_of(d).update(base="../../etc/passwd", how="kept"),
    "an absolute base": lambda d: model_of(d).update(base="/etc/passwd"),
    "another size": lambda d: model_of(d).update(size_bytes=1 << 40),
    "another digest": lambda d: model_of(d).update(sha256="0" * 64),
    "a missing member": lambda d: model_of(d).update(member="nothing"),
    "an unknown form": lambda d: model_of(d).update(how="magic"),
    "a missing file": lambda d: d["files"].remove(model_of(d)),
    "a later version": lambda d: d.update(version=99),
    "regions outside": lambda d: model_of(d).update(regions=[[0, 1 << 40, 4, "f4"]]),
    "regions before": lambda d: model_of(d).update(regions=[[-4, 0, 4, "f4"]]),
    "regions of another length": lambda d: model_of(d).update(regions=[[0, 0, 396, "f4"]]),
    "regions twice": lambda d: model_of(d).update(regions=[REGION, REGION]),
    "an unknown kind": lambda d: model_of(d).update(regions=[[0, 0, 400_000, "f1"]]),
    "a rest from nowhere": lambda d: model_of(d).update(rest="nothing"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_damaged_deltas_change_nothing(made: Path, attack: str) -> None:
    changed(made / "d", ATTACKS[attack])  # type: ignore[arg-type]
    before = files_of(made / "old")
    assert ort_mobile("bundle", "apply", made / "d", made / "old", code=None).code in (2, 4)
    assert files_of(made / "old") == before
    assert sorted(file.name for file in made.iterdir()) == ["d", "new", "old"]


@settings(max_examples=20)
@given(st.data())
def test_no_damaged_byte_gets_through(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    old, new = bundle(folder, b"abc" * 50, "old"), bundle(folder, b"abd" * 60, "new")
    ort_mobile("bundle", "delta", old, new, "--output", folder / "d")
    content = bytearray((folder / "d").read_bytes())
    content[data.draw(st.integers(0, 1 << 20)) % len(content)] ^= data.draw(st.integers(1, 255))
    (folder / "d").write_bytes(content)
    before, after = files_of(old), files_of(new)
    result = ort_mobile("bundle", "apply", folder / "d", old, code=None)
    assert files_of(old) == (after if result.code == 0 else before)
    assert result.code in (0, 1, 2, 4)


KILLS = """
import os, random, shutil, signal, sys, time
from pathlib import Path
from device_runner.files import restore_place
from pipeline.features.updates.delta import apply_delta
from pipeline.release.manifest import verify_bundle

folder, kills = Path(sys.argv[1]), int(sys.argv[2])
random.seed(1)
start = time.monotonic()
shutil.copytree(folder / "old", folder / "b")
apply_delta(folder / "d", folder / "b")
whole, digests, killed = time.monotonic() - start, [], 0
while killed < kills:
    if not digests or digests[-1] == "new":
        shutil.rmtree(folder / "b", ignore_errors=True)
        shutil.copytree(folder / "old", folder / "b")
    child = os.fork()
    if not child:
        apply_delta(folder / "d", folder / "b")
        os._exit(0)
    time.sleep(random.uniform(0, whole))
    os.kill(child, signal.SIGKILL)
    killed += os.WIFSIGNALED(os.waitpid(child, 0)[1])
    restore_place(folder / "b")
    digest = verify_bundle(folder / "b").content_sha256
    digests.append("new" if digest == sys.argv[3] else "old" if digest == sys.argv[4] else "neither")
print(killed, digests.count("old"), digests.count("new"), digests.count("neither"))
"""


def killed(made: Path, kills: int) -> list[int]:
    """How many were killed, and how often the old, the new and neither bundle was there after it."""
    digests = [verify_bundle(made / name).content_sha256 for name in ("new", "old")]
    done = subprocess.run(
        [sys.executable, "-c", KILLS, str(made), str(kills), *digests], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


def test_a_killed_update_leaves_the_old_or_the_new_bundle(made: Path) -> None:
    count, _, _, neither = killed(made, 15)
    assert (count, neither) == (15, 0)


@pytest.mark.nightly
def test_two_hundred_killed_updates(made: Path) -> None:
    count, old, _, neither = killed(made, 200)
    assert (count, neither) == (200, 0)
    assert old > 20


def test_no_bundle_no_delta(made: Path) -> None:
    shutil.rmtree(made / "old")
    ort_mobile("bundle", "apply", made / "d", made / "old", code=2)
    ort_mobile("bundle", "delta", made / "old", made / "new", "--output", made / "e", code=2)
    missing = ort_mobile("bundle", "apply", made / "nothing", made / "new", code=2)
    assert "ort-mobile bundle delta" in missing.err
    assert not (made / "e").exists()
    (made / "new" / MANIFEST_FILE).write_text("{}")
    ort_mobile("bundle", "delta", made / "new", made / "new", "--output", made / "e", code=4)


def refusal(*words: str | Path) -> str:
    """What an apply says that is refused with exit code 4 and leaves the bundle as it was."""
    bundle = Path(words[1])
    before = files_of(bundle)
    refused = ort_mobile("bundle", "apply", *words, code=4)
    assert files_of(bundle) == before
    assert sorted(path.name for path in bundle.parent.iterdir() if path.name.startswith(".")) == []
    return refused.err


def test_a_bundle_that_must_not_ship_is_neither_packed_nor_applied(made: Path) -> None:
    bundle(made, OTHER, "failed", attest=lambda _: proof(failed=True))
    ort_mobile("bundle", "delta", made / "old", made / "failed", "--output", made / "e", code=4)
    assert not (made / "e").exists()
    packed_unchecked(made / "old", made / "failed", made / "e")
    assert "do not ship this bundle" in refusal(made / "e", made / "old")


def test_going_back_must_be_asked_for(made: Path) -> None:
    ort_mobile("bundle", "delta", made / "new", made / "old", "--output", made / "back")
    assert "the new bundle is older" in refusal(made / "back", made / "new")
    ort_mobile("bundle", "apply", made / "back", made / "new", "--allow-older")
    assert files_of(made / "new") == files_of(made / "old")


def packed_unchecked(old: Path, new: Path, output: Path) -> None:
    """A delta as somebody else's program may write it, of any two bundles."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("pipeline.release.manifest.refuse_unproven", lambda *_: None)
        patched.setattr(delta, "_refuse_other_product", lambda *_: None)
        write_delta(old, new, output)


OTHER_NAMES = ["another", "Demo", "demo ", "d\u0435mo"]
"""The last has a Cyrillic letter."""


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_a_bundle_of_another_product_is_no_update(made: Path, name: str) -> None:
    bundle(made, OTHER, "other", product=name)
    key = write_keys(made)
    ort_mobile("bundle", "sign", made / "other", "--key", key)
    refused = ort_mobile("bundle", "delta", made / "old", made / "other", "--output", made / "e", code=4)
    assert refused.err.startswith("error: the new bundle is another product's\n")
    assert not (made / "e").exists()
    packed_unchecked(made / "old", made / "other", made / "e")
    for allowed in ((), ("--allow-older", "--allow-unsigned"), ("--key", key.with_suffix(".pub"))):
        assert "another product's" in refusal(made / "e", made / "old", *allowed)


def test_the_bundle_of_another_product_is_not_lost_where_the_old_one_is_kept(made: Path) -> None:
    bundle(made, OTHER, "other", product="another")
    before = files_of(made / "other")
    refused = ort_mobile("bundle", "apply", made / "d", made / "old", "--keep", made / "other", code=2)
    assert "--keep has a bundle of another product" in refused.err
    assert files_of(made / "other") == before
    ort_mobile("bundle", "apply", made / "d", made / "old", "--keep", made / "kept")


def test_an_update_of_the_future_is_refused_before_anything_is_unpacked(made: Path) -> None:
    shutil.copytree(made / "new", made / "later")
    reseal(made / "later", lambda document: document.update(made_at="9999-12-31T23:59:59.999Z"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(manifest, "refuse_future", lambda *_: None)
        write_delta(made / "old", made / "later", made / "e")
    assert "a time that has not come yet" in refusal(made / "e", made / "old", "--allow-older")


def test_verify_and_apply_agree_on_what_is_there_already(made: Path) -> None:
    bundle(made, OTHER, "failed", attest=lambda _: proof(failed=True))
    packed_unchecked(made / "old", made / "failed", made / "e")
    ort_mobile("bundle", "verify", made / "failed", code=4)
    assert "do not ship this bundle" in refusal(made / "e", made / "failed")


def test_verify_and_apply_agree_on_files_that_the_apps_release_does_not_open(made: Path) -> None:
    model = ort_file(made / "m.ort", WEIGHTS, 2)
    ships = (shipped(file="models/m.ort", runs=(RunOptions(),), ort_release="1.9", min_api_level=None),)
    bundle(made, model, "unopened", ships=ships)
    why = ort_mobile("bundle", "verify", made / "unopened", code=4).err.partition("\n")[0]
    ort_mobile("bundle", "delta", made / "old", made / "unopened", "--output", made / "e")
    assert why in refusal(made / "e", made / "old")
    assert why in refusal(made / "e", made / "unopened")


@pytest.mark.parametrize("new", ["unsigned", "signed by nobody knows whom"])
def test_a_signed_bundle_is_not_replaced_without_its_key(made: Path, new: str) -> None:
    key = write_keys(made)
    ort_mobile("bundle", "sign", made / "old", "--key", key)
    if new != "unsigned":
        shutil.copy(made / "old" / SIGNATURE_FILE, made / "new")
    ort_mobile("bundle", "delta", made / "old", made / "new", "--output", made / "e")
    assert "nobody checks who signed" in refusal(made / "e", made / "old")
    refusal(made / "e", made / "old", "--key", key.with_suffix(".pub"))
    ort_mobile("bundle", "apply", made / "e", made / "old", "--allow-unsigned")


def test_the_signature_is_checked_before_anything_is_unpacked(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    make = delta._make

    def noted(*given: Any) -> None:
        seen.append(given[-1].path)
        make(*given)

    monkeypatch.setattr(delta, "_make", noted)
    refusal(made / "d", made / "old", "--key", write_keys(made).with_suffix(".pub"))
    assert seen == [MANIFEST_FILE, "manifest.sha256"]


def test_members_that_the_archive_compresses_are_refused(made: Path) -> None:
    with zipfile.ZipFile(made / "d") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(made / "d", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    assert "is compressed by the archive" in refusal(made / "d", made / "old")


def test_a_small_delta_that_would_become_much_is_believed_of_a_signed_one_only(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta, "UNSIGNED_BYTES", 1 << 20)
    key = write_keys(made)
    bundle(made, bytes(20 << 20), "large")
    ort_mobile("bundle", "sign", made / "large", "--key", key)
    ort_mobile("bundle", "delta", made / "old", made / "large", "--output", made / "e")
    assert (made / "e").stat().st_size < 100_000
    assert "believed of a signed one only" in refusal(made / "e", made / "old")
    ort_mobile("bundle", "apply", made / "e", made / "old", "--key", key.with_suffix(".pub"))


def words_delta(made: Path, megabytes: int, key: Path | None = None) -> int:
    """A delta to a bundle with a file of so many megabytes that is made of words over a small one; gives its size."""
    old = bundle(made, WEIGHTS[:2000].tobytes(), "small")
    content = WEIGHTS[:2000].tobytes()
    count = (megabytes << 20) // len(content)
    new = bundle(made, content * count, "large")
    if key:
        ort_mobile("bundle", "sign", new, "--key", key)
    with pytest.MonkeyPatch.context() as patched:
        regions = tuple(Region(old=0, new=len(content) * at, length=len(content), kind="f4") for at in range(count))
        packed = zstandard.ZstdCompressor(level=1).compress(bytes(len(content) * count))

        def smallest(_: object, file: Path, base: Path | None) -> tuple[dict[str, bytes], tuple[Region, ...]]:
            if file.name == "m.ort":
                return {"words": packed}, regions
            return {"whole": file.read_bytes()}, ()

        patched.setattr(delta, "_smallest", smallest)
        write_delta(old, new, made / "e")
    return (made / "e").stat().st_size


def test_a_small_delta_that_would_take_much_memory_is_believed_of_a_signed_one_only(made: Path) -> None:
    key = write_keys(made)
    size = words_delta(made, 70, key)
    assert size < 2 << 20
    before = files_of(made / "small")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(delta, "JOINED_BYTES", 32 << 20)
        assert "believed of a signed one only" in refusal(made / "e", made / "small")
    assert files_of(made / "small") == before
    ort_mobile("bundle", "apply", made / "e", made / "small", "--key", key.with_suffix(".pub"))
    assert files_of(made / "small") == files_of(made / "large")


KINDS: tuple[Kind, ...] = ("f2", "f4", "f8", "i1", "i2", "i4", "i8")


@settings(max_examples=60)
@given(st.data())
def test_words_of_any_regions_give_the_file_again(data: st.DataObject) -> None:
    """Also of lengths that divide no number, in pieces of another size than theirs."""
    lengths = data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=8))
    before, content = data.draw(st.binary(min_size=60, max_size=60)), bytearray(data.draw(st.binary(max_size=30)))
    regions = []
    for length in lengths:
        kind = data.draw(st.sampled_from(KINDS))
        regions.append(Region(old=data.draw(st.integers(0, 20)), new=len(content), length=length, kind=kind))
        content += data.draw(st.binary(min_size=length, max_size=length)) + data.draw(st.binary(max_size=3))
    gaps = gaps_of(bytes(content), [(region.new, region.length) for region in regions])
    with (
        pytest.MonkeyPatch.context() as patched,
        TemporaryFile() as old,
        TemporaryFile() as words,
        TemporaryFile() as out,
    ):
        patched.setattr("pipeline.core.files.CHUNK_BYTES", data.draw(st.sampled_from([8, 16, 48])))
        for file, bytes_ in ((old, before), (words, words_of(before, bytes(content), regions))):
            file.write(bytes_)
            file.flush()
        write_gaps(io.BytesIO(gaps), regions, len(content), out)
        write_words(old, words, regions, out)
        out.seek(0)
        assert out.read() == content


def test_words_take_little_memory_whatever_they_become(tmp_path: Path) -> None:
    old, words = tmp_path / "old", tmp_path / "words"
    old.write_bytes(WEIGHTS.tobytes())
    regions = [Region(old=0, new=400_000 * at, length=400_000, kind="f2") for at in range(100)]
    words.write_bytes(bytes(40_000_000))
    with old.open("rb") as before, words.open("rb") as given_words, (tmp_path / "new").open("wb") as out:
        tracemalloc.start()
        write_words(before, given_words, regions, out)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert (tmp_path / "new").read_bytes() == WEIGHTS.tobytes() * 100
    assert peak < 16 << 20


def test_a_list_of_many_members_is_not_read(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta._Archive, "most", 100)
    assert "its list of members has more than 100 bytes" in refusal(made / "d", made / "old")


def test_while_one_update_is_at_work_another_says_so(made: Path) -> None:
    with staging_folder(made / "old"):
        refused = ort_mobile("bundle", "apply", made / "d", made / "old", code=2)
    assert refused.err.startswith("error: another process is replacing this\n")
    ort_mobile("bundle", "apply", made / "d", made / "old")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda d: d.update(files=[]), "no manifest.json"),
        (lambda d: d.update(new_digest=d["new_digest"].upper()), "not the one that it names"),
        (lambda d: model_of(d).update(base="models"), "is no file of the old bundle"),
        (lambda d: d["files"].append({**model_of(d), "path": "models/m.ort/x"}), "not those of manifest.json"),
        (lambda d: d["files"].append(model_of(d)), "makes a file twice"),
    ],
)
def test_what_is_wrong_with_a_delta_is_said_of_the_delta(
    made: Path, change: Callable[[dict[str, Any]], None], why: str
) -> None:
    changed(made / "d", change)
    said = refusal(made / "d", made / "old")
    assert said.startswith("error: the delta is damaged")
    assert why in said


@pytest.mark.parametrize("actions", STOPPED)
@pytest.mark.parametrize("more", [(), pytest.param(("--keep", "kept"), marks=pytest.mark.every_call)], ids=["", "kept"])
def test_an_update_that_is_stopped_is_ended_by_the_next(
    packed: Path, tmp_path: Path, more: tuple[str, ...], actions: tuple[str, ...]
) -> None:
    shutil.copytree(packed, tmp_path / "start")
    left = stops(tmp_path, ("bundle", "apply", "d", "old", *more), actions)
    old, new = files_of(packed / "old"), files_of(packed / "new")
    assert len(left) > 30
    for stop in left:
        assert not stop.traced, stop.name
        assert files_of(stop.after / "old") in (old, new), stop.name
        assert (files_of(stop.again / "old"), stop.again_code) == (new, 0), stop.name
        assert not list(stop.again.glob(".*")), stop.name
        assert files_of(stop.after / "kept") in ({}, old), stop.name
        assert not more or files_of(stop.again / "kept") == old, stop.name


@pytest.mark.every_call
@pytest.mark.parametrize("actions", [ACTIONS])
def test_a_delta_that_is_stopped_is_written_by_the_next(packed: Path, tmp_path: Path, actions: tuple[str, ...]) -> None:
    shutil.copytree(packed, tmp_path / "start")
    left = stops(tmp_path, ("bundle", "delta", "old", "new", "--output", "e"), actions)
    for stop in left:
        assert not stop.traced, stop.name
        assert (stop.again_code, files_of(stop.again)) == (0, files_of(left[-1].again)), stop.name
        assert not (stop.after / "e").exists() or (stop.after / "e").read_bytes() == (stop.again / "e").read_bytes()


STRACE = shutil.which("strace")


def stopped_at_each(made: Path, calls: str, fault: str) -> int:
    """How many of these system calls an update makes after which it was stopped; asserts on what each left."""
    old, new, bundle = files_of(made / "old"), files_of(made / "new"), made / "w" / "m[1]"
    for number in range(1, 500):
        shutil.rmtree(bundle.parent, ignore_errors=True)
        shutil.copytree(made / "old", bundle)
        update = [sys.executable, "-m", "pipeline", "bundle", "apply", str(made / "d"), str(bundle)]
        traced = [str(STRACE), "-f", "-qq", "-o", str(made / "trace"), "-e", f"trace={calls}"]
        done = subprocess.run(
            [*traced, "-e", f"inject={calls}:{fault}:when={number}", *update],
            cwd=Path(__file__).parents[3], env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, (calls, fault, number, done.stderr)
        assert bundle.is_dir(), (calls, fault, number, done.stderr)
        assert files_of(bundle) in (old, new), (calls, fault, number, done.stderr)
        ort_mobile("bundle", "apply", made / "d", bundle)
        assert files_of(bundle) == new
        assert [path.name for path in bundle.parent.iterdir()] == [bundle.name], (calls, fault, number)
        if "INJECTED" not in (made / "trace").read_text() and "SIG" not in (made / "trace").read_text():
            return number - 1
    raise AssertionError("it never came to its end")


@pytest.mark.skipif(not STRACE, reason="strace is not installed")
@pytest.mark.parametrize(
    ("call", "fault", "file", "status", "words"),
    [
        ("openat", "EACCES", "d", 1, "Permission denied"),
        pytest.param("read", "EIO:when=1+", "d", 1, "Input/output error", marks=pytest.mark.nightly),
        ("read", "EIO:when=5", "d", 1, "Input/output error"),
        pytest.param("openat", "EACCES:when=2", "m[1]/models/m.ort", 1, "Permission denied", marks=pytest.mark.nightly),
        ("pread64", "EIO:when=1", "m[1]/models/m.ort", 1, "Input/output error"),
        ("write", "ENOSPC:when=1", "", 3, "No space left on device"),
    ],
)
def test_what_the_system_refuses_is_no_damage(
    made: Path, call: str, fault: str, file: str, status: int, words: str
) -> None:
    shutil.copytree(made / "old", made / "m[1]")
    before = files_of(made / "m[1]")
    only = ["-P", str(made / file)] if file else []
    done = subprocess.run(
        [str(STRACE), "-f", "-qq", "-o", "/dev/null", *only, "-e", f"trace={call}",
         "-e", f"inject={call}:error={fault}",
         sys.executable, "-m", "pipeline", "bundle", "apply", str(made / "d"), str(made / "m[1]")],
        cwd=Path(__file__).parents[3], env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    assert words in done.stderr
    assert str(made / file) in done.stderr
    assert "damaged" not in done.stderr
    assert "--output" not in done.stderr
    assert files_of(made / "m[1]") == before


FAULTS = ("signal=SIGKILL", "signal=SIGTERM", "signal=SIGINT", "signal=SIGHUP", "error=EIO", "error=ENOSPC")
OF_EACH_KIND = ("signal=SIGKILL", "signal=SIGTERM", "error=ENOSPC")
"""What nothing can hear, what is heard, and what the system refuses: in each run."""


@pytest.mark.long
@pytest.mark.skipif(not STRACE, reason="strace is not installed")
@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=[pytest.mark.nightly] * (fault not in OF_EACH_KIND)) for fault in FAULTS]
)
def test_an_update_that_is_stopped_as_it_swaps_leaves_one_of_the_bundles(made: Path, fault: str) -> None:
    assert stopped_at_each(made, "renameat2", fault) == 1


@pytest.mark.every_call
@pytest.mark.skipif(not STRACE, reason="strace is not installed")
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("calls", ["rename", "mkdir", "rmdir,unlink,unlinkat", "fsync", "flock"])
def test_an_update_that_is_stopped_at_any_call_leaves_one_of_the_bundles(made: Path, calls: str, fault: str) -> None:
    assert stopped_at_each(made, calls, fault) > 0
