/* SPDX-License-Identifier: Apache-2.0 */
/* The safetensors reader on malformed files, one kind a row, and reader and writer against each other. */
#include "tests/support/case.h"

#include "tools/trace/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct bytes {
    unsigned char *at;
    size_t size;
} bytes;

/* A file of a header length, a header and `data_bytes` bytes of data that count up. */
static bytes make_file(uint64_t length, const char *header, size_t data_bytes)
{
    size_t header_bytes = strlen(header);
    bytes file = {malloc(8 + header_bytes + data_bytes), 8 + header_bytes + data_bytes};
    assert_non_null(file.at);
    for (int i = 0; i < 8; i++)
        file.at[i] = (unsigned char)(length >> 8 * i);
    for (size_t i = 0; i < header_bytes; i++)
        file.at[8 + i] = (unsigned char)header[i];
    for (size_t i = 0; i < data_bytes; i++)
        file.at[8 + header_bytes + i] = (unsigned char)i;
    return file;
}

static void assert_refused(const bytes *file, const char *cause)
{
    safetensors *parsed = NULL;
    problem why = {""};
    if (safetensors_parse("bad.safetensors", file->at, file->size, &parsed, &why))
        fail_msg("accepted; it should have been refused with: %s", cause);
    assert_null(parsed);
    if (strstr(why.text, cause) == NULL || strncmp(why.text, "bad.safetensors: ", 17) != 0)
        fail_msg("'%s' does not say '%s'", why.text, cause);
    assert_null(strchr(why.text, '\n'));
}

static void refuses_truncated_files(void **state)
{
    (void)state;
    static const char header[] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}";
    bytes whole = make_file(sizeof header - 1, header, 4);
    for (size_t size = 0; size < whole.size; size++) {
        /* a copy of its own: the sanitizers see a read past its end */
        bytes part = {malloc(size + (size == 0)), size};
        assert_non_null(part.at);
        memcpy(part.at, whole.at, size);
        assert_refused(&part, size < 8                       ? "truncated: "
                              : size < 8 + sizeof header - 1 ? "runs past the end of the file"
                                                             : "run past the end of the file");
        free(part.at);
    }
    free(whole.at);
}

static void refuses_absurd_header_lengths(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {100000001, UINT64_MAX, (uint64_t)1 << 63};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        bytes file = make_file(lengths[i], "{}", 0);
        assert_refused(&file, "is over the limit of 100000000 bytes");
        free(file.at);
    }
    bytes file = make_file(3, "{}", 0);
    assert_refused(&file, "header length 3 runs past the end of the file (10 bytes)");
    free(file.at);
}

