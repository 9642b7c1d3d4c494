"""The tokenizer of Swift classes, compiled by Swift's own compiler, against the library."""

from pathlib import Path

import pytest

from pipeline.release import source_code
from tests.consumers import swift
from tests.features.app_data import twins, vocabularies

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
