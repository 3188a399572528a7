/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/lazy_device.h"

#include "tests/support/random.h"

#include <stdlib.h>

enum { MOST_STREAMS = 8 };

typedef struct event {
    uint64_t recorded, reached; /* numbers of the last record enqueued and of the last one run */
} event;

/* A copy, a call, a record or a wait. */
typedef struct item {
    struct item *next;
    void (*function)(void *argument);
    void *argument;
    event *marked;
    uint64_t number;
    int is_wait;
    char *destination;
    const char *source;
    size_t destination_pitch, source_pitch, width, height;
} item;

typedef struct stream {
    item *first, *last;
    int used;
} stream;

static stream streams[MOST_STREAMS];
static ckv_device device;
static ckv_random order;

static stream *stream_of(ckv_stream handle)
{
    return (stream *)(void *)handle;
}

static void enqueue(ckv_stream handle, item what)
{
    stream *s = stream_of(handle);
    item *copy = malloc(sizeof *copy);
    if (copy == NULL)
        abort();
    *copy = what;
    copy->next = NULL;
    if (s->last != NULL)
        s->last->next = copy;
    else
        s->first = copy;
    s->last = copy;
}

static int is_blocked(const item *i)
{
    return i->is_wait && i->marked->reached < i->number;
}

static void run_first(stream *s)
{
    item *i = s->first;
    s->first = i->next;
    if (s->first == NULL)
        s->last = NULL;
    for (size_t row = 0; row < i->height; row++)
        for (size_t byte = 0; byte < i->width; byte++)
            i->destination[row * i->destination_pitch + byte] = i->source[row * i->source_pitch + byte];
    if (i->function != NULL)
        i->function(i->argument);
    if (i->marked != NULL && !i->is_wait && i->number > i->marked->reached)
        i->marked->reached = i->number;
    free(i->argument);
    free(i);
}

/* One step of a stream that can go on; 0 when none can. */
static int run_one(void)
{
    int ready[MOST_STREAMS], count = 0;
    for (int i = 0; i < MOST_STREAMS; i++)
        if (streams[i].first != NULL && !is_blocked(streams[i].first))
            ready[count++] = i;
    if (count > 0)
        run_first(&streams[ready[ckv_random_range(&order, 0, count - 1)]]);
    return count > 0;
}

void lazy_device_run(int steps)
{
    while (steps-- > 0 && run_one())
        continue;
}

void lazy_device_call(ckv_stream handle, void (*function)(void *argument), void *argument)
{
    enqueue(handle, (item){.function = function, .argument = argument});
}

static ckv_status lazy_copy_2d(void *destination, size_t destination_pitch, const void *source, size_t source_pitch,
                               size_t width, size_t height, ckv_stream handle)
{
    enqueue(handle, (item){.destination = destination,
                           .source = source,
                           .destination_pitch = destination_pitch,
                           .source_pitch = source_pitch,
                           .width = width,
                           .height = height});
    return CKV_OK;
}

static ckv_status lazy_stream_create(ckv_stream *stream_out)
{
    for (int i = 0; i < MOST_STREAMS; i++) {
        if (streams[i].used)
            continue;
        streams[i].used = 1;
        *stream_out = (ckv_stream)(void *)&streams[i];
        return CKV_OK;
    }
    return CKV_ERROR_MEMORY;
}

static void lazy_stream_destroy(ckv_stream handle)
{
    if (handle != NULL)
        stream_of(handle)->used = 0;
}

static ckv_status lazy_event_create(ckv_event *event_out)
{
    event *e = calloc(1, sizeof *e);
    *event_out = (ckv_event)(void *)e;
    return e != NULL ? CKV_OK : CKV_ERROR_MEMORY;
}

static void lazy_event_destroy(ckv_event handle)
{
    free(handle);
}

static ckv_status lazy_event_record(ckv_event handle, ckv_stream stream_handle)
{
    event *e = (event *)(void *)handle;
    enqueue(stream_handle, (item){.marked = e, .number = ++e->recorded});
    return CKV_OK;
}

static ckv_status lazy_event_wait(ckv_event handle, ckv_stream stream_handle)
{
    event *e = (event *)(void *)handle;
    enqueue(stream_handle, (item){.marked = e, .number = e->recorded, .is_wait = 1});
    return CKV_OK;
}

static ckv_status lazy_event_done(ckv_event handle, int *done_out)
{
    const event *e = (const event *)(const void *)handle;
    *done_out = e->reached == e->recorded;
    return CKV_OK;
}

static ckv_status lazy_wait(ckv_stream handle)
{
    while (handle != NULL && stream_of(handle)->first != NULL)
        if (!run_one())
            return CKV_ERROR_TIMEOUT; /* streams wait for each other */
    return CKV_OK;
}

const ckv_device *lazy_device_open(uint64_t seed)
{
    device = ckv_device_host;
    device.name = "lazy";
    device.copy_2d = lazy_copy_2d;
    device.stream_create = lazy_stream_create;
    device.stream_destroy = lazy_stream_destroy;
    device.event_create = lazy_event_create;
    device.event_destroy = lazy_event_destroy;
    device.event_record = lazy_event_record;
    device.event_wait = lazy_event_wait;
    device.event_done = lazy_event_done;
    device.wait = lazy_wait;
    order = (ckv_random){seed};
    return &device;
}

void lazy_device_close(void)
{
    for (int i = 0; i < MOST_STREAMS; i++) {
        while (streams[i].first != NULL)
            run_first(&streams[i]);
        streams[i].used = 0;
    }
}
