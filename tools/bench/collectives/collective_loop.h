#pragma once

/* The work of the suite collectives, in C: every side runs these loops, the one in openmpi_member.c too,
 * which knows nothing of Gradwire. All ranks meet in a page that they share, which favours none of the
 * frameworks; then each makes the call. What is measured is how long a call took, on the average over the
 * ranks, as the OSU benchmarks have it: one rank's own time would say as much of who left the meeting
 * first. */

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
  COLLECTIVE_SEND_RECV, /* To the next rank, from the one before, at the same time. */
  COLLECTIVE_OPERATIONS
};

static const char* const kCollectiveNames[COLLECTIVE_OPERATIONS] = {
    "all_reduce", "broadcast",      "reduce",     "all_gather", "gather",
    "scatter",    "reduce_scatter", "all_to_all", "barrier",    "send_recv"};

/* One case as one rank sees it. `floats` is the size of one rank's part: of all of all_reduce's tensor, of
 * each tensor in a list. */
struct collective_work {
  int operation;
  int rank;
  int ranks;
  int64_t floats;
  float* part;   /* floats */
  float* whole;  /* ranks * floats, or NULL */
  float* result; /* ranks * floats, or NULL */
};

/* "all_reduce_2_ranks_64KiB", "barrier_4_ranks". 0 when it is something else. */
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

/* What a rank brings for a part in one turn, less the place of the element. Whole numbers, so that sums are
 * exact; they change from turn to turn, so that what was left of the last one is wrong. */
static inline float collective_base(int rank, int part, uint64_t turn) {
  return (float)((uint64_t)(rank * 3 + part * 5) % 7 + turn % 5 + 1);
}

static inline void collective_fill(float* data, int64_t floats, float base) {
  for (int64_t k = 0; k < floats; ++k) data[k] = base + (float)(k & 7);
}

/* `times` what the places alone give. Every element of small tensors, some of large ones. */
static inline int collective_check(const float* data, int64_t floats, float base, int times) {
  const int64_t step = floats <= 4096 ? 1 : floats / 1021;
  for (int64_t k = 0; k < floats; k += step) {
    if (data[k] != base + (float)(times * (int)(k & 7))) return 0;
  }
  return floats == 0 || data[floats - 1] == base + (float)(times * (int)((floats - 1) & 7));
}

static inline void collective_before(const struct collective_work* work, uint64_t turn) {
  const int sends_whole = (work->operation == COLLECTIVE_SCATTER && work->rank == work->ranks - 1) ||
                          work->operation == COLLECTIVE_REDUCE_SCATTER ||
                          work->operation == COLLECTIVE_ALL_TO_ALL;
  if (sends_whole) {
    for (int part = 0; part < work->ranks; ++part) {
      collective_fill(work->whole + part * work->floats, work->floats,
                      collective_base(work->rank, part, turn));
    }
  } else {
    collective_fill(work->part, work->floats, collective_base(work->rank, 0, turn));
  }
}

/* Whether the result is right. */
static inline int collective_after(const struct collective_work* work, uint64_t turn) {
  const int rank = work->rank;
  const int ranks = work->ranks;
  const int64_t floats = work->floats;
  float sum = 0;
  int good = 1;
  switch (work->operation) {
    case COLLECTIVE_ALL_REDUCE:
    case COLLECTIVE_REDUCE:
      if (work->operation == COLLECTIVE_REDUCE && rank != 0) return 1;
      for (int r = 0; r < ranks; ++r) sum += collective_base(r, 0, turn);
      return collective_check(work->part, floats, sum, ranks);
    case COLLECTIVE_REDUCE_SCATTER:
      for (int r = 0; r < ranks; ++r) sum += collective_base(r, rank, turn);
      return collective_check(work->part, floats, sum, ranks);
    case COLLECTIVE_BROADCAST:
      return collective_check(work->part, floats, collective_base(ranks - 1, 0, turn), 1);
    case COLLECTIVE_SCATTER:
      return collective_check(work->part, floats, collective_base(ranks - 1, rank, turn), 1);
    case COLLECTIVE_GATHER:
    case COLLECTIVE_ALL_GATHER:
      if (work->operation == COLLECTIVE_GATHER && rank != 0) return 1;
      for (int r = 0; r < ranks; ++r) {
        good &= collective_check(work->whole + r * floats, floats, collective_base(r, 0, turn), 1);
      }
      return good;
    case COLLECTIVE_ALL_TO_ALL:
      for (int r = 0; r < ranks; ++r) {
        good &= collective_check(work->result + r * floats, floats, collective_base(r, rank, turn), 1);
      }
      return good;
    case COLLECTIVE_SEND_RECV:
      return collective_check(work->result, floats, collective_base((rank + ranks - 1) % ranks, 0, turn), 1);
    default:
      return 1;
  }
}

