#pragma once

/* The loops of the suite collectives. Every system runs them, also openmpi_member.c, which is compiled
 * without Gradwire; so this file is C.
 *
 * In each round all ranks wait in a barrier, then each rank makes the collective call. The barrier is in a
 * shared page and uses none of the measured frameworks. The measured value is the duration of a call,
 * averaged over the ranks, as in the OSU benchmarks. The duration at one rank would depend on which rank
 * leaves the barrier first. */

#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum collective_operation {
  COLLECTIVE_ALL_REDUCE,
  COLLECTIVE_BROADCAST, /* From the last rank: rank 0 receives. */
  COLLECTIVE_REDUCE,    /* To rank 0. */
  COLLECTIVE_ALL_GATHER,
  COLLECTIVE_GATHER,  /* To rank 0. */
  COLLECTIVE_SCATTER, /* From the last rank. */
  COLLECTIVE_REDUCE_SCATTER,
  COLLECTIVE_ALL_TO_ALL,
  COLLECTIVE_BARRIER,
  COLLECTIVE_SEND_RECV, /* Sends to the next rank and receives from the previous one at the same time. */
  COLLECTIVE_OPERATIONS
};

static const char* const kCollectiveNames[COLLECTIVE_OPERATIONS] = {
    "all_reduce", "broadcast",      "reduce",     "all_gather", "gather",
    "scatter",    "reduce_scatter", "all_to_all", "barrier",    "send_recv"};

/* One case at one rank. `floats` is the size of one part: of the tensor of an all_reduce, of each tensor in a
 * list. */
struct collective_work {
  int operation;
  int rank;
  int ranks;
  int64_t floats;
  float* part;   /* [floats] */
  float* whole;  /* [ranks * floats], or NULL */
  float* result; /* [ranks * floats], or NULL */
};

/* Parses the name of a case, for example "all_reduce_2_ranks_64KiB" or "barrier_4_ranks", into operation,
 * ranks and floats. Returns 0 if the name is not one of a collective case. */
static inline int collective_parse(const char* name, struct collective_work* work) {
  const char* middle = strstr(name, "_ranks");
  const char* count = middle;
  int operation;
  if (middle == NULL) return 0;
  while (count > name && count[-1] != '_') --count;
  for (operation = 0; operation < COLLECTIVE_OPERATIONS; ++operation) {
    const size_t length = strlen(kCollectiveNames[operation]);
    if ((size_t)(count - name) == length + 1 && strncmp(name, kCollectiveNames[operation], length) == 0)
      break;
  }
  work->operation = operation;
  work->ranks = atoi(count);
  work->floats = 0;
  if (operation == COLLECTIVE_OPERATIONS || work->ranks < 1 || work->ranks > 32) return 0;
  if (operation != COLLECTIVE_BARRIER) {
    char* unit;
    long long bytes;
    if (middle[6] != '_') return 0;
    bytes = strtoll(middle + 7, &unit, 10);
    if (strcmp(unit, "KiB") == 0) bytes <<= 10;
    if (strcmp(unit, "MiB") == 0) bytes <<= 20;
    if (bytes < 4 || bytes > (1LL << 34)) return 0;
    work->floats = bytes / 4;
  }
  return 1;
}

static inline int collective_uses_whole(int operation) {
  return operation == COLLECTIVE_ALL_GATHER || operation == COLLECTIVE_GATHER ||
         operation == COLLECTIVE_SCATTER || operation == COLLECTIVE_REDUCE_SCATTER ||
         operation == COLLECTIVE_ALL_TO_ALL;
}

static inline int collective_uses_result(int operation) {
  return operation == COLLECTIVE_ALL_TO_ALL || operation == COLLECTIVE_SEND_RECV;
}

/* The value of a rank's part in one round; element k of the part is base + k % 8. The values are whole
 * numbers, so that sums are exact. They change from round to round, so that data of the previous round is
 * detected as wrong. */