static const struct {
    const char *header;
    size_t data_bytes;
    const char *cause;
} malformed[] = {
    {"", 0, "the header does not start with '{'"},
    {"[]", 0, "the header does not start with '{'"},
    {" {}", 0, "the header does not start with '{'"},
    {"{", 0, "the header is not valid JSON"},
    {"{} x", 0, "the header is not valid JSON"},
    {"{\"a\\u0000b\":{}}", 0, "the header is not valid JSON"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"a\":{\"dtype\":\"U8\",\"shape\":[1],"
     "\"data_offsets\":[0,1]}}",
     1, "duplicate object key"},
    {"{\"__metadata__\":[]}", 0, "__metadata__ is not an object"},
    {"{\"__metadata__\":{\"k\":1}}", 0, "__metadata__ 'k' is not a string"},
    {"{\"a\":1}", 0, "tensor 'a': its header entry is not an object"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "tensor 'a': its header entry must have"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"more\":1}}", 1, "must have 'dtype'"},
    {"{\"a\":{\"dtype\":8,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "'dtype' is not a string"},
    {"{\"a\":{\"dtype\":\"F31\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "unknown dtype 'F31'"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":4,\"data_offsets\":[0,4]}}", 4, "'shape' is not an array"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[-4],\"data_offsets\":[0,4]}}", 4, "dimension 0 of the shape"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1,2.5],\"data_offsets\":[0,4]}}", 4, "dimension 1 of the shape"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1, "9 dimensions"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,4]}}", 4, "is too large"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0, "is too large"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[99999999999999999999],\"data_offsets\":[0,4]}}", 4, "not valid JSON"},
    {"{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]}}", 2, "no whole number of bytes"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0]}}", 4, "'data_offsets' is not an array of two"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":\"04\"}}", 4, "'data_offsets' is not an array of two"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4.0]}}", 4, "'data_offsets' is not an array of two"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[-4,0]}}", 4, "are negative or out of order"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,0]}}", 4, "are negative or out of order"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[0,5]}}", 4, "[0, 5] run past the end of the file"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[9223372036854775803,9223372036854775807]}}", 4,
     "run past the end of the file"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "hold 4 bytes, its shape and dtype need 8"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},\"b\":{\"dtype\":\"U8\",\"shape\":[2],"
     "\"data_offsets\":[2,4]}}",
     4, "tensor 'b' overlaps tensor 'a'"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"b\":{\"dtype\":\"U8\",\"shape\":[2],"
     "\"data_offsets\":[0,2]}}",
     2, "overlaps tensor"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"b\":{\"dtype\":\"U8\",\"shape\":[2],"
     "\"data_offsets\":[2,4]}}",
     4, "1 bytes of data before tensor 'b' belong to no tensor"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}", 4, "the last 1 bytes of data belong to no"},
    {"{}", 4, "the last 4 bytes of data belong to no tensor"},
    {"{\"x\\ny\":1}", 0, "tensor 'x?y'"},
};

static void refuses_malformed_headers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof malformed / sizeof malformed[0]; i++) {
        bytes file = make_file(strlen(malformed[i].header), malformed[i].header, malformed[i].data_bytes);
        assert_refused(&file, malformed[i].cause);
        free(file.at);
    }
}

static void refuses_deep_nesting(void **state)
{
    (void)state;
    enum { DEPTH = 100000 };
    char *header = malloc(DEPTH + 8);
    assert_non_null(header);
    memcpy(header, "{\"a\":", 5);
    memset(header + 5, '[', DEPTH);
    header[5 + DEPTH] = '\0';
    bytes file = make_file(strlen(header), header, 0);
    assert_refused(&file, "not valid JSON");
    free(file.at);
    free(header);
}

static void reads_what_the_format_allows(void **state)
{
    (void)state;
    static const char header[] =
        "{\"__metadata__\":{\"k\":\"v\"},\"late\":{\"dtype\":\"BF16\",\"shape\":[1,2],\"data_offsets\":[1,5]},"
        "\"empty\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[1,1]},"
        "\"scalar\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]},"
        "\"nibbles\":{\"dtype\":\"F4\",\"shape\":[4],\"data_offsets\":[5,7]}}   ";
    bytes file = make_file(sizeof header - 1, header, 7);
    safetensors *parsed;
    problem why = {""};
    if (!safetensors_parse("good", file.at, file.size, &parsed, &why))
        fail_msg("%s", why.text);
    assert_int_equal(safetensors_num_tensors(parsed), 4);
    assert_string_equal(safetensors_tensor_at(parsed, 0)->name, "empty");
    const safetensors_tensor *late = safetensors_find(parsed, "late");
    assert_non_null(late);
    assert_int_equal(late->dtype, SAFETENSORS_BF16);
    assert_int_equal(late->num_dimensions, 2);
    assert_int_equal(late->shape[1], 2);
    assert_int_equal(((const unsigned char *)late->data)[0], 1);
    assert_int_equal(safetensors_find(parsed, "scalar")->bytes, 1);
    assert_int_equal(safetensors_find(parsed, "empty")->bytes, 0);
    assert_int_equal(safetensors_find(parsed, "nibbles")->bytes, 2);
    assert_null(safetensors_find(parsed, "absent"));
    assert_string_equal(safetensors_metadata(parsed, "k"), "v");
    assert_null(safetensors_metadata(parsed, "absent"));
    safetensors_free(&parsed);
    safetensors_free(&parsed);
    free(file.at);
}

