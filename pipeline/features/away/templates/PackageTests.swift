import XCTest

/// Starts the app once for each turn, so that each has a process of its own. A turn that crashed the app is noted as lost
/// when the app is started again, and costs one start more.
final class PackageTests: XCTestCase {
    func testTurns() {
        executionTimeAllowance = {{ all_seconds | number }}
        let app = XCUIApplication()
        app.launchArguments = ["--turns", "1"]
        for turn in 1...{{ turns | number }} {
            app.launch()
            if !app.wait(for: .notRunning, timeout: {{ turn_seconds | number }}) {
                print("start \(turn) did not end, and is ended")
                app.terminate()
            }
        }
    }
}
