/* The part of ONNX Runtime's C API that the probe calls: places in the function table and signatures.
 *
 * The table only ever grows, so an index holds for every later release (a test compiles static assertions of all of
 * them, with their signatures, against a real header). Enumerations without negative values travel as `unsigned`,
 * which is what compilers give them. */
#ifndef ORT_TABLE_H
#define ORT_TABLE_H

#include <stddef.h>
#include <stdint.h>

typedef struct OrtEnv OrtEnv;
typedef struct OrtStatus OrtStatus;
typedef struct OrtMemoryInfo OrtMemoryInfo;
typedef struct OrtSession OrtSession;
typedef struct OrtValue OrtValue;
typedef struct OrtRunOptions OrtRunOptions;
typedef struct OrtTypeInfo OrtTypeInfo;
typedef struct OrtTensorTypeAndShapeInfo OrtTensorTypeAndShapeInfo;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtAllocator OrtAllocator;
typedef struct OrtArenaCfg OrtArenaCfg;
typedef struct OrtThreadingOptions OrtThreadingOptions;
typedef struct OrtHardwareDevice OrtHardwareDevice;
typedef struct OrtEpDevice OrtEpDevice;
typedef struct OrtIoBinding OrtIoBinding;
typedef struct OrtCUDAProviderOptionsV2 OrtCUDAProviderOptionsV2;
typedef struct OrtTensorRTProviderOptionsV2 OrtTensorRTProviderOptionsV2;
typedef struct OrtSyncStream OrtSyncStream;
typedef struct OrtEpAssignedSubgraph OrtEpAssignedSubgraph;
typedef struct OrtEpAssignedNode OrtEpAssignedNode;

/* The lowest version that has everything in ORT_CALLS: SessionOptionsAppendExecutionProvider came with 1.12. Asking for
 * no more than that makes every later library answer. ORT_PLUGIN_CALLS are asked for where a plugin is named only. */
#define ORT_VERSION_NEEDED 12u
#define ORT_VERSION_OF_PLUGINS 24u

typedef void (*ort_function)(void);
typedef const struct OrtCustomHandleType *ort_thread;
typedef void (*ort_work)(void *);
typedef ort_thread (*ort_create_thread)(void *, ort_work, void *);
typedef void (*ort_logger)(void *, unsigned, const char *, const char *, const char *, const char *);

struct ort_base {
    const ort_function *(*get_api)(uint32_t version);
    const char *(*get_version)(void);
};

