/* Kernels: their names, their launches, and what is asked about them. Part of cudart.c. */
#pragma once

/* Names of kernels by the address of their function on the host: a hash table with open addressing. */
typedef struct {
    const void *function;
    const char *name;
} kernel_entry;

static kernel_entry *kernels;
static size_t kernel_count, kernel_capacity;
static pthread_mutex_t kernels_lock = PTHREAD_MUTEX_INITIALIZER;

static kernel_entry *kernel_slot(const void *function) {
    size_t slot = ((uintptr_t)function >> 4) * 0x9e3779b97f4a7c15ull & (kernel_capacity - 1);
    while (kernels[slot].function && kernels[slot].function != function) slot = (slot + 1) & (kernel_capacity - 1);
    return &kernels[slot];
}

static void name_kernel(const void *function, const char *name) {
    pthread_mutex_lock(&kernels_lock);
    if (2 * kernel_count >= kernel_capacity) {
        kernel_entry *old = kernels;
        size_t old_capacity = kernel_capacity;
        kernel_capacity = old_capacity ? 2 * old_capacity : 1 << 15;
        if (!(kernels = calloc(kernel_capacity, sizeof *kernels))) abort();
        for (size_t i = 0; i < old_capacity; i++)
            if (old[i].function) *kernel_slot(old[i].function) = old[i];
        free(old);
    }
    kernel_entry *slot = kernel_slot(function);
    kernel_count += !slot->function;
    *slot = (kernel_entry){function, name};
    pthread_mutex_unlock(&kernels_lock);
}

static const char *kernel_name(const void *function) {
    const char *name = NULL;
    pthread_mutex_lock(&kernels_lock);
    if (kernel_capacity) name = kernel_slot(function)->name;
    pthread_mutex_unlock(&kernels_lock);
    return name ? name : "unregistered";
}

static int fits(dim3 grid, dim3 threads, size_t shared) {
    return grid.x && grid.y && grid.z && grid.x <= GRID_X && grid.y <= GRID_YZ && grid.z <= GRID_YZ && threads.x
           && threads.y && threads.z && (uint64_t)threads.x * threads.y * threads.z <= THREADS_PER_BLOCK
           && threads.z <= BLOCK_Z && shared <= SHARED_PER_BLOCK_OPT_IN;
}

static int launch(const char *function, const void *kernel, dim3 grid, dim3 threads, size_t shared,
                  const void *stream) {
    int error = error_of(function);
    if (!error && getenv("CUDA_STAND_IN_NO_KERNELS")) error = NO_KERNEL_IMAGE;
    if (!error && !fits(grid, threads, shared)) error = INVALID_CONFIGURATION;
    log_event("kernel", "name=%s\tgrid=%u,%u,%u\tblock=%u,%u,%u\tshared=%zu\tstream=%d\terror=%d",
              kernel_name(kernel), grid.x, grid.y, grid.z, threads.x, threads.y, threads.z, shared,
              stream_number(stream), error);
    return result(error);
}

EXPORT void **__cudaRegisterFatBinary(void *binary) {
    (void)binary;
    static void *handle;
    return &handle;
}

EXPORT void __cudaRegisterFatBinaryEnd(void **binary) { (void)binary; }

EXPORT void __cudaUnregisterFatBinary(void **binary) { (void)binary; }

EXPORT void __cudaRegisterVar(void **binary, char *host, char *address, const char *name, int external, size_t size,
                              int constant, int global) {
    (void)binary, (void)host, (void)address, (void)name, (void)external, (void)size, (void)constant, (void)global;
}

EXPORT void __cudaRegisterFunction(void **binary, const char *host, char *device, const char *name, int thread_limit,
                                   void *thread_id, void *block_id, void *block_size, void *grid_size, int *warp) {
    (void)binary, (void)device, (void)thread_limit, (void)thread_id, (void)block_id, (void)block_size;
    (void)grid_size, (void)warp;
    name_kernel(host, name);
}

/* kernel<<<grid, block, shared, stream>>>(…) pushes the four, and the kernel's function on the host pops them. */
typedef struct {
    dim3 grid, threads;
    size_t shared;
    void *stream;
} configuration;

static __thread configuration pushed[8];
static __thread int pushed_count;

EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 threads, size_t shared, void *stream) {
    if (pushed_count == sizeof pushed / sizeof *pushed) return 1;
    pushed[pushed_count++] = (configuration){grid, threads, shared, stream};
    return 0;
}

EXPORT int __cudaPopCallConfiguration(dim3 *grid, dim3 *threads, size_t *shared, void *stream) {
    if (!pushed_count) return result(INVALID_VALUE);
    configuration top = pushed[--pushed_count];
    *grid = top.grid;
    *threads = top.threads;
    *shared = top.shared;
    *(void **)stream = top.stream;
    return SUCCESS;
}

EXPORT int __cudaGetKernel(const void **kernel, const void *function) {
    *kernel = function;
    return SUCCESS;
}

EXPORT int __cudaLaunchKernel(const void *kernel, dim3 grid, dim3 threads, void **arguments, size_t shared,
                              void *stream) {
    (void)arguments;
    return launch("cudaLaunchKernel", kernel, grid, threads, shared, stream);
}

EXPORT int cudaLaunchKernel(const void *kernel, dim3 grid, dim3 threads, void **arguments, size_t shared,
                            void *stream) {
    (void)arguments;
    return launch("cudaLaunchKernel", kernel, grid, threads, shared, stream);
}

EXPORT int cudaLaunchCooperativeKernel(const void *kernel, dim3 grid, dim3 threads, void **arguments, size_t shared,
                                       void *stream) {
    (void)arguments;
    return launch("cudaLaunchKernel", kernel, grid, threads, shared, stream);
}

/* struct cudaLaunchConfig_t, without the attributes at its end. */
typedef struct {
    dim3 grid, threads;
    size_t shared;
    void *stream;
} launch_configuration;

EXPORT int cudaLaunchKernelExC(const launch_configuration *given, const void *kernel, void **arguments) {
    (void)arguments;
    return launch("cudaLaunchKernel", kernel, given->grid, given->threads, given->shared, given->stream);
}

EXPORT int cudaLibraryLoadData(void **library, const void *code, void *options, void **values, unsigned count,
                               void *library_options, void **library_values, unsigned library_count) {
    (void)code, (void)options, (void)values, (void)count;
    (void)library_options, (void)library_values, (void)library_count;
    NEEDS_CARD;
    *library = calloc(1, 64);
    return SUCCESS;
}

EXPORT int cudaLibraryGetKernel(void **kernel, void *library, const char *name) {
    (void)library;
    NEEDS_CARD;
    *kernel = calloc(1, 16);
    name_kernel(*kernel, strdup(name));
    return SUCCESS;
}

/* struct cudaFuncAttributes up to the last field that is set here, and the room for the rest. */
typedef struct {
    size_t shared, constant, local;
    int max_threads, registers, ptx, binary, cache_constant, max_dynamic_shared, rest[64 - 6];
} function_attributes;

EXPORT int cudaFuncGetAttributes(void *out, const void *kernel) {
    (void)kernel;
    NEEDS_CARD;
    if (getenv("CUDA_STAND_IN_NO_KERNELS")) return result(NO_KERNEL_IMAGE);
    function_attributes attributes = {.max_threads = THREADS_PER_BLOCK, .registers = 32, .ptx = 90, .binary = 90,
                                      .max_dynamic_shared = SHARED_PER_BLOCK};
    memcpy(out, &attributes, offsetof(function_attributes, rest));
    return SUCCESS;
}

EXPORT int cudaFuncSetAttribute(const void *kernel, int attribute, int value) {
    (void)kernel, (void)attribute, (void)value;
    NEEDS_CARD;
    return result(getenv("CUDA_STAND_IN_NO_KERNELS") ? NO_KERNEL_IMAGE : SUCCESS);
}

EXPORT int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *count, const void *kernel, int threads,
                                                                  size_t shared, unsigned flags) {
    (void)kernel, (void)flags;
    NEEDS_CARD;
    int by_threads = threads > 0 ? THREADS_PER_PROCESSOR / threads : 0;
    int by_shared = shared ? (int)(SHARED_PER_PROCESSOR / (shared + SHARED_RESERVED)) : BLOCKS_PER_PROCESSOR;
    *count = by_threads < by_shared ? by_threads : by_shared;
    if (*count > BLOCKS_PER_PROCESSOR) *count = BLOCKS_PER_PROCESSOR;
    return SUCCESS;
}