static inline float collective_base(int rank, int part, uint64_t round) {
  return (float)((uint64_t)(rank * 3 + part * 5) % 7 + round % 5 + 1);
}

static inline void collective_fill(float* data, int64_t floats, float base) {
  for (int64_t k = 0; k < floats; ++k) data[k] = base + (float)(k & 7);
}

/* Returns whether element k is base + times * (k % 8). Checks every element of small tensors, some of large
 * ones. */
static inline int collective_check(const float* data, int64_t floats, float base, int times) {
  const int64_t step = floats <= 4096 ? 1 : floats / 1021;
  for (int64_t k = 0; k < floats; k += step) {
    if (data[k] != base + (float)(times * (int)(k & 7))) return 0;
  }
  return floats == 0 || data[floats - 1] == base + (float)(times * (int)((floats - 1) & 7));
}

/* Fills the input of a round. */
static inline void collective_before(const struct collective_work* work, uint64_t round) {
  const int sends_whole = (work->operation == COLLECTIVE_SCATTER && work->rank == work->ranks - 1) ||
                          work->operation == COLLECTIVE_REDUCE_SCATTER ||
                          work->operation == COLLECTIVE_ALL_TO_ALL;
  if (sends_whole) {
    for (int part = 0; part < work->ranks; ++part) {
      collective_fill(work->whole + part * work->floats, work->floats,
                      collective_base(work->rank, part, round));
    }
  } else {
    collective_fill(work->part, work->floats, collective_base(work->rank, 0, round));
  }
}

/* Returns whether the result of a round is correct. */
static inline int collective_after(const struct collective_work* work, uint64_t round) {
  const int rank = work->rank;
  const int ranks = work->ranks;
  const int64_t floats = work->floats;
  float sum = 0;
  int correct = 1;
  switch (work->operation) {
    case COLLECTIVE_ALL_REDUCE:
    case COLLECTIVE_REDUCE:
      if (work->operation == COLLECTIVE_REDUCE && rank != 0) return 1;
      for (int r = 0; r < ranks; ++r) sum += collective_base(r, 0, round);
      return collective_check(work->part, floats, sum, ranks);
    case COLLECTIVE_REDUCE_SCATTER:
      for (int r = 0; r < ranks; ++r) sum += collective_base(r, rank, round);
      return collective_check(work->part, floats, sum, ranks);
    case COLLECTIVE_BROADCAST:
      return collective_check(work->part, floats, collective_base(ranks - 1, 0, round), 1);
    case COLLECTIVE_SCATTER:
      return collective_check(work->part, floats, collective_base(ranks - 1, rank, round), 1);
    case COLLECTIVE_GATHER:
    case COLLECTIVE_ALL_GATHER:
      if (work->operation == COLLECTIVE_GATHER && rank != 0) return 1;
      for (int r = 0; r < ranks; ++r) {
        correct &= collective_check(work->whole + r * floats, floats, collective_base(r, 0, round), 1);
      }
      return correct;
    case COLLECTIVE_ALL_TO_ALL:
      for (int r = 0; r < ranks; ++r) {
        correct &= collective_check(work->result + r * floats, floats, collective_base(r, rank, round), 1);
      }
      return correct;
    case COLLECTIVE_SEND_RECV:
      return collective_check(work->result, floats, collective_base((rank + ranks - 1) % ranks, 0, round), 1);
    default:
      return 1;
  }
}

/* The layout of the shared page, in words of 8 bytes. Each flag, and the words of each rank, have a cache
 * line of their own:
 * - for each rank, the round whose barrier it has entered;
 * - from COLLECTIVE_LAST: a flag for even and one for odd rounds, 1 if the round is the end of the case;
 * - from COLLECTIVE_STAMPS, for each rank: begin and end of its call, for even and for odd rounds.
 * The page is zero at first. */
enum { COLLECTIVE_PAGE_BYTES = 8192, COLLECTIVE_WORD = 8, COLLECTIVE_LAST = 32, COLLECTIVE_STAMPS = 64 };