/* X(name, index, result, parameters) */
#define ORT_CALLS(X) \
    X(GetErrorCode, 1, unsigned, (const OrtStatus *)) \
    X(GetErrorMessage, 2, const char *, (const OrtStatus *)) \
    X(CreateEnvWithCustomLogger, 4, OrtStatus *, (ort_logger, void *, unsigned, const char *, OrtEnv **)) \
    X(DisableTelemetryEvents, 6, OrtStatus *, (const OrtEnv *)) \
    X(CreateSession, 7, OrtStatus *, (const OrtEnv *, const char *, const OrtSessionOptions *, OrtSession **)) \
    X(CreateSessionFromArray, 8, OrtStatus *, \
      (const OrtEnv *, const void *, size_t, const OrtSessionOptions *, OrtSession **)) \
    X(Run, 9, OrtStatus *, \
      (OrtSession *, const OrtRunOptions *, const char *const *, const OrtValue *const *, size_t, \
       const char *const *, size_t, OrtValue **)) \
    X(CreateSessionOptions, 10, OrtStatus *, (OrtSessionOptions **)) \
    X(SetSessionExecutionMode, 13, OrtStatus *, (OrtSessionOptions *, unsigned)) \
    X(EnableProfiling, 14, OrtStatus *, (OrtSessionOptions *, const char *)) \
    X(EnableMemPattern, 16, OrtStatus *, (OrtSessionOptions *)) \
    X(DisableMemPattern, 17, OrtStatus *, (OrtSessionOptions *)) \
    X(EnableCpuMemArena, 18, OrtStatus *, (OrtSessionOptions *)) \
    X(DisableCpuMemArena, 19, OrtStatus *, (OrtSessionOptions *)) \
    X(SetSessionGraphOptimizationLevel, 23, OrtStatus *, (OrtSessionOptions *, unsigned)) \
    X(SetIntraOpNumThreads, 24, OrtStatus *, (OrtSessionOptions *, int)) \
    X(SetInterOpNumThreads, 25, OrtStatus *, (OrtSessionOptions *, int)) \
    X(RegisterCustomOpsLibrary, 29, OrtStatus *, (OrtSessionOptions *, const char *, void **)) \
    X(SessionGetInputCount, 30, OrtStatus *, (const OrtSession *, size_t *)) \
    X(SessionGetOutputCount, 31, OrtStatus *, (const OrtSession *, size_t *)) \
    X(SessionGetInputTypeInfo, 33, OrtStatus *, (const OrtSession *, size_t, OrtTypeInfo **)) \
    X(SessionGetOutputTypeInfo, 34, OrtStatus *, (const OrtSession *, size_t, OrtTypeInfo **)) \
    X(SessionGetInputName, 36, OrtStatus *, (const OrtSession *, size_t, OrtAllocator *, char **)) \
    X(CreateRunOptions, 39, OrtStatus *, (OrtRunOptions **)) \
    X(SessionGetOutputName, 37, OrtStatus *, (const OrtSession *, size_t, OrtAllocator *, char **)) \
    X(CreateTensorAsOrtValue, 48, OrtStatus *, (OrtAllocator *, const int64_t *, size_t, unsigned, OrtValue **)) \
    X(CreateTensorWithDataAsOrtValue, 49, OrtStatus *, \
      (const OrtMemoryInfo *, void *, size_t, const int64_t *, size_t, unsigned, OrtValue **)) \
    X(IsTensor, 50, OrtStatus *, (const OrtValue *, int *)) \
    X(GetTensorMutableData, 51, OrtStatus *, (OrtValue *, void **)) \
    X(FillStringTensor, 52, OrtStatus *, (OrtValue *, const char *const *, size_t)) \
    X(GetStringTensorDataLength, 53, OrtStatus *, (const OrtValue *, size_t *)) \
    X(GetStringTensorContent, 54, OrtStatus *, (const OrtValue *, void *, size_t, size_t *, size_t)) \
    X(CastTypeInfoToTensorInfo, 55, OrtStatus *, (const OrtTypeInfo *, const OrtTensorTypeAndShapeInfo **)) \
    X(GetTensorElementType, 60, OrtStatus *, (const OrtTensorTypeAndShapeInfo *, unsigned *)) \
    X(GetDimensionsCount, 61, OrtStatus *, (const OrtTensorTypeAndShapeInfo *, size_t *)) \
    X(GetDimensions, 62, OrtStatus *, (const OrtTensorTypeAndShapeInfo *, int64_t *, size_t)) \
    X(GetSymbolicDimensions, 63, OrtStatus *, (const OrtTensorTypeAndShapeInfo *, const char **, size_t)) \
    X(GetTensorTypeAndShape, 65, OrtStatus *, (const OrtValue *, OrtTensorTypeAndShapeInfo **)) \
    X(CreateCpuMemoryInfo, 69, OrtStatus *, (int, int, OrtMemoryInfo **)) \
    X(AllocatorFree, 76, OrtStatus *, (OrtAllocator *, void *)) \
    X(GetAllocatorWithDefaultOptions, 78, OrtStatus *, (OrtAllocator **)) \
    X(ReleaseEnv, 92, void, (OrtEnv *)) \
    X(ReleaseStatus, 93, void, (OrtStatus *)) \
    X(ReleaseMemoryInfo, 94, void, (OrtMemoryInfo *)) \
    X(ReleaseSession, 95, void, (OrtSession *)) \
    X(ReleaseValue, 96, void, (OrtValue *)) \
    X(ReleaseRunOptions, 97, void, (OrtRunOptions *)) \
    X(ReleaseTypeInfo, 98, void, (OrtTypeInfo *)) \
    X(ReleaseTensorTypeAndShapeInfo, 99, void, (OrtTensorTypeAndShapeInfo *)) \
    X(ReleaseSessionOptions, 100, void, (OrtSessionOptions *)) \
    X(SessionEndProfiling, 110, OrtStatus *, (OrtSession *, OrtAllocator *, char **)) \
    X(DisablePerSessionThreads, 120, OrtStatus *, (OrtSessionOptions *)) \
    X(CreateThreadingOptions, 121, OrtStatus *, (OrtThreadingOptions **)) \
    X(ReleaseThreadingOptions, 122, void, (OrtThreadingOptions *)) \
    X(AddFreeDimensionOverrideByName, 124, OrtStatus *, (OrtSessionOptions *, const char *, int64_t)) \
    X(GetAvailableProviders, 125, OrtStatus *, (char ***, int *)) \
    X(ReleaseAvailableProviders, 126, OrtStatus *, (char **, int)) \
    X(AddSessionConfigEntry, 130, OrtStatus *, (OrtSessionOptions *, const char *, const char *)) \
    X(CreateAllocator, 131, OrtStatus *, (const OrtSession *, const OrtMemoryInfo *, OrtAllocator **)) \
    X(ReleaseAllocator, 132, void, (OrtAllocator *)) \
    X(RunWithBinding, 133, OrtStatus *, (OrtSession *, const OrtRunOptions *, const OrtIoBinding *)) \
    X(CreateIoBinding, 134, OrtStatus *, (OrtSession *, OrtIoBinding **)) \
    X(ReleaseIoBinding, 135, void, (OrtIoBinding *)) \
    X(BindInput, 136, OrtStatus *, (OrtIoBinding *, const char *, const OrtValue *)) \
    X(BindOutput, 137, OrtStatus *, (OrtIoBinding *, const char *, const OrtValue *)) \
    X(CreateAndRegisterAllocator, 144, OrtStatus *, (OrtEnv *, const OrtMemoryInfo *, const OrtArenaCfg *)) \
    X(SetGlobalIntraOpNumThreads, 147, OrtStatus *, (OrtThreadingOptions *, int)) \
    X(SetGlobalInterOpNumThreads, 148, OrtStatus *, (OrtThreadingOptions *, int)) \
    X(CreateEnvWithCustomLoggerAndGlobalThreadPools, 151, OrtStatus *, \
      (ort_logger, void *, unsigned, const char *, const OrtThreadingOptions *, OrtEnv **)) \
    X(AddRunConfigEntry, 165, OrtStatus *, (OrtRunOptions *, const char *, const char *)) \
    X(SessionOptionsAppendExecutionProvider_TensorRT_V2, 170, OrtStatus *, \
      (OrtSessionOptions *, const OrtTensorRTProviderOptionsV2 *)) \
    X(CreateTensorRTProviderOptions, 171, OrtStatus *, (OrtTensorRTProviderOptionsV2 **)) \
    X(UpdateTensorRTProviderOptions, 172, OrtStatus *, \
      (OrtTensorRTProviderOptionsV2 *, const char *const *, const char *const *, size_t)) \
    X(ReleaseTensorRTProviderOptions, 174, void, (OrtTensorRTProviderOptionsV2 *)) \
    X(SessionOptionsSetCustomCreateThreadFn, 196, OrtStatus *, (OrtSessionOptions *, ort_create_thread)) \
    X(SessionOptionsSetCustomJoinThreadFn, 198, OrtStatus *, (OrtSessionOptions *, void (*)(ort_thread))) \
    X(SetGlobalCustomCreateThreadFn, 199, OrtStatus *, (OrtThreadingOptions *, ort_create_thread)) \
    X(SetGlobalCustomJoinThreadFn, 201, OrtStatus *, (OrtThreadingOptions *, void (*)(ort_thread))) \
    X(SessionOptionsAppendExecutionProvider_CUDA_V2, 204, OrtStatus *, \
      (OrtSessionOptions *, const OrtCUDAProviderOptionsV2 *)) \
    X(CreateCUDAProviderOptions, 205, OrtStatus *, (OrtCUDAProviderOptionsV2 **)) \
    X(UpdateCUDAProviderOptions, 206, OrtStatus *, \
      (OrtCUDAProviderOptionsV2 *, const char *const *, const char *const *, size_t)) \
    X(ReleaseCUDAProviderOptions, 208, void, (OrtCUDAProviderOptionsV2 *)) \
    X(SessionOptionsAppendExecutionProvider, 216, OrtStatus *, \
      (OrtSessionOptions *, const char *, const char *const *, const char *const *, size_t)) \
    ORT_PLUGIN_CALLS(X)

