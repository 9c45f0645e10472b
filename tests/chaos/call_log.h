#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace chaos {

// The log entry of one call, written by its caller. Times are in microseconds on CLOCK_MONOTONIC, which all
// processes of a host share.
struct CallRecord {
  uint64_t id = 0;
  std::string operation;
  // The ids of the workers that the call visits, in order: more than one for nested calls.
  std::vector<int> path;
  int64_t start_us = 0;
  int64_t deadline_us = 0;
  // -1 if the process ended before the call.
  int64_t end_us = -1;
  absl::StatusCode code = absl::StatusCode::kOk;
  // The worker at which the error arose, according to the error. May be empty.
  std::string worker;
  std::string message;
};

int64_t monotonic_us();

// Writes a log of the calls that this process makes: one line for the start and one for the end of each call.
// The log is a file, so it survives the death of the process. Thread-safe.
class CallLog {
 public:
  static CallLog& instance();

  // Must be called once, before the other functions.
  void open(const std::string& path);
  // Returns the number of the call. It should end within `timeout`.
  uint64_t begin(const std::string& operation, const std::vector<int>& path, absl::Duration timeout);
  void end(uint64_t id, const absl::Status& status);
  // Writes a figure of this process, for read_figure().
  void note(const std::string& name, int64_t figure);

 private:
  int descriptor_ = -1;
};

// Returns the sum of the figures in a log with this name.
int64_t read_figure(const std::string& path, const std::string& name);

// Returns the calls of a log, ordered by their starts. Malformed lines are left out.
std::vector<CallRecord> read_call_log(const std::string& path);

}  // namespace chaos
