/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/lists/diag.h"

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>

enum { SHOWN_CHARACTERS = 240, MESSAGE_BYTES = 2048 };

/* Bytes of the line break at text[0], 0 when there is none. The breaks of YAML 1.1, so that lines count as libyaml's
 * do: LF, CR, CR LF, NEL, LS, PS. */
static size_t break_bytes(const char *text, size_t size)
{
    const unsigned char *byte = (const unsigned char *)text;
    if (size >= 2 && byte[0] == '\r' && byte[1] == '\n')
        return 2;
    if (size >= 1 && (byte[0] == '\n' || byte[0] == '\r'))
        return 1;
    if (size >= 2 && byte[0] == 0xC2 && byte[1] == 0x85)
        return 2;
    if (size >= 3 && byte[0] == 0xE2 && byte[1] == 0x80 && (byte[2] == 0xA8 || byte[2] == 0xA9))
        return 3;
    return 0;
}

static bool starts_character(char byte)
{
    return ((unsigned char)byte & 0xC0) != 0x80;
}

size_t text_characters(const char *text, size_t bytes)
{
    size_t characters = 0;
    for (size_t i = 0; i < bytes; i++)
        characters += starts_character(text[i]);
    return characters;
}

text_position text_position_of(const text_source *source, size_t offset)
{
    text_position at = {1, 1};
    if (offset > source->size)
        offset = source->size;
    for (size_t i = 0; i < offset;) {
        size_t bytes = break_bytes(source->text + i, source->size - i);
        if (bytes > 0 && i + bytes <= offset) {
            at = (text_position){at.line + 1, 1};
            i += bytes;
        } else {
            at.column += starts_character(source->text[i]);
            i++;
        }
    }
    return at;
}

/* The bytes of a line, without its break; length 0 when there is no such line. */
static size_t find_line(const text_source *source, size_t line, const char **start_out)
{
    size_t i = 0;
    while (line > 1 && i < source->size) {
        size_t bytes = break_bytes(source->text + i, source->size - i);
        line -= bytes > 0;
        i += bytes > 0 ? bytes : 1;
    }
    size_t end = i;
    while (end < source->size && break_bytes(source->text + end, source->size - end) == 0)
        end++;
    *start_out = source->text + i;
    return end - i;
}

static void skip_characters(const char **text, size_t *bytes, size_t characters)
{
    size_t i = 0;
    for (; i < *bytes; i++)
        if (starts_character((*text)[i]) && characters-- == 0)
            break;
    *text += i;
    *bytes -= i;
}

/* Bytes of the well-formed UTF-8 character at text[0]; 0 when it is none. */
static size_t character_bytes(const char *text, size_t size)
{
    unsigned char lead = (unsigned char)text[0];
    size_t bytes = lead < 0x80                   ? 1
                   : lead >= 0xC2 && lead < 0xE0 ? 2
                   : (lead & 0xF0) == 0xE0       ? 3
                   : lead >= 0xF0 && lead < 0xF5 ? 4
                                                 : 0;
    if (bytes > size)
        return 0;
    for (size_t i = 1; i < bytes; i++)
        if (starts_character(text[i]))
            return 0;
    return bytes;
}

/* A terminal never sees a control character or a broken byte of the file. Tabs stay: the caret keeps its place. */
static void print_character(FILE *stream, const char *text, size_t bytes)
{
    unsigned char first = (unsigned char)text[0];
    bool is_c0 = (first < 0x20 && first != '\t') || first == 0x7F;
    bool is_c1 = bytes == 2 && first == 0xC2 && (unsigned char)text[1] < 0xA0;
    if (bytes == 0 || is_c0 || is_c1)
        putc('?', stream);
    else
        fwrite(text, 1, bytes, stream);
}

static void print_text(FILE *stream, const char *text, size_t bytes, size_t characters)
{
    for (size_t i = 0; i < bytes && characters > 0; characters--) {
        size_t width = character_bytes(text + i, bytes - i);
        print_character(stream, text + i, width);
        i += width > 0 ? width : 1;
    }
}

static void print_source_line(FILE *stream, const text_source *source, text_position at)
{
    const char *line;
    size_t bytes = find_line(source, at.line, &line);
    size_t column = at.column;
    if (column > SHOWN_CHARACTERS / 2) {
        skip_characters(&line, &bytes, column - SHOWN_CHARACTERS / 2);
        column = SHOWN_CHARACTERS / 2;
    }
    print_text(stream, line, bytes, SHOWN_CHARACTERS);
    putc('\n', stream);
    for (size_t i = 0, character = 1; character < column; i++) {
        if (i < bytes && !starts_character(line[i]))
            continue;
        putc(i < bytes && line[i] == '\t' ? '\t' : ' ', stream);
        character++;
    }
    fputs("^\n", stream);
}

bool diag_report(diagnostics *log, diag_level level, const text_source *source, text_position at, const char *format,
                 ...)
{
    static const char *const prefix[] = {"", "warning: ", "note: "};
    log->errors += level == DIAG_ERROR;
    log->warnings += level == DIAG_WARNING;
    char message[MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    print_text(log->stream, source->name, strlen(source->name), SIZE_MAX);
    fprintf(log->stream, ":%zu:%zu: %s", at.line, at.column, prefix[level]);
    print_text(log->stream, message, strlen(message), SIZE_MAX);
    putc('\n', log->stream);
    print_source_line(log->stream, source, at);
    return false;
}

bool diag_file(diagnostics *log, const char *path, const char *cause)
{
    print_text(log->stream, path, strlen(path), SIZE_MAX);
    fprintf(log->stream, ": %s\n", cause);
    log->errors++;
    return false;
}

static bool read_failed(diagnostics *log, FILE *file, const char *path, const char *cause)
{
    diag_file(log, path, cause);
    if (file != NULL)
        fclose(file);
    return false;
}

bool text_read(arena *memory, diagnostics *log, const char *path, size_t limit, text_source *source_out)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return read_failed(log, NULL, path, strerror(errno));
    struct stat info;
    if (fstat(fileno(file), &info) != 0)
        return read_failed(log, file, path, strerror(errno));
    if (S_ISDIR(info.st_mode))
        return read_failed(log, file, path, "is a folder; a file is needed");
    if (S_ISREG(info.st_mode) && (uint64_t)info.st_size > limit)
        return read_failed(log, file, path, "is too large to be what it should be");

    /* the size is a guess: a pipe has none, and a file may grow while it is read */
    size_t size = 0, capacity = S_ISREG(info.st_mode) ? (size_t)info.st_size + 1 : 16384;
    char *text = arena_alloc(memory, capacity);
    for (;;) {
        size += fread(text + size, 1, capacity - size, file);
        if (size < capacity)
            break;
        if (size > limit)
            return read_failed(log, file, path, "is too large to be what it should be");
        char *larger = arena_alloc(memory, capacity * 2);
        memcpy(larger, text, size);
        text = larger;
        capacity *= 2;
    }
    if (ferror(file))
        return read_failed(log, file, path, strerror(errno));
    fclose(file);
    *source_out = (text_source){arena_copy(memory, path, strlen(path)), text, size};
    return true;
}
