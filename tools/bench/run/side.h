#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/tools/bench/report/statistics.h"
#include "gradwire/tools/bench/run/channel.h"
#include "gradwire/tools/bench/run/split_network.h"

namespace gradwire::bench {

// The processes of one side, started as this very program with --participant=ROLE. They die with the
// coordinator, and with this object. What they print is kept, and its end is quoted when one
// fails. Every wait is bounded. Not thread-safe.
class Side {
 public:
  struct Options {
    std::string role;
    std::string transport;
    int members = 2;
    // Runs on these many cores, the first ones; 0: on all.
    int cores = 0;
    // Stopped (SIGSTOP) but for the time of run(): for processes that spin when nobody calls.
    bool stop_between = false;
    // Descriptors that a process may have (the soft limit); 0: as many as the coordinator.
    int descriptors = 0;
    // Where the members live; none: where the coordinator does. Member 1 is on the right, the others on the
    // left.
    std::shared_ptr<const SplitNetwork> network;
    absl::Duration join_timeout = absl::Seconds(60);
    // For an answer, beyond the time that a task is meant to take.
    absl::Duration timeout = absl::Seconds(30);
  };
  // Starts the processes and has them listen and join. Unavailable, DeadlineExceeded or Unknown with the
  // member and what it said last.
  static absl::StatusOr<std::unique_ptr<Side>> start(const Options& options);
  ~Side();
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;

  // Has the last member run the task, or, with `all`, every member at the same time. After an error the side
  // is of no further use.
  absl::StatusOr<Round> run(const Task& task, bool all);
  // The same for a task that costs another member its life, so that nobody can say what the members used of
  // the processors. The side is of no further use.
  absl::StatusOr<Round> run_last_task(const Task& task);
  // What all members together use of the processors while nobody asks anything of them.
  absl::StatusOr<double> idle_cpu_us(absl::Duration period);

 private:
  struct Member {
    pid_t pid = -1;
    // In memory: what it prints.
    int log_fd = -1;
    std::unique_ptr<Channel> channel;
  };

  explicit Side(Options options) : options_(std::move(options)) {}
  absl::Status spawn(int rank);
  // Sends to members from `first` on, then gathers their answers.
  absl::StatusOr<std::vector<Answer>> order_all(std::vector<Order> orders, std::size_t first,
                                                absl::Duration timeout);
  absl::StatusOr<Round> run_awake(const Task& task, bool all);
  absl::StatusOr<Round> run_members(const Task& task, std::size_t first);
  absl::StatusOr<double> idle_awake(absl::Duration period);
  void signal_all(int signal) const;
  absl::StatusOr<double> usage();
  absl::Status failure(std::size_t rank, const absl::Status& status) const;
  // The first member that has ended, how, and what it said last; empty while all run.
  std::string first_death() const;

  const Options options_;
  std::vector<Member> members_;
};

}  // namespace gradwire::bench