#define ORT_PLUGIN_CALLS(X) \
    X(MemoryInfoGetDeviceType, 225, void, (const OrtMemoryInfo *, unsigned *)) \
    X(RegisterExecutionProviderLibrary, 301, OrtStatus *, (OrtEnv *, const char *, const char *)) \
    X(UnregisterExecutionProviderLibrary, 302, OrtStatus *, (OrtEnv *, const char *)) \
    X(GetEpDevices, 303, OrtStatus *, (const OrtEnv *, const OrtEpDevice *const **, size_t *)) \
    X(SessionOptionsAppendExecutionProvider_V2, 304, OrtStatus *, \
      (OrtSessionOptions *, OrtEnv *, const OrtEpDevice *const *, size_t, const char *const *, const char *const *, \
       size_t)) \
    X(HardwareDevice_Type, 307, unsigned, (const OrtHardwareDevice *)) \
    X(EpDevice_EpName, 312, const char *, (const OrtEpDevice *)) \
    X(EpDevice_EpVendor, 313, const char *, (const OrtEpDevice *)) \
    X(EpDevice_Device, 316, const OrtHardwareDevice *, (const OrtEpDevice *)) \
    X(SessionGetMemoryInfoForInputs, 380, OrtStatus *, (const OrtSession *, const OrtMemoryInfo **, size_t)) \
    X(SessionGetMemoryInfoForOutputs, 381, OrtStatus *, (const OrtSession *, const OrtMemoryInfo **, size_t)) \
    X(CopyTensors, 386, OrtStatus *, \
      (const OrtEnv *, const OrtValue *const *, OrtValue *const *, OrtSyncStream *, size_t)) \
    X(Session_GetEpGraphAssignmentInfo, 407, OrtStatus *, \
      (const OrtSession *, const OrtEpAssignedSubgraph *const **, size_t *)) \
    X(EpAssignedSubgraph_GetEpName, 408, OrtStatus *, (const OrtEpAssignedSubgraph *, const char **)) \
    X(EpAssignedSubgraph_GetNodes, 409, OrtStatus *, \
      (const OrtEpAssignedSubgraph *, const OrtEpAssignedNode *const **, size_t *))

#define ORT_INDEX(name, index, result, parameters) ORT_INDEX_##name = index,
enum ort_index { ORT_CALLS(ORT_INDEX) };

#define ORT_TYPE(name, index, result, parameters) typedef result(*ort_##name) parameters;
ORT_CALLS(ORT_TYPE)

/* A call through the table: ORT(table, ReleaseStatus)(status). */
#define ORT(table, name) ((ort_##name)(table)[ORT_INDEX_##name])

enum { ORT_DEVICE_ALLOCATOR = 0, ORT_ARENA_ALLOCATOR = 1, ORT_DEFAULT_MEMORY = 0 };

/* ONNX's numbers of element types, as the table's functions use them. */
enum element {
    ELEMENT_FLOAT = 1,
    ELEMENT_UINT8,
    ELEMENT_INT8,
    ELEMENT_UINT16,
    ELEMENT_INT16,
    ELEMENT_INT32,
    ELEMENT_INT64,
    ELEMENT_STRING,
    ELEMENT_BOOL,
    ELEMENT_FLOAT16,
    ELEMENT_DOUBLE,
    ELEMENT_UINT32,
    ELEMENT_UINT64,
    ELEMENT_BFLOAT16 = 16
};

#endif
