#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gradwire/base/metrics/counter.h"
#include "gradwire/base/metrics/registry.h"
#include "gradwire/base/metrics/samples.h"
#include "gradwire/base/mutex.h"
#include "gradwire/transport/http/http_server.h"

namespace gradwire::tools {

// Asks the HTTP servers at these sockets of the file system for /metrics, all at the same time, and returns
// their answers in the order of `paths`. Returns after `limit` at the latest. Errors: Unavailable if nobody
// listens there; DeadlineExceeded if the answer is not complete by then, or if the server accepts no
// connections; ResourceExhausted if it has more
// than `most_bytes`; Internal if it is not a page.
std::vector<absl::StatusOr<std::string>> scrape(const std::vector<std::string>& paths, absl::Duration limit,
                                                std::size_t most_bytes = std::size_t{16} << 20);

// The metrics of the job on this node: those of the launcher, and those of its workers, which it asks for
// them when somebody asks the launcher. Each worker serves them on a socket in a folder of its own, which
// only this user can enter.
//
// Use on the thread of the launcher; the server has a thread of its own.
class JobMetrics {
 public:
  struct Options {
    // As transport::HttpOptions. Empty: they are not served.
    std::string address;
    bool insecure = false;
    // Whether texts() is used, also without an address.
    bool exported = false;
    // How long to wait for the workers.
    absl::Duration limit = absl::Seconds(3);
  };
  // Variables of the environment, each with its value.
  using Variables = std::vector<std::pair<std::string, std::string>>;

  // Makes the folder of the sockets. Unavailable if that fails.
  static absl::StatusOr<JobMetrics> create(const Options& options);
  JobMetrics(JobMetrics&& other) noexcept;
  JobMetrics& operator=(JobMetrics&&) = delete;
  // Ends the server and removes the folder.
  ~JobMetrics();

  // The folder that must not outlive the job, or "".
  const std::string& folder() const { return folder_; }
  // Where they are served; "" before serve(), or without metrics.
  std::string address() const { return server_ == nullptr ? std::string() : server_->address(); }
  // Whether there are metrics. Otherwise there is no folder.
  bool enabled() const { return !options_.address.empty() || options_.exported; }

  // Begins to serve, if there is an address. Starts a thread. Errors: those of HttpServer::start().
  absl::Status serve();
  // Begins a round: `restarts`: of the job so far.
  void begin_round(int64_t round, int restarts);
  // Makes the folder of a worker of the round, and adds the variable that names it for the worker. Does
  // nothing without metrics.
  absl::Status add_worker(int local_rank, int rank, Variables& variables);
  void end_round();

  // The text for Prometheus.
  std::string text() const;

  // The metrics of one process.
  struct Text {
    // That of the worker; -1 for the launcher.
    int rank = -1;
    std::string text;
    // When its counters began, or a little earlier.
    absl::Time since;
  };
  // The metrics of the launcher and those of its workers, in texts of their own. Thread-safe.
  std::vector<Text> texts() const;
  // Counts what happens to the metrics themselves. They are among those of the launcher.
  std::shared_ptr<metrics::Registry> registry() const { return state_->registry; }

 private:
  struct WorkerSockets {
    int rank = 0;
    std::string folder;
  };
  // The state that the server's thread reads.
  struct State {
    mutable Mutex mutex;
    std::vector<WorkerSockets> workers ABSL_GUARDED_BY(mutex);
    // When the round began.
    absl::Time round_since ABSL_GUARDED_BY(mutex) = absl::Now();
    const absl::Time since = absl::Now();
    const std::shared_ptr<metrics::Registry> registry = std::make_shared<metrics::Registry>();
    metrics::Gauge restarts;
    metrics::Gauge rounds;
    metrics::Counter failures;
  };

  JobMetrics(const Options& options, std::string folder)
      : options_(options), folder_(std::move(folder)), state_(std::make_unique<State>()) {}
  // The texts of the workers that answer.
  static std::vector<Text> texts_of_workers(State& state, absl::Duration limit);
  // Adds the metrics of the launcher.
  static void add_own(State& state, metrics::Samples& samples);
  static std::string text_of(State& state, absl::Duration limit);

  Options options_;
  std::string folder_;
  std::string round_folder_;
  std::unique_ptr<State> state_;
  std::unique_ptr<transport::HttpServer> server_;
};

}  // namespace gradwire::tools
