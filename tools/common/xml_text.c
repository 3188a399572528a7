/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/xml_text.h"

#include <stdbool.h>

/* Bytes of the well-formed UTF-8 character at text[0] that XML 1.0 allows; 0 when there is none. */
static size_t xml_character(const unsigned char *text, size_t bytes)
{
    unsigned char first = text[0];
    if (first < 0x80)
        return first >= 0x20 || first == '\t' || first == '\n';
    size_t length = first >= 0xC2 && first < 0xE0 ? 2 : first >= 0xE0 && first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
    if (first < 0xC2 || length == 0 || length > bytes)
        return 0;
    unsigned long code = first & (0x7FU >> length);
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xC0) != 0x80)
            return 0;
        code = code << 6 | (text[i] & 0x3FU);
    }
    bool is_long = (length == 3 && code < 0x800) || (length == 4 && (code < 0x10000 || code > 0x10FFFF));
    bool is_surrogate = code >= 0xD800 && code <= 0xDFFF;
    return is_long || is_surrogate || code == 0xFFFE || code == 0xFFFF ? 0 : length;
}

void xml_put_text(FILE *stream, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes;) {
        size_t length = xml_character((const unsigned char *)text + i, bytes - i);
        if (length == 0)
            fprintf(stream, "\\x%02x", (unsigned char)text[i]);
        else if (text[i] == '&')
            fputs("&amp;", stream);
        else if (text[i] == '<')
            fputs("&lt;", stream);
        else if (text[i] == '>')
            fputs("&gt;", stream);
        else if (text[i] == '"')
            fputs("&quot;", stream);
        else
            fwrite(text + i, 1, length, stream);
        i += length > 0 ? length : 1;
    }
}
