"""Models are found in files, folders and archives; archives stay in their bounds."""

import os
import zipfile
from pathlib import Path

import pytest

from pipeline.core.errors import ConfigError, ModelError
from pipeline.model import sources
from pipeline.model.onnx_model import load_model
from pipeline.model.sources import SourceModel, Spool, find_models
from tests.onnx_samples import linear, save, save_external


def test_folders_are_searched_in_sorted_order(tmp_path: Path) -> None:
    for name in ("b.onnx", "a.ONNX", "c.txt", "sub/d.onnx", " odd $(x).onnx"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "folder.onnx").mkdir()
    (tmp_path / "broken.onnx").symlink_to(tmp_path / "nowhere")
    names = [os.path.relpath(m.path, tmp_path) for m in find_models([tmp_path])]
    assert names == [" odd $(x).onnx", "a.ONNX", "b.onnx", "sub/d.onnx"]


def test_a_named_file_is_taken_whatever_its_suffix_and_only_once(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(b"x")
    assert find_models([path, str(path), tmp_path / "model.bin"]) == [SourceModel(path=str(path))]


def archive_of(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def test_members_of_archives_are_models_and_others_are_passed_over(tmp_path: Path) -> None:
    archive = archive_of(tmp_path / "models.zip", {"b.onnx": b"", "read.me": b"", "in/a.onnx": b"", "dir.onnx/": b""})
    found = find_models([archive])
    assert [m.member for m in found] == ["b.onnx", "in/a.onnx"]
    assert found[0].name == f"{archive}/b.onnx"
    assert find_models([found[1].name, f"{archive}//in/a.onnx"]) == [found[1]]
    for name in ("in", "read.me", "b.onnx/c.onnx", "none.onnx"):
        with pytest.raises(ConfigError, match="no such file or folder"):
            find_models([archive / name])


@pytest.mark.parametrize("name", ["missing.onnx", "empty", "empty.zip", "broken.zip"])
def test_nothing_to_convert_is_an_error_that_names_the_path(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    archive_of(tmp_path / "empty.zip", {"a.txt": b""})
    (tmp_path / "broken.zip").write_bytes(b"PK\x03\x04 no archive")
    with pytest.raises(ConfigError) as caught:
        find_models([tmp_path / name])
    assert caught.value.where == str(tmp_path / name)
    assert caught.value.remedy


def test_a_member_brings_its_external_data(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    save_external(linear(), tmp_path / "m" / "model.onnx", "data/w.bin")
    members = {f"m/{p.relative_to(tmp_path / 'm')}": p.read_bytes() for p in (tmp_path / "m").rglob("*") if p.is_file()}
    source = find_models([archive_of(tmp_path / "m.zip", members)])[0]
    loaded = load_model(source, tmp_path / "spool")
    assert loaded.proto.graph.initializer[0].raw_data == linear().graph.initializer[0].raw_data


@pytest.mark.parametrize("member", ["../model.onnx", "/model.onnx", "a/../../model.onnx"])
def test_no_entry_outside_the_archive_is_extracted(tmp_path: Path, member: str) -> None:
    archive = archive_of(tmp_path / "m.zip", {member: linear().SerializeToString()})
    with pytest.raises(ModelError, match="outside its root"):
        load_model(find_models([archive])[0], tmp_path / "in" / "spool")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.zip"]


def test_a_bomb_is_refused_by_its_declared_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.model.sources.MAX_MEMBER_BYTES", 1000)
    archive = archive_of(tmp_path / "m.zip", {"m.onnx": bytes(1001)})
    with pytest.raises(ModelError, match="too large"):
        load_model(find_models([archive])[0], tmp_path / "spool")


def test_a_member_that_lies_about_its_size_is_refused(tmp_path: Path) -> None:
    archive = archive_of(tmp_path / "m.zip", {"m.onnx": bytes(100_000)})
    data = bytearray(archive.read_bytes())
    entry = data.rindex(b"PK\x01\x02")
    data[entry + 24 : entry + 28] = (10).to_bytes(4, "little")
    archive.write_bytes(bytes(data))
    with pytest.raises(ModelError, match="cannot be extracted"):
        load_model(find_models([archive])[0], tmp_path / "spool")
    assert all(p.stat().st_size <= 10 for p in (tmp_path / "spool").iterdir())


def test_a_missing_member_is_named(tmp_path: Path) -> None:
    archive = archive_of(tmp_path / "m.zip", {"a.onnx": b""})
    spool = Spool(SourceModel(path=str(archive), member="b.onnx"), tmp_path / "spool")
    with pytest.raises(ModelError) as caught:
        spool.fetch_model()
    assert caught.value.where.endswith("m.zip/b.onnx")


def test_a_spooled_model_keeps_its_weights_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.model.onnx_model.LEAN_MINIMUM_BYTES", 0)
    path = save(linear(), tmp_path / "x.onnx")
    source = find_models([archive_of(tmp_path / "m.zip", {"x.onnx": path.read_bytes()})])[0]
    loaded = load_model(source, tmp_path / "spool")
    assert set(loaded.weights) == {"w"}
    assert loaded.weights["w"].file.is_relative_to(tmp_path / "spool")


def test_a_damaged_stream_is_an_error_of_that_member_alone(tmp_path: Path) -> None:
    model = save(linear(), tmp_path / "m.onnx").read_bytes()
    archive = archive_of(tmp_path / "models.zip", {"a.onnx": model, "b.onnx": model})
    content = bytearray(archive.read_bytes())
    for place in range(60, 90):  # inside the first member's data
        content[place] ^= 0xFF
    archive.write_bytes(content)
    for name, ends in (("a.onnx", True), ("b.onnx", False)):
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        spool = Spool(SourceModel(path=str(archive), member=name), folder)
        if ends:
            with pytest.raises(ModelError, match="cannot be extracted"):
                spool.fetch_model()
        else:
            assert spool.fetch_model().read_bytes() == model


def test_a_disk_is_no_folder_of_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MOST_FILES", 3)
    for number in range(4):
        (tmp_path / f"{number}.txt").touch()
    with pytest.raises(ConfigError, match="too many files") as caught:
        find_models([tmp_path])
    assert caught.value.where == str(tmp_path)


def test_an_archive_of_endless_models_is_refused_before_they_are_opened(tmp_path: Path) -> None:
    path = tmp_path / "many.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(sources.MOST_MODELS + 1):
            archive.writestr(f"a/m{number}.onnx" if number else "m.onnx", b"")
    with pytest.raises(ConfigError, match="too many models") as caught:
        find_models([path])
    assert "10,001" in caught.value.why
    assert "single files" in caught.value.remedy
    assert [model.member for model in find_models([path / "m.onnx"])] == ["m.onnx"]
