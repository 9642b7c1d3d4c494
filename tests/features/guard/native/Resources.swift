// What Swift's package manager makes for a target with resources.
import Foundation

extension Foundation.Bundle {
    static let module = Bundle(path: ProcessInfo.processInfo.environment["RESOURCES"]!)!
}
