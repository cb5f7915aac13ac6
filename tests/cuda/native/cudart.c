/* Stand-in for the CUDA runtime: memory of the host stands for memory of the card, kernels compute nothing.

Everything happens at once and in order. Signatures and structs are those of cuda_runtime_api.h and driver_types.h of
CUDA 13 (PyPI: nvidia-cuda-runtime).
*/
#include "common.h"

#include <dlfcn.h>

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    MEMORY_ALLOCATION = 2,
    INVALID_CONFIGURATION = 9,
    INSUFFICIENT_DRIVER = 35,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    NO_KERNEL_IMAGE = 209,
};

typedef struct {
    unsigned x, y, z;
} dim3;

/* Errors. */

static __thread int last_error;
static __thread int current_device;

static int result(int error) {
    if (error) last_error = error;
    return error;
}

static int driver_error(void) {
    if (getenv("CUDA_STAND_IN_OLD_DRIVER")) return INSUFFICIENT_DRIVER;
    return card_count() ? SUCCESS : NO_DEVICE;
}

/* Error of a function that needs a card: asked for, or that of the driver. */
static int error_of(const char *name) {
    int failure = failure_of(name);
    return failure ? failure : driver_error();
}

/* First line of a function that needs a card: return its error, if there is one. */
#define NEEDS_CARD                        \
    do {                                  \
        int error_ = error_of(__func__);  \
        if (error_) return result(error_); \
    } while (0)

EXPORT int cudaGetLastError(void) {
    int error = last_error;
    last_error = SUCCESS;
    return error;
}

EXPORT int cudaPeekAtLastError(void) { return last_error; }

