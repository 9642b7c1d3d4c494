"""What an app's data become in a graph, beside the code that models were trained with: how many differ, and how far.

`nox -s bench -- app_data --share 0.01` takes a part of each count, and a minute. Packages with trained models and
tokenizers are fetched; what cannot be had is a row that says so.
"""

import argparse
import itertools
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pipeline.config import app_data
from tests.features.app_data import (
    sounds,
    test_answers,
    test_image,
    test_sound_features,
    test_tokenizers,
    test_windows,
    vocabularies,
)
from tests.features.app_data.test_windows import attached
from tests.features.flows import test_packages

SIDE = 224


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A line of the table: of so many things, how many are not as they must be, and the largest difference."""

    count: int
    wrong: int
    largest: float


def pictures(count: int) -> Figure:
    """Pillow's filter of pictures of 30 to 700 pixels, a fifth of them noise."""
    random = np.random.default_rng(0)
    size = (SIDE, SIDE)
    compute = test_image.computing(
        app_data.Takes(image=app_data.ImageBytes.RGB, filter=app_data.Filter.PILLOW_BILINEAR), size
    )
    differences = []
    for number in range(count):
        height, width = (int(side) for side in random.integers(30, 701, 2))
        coarse = (height, width) if number % 5 == 0 else (1 + height // 20, 1 + width // 20)
        picture = Image.fromarray(random.integers(0, 256, (*coarse, 3), np.uint8)).resize((width, height))
        wanted = test_image.planes(picture.resize(size, Image.Resampling.BILINEAR))
        differences.append(float(np.abs(compute(np.asarray(picture)) - wanted).max()))
    return Figure(count=count, wrong=sum(difference > 1 for difference in differences), largest=max(differences))


def heads(count: int) -> Figure:
    """Boxes of a detector's heads against numpy, in all bits."""
    return _differing(test_answers.differing_heads, count)


def texts(count: int) -> Figure:
    """Texts that CTC reads against numpy, with the values of their characters."""
    return _differing(test_answers.differing_texts, count)


def _differing(compare: Callable[[Path, int], Iterator[int]], count: int) -> Figure:
    with tempfile.TemporaryDirectory() as folder:
        return Figure(count=count, wrong=len(list(compare(Path(folder), count))), largest=0)


def fbank(seconds: int) -> Figure:
    """Kaldi's features of minutes of sound against kaldi-native-fbank; values."""
    takes = test_sound_features.FBANK
    with tempfile.TemporaryDirectory() as folder:
        session = attached(Path(folder), test_sound_features.model("frames", 80), takes)
    count, wrong, largest = 0, 0, 0.0
    for start in range(0, seconds, 60):
        sound = sounds.speech(min(60, seconds - start), seed=start)
        (values,) = session.run(None, {app_data.SAMPLES: sound[None]})
        differences = np.abs(values[0] - test_sound_features.kaldi(sound, takes, 80))
        count, wrong = count + differences.size, wrong + int((differences > 5e-4).sum())
        largest = max(largest, float(differences.max()))
    return Figure(count=count, wrong=wrong, largest=largest)


def log_mel(seconds: int) -> Figure:
    """Whisper's features of half minutes against its formula in float64; values."""
    with tempfile.TemporaryDirectory() as folder:
        session = attached(Path(folder), test_sound_features.model(80, 3000), test_sound_features.LOG_MEL)
    count, wrong, largest = 0, 0, 0.0
    for start in range(0, seconds, 30):
        sound = sounds.speech(30, seed=start)
        (values,) = session.run(None, {app_data.SAMPLES: sound[None]})
        differences = np.abs(values[0] - test_sound_features.whisper(sound / 32768, 80))
        count, wrong = count + differences.size, wrong + int((differences > 5e-4).sum())
        largest = max(largest, float(differences.max()))
    return Figure(count=count, wrong=wrong, largest=largest)


def tokenizer(count: int) -> Figure:
    """Texts whose ids are not the library's, of the WordPiece of a sentence model; in Python, as in each language."""
    with tempfile.TemporaryDirectory() as folder:
        text = test_tokenizers.minilm(Path(folder))
        words = [word for word in json.loads(text)["model"]["vocab"] if not word.startswith("[")]
        given = list(itertools.islice(vocabularies.all_texts(words, "b"), count))
        tokens = vocabularies.tokens_of(text)
        differing = test_tokenizers.differing("python", text, tokens, given, 128, Path(folder))
    return Figure(count=len(given), wrong=len(differing), largest=0)


def proof(test: Callable[[Path], None], count: int) -> Callable[[int], Figure]:
    """What a test proves of so many things at once: none is wrong, or all are."""

    def run(_: int) -> Figure:
        with tempfile.TemporaryDirectory() as folder:
            try:
                test(Path(folder))
            except AssertionError:
                return Figure(count=count, wrong=count, largest=math.inf)
        return Figure(count=count, wrong=0, largest=0)

    return run


def _least_seconds(function: Callable[[], object], rounds: int) -> float:
    """Of processor time, behind a first run that does not count."""
    function()
    seconds = []
    for _ in range(rounds):
        start = time.process_time()
        function()
        seconds.append(time.process_time() - start)
    return min(seconds)


def cost(rounds: int) -> Figure:
    """How many times as long as Pillow with numpy the graph takes from 1920 x 1080 to 224 x 224, in processor time."""
    rounds = max(rounds, 15)  # fewer say nothing on a computer that does other things
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (1080, 1920, 3), np.uint8))
    pixels, size = np.asarray(picture), (SIDE, SIDE)
    takes = app_data.Takes(
        image=app_data.ImageBytes.RGB, filter=app_data.Filter.PILLOW_BILINEAR, mean=(1.0, 2.0, 3.0), scale=2.0
    )
    compute, mean = test_image.computing(takes, size), np.array([1, 2, 3], np.float32)

    def by_hand() -> None:
        values = np.asarray(picture.resize(size, Image.Resampling.BILINEAR), np.float32)
        np.ascontiguousarray(((values - mean) * np.float32(2)).transpose(2, 0, 1))

    ratio = _least_seconds(lambda: compute(pixels), rounds) / _least_seconds(by_hand, rounds)
    return Figure(count=rounds, wrong=int(ratio > 1.3), largest=ratio)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A figure of the table with what it is of, how much of that makes it whole, and what is wrong."""

    name: str
    whole: int
    wrong: str
    run: Callable[[int], Figure]


MEASURES = (
    Measure(name="pictures by Pillow's filter", whole=10_000, wrong="more than 1 of 255", run=pictures),
    Measure(name="heads of a detector", whole=10_000, wrong="any bit", run=heads),
    Measure(name="texts by CTC", whole=10_000, wrong="any bit", run=texts),
    Measure(name="values of fbank, an hour", whole=3600, wrong="more than 0.0005", run=fbank),
    Measure(name="values of log-mel, an hour", whole=3600, wrong="more than 0.0005", run=log_mel),
    Measure(name="texts by a tokenizer", whole=204_558, wrong="other ids", run=tokenizer),
    Measure(
        name="steps of a detector of voices", whole=1, wrong="any bit",
        run=proof(test_windows.test_a_detector_of_voices_gives_the_bits_of_its_own_loop, 625),
    ),
    Measure(
        name="scores of a wake word", whole=1, wrong="any bit",
        run=proof(test_packages.test_a_wake_word_is_one_graph_of_equal_bits, 120),
    ),
    Measure(
        name="sequences of a decoder in a loop", whole=1, wrong="any token",
        run=proof(test_packages.test_a_decoder_in_a_loop_gives_all_sequences_of_separate_sessions, 200),
    ),
    Measure(name="1080p to 224, times Pillow", whole=60, wrong="more than 1.3", run=cost),
)  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="how much of each count, up to 1")
    share = parser.parse_args().share
    print("| | n | wrong | wrong is | largest difference |\n|---|---|---|---|---|")
    for measure in MEASURES:
        try:
            figure = measure.run(max(1, round(measure.whole * share)))
        except pytest.skip.Exception as reason:
            print(f"| {measure.name} | not measured: {reason} | | | |")
            continue
        print(
            f"| {measure.name} | {figure.count:,} | {figure.wrong:,} | {measure.wrong} | {figure.largest:.2g} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
