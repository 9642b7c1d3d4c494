/* The part of ONNX Runtime's C API that the claims provider needs: places in its tables, signatures, and the structures
 * that a provider fills, down to the last member that release 1.23 has. The tables and structures only ever grow, and
 * ONNX Runtime reads no member that came after `version` (a test checks all of this against a real header). */
#ifndef EP_TABLE_H
#define EP_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Release 1.23 is the first that lets a provider of another library claim nodes. */
#define EP_API_VERSION 23u

typedef struct OrtEpDevice OrtEpDevice;
typedef struct OrtEpGraphSupportInfo OrtEpGraphSupportInfo;
typedef struct OrtGraph OrtGraph;
typedef struct OrtHardwareDevice OrtHardwareDevice;
typedef struct OrtKeyValuePairs OrtKeyValuePairs;
typedef struct OrtLogger OrtLogger;
typedef struct OrtNode OrtNode;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtStatus OrtStatus;
typedef struct OrtValueInfo OrtValueInfo;
typedef struct OrtEp OrtEp;
typedef struct OrtEpFactory OrtEpFactory;

typedef void (*ort_function)(void);

typedef struct OrtApiBase {
    const ort_function *(*GetApi)(uint32_t version);
    const char *(*GetVersionString)(void);
} OrtApiBase;

/* X(name, index, result, parameters) */
#define ORT_CALLS(X) \
    X(CreateStatus, 0, OrtStatus *, (unsigned, const char *)) \
    X(ReleaseStatus, 93, void, (OrtStatus *)) \
    X(GetSessionConfigEntry, 238, OrtStatus *, (const OrtSessionOptions *, const char *, char *, size_t *)) \
    X(GetValueInfoName, 289, OrtStatus *, (const OrtValueInfo *, const char **)) \
    X(HardwareDevice_Type, 307, unsigned, (const OrtHardwareDevice *)) \
    X(GetEpApi, 317, const ort_function *, (void)) \
    X(Graph_GetNumNodes, 344, OrtStatus *, (const OrtGraph *, size_t *)) \
    X(Graph_GetNodes, 345, OrtStatus *, (const OrtGraph *, const OrtNode **, size_t)) \
    X(Node_GetOperatorType, 350, OrtStatus *, (const OrtNode *, const char **)) \
    X(Node_GetNumOutputs, 355, OrtStatus *, (const OrtNode *, size_t *)) \
    X(Node_GetOutputs, 356, OrtStatus *, (const OrtNode *, const OrtValueInfo **, size_t))

#define EP_CALLS(X) \
    X(CreateEpDevice, 0, OrtStatus *, \
      (OrtEpFactory *, const OrtHardwareDevice *, const OrtKeyValuePairs *, const OrtKeyValuePairs *, OrtEpDevice **)) \
    X(EpGraphSupportInfo_AddSingleNode, 3, OrtStatus *, (OrtEpGraphSupportInfo *, const OrtNode *))

#define TABLE_INDEX(name, index, result, parameters) INDEX_##name = index,
enum table_index { ORT_CALLS(TABLE_INDEX) EP_CALLS(TABLE_INDEX) };

#define TABLE_TYPE(name, index, result, parameters) typedef result(*call_##name) parameters;
ORT_CALLS(TABLE_TYPE)
EP_CALLS(TABLE_TYPE)

/* A call through a table: CALL(table, ReleaseStatus)(status). */
#define CALL(table, name) ((call_##name)(table)[INDEX_##name])

enum { STATUS_FAIL = 1, HARDWARE_CPU = 0 };

/* Members that are never filled have the type of any function. */
struct OrtEp {
    uint32_t version;
    const char *(*GetName)(const OrtEp *);
    OrtStatus *(*GetCapability)(OrtEp *, const OrtGraph *, OrtEpGraphSupportInfo *);
    OrtStatus *(*Compile)(OrtEp *, const OrtGraph **, const OrtNode **, size_t, void **, OrtNode **);
    void (*ReleaseNodeComputeInfos)(OrtEp *, void **, size_t);
    ort_function GetPreferredDataLayout, ShouldConvertDataLayoutForOp, SetDynamicOptions, OnRunStart, OnRunEnd,
        CreateAllocator, CreateSyncStreamForDevice, GetCompiledModelCompatibilityInfo;
};

struct OrtEpFactory {
    uint32_t version;
    const char *(*GetName)(const OrtEpFactory *);
    const char *(*GetVendor)(const OrtEpFactory *);
    OrtStatus *(*GetSupportedDevices)(OrtEpFactory *, const OrtHardwareDevice *const *, size_t, OrtEpDevice **, size_t,
                                      size_t *);
    OrtStatus *(*CreateEp)(OrtEpFactory *, const OrtHardwareDevice *const *, const OrtKeyValuePairs *const *, size_t,
                           const OrtSessionOptions *, const OrtLogger *, OrtEp **);
    void (*ReleaseEp)(OrtEpFactory *, OrtEp *);
    uint32_t (*GetVendorId)(const OrtEpFactory *);
    const char *(*GetVersion)(const OrtEpFactory *);
    ort_function ValidateCompiledModelCompatibilityInfo;
    OrtStatus *(*CreateAllocator)(OrtEpFactory *, const void *, const OrtKeyValuePairs *, void **);
    void (*ReleaseAllocator)(OrtEpFactory *, void *);
    OrtStatus *(*CreateDataTransfer)(OrtEpFactory *, void **);
    bool (*IsStreamAware)(const OrtEpFactory *);
    ort_function CreateSyncStreamForDevice;
};

#endif
