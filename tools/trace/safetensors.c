/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/trace/safetensors.h"

#include "tools/common/out_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LENGTH_BYTES 8
#define METADATA_KEY "__metadata__"

static const struct {
    const char *name;
    int64_t bits;
} dtypes[] = {
#define SAFETENSORS_ROW(name, bits) {#name, bits},
    SAFETENSORS_DTYPES(SAFETENSORS_ROW)
#undef SAFETENSORS_ROW
};

struct safetensors {
    const char *label; /* only while parsing */
    json_t *header;    /* owns every name and metadata string */
    void *owned_data;
    const unsigned char *data;
    size_t data_bytes;
    uint64_t digest;
    size_t num_tensors;
    safetensors_tensor *tensors;
};

const char *safetensors_dtype_name(safetensors_dtype dtype)
{
    return dtypes[dtype].name;
}

static bool parse_dtype(const char *text, safetensors_dtype *dtype_out)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (strcmp(text, dtypes[i].name) == 0) {
            *dtype_out = (safetensors_dtype)i;
            return true;
        }
    }
    return false;
}

/* Bytes of a dense tensor; false when they do not fit, or are no whole number. */
static bool dense_bytes(const safetensors_tensor *tensor, size_t *bytes_out)
{
    int64_t bits = dtypes[tensor->dtype].bits;
    for (int i = 0; i < tensor->num_dimensions; i++)
        if (__builtin_mul_overflow(bits, tensor->shape[i], &bits))
            return false;
    *bytes_out = (size_t)bits / 8;
    return bits % 8 == 0;
}

static bool tensor_problem(const safetensors *file, const char *name, problem *why, const char *cause)
{
    return problem_set(why, "%s: tensor '%s': %s", file->label, name, cause);
}

static bool parse_shape(const safetensors *file, const char *name, json_t *value, safetensors_tensor *tensor,
                        problem *why)
{
    if (!json_is_array(value))
        return tensor_problem(file, name, why, "'shape' is not an array");
    if (json_array_size(value) > SAFETENSORS_MAX_DIMENSIONS)
        return problem_set(why, "%s: tensor '%s': shape has %zu dimensions; at most %d are read", file->label, name,
                           json_array_size(value), SAFETENSORS_MAX_DIMENSIONS);
    tensor->num_dimensions = (int)json_array_size(value);
    for (int i = 0; i < tensor->num_dimensions; i++) {
        json_t *extent = json_array_get(value, (size_t)i);
        if (!json_is_integer(extent) || json_integer_value(extent) < 0)
            return problem_set(why, "%s: tensor '%s': dimension %d of the shape is not an integer of 0 or more",
                               file->label, name, i);
        tensor->shape[i] = json_integer_value(extent);
    }
    if (!dense_bytes(tensor, &tensor->bytes))
        return tensor_problem(file, name, why, "the size of its shape is too large, or no whole number of bytes");
    return true;
}

static bool parse_offsets(const safetensors *file, const char *name, json_t *value, safetensors_tensor *tensor,
                          problem *why)
{
    json_t *first = json_array_get(value, 0), *last = json_array_get(value, 1);
    if (json_array_size(value) != 2 || !json_is_integer(first) || !json_is_integer(last))
        return tensor_problem(file, name, why, "'data_offsets' is not an array of two integers");
    int64_t begin = json_integer_value(first), end = json_integer_value(last);
    if (begin < 0 || end < begin)
        return problem_set(why, "%s: tensor '%s': data_offsets [%" PRId64 ", %" PRId64 "] are negative or out of order",
                           file->label, name, begin, end);
    if ((uint64_t)end > file->data_bytes)
        return problem_set(why,
                           "%s: tensor '%s': data_offsets [%" PRId64 ", %" PRId64
                           "] run past the end of the file, which has %zu bytes of data",
                           file->label, name, begin, end, file->data_bytes);
    if ((uint64_t)(end - begin) != tensor->bytes)
        return problem_set(why,
                           "%s: tensor '%s': data_offsets [%" PRId64 ", %" PRId64 "] hold %" PRId64
                           " bytes, its shape and dtype need %zu",
                           file->label, name, begin, end, end - begin, tensor->bytes);
    tensor->data = file->data + begin;
    return true;
}

