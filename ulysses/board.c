/* SPDX-License-Identifier: Apache-2.0 */
/* One anonymous file of rank 0 that every rank maps: it has no name, so nothing is left behind however ranks end. */
#include "ulysses/board.h"

#include "lib/support/error.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { NAME_BYTES = 32, DETAIL_BYTES = 400, ID_BYTES = 64 };

typedef struct board_rank {
    int32_t process;
    uint32_t left;
    char operation[NAME_BYTES];
    uint64_t sequence;
    uint32_t in_progress;
} board_rank;

/* Written by many, read by all. Texts are written before the word that says they are there. */
typedef struct board_memory {
    uint32_t claimed; /* somebody is writing the failure */
    int32_t status;   /* of the failure, CKV_OK until its detail is there */
    char detail[DETAIL_BYTES];
    board_rank ranks[];
} board_memory;

struct ckv_board {
    int rank, size;
    board_memory *memory;
    size_t bytes;
    int *processes; /* [size] descriptors that turn readable when the process ends; -1: none */
};

/* What each rank tells the others. */
typedef struct introduction {
    char machine[ID_BYTES];
    int32_t process, file;
} introduction;

static void read_machine(char *machine)
{
    int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t length = file >= 0 ? read(file, machine, ID_BYTES - 1) : 0;
    if (file >= 0)
        close(file);
    machine[length > 0 ? length : 0] = '\0';
}

static int same_machine(const introduction *all, int size)
{
    for (int rank = 0; rank < size; rank++)
        if (all[rank].machine[0] == '\0' || strcmp(all[rank].machine, all[0].machine) != 0)
            return 0;
    return 1;
}

static size_t bytes_of(int size)
{
    return sizeof(board_memory) + (size_t)size * sizeof(board_rank);
}

/* Rank 0's file, opened through its process. */
static board_memory *map_board(const introduction *first, int is_first, size_t bytes)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", first->process, first->file);
    int file = is_first ? first->file : open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return NULL;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (!is_first)
        close(file);
    return memory != MAP_FAILED ? memory : NULL;
}

static void board_free(ckv_board *board)
{
    if (board == NULL)
        return;
    for (int rank = 0; board->processes != NULL && rank < board->size; rank++)
        if (board->processes[rank] >= 0)
            close(board->processes[rank]);
    if (board->memory != NULL)
        munmap(board->memory, board->bytes);
    free(board->processes);
    free(board);
}

static ckv_board *board_make(const introduction *all, int rank, int size)
{
    ckv_board *board = calloc(1, sizeof *board);
    if (board == NULL)
        return NULL;
    board->rank = rank;
    board->size = size;
    board->bytes = bytes_of(size);
    board->memory = map_board(&all[0], rank == 0, board->bytes);
    board->processes = malloc((size_t)size * sizeof *board->processes);
    for (int peer = 0; board->processes != NULL && peer < size; peer++)
        board->processes[peer] = -1;
    if (board->memory == NULL || board->processes == NULL) {
        board_free(board);
        return NULL;
    }
    for (int peer = 0; peer < size; peer++)
        board->processes[peer] = (int)syscall(SYS_pidfd_open, all[peer].process, 0);
    board->memory->ranks[rank].process = all[rank].process;
    return board;
}

/* -1 when there is none to be had. */
static int make_file(size_t bytes)
{
    int file = memfd_create("ckv_board", MFD_CLOEXEC);
    if (file >= 0 && ftruncate(file, (off_t)bytes) != 0) {
        close(file);
        file = -1;
    }
    return file;
}

