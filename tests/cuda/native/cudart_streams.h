/* Streams, events and graphs. Part of cudart.c. */
#pragma once

static int made_streams, made_events;

static int make_numbered(void **handle, int *counter) {
    stand_in_stream *made = calloc(1, sizeof *made);
    made->number = __atomic_add_fetch(counter, 1, __ATOMIC_RELAXED);
    *handle = made;
    return SUCCESS;
}

EXPORT int cudaStreamCreate(void **stream) {
    NEEDS_CARD;
    return make_numbered(stream, &made_streams);
}

EXPORT int cudaStreamCreateWithFlags(void **stream, unsigned flags) {
    (void)flags;
    NEEDS_CARD;
    return make_numbered(stream, &made_streams);
}

/* Destroyed handles stay readable: a late use of one is the caller's mistake, but no reason to crash the tests. */
EXPORT int cudaStreamDestroy(void *stream) {
    (void)stream;
    NEEDS_CARD;
    return SUCCESS;
}

EXPORT int cudaStreamSynchronize(void *stream) {
    log_event("sync", "of=stream\tnumber=%d", stream_number(stream));
    NEEDS_CARD;
    return SUCCESS;
}

EXPORT int cudaDeviceSynchronize(void) {
    log_event("sync", "of=device\tnumber=%d", current_device);
    NEEDS_CARD;
    return SUCCESS;
}

EXPORT int cudaEventSynchronize(void *event) {
    log_event("sync", "of=event\tnumber=%d", stream_number(event));
    NEEDS_CARD;
    return SUCCESS;
}

EXPORT int cudaEventCreate(void **event) {
    NEEDS_CARD;
    return make_numbered(event, &made_events);
}

EXPORT int cudaEventCreateWithFlags(void **event, unsigned flags) {
    (void)flags;
    NEEDS_CARD;
    return make_numbered(event, &made_events);
}

EXPORT int cudaEventDestroy(void *event) {
    (void)event;
    NEEDS_CARD;
    return SUCCESS;
}

EXPORT int cudaEventRecord(void *event, void *stream) {
    log_event("record", "event=%d\tstream=%d", stream_number(event), stream_number(stream));
    NEEDS_CARD;
    return SUCCESS;
}

EXPORT int cudaEventRecordWithFlags(void *event, void *stream, unsigned flags) {
    (void)flags;
    log_event("record", "event=%d\tstream=%d", stream_number(event), stream_number(stream));
    NEEDS_CARD;
    return SUCCESS;
}

EXPORT int cudaStreamWaitEvent(void *stream, void *event, unsigned flags) {
    (void)flags;
    log_event("wait", "event=%d\tstream=%d", stream_number(event), stream_number(stream));
    NEEDS_CARD;
    return SUCCESS;
}

EXPORT int cudaEventElapsedTime(float *milliseconds, void *start, void *end) {
    (void)start, (void)end;
    NEEDS_CARD;
    *milliseconds = 0;
    return SUCCESS;
}

EXPORT int cudaStreamIsCapturing(void *stream, int *status) {
    (void)stream;
    NEEDS_CARD;
    *status = 0; /* cudaStreamCaptureStatusNone */
    return SUCCESS;
}

EXPORT int cudaStreamEndCapture(void *stream, void **graph) {
    (void)stream;
    NEEDS_CARD;
    *graph = calloc(1, 64);
    return SUCCESS;
}

EXPORT int cudaGraphInstantiate(void **executable, void *graph, unsigned long long flags) {
    (void)graph, (void)flags;
    NEEDS_CARD;
    *executable = calloc(1, 64);
    return SUCCESS;
}

EXPORT int cudaLaunchHostFunc(void *stream, void (*function)(void *), void *argument) {
    log_event("call", "name=%s", __func__);
    (void)stream;
    NEEDS_CARD;
    function(argument);
    return SUCCESS;
}
