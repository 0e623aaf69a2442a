/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * mpiring [ROUNDS] - a ring of MPI processes, for the conformance tables
 *
 * Every rank sends to the next one and receives from the one before, in messages of
 * 8 bytes to 1 MiB, and looks at every byte; a sum over all ranks is the end.  Prints
 * the time of a round for each size.  A wrong byte or sum is status 1 of the job.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { LARGEST = 1 << 20 };

static uint8_t byte_of(int rank, int round, size_t at)
{
    return (uint8_t)((size_t)rank * 131 + (size_t)round * 29 + at * 7 + (at >> 8));
}

static void check(int good, const char *what)
{
    if (!good) {
        fprintf(stderr, "mpiring: %s\n", what);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static void ring(int rank, int ranks, size_t size, int rounds, uint8_t *out, uint8_t *in)
{
    int next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks;
    double begin, end;

    MPI_Barrier(MPI_COMM_WORLD);
    begin = MPI_Wtime();
    for (int round = 0; round < rounds; round++) {
        int wrong = 0;

        for (size_t i = 0; i < size; i++) {
            out[i] = byte_of(rank, round, i);
            in[i] = (uint8_t)~byte_of(last, round, i);
        }
        MPI_Sendrecv(out, (int)size, MPI_BYTE, next, round, in, (int)size, MPI_BYTE, last,
                     round, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (size_t i = 0; i < size; i++) {
            wrong += in[i] != byte_of(last, round, i);
        }
        check(!wrong, "a byte is wrong");
    }
    end = MPI_Wtime();
    if (rank == 0) {
        printf("ring of %d: %7zu bytes %10.1f us\n", ranks, size,
               (end - begin) / rounds * 1e6);
    }
}

int main(int argc, char **argv)
{
    int rank, ranks, rounds, sum = 0;
    uint8_t *out = malloc(LARGEST), *in = malloc(LARGEST);

    MPI_Init(&argc, &argv);
    rounds = argc > 1 ? atoi(argv[1]) : 20;
    check(out && in && rounds > 0, "no memory, or no rounds");
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    check(ranks > 1, "one rank is no ring");
    for (size_t size = 8; size <= LARGEST; size *= 16) {
        ring(rank, ranks, size, rounds, out, in);
    }
    ring(rank, ranks, LARGEST, rounds, out, in);
    rank++;
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    check(sum == ranks * (ranks + 1) / 2, "the sum is wrong");
    if (rank == 1) {
        printf("ring of %d: all data right\n", ranks);
    }
    MPI_Finalize();
    free(out);
    free(in);
    return 0;
}
