/* SPDX-License-Identifier: Apache-2.0 */
/* ckv bench: correct first, then timed, side by side. */
#include "tools/bench/geometry_file.h"
#include "tools/bench/options.h"
#include "tools/bench/plot.h"
#include "tools/bench/report.h"
#include "tools/common/cli.h"
#include "tools/common/launch_env.h"
#include "tools/common/out_file.h"
#include "tools/common/suggest.h"
#include "tools/trace/gpus.h"
#include "tools/trace/session.h"

#include <ckv/attention.h>
#include <ckv/version.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const double HOST_OPERATIONS = 2e10; /* of one forward of one layer; a second or so */
enum { HOST_RUNS = 5, MAX_RUNS = 100000, MAX_SIZE = 1 << 24 };

typedef struct benchmark {
    const char *name, *summary;
    int (*run)(const bench_options *options, bench_results *results);
    int64_t gpu_runs; /* unless the options say how many */
    bool has_sizes, has_sweep;
} benchmark;

static const benchmark benchmarks[] = {
    {"attention", "a forward over one layer: every backend, and attention over contiguous memory", bench_attention, 30,
     false, true},
    {"blocks", "the block manager on one core of the host", bench_blocks, 30, true, false},
    {"chunk-cycle", "denoising forwards, clean forward and commit of a chunk, all layers", bench_chunk_cycle, 10, false,
     false},
    {"commit", "a commit, all layers", bench_commit, 32, false, false},
    {"exchange", "q, k, v and the output between ranks, over sizes", bench_exchange, 30, true, false},
    {"roofline", "the others beside what this machine reaches", bench_roofline, 30, false, false},
    {"write", "K and V of a chunk written into the cache", bench_write, 30, false, false},
};
enum { NUM_BENCHMARKS = sizeof benchmarks / sizeof benchmarks[0] };

typedef struct request {
    bench_options options;
    const benchmark *benchmark;
    const char *device; /* NULL: cuda where there is one */
    int64_t ranks;      /* 0: as launched */
    int64_t layers;     /* 0: the geometry's */
    bool full_size;
    bool has_geometry_file;
    bool has_pages; /* --pages is given */
} request;

static const char doc_format[] =
    "Measure ckv on this machine: every result is checked before it is timed, and a wrong one prints no figure.\v"
    "Benchmarks:\n%s\n"
    "'ckv bench report FILE...' shows what --json has written.\n\n"
    "Without a GPU the host is measured, at a geometry made small enough for it unless --full-size is given.\n\n"
    "For example: ckv bench attention --geometry cosmos3-nano\n"
    "             mpirun -np 2 ckv bench chunk-cycle --backend hopper --ranks 2 --json cycle_2.json\n"
    "             ckv bench report --plot ranks.svg cycle_1.json cycle_2.json\n\n"
    "Geometries: %s; or a JSON file: {\"q_heads\": 32, \"kv_heads\": 8, \"head_dim\": 128, \"layers\": 36, "
    "\"frame_tokens\": 394, \"chunk_frames\": 4, \"window_frames\": 96, \"pin_tokens\": 512, "
    "\"denoising_forwards\": 4, \"clean_in_frames\": 1}, of which the last three are 0 when they are left out.\n\n"
    "Exit status: 0 measured, 1 a result was wrong, 2 usage, 3 the ranks or the machine failed.";

enum {
    KEY_LAYERS = 256,
    KEY_BACKEND,
    KEY_EXCHANGE,
    KEY_PAGE,
    KEY_DTYPE,
    KEY_PAGES,
    KEY_RANKS,
    KEY_DEVICE,
    KEY_RUNS,
    KEY_SIZES,
    KEY_GRAPH,
    KEY_EAGER,
    KEY_CLOCK,
    KEY_SWEEP,
    KEY_TOLERANCE,
    KEY_FULL,
    KEY_JSON,
    KEY_MARKDOWN,
    KEY_PLOT
};