static const struct {
    int code;
    const char *name, *text;
} ERRORS[] = {
    {SUCCESS, "cudaSuccess", "no error"},
    {INVALID_VALUE, "cudaErrorInvalidValue", "invalid argument"},
    {MEMORY_ALLOCATION, "cudaErrorMemoryAllocation", "out of memory"},
    {INVALID_CONFIGURATION, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {INSUFFICIENT_DRIVER, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {NO_DEVICE, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {NO_KERNEL_IMAGE, "cudaErrorNoKernelImageForDevice",
     "no kernel image is available for execution on the device"},
    {700, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
};

EXPORT const char *cudaGetErrorName(int error) {
    for (size_t i = 0; i < sizeof ERRORS / sizeof *ERRORS; i++)
        if (ERRORS[i].code == error) return ERRORS[i].name;
    return "unrecognized error code";
}

EXPORT const char *cudaGetErrorString(int error) {
    for (size_t i = 0; i < sizeof ERRORS / sizeof *ERRORS; i++)
        if (ERRORS[i].code == error) return ERRORS[i].text;
    return "unrecognized error code";
}

/* Cards. */

/* A card with compute capability 9.0 (H100), by the numbers of its data sheet and of the CUDA programming guide. */
enum {
    COMPUTE_MAJOR = 9,
    COMPUTE_MINOR = 0,
    PROCESSORS = 132,
    WARP = 32,
    THREADS_PER_BLOCK = 1024,
    BLOCK_Z = 64,
    GRID_X = 0x7fffffff,
    GRID_YZ = 65535,
    THREADS_PER_PROCESSOR = 2048,
    BLOCKS_PER_PROCESSOR = 32,
    REGISTERS = 65536,
    SHARED_PER_BLOCK = 48 * 1024,
    SHARED_PER_BLOCK_OPT_IN = 227 * 1024,
    SHARED_PER_PROCESSOR = 228 * 1024,
    SHARED_RESERVED = 1024,
    L2_CACHE = 50 * 1024 * 1024,
};

static size_t card_memory(void) { return (size_t)setting("CUDA_STAND_IN_MEMORY", 80L << 30); }

EXPORT int cudaGetDeviceCount(int *count) {
    *count = 0;
    NEEDS_CARD;
    *count = card_count();
    return SUCCESS;
}

EXPORT int cudaSetDevice(int device) {
    NEEDS_CARD;
    if (device < 0 || device >= card_count()) return result(INVALID_DEVICE);
    current_device = device;
    return SUCCESS;
}

EXPORT int cudaGetDevice(int *device) {
    NEEDS_CARD;
    *device = current_device;
    return SUCCESS;
}

EXPORT int cudaDriverGetVersion(int *version) {
    /* 12.4 is too old for every runtime that these stand-ins are built for. */
    *version = getenv("CUDA_STAND_IN_OLD_DRIVER") ? 12040 : CUDA_MAJOR * 1000;
    return result(failure_of(__func__));
}

EXPORT int cudaRuntimeGetVersion(int *version) {
    *version = CUDA_MAJOR * 1000;
    return result(failure_of(__func__));
}

/* The fields of cudaDeviceProp up to the last one that is set here. Those between are named for their number. */
typedef struct {
    char name[256];
    char uuid[16], luid[8];
    unsigned luid_node_mask;
    size_t total_memory, shared_per_block;
    int registers_per_block, warp_size;
    size_t pitch;
    int threads_per_block, block_dimensions[3], grid_dimensions[3];
    size_t constant_memory;
    int major, minor;
    size_t texture_alignments[2];
    int processors, integrated, can_map_host_memory;
    int texture_and_surface_sizes[40];
    size_t surface_alignment;
    int concurrent_kernels, ecc, pci_bus, pci_device, pci_domain, tcc, copy_engines, unified_addressing;
    int memory_bus_bits, l2_cache, persisting_l2_cache, threads_per_processor, stream_priorities;
    int global_l1_cache, local_l1_cache;
    size_t shared_per_processor;
    int registers_per_processor, managed_memory, multi_board[2], native_atomics, pageable_access;
    int concurrent_managed_access, preemption, host_pointer_for_registered, cooperative_launch;
    size_t shared_per_block_opt_in;
    int page_tables[2], blocks_per_processor, access_policy_window;
    size_t shared_reserved;
} device_properties;

EXPORT int cudaGetDeviceProperties(void *out, int device) {
    NEEDS_CARD;
    if (device < 0 || device >= card_count()) return result(INVALID_DEVICE);
    device_properties *card = out;
    memset(card, 0, sizeof *card);
    snprintf(card->name, sizeof card->name, "Stand-in for an H100");
    card->total_memory = card_memory();
    card->shared_per_block = SHARED_PER_BLOCK;
    card->registers_per_block = card->registers_per_processor = REGISTERS;
    card->warp_size = WARP;
    card->pitch = 0x7fffffff;
    card->threads_per_block = card->block_dimensions[0] = card->block_dimensions[1] = THREADS_PER_BLOCK;
    card->block_dimensions[2] = BLOCK_Z;
    card->grid_dimensions[0] = GRID_X;
    card->grid_dimensions[1] = card->grid_dimensions[2] = GRID_YZ;
    card->constant_memory = 65536;
    card->major = COMPUTE_MAJOR;
    card->minor = COMPUTE_MINOR;
    card->texture_alignments[0] = card->surface_alignment = 512;
    card->texture_alignments[1] = 32;
    card->processors = PROCESSORS;
    card->can_map_host_memory = card->concurrent_kernels = card->ecc = card->unified_addressing = 1;
    card->pci_bus = device + 1;
    card->copy_engines = 3;
    card->memory_bus_bits = 5120;
    card->l2_cache = L2_CACHE;
    card->threads_per_processor = THREADS_PER_PROCESSOR;
    card->stream_priorities = card->global_l1_cache = card->local_l1_cache = 1;
    card->shared_per_processor = SHARED_PER_PROCESSOR;
    card->managed_memory = card->native_atomics = card->cooperative_launch = 1;
    card->shared_per_block_opt_in = SHARED_PER_BLOCK_OPT_IN;
    card->blocks_per_processor = BLOCKS_PER_PROCESSOR;
    card->shared_reserved = SHARED_RESERVED;
    return SUCCESS;
}

EXPORT int cudaDeviceGetAttribute(int *value, int attribute, int device) {
    NEEDS_CARD;
    if (device < 0 || device >= card_count()) return result(INVALID_DEVICE);
    switch (attribute) { /* The numbers are those of the enumeration cudaDeviceAttr. */
    case 1: case 2: case 3: *value = THREADS_PER_BLOCK; break;
    case 4: *value = BLOCK_Z; break;
    case 5: *value = GRID_X; break;
    case 6: case 7: *value = GRID_YZ; break;
    case 8: *value = SHARED_PER_BLOCK; break;
    case 9: *value = 65536; break;
    case 10: *value = WARP; break;
    case 12: case 82: *value = REGISTERS; break;
    case 13: *value = 1980000; break; /* kHz */
    case 16: *value = PROCESSORS; break;
    case 38: *value = L2_CACHE; break;
    case 39: *value = THREADS_PER_PROCESSOR; break;
    case 75: *value = COMPUTE_MAJOR; break;
    case 76: *value = COMPUTE_MINOR; break;
    case 81: *value = SHARED_PER_PROCESSOR; break;
    case 97: *value = SHARED_PER_BLOCK_OPT_IN; break;
    case 106: *value = BLOCKS_PER_PROCESSOR; break;
    case 111: *value = SHARED_RESERVED; break;
    /* Concurrent kernels, unified addressing, priorities of streams, managed memory, cooperative launch, registered
    host memory, memory pools, cluster launch. */
    case 31: case 41: case 78: case 83: case 95: case 99: case 115: case 120: *value = 1; break;
    default: *value = 0;
    }
    return SUCCESS;
}

EXPORT int cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                            unsigned long long flags, int *status) {
    (void)version, (void)flags;
    NEEDS_CARD;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    *function = driver ? dlsym(driver, symbol) : NULL;
    if (status) *status = *function ? 0 : 1; /* cudaDriverEntryPointSymbolNotFound */
    return SUCCESS;
}

#include "cudart_kernels.h"
#include "cudart_memory.h"
#include "cudart_streams.h"
