/* Memory of the host and of the card, and copies. Part of cudart.c. */
#pragma once
#include <sys/mman.h>

enum { UNREGISTERED, PINNED, DEVICE }; /* as in the enumeration cudaMemoryType */

typedef struct {
    char *start;
    size_t size;
    int type, device;
} block;

static block *blocks;
static size_t block_count, block_capacity;
static pthread_mutex_t blocks_lock = PTHREAD_MUTEX_INITIALIZER;

static size_t used_memory(int device) {
    size_t used = 0;
    for (size_t i = 0; i < block_count; i++)
        if (blocks[i].type == DEVICE && blocks[i].device == device) used += blocks[i].size;
    return used;
}

static block block_of(const void *pointer) {
    block found = {NULL, 0, UNREGISTERED, current_device};
    pthread_mutex_lock(&blocks_lock);
    for (size_t i = 0; i < block_count; i++)
        if ((const char *)pointer >= blocks[i].start && (const char *)pointer < blocks[i].start + blocks[i].size)
            found = blocks[i];
    pthread_mutex_unlock(&blocks_lock);
    return found;
}

static int allocate(void **pointer, size_t size, int type) {
    *pointer = NULL;
    if (!size) return SUCCESS;
    pthread_mutex_lock(&blocks_lock);
    int fits = type != DEVICE || used_memory(current_device) + size <= card_memory();
    /* Pages of mmap are zero and take no memory until they are written, like the card's that nobody computes. */
    void *start = fits ? mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                       : MAP_FAILED;
    if (start != MAP_FAILED) {
        if (block_count == block_capacity) {
            block_capacity = block_capacity ? 2 * block_capacity : 64;
            if (!(blocks = realloc(blocks, block_capacity * sizeof *blocks))) abort();
        }
        blocks[block_count++] = (block){start, size, type, current_device};
        *pointer = start;
    }
    pthread_mutex_unlock(&blocks_lock);
    log_event("alloc", "memory=%s\tbytes=%zu\tdevice=%d\tfailed=%d", type == DEVICE ? "device" : "pinned", size,
              current_device, !*pointer);
    return *pointer ? SUCCESS : MEMORY_ALLOCATION;
}

static int release(void *pointer, int type) {
    if (!pointer) return SUCCESS;
    block found = {0};
    pthread_mutex_lock(&blocks_lock);
    for (size_t i = 0; i < block_count; i++)
        if (blocks[i].start == pointer && blocks[i].type == type) {
            found = blocks[i];
            blocks[i] = blocks[--block_count];
            break;
        }
    pthread_mutex_unlock(&blocks_lock);
    if (!found.start) return INVALID_VALUE;
    munmap(found.start, found.size);
    log_event("free", "memory=%s\tbytes=%zu\tdevice=%d", type == DEVICE ? "device" : "pinned", found.size,
              found.device);
    return SUCCESS;
}

EXPORT int cudaMalloc(void **pointer, size_t size) {
    NEEDS_CARD;
    return result(allocate(pointer, size, DEVICE));
}

EXPORT int cudaMallocFromPoolAsync(void **pointer, size_t size, void *pool, void *stream) {
    (void)pool, (void)stream;
    NEEDS_CARD;
    return result(allocate(pointer, size, DEVICE));
}

EXPORT int cudaMallocHost(void **pointer, size_t size) {
    NEEDS_CARD;
    return result(allocate(pointer, size, PINNED));
}

EXPORT int cudaHostAlloc(void **pointer, size_t size, unsigned flags) {
    (void)flags;
    NEEDS_CARD;
    return result(allocate(pointer, size, PINNED));
}

EXPORT int cudaFree(void *pointer) {
    NEEDS_CARD;
    return result(release(pointer, DEVICE));
}

EXPORT int cudaFreeAsync(void *pointer, void *stream) {
    (void)stream;
    NEEDS_CARD;
    return result(release(pointer, DEVICE));
}

EXPORT int cudaFreeHost(void *pointer) {
    NEEDS_CARD;
    return result(release(pointer, PINNED));
}

