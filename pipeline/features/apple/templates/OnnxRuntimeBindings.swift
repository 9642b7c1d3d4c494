// The part of ONNX Runtime's Objective-C API that the classes of the models use, over the C API: a build of ONNX Runtime
// as an xcframework has the C API alone. Names and signatures are those of ONNX Runtime's own Swift package.
import COnnxRuntime
import Foundation

private let api: UnsafePointer<OrtApi> = {
    guard let found = OrtGetApiBase()?.pointee.GetApi?(UInt32(ORT_API_VERSION)) else {
        fatalError("this ONNX Runtime is older than the headers that it was built into the package with")
    }
    return found
}()

/// The release of ONNX Runtime.
public func ORTVersion() -> String? {
    OrtGetApiBase()?.pointee.GetVersionString().map { String(cString: $0) }
}

/// A failure of ONNX Runtime, in its own words.
public struct ORTError: LocalizedError {
    public let code: Int
    public let message: String

    public var errorDescription: String? { message }
}

private func check(_ status: OpaquePointer?) throws {
    guard let status else { return }
    defer { api.pointee.ReleaseStatus(status) }
    let message = api.pointee.GetErrorMessage(status).map { String(cString: $0) } ?? ""
    throw ORTError(code: Int(api.pointee.GetErrorCode(status).rawValue), message: message)
}

/// What `make` puts into a pointer; ONNX Runtime gives either that or a status.
private func made(_ make: (inout OpaquePointer?) -> OpaquePointer?) throws -> OpaquePointer {
    var pointer: OpaquePointer?
    try check(make(&pointer))
    guard let pointer else { throw ORTError(code: 1, message: "nothing was made") }
    return pointer
}

/// What a library of custom operators exports as RegisterCustomOps.
public typealias ORTCAPIRegisterCustomOpsFnPtr =
    @convention(c) (OpaquePointer?, UnsafePointer<OrtApiBase>?) -> OpaquePointer?

public enum ORTLoggingLevel: Int32, Sendable {
    case verbose, info, warning, error, fatal
}

public enum ORTGraphOptimizationLevel: Int32, Sendable {
    case none = 0, basic = 1, extended = 2, layout = 3, all = 99
}

public enum ORTTensorElementDataType: Int32, Sendable {
    case undefined = 0, float = 1, uInt8 = 2, int8 = 3, int32 = 6, int64 = 7, string = 8, uInt32 = 12, uInt64 = 13
}

public final class ORTEnv: @unchecked Sendable {
    fileprivate let pointer: OpaquePointer

    public init(loggingLevel: ORTLoggingLevel) throws {
        let level = OrtLoggingLevel(rawValue: .init(loggingLevel.rawValue))
        pointer = try made { api.pointee.CreateEnv(level, "app", &$0) }
    }

    deinit { api.pointee.ReleaseEnv(pointer) }
}

public final class ORTRunOptions {
    fileprivate let pointer: OpaquePointer

    public init() throws {
        pointer = try made { api.pointee.CreateRunOptions(&$0) }
    }

    deinit { api.pointee.ReleaseRunOptions(pointer) }
}

public final class ORTSessionOptions {
    fileprivate let pointer: OpaquePointer

    public init() throws {
        pointer = try made { api.pointee.CreateSessionOptions(&$0) }
    }

    deinit { api.pointee.ReleaseSessionOptions(pointer) }

    public func setGraphOptimizationLevel(_ level: ORTGraphOptimizationLevel) throws {
        try check(api.pointee.SetSessionGraphOptimizationLevel(pointer, .init(rawValue: .init(level.rawValue))))
    }

    public func setIntraOpNumThreads(_ threads: Int32) throws {
        try check(api.pointee.SetIntraOpNumThreads(pointer, threads))
    }

    public func addConfigEntry(withKey key: String, value: String) throws {
        try check(api.pointee.AddSessionConfigEntry(pointer, key, value))
    }

    public func registerCustomOps(functionPointer: ORTCAPIRegisterCustomOpsFnPtr) throws {
        try check(functionPointer(pointer, OrtGetApiBase()))
    }

    public func appendExecutionProvider(_ name: String, providerOptions: [String: String]) throws {
        let pairs = providerOptions.sorted { $0.key < $1.key }
        let keys = pairs.map { UnsafePointer(strdup($0.key)) }
        let values = pairs.map { UnsafePointer(strdup($0.value)) }
        defer { (keys + values).forEach { free(UnsafeMutablePointer(mutating: $0)) } }
        try check(api.pointee.SessionOptionsAppendExecutionProvider(pointer, name, keys, values, pairs.count))
    }
}

/// Its session may be run by several threads.
public final class ORTSession: @unchecked Sendable {
    private let env: ORTEnv
    private let pointer: OpaquePointer

    public init(env: ORTEnv, modelPath: String, sessionOptions: ORTSessionOptions?) throws {
        self.env = env
        pointer = try made { api.pointee.CreateSession(env.pointer, modelPath, sessionOptions?.pointer, &$0) }
    }

    deinit { api.pointee.ReleaseSession(pointer) }

