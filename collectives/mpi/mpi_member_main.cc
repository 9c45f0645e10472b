// The program that mpirun starts in mpi_test: one member of a group. It prints "done" if all checks passed.

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>
#include <unistd.h>

#include <exception>
#include <iostream>
#include <stdexcept>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/mpi/mpi_backend.h"
#include "gradwire/collectives/mpi/oracle.h"
#include "gradwire/collectives/process_group.h"
#include "gradwire/store/prefix_store.h"
#include "gradwire/tests/collectives/cases.h"

namespace gradwire::collectives {
namespace {

absl::Time in(absl::Duration time) { return Clock::system().now() + time; }

void expect(bool good, const std::string& what) {
  if (!good) throw std::runtime_error(what);
}

struct Launch {
  int rank = 0;
  int size = 1;
  std::shared_ptr<store::Store> store;
};

std::unique_ptr<GroupBackend> make(const Launch& launch, const std::string& name, std::vector<int> ranks,
                                   std::map<std::string, std::string> options = {}) {
  BackendContext context{.store = std::make_shared<store::PrefixStore>(name, launch.store),
                         .group = name,
                         .rank = -1,
                         .size = static_cast<int>(ranks.size()),
                         .world_ranks = ranks,
                         .timeout = absl::Seconds(30),
                         .options = std::move(options)};
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] == launch.rank) context.rank = static_cast<int>(i);
  }
  if (context.rank < 0) return nullptr;
  return value_or_throw(make_mpi_backend(context));
}

std::vector<int> all_ranks(const Launch& launch) {
  std::vector<int> ranks;
  for (int rank = 0; rank < launch.size; ++rank) ranks.push_back(rank);
  return ranks;
}

void conformance() {
  // With the second block size most tensors are sent in many pieces.
  for (const char* block : {"1073741824", "4096"}) {
    const auto world = ProcessGroup::create(
        {.backend = "mpi", .timeout = absl::Minutes(2), .options = {{"block_bytes", block}}});
    for (const Case& each : kCases) {
      try {
        each.run(*world);
      } catch (const std::exception& error) {
        throw std::runtime_error(absl::StrCat(each.name, " in blocks of ", block, ": ", error.what()));
      }
    }
    world->barrier();
    world->destroy();
  }
}

void oracle(const Launch& launch) {
  const auto create = [&](const char* backend) {
    return ProcessGroup::create({.backend = backend,
                                 .timeout = absl::Minutes(2),
                                 .world_size = launch.size,
                                 .rank = launch.rank,
                                 .store = launch.store,
                                 .group_name = backend});
  };
  const auto cpu = create("cpu"), mpi = create("mpi");
  for (const uint64_t seed : {1, 1000}) compare_groups(*cpu, *mpi, seed);
  mpi->barrier();
  cpu->destroy();
  mpi->destroy();
}

void sizes_differ(const Launch& launch) {
  const auto group = make(launch, "sizes", all_ranks(launch));
  at::Tensor small = at::zeros({2});
  at::Tensor large = at::zeros({4});
  if (launch.rank == 0) {
    const absl::Status longer = group->receive(small, 1, 0, in(absl::Seconds(30))).result().status();
    expect(longer.code() == absl::StatusCode::kInvalidArgument,
           absl::StrCat("too long: ", longer.ToString()));
    const absl::Status shorter = group->receive(large, 1, 1, in(absl::Seconds(30))).result().status();
    expect(shorter.code() == absl::StatusCode::kInvalidArgument,
           absl::StrCat("too short: ", shorter.ToString()));
  } else if (launch.rank == 1) {
    throw_if_error(group->send(large, 0, 0, in(absl::Seconds(30))).result());
    throw_if_error(group->send(small, 0, 1, in(absl::Seconds(30))).result());
  }
  throw_if_error(group->barrier(in(absl::Seconds(30))));
}

void no_such_option(const Launch& launch) {
  BackendContext context{.store = launch.store, .group = "options", .options = {{"speed", "high"}}};
  const absl::Status status = make_mpi_backend(context).status();
  expect(absl::StrContains(status.message(), "speed"), status.ToString());
}