static const struct argp_option option_table[] = {
    {"geometry", 'g', "NAME|FILE", 0, "the model (default cosmos3-nano)", 1},
    {"full-size", KEY_FULL, NULL, 0, "on the host too, the geometry as it is", 1},
    {"layers", KEY_LAYERS, "N", 0, "layers (default: the geometry's)", 1},
    {"page", KEY_PAGE, "TOKENS", 0, "tokens of a page, a power of two (default 32)", 1},
    {"dtype", KEY_DTYPE, "DTYPE", 0, "of q, k, v and the output: bf16 (default), fp16, fp32", 1},
    {"pages", KEY_PAGES, "DTYPE", 0, "of what pages keep: as --dtype (default), or fp8_e4m3 (attention)", 1},
    {"sizes", KEY_SIZES, "N,N,...", 0, "numbers of tokens, for exchange and blocks", 1},
    {"sweep", KEY_SWEEP, "WHAT", 0,
     "attention over several window lengths, page sizes or numbers of blocks: window, page, blocks", 1},
    {"device", KEY_DEVICE, "NAME", 0, "cuda or host (default: cuda where there is a GPU)", 2},
    {"backend", KEY_BACKEND, "NAME", 0, "one attention backend: host, cudnn, hopper (default: all there are)", 2},
    {"exchange", KEY_EXCHANGE, "NAME", 0, "how ranks exchange heads: auto (default), fused, sendrecv", 2},
    {"ranks", KEY_RANKS, "N", 0, "refuse to run on another number of ranks than the launcher started", 2},
    {"runs", KEY_RUNS, "N", 0, "timed runs of each (default 30, of chunk-cycle 10, on the host 5)", 3},
    {"graph", KEY_GRAPH, NULL, 0, "only captured and replayed (default: also eager)", 3},
    {"eager", KEY_EAGER, NULL, 0, "only eager; chunk-cycle replays graphs otherwise", 3},
    {"clock", KEY_CLOCK, "NAME", 0,
     "auto (default): cupti where it can be loaded; cupti: first to last kernel; events: between two CUDA events", 3},
    {"tolerance", KEY_TOLERANCE, "T", 0,
     "largest absolute difference that is right (default: by dtype, relative to the largest value)", 3},
    {"json", KEY_JSON, "FILE", 0, "write JSON; -: to standard output, instead of the table", 4},
    {"markdown", KEY_MARKDOWN, NULL, 0, "print Markdown", 4},
    {"plot", KEY_PLOT, "FILE", 0, "draw what was swept as SVG", 4},
    {0}};

static error_t one_of(const char *option, const char *text, const char *const *names, const char *all, int *index_out)
{
    for (int i = 0; names[i] != NULL; i++) {
        if (strcmp(text, names[i]) == 0) {
            *index_out = i;
            return 0;
        }
    }
    return cli_usage_error("%s is '%s'; it must be %s", option, text, all);
}

static error_t set_geometry(request *r, const char *name)
{
    problem why;
    const model_geometry *known = geometry_find(name);
    r->has_geometry_file = known == NULL;
    if (known != NULL) {
        r->options.geometry = *known;
        return 0;
    }
    if (strchr(name, '/') == NULL && strchr(name, '.') == NULL)
        return cli_usage_error("--geometry is '%s'; it must be one of %s, or a JSON file", name, geometry_names());
    return geometry_read_file(name, &r->options.geometry, &why) ? 0 : cli_usage_error("--geometry: %s", why.text);
}

static error_t set_sizes(bench_options *o, char *text)
{
    char *rest = text;
    o->num_sizes = 0;
    for (char *part = strsep(&rest, ","); part != NULL; part = strsep(&rest, ",")) {
        if (o->num_sizes == BENCH_MAX_SIZES)
            return cli_usage_error("--sizes holds more than %d sizes", BENCH_MAX_SIZES);
        error_t error = cli_parse_integer("--sizes", part, 1, MAX_SIZE, &o->sizes[o->num_sizes++]);
        if (error != 0)
            return error;
    }
    return 0;
}

static error_t set_benchmark(request *r, const char *name)
{
    char names[128];
    size_t used = 0;
    suggestion near = suggest_begin(name);
    if (r->benchmark != NULL)
        return cli_usage_error("one benchmark at a time: '%s' is too many", name);
    for (size_t i = 0; i < NUM_BENCHMARKS; i++) {
        if (strcmp(name, benchmarks[i].name) == 0)
            r->benchmark = &benchmarks[i];
        suggest_offer(&near, benchmarks[i].name);
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i > 0 ? ", " : "", benchmarks[i].name);
    }
    if (r->benchmark != NULL)
        return 0;
    if (near.best == NULL)
        return cli_usage_error("unknown benchmark '%s'; it must be one of %s", name, names);
    return cli_usage_error("unknown benchmark '%s', did you mean '%s'?", name, near.best);
}

