#include "tools/launch/job.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/random_id.h"
#include "store/tcp_store.h"

namespace gradwire::tools {
namespace {

// How long a process that left its worker's group may keep the worker's pipe before it is cut off.
constexpr absl::Duration kDrain = absl::Seconds(2);

std::string host_name() {
  char name[256] = "";
  if (gethostname(name, sizeof(name) - 1) != 0) return "unknown";
  return name;
}

std::string environment_or(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? otherwise : value;
}

std::vector<std::string> current_environment() {
  std::vector<std::string> environment;
  for (char** variable = environ; *variable != nullptr; ++variable) environment.push_back(*variable);
  return environment;
}

// Node 0 need not be able to reach itself by the name that the others use.
std::string own_address(const std::string& master_addr) {
  const bool loopback =
      master_addr == "localhost" || master_addr == "::1" || absl::StartsWith(master_addr, "127.");
  return loopback ? master_addr : "127.0.0.1";
}

std::string choose_run_id(const LaunchOptions& options) {
  if (!options.run_id.empty()) return options.run_id;
  return options.nnodes > 1 ? "none" : absl::StrFormat("%016x", random_id());
}

}  // namespace

absl::StatusOr<std::unique_ptr<LaunchJob>> LaunchJob::create(LaunchOptions options) {
  GRADWIRE_ASSIGN_OR_RETURN(Guardian guardian, Guardian::start());
  GRADWIRE_ASSIGN_OR_RETURN(LaunchSignals signals, LaunchSignals::block());
  GRADWIRE_ASSIGN_OR_RETURN(EventLoop loop, EventLoop::create());
  // What workers leave behind becomes the launcher's child, which reaps it; not every container has an init
  // that does.
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  return std::unique_ptr<LaunchJob>(
      new LaunchJob(std::move(options), std::move(guardian), std::move(signals), std::move(loop)));
}

LaunchJob::LaunchJob(LaunchOptions options, Guardian guardian, LaunchSignals signals, EventLoop loop)
    : options_(std::move(options)),
      guardian_(std::move(guardian)),
      signals_(std::move(signals)),
      loop_(std::move(loop)),
      outputs_(loop_, options_),
      supervisor_(loop_, Clock::system(), options_.grace_period, host_name(),
                  {.say = [this](const std::string& line) { outputs_.say(line); },
                   .failed =
                       [this](const Failure& failure) {
                         if (nodes_) nodes_->publish(failure);
                       }}) {}

absl::StatusOr<int> LaunchJob::run() {
  GRADWIRE_RETURN_IF_ERROR(loop_.add(signals_.fd(), EPOLLIN, [this](uint32_t) {
    while (const int signal = signals_.next()) {
      if (supervising_) {
        supervisor_.on_signal(signal);
      } else {
        interrupted_by_ = signal;
      }
    }
  }));
  GRADWIRE_ASSIGN_OR_RETURN(command_,
                            resolve_command(options_, environment_or("PATH", "/usr/local/bin:/usr/bin:/bin"),
                                            environment_or("PYTHON_EXEC", "python3")));
  if (options_.node_rank == 0) GRADWIRE_RETURN_IF_ERROR(serve_store());
  absl::StatusOr<NodeGroup::Joined> job = meet_nodes();
  if (interrupted_by_ != 0) return 128 + interrupted_by_;
  if (!job.ok()) return job.status();
  if (absl::Status started = start_workers(*job); !started.ok()) {
    if (nodes_) {
      nodes_->publish({.exit_code = 1,
                       .description = absl::StrCat("node ", options_.node_rank, ": ", started.message())});
      supervisor_.on_signal(SIGTERM);
      while (!supervisor_.advance()) loop_.run_once(supervisor_.next_wait());
      leave_nodes();
    }
    return started;
  }

  supervising_ = true;
  while (!supervisor_.advance()) loop_.run_once(supervisor_.next_wait());
  supervising_ = false;
  guardian_.release();
  let_output_through();
  leave_nodes();
  if (supervisor_.failure()) outputs_.say(supervisor_.failure()->description);
  let_output_through();
  return supervisor_.exit_code();
}

absl::Status LaunchJob::serve_store() {
  absl::StatusOr<std::unique_ptr<store::TcpStoreServer>> server =
      store::TcpStoreServer::start({.host = options_.master_addr, .port = options_.master_port});
  if (!server.ok()) {
    // Not the command line's fault: the port may be free the next time.
    return absl::UnavailableError(absl::StrCat("cannot serve the store at ", options_.master_addr, ":",
                                               options_.master_port, ": ", server.status().message(),
                                               " (--master_port chooses another, --standalone a free one)"));
  }
  server_ = *std::move(server);
  return absl::OkStatus();
}

absl::StatusOr<NodeGroup::Joined> LaunchJob::meet_nodes() {
  const std::string run_id = choose_run_id(options_);
  const NodeEntry self{
      .host = host_name(), .role = options_.role, .local_world_size = options_.nproc_per_node};
  if (options_.nnodes == 1) return NodeGroup::Joined{.nodes = {self}, .run_id = run_id};

  const std::string address = server_ ? own_address(options_.master_addr) : options_.master_addr;
  const int port = server_ ? server_->port() : options_.master_port;
  auto open_store = [address, port](absl::Duration timeout) -> absl::StatusOr<std::shared_ptr<store::Store>> {
    return store::TcpStore::open(address, port, {.timeout = timeout, .wait_for_workers = false});
  };
  GRADWIRE_ASSIGN_OR_RETURN(nodes_, NodeGroup::start({.nnodes = options_.nnodes,
                                                      .node_rank = options_.node_rank,
                                                      .self = self,
                                                      .run_id = run_id,
                                                      .join_timeout = options_.join_timeout},
                                                     open_store));
  GRADWIRE_RETURN_IF_ERROR(loop_.add(nodes_->event_fd(), EPOLLIN, [this](uint32_t) { on_news(); }));
  while (!nodes_->news().joined && interrupted_by_ == 0) loop_.run_once(absl::InfiniteDuration());
  if (interrupted_by_ != 0) {
    // So that the others do not wait for this node to the end of their time.
    nodes_->publish({.exit_code = 128 + interrupted_by_,
                     .description = absl::StrCat("node ", options_.node_rank, " was stopped by ",
                                                 signal_name(interrupted_by_))});
    return absl::CancelledError("stopped while the nodes were meeting");
  }
  return *nodes_->news().joined;
}

void LaunchJob::on_news() {
  const NodeGroup::News news = nodes_->news();
  if (news.failed && supervising_) supervisor_.end_for(*news.failed);
}

absl::Status LaunchJob::start_workers(const NodeGroup::Joined& job) {
  GRADWIRE_ASSIGN_OR_RETURN(const std::vector<WorkerPlace> places,
                            lay_out_ranks(job.nodes, options_.node_rank));
  GRADWIRE_RETURN_IF_ERROR(outputs_.prepare(job.run_id));
  if (!has_variable(current_environment(), "OMP_NUM_THREADS")) {
    outputs_.say("OMP_NUM_THREADS=1 is set for the workers; set it yourself to give them more threads");
  }
  // A worker's group is never the terminal's foreground group: reading from the terminal would stop it for
  // ever.
  Fd no_input;
  if (isatty(STDIN_FILENO)) no_input = Fd(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const JobAddress address{.master_addr = options_.master_addr,
                           .master_port = server_ ? server_->port() : options_.master_port,
                           .run_id = job.run_id};
  for (const WorkerPlace& place : places) {
    GRADWIRE_RETURN_IF_ERROR(start_worker(place, address, command_, no_input.get()));
  }
  return absl::OkStatus();
}

absl::Status LaunchJob::start_worker(const WorkerPlace& place, const JobAddress& address,
                                     const Command& command, int stdin_fd) {
  GRADWIRE_ASSIGN_OR_RETURN(WorkerStreams streams, outputs_.open(place.local_rank));
  GRADWIRE_ASSIGN_OR_RETURN(
      Worker worker,
      Worker::start(place, {.command = command,
                            .environment = worker_environment(current_environment(), place, address),
                            .stdin_fd = stdin_fd,
                            .stdout_fd = streams.out.get(),
                            .stderr_fd = streams.err.get(),
                            .registration_fd = guardian_.registration_fd(),
                            .signal_mask = signals_.original_mask(),
                            .ignore_sigpipe = signals_.sigpipe_was_ignored()}));
  return supervisor_.add(std::move(worker));
}

void LaunchJob::let_output_through() {
  Clock& clock = Clock::system();
  const absl::Time cut_off = clock.now() + kDrain;
  while (outputs_.pumps_open() && interrupted_by_ == 0 && clock.now() < cut_off)
    loop_.run_once(cut_off - clock.now());
  outputs_.close_pumps();
  // As long as its reader takes, as a program that writes to a slow reader waits too; a signal ends it.
  while (!outputs_.flushed() && interrupted_by_ == 0) loop_.run_once(absl::InfiniteDuration());
}

void LaunchJob::leave_nodes() {
  if (!nodes_) return;
  nodes_->leave();
  bool told = false;
  while (!nodes_->news().done && interrupted_by_ == 0) {
    loop_.run_once(absl::Seconds(1));
    if (!told && options_.node_rank == 0 && !nodes_->news().done && !supervisor_.failure()) {
      outputs_.say("this node's workers have ended; serving the store until the other nodes' have too");
      told = true;
    }
  }
  loop_.remove(nodes_->event_fd());
}

}  // namespace gradwire::tools
