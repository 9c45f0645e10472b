#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gradwire/tools/inspect/trace/trace_span.h"

namespace gradwire::inspect {

// The events of one file of libtorch's profiler: what torch::autograd::profiler::ProfilerResult::save()
// writes in C++, and export_chrome_trace() in Python.
struct Profile {
  struct Event {
    std::string name;
    // On the wall clock, in nanoseconds.
    int64_t begin = 0;
    int64_t end = 0;
    // The process, or the device for events of an accelerator, and the thread or stream.
    int64_t process = 0;
    int64_t thread = 0;
  };
  std::vector<Event> events;
  // The number of events with a time that were not kept: malformed ones, and those over the limit.
  uint64_t dropped = 0;
};

// Reads the text of such a file. Nothing in it is trusted: values are checked, texts are cut at 256 bytes,
// and at most `most` events are kept. Errors: InvalidArgument if it is not JSON, is nested more than 32 deep,
// or has no events with absolute times, as the files of libtorch's legacy profiler.
absl::StatusOr<Profile> parse_profile(absl::string_view text, std::size_t most = 2'000'000);

// Reads a file of at most 512 MiB. Errors, with the path: as above; Unavailable if it cannot be read.
absl::StatusOr<Profile> read_profile(const std::string& path);

// Adds the events to the trace of the worker with this name. An empty name: the only worker, or the only one
// whose process has recorded the events. Times are brought to the worker's clock by the moment on both clocks
// in its flight record, so they are wrong by what the wall clock was set since then. Errors: NotFound (no
// such worker), InvalidArgument (several such workers), FailedPrecondition (its records do not have the
// moment).
absl::Status add_profile(const Profile& profile, const std::string& worker,
                         std::vector<WorkerTrace>& workers);

}  // namespace gradwire::inspect