static bool parse_tensor(const safetensors *file, const char *name, json_t *value, safetensors_tensor *tensor,
                         problem *why)
{
    if (!json_is_object(value))
        return tensor_problem(file, name, why, "its header entry is not an object");
    json_t *dtype = json_object_get(value, "dtype");
    json_t *shape = json_object_get(value, "shape");
    json_t *offsets = json_object_get(value, "data_offsets");
    if (dtype == NULL || shape == NULL || offsets == NULL || json_object_size(value) != 3)
        return tensor_problem(file, name, why,
                              "its header entry must have 'dtype', 'shape', 'data_offsets' and no more");
    if (!json_is_string(dtype))
        return tensor_problem(file, name, why, "'dtype' is not a string");
    if (!parse_dtype(json_string_value(dtype), &tensor->dtype))
        return problem_set(why, "%s: tensor '%s': unknown dtype '%s'", file->label, name, json_string_value(dtype));
    tensor->name = name;
    return parse_shape(file, name, shape, tensor, why) && parse_offsets(file, name, offsets, tensor, why);
}

static bool parse_metadata(const safetensors *file, json_t *value, problem *why)
{
    if (!json_is_object(value))
        return problem_set(why, "%s: " METADATA_KEY " is not an object", file->label);
    const char *key;
    json_t *text;
    json_object_foreach(value, key, text) if (!json_is_string(text)) return problem_set(
        why, "%s: " METADATA_KEY " '%s' is not a string", file->label, key);
    return true;
}

static int compare_places(const void *a, const void *b)
{
    const safetensors_tensor *left = a, *right = b;
    if (left->data != right->data)
        return (uintptr_t)left->data < (uintptr_t)right->data ? -1 : 1;
    return (left->bytes > right->bytes) - (left->bytes < right->bytes); /* empty tensors first */
}

static int compare_names(const void *a, const void *b)
{
    const safetensors_tensor *left = a, *right = b;
    return strcmp(left->name, right->name);
}

/* Every byte of the data belongs to one tensor: the format forbids holes, because something could hide in them. */
static bool check_coverage(safetensors *file, problem *why)
{
    if (file->num_tensors != 0) /* qsort wants an array even for nothing */
        qsort(file->tensors, file->num_tensors, sizeof *file->tensors, compare_places);
    const unsigned char *end = file->data;
    for (size_t i = 0; i < file->num_tensors; i++) {
        const safetensors_tensor *tensor = &file->tensors[i];
        const unsigned char *begin = tensor->data;
        if (begin < end)
            return problem_set(why, "%s: tensor '%s' overlaps tensor '%s'", file->label, tensor->name,
                               file->tensors[i - 1].name);
        if (begin > end)
            return problem_set(why, "%s: %td bytes of data before tensor '%s' belong to no tensor", file->label,
                               begin - end, tensor->name);
        end = begin + tensor->bytes;
    }
    size_t covered = (size_t)(end - file->data);
    if (covered != file->data_bytes)
        return problem_set(why, "%s: the last %zu bytes of data belong to no tensor", file->label,
                           file->data_bytes - covered);
    if (file->num_tensors != 0)
        qsort(file->tensors, file->num_tensors, sizeof *file->tensors, compare_names);
    return true;
}

static bool parse_header(safetensors *file, const char *text, size_t length, problem *why)
{
    json_error_t error;
    if (length == 0 || text[0] != '{')
        return problem_set(why, "%s: the header does not start with '{'", file->label);
    file->header = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
    if (file->header == NULL)
        return problem_set(why, "%s: the header is not valid JSON: %s (byte %d)", file->label, error.text,
                           error.position);
    file->digest = 14695981039346656037u; /* FNV-1a */
    for (size_t i = 0; i < length; i++)
        file->digest = (file->digest ^ (unsigned char)text[i]) * 1099511628211u;

    file->tensors = calloc(json_object_size(file->header) + 1, sizeof *file->tensors);
    if (file->tensors == NULL)
        return problem_set(why, "%s: out of memory", file->label);
    const char *name;
    json_t *value;
    json_object_foreach(file->header, name, value)
    {
        bool is_metadata = strcmp(name, METADATA_KEY) == 0;
        if (is_metadata && !parse_metadata(file, value, why))
            return false;
        if (!is_metadata && !parse_tensor(file, name, value, &file->tensors[file->num_tensors++], why))
            return false;
    }
    return check_coverage(file, why);
}

