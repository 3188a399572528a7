/* SPDX-License-Identifier: Apache-2.0 */
/* The page: a template, and what a trace puts into it. A trace is from a stranger, so nothing of it gets in unescaped.
 */
#include "tools/common/out_file.h"
#include "tools/common/xml_text.h"
#include "tools/report/page_text.h"
#include "tools/report/report.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 500 };

static void put_text(FILE *out, const char *text)
{
    xml_put_text(out, text, strlen(text));
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text == NULL ? "" : text;
}

static int64_t integer_of(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

static void put_title(FILE *out, const json_t *report)
{
    fputs("ckv report: ", out);
    put_text(out, text_of(report, "name"));
}

static void put_number(FILE *out, const json_t *number)
{
    if (json_is_string(number))
        put_text(out, json_string_value(number));
    else if (json_is_number(number))
        fprintf(out, "%.2g", json_number_value(number));
    else
        fputs("&ndash;", out);
}

static void put_verdict(FILE *out, const json_t *forward)
{
    const json_t *explained = json_object_get(forward, "explained");
    const json_t *worst = json_array_get(json_object_get(explained, "blocks"), 0);
    fputs(strcmp(text_of(forward, "verdict"), "ok") == 0 ? "ok" : "WRONG", out);
    if (explained == NULL)
        return;
    fputs(": ", out);
    if (json_object_get(worst, "class") != NULL) {
        put_text(out, text_of(worst, "class"));
        fputs(": ", out);
        put_text(out, text_of(worst, "what"));
    } else {
        put_text(out, worst == NULL ? text_of(explained, "refused") : "no known mistake fits");
    }
}

static void put_row(FILE *out, const json_t *forward)
{
    int64_t n = integer_of(forward, "n");
    fprintf(out, "<tr class=\"%s\"><td><a href=\"#forward=%" PRId64 "\">%" PRId64 "</a></td><td>%" PRId64 "</td><td>",
            text_of(forward, "verdict"), n, n, integer_of(forward, "layer"));
    fputs("<bdi>", out); /* whatever the name does to the direction of text ends there */
    put_text(out, text_of(forward, "tensor"));
    fprintf(out, "</bdi></td><td>%" PRId64 "</td><td>%" PRId64 "</td><td>", integer_of(forward, "seq_len"),
            integer_of(forward, "padded"));
    put_number(out, json_object_get(json_object_get(forward, "recorded"), "error"));
    fputs("</td><td>", out);
    put_number(out, json_object_get(json_object_get(forward, "replayed"), "error"));
    fputs("</td><td>", out);
    put_number(out, json_object_get(forward, "tolerance"));
    fputs("</td><td>", out);
    put_verdict(out, forward);
    fputs("</td></tr>\n", out);
}

static void put_facts(FILE *out, const json_t *report)
{
    const json_t *config = json_object_get(report, "config");
    int64_t forwards = integer_of(report, "num_forwards"), wrong = integer_of(report, "num_wrong");
    fprintf(out,
            "<p class=\"verdict %s\"><strong>%" PRId64 " forwards, %" PRId64 " ok, %" PRId64 " wrong</strong></p>\n",
            wrong > 0 ? "wrong" : "ok", forwards, forwards - wrong, wrong);
    fprintf(out,
            "<p>%" PRId64 " layer%s, %" PRId64 " query and %" PRId64 " K/V heads of %" PRId64 ", %s, pages of %" PRId64
            " tokens; sharded over %" PRId64 " rank%s; ckv %s</p>\n",
            integer_of(config, "layers"), integer_of(config, "layers") == 1 ? "" : "s", integer_of(config, "q_heads"),
            integer_of(config, "kv_heads"), integer_of(config, "head_dim"), text_of(config, "dtype"),
            integer_of(config, "tokens_per_page"), integer_of(report, "ranks"),
            integer_of(report, "ranks") == 1 ? "" : "s", text_of(report, "version"));
}

/* All there is without a script. Wrong forwards come first when not all fit. */
static void put_summary(FILE *out, const json_t *report)
{
    const json_t *forwards = json_object_get(report, "forwards");
    size_t count = json_array_size(forwards), left = MAX_ROWS, rows = 0;
    put_facts(out, report);
    fputs("<details id=\"all\" open><summary>All forwards</summary>\n<div class=\"scroll\"><table>\n<thead><tr>"
          "<th scope=\"col\">forward</th><th scope=\"col\">layer</th><th scope=\"col\">tensor</th>"
          "<th scope=\"col\">tokens</th><th scope=\"col\">padded</th><th scope=\"col\">recorded off by</th>"
          "<th scope=\"col\">replayed off by</th><th scope=\"col\">tolerance</th><th scope=\"col\">verdict</th>"
          "</tr></thead>\n<tbody>\n",
          out);
    size_t not_ok = 0;
    for (size_t i = 0; i < count; i++)
        not_ok += strcmp(text_of(json_array_get(forwards, i), "verdict"), "ok") != 0;
    left -= not_ok < left ? not_ok : left; /* for those that are right */
    for (size_t i = 0; i < count && rows < MAX_ROWS; i++) {
        const json_t *forward = json_array_get(forwards, i);
        bool is_ok = strcmp(text_of(forward, "verdict"), "ok") == 0;
        if (is_ok && left == 0)
            continue;
        left -= is_ok;
        put_row(out, forward);
        rows++;
    }
    fputs("</tbody></table></div>\n", out);
    if ((int64_t)rows < integer_of(report, "num_forwards"))
        fprintf(out, "<p>%" PRId64 " more forwards are not listed; <code>ckv replay</code> lists all.</p>\n",
                integer_of(report, "num_forwards") - (int64_t)rows);
    fputs("</details>\n", out);
}

/* JSON inside a script element: no markup may begin there. */
static void put_data(FILE *out, const json_t *report)
{
    char *text = json_dumps(report, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(6));
    for (const char *c = text; c != NULL && *c != '\0'; c++) {
        if (*c == '<' || *c == '>' || *c == '&')
            fprintf(out, "\\u%04x", (unsigned char)*c);
        else
            fputc(*c, out);
    }
    free(text);
}

static void put_style(FILE *out, const json_t *report)
{
    (void)report;
    fputs(page_css, out);
}

static void put_script(FILE *out, const json_t *report)
{
    (void)report;
    fputs(page_js, out);
}

static bool put_page(FILE *out, const json_t *report)
{
    static const struct {
        const char *place;
        void (*put)(FILE *out, const json_t *report);
    } parts[] = {{"@TITLE@", put_title},
                 {"@STYLE@", put_style},
                 {"@SUMMARY@", put_summary},
                 {"@DATA@", put_data},
                 {"@SCRIPT@", put_script}};
    const char *rest = page_html;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        const char *place = strstr(rest, parts[i].place);
        fwrite(rest, 1, (size_t)(place - rest), out);
        parts[i].put(out, report);
        rest = place + strlen(parts[i].place);
    }
    fputs(rest, out);
    return ferror(out) == 0;
}

bool report_write(const json_t *report, const char *path, problem *why)
{
    out_file file;
    return out_file_open(path, &file, why) && out_file_close(&file, put_page(file.stream, report), why);
}
