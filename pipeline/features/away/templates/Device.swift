import Foundation
#if canImport(UIKit)
import os
import UIKit
#endif

/// What an app can read of its device: KEY VALUE on a line each, without what the system does not tell.
enum Device {
    /// Which process a turn ran in: those of one share its memory and all that was loaded before.
    static let process = UUID().uuidString.lowercased()

    /// What does not change from one minute to the next.
    static var facts: String {
        var system = utsname()
        uname(&system)
        let machine = withUnsafeBytes(of: &system.machine) { String(decoding: $0.prefix { $0 != 0 }, as: UTF8.self) }
        let info = ProcessInfo.processInfo
        var lines = ["model \(machine)", "system \(info.operatingSystemVersionString)", "cores \(info.processorCount)", "memory \(info.physicalMemory)"]
        #if os(iOS)
        lines += ["platform ios", "abi arm64", "identity \(UIDevice.current.identifierForVendor?.uuidString ?? "")"]
        #elseif os(macOS)
        lines += ["platform macos", "abi \(machine)"]
        #else
        lines += ["platform linux", "abi \(machine)"]
        #endif
        return lines.joined(separator: "\n") + "\n"
    }

    struct State {
        var lines = ["process \(Device.process)"]
        var isFit = true
        var text: String { lines.joined(separator: "\n") + "\n" }
    }

    static var state: State {
        var state = State()
        #if canImport(Darwin)
        let info = ProcessInfo.processInfo
        let status = [0, 1, 3, 4][min(max(info.thermalState.rawValue, 0), 3)]
        state.lines += ["thermal \(status)", "low_power \(info.isLowPowerModeEnabled)", "quality_of_service \(qos_class_self().rawValue)"]
        state.isFit = status <= Limits.thermalStatus && !info.isLowPowerModeEnabled
        #endif
        #if os(iOS)
        state.lines += ["available \(os_proc_available_memory())"]
        UIDevice.current.isBatteryMonitoringEnabled = true
        let battery = UIDevice.current.batteryState
        if battery != .unknown {
            let percent = Int(UIDevice.current.batteryLevel * 100), charging = battery != .unplugged
            state.lines += ["battery \(percent)", "charging \(charging)"]
            state.isFit = state.isFit && percent >= Limits.batteryPercent && (Limits.charging ?? charging) == charging
        }
        #endif
        return state
    }
}