// The last rank does not arrive. The other ranks name it, and afterwards they report that the group is
// broken.
void late(const Launch& launch) {
  const auto group = make(launch, "late", all_ranks(launch));
  const int last = launch.size - 1;
  const std::string done = "late/done";
  if (launch.rank != last) {
    const absl::Status status = group->all_reduce(at::zeros({4}), ReduceOp::kSum, in(absl::Seconds(1)));
    expect(status.code() == absl::StatusCode::kDeadlineExceeded, status.ToString());
    expect(absl::StrContains(status.message(), absl::StrCat("no report from rank ", last)) ||
               absl::StrContains(status.message(), absl::StrCat(", rank ", last)),
           status.ToString());
    const absl::Status after = group->barrier(in(absl::Seconds(1)));
    expect(after.code() == absl::StatusCode::kAborted && absl::StrContains(after.message(), "no report from"),
           after.ToString());
    launch.store->add(done, 1);
  } else {
    while (launch.store->add(done, 0) < last) usleep(10'000);
  }
}

// The last rank leaves the group while the others wait for it.
void left(const Launch& launch) {
  auto group = make(launch, "left", all_ranks(launch));
  const int last = launch.size - 1;
  throw_if_error(group->barrier(in(absl::Seconds(30))));
  if (launch.rank == last) {
    group.reset();
  } else {
    const absl::Time begin = Clock::system().now();
    const absl::Status status =
        launch.rank == 0 ? group->receive(at::zeros({4}), last, 0, in(absl::Seconds(60))).result().status()
                         : group->barrier(in(absl::Seconds(60)));
    // A rank that does not see that the last rank has left learns it from another rank, which gave up with
    // that reason.
    expect(status.code() == absl::StatusCode::kUnavailable || status.code() == absl::StatusCode::kAborted,
           status.ToString());
    expect(absl::StrContains(status.message(), absl::StrCat("rank ", last)), status.ToString());
    expect(Clock::system().now() - begin < absl::Seconds(20),
           "it took too long to notice that a rank has left");
  }
}

// One rank aborts the group while the others wait for it.
void aborted(const Launch& launch) {
  const auto group = make(launch, "aborted", all_ranks(launch));
  throw_if_error(group->barrier(in(absl::Seconds(30))));
  if (launch.rank == 0) {
    const Future<int> pending = group->receive(at::zeros({4}), 1, 0, in(absl::Seconds(60)));
    group->abort(absl::AbortedError("requested by the test"));
    expect(absl::StrContains(pending.result().status().message(), "requested by the test"),
           pending.result().status().ToString());
    return;
  }
  const absl::Status status = group->barrier(in(absl::Seconds(60)));
  expect(status.code() == absl::StatusCode::kAborted &&
             absl::StrContains(status.message(), "requested by the test"),
         status.ToString());
}

void wait_for_all(const Launch& launch, const std::string& key) {
  launch.store->add(key, 1);
  while (launch.store->add(key, 0) < launch.size) usleep(10'000);
}

void run(const std::string& scenario) {
  at::set_num_threads(1);
  Launch launch;
  std::tie(launch.rank, launch.size) = value_or_throw(mpi_launch_rank_and_size());
  launch.store = value_or_throw(mpi_launch_store(absl::Seconds(30)));
  if (scenario == "conformance") {
    conformance();
    sizes_differ(launch);
    no_such_option(launch);
  } else if (scenario == "oracle") {
    oracle(launch);
  } else if (scenario == "late") {
    late(launch);
  } else if (scenario == "left") {
    left(launch);
  } else if (scenario == "aborted") {
    aborted(launch);
  } else {
    throw std::runtime_error("unknown scenario: " + scenario);
  }
  // Write the line with one call: mpirun mixes the output of the ranks.
  const std::string line = absl::StrCat("rank ", launch.rank, " done\n");
  (void)!write(STDOUT_FILENO, line.data(), line.size());
  // mpirun kills the other ranks when one ends without MPI_Finalize. So no rank exits before all have written
  // their line. Rank 0 hosts the store, so it exits last.
  wait_for_all(launch, "said");
  launch.store->add("gone", 1);
  while (launch.rank == 0 && launch.store->add("gone", 0) < launch.size) usleep(10'000);
}

}  // namespace
}  // namespace gradwire::collectives

int main(int argc, char** argv) {
  try {
    gradwire::collectives::run(argc > 1 ? argv[1] : "");
    return 0;
  } catch (const std::exception& e) {
    std::cerr << "failed: " << e.what() << std::endl;
    // mpirun then ends the other ranks.
    _exit(1);
  }
}
