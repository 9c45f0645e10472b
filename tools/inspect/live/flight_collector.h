#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/base/clock.h"
#include "gradwire/proto/inspect.pb.h"
#include "gradwire/proto/membership.pb.h"
#include "gradwire/rpc/inspect/observer.h"
#include "gradwire/tools/inspect/analysis/process_space.h"
#include "gradwire/tools/inspect/dump/flight_file.h"

namespace gradwire::inspect {

// Asks the workers of a job. It waits between two questions for as long as the protocol demands, and bounds
// the time of each.
class FlightAsker {
 public:
  virtual ~FlightAsker() = default;
  // Returns the answers in the order of the questions. As rpc::Observer::ask_each().
  virtual std::vector<rpc::Observer::Answer> ask(const std::vector<rpc::Observer::Question>& questions) = 0;
};

// The flight records of a running job for a period, from all of its workers (proto/inspect.proto,
// FlightQuestion). Workers answer what they want, so all that they send is bounded and checked. Not
// thread-safe.
class FlightCollector {
 public:
  struct Bounds {
    // Text of one worker, and of all together.
    std::size_t worker_bytes = std::size_t{64} << 20;
    std::size_t total_bytes = std::size_t{1} << 30;
    // Answers of one worker.
    int worker_parts = 1000;
    // How often a worker may say that it has no time.
    int refusals = 20;
    // How long end() may take, beside the last question.
    absl::Duration time = absl::Minutes(2);
  };
  struct Collected {
    // One for each worker, and one for each process group of each process. What was overwritten is in
    // `recorded`, and `capacity` is 0.
    std::vector<tools::FlightFile> files;
    // Lines for the user: workers that are missing or have answered in part, and why.
    std::vector<std::string> problems;
  };

  explicit FlightCollector(FlightAsker& asker) : FlightCollector(asker, Bounds()) {}
  FlightCollector(FlightAsker& asker, const Bounds& bounds, Clock& clock = Clock::system())
      : asker_(asker), bounds_(bounds), clock_(clock) {}

  // The period begins. Returns the workers that do not answer, as lines for the user; end() asks them again.
  std::vector<std::string> begin(const std::vector<proto::WorkerRecord>& workers);
  // The period ends. Reads the records of these workers from the beginning of the period on, or from the
  // start of a worker that was not there at its beginning.
  Collected end(const std::vector<proto::WorkerRecord>& workers);

 private:
  struct Start {
    std::string name;
    int64_t since_us = 0;
    uint64_t recorded = 0;
  };
  // The question to one worker, and its answers so far.
  struct Work {
    proto::WorkerRecord worker;
    proto::FlightQuestion question;
    // The text of the file that is being read, and the number of records that it lacks.
    std::string text;
    uint64_t missing = 0;
    // The size of all its answers, and their numbers.
    std::size_t bytes = 0;
    int parts = 0;
    int refused = 0;
    bool done = false;
  };

  // Takes an answer, and sets the next question or `done`. Errors: the worker is done, and why.
  absl::Status take(Work& work, const rpc::Observer::Answer& answer, Collected& collected);
  absl::Status take_calls(Work& work, const proto::AgentState& state, Collected& collected);
  absl::Status take_group(Work& work, const proto::AgentState& state, Collected& collected);

  FlightAsker& asker_;
  const Bounds bounds_;
  Clock& clock_;
  // By incarnation.
  std::map<uint64_t, Start> starts_;
  // The processes whose groups have been asked for: each with its process id.
  std::set<std::pair<ProcessSpace, int64_t>> processes_;
  std::size_t total_bytes_ = 0;
};

}  // namespace gradwire::inspect
