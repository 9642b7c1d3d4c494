import Foundation
import PackageRunner

// turns PACKAGE DOCUMENTS [MOST]: what the app does, for computers.
let words = CommandLine.arguments
guard words.count > 2 else { fatalError("usage: turns PACKAGE DOCUMENTS [MOST]") }
let runner = try PackageRunner(package: URL(fileURLWithPath: words[1]), documents: URL(fileURLWithPath: words[2]))
exit(runner.run(most: words.count > 3 ? UInt64(words[3])! : .max))
