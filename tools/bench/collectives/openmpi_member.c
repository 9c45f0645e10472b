/* One rank of Open MPI in the suite collectives. openmpi_peer.cc compiles this file with mpicc and starts it
 * with mpirun. The first argument is the path of a Unix socket, the second that of the shared page of the
 * ranks.
 *
 * Orders arrive over the socket, one line each: a case and a number of seconds. The answer is four numbers of
 * eight bytes (1 if all results were correct, the number of calls, the number of samples, 0) and, from rank
 * 0, the samples. */

#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#ifndef COLLECTIVE_LOOP_INCLUDED
#include "gradwire/tools/bench/collectives/collective_loop.h"
#endif

static void call(void* context) {
  const struct collective_work* w = (const struct collective_work*)context;
  const int count = (int)w->floats;
  const int last = w->ranks - 1;
  switch (w->operation) {
    case COLLECTIVE_ALL_REDUCE:
      MPI_Allreduce(MPI_IN_PLACE, w->part, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      break;
    case COLLECTIVE_BROADCAST:
      MPI_Bcast(w->part, count, MPI_FLOAT, last, MPI_COMM_WORLD);
      break;
    case COLLECTIVE_REDUCE:
      MPI_Reduce(w->rank == 0 ? MPI_IN_PLACE : w->part, w->rank == 0 ? w->part : NULL, count, MPI_FLOAT,
                 MPI_SUM, 0, MPI_COMM_WORLD);
      break;
    case COLLECTIVE_ALL_GATHER:
      MPI_Allgather(w->part, count, MPI_FLOAT, w->whole, count, MPI_FLOAT, MPI_COMM_WORLD);
      break;
    case COLLECTIVE_GATHER:
      MPI_Gather(w->part, count, MPI_FLOAT, w->whole, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
      break;
    case COLLECTIVE_SCATTER:
      MPI_Scatter(w->whole, count, MPI_FLOAT, w->part, count, MPI_FLOAT, last, MPI_COMM_WORLD);
      break;
    case COLLECTIVE_REDUCE_SCATTER:
      MPI_Reduce_scatter_block(w->whole, w->part, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      break;
    case COLLECTIVE_ALL_TO_ALL:
      MPI_Alltoall(w->whole, count, MPI_FLOAT, w->result, count, MPI_FLOAT, MPI_COMM_WORLD);
      break;
    case COLLECTIVE_BARRIER:
      MPI_Barrier(MPI_COMM_WORLD);
      break;
    case COLLECTIVE_SEND_RECV:
      MPI_Sendrecv(w->part, count, MPI_FLOAT, (w->rank + 1) % w->ranks, 0, w->result, count, MPI_FLOAT,
                   (w->rank + last) % w->ranks, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      break;
    default:
      break;
  }
}

static float* floats(int64_t count) {
  void* memory = NULL;
  const size_t bytes = count > 0 ? (size_t)count * 4 : 64;
  if (posix_memalign(&memory, 64, bytes) != 0) MPI_Abort(MPI_COMM_WORLD, 1);
  memset(memory, 0, bytes);
  return (float*)memory;
}

static void put(int fd, const void* data, size_t bytes) {
  const char* next = (const char*)data;
  while (bytes > 0) {
    const ssize_t n = write(fd, next, bytes);
    if (n <= 0) _exit(0);
    next += n;
    bytes -= (size_t)n;
  }
}

/* Reads one line. Ends the process at the end of the stream. */
static void get(int fd, char* line, size_t capacity) {
  for (size_t n = 0; n + 1 < capacity; ++n) {
    if (read(fd, line + n, 1) != 1) _exit(0);
    if (line[n] == '\n') {
      line[n] = 0;
      return;
    }
  }
  _exit(1);
}

int main(int argc, char** argv) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  struct collective_sync sync = {NULL, 0};
  struct collective_samples samples = {.capacity = 4000000};
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  int64_t rank64;
  int rank, size, page;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (argc < 3) return 2;
  page = open(argv[2], O_RDWR);
  if (page < 0) return 2;
  sync.page = (uint64_t*)mmap(NULL, COLLECTIVE_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, page, 0);
  strncpy(address.sun_path, argv[1], sizeof address.sun_path - 1);
  if (sync.page == MAP_FAILED || connect(fd, (struct sockaddr*)&address, sizeof address) != 0) return 2;
  rank64 = rank;
  put(fd, &rank64, sizeof rank64);
  for (;;) {
    char line[256], name[200];
    double seconds = 0;
    int64_t answer[4] = {0, 0, 0, 0};
    struct collective_work work;
    memset(&work, 0, sizeof work);
    get(fd, line, sizeof line);
    if (sscanf(line, "%199s %lf", name, &seconds) == 2 && collective_parse(name, &work) &&
        work.ranks == size) {
      work.rank = rank;
      work.part = floats(work.floats);
      if (collective_uses_whole(work.operation)) work.whole = floats(work.floats * size);
      if (collective_uses_result(work.operation)) work.result = floats(work.floats * size);
      samples.micros = rank == 0 ? floats(samples.capacity) : NULL;
      answer[0] = collective_run(&work, &sync, seconds, &call, &work, &samples);
      answer[1] = samples.calls;
      answer[2] = samples.count;
    }
    put(fd, answer, sizeof answer);
    if (rank == 0) put(fd, samples.micros, (size_t)answer[2] * sizeof(float));
    free(work.part);
    free(work.whole);
    free(work.result);
    free(samples.micros);
    samples.micros = NULL;
  }
}
