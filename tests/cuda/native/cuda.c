/* Stand-in for the driver: how many cards there are. */
#include "common.h"

enum { NO_DEVICE = 100, INVALID_DEVICE = 101 };

EXPORT int cuInit(unsigned flags) {
    (void)flags;
    int failure = failure_of(__func__);
    return failure ? failure : card_count() ? 0 : NO_DEVICE;
}

EXPORT int cuDriverGetVersion(int *version) {
    *version = getenv("CUDA_STAND_IN_OLD_DRIVER") ? 12040 : CUDA_MAJOR * 1000;
    return failure_of(__func__);
}

EXPORT int cuDeviceGetCount(int *count) {
    *count = card_count();
    return failure_of(__func__);
}

EXPORT int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return ordinal < card_count() ? failure_of(__func__) : INVALID_DEVICE;
}

EXPORT int cuDeviceGetName(char *name, int size, int device) {
    (void)device;
    snprintf(name, (size_t)size, "Stand-in for an H100");
    return failure_of(__func__);
}

EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    *value = attribute == 75 ? 9 : 0; /* the compute capability, 9.0, is attributes 75 and 76 */
    return failure_of(__func__);
}

EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    (void)device;
    *bytes = (size_t)setting("CUDA_STAND_IN_MEMORY", 80L << 30);
    return failure_of(__func__);
}

static int describe(int error, const char **text) {
    *text = error == NO_DEVICE ? "CUDA_ERROR_NO_DEVICE" : error ? "CUDA_ERROR_UNKNOWN" : "CUDA_SUCCESS";
    return 0;
}

EXPORT int cuGetErrorName(int error, const char **text) { return describe(error, text); }

EXPORT int cuGetErrorString(int error, const char **text) { return describe(error, text); }
