/* SPDX-License-Identifier: Apache-2.0 */
/* Names and meanings follow TensorRT-LLM's get_sysinfo.py, so that its lists match: gpu is NVML's name without "NVIDIA
 * ", in capitals; memory is in MiB; cuda_version is the newest that the driver runs; mixed GPUs have no common name, so
 * `gpu` is null and gpu_names tells them all. */
#include "tools/lists/facts.h"
#include "tools/lists/nvml.h"

#include <ckv/version.h>
#include <ctype.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <unistd.h>

#define MIB ((uint64_t)1024 * 1024)

static void put_text(json_t *facts, const char *key, const char *text)
{
    json_object_set_new(facts, key, text == NULL || text[0] == '\0' ? json_null() : json_string(text));
}

static void put_integer(json_t *facts, const char *key, uint64_t value)
{
    json_object_set_new(facts, key, json_integer((json_int_t)value));
}

/* "NVIDIA H100 80GB HBM3" becomes "H100 80GB HBM3". */
static void short_name(const char *name, char *out, size_t size)
{
    static const char vendor[] = "NVIDIA ";
    if (strncmp(name, vendor, strlen(vendor)) == 0)
        name += strlen(vendor);
    size_t i = 0;
    for (; name[i] != '\0' && i + 1 < size; i++)
        out[i] = (char)toupper((unsigned char)name[i]);
    out[i] = '\0';
}

static void append(char *list, size_t size, const char *item)
{
    size_t used = strlen(list);
    snprintf(list + used, size - used, "%s%s", used > 0 ? "," : "", item);
}

/* "0110,1001,...": a row for each GPU, a digit for each GPU it may have an NVLink to. */
static void put_links(json_t *facts, const nvml_machine *machine)
{
    char rows[NVML_MAX_GPUS * (NVML_MAX_GPUS + 1) + 1] = "";
    size_t length = 0;
    uint64_t pairs = 0;
    for (unsigned i = 0; i < machine->count; i++) {
        if (i > 0)
            rows[length++] = ',';
        for (unsigned j = 0; j < machine->count; j++) {
            rows[length++] = machine->linked[i][j] ? '1' : '0';
            pairs += j > i && machine->linked[i][j];
        }
    }
    rows[length] = '\0';
    put_text(facts, "nvlink", rows);
    put_integer(facts, "nvlink_pairs", pairs);
}

static void put_gpus(json_t *facts, const nvml_machine *machine, FILE *warnings)
{
    char names[NVML_MAX_GPUS * 100] = "", uuids[NVML_MAX_GPUS * 100] = "", first[96] = "";
    bool is_mixed = false;
    uint64_t memory_bytes = UINT64_MAX;
    int capability = 10000;
    for (unsigned i = 0; i < machine->count; i++) {
        const nvml_gpu *gpu = &machine->gpu[i];
        char name[96];
        short_name(gpu->name, name, sizeof name);
        if (i == 0)
            memcpy(first, name, sizeof first);
        is_mixed = is_mixed || strcmp(name, first) != 0;
        append(names, sizeof names, name);
        append(uuids, sizeof uuids, gpu->uuid);
        memory_bytes = gpu->memory_bytes < memory_bytes ? gpu->memory_bytes : memory_bytes;
        int own = 10 * gpu->capability_major + gpu->capability_minor;
        capability = own < capability ? own : capability;
    }
    if (is_mixed)
        fprintf(warnings, "warning: the GPUs differ (%s): 'gpu' is unknown; memory and capability are the smallest\n",
                names);
    bool has_gpu = machine->count > 0;
    put_text(facts, "gpu", is_mixed ? NULL : first);
    json_object_set_new(facts, "gpu_memory", has_gpu ? json_integer((json_int_t)(memory_bytes / MIB)) : json_null());
    put_integer(facts, "system_gpu_count", machine->count);
    json_object_set_new(facts, "compute_capability", has_gpu ? json_real(capability / 10.0) : json_null());
    json_object_set_new(facts, "supports_fp8", json_boolean(has_gpu && capability >= 89));
    json_object_set_new(facts, "supports_int8", json_boolean(has_gpu && capability >= 61));
    json_object_set_new(facts, "supports_tf32", json_boolean(has_gpu && capability >= 80));
    put_text(facts, "gpu_names", names);
    put_text(facts, "gpu_uuids", uuids);
    put_links(facts, machine);
    put_text(facts, "driver_version", machine->driver_version);
    char cuda[32] = "";
    if (machine->cuda_version > 0)
        snprintf(cuda, sizeof cuda, "%d.%d", machine->cuda_version / 1000, machine->cuda_version % 1000 / 10);
    put_text(facts, "cuda_version", cuda);
}

