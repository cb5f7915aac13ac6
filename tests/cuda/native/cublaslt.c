/* Stand-in for cuBLASLt: logs the shapes of products from the descriptors of their operands (cublasLt.h of CUDA 13). */
#include "common.h"

typedef struct {
    int type, batch;
    uint64_t rows, columns;
} layout;

typedef struct {
    int compute, transpose_a, transpose_b;
} operation;

EXPORT int cublasLtMatrixLayoutCreate(layout **out, int type, uint64_t rows, uint64_t columns, int64_t leading) {
    (void)leading;
    int failure = failure_of(__func__);
    if (failure) return failure;
    *out = calloc(1, sizeof **out);
    **out = (layout){type, 1, rows, columns};
    return 0;
}

EXPORT int cublasLtMatrixLayoutSetAttribute(layout *matrix, int attribute, const void *value, size_t size) {
    if (attribute == 5 && size == sizeof matrix->batch) /* CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT */
        memcpy(&matrix->batch, value, size);
    return failure_of(__func__);
}

EXPORT int cublasLtMatmulDescCreate(operation **out, int compute, int scale_type) {
    (void)scale_type;
    int failure = failure_of(__func__);
    if (failure) return failure;
    *out = calloc(1, sizeof **out);
    (*out)->compute = compute;
    return 0;
}

EXPORT int cublasLtMatmulDescSetAttribute(operation *descriptor, int attribute, const void *value, size_t size) {
    /* CUBLASLT_MATMUL_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSB */
    if (attribute == 3 && size == sizeof(int)) memcpy(&descriptor->transpose_a, value, size);
    if (attribute == 4 && size == sizeof(int)) memcpy(&descriptor->transpose_b, value, size);
    return failure_of(__func__);
}

/* cublasLtMatmulHeuristicResult_t */
typedef struct {
    uint64_t algorithm[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
} heuristic;

EXPORT int cublasLtMatmulAlgoGetHeuristic(void *handle, void *descriptor, void *a, void *b, void *c, void *d,
                                          void *preference, int wanted, heuristic *found, int *count) {
    (void)handle, (void)descriptor, (void)a, (void)b, (void)c, (void)d, (void)preference;
    log_event("call", "name=%s", __func__);
    *count = wanted > 0;
    if (wanted > 0) memset(found, 0, sizeof *found);
    return failure_of(__func__);
}

EXPORT int cublasLtMatmul(void *handle, const operation *descriptor, const void *alpha, const void *a,
                          const layout *a_layout, const void *b, const layout *b_layout, const void *beta,
                          const void *c, const layout *c_layout, void *d, const layout *d_layout,
                          const void *algorithm, void *workspace, size_t workspace_size, void *stream) {
    (void)handle, (void)alpha, (void)a, (void)b, (void)beta, (void)c, (void)c_layout, (void)d, (void)algorithm;
    (void)workspace, (void)workspace_size;
    log_event("gemm",
              "name=%s\tm=%d\tn=%d\tk=%d\tbatch=%d\ttranspose_a=%d\ttranspose_b=%d\ta=%d\tb=%d\tc=%d\tcompute=%d"
              "\tmath=0\tstream=%d",
              __func__, (int)d_layout->rows, (int)d_layout->columns,
              (int)(descriptor->transpose_a ? a_layout->rows : a_layout->columns), d_layout->batch,
              descriptor->transpose_a, descriptor->transpose_b, a_layout->type, b_layout->type, d_layout->type,
              descriptor->compute, stream_number(stream));
    return failure_of(__func__);
}