static void names_files_that_cannot_be_read(void **state)
{
    (void)state;
    safetensors *parsed = NULL;
    problem why;
    assert_false(safetensors_read("/nowhere/at.all", &parsed, &why));
    assert_string_equal(why.text, "/nowhere/at.all: No such file or directory");
    assert_false(safetensors_read("/", &parsed, &why));
    assert_string_equal(why.text, "/: not a regular file");
    assert_false(safetensors_write("/nowhere/at.all", NULL, 0, NULL, 0, &why));
    assert_string_equal(why.text, "/nowhere/at.all: No such file or directory");
    assert_null(parsed);
}

static void writer_replaces_regular_files_only(void **state)
{
    (void)state;
    char name[64];
    problem why;
    struct stat info;
    snprintf(name, sizeof name, "/tmp/ckv_fifo_%ld", (long)getpid());
    assert_int_equal(mkfifo(name, 0600), 0);
    assert_false(safetensors_write(name, NULL, 0, NULL, 0, &why));
    assert_non_null(strstr(why.text, ": not a regular file"));
    assert_false(safetensors_check_writable(name, &why));
    assert_int_equal(stat(name, &info), 0);
    assert_true(S_ISFIFO(info.st_mode));
    remove(name);
}

static void writer_refuses_what_readers_would(void **state)
{
    (void)state;
    static const unsigned char data[4];
    safetensors_tensor same[2] = {{"a", SAFETENSORS_U8, 1, {4}, data, 4}, {"a", SAFETENSORS_U8, 1, {4}, data, 4}};
    safetensors_tensor wrong = {"a", SAFETENSORS_F32, 1, {4}, data, 4};
    safetensors_tensor latin = {"\xe9", SAFETENSORS_U8, 1, {4}, data, 4};
    problem why;
    assert_false(safetensors_write("never_written", NULL, 0, same, 2, &why));
    assert_non_null(strstr(why.text, "two tensors are called 'a'"));
    assert_false(safetensors_write("never_written", NULL, 0, &wrong, 1, &why));
    assert_non_null(strstr(why.text, "tensor 'a' has 4 bytes"));
    assert_false(safetensors_write("never_written", NULL, 0, &latin, 1, &why));
    assert_non_null(strstr(why.text, "not UTF-8"));
    assert_int_not_equal(access("never_written", F_OK), 0);
}