/* The address of a function in a library that may be absent; the library stays loaded. */
static bool find_function(const char *library_name, const char *symbol, void *function_out)
{
    void *library = dlopen(library_name, RTLD_LAZY | RTLD_LOCAL);
    void *address = library == NULL ? NULL : dlsym(library, symbol);
    memcpy(function_out, &address, sizeof address);
    return address != NULL;
}

static void put_libraries(json_t *facts)
{
    static const char *const mpi_libraries[] = {"libmpi.so.40", "libmpi.so.12", "libmpi.so"};
    char text[8192] = "";
    int (*mpi_version)(char *, int *) = NULL; /* may be called before MPI_Init */
    for (size_t i = 0; i < sizeof mpi_libraries / sizeof *mpi_libraries && mpi_version == NULL; i++) {
        int length = 0;
        if (find_function(mpi_libraries[i], "MPI_Get_library_version", &mpi_version) && mpi_version(text, &length) != 0)
            text[0] = '\0';
    }
    text[strcspn(text, ",\n")] = '\0';
    put_text(facts, "mpi_version", text);

    int (*nccl_version)(int *) = NULL;
    int nccl = 0;
    text[0] = '\0';
    if (find_function("libnccl.so.2", "ncclGetVersion", &nccl_version) && nccl_version(&nccl) == 0)
        snprintf(text, sizeof text, "%d.%d.%d", nccl / 10000, nccl % 10000 / 100, nccl % 100);
    put_text(facts, "nccl_version", text);

    size_t (*cudnn_version)(void) = NULL;
    text[0] = '\0';
    if (find_function("libcudnn.so.9", "cudnnGetVersion", &cudnn_version))
        snprintf(text, sizeof text, "%zu.%zu.%zu", cudnn_version() / 10000, cudnn_version() % 10000 / 100,
                 cudnn_version() % 100);
    put_text(facts, "cudnn_version", text);
}

/* KEY=value or KEY="value" of /etc/os-release; empty when absent. */
static void read_release(const char *key, char *value, size_t size)
{
    value[0] = '\0';
    FILE *file = fopen("/etc/os-release", "r");
    if (file == NULL)
        return;
    char line[512];
    size_t length = strlen(key);
    while (fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, key, length) != 0 || line[length] != '=')
            continue;
        char *start = line + length + 1;
        start += *start == '"';
        start[strcspn(start, "\"\n")] = '\0';
        snprintf(value, size, "%s", start);
    }
    fclose(file);
}

static void put_system(json_t *facts)
{
    struct utsname system;
    if (uname(&system) != 0)
        memset(&system, 0, sizeof system);
    put_text(facts, "cpu", system.machine);
    put_text(facts, "sysname", system.sysname);
    put_text(facts, "kernel", system.release);
    put_text(facts, "hostname", system.nodename);
    static const char *const release[][2] = {
        {"linux_distribution_name", "ID"}, {"linux_version", "VERSION_ID"}, {"linux_codename", "VERSION_CODENAME"}};
    for (size_t i = 0; i < sizeof release / sizeof *release; i++) {
        char value[256];
        read_release(release[i][1], value, sizeof value);
        put_text(facts, release[i][0], value);
    }
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    put_integer(facts, "cpu_count", cpus > 0 ? (uint64_t)cpus : 1);
    struct sysinfo memory;
    if (sysinfo(&memory) == 0) {
        put_integer(facts, "host_mem_total_mib", (uint64_t)memory.totalram * memory.mem_unit / MIB);
        put_integer(facts, "host_mem_free_mib", (uint64_t)memory.freeram * memory.mem_unit / MIB);
    }
    struct statvfs shm;
    if (statvfs("/dev/shm", &shm) == 0)
        put_integer(facts, "shm_total_mib", (uint64_t)shm.f_blocks * shm.f_frsize / MIB);
}

json_t *facts_probe(FILE *warnings)
{
    json_t *facts = json_object();
    if (facts == NULL)
        return NULL;
    nvml_machine machine;
    const char *problem = nvml_probe(&machine);
    if (problem != NULL)
        fprintf(warnings, "warning: no GPU is counted: %s\n", problem);
    put_gpus(facts, &machine, warnings);
    put_libraries(facts);
    put_system(facts);
    put_text(facts, "ckv_version", ckv_version());
    return facts;
}