static error_t set_launch(bench_options *o, bench_launch launch)
{
    if (o->launch != BENCH_GRAPH_AND_EAGER && o->launch != launch)
        return cli_usage_error("--graph and --eager exclude each other; both are measured when neither is given");
    o->launch = launch;
    return 0;
}

static error_t set_tolerance(bench_options *o, const char *text)
{
    char *end;
    o->tolerance = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(o->tolerance) || o->tolerance < 0)
        return cli_usage_error("--tolerance is '%s'; it must be a number of 0 or more", text);
    return 0;
}

static error_t set_page(bench_options *o, const char *text)
{
    error_t error = cli_parse_integer("--page", text, 1, 1 << 20, &o->page);
    if (error == 0 && (o->page & (o->page - 1)) != 0)
        error = cli_usage_error("--page is %s; it must be a power of two", text);
    return error;
}

static error_t parse_choice(int key, const char *text, bench_options *o)
{
    static const char *const clocks[] = {"auto", "events", "cupti", NULL};
    static const char *const sweeps[] = {"none", "window", "page", "blocks", NULL};
    static const char *const exchanges[] = {"auto", "fused", "sendrecv", NULL};
    int index = 0;
    error_t error;
    if (key == KEY_EXCHANGE) {
        error = one_of("--exchange", text, exchanges, "auto, fused or sendrecv", &index);
        o->exchange = exchanges[index];
    } else if (key == KEY_CLOCK) {
        error = one_of("--clock", text, clocks, "auto, events or cupti", &index);
        o->clock = (bench_clock)index;
    } else {
        error = one_of("--sweep", text, sweeps, "window, page or blocks", &index);
        o->sweep = (bench_sweep)index;
    }
    return error;
}

