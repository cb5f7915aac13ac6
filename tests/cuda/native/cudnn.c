/* Stand-in for cuDNN: calls are logged by their names (cudnn_graph.h, cudnn_ops.h, cudnn_cnn.h, cudnn_adv.h of 9). */
#include "common.h"

EXPORT size_t cudnnGetVersion(void) { return 91500; /* 9.15.0 */ }

EXPORT size_t cudnnGetCudartVersion(void) { return CUDA_MAJOR * 1000; }

EXPORT const char *cudnnGetErrorString(int status) {
    switch (status) {
    case 0: return "CUDNN_STATUS_SUCCESS";
    case 1001: return "CUDNN_STATUS_NOT_INITIALIZED";
    case 2000: return "CUDNN_STATUS_BAD_PARAM";
    case 3000: return "CUDNN_STATUS_NOT_SUPPORTED";
    case 4000: return "CUDNN_STATUS_INTERNAL_ERROR";
    case 5000: return "CUDNN_STATUS_EXECUTION_FAILED";
    default: return "unknown cuDNN status";
    }
}

EXPORT void cudnnGetLastErrorString(char *message, size_t size) {
    if (size) *message = 0;
}

typedef struct {
    void *stream;
} dnn_handle;

EXPORT int cudnnCreate(dnn_handle **handle) { return generated_create(__func__, (void **)handle); }

EXPORT int cudnnSetStream(dnn_handle *handle, void *stream) {
    handle->stream = stream;
    return generated_call(__func__);
}

EXPORT int cudnnGetStream(dnn_handle *handle, void **stream) {
    *stream = handle->stream;
    return generated_call(__func__);
}

/* No operation needs a workspace. */
EXPORT int cudnnGetReductionWorkspaceSize(void *handle, void *reduction, void *a, void *c, size_t *size) {
    (void)handle, (void)reduction, (void)a, (void)c;
    *size = 0;
    return generated_call(__func__);
}

EXPORT int cudnnGetReductionIndicesSize(void *handle, void *reduction, void *a, void *c, size_t *size) {
    (void)handle, (void)reduction, (void)a, (void)c;
    *size = 0;
    return generated_call(__func__);
}

EXPORT int cudnnGetConvolutionForwardWorkspaceSize(void *handle, void *x, void *w, void *convolution, void *y,
                                                   int algorithm, size_t *size) {
    (void)handle, (void)x, (void)w, (void)convolution, (void)y, (void)algorithm;
    *size = 0;
    return generated_call(__func__);
}

EXPORT int cudnnDropoutGetStatesSize(void *handle, size_t *size) {
    (void)handle;
    *size = 0;
    return generated_call(__func__);
}

EXPORT int cudnnBackendCreateDescriptor(int type, void **descriptor) {
    (void)type;
    return generated_create(__func__, descriptor);
}

/* Every graph of operations has one engine, which has no knobs and no notes and needs no memory. */
EXPORT int cudnnBackendGetAttribute(void *descriptor, int attribute, int type, int64_t requested, int64_t *count,
                                    void *elements) {
    enum { INT64 = 3, DESCRIPTOR = 15, INT32 = 23 }; /* CUDNN_TYPE_INT64, CUDNN_TYPE_BACKEND_DESCRIPTOR, … */
    enum { KNOBS = 1302 };                           /* CUDNN_ATTR_ENGINE_KNOB_INFO */
    (void)descriptor;
    int known = type == INT64 || type == INT32 || (type == DESCRIPTOR && attribute != KNOBS);
    if (count) *count = known;
    if (requested && elements && type == INT64) *(int64_t *)elements = 0;
    if (requested && elements && type == INT32) *(int32_t *)elements = 0;
    return generated_call(__func__);
}
