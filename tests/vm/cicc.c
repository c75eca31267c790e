// SPDX-License-Identifier: Apache-2.0
// Stands in for a compiler: takes memory little by little, works on it, keeps it, gives it back.
//
//   cicc MEGABYTES MILLISECONDS OUTPUT    MILLISECONDS of CPU time, so a frozen one does not age
//
// A real one takes gigabytes in many more seconds than this takes its megabytes in.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const long GROWS_MS = 1800;

static long cpu_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int main(int argc, char **argv) {
    if (argc != 4) return 64;
    long megabytes = atol(argv[1]), until = atol(argv[2]);
    long grown = 0;
    unsigned long sum = 0;
    char **parts = calloc(megabytes, sizeof *parts);
    while (cpu_ms() < until) {
        // It grows first and then works with all it has.
        long due = megabytes * cpu_ms() / GROWS_MS;
        while (grown < megabytes && grown < due) {
            parts[grown] = malloc(1 << 20);
            if (parts[grown] == NULL) return 1;
            memset(parts[grown], grown, 1 << 20);
            grown++;
        }
        for (long i = 0; i < grown; i++) sum += parts[i][(sum + i * 4096) & ((1 << 20) - 1)];
    }
    FILE *output = fopen(argv[3], "w");
    if (output == NULL) return 1;
    fprintf(output, "%lu\n", sum);
    return fclose(output) != 0;
}