    public func run(
        withInputs inputs: [String: ORTValue], outputNames: Set<String>, runOptions: ORTRunOptions?
    ) throws -> [String: ORTValue] {
        let inputs = Array(inputs), outputNames = Array(outputNames)
        let names = inputs.map { UnsafePointer(strdup($0.key)) }
        let wanted = outputNames.map { UnsafePointer(strdup($0)) }
        defer { (names + wanted).forEach { free(UnsafeMutablePointer(mutating: $0)) } }
        let values = inputs.map { Optional($0.value.pointer) }
        var found = [OpaquePointer?](repeating: nil, count: outputNames.count)
        let status = api.pointee.Run(
            pointer, runOptions?.pointer, names, values, inputs.count, wanted, wanted.count, &found)
        let results = found.map { $0.map { ORTValue(pointer: $0, data: nil) } }
        try check(status)
        return Dictionary(uniqueKeysWithValues: zip(outputNames, results).compactMap { name, value in
            value.map { (name, $0) }
        })
    }
}

public final class ORTTensorTypeAndShapeInfo {
    public let elementType: ORTTensorElementDataType
    public let shape: [NSNumber]

    fileprivate init(_ pointer: OpaquePointer) throws {
        var type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED
        try check(api.pointee.GetTensorElementType(pointer, &type))
        var rank = 0
        try check(api.pointee.GetDimensionsCount(pointer, &rank))
        var axes = [Int64](repeating: 0, count: rank)
        try check(api.pointee.GetDimensions(pointer, &axes, rank))
        elementType = ORTTensorElementDataType(rawValue: Int32(type.rawValue)) ?? .undefined
        shape = axes.map { NSNumber(value: $0) }
    }
}

public final class ORTValue {
    fileprivate let pointer: OpaquePointer
    /// What the tensor's elements lie in, where the app made it.
    private let data: NSMutableData?

    fileprivate init(pointer: OpaquePointer, data: NSMutableData?) {
        self.pointer = pointer
        self.data = data
    }

    public convenience init(
        tensorData: NSMutableData, elementType: ORTTensorElementDataType, shape: [NSNumber]
    ) throws {
        var memory: OpaquePointer?
        try check(api.pointee.CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory))
        defer { api.pointee.ReleaseMemoryInfo(memory) }
        let axes = shape.map(\.int64Value)
        let type = ONNXTensorElementDataType(rawValue: .init(elementType.rawValue))
        let pointer = try made {
            api.pointee.CreateTensorWithDataAsOrtValue(
                memory, tensorData.mutableBytes, tensorData.length, axes, axes.count, type, &$0)
        }
        self.init(pointer: pointer, data: tensorData)
    }

    public convenience init(tensorStringData: [String], shape: [NSNumber]) throws {
        var allocator: UnsafeMutablePointer<OrtAllocator>?
        try check(api.pointee.GetAllocatorWithDefaultOptions(&allocator))
        let axes = shape.map(\.int64Value)
        let pointer = try made {
            api.pointee.CreateTensorAsOrtValue(allocator, axes, axes.count, ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING, &$0)
        }
        self.init(pointer: pointer, data: nil)
        let texts = tensorStringData.map { UnsafePointer(strdup($0)) }
        defer { texts.forEach { free(UnsafeMutablePointer(mutating: $0)) } }
        try check(api.pointee.FillStringTensor(pointer, texts, texts.count))
    }

    deinit { api.pointee.ReleaseValue(pointer) }

    public func tensorTypeAndShapeInfo() throws -> ORTTensorTypeAndShapeInfo {
        let info = try made { api.pointee.GetTensorTypeAndShape(pointer, &$0) }
        defer { api.pointee.ReleaseTensorTypeAndShapeInfo(info) }
        return try ORTTensorTypeAndShapeInfo(info)
    }

    /// The elements: those that the app gave, or a copy.
    public func tensorData() throws -> NSMutableData {
        if let data { return data }
        var bytes: UnsafeMutableRawPointer?
        try check(api.pointee.GetTensorMutableData(pointer, &bytes))
        let info = try tensorTypeAndShapeInfo()
        let size = info.shape.reduce(Self.size(of: info.elementType)) { $0 * $1.intValue }
        return NSMutableData(bytes: bytes, length: size)
    }

    public func tensorStringData() throws -> [String] {
        let count = try tensorTypeAndShapeInfo().shape.reduce(1) { $0 * $1.intValue }
        return try (0..<count).map { place in
            var size = 0
            try check(api.pointee.GetStringTensorElementLength(pointer, place, &size))
            var bytes = [UInt8](repeating: 0, count: size)
            try check(api.pointee.GetStringTensorElement(pointer, size, place, &bytes))
            return String(decoding: bytes, as: UTF8.self)
        }
    }

    private static func size(of type: ORTTensorElementDataType) -> Int {
        switch type {
        case .int8, .uInt8: return 1
        case .float, .int32, .uInt32: return 4
        case .int64, .uInt64: return 8
        case .undefined, .string: return 0
        }
    }
}
