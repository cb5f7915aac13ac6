/* Stand-in for cuBLAS: logs the shapes of products and how they were to be computed (cublas_api.h of CUDA 13). */
#include "common.h"

/* What cublasCreate_v2 gives out. */
typedef struct {
    int math_mode;
    void *stream;
} blas_handle;

EXPORT int cublasCreate_v2(blas_handle **handle) { return generated_create(__func__, (void **)handle); }

EXPORT int cublasSetStream_v2(blas_handle *handle, void *stream) {
    handle->stream = stream;
    return failure_of(__func__);
}

EXPORT int cublasSetMathMode(blas_handle *handle, int mode) {
    handle->math_mode = mode;
    return failure_of(__func__);
}

EXPORT int cublasGetMathMode(blas_handle *handle, int *mode) {
    *mode = handle->math_mode;
    return failure_of(__func__);
}

EXPORT const char *cublasGetStatusName(int status) {
    switch (status) {
    case 0: return "CUBLAS_STATUS_SUCCESS";
    case 1: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case 3: return "CUBLAS_STATUS_ALLOC_FAILED";
    case 7: return "CUBLAS_STATUS_INVALID_VALUE";
    case 8: return "CUBLAS_STATUS_ARCH_MISMATCH";
    case 13: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case 14: return "CUBLAS_STATUS_INTERNAL_ERROR";
    case 15: return "CUBLAS_STATUS_NOT_SUPPORTED";
    default: return "unknown cuBLAS status";
    }
}

EXPORT const char *cublasGetStatusString(int status) { return cublasGetStatusName(status); }

enum { R_32F = 0, R_64F = 1, COMPUTE_32F = 68, COMPUTE_64F = 70 }; /* of cudaDataType and cublasComputeType_t */

typedef struct {
    int transpose_a, transpose_b, m, n, k, batch, a, b, c, compute;
} product;

static int multiply(const char *name, const blas_handle *handle, product p) {
    log_event("gemm",
              "name=%s\tm=%d\tn=%d\tk=%d\tbatch=%d\ttranspose_a=%d\ttranspose_b=%d\ta=%d\tb=%d\tc=%d\tcompute=%d"
              "\tmath=%d\tstream=%d",
              name, p.m, p.n, p.k, p.batch, p.transpose_a, p.transpose_b, p.a, p.b, p.c, p.compute,
              handle->math_mode, stream_number(handle->stream));
    return failure_of(name);
}

typedef const void *in;
typedef long long stride;

EXPORT int cublasGemmEx(blas_handle *handle, int ta, int tb, int m, int n, int k, in alpha, in a, int a_type, int lda,
                        in b, int b_type, int ldb, in beta, void *c, int c_type, int ldc, int compute,
                        int algorithm) {
    (void)alpha, (void)a, (void)lda, (void)b, (void)ldb, (void)beta, (void)c, (void)ldc, (void)algorithm;
    return multiply(__func__, handle, (product){ta, tb, m, n, k, 1, a_type, b_type, c_type, compute});
}

EXPORT int cublasGemmStridedBatchedEx(blas_handle *handle, int ta, int tb, int m, int n, int k, in alpha, in a,
                                      int a_type, int lda, stride sa, in b, int b_type, int ldb, stride sb, in beta,
                                      void *c, int c_type, int ldc, stride sc, int batch, int compute,
                                      int algorithm) {
    (void)alpha, (void)a, (void)lda, (void)sa, (void)b, (void)ldb, (void)sb, (void)beta, (void)c, (void)ldc;
    (void)sc, (void)algorithm;
    return multiply(__func__, handle, (product){ta, tb, m, n, k, batch, a_type, b_type, c_type, compute});
}

EXPORT int cublasGemmBatchedEx(blas_handle *handle, int ta, int tb, int m, int n, int k, in alpha, in a, int a_type,
                               int lda, in b, int b_type, int ldb, in beta, in c, int c_type, int ldc, int batch,
                               int compute, int algorithm) {
    (void)alpha, (void)a, (void)lda, (void)b, (void)ldb, (void)beta, (void)c, (void)ldc, (void)algorithm;
    return multiply(__func__, handle, (product){ta, tb, m, n, k, batch, a_type, b_type, c_type, compute});
}

/* The three forms of each product of one type. */
#define PRODUCTS_OF(LETTER, TYPE, COMPUTE)                                                                            \
    EXPORT int cublas##LETTER##gemm_v2(blas_handle *handle, int ta, int tb, int m, int n, int k, in alpha, in a,      \
                                       int lda, in b, int ldb, in beta, void *c, int ldc) {                           \
        (void)alpha, (void)a, (void)lda, (void)b, (void)ldb, (void)beta, (void)c, (void)ldc;                          \
        return multiply(__func__, handle, (product){ta, tb, m, n, k, 1, TYPE, TYPE, TYPE, COMPUTE});                  \
    }                                                                                                                 \
    EXPORT int cublas##LETTER##gemmStridedBatched(blas_handle *handle, int ta, int tb, int m, int n, int k, in alpha, \
                                                  in a, int lda, stride sa, in b, int ldb, stride sb, in beta,        \
                                                  void *c, int ldc, stride sc, int batch) {                           \
        (void)alpha, (void)a, (void)lda, (void)sa, (void)b, (void)ldb, (void)sb, (void)beta, (void)c, (void)ldc;      \
        (void)sc;                                                                                                     \
        return multiply(__func__, handle, (product){ta, tb, m, n, k, batch, TYPE, TYPE, TYPE, COMPUTE});              \
    }                                                                                                                 \
    EXPORT int cublas##LETTER##gemmBatched(blas_handle *handle, int ta, int tb, int m, int n, int k, in alpha, in a,  \
                                           int lda, in b, int ldb, in beta, in c, int ldc, int batch) {               \
        (void)alpha, (void)a, (void)lda, (void)b, (void)ldb, (void)beta, (void)c, (void)ldc;                          \
        return multiply(__func__, handle, (product){ta, tb, m, n, k, batch, TYPE, TYPE, TYPE, COMPUTE});              \
    }

PRODUCTS_OF(S, R_32F, COMPUTE_32F)
PRODUCTS_OF(D, R_64F, COMPUTE_64F)
