/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/signals.h"

#include "tests/support/record.h"
#include <execinfo.h>
#include <signal.h>
#include <stddef.h>
#include <unistd.h>

static const struct {
    int number;
    const char *name;
} fatal[] = {
    {SIGSEGV, "SIGSEGV"}, {SIGBUS, "SIGBUS"}, {SIGFPE, "SIGFPE"},
    {SIGILL, "SIGILL"},   {SIGSYS, "SIGSYS"}, {SIGABRT, "SIGABRT"},
};

enum { NUM_FATAL = sizeof fatal / sizeof fatal[0], ALTERNATE_STACK_BYTES = 64 * 1024 };

static struct sigaction previous[NUM_FATAL];
static struct sigaction previous_term;
static _Alignas(16) char alternate_stack[ALTERNATE_STACK_BYTES];

static void write_backtrace(void)
{
    void *frames[64];
    backtrace_symbols_fd(frames, backtrace(frames, 64), STDERR_FILENO);
}

/* A fault in the machine code happens again on return, now under the previous handler, with its true address; a signal
 * that somebody sent does not, so it is sent once more. */
static void on_fatal(int number, siginfo_t *info, void *context)
{
    (void)context;
    for (int i = 0; i < NUM_FATAL; i++) {
        if (fatal[i].number != number)
            continue;
        record_line line;
        record_begin(&line, "signal");
        record_text(&line, "signal", fatal[i].name);
        record_operation(&line);
        record_end(&line);
        sigaction(number, &previous[i], NULL);
    }
    write_backtrace();
    if (info->si_code <= 0)
        raise(number);
}

static void on_soft_signal(int number)
{
    static volatile sig_atomic_t told;
    if (!told) {
        told = 1;
        record_state(number == SIGUSR1 ? "asked" : "terminated");
        write_backtrace();
    }
    if (number == SIGTERM) {
        sigaction(SIGTERM, &previous_term, NULL);
        raise(SIGTERM);
    }
}

void signals_remember(void)
{
    void *frame;
    backtrace(&frame, 1); /* loads libgcc now, not inside a handler */
    for (int i = 0; i < NUM_FATAL; i++)
        sigaction(fatal[i].number, NULL, &previous[i]);
    sigaction(SIGTERM, NULL, &previous_term);
    /* a stack overflow is reported from a stack of its own, unless a sanitizer has arranged that already */
    stack_t current;
    if (sigaltstack(NULL, &current) == 0 && current.ss_flags & SS_DISABLE) {
        stack_t stack = {.ss_sp = alternate_stack, .ss_size = sizeof alternate_stack};
        sigaltstack(&stack, NULL);
    }
}

void signals_take(void)
{
    struct sigaction action = {.sa_sigaction = on_fatal, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < NUM_FATAL; i++)
        sigaction(fatal[i].number, &action, NULL);
    struct sigaction soft = {.sa_handler = on_soft_signal, .sa_flags = SA_RESTART | SA_ONSTACK};
    sigemptyset(&soft.sa_mask);
    sigaction(SIGUSR1, &soft, NULL);
    sigaction(SIGTERM, &soft, NULL);
}
