/* What all stand-ins share: settings from the environment, failures on demand, and the log.

Every library has its own copy of these functions, so that each works where another one is left out.

Settings (see stand_in.py, which writes them):
  CUDA_STAND_IN_LOG           file that events are appended to; without it nothing is logged
  CUDA_STAND_IN_FAIL          "NAME=CODE:N,…": the function NAME succeeds N times and then returns CODE
  CUDA_STAND_IN_CARDS         number of cards (1)
  CUDA_STAND_IN_MEMORY        bytes of memory of each card (80 GiB)
  CUDA_STAND_IN_OLD_DRIVER    set: the driver is too old for the runtime
  CUDA_STAND_IN_NO_KERNELS    set: no kernel has code for the card

A line of the log: process, thread, kind of event, then key=value, all separated by tabs. A line is written by one
write() to a file opened for appending, so that lines of several threads, libraries and processes do not mix.
*/
#pragma once
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define UNUSED __attribute__((unused))

/* A stream is a number: 0 is the default stream, the others are counted from 1 as they are made. */
typedef struct {
    int number;
} stand_in_stream;

static UNUSED int stream_number(const void *stream) {
    /* 1 and 2 stand for the legacy and the per-thread default stream (cudaStreamLegacy, cudaStreamPerThread). */
    return (uintptr_t)stream <= 2 ? 0 : ((const stand_in_stream *)stream)->number;
}

enum { MAX_FAILURES = 16 };

static struct {
    char name[128];
    int code;
    long successes;
    long calls;
} failures[MAX_FAILURES];
static int failure_count;
static int log_file = -1;
static pthread_once_t settings_read = PTHREAD_ONCE_INIT;

static void read_settings(void) {
    const char *path = getenv("CUDA_STAND_IN_LOG");
    if (path && *path) log_file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    const char *failing = getenv("CUDA_STAND_IN_FAIL");
    char *text = strdup(failing ? failing : ""), *rest = NULL;
    for (char *item = strtok_r(text, ",", &rest); item; item = strtok_r(NULL, ",", &rest))
        if (failure_count < MAX_FAILURES
            && sscanf(item, "%127[^=]=%d:%ld", failures[failure_count].name, &failures[failure_count].code,
                      &failures[failure_count].successes) == 3)
            failure_count++;
    free(text);
}

/* The code that a function was asked to fail with, or 0. Counts the call. */
static UNUSED int failure_of(const char *name) {
    pthread_once(&settings_read, read_settings);
    for (int i = 0; i < failure_count; i++)
        if (!strcmp(failures[i].name, name))
            return __atomic_fetch_add(&failures[i].calls, 1, __ATOMIC_RELAXED) < failures[i].successes
                       ? 0
                       : failures[i].code;
    return 0;
}

static UNUSED __attribute__((format(printf, 2, 3))) void log_event(const char *kind, const char *format, ...) {
    pthread_once(&settings_read, read_settings);
    if (log_file < 0) return;
    char start[128], *details = NULL, *line = NULL;
    snprintf(start, sizeof start, "%d\t%ld\t%s", (int)getpid(), (long)syscall(SYS_gettid), kind);
    va_list values;
    va_start(values, format);
    int written = vasprintf(&details, format, values);
    va_end(values);
    if (written >= 0 && (written = asprintf(&line, "%s\t%s\n", start, details)) >= 0)
        if (write(log_file, line, (size_t)written) != written) abort();
    free(details);
    free(line);
}

/* What build.py generates, in a source of its own, consists of calls of these two. */
#define WITHIN_LIBRARY __attribute__((visibility("hidden")))

WITHIN_LIBRARY int generated_call(const char *name) {
    log_event("call", "name=%s", name);
    return failure_of(name);
}

WITHIN_LIBRARY int generated_create(const char *name, void **handle) {
    int failure = generated_call(name);
    if (!failure) *handle = calloc(1, 256);
    return failure;
}

static UNUSED long setting(const char *name, long otherwise) {
    const char *value = getenv(name);
    return value && *value ? atol(value) : otherwise;
}

/* Cards that the process may use. CUDA_VISIBLE_DEVICES can only hide some of them. */
static UNUSED int card_count(void) {
    long cards = setting("CUDA_STAND_IN_CARDS", 1);
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (!visible) return (int)cards;
    if (!*visible || *visible == '-') return 0;
    long named = 1;
    for (; *visible; visible++) named += *visible == ',';
    return (int)(named < cards ? named : cards);
}

__attribute__((constructor)) static void log_loading(void) {
    log_event("load", "library=" LIBRARY);
}
