import PackageRunner
import SwiftUI

/// Runs turns while it is in front. With `--turns N` it runs N and ends; opened by hand it runs all in one process.
@main struct RunnerApp: App {
    @State private var text = "running; leave it in front"

    var body: some Scene {
        WindowGroup {
            Text(text).padding().onAppear {
                UIApplication.shared.isIdleTimerDisabled = true
                let words = ProcessInfo.processInfo.arguments
                let most = words.firstIndex(of: "--turns").flatMap { UInt64(words[words.index(after: $0)...].first ?? "") }
                Thread { end(with: run(most: most ?? .max), asked: most != nil) }.start()
            }
        }
    }

    private func run(most: UInt64) -> String {
        let documents = FileManager.default.urls(for: .documentDirectory, in: .userDomainMask)[0]
        do {
            let code = try PackageRunner(package: Bundle.main.resourceURL!, documents: documents).run(most: most)
            return code == 0 ? "all turns have ended: take the folder session home" : "the turns could not be run (\(code))"
        } catch {
            return "the turns could not be run: \(error)"
        }
    }

    private func end(with words: String, asked: Bool) {
        print(words)
        if asked { exit(0) }
        DispatchQueue.main.async { text = words }
    }
}