EXPORT int cudaMemGetInfo(size_t *available, size_t *total) {
    NEEDS_CARD;
    pthread_mutex_lock(&blocks_lock);
    size_t used = used_memory(current_device);
    pthread_mutex_unlock(&blocks_lock);
    *total = card_memory();
    *available = *total > used ? *total - used : 0;
    return SUCCESS;
}

/* struct cudaPointerAttributes */
typedef struct {
    int type, device;
    void *device_pointer, *host_pointer;
    long reserved[8];
} pointer_attributes;

EXPORT int cudaPointerGetAttributes(void *out, const void *pointer) {
    NEEDS_CARD;
    block found = block_of(pointer);
    *(pointer_attributes *)out = (pointer_attributes){
        .type = found.type,
        .device = found.type == UNREGISTERED ? -1 : found.device,
        .device_pointer = found.type == UNREGISTERED ? NULL : (void *)pointer,
        .host_pointer = found.type == DEVICE ? NULL : (void *)pointer,
    };
    return SUCCESS;
}

EXPORT int cudaMemPoolCreate(void **pool, const void *properties) {
    (void)properties;
    NEEDS_CARD;
    *pool = calloc(1, 64);
    return SUCCESS;
}

EXPORT int cudaMemPoolGetAttribute(void *pool, int attribute, void *value) {
    (void)pool;
    NEEDS_CARD;
    if (attribute <= 3) /* the three that permit reuse are int, the rest 64 bits */
        *(int *)value = 0;
    else
        *(uint64_t *)value = 0;
    return SUCCESS;
}

static void log_copy(const char *name, const void *to, const void *from, size_t bytes, const void *stream,
                     int blocking) {
    block target = block_of(to), source = block_of(from);
    /* By where the memory is, not by the direction that the caller names, which may be cudaMemcpyDefault. */
    int to_card = target.type == DEVICE, from_card = source.type == DEVICE;
    const char *direction = to_card ? (from_card ? "D2D" : "H2D") : (from_card ? "D2H" : "H2H");
    int pinned = (to_card || target.type == PINNED) && (from_card || source.type == PINNED);
    log_event("copy", "name=%s\tdirection=%s\tbytes=%zu\tpinned=%d\tstream=%d\tblocking=%d", name, direction, bytes,
              pinned, stream_number(stream), blocking);
}

EXPORT int cudaMemcpy(void *to, const void *from, size_t bytes, int direction) {
    (void)direction;
    NEEDS_CARD;
    log_copy(__func__, to, from, bytes, NULL, 1);
    memmove(to, from, bytes);
    return SUCCESS;
}

EXPORT int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int direction, void *stream) {
    (void)direction;
    NEEDS_CARD;
    log_copy(__func__, to, from, bytes, stream, 0);
    memmove(to, from, bytes);
    return SUCCESS;
}

EXPORT int cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                             size_t height, int direction, void *stream) {
    (void)direction;
    NEEDS_CARD;
    log_copy(__func__, to, from, width * height, stream, 0);
    for (size_t row = 0; row < height; row++)
        memmove((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
    return SUCCESS;
}

/* Variables of the card have no memory here; what is read from one is zero. */
EXPORT int cudaMemcpyFromSymbol(void *to, const void *symbol, size_t bytes, size_t offset, int direction) {
    (void)symbol, (void)offset, (void)direction;
    NEEDS_CARD;
    log_event("copy", "name=%s\tdirection=D2H\tbytes=%zu\tpinned=0\tstream=0\tblocking=1", __func__, bytes);
    memset(to, 0, bytes);
    return SUCCESS;
}

EXPORT int cudaMemset(void *pointer, int value, size_t bytes) {
    NEEDS_CARD;
    log_event("memset", "bytes=%zu\tstream=0", bytes);
    memset(pointer, value, bytes);
    return SUCCESS;
}

EXPORT int cudaMemsetAsync(void *pointer, int value, size_t bytes, void *stream) {
    NEEDS_CARD;
    log_event("memset", "bytes=%zu\tstream=%d", bytes, stream_number(stream));
    memset(pointer, value, bytes);
    return SUCCESS;
}
