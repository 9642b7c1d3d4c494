"""The vectors of a bundle, given to the C++ class of its model with the real ONNX Runtime."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

from device_runner import library as ort_library
from pipeline.config.app_data import AnswerKind
from pipeline.features.android.package import java_class
from tests.command import ort_mobile
from tests.features.android.jvm import fetched
from tests.features.languages.test_snippet import built
from tests.features.vectors import program

MAIN = """
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>

static int Bits(float value) {
    int bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

static std::string Text(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string((std::istreambuf_iterator<char>(file)), {});
}

template <typename T>
static std::vector<T> Content(const std::string& path) {
    const std::string bytes = Text(path);
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
}

static void Given(const @MODEL@& model, const std::vector<std::string>& words) {
    const std::int64_t width = std::stoll(words[0]), height = std::stoll(words[1]);
    @CODE@
}

int main(int, char** arguments) {
    Ort::Env environment(ORT_LOGGING_LEVEL_ERROR, "app");
    const @MODEL@ model(environment, arguments[1]@TOKENIZER@);
    std::ifstream lines(arguments[2]);
    for (std::string line; std::getline(lines, line);) {
        std::istringstream parts(line);
        Given(model, std::vector<std::string>(std::istream_iterator<std::string>(parts), {}));
        std::puts("#");
    }
}
"""

FLOATS = 'for (float number : {}) std::printf("|%d\\n", Bits(number));'
PIXELS = "const auto pixels = Content<std::uint8_t>(words[2]);\n    "
CODE: Mapping[AnswerKind, str] = {
    AnswerKind.CLASSES: """for (const Label& label : model.Classify(pixels.data(), height, width))
        std::printf("%s|%d\\n", label.text.c_str(), Bits(label.score));""",
    AnswerKind.BOXES: """for (const Box& box : model.Detect(pixels.data(), height, width))
        std::printf("%s|%d|%d|%d|%d|%d|%d\\n", box.text.c_str(), Bits(box.score), Bits(box.left), Bits(box.top),
                    Bits(box.right), Bits(box.bottom), static_cast<int>(box.index));""",
    AnswerKind.TEXT: "std::puts(model.Read(pixels.data(), height, width).c_str());",
    AnswerKind.EMBEDDING: FLOATS.format("model.Embed(pixels.data(), height, width)"),
    AnswerKind.MASK: """const Mask mask = model.Segment(pixels.data(), height, width);
    for (std::int64_t y = 0; y < mask.height; ++y, std::puts(""))
        for (std::int64_t x = 0; x < mask.width; ++x) std::printf("%d ", static_cast<int>(mask.At(x, y)));""",
    AnswerKind.PROBABILITY: 'std::printf("|%d\\n", Bits(model.Probability(pixels.data(), height, width)));',
}
SOUND = """const auto samples = Content<std::int16_t>(words[2]);
    @MODEL@::Stream stream(model);
    """ + FLOATS.format("stream.Push(samples.data(), samples.size())")


def equal(bundle: Path, code: str = "") -> int:
    """As that of `jvm`, in C++ on Linux with the library of the release that made the vectors."""
    (vectors,) = program.of_bundle(bundle)
    kept, signature = vectors.kept, vectors.signature
    tokenizer = ""
    if signature.text:
        tokenizer = f', "{bundle / signature.text.file}"'
        code = FLOATS.format("model.Embed(Text(words[2]))")
    elif signature.takes_image and signature.answer:
        code = PIXELS + CODE[signature.answer]
    fetched(f"jvm:{kept.ort_release}")
    library = ort_library.resolve(f"jvm:{kept.ort_release}").path
    main = MAIN.replace("@CODE@", code or SOUND).replace("@MODEL@", java_class(kept.model))
    snippet = ort_mobile("release", "snippet", bundle, "--for", "cpp").out
    app = built(bundle.parent, snippet + main.replace("@TOKENIZER@", tokenizer), library=library)
    command = [str(app), str(bundle / kept.file), str(vectors.written())]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return vectors.equal(ran.stdout.splitlines())
