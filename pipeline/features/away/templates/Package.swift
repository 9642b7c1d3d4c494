// swift-tools-version: 5.9
import PackageDescription

let package = Package(
    name: "PackageRunner",
    platforms: [.iOS({{ lowest | swift_text }}), .macOS("14.0")],
    products: [.library(name: "PackageRunner", targets: ["PackageRunner"])],
{% if version %}
    dependencies: [.package(url: {{ repository | swift_text }}, exact: {{ version | swift_text }})],
{% endif %}
    targets: [
        .target(
            name: "CProbe",
{% if version %}
            dependencies: [.product(name: "onnxruntime", package: "onnxruntime-swift-package-manager", condition: .when(platforms: [.iOS]))],
{% else %}
            dependencies: [.target(name: "onnxruntime", condition: .when(platforms: [.iOS]))],
{% endif %}
            cSettings: [.define("PROBE_APP"), .define("_GNU_SOURCE")],
            linkerSettings: [
                .linkedLibrary("onnxruntime", .when(platforms: [.linux, .macOS])),
                .linkedLibrary("c++", .when(platforms: [.iOS])), .linkedFramework("CoreML", .when(platforms: [.iOS])), .linkedFramework("Foundation", .when(platforms: [.iOS])),
            ]
        ),
        .target(name: "PackageRunner", dependencies: ["CProbe"]),
        .executableTarget(name: "turns", dependencies: ["PackageRunner"]),
{% if not version %}
        .binaryTarget(name: "onnxruntime", path: "onnxruntime.xcframework"),
{% endif %}
    ],
    cLanguageStandard: .c11
)