/* One rank's view of the shared page. */
struct collective_sync {
  uint64_t* page;
  uint64_t round; /* The number of barriers that this rank has entered. */
};

/* Waits until all ranks have entered the barrier of the next round. The stores and loads are sequentially
 * consistent: all that a rank wrote before the barrier is visible to the others after it. */
static inline void collective_barrier_wait(struct collective_sync* sync, int rank, int ranks) {
  const uint64_t round = ++sync->round;
  __atomic_store_n(&sync->page[COLLECTIVE_WORD * rank], round, __ATOMIC_SEQ_CST);
  for (int r = 0; r < ranks; ++r) {
    for (int polls = 0; __atomic_load_n(&sync->page[COLLECTIVE_WORD * r], __ATOMIC_SEQ_CST) < round;
         ++polls) {
      if (polls >= 100) sched_yield();
    }
  }
}

static inline int64_t collective_nanoseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline uint64_t* collective_stamps(const struct collective_sync* sync, int rank, uint64_t round) {
  return sync->page + COLLECTIVE_WORD * (COLLECTIVE_STAMPS + rank) + 2 * (round & 1);
}

/* Returns the duration of the call in a round, averaged over the ranks, in microseconds. Valid from the
 * barrier after that round until this rank enters the next barrier: then the other ranks may overwrite the
 * stamps. */
static inline float collective_micros(const struct collective_sync* sync, int ranks, uint64_t round) {
  uint64_t nanoseconds = 0;
  for (int r = 0; r < ranks; ++r) {
    const uint64_t* stamps = collective_stamps(sync, r, round);
    nanoseconds += stamps[1] - stamps[0];
  }
  return (float)nanoseconds / (1000.0F * (float)ranks);
}

struct collective_samples {
  float* micros; /* At rank 0: room for `capacity` samples. */
  int64_t capacity;
  int64_t count;
  int64_t calls;
};

/* Runs a case. Every rank calls this with the same case; `call` makes the collective call. Returns 0 if a
 * result was wrong, else 1. */
static inline int collective_run(const struct collective_work* work, struct collective_sync* sync,
                                 double seconds, void (*call)(void*), void* context,
                                 struct collective_samples* samples) {
  const int64_t begin = collective_nanoseconds();
  const int64_t warm = begin + (int64_t)((seconds < 0.4 ? seconds / 4 : 0.1) * 1e9);
  const int64_t end = warm + (int64_t)(seconds * 1e9);
  int timed = 0; /* Whether the previous round is a sample. */
  samples->count = 0;
  for (samples->calls = 0;; ++samples->calls) {
    const uint64_t round = sync->round;
    const int parity = COLLECTIVE_WORD * (COLLECTIVE_LAST + (int)(round & 1));
    const int64_t now = collective_nanoseconds();
    uint64_t* stamps = collective_stamps(sync, work->rank, round);
    if (work->rank == 0) {
      /* Take at least three samples, and as many as the time allows. Rank 0 decides; the others read its
       * decision after the barrier. The flag of the next round is another word, so rank 0 cannot overwrite
       * this one too early. */
      const uint64_t last =
          samples->count + timed >= samples->capacity || (samples->count >= 3 && now >= end);
      __atomic_store_n(&sync->page[parity], last, __ATOMIC_SEQ_CST);
    }
    collective_before(work, round);
    collective_barrier_wait(sync, work->rank, work->ranks);
    if (timed) samples->micros[samples->count++] = collective_micros(sync, work->ranks, round - 1);
    timed = work->rank == 0 && samples->calls >= 2 && now >= warm;
    if (__atomic_load_n(&sync->page[parity], __ATOMIC_SEQ_CST) != 0) return 1;
    stamps[0] = (uint64_t)collective_nanoseconds();
    call(context);
    stamps[1] = (uint64_t)collective_nanoseconds();
    if (!collective_after(work, round)) return 0;
  }
}
