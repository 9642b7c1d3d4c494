import CProbe
import Foundation

/// Runs the turns of a package, each once. It may be cut at any moment, and goes on in another process.
public struct PackageRunner {
    /// A session is continued on its own device only.
    public struct OtherDevice: Error {}

    private final class Outcome: @unchecked Sendable {
        var code: Int32 = 2
    }

    let home: URL

    /// `package` has turns, requests and files; what comes of them goes to the folder `session` of a folder in `documents`
    /// that the package's digest names.
    public init(package: URL, documents: URL) throws {
        let digest = try String(contentsOf: package.appendingPathComponent("package"), encoding: .utf8)
        home = documents.appendingPathComponent(String(digest.prefix({{ home_digits | number }})))
        let session = home.appendingPathComponent("session")
        try FileManager.default.createDirectory(at: session, withIntermediateDirectories: true)
        try FileManager.default.createDirectory(at: home.appendingPathComponent("compiled"), withIntermediateDirectories: true)
        // Requests name files by their path from the folder of the session; each version of an app lies elsewhere.
        for name in ["turns", "requests", "files"] {
            let link = home.appendingPathComponent(name)
            try? FileManager.default.removeItem(at: link)
            try FileManager.default.createSymbolicLink(at: link, withDestinationURL: package.appendingPathComponent(name))
        }
        func keep(_ name: String, _ text: String) throws {
            let file = session.appendingPathComponent(name)
            if !FileManager.default.fileExists(atPath: file.path) {
                try text.write(to: file, atomically: true, encoding: .utf8)
            }
        }
        try keep("device", Device.facts)
        guard try String(contentsOf: session.appendingPathComponent("device"), encoding: .utf8) == Device.facts else {
            throw OtherDevice()
        }
        try keep("package", digest)
        try keep("session", UUID().uuidString.lowercased())
    }

    /// Runs at most so many turns in this process, in a thread of its own; the exit code of the probe's `turns`.
    public func run(most: UInt64 = .max) -> Int32 {
        let done = DispatchSemaphore(value: 0)
        let outcome = Outcome()
        let thread = Thread { [path = home.path] in
            path.withCString { folder in
                var order = turns_order(
                    folder: folder, wait_seconds: Limits.waitSeconds, most: most, write_state: writeState)
                outcome.code = run_turns(&order)
            }
            done.signal()
        }
        #if canImport(Darwin)
        thread.qualityOfService = .userInitiated
        #endif
        thread.stackSize = 8 << 20
        thread.start()
        done.wait()
        return outcome.code
    }
}

/// Notes the state in the folder of the session, which is the current one; whether it is fit to begin a turn.
private let writeState: @convention(c) (UnsafePointer<CChar>?) -> Bool = { file in
    let state = Device.state
    if let file { try? state.text.write(toFile: String(cString: file), atomically: false, encoding: .utf8) }
    return state.isFit
}
