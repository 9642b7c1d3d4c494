"""The classes of Swift in an app, with the real ONNX Runtime: answers, texts and a stream, as Python gives them."""

import shutil
from pathlib import Path

import pytest

from pipeline.config.app_data import SampleKind
from pipeline.release import source_code
from tests.consumers import swift
from tests.consumers.test_swift import APP
from tests.features.app_data import every_answer, twins
from tests.features.apple.test_package import released

pytestmark = pytest.mark.consumer

MAIN = """\
import DemoAppModels
import Foundation

func bits(_ values: [Float]) -> String {
    values.map { String(Int32(bitPattern: $0.bitPattern)) }.joined(separator: " ")
}

func row(_ box: Box) -> String {
    "\\(box.text)|\\(box.index)|\\(bits([box.score]))|\\(bits([box.left, box.top, box.right, box.bottom]))"
}

func content<Element>(_ name: String) throws -> [Element] {
    let data = try Data(contentsOf: URL(fileURLWithPath: "/build/\\(name)"))
    return data.withUnsafeBytes { Array($0.bindMemory(to: Element.self)) }
}

let rgba: [UInt8] = try content("picture")
let (height, width) = (77, 101)
let labels = try Classifier().classify(rgba: rgba, height: height, width: width)
print(labels.map { "\\($0.text)|\\(bits([$0.score]))" }.joined(separator: "; "))
print(try Detector().detect(rgba: rgba, height: height, width: width).map(row).joined(separator: "; "))
print(try Labelled().detect(rgba: rgba, height: height, width: width).map(row).joined(separator: "; "))
print(try Reader().read(rgba: rgba, height: height, width: width))
print(bits(try Embedder().embed(rgba: rgba, height: height, width: width)))
let mask = try Segmenter().segment(rgba: rgba, height: height, width: width)
let places = (0..<mask.height).flatMap { y in (0..<mask.width).map { x in String(mask.at(x: x, y: y)) } }
print("\\(mask.width)x\\(mask.height) \\(places.joined(separator: " "))")
let scorer = try Scorer()
print(bits([try scorer.probability(rgba: rgba, height: height, width: width)]))

let texts = CommandLine.arguments.dropFirst()
let (words, sentences) = (try Words(), try Sentences())
for text in texts { print(bits(try words.embed(text))) }
for text in texts { print(bits(try sentences.embed(text))) }

let sound: [Int16] = try content("sound")
let samples = sound.map(Float.init)
let stream = try Vad().stream()
for size in [CHUNKS, samples.count] {
    var values: [Float] = []
    var at = 0
    while at < samples.count {
        let end = min(samples.count, at + (size > 0 ? size : 1 + at * 7919 % 23))
        values += try stream.push(Array(samples[at..<end]))
        at = end
    }
    print(bits(values))
    stream.reset()
}

do { _ = try scorer.probability(rgba: rgba, height: 0, width: width) } catch { print(error) }
do { _ = try scorer.run(rgba: rgba, height: height, width: width + 1) } catch { print(error) }
"""
IOS = {"platform": "ios", "ort_release": "1.24", "min_api_level": None, "min_os_version": "15.1"}


def test_each_class_gives_the_bits_of_python(tmp_path: Path) -> None:
    made = every_answer.made(tmp_path, SampleKind.FLOAT, **IOS)
    work = tmp_path / "work"
    (work / "app/Sources/app").mkdir(parents=True)
    (work / "app/Package.swift").write_text(APP)
    main = MAIN.replace("CHUNKS", ", ".join(map(str, every_answer.CHUNKS)))
    (work / "app/Sources/app/main.swift").write_text(main, "utf-8")
    for name in ("picture", "sound"):
        shutil.copy(tmp_path / name, work)
    released(tmp_path, "--telemetry", "off", package="work/package")
    failed = swift.build(work, "1.24.2")
    assert not failed, failed
    ran = swift.run(work, "/build/app/.build/debug/app", *every_answer.TEXTS)
    assert ran.returncode == 0, ran.stderr
    *lines, picture, pixels = ran.stdout.splitlines()
    assert lines == list(made.lines)
    assert picture == "the picture has no pixels: it is 101 by 0"
    assert pixels == "the input rgba has 31108 elements, which do not fill the shape [77, 102, 4]"


GRAPHICS = """\
@_exported import Foundation

public final class CGImage {
    public let width = 2, height = 2
    public init() {}
}

public final class CGColorSpace {
    public static let sRGB = "sRGB"
    public init?(name: String) { if name != CGColorSpace.sRGB { return nil } }
}

public enum CGImageAlphaInfo: UInt32 { case premultipliedLast = 1 }

public final class CGContext {
    nonisolated(unsafe) public static var isThere = true
    let bytes: UnsafeMutableRawBufferPointer

    public init?(
        data: UnsafeMutableRawPointer?, width: Int, height: Int, bitsPerComponent: Int, bytesPerRow: Int,
        space: CGColorSpace, bitmapInfo: UInt32
    ) {
        guard CGContext.isThere, bitsPerComponent == 8, bytesPerRow == 4 * width, bitmapInfo == 1 else { return nil }
        bytes = UnsafeMutableRawBufferPointer(start: data, count: bytesPerRow * height)
    }

    public func draw(_ image: CGImage, in rectangle: CGRect) {
        guard rectangle == CGRect(x: 0, y: 0, width: image.width, height: image.height) else { return }
        for place in bytes.indices { bytes[place] = UInt8(place + 1) }
    }
}
"""
DRAWN = """\
import CoreGraphics

enum DemoError: Error { case noPixels(height: Int, width: Int), notDrawn(height: Int, width: Int) }
enum Runtime { static func check(count: Int, shape: [Int], name: String) throws {} }

let image = CGImage()
print(try Pixels.packed(Pixels.of(image), height: 2, width: 2, channels: 3))
CGContext.isThere = false
do { print(try Pixels.of(image)) } catch { print(error) }
"""
COMPILED = """
cd /build
swiftc -emit-library -emit-module -module-name CoreGraphics -o libCoreGraphics.so CoreGraphics.swift
swiftc -I . -L . -lCoreGraphics -o drawn Pixels.swift main.swift
LD_LIBRARY_PATH=/build ./drawn
"""


def test_an_image_becomes_the_bytes_that_a_context_of_its_size_draws(tmp_path: Path) -> None:
    """What stands in for Apple's framework has its names and signatures, and draws numbers."""
    work = tmp_path / "work"
    work.mkdir()
    source = source_code.render_source("pipeline.features.apple", "Pixels.swift", **twins.COMMON)
    for name, text in (("Pixels", source), ("CoreGraphics", GRAPHICS), ("main", DRAWN)):
        (work / f"{name}.swift").write_text(text, "utf-8")
    ran = swift.run(work, "sh", "-ec", COMPILED)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        "[1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15]",
        "notDrawn(height: 2, width: 2)",
    ]
