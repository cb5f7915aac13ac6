/* Stand-in for cuRAND: the provider is linked to the library but calls none of its functions. */
#include "common.h"

EXPORT int curandGetVersion(int *version) {
    *version = 10400;
    return failure_of(__func__);
}
