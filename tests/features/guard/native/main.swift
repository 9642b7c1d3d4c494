// One launch of an app: it opens the model, runs it, and perhaps waits for the trials. What it says is for tests.
import Foundation

let given = ProcessInfo.processInfo.environment

func has(_ name: String) -> Bool { !(given[name] ?? "").isEmpty }

func say(_ line: String) {
    FileHandle.standardOutput.write((line + "\n").data(using: .utf8)!)
}

Guard.onEvent = { say("event \($0.json)") }
GuardPhone.given = ["system": given["SYSTEM"] ?? "", "chip": "Test T1", "boot": given["BOOT"] ?? "", "busy": given["BUSY"] ?? ""]
GuardAttempt.limitMilliseconds = Int(given["LIMIT"] ?? "") ?? 20_000
if let noise = Double(given["NOISE"] ?? "") { GuardRace.noise = noise }
GuardDeny.verifier = { payload, signature, _ in
    let digits = signature.map { String(format: "%02x", $0) }.joined()
    return given["SIGNATURE"] == ModelFile.digest(text: String(decoding: payload, as: UTF8.self)) + " " + digits
}
if has("RESET") { Guard.reset() }
if has("DENY") {
    do {
        try Guard.deny(FileManager.default.contents(atPath: given["DENY"]!) ?? Data())
        say("denied")
    } catch {
        say("refused \(error)")
    }
}
let start = Date()
var model: M? = has("NOW") ? try await M.openNow() : try M()
say("way \(model!.way)")
say("ms \(Int(Date().timeIntervalSince(start) * 1000))")
for _ in 0..<(Int(given["RUNS"] ?? "") ?? 0) {
    let output = try model!.run(x: (0..<64).map { Float($0) / 10 - 3 })
    let sum = output.y.enumerated().reduce(0.0) { $0 + Double($1.offset + 1) * Double($1.element) }
    say("sum \(String(format: "%.6f", sum))")
}
if has("WAIT") { say("choice \(await M.prepare().way)") }
for reason in model!.skipped { say("skipped \(reason)") }
model = nil
say("end")
_exit(0)  // as a system ends apps
