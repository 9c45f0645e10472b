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

// The processes of one system. Each process runs this same program with --participant=ROLE. The processes are
// killed when the coordinator dies, and by the destructor of this object. Their output is kept; when a
// process fails, its last lines are part of the error. Every wait has a timeout. Not thread-safe.
class System {
 public:
  struct Options {
    std::string role;
    std::string transport;
    int members = 2;
    // The processes run on the first `cores` cores; 0: on all.
    int cores = 0;
    // Whether to stop the processes (SIGSTOP) outside run(), for processes that spin while they are idle.
    bool stop_between = false;
    // Maximum number of open descriptors in a process (the soft limit); 0: the limit of the coordinator.
    int descriptors = 0;
    // The network of the members: member 1 is on its right host, the others are on its left host. nullptr:
    // the network of the coordinator.
    std::shared_ptr<const SplitNetwork> network;
    absl::Duration join_timeout = absl::Seconds(60);
    // Timeout of an answer, in addition to the planned duration of a task.
    absl::Duration timeout = absl::Seconds(30);
  };
  // Starts the processes, then calls their listen() and join(). Errors: Unavailable, DeadlineExceeded or
  // Unknown. The message names the member and contains its last output.
  static absl::StatusOr<std::unique_ptr<System>> start(const Options& options);
  ~System();
  System(const System&) = delete;
  System& operator=(const System&) = delete;

  // Runs the task at the last `callers` members at the same time; 0, or more than there are: at every member.
  // After an error the system is unusable.
  absl::StatusOr<Round> run(const Task& task, int callers = 1);
  // Runs the task at the last member. For a task that kills another member: the processor time is not
  // measured, and the system is unusable afterwards.
  absl::StatusOr<Round> run_last_task(const Task& task);
  // Returns the processor time that all members together use during an idle `period`, in microseconds.
  absl::StatusOr<double> idle_cpu_us(absl::Duration period);

 private:
  struct Member {
    pid_t pid = -1;
    // A memory file with the output of the process.
    int log_fd = -1;
    std::unique_ptr<Channel> channel;
  };

  explicit System(Options options) : options_(std::move(options)) {}
  absl::Status spawn(int rank);
  // Sends the orders to the members from `first` on, then receives their answers.
  absl::StatusOr<std::vector<Answer>> send_orders(std::vector<Order> orders, std::size_t first,
                                                  absl::Duration timeout);
  absl::StatusOr<Round> run_awake(const Task& task, int callers);
  absl::StatusOr<Round> run_members(const Task& task, std::size_t first);
  absl::StatusOr<double> idle_awake(absl::Duration period);
  void signal_all(int signal) const;
  absl::StatusOr<double> usage();
  absl::Status failure(std::size_t rank, const absl::Status& status) const;
  // Describes the first member that has ended: its exit status and its last output. Empty while all members
  // run.
  std::string first_death() const;

  const Options options_;
  std::vector<Member> members_;
};

}  // namespace gradwire::bench