/* All ranks have memory for what the others say: `all` and `have_all`, one a rank. */
static ckv_status open_together(ckv_comm *host, introduction *all, char *have_all, ckv_board **board_out)
{
    int rank = ckv_comm_rank(host), size = ckv_comm_size(host);
    introduction mine = {.process = (int32_t)getpid(), .file = rank == 0 ? make_file(bytes_of(size)) : -1};
    read_machine(mine.machine);
    ckv_board *board = NULL;
    ckv_status status = ckv_comm_all_gather(host, &mine, sizeof mine, all);
    if (status == CKV_OK && same_machine(all, size))
        board = board_make(all, rank, size);
    char have = board != NULL;
    if (status == CKV_OK)
        status = ckv_comm_all_gather(host, &have, 1, have_all);
    if (status != CKV_OK || memchr(have_all, 0, (size_t)size) != NULL) {
        board_free(board);
        board = NULL;
    }
    if (mine.file >= 0)
        close(mine.file);
    if (status == CKV_OK)
        *board_out = board;
    return status;
}

ckv_status ckv_board_open(ckv_comm *host, ckv_board **board_out)
{
    int size = ckv_comm_size(host);
    introduction *all = calloc((size_t)size, sizeof *all);
    char *have_all = calloc((size_t)size, 1);
    int have_memory = all != NULL && have_all != NULL;
    ckv_status status = CKV_OK;
    if (!have_memory)
        status = ckv_fail(CKV_ERROR_MEMORY, "board: out of host memory for %d ranks", size);
    status = ckv_comm_agree(host, status);
    if (status == CKV_OK && have_memory) /* the second follows from the first */
        status = open_together(host, all, have_all, board_out);
    free(have_all);
    free(all);
    return status;
}

void ckv_board_close(ckv_board **board)
{
    if (*board == NULL)
        return;
    __atomic_store_n(&(*board)->memory->ranks[(*board)->rank].left, 1, __ATOMIC_RELEASE);
    board_free(*board);
    *board = NULL;
}

void ckv_board_show(ckv_board *board, const ckv_comm_record *record)
{
    board_rank *mine = &board->memory->ranks[board->rank];
    if (__atomic_load_n(&mine->sequence, __ATOMIC_RELAXED) != record->sequence) {
        snprintf(mine->operation, sizeof mine->operation, "%s", record->operation);
        __atomic_store_n(&mine->sequence, record->sequence, __ATOMIC_RELEASE);
    }
    __atomic_store_n(&mine->in_progress, (uint32_t)record->in_progress, __ATOMIC_RELEASE);
}

void ckv_board_describe(const ckv_board *board, int rank, char *text, size_t capacity)
{
    const board_rank *shown = &board->memory->ranks[rank];
    unsigned long long sequence = __atomic_load_n(&shown->sequence, __ATOMIC_ACQUIRE);
    int busy = __atomic_load_n(&shown->in_progress, __ATOMIC_ACQUIRE) != 0;
    if (sequence == 0)
        snprintf(text, capacity, "rank %d (process %d) has begun nothing", rank, shown->process);
    else
        snprintf(text, capacity, "rank %d (process %d) %s %.*s, operation %llu", rank, shown->process,
                 busy ? "is in" : "has done its part of", NAME_BYTES - 1, shown->operation, sequence);
}

int ckv_board_find_dead(ckv_board *board)
{
    for (int rank = 0; rank < board->size; rank++) {
        struct pollfd process = {.fd = board->processes[rank], .events = POLLIN};
        if (process.fd >= 0 && poll(&process, 1, 0) == 1 &&
            !__atomic_load_n(&board->memory->ranks[rank].left, __ATOMIC_ACQUIRE))
            return rank;
    }
    return -1;
}

void ckv_board_fail(ckv_board *board, ckv_status status, const char *detail)
{
    board_memory *memory = board->memory;
    if (__atomic_exchange_n(&memory->claimed, 1, __ATOMIC_ACQ_REL))
        return;
    snprintf(memory->detail, sizeof memory->detail, "%s", detail);
    __atomic_store_n(&memory->status, (int32_t)status, __ATOMIC_RELEASE);
}

ckv_status ckv_board_failure(const ckv_board *board)
{
    ckv_status status = (ckv_status)__atomic_load_n(&board->memory->status, __ATOMIC_ACQUIRE);
    return status == CKV_OK ? CKV_OK : ckv_fail(status, "%s", board->memory->detail);
}
