"""The vectors of a bundle, given to the Swift classes of its models with the real ONNX Runtime."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from device_runner import library as ort_library
from pipeline.config.app_data import AnswerKind
from pipeline.features.apple.sources import swift_class
from tests.consumers import swift
from tests.consumers.test_swift import APP
from tests.features.apple.test_package import released
from tests.features.vectors import program

MODULE = "DemoAppModels"
MAIN = """\
import DemoAppModels
import Foundation

func bits(_ values: [Float]) -> String { values.map { "|\\(Int32(bitPattern: $0.bitPattern))" }.joined() }

func content<Element>(_ path: String) throws -> [Element] {
    let data = try Data(contentsOf: URL(fileURLWithPath: path))
    return data.withUnsafeBytes { Array($0.bindMemory(to: Element.self)) }
}

func text(_ path: String) throws -> String { String(decoding: try content(path) as [UInt8], as: UTF8.self) }

func vectors(_ give: ([String]) throws -> Void) throws {
    for line in try text(CommandLine.arguments[2]).split(separator: "\\n") {
        try give(line.split(separator: " ").map(String.init))
        print("#")
    }
}

switch CommandLine.arguments[1] {
@CASES@
default: fatalError("no model is called \\(CommandLine.arguments[1])")
}
"""
CASE = """\
case "@NAME@":
    let model = try @MODEL@()
    try vectors { words in
        @CODE@
    }"""

FLOATS = "for number in {} {{ print(bits([number])) }}"
PICTURE = "rgba: content(words[2]), height: Int(words[1])!, width: Int(words[0])!"
CODE: Mapping[AnswerKind, str] = {
    AnswerKind.CLASSES: f"for label in try model.classify({PICTURE}) {{ print(label.text + bits([label.score])) }}",
    AnswerKind.BOXES: f"""for box in try model.detect({PICTURE}) {{
            print(box.text + bits([box.score, box.left, box.top, box.right, box.bottom]) + "|\\(box.index)")
        }}""",
    AnswerKind.TEXT: f"print(try model.read({PICTURE}))",
    AnswerKind.EMBEDDING: FLOATS.format(f"try model.embed({PICTURE})"),
    AnswerKind.MASK: f"""let mask = try model.segment({PICTURE})
        for y in 0..<mask.height {{
            print((0..<mask.width).map {{ "\\(mask.at(x: $0, y: y)) " }}.joined())
        }}""",
    AnswerKind.PROBABILITY: f"print(bits([try model.probability({PICTURE})]))",
}
EMBEDDED = FLOATS.format("try model.embed(text(words[2]))")
SOUND = FLOATS.format("try model.stream().push(content(words[2]))")


def equal(bundle: Path) -> dict[str, int]:
    """How many vectors of each model of a bundle its class gives again in all bits; fails for one that it does not.

    The classes are built once, by Swift's package manager on Linux, with the library of the release that made the
    vectors.
    """
    work = bundle.parent / "work"
    (work / "app/Sources/app").mkdir(parents=True)
    shutil.copytree(bundle, work / "bundle")
    models = program.of_bundle(work / "bundle")
    (release,) = {vectors.kept.ort_release for vectors in models}
    (work / "app/Package.swift").write_text(APP)
    main = MAIN.replace("@CASES@", "\n".join(map(_case, models)))
    (work / "app/Sources/app/main.swift").write_text(main, "utf-8")
    released(work, "--telemetry", "off", "--name", MODULE, "--onnxruntime", release)
    failed = swift.build(work, release, onnxruntime_library=ort_library.resolve(f"jvm:{release}").path)
    assert not failed, failed
    return {vectors.kept.model: _equal(work, vectors) for vectors in models}


def _case(vectors: program.Vectors) -> str:
    signature, name = vectors.signature, vectors.kept.model
    code = SOUND
    if signature.text:
        code = EMBEDDED
    elif signature.takes_image and signature.answer:
        code = CODE[signature.answer]
    return CASE.replace("@NAME@", name).replace("@MODEL@", swift_class(name, MODULE)).replace("@CODE@", code)


def _equal(work: Path, vectors: program.Vectors) -> int:
    file = vectors.written()
    file.write_text(file.read_text("utf-8").replace(str(work), "/build"), "utf-8")
    ran = swift.run(work, "/build/app/.build/debug/app", vectors.kept.model, f"/build/{file.name}")
    assert ran.returncode == 0, ran.stderr
    return vectors.equal(ran.stdout.splitlines())
