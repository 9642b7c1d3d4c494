/// What a device must be like before a turn begins, and how long a turn waits for that.
enum Limits {
    static let waitSeconds: UInt64 = {{ wait_seconds | number }}
    /// In Android's words: 0 none, 1 light, 3 severe, 4 critical.
    static let thermalStatus = {{ thermal_status | number }}
    static let batteryPercent = {{ battery_percent | number }}
    static let charging: Bool? = {% if charging is none %}nil{% else %}{{ charging | truth }}{% endif %}

}
