"""The classes of C++ in a program, with the real ONNX Runtime: answers, texts and a stream, as Python gives them."""

import subprocess
from pathlib import Path

import pytest

from pipeline.config.app_data import SampleKind
from tests.command import ort_mobile
from tests.features.app_data import every_answer
from tests.features.languages.test_snippet import built

pytestmark = [pytest.mark.network, pytest.mark.long]

MAIN = """
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>

static int Bits(float value) {
    int bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

template <typename Values>
static void Print(const Values& values) {
    const char* between = "";
    for (float value : values) {
        std::printf("%s%d", between, Bits(value));
        between = " ";
    }
    std::puts("");
}

static void Print(const std::vector<Box>& boxes) {
    const char* between = "";
    for (const Box& box : boxes) {
        std::printf("%s%s|%d|%d|%d %d %d %d", between, box.text.c_str(), static_cast<int>(box.index), Bits(box.score),
                    Bits(box.left), Bits(box.top), Bits(box.right), Bits(box.bottom));
        between = "; ";
    }
    std::puts("");
}

template <typename T>
static std::vector<T> Content(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)), {});
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
}

template <typename Call>
static void Refused(Call call) {
    try {
        call();
    } catch (const std::invalid_argument& error) {
        std::puts(error.what());
    }
}

int main(int, char** arguments) {
    Ort::Env environment(ORT_LOGGING_LEVEL_ERROR, "app");
    const std::string folder = arguments[1], models = folder + "/bundle/models/";
    const auto pixels = Content<std::uint8_t>(folder + "/picture");
    const std::uint8_t* rgba = pixels.data();
    const std::int64_t height = 77, width = 101;
    const char* between = "";
    const Classifier classifier(environment, (models + "classifier.ort").c_str());
    for (const Label& label : classifier.Classify(rgba, height, width)) {
        std::printf("%s%s|%d", between, label.text.c_str(), Bits(label.score));
        between = "; ";
    }
    std::puts("");
    Print(Detector(environment, (models + "detector.ort").c_str()).Detect(rgba, height, width));
    Print(Labelled(environment, (models + "labelled.ort").c_str()).Detect(rgba, height, width));
    std::puts(Reader(environment, (models + "reader.ort").c_str()).Read(rgba, height, width).c_str());
    Print(Embedder(environment, (models + "embedder.ort").c_str()).Embed(rgba, height, width));
    const Segmenter segmenter(open_segmenter(environment, (models + "segmenter.ort").c_str()));
    const Mask mask = segmenter.Segment(rgba, height, width);
    std::printf("%dx%d", static_cast<int>(mask.width), static_cast<int>(mask.height));
    for (std::int64_t y = 0; y < mask.height; ++y)
        for (std::int64_t x = 0; x < mask.width; ++x) std::printf(" %d", mask.At(x, y));
    std::puts("");
    const Scorer scorer(environment, (models + "scorer.ort").c_str());
    Print(std::vector<float>{scorer.Probability(rgba, height, width)});

    const std::string tokenizer = folder + "/bundle/tokenizers/words.tokens";
    const Words words(environment, (models + "words.ort").c_str(), tokenizer);
    const Sentences sentences(environment, (models + "sentences.ort").c_str(), tokenizer);
    for (int i = 2; arguments[i]; ++i) Print(words.Embed(arguments[i]));
    for (int i = 2; arguments[i]; ++i) Print(sentences.Embed(arguments[i]));

    const auto sound = Content<std::int16_t>(folder + "/sound");
    const std::vector<SAMPLE> samples(sound.begin(), sound.end());
    Vad::Stream stream(Vad(environment, (models + "vad.ort").c_str()));
    for (std::size_t size : {CHUNKS, samples.size()}) {
        std::vector<float> values;
        for (std::size_t at = 0, count; at < samples.size(); at += count) {
            count = std::min(size ? size : 1 + at * 7919 % 23, samples.size() - at);
            const auto more = stream.Push(samples.data() + at, count);
            values.insert(values.end(), more.begin(), more.end());
        }
        Print(values);
        stream.Reset();
    }

    Refused([&] { scorer.Probability(rgba, 0, width); });
    Refused([&] { scorer.Run(pixels, {1, height, width + 1, 4}); });
    Refused([&] { words.Run(std::vector<std::int64_t>{1}, {1, 1}, std::vector<std::int64_t>{1, 1}, {1, -2}); });
}
"""


@pytest.mark.parametrize(("kind", "sample"), [(SampleKind.INT16, "std::int16_t"), (SampleKind.FLOAT, "float")])
def test_each_class_gives_the_bits_of_python(tmp_path: Path, kind: SampleKind, sample: str) -> None:
    made = every_answer.made(tmp_path, kind)
    code = ort_mobile("release", "snippet", made.bundle, "--for", "cpp").out
    chunks = ", ".join(f"std::size_t{{{size}}}" for size in every_answer.CHUNKS)
    app = built(tmp_path, code + MAIN.replace("SAMPLE", sample).replace("CHUNKS", chunks))
    command = [str(app), str(tmp_path), *every_answer.TEXTS]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    *lines, picture, pixels, ids = ran.stdout.splitlines()
    assert lines == list(made.lines)
    assert picture == "the picture has no pixels: it is 101 by 0"
    assert pixels == "the input image has 31108 elements, which do not fill the shape [1, 77, 102, 4]"
    assert ids == "the input mask has 2 elements, which do not fill the shape [1, -2]"
