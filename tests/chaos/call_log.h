#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace chaos {

// A call as its caller saw it. Times in microseconds on CLOCK_MONOTONIC, which all processes of a host share.
struct CallRecord {
  uint64_t id = 0;
  std::string operation;
  // The ids of the workers it goes to, in turn; one, unless it is nested.
  std::vector<int> path;
  int64_t start_us = 0;
  int64_t deadline_us = 0;
  // -1: it had not ended when its process did.
  int64_t end_us = -1;
  absl::StatusCode code = absl::StatusCode::kOk;
  // Where the error arose, as the error says; may be empty.
  std::string worker;
  std::string message;
};

int64_t monotonic_us();

// The calls that this process makes, one line for the start and one for the end of each, in a file: what was
// written outlives a process that is killed. Thread-safe.
class CallLog {
 public:
  static CallLog& instance();

  // Once, before anything else.
  void open(const std::string& path);
  // Returns the call's number. `timeout`: after which the call should have ended.
  uint64_t begin(const std::string& operation, const std::vector<int>& path, absl::Duration timeout);
  void end(uint64_t id, const absl::Status& status);
  // A figure of this process, for read_figure().
  void note(const std::string& name, int64_t figure);

 private:
  int descriptor_ = -1;
};

// The sum of what was noted under `name`.
int64_t read_figure(const std::string& path, const std::string& name);

// In the order of their beginnings. Lines that are no records are left out.
std::vector<CallRecord> read_call_log(const std::string& path);

}  // namespace chaos