/* The length of the header, from the first 8 bytes; `size` is the whole file's. */
static bool header_length(const char *label, const unsigned char *bytes, uint64_t size, uint64_t *length_out,
                          problem *why)
{
    if (size < LENGTH_BYTES)
        return problem_set(why, "%s: truncated: %" PRIu64 " bytes, a header length alone takes 8", label, size);
    uint64_t length = 0;
    for (int i = 0; i < LENGTH_BYTES; i++)
        length |= (uint64_t)bytes[i] << 8 * i;
    if (length > SAFETENSORS_MAX_HEADER_BYTES)
        return problem_set(why, "%s: header length %" PRIu64 " is over the limit of %d bytes: no safetensors file",
                           label, length, SAFETENSORS_MAX_HEADER_BYTES);
    if (length > size - LENGTH_BYTES)
        return problem_set(why,
                           "%s: truncated: header length %" PRIu64 " runs past the end of the file (%" PRIu64 " bytes)",
                           label, length, size);
    *length_out = length;
    return true;
}

/* Takes the file: it is handed out, or freed. */
static bool finish(safetensors *file, const char *text, size_t length, safetensors **file_out, problem *why)
{
    if (!parse_header(file, text, length, why)) {
        safetensors_free(&file);
        return false;
    }
    file->label = NULL;
    *file_out = file;
    return true;
}

bool safetensors_parse(const char *label, const void *bytes, size_t size, safetensors **file_out, problem *why)
{
    uint64_t length;
    if (!header_length(label, bytes, size, &length, why))
        return false;
    safetensors *file = calloc(1, sizeof *file);
    if (file == NULL)
        return problem_set(why, "%s: out of memory", label);
    const char *text = (const char *)bytes + LENGTH_BYTES;
    file->label = label;
    file->data = (const unsigned char *)text + length;
    file->data_bytes = size - LENGTH_BYTES - (size_t)length;
    return finish(file, text, (size_t)length, file_out, why);
}

/* Exactly `size` bytes in a buffer of their own, or NULL. */
static void *read_block(const char *path, FILE *stream, size_t size, problem *why)
{
    void *block = malloc(size == 0 ? 1 : size);
    if (block == NULL) {
        problem_format(why, "%s: out of memory for %zu bytes", path, size);
        return NULL;
    }
    if (fread(block, 1, size, stream) != size) {
        problem_format(why, "%s: %s", path, ferror(stream) ? strerror(errno) : "truncated while it was read");
        free(block);
        return NULL;
    }
    return block;
}

static bool read_stream(const char *path, FILE *stream, uint64_t size, safetensors **file_out, problem *why)
{
    unsigned char prefix[LENGTH_BYTES] = {0};
    uint64_t length;
    if (fread(prefix, 1, LENGTH_BYTES, stream) != LENGTH_BYTES && size >= LENGTH_BYTES)
        return problem_set(why, "%s: truncated while it was read", path);
    if (!header_length(path, prefix, size, &length, why))
        return false;
    char *text = read_block(path, stream, (size_t)length, why);
    if (text == NULL)
        return false;
    safetensors *file = calloc(1, sizeof *file);
    bool ok = file != NULL;
    if (!ok) {
        problem_format(why, "%s: out of memory", path);
    } else {
        file->label = path;
        file->data_bytes = (size_t)(size - LENGTH_BYTES - length);
        file->data = file->owned_data = read_block(path, stream, file->data_bytes, why);
        ok = file->data != NULL;
        if (ok)
            ok = finish(file, text, (size_t)length, file_out, why);
        else
            safetensors_free(&file);
    }
    free(text);
    return ok;
}

bool safetensors_read(const char *path, safetensors **file_out, problem *why)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe that nobody writes would be waited for */
    FILE *stream = fd < 0 ? NULL : fdopen(fd, "rb");
    if (stream == NULL) {
        problem_format(why, "%s: %s", path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return false;
    }
    struct stat info;
    bool ok;
    if (fstat(fd, &info) != 0)
        ok = problem_set(why, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(info.st_mode))
        ok = problem_set(why, "%s: not a regular file", path);
    else
        ok = read_stream(path, stream, (uint64_t)info.st_size, file_out, why);
    fclose(stream);
    return ok;
}

void safetensors_free(safetensors **file)
{
    if (file == NULL || *file == NULL)
        return;
    json_decref((*file)->header);
    free((*file)->tensors);
    free((*file)->owned_data);
    free(*file);
    *file = NULL;
}

size_t safetensors_num_tensors(const safetensors *file)
{
    return file->num_tensors;
}

const safetensors_tensor *safetensors_tensor_at(const safetensors *file, size_t index)
{
    return &file->tensors[index];
}

const safetensors_tensor *safetensors_find(const safetensors *file, const char *name)
{
    safetensors_tensor wanted = {.name = name};
    if (file->num_tensors == 0)
        return NULL;
    return bsearch(&wanted, file->tensors, file->num_tensors, sizeof *file->tensors, compare_names);
}

