"""The tokenizer of Swift classes, compiled by Swift's own compiler, against the library; and in a whole package."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from pipeline.config import ModelConfig
from pipeline.model.signature import TextTokens
from pipeline.release import source_code
from pipeline.release.bundle import make_bundle
from pipeline.release.reference_files import signature_of
from tests.consumers import swift
from tests.consumers.test_swift import APP
from tests.features.app_data import twins, vocabularies
from tests.features.app_data.test_text_job import SENTENCES, words
from tests.features.apple.samples import for_ios
from tests.features.apple.test_package import released
from tests.ort_models import convert

pytestmark = pytest.mark.consumer

MAIN = """\
import Foundation

enum DemoError: Error { case wrongFile(String, sha256: String) }
struct ModelFile {
    let sha256: String
    func path() throws -> String { sha256 }
    func verify(_ path: String) throws {}
}
let tokenizer = try Tokenizer(path: "/build/demo.tokens")
let all = try String(contentsOfFile: "/build/texts.bin", encoding: .utf8)
var lines = ""
for text in all.unicodeScalars.split(separator: "\\u{1}", omittingEmptySubsequences: false) {
    let ids = tokenizer.ids(String(text), most: Int(CommandLine.arguments[1])!)
    lines += ids.map(String.init).joined(separator: " ") + "\\n"
}
FileHandle.standardOutput.write(lines.data(using: .utf8)!)
"""


@pytest.mark.parametrize(("kind", "most", "behind"), [("bert", 128, "b"), ("bpe", 1 << 20, " b")])
def test_no_text_of_two_hundred_thousand_differs(tmp_path: Path, kind: str, most: int, behind: str) -> None:
    tokenizer, tokens = vocabularies.made(kind)
    given = list(vocabularies.all_texts(["model", "phone", "##s", "library"], behind))
    work = tmp_path / "work"
    work.mkdir()
    source = source_code.render_source("pipeline.features.apple", "Tokenizer.swift", **twins.COMMON)
    (work / "Tokenizer.swift").write_text(source, "utf-8")
    (work / "main.swift").write_text(MAIN, "utf-8")
    twins.written(tokens, given, work)
    built = swift.run(work, "swiftc", "-O", "-o", "/build/texts", "/build/Tokenizer.swift", "/build/main.swift")
    assert built.returncode == 0, built.stderr
    done = swift.run(work, "/build/texts", str(most))
    assert done.returncode == 0, done.stderr
    wanted = vocabularies.oracle(tokenizer, most)
    found = twins.numbers(done.stdout)
    assert len(found) == len(given) > 200_000
    assert not [text for text, ids in zip(given, found, strict=True) if ids != wanted(text)]


EMBED = """\
import DemoAppModels

let model = try M()
for sentence in CommandLine.arguments.dropFirst() {
    print(try model.embed(sentence).map { "\\($0)" }.joined(separator: " "))
}
"""


@pytest.mark.parametrize("length", ["n", "40"])
def test_a_package_makes_an_embedding_of_a_text(tmp_path: Path, length: str) -> None:
    tokenizer, tokens = vocabularies.made("bert")
    onnx.save(words(length), tmp_path / "words.onnx")
    file = convert(tmp_path / "words.onnx", tmp_path / "m.ort")
    text = TextTokens(
        file="tokenizers/m.tokens", algorithm="wordpiece", library="tokenizers", ids="ids", mask="mask", most=24
    )
    ships = for_ios()
    make_bundle(
        tmp_path / "bundle", name="Demo app", sources={ships.file: file, text.file: tokens}, ships=(ships,),
        made_with={}, evidence={}, models=(signature_of("m", file, ModelConfig(path=""), text=text),),
    )  # fmt: skip
    work = tmp_path / "work"
    (work / "app/Sources/app").mkdir(parents=True)
    (work / "app/Package.swift").write_text(APP)
    (work / "app/Sources/app/main.swift").write_text(EMBED, "utf-8")
    released(tmp_path, "--telemetry", "off", package="work/package")
    failed = swift.build(work, "1.24.2")
    assert not failed, failed
    ran = swift.run(work, "/build/app/.build/debug/app", *SENTENCES)
    assert ran.returncode == 0, ran.stderr
    session, ids_of = onnxruntime.InferenceSession(file.read_bytes()), vocabularies.oracle(tokenizer, 24)
    for line, sentence in zip(ran.stdout.splitlines(), SENTENCES, strict=True):
        ids = ids_of(sentence)
        filled = 40 - len(ids) if length == "40" else 0
        given = {
            "ids": np.array([[*ids, *[0] * filled]]),
            "mask": np.array([[*[1] * len(ids), *[0] * filled]]),
        }
        np.testing.assert_allclose(np.array(line.split(), np.float32), session.run(None, given)[0][0], rtol=1e-5)