static error_t parse_output(int key, const char *text, bench_options *o)
{
    if (key == KEY_JSON)
        o->json = text;
    else if (key == KEY_PLOT)
        o->plot = text;
    else
        o->markdown = true;
    return 0;
}

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    request *r = state->input;
    bench_options *o = &r->options;
    switch (key) {
    case 'g':
        return set_geometry(r, text);
    case KEY_FULL:
        r->full_size = true;
        return 0;
    case KEY_LAYERS:
        return cli_parse_integer("--layers", text, 1, 4096, &r->layers);
    case KEY_BACKEND:
        o->backend = text;
        return 0;
    case KEY_PAGE:
        return set_page(o, text);
    case KEY_DTYPE:
        return ckv_tensor_dtype_from_name(text, &o->dtype) == CKV_OK ? 0
                                                                     : cli_usage_error("--dtype: %s", ckv_last_error());
    case KEY_PAGES:
        r->has_pages = true;
        return ckv_dtype_from_name(text, &o->pages) == CKV_OK ? 0 : cli_usage_error("--pages: %s", ckv_last_error());
    case KEY_RANKS:
        return cli_parse_integer("--ranks", text, 1, INT32_MAX, &r->ranks);
    case KEY_DEVICE:
        r->device = text;
        return 0;
    case KEY_RUNS:
        return cli_parse_integer("--runs", text, 1, MAX_RUNS, &o->runs);
    case KEY_SIZES:
        return set_sizes(o, text);
    case KEY_GRAPH:
    case KEY_EAGER:
        return set_launch(o, key == KEY_GRAPH ? BENCH_GRAPH : BENCH_EAGER);
    case KEY_CLOCK:
    case KEY_EXCHANGE:
    case KEY_SWEEP:
        return parse_choice(key, text, o);
    case KEY_TOLERANCE:
        return set_tolerance(o, text);
    case KEY_JSON:
    case KEY_MARKDOWN:
    case KEY_PLOT:
        return parse_output(key, text, o);
    case ARGP_KEY_ARG:
        return set_benchmark(r, text);
    case ARGP_KEY_NO_ARGS:
        return cli_usage_error("a benchmark is missing");
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int bench_exit_code(const bench_options *options, ckv_status status)
{
    if (status == CKV_OK)
        return CLI_OK;
    if (launch_speaks(options->comm, status))
        cli_error("ckv bench", "%s: %s", options->benchmark, ckv_last_error());
    bool refused = status == CKV_ERROR_INVALID || status == CKV_ERROR_UNSUPPORTED || status == CKV_ERROR_CAPACITY;
    return refused ? CLI_USAGE : CLI_INTERNAL;
}

static int refuse(const request *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

static int refuse(const request *r, const char *format, ...)
{
    problem why;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why.text, sizeof why.text, format, arguments);
    va_end(arguments);
    if (r->options.speaks)
        cli_error("ckv bench", "%s; see 'ckv bench --help'", why.text);
    return CLI_USAGE;
}

/* What would be ignored. */
static int check_use(const request *r)
{
    const benchmark *b = r->benchmark;
    if (r->options.num_sizes > 0 && !b->has_sizes)
        return refuse(r, "--sizes is for exchange and blocks, not for %s", b->name);
    if (r->options.sweep != BENCH_SWEEP_NONE && !b->has_sweep)
        return refuse(r, "--sweep is for attention, not for %s", b->name);
    return CLI_OK;
}

static int choose_device(request *r)
{
    bench_options *o = &r->options;
    const char *name = r->device;
    if (name == NULL)
        name = ckv_device_find("cuda", &o->device) == CKV_OK ? "cuda" : "host";
    if (strcmp(name, "cuda") != 0 && strcmp(name, "host") != 0)
        return refuse(r, "--device is '%s'; it must be cuda or host", name);
    if (ckv_device_find(name, &o->device) != CKV_OK)
        return refuse(r, "--device %s: %s", name, ckv_last_error());
    o->on_gpu = strcmp(name, "cuda") == 0;
    if (!o->on_gpu && o->launch == BENCH_GRAPH)
        return refuse(r, "--graph needs a GPU, and the host is measured");
    if (!o->on_gpu && o->clock == BENCH_CLOCK_CUPTI)
        return refuse(r, "--clock cupti needs a GPU, and the host is measured");
    o->launch = o->on_gpu ? o->launch : BENCH_EAGER;
    if (o->runs == 0)
        o->runs = o->on_gpu ? r->benchmark->gpu_runs : HOST_RUNS;
    return CLI_OK;
}

static int choose_pages(request *r)
{
    bench_options *o = &r->options;
    if (!r->has_pages)
        o->pages = o->dtype;
    if (o->pages != o->dtype && (o->pages != CKV_FP8_E4M3 || strcmp(r->benchmark->name, "attention") != 0))
        return refuse(r,
                      "--pages is %s and --dtype %s; pages keep K and V as they come, but for attention over fp8_e4m3",
                      ckv_dtype_name(o->pages), ckv_dtype_name(o->dtype));
    return CLI_OK;
}

static int check_backend(const request *r)
{
    const char *name = r->options.backend;
    for (size_t i = 0; name != NULL && i < ckv_attention_num_backends(); i++)
        if (strcmp(name, ckv_attention_backend_name(i)) == 0)
            return CLI_OK;
    return name == NULL ? CLI_OK : refuse(r, "--backend is '%s', which this build does not have", name);
}

static void shape_geometry(request *r)
{
    bench_options *o = &r->options;
    const model_geometry full = o->geometry;
    model_geometry *g = &o->geometry;
    if (!o->on_gpu && !r->full_size && !r->has_geometry_file)
        geometry_scale(g, HOST_OPERATIONS);
    if (g->q_heads != full.q_heads || g->window_frames != full.window_frames || g->layers != full.layers)
        snprintf(o->scaled, sizeof o->scaled,
                 "scaled to this machine: %" PRId64 "/%" PRId64 " of %" PRId64 "/%" PRId64 " heads, window %" PRId64
                 " of %" PRId64 " frames, %" PRId64 " of %" PRId64 " layers",
                 g->q_heads, g->kv_heads, full.q_heads, full.kv_heads, g->window_frames, full.window_frames, g->layers,
                 full.layers);
    if (r->layers != 0)
        g->layers = r->layers;
}

static int connect_ranks(request *r)
{
    problem why;
    bench_options *o = &r->options;
    ckv_comm *gpus = NULL;
    ckv_status status = o->on_gpu ? gpus_connect(o->host, &gpus, &why) : CKV_OK;
    if (gpus != NULL)
        o->comm = gpus;
    if (status == CKV_OK)
        return CLI_OK;
    if (launch_speaks(o->host, status))
        cli_error("ckv bench", "--device cuda: %s", why.text);
    return status == CKV_ERROR_INVALID || status == CKV_ERROR_UNSUPPORTED ? CLI_USAGE : CLI_INTERNAL;
}

static bool is_file(const char *json)
{
    return json != NULL && strcmp(json, "-") != 0;
}

static bool can_write(const request *r, problem *why)
{
    const bench_options *o = &r->options;
    const struct {
        const char *option, *path;
    } outputs[] = {{"--json", is_file(o->json) ? o->json : NULL}, {"--plot", o->plot}};
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++) {
        problem cause;
        const char *option = outputs[i].option, *path = outputs[i].path;
        if (path != NULL && r->has_geometry_file && is_one_file(path, o->geometry.source))
            return problem_set(why, "%s %s is the geometry itself; give another file", option, path);
        if (path != NULL && !out_file_check(path, &cause))
            return problem_set(why, "%s: %s", option, cause.text);
    }
    if (outputs[0].path != NULL && o->plot != NULL && is_one_file(outputs[0].path, o->plot))
        return problem_set(why, "--json and --plot are both %s; give two files", o->plot);
    return true;
}

