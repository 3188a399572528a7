/* SPDX-License-Identifier: Apache-2.0 */
/* Reading and writing safetensors: 8 bytes of little-endian header length, a JSON header, the tensors without gaps.
 * Files are untrusted: everything is checked before a tensor can be seen. */
#ifndef CKV_TOOLS_SAFETENSORS_H
#define CKV_TOOLS_SAFETENSORS_H

#include "tools/trace/problem.h"

#include <stddef.h>
#include <stdint.h>

#define SAFETENSORS_MAX_DIMENSIONS 8
#define SAFETENSORS_MAX_HEADER_BYTES 100000000 /* the limit of the format's own reader */

/* name in the file, bits of an element */
#define SAFETENSORS_DTYPES(X)                                                                                          \
    X(F32, 32)                                                                                                         \
    X(BF16, 16)                                                                                                        \
    X(F16, 16)                                                                                                         \
    X(BOOL, 8)                                                                                                         \
    X(U8, 8)                                                                                                           \
    X(I8, 8)                                                                                                           \
    X(F8_E5M2, 8)                                                                                                      \
    X(F8_E4M3, 8)                                                                                                      \
    X(F8_E8M0, 8)                                                                                                      \
    X(F6_E2M3, 6)                                                                                                      \
    X(F6_E3M2, 6)                                                                                                      \
    X(F4, 4)                                                                                                           \
    X(U16, 16)                                                                                                         \
    X(I16, 16)                                                                                                         \
    X(U32, 32)                                                                                                         \
    X(I32, 32)                                                                                                         \
    X(C64, 64)                                                                                                         \
    X(U64, 64)                                                                                                         \
    X(I64, 64)                                                                                                         \
    X(F64, 64)

typedef enum safetensors_dtype {
#define SAFETENSORS_ENUM(name, bits) SAFETENSORS_##name,
    SAFETENSORS_DTYPES(SAFETENSORS_ENUM)
#undef SAFETENSORS_ENUM
} safetensors_dtype;

/* "F32", "BF16", ... Static storage. */
const char *safetensors_dtype_name(safetensors_dtype dtype);

typedef struct safetensors_tensor {
    const char *name;
    safetensors_dtype dtype;
    int num_dimensions;
    int64_t shape[SAFETENSORS_MAX_DIMENSIONS];
    const void *data; /* as aligned as the file has it: not necessarily for its type */
    size_t bytes;
} safetensors_tensor;

typedef struct safetensors safetensors;

/* Parse `size` bytes, which must outlive the result: tensors point into them. `label` names them in messages. */
bool safetensors_parse(const char *label, const void *bytes, size_t size, safetensors **file_out, problem *why);

/* Read a whole regular file into memory; its data starts aligned for any type. */
bool safetensors_read(const char *path, safetensors **file_out, problem *why);

/* Accepts NULL and a pointer to NULL. */
void safetensors_free(safetensors **file);

/* Tensors in the order of their names. */
size_t safetensors_num_tensors(const safetensors *file);
const safetensors_tensor *safetensors_tensor_at(const safetensors *file, size_t index);

/* NULL when there is none. Owned by the file. */
const safetensors_tensor *safetensors_find(const safetensors *file, const char *name);
const char *safetensors_metadata(const safetensors *file, const char *key);

/* A number that differs, but for chance, when the headers differ: names, shapes, places, metadata. */
uint64_t safetensors_header_digest(const safetensors *file);

typedef struct safetensors_entry {
    const char *key;
    const char *value;
} safetensors_entry;

/* Write beside `path` and rename, so that `path` is the old file or the complete new one, never a part. What is there
 * and no regular file, such as a device, is refused: a rename would replace it. */
bool safetensors_write(const char *path, const safetensors_entry *metadata, size_t num_metadata,
                       const safetensors_tensor *tensors, size_t num_tensors, problem *why);

/* Whether safetensors_write could write `path` now; nothing is left behind. */
bool safetensors_check_writable(const char *path, problem *why);

#endif