/* Words of a shared page, in cache lines of their own: how far each rank has come; whether it was the last
 * turn, for even and odd turns; of each rank, when its call began and when it ended, in even and in odd
 * turns. All zero at first. */
enum { COLLECTIVE_PAGE_BYTES = 8192, COLLECTIVE_WORD = 8, COLLECTIVE_LAST = 32, COLLECTIVE_STAMPS = 64 };

struct collective_place {
  uint64_t* page;
  uint64_t turn;
};

static inline void collective_meet(struct collective_place* place, int rank, int ranks) {
  const uint64_t turn = ++place->turn;
  __atomic_store_n(&place->page[COLLECTIVE_WORD * rank], turn, __ATOMIC_SEQ_CST);
  for (int r = 0; r < ranks; ++r) {
    for (int polls = 0; __atomic_load_n(&place->page[COLLECTIVE_WORD * r], __ATOMIC_SEQ_CST) < turn;
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

static inline uint64_t* collective_stamps(const struct collective_place* place, int rank, uint64_t turn) {
  return place->page + COLLECTIVE_WORD * (COLLECTIVE_STAMPS + rank) + 2 * (turn & 1);
}

/* The time in the call, on the average over the ranks. Once all ranks have met after the turn, and until this
 * one comes to the meeting after that. */
static inline float collective_micros(const struct collective_place* place, int ranks, uint64_t turn) {
  uint64_t nanoseconds = 0;
  for (int r = 0; r < ranks; ++r) {
    const uint64_t* stamps = collective_stamps(place, r, turn);
    nanoseconds += stamps[1] - stamps[0];
  }
  return (float)nanoseconds / (1000.0F * (float)ranks);
}

struct collective_samples {
  float* micros; /* At rank 0: `most` of them fit. */
  int64_t most;
  int64_t count;
  int64_t calls;
};

/* Returns 0 when a result was wrong. Every rank calls it with the same case; `call` makes the collective
 * call. */
static inline int collective_run(const struct collective_work* work, struct collective_place* place,
                                 double seconds, void (*call)(void*), void* context,
                                 struct collective_samples* samples) {
  const int64_t begin = collective_nanoseconds();
  const int64_t warm = begin + (int64_t)((seconds < 0.4 ? seconds / 4 : 0.1) * 1e9);
  const int64_t end = warm + (int64_t)(seconds * 1e9);
  int counts = 0; /* Whether the turn before does. */
  samples->count = 0;
  for (samples->calls = 0;; ++samples->calls) {
    const uint64_t turn = place->turn;
    const int parity = COLLECTIVE_WORD * (COLLECTIVE_LAST + (int)(turn & 1));
    const int64_t now = collective_nanoseconds();
    uint64_t* stamps = collective_stamps(place, work->rank, turn);
    if (work->rank == 0) {
      /* Three at least, and as many as the time allows. */
      const uint64_t last = samples->count + counts >= samples->most || (samples->count >= 3 && now >= end);
      __atomic_store_n(&place->page[parity], last, __ATOMIC_SEQ_CST);
    }
    collective_before(work, turn);
    collective_meet(place, work->rank, work->ranks);
    if (counts) samples->micros[samples->count++] = collective_micros(place, work->ranks, turn - 1);
    counts = work->rank == 0 && samples->calls >= 2 && now >= warm;
    if (__atomic_load_n(&place->page[parity], __ATOMIC_SEQ_CST) != 0) return 1;
    stamps[0] = (uint64_t)collective_nanoseconds();
    call(context);
    stamps[1] = (uint64_t)collective_nanoseconds();
    if (!collective_after(work, turn)) return 0;
  }
}