/* What would only be told when everything is measured. Rank 0 writes, and no rank goes on alone. */
static int check_outputs(const request *r)
{
    problem why;
    const bench_options *o = &r->options;
    ckv_status status = !o->speaks || can_write(r, &why) ? CKV_OK : CKV_ERROR_INVALID;
    status = session_agree(o->host, status, &why);
    if (status == CKV_OK)
        return CLI_OK;
    if (launch_speaks(o->host, status))
        cli_error("ckv bench", "%s", why.text);
    return status == CKV_ERROR_INVALID ? CLI_USAGE : CLI_INTERNAL;
}

static int prepare(request *r)
{
    bench_options *o = &r->options;
    int size = ckv_comm_size(o->host);
    if (r->ranks != 0 && r->ranks != size)
        return refuse(r, "--ranks is %" PRId64 ", and %d %s: mpirun -np %" PRId64 " ckv bench ...", r->ranks, size,
                      size == 1 ? "runs" : "run", r->ranks);
    int code = check_use(r);
    if (code == CLI_OK)
        code = choose_device(r);
    if (code == CLI_OK)
        code = check_backend(r);
    if (code == CLI_OK)
        code = choose_pages(r);
    if (code == CLI_OK)
        code = check_outputs(r);
    if (code != CLI_OK)
        return code;
    shape_geometry(r);
    return connect_ranks(r);
}

/* The model's name of the processor, as Linux tells it. */
static void add_processor(bench_results *results)
{
    static const char key[] = "model name";
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        const char *value = strchr(line, ':');
        if (strncmp(line, key, sizeof key - 1) != 0 || value == NULL)
            continue;
        line[strcspn(line, "\n")] = '\0';
        bench_results_fact(results, "processor", "%s, %ld of them", value + 2, sysconf(_SC_NPROCESSORS_ONLN));
        break;
    }
    if (file != NULL)
        fclose(file);
}

static void first_facts(const request *r, bench_results *results)
{
    const bench_options *o = &r->options;
    const model_geometry *g = &o->geometry;
    if (o->on_gpu)
        bench_results_fact(results, "device", "a GPU");
    else
        bench_results_fact(results, "device", "the host, no GPU: %s", o->scaled[0] != '\0' ? o->scaled : "full size");
    if (!o->on_gpu)
        add_processor(results);
    bench_results_fact(results, "ckv", "%s", ckv_version());
    bench_results_fact(results, "command", "%s", o->command);
    bench_results_fact(results, "geometry",
                       "%s: %" PRId64 "/%" PRId64 " heads of %" PRId64 ", %" PRId64 " layers, prompt or sink %" PRId64
                       ", window %" PRId64 " frames, chunk %" PRId64 " frames of %" PRId64 " tokens; %s, pages of "
                       "%" PRId64 " tokens of %s",
                       g->name, g->q_heads, g->kv_heads, g->head_dim, g->layers, g->pin_tokens, g->window_frames,
                       g->chunk_frames, g->frame_tokens, ckv_dtype_name(o->dtype), o->page, ckv_dtype_name(o->pages));
    if (ckv_comm_size(o->host) > 1)
        bench_results_fact(results, "ranks", "%d, %s", ckv_comm_size(o->comm), ckv_comm_transport(o->comm));
}