const char *safetensors_metadata(const safetensors *file, const char *key)
{
    return json_string_value(json_object_get(json_object_get(file->header, METADATA_KEY), key));
}

uint64_t safetensors_header_digest(const safetensors *file)
{
    return file->digest;
}

static int add_tensor(json_t *header, const safetensors_tensor *tensor, size_t offset)
{
    json_t *shape = json_array();
    int failed = shape == NULL;
    for (int i = 0; i < tensor->num_dimensions; i++)
        failed |= json_array_append_new(shape, json_integer(tensor->shape[i]));
    json_int_t begin = (json_int_t)offset, end = begin + (json_int_t)tensor->bytes;
    json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", safetensors_dtype_name(tensor->dtype), "shape", shape,
                              "data_offsets", begin, end);
    return failed | json_object_set_new(header, tensor->name, entry);
}

/* The header of a file to be written, for the caller to free; NULL with the cause. */
static char *make_header(const char *path, const safetensors_entry *metadata, size_t num_metadata,
                         const safetensors_tensor *tensors, size_t num_tensors, problem *why)
{
    json_t *header = json_object();
    json_t *entries = json_object();
    int failed = header == NULL || entries == NULL;
    for (size_t i = 0; i < num_metadata; i++)
        failed |= json_object_set_new(entries, metadata[i].key, json_string(metadata[i].value));
    if (num_metadata != 0)
        failed |= json_object_set(header, METADATA_KEY, entries);
    json_decref(entries);
    const char *twice = NULL;
    size_t offset = 0;
    for (size_t i = 0; i < num_tensors && twice == NULL; i++) {
        if (json_object_get(header, tensors[i].name) != NULL)
            twice = tensors[i].name;
        else
            failed |= add_tensor(header, &tensors[i], offset);
        offset += tensors[i].bytes;
    }
    char *text = failed || twice != NULL ? NULL : json_dumps(header, JSON_COMPACT);
    json_decref(header);
    if (twice != NULL)
        problem_format(why, "%s: two tensors are called '%s'", path, twice);
    else if (text == NULL)
        problem_format(why, "%s: the header cannot be made: out of memory, or a name is not UTF-8", path);
    return text;
}

static bool write_contents(FILE *stream, const char *header, const safetensors_tensor *tensors, size_t num_tensors)
{
    size_t length = strlen(header);
    size_t padded = (length + 7) / 8 * 8; /* data starts aligned for any dtype */
    unsigned char prefix[LENGTH_BYTES];
    for (int i = 0; i < LENGTH_BYTES; i++)
        prefix[i] = (unsigned char)((uint64_t)padded >> 8 * i);
    bool ok = fwrite(prefix, 1, LENGTH_BYTES, stream) == LENGTH_BYTES;
    ok = ok && fwrite(header, 1, length, stream) == length;
    ok = ok && fwrite("       ", 1, padded - length, stream) == padded - length;
    for (size_t i = 0; i < num_tensors && ok; i++)
        ok = tensors[i].bytes == 0 || fwrite(tensors[i].data, 1, tensors[i].bytes, stream) == tensors[i].bytes;
    return ok;
}

static bool check_sizes(const char *path, const safetensors_tensor *tensors, size_t num_tensors, problem *why)
{
    for (size_t i = 0; i < num_tensors; i++) {
        size_t bytes;
        if (!dense_bytes(&tensors[i], &bytes) || bytes != tensors[i].bytes)
            return problem_set(why, "%s: tensor '%s' has %zu bytes, which its shape and dtype do not make", path,
                               tensors[i].name, tensors[i].bytes);
    }
    return true;
}

static bool check_kind(const char *path, problem *why)
{
    struct stat info;
    return stat(path, &info) != 0 || S_ISREG(info.st_mode) || problem_set(why, "%s: not a regular file", path);
}

bool safetensors_check_writable(const char *path, problem *why)
{
    return check_kind(path, why) && out_file_check(path, why);
}

bool safetensors_write(const char *path, const safetensors_entry *metadata, size_t num_metadata,
                       const safetensors_tensor *tensors, size_t num_tensors, problem *why)
{
    if (!check_sizes(path, tensors, num_tensors, why) || !check_kind(path, why))
        return false;
    char *header = make_header(path, metadata, num_metadata, tensors, num_tensors, why);
    if (header == NULL)
        return false;
    out_file file;
    bool ok = out_file_open(path, &file, why);
    ok = ok && out_file_close(&file, write_contents(file.stream, header, tensors, num_tensors), why);
    free(header);
    return ok;
}