static uint64_t next_random(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

enum { MAX_TENSORS = 12 };

/* Names that JSON has to escape come up too. */
static void random_tensor(uint64_t *seed, int index, char *name, unsigned char *data, safetensors_tensor *tensor)
{
    static const char *const prefixes[] = {"t", "\"layer\" ", "\\", "\xc3\xa9\n"};
    snprintf(name, 32, "%s%d", prefixes[next_random(seed) % 4], index);
    *tensor = (safetensors_tensor){.name = name, .data = data};
    tensor->dtype = (safetensors_dtype)(next_random(seed) % 9);
    tensor->num_dimensions = (int)(next_random(seed) % 4);
    static const size_t bytes_of[] = {4, 2, 2, 1, 1, 1, 1, 1, 1};
    tensor->bytes = bytes_of[tensor->dtype];
    for (int i = 0; i < tensor->num_dimensions; i++) {
        tensor->shape[i] = (int64_t)(next_random(seed) % 5);
        tensor->bytes *= (size_t)tensor->shape[i];
    }
    for (size_t i = 0; i < tensor->bytes; i++)
        data[i] = (unsigned char)next_random(seed);
}

static void assert_same_tensor(const safetensors *file, const safetensors_tensor *wanted)
{
    const safetensors_tensor *found = safetensors_find(file, wanted->name);
    assert_non_null(found);
    assert_int_equal(found->dtype, wanted->dtype);
    assert_int_equal(found->num_dimensions, wanted->num_dimensions);
    assert_memory_equal(found->shape, wanted->shape, sizeof wanted->shape);
    assert_int_equal(found->bytes, wanted->bytes);
    assert_memory_equal(found->data, wanted->data, wanted->bytes);
}

static void what_is_written_reads_back(void **state)
{
    (void)state;
    uint64_t seed = ckv_test_seed();
    char folder[CKV_TEST_FOLDER_BYTES], path[CKV_TEST_FOLDER_BYTES + 8];
    ckv_test_folder(folder);
    snprintf(path, sizeof path, "%s/file", folder);
    for (int round = 0; round < 200; round++) {
        static char names[MAX_TENSORS][32];
        static unsigned char data[MAX_TENSORS][256];
        safetensors_tensor tensors[MAX_TENSORS];
        size_t count = next_random(&seed) % (MAX_TENSORS + 1), num_metadata = next_random(&seed) % 2;
        for (size_t i = 0; i < count; i++)
            random_tensor(&seed, (int)i, names[i], data[i], &tensors[i]);
        const safetensors_entry metadata = {"key", "{\"nested\": [\"json\"]}"};
        problem why = {""};
        safetensors *file;
        if (!safetensors_write(path, &metadata, num_metadata, tensors, count, &why) ||
            !safetensors_read(path, &file, &why))
            fail_msg("round %d: %s", round, why.text);
        assert_int_equal(safetensors_num_tensors(file), count);
        for (size_t i = 0; i < count; i++)
            assert_same_tensor(file, &tensors[i]);
        if (num_metadata != 0)
            assert_string_equal(safetensors_metadata(file, "key"), metadata.value);
        safetensors_free(&file);
    }
}

/* Any byte of a sound file may change: it is read or refused, and what is read lies inside the file. */
static void random_damage_never_crashes(void **state)
{
    (void)state;
    static const char header[] =
        "{\"__metadata__\":{\"k\":\"v\"},\"a\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]},"
        "\"b\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[8,12]}}";
    uint64_t seed = ckv_test_seed();
    bytes file = make_file(sizeof header - 1, header, 12);
    unsigned char *original = malloc(file.size);
    assert_non_null(original);
    memcpy(original, file.at, file.size);
    int refused = 0;
    for (int round = 0; round < 20000; round++) {
        memcpy(file.at, original, file.size);
        for (uint64_t changes = 1 + next_random(&seed) % 3; changes > 0; changes--)
            file.at[next_random(&seed) % file.size] = (unsigned char)next_random(&seed);
        safetensors *parsed;
        problem why;
        if (!safetensors_parse("damaged", file.at, file.size, &parsed, &why)) {
            refused++;
            continue;
        }
        for (size_t i = 0; i < safetensors_num_tensors(parsed); i++) {
            const safetensors_tensor *tensor = safetensors_tensor_at(parsed, i);
            assert_in_range((uintptr_t)tensor->data, (uintptr_t)file.at, (uintptr_t)(file.at + file.size));
            assert_true(tensor->bytes <= (size_t)(file.at + file.size - (const unsigned char *)tensor->data));
        }
        safetensors_free(&parsed);
    }
    assert_in_range(refused, 1000, 19999);
    free(original);
    free(file.at);
}

static const ckv_test_case cases[] = {
    CKV_CASE(refuses_truncated_files),
    CKV_CASE(refuses_absurd_header_lengths),
    CKV_CASE(refuses_malformed_headers),
    CKV_CASE(refuses_deep_nesting),
    CKV_CASE(reads_what_the_format_allows),
    CKV_CASE(names_files_that_cannot_be_read),
    CKV_CASE(writer_replaces_regular_files_only),
    CKV_CASE(writer_refuses_what_readers_would),
    CKV_CASE(what_is_written_reads_back),
    CKV_CASE(random_damage_never_crashes),
};

CKV_TEST_MAIN("safetensors", cases)