static bool write_json(const bench_options *o, const bench_results *results, problem *why)
{
    out_file file;
    if (!out_file_open(o->json, &file, why))
        return false;
    bench_results_print_json(results, file.stream);
    return out_file_close(&file, true, why);
}

/* What was measured is kept before anything is drawn of it. */
static int write_files(const bench_options *o, const bench_results *results)
{
    problem why;
    if (is_file(o->json) && !write_json(o, results, &why)) {
        cli_error("ckv bench", "--json: %s", why.text);
        return CLI_INTERNAL;
    }
    if (o->plot == NULL || bench_plot_write(results, BENCH_PLOT_TIME, o->plot, &why))
        return CLI_OK;
    cli_error("ckv bench", "--plot: %s", why.text);
    return bench_results_failures(results) > 0 ? CLI_FAIL : CLI_USAGE; /* a wrong result leaves nothing to draw */
}

static int print_results(const bench_options *o, const bench_results *results)
{
    bool json_out = o->json != NULL && !is_file(o->json);
    bench_results_print(results, json_out ? BENCH_JSON : o->markdown ? BENCH_MARKDOWN : BENCH_TEXT, stdout);
    return write_files(o, results);
}

static int run(request *r)
{
    bench_options *o = &r->options;
    int code = prepare(r);
    if (code != CLI_OK)
        return code;
    bench_results *results = bench_results_create();
    first_facts(r, results);
    code = r->benchmark->run(o, results);
    if (code == CLI_OK && o->speaks)
        code = print_results(o, results);
    if (code == CLI_OK && bench_results_failures(results) > 0)
        code = CLI_FAIL;
    bench_results_destroy(&results);
    return code;
}

/* What is measured; where it is written does not matter to who measures it again. */
static void keep_command(bench_options *o, int argc, char **argv)
{
    size_t used = 0;
    if (launch_env_size() > 1)
        used = (size_t)snprintf(o->command, sizeof o->command, "mpirun -np %d ", launch_env_size());
    for (int i = 0; i < argc && used < sizeof o->command; i++) {
        bool is_output =
            strncmp(argv[i], "--json", strlen("--json")) == 0 || strncmp(argv[i], "--plot", strlen("--plot")) == 0;
        if (is_output && strchr(argv[i], '=') == NULL)
            i++; /* its value */
        if (!is_output)
            used += (size_t)snprintf(o->command + used, sizeof o->command - used, "%s%s", i > 0 ? " " : "", argv[i]);
    }
}

static const char *make_doc(void)
{
    static char doc[4096];
    char list[1024];
    size_t used = 0;
    for (size_t i = 0; i < NUM_BENCHMARKS; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "  %-12s %s\n", benchmarks[i].name,
                                 benchmarks[i].summary);
    snprintf(doc, sizeof doc, doc_format, list, geometry_names());
    return doc;
}

int cmd_bench(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "report") == 0) {
        char name[] = "ckv bench report";
        argv[1] = name;
        return bench_report(argc - 1, argv + 1);
    }
    const struct argp argp = {option_table, parse_option, "BENCHMARK", make_doc(), NULL, NULL, NULL};
    request r = {.options = {.geometry = *geometry_find("cosmos3-nano"),
                             .page = 32,
                             .dtype = CKV_BF16,
                             .exchange = "auto",
                             .tolerance = -1}};
    bench_options *o = &r.options;
    keep_command(o, argc, argv);
    int parsed = launch_parse(&argp, argc, argv, &r);
    int code = launch_start(argv[0], &o->host);
    if (code != CLI_OK)
        return code;
    o->comm = o->host;
    o->speaks = ckv_comm_rank(o->host) == 0;
    if (parsed == CLI_OK)
        o->benchmark = r.benchmark->name;
    /* the ranks leave together: a launcher stops the others when one leaves with an error */
    code = parsed == CLI_OK ? run(&r) : parsed;
    if (o->comm != o->host)
        ckv_comm_destroy(&o->comm);
    return launch_end(&o->host, code);
}
