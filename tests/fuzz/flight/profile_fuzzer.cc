#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gradwire/tests/fuzz/fuzzing.h"
#include "gradwire/tools/inspect/trace/chrome_trace.h"
#include "gradwire/tools/inspect/trace/profiler_trace.h"

// Reads the input as a file of libtorch's profiler, and makes a trace with it. The checks follow from the
// header.
namespace gradwire::inspect {
namespace {

using fuzzing::require;

constexpr std::size_t kMost = 20;

void check(const Profile& profile) {
  require(!profile.events.empty() && profile.events.size() <= kMost,
          "a number of events that is not allowed");
  for (const Profile::Event& event : profile.events) {
    require(event.begin > 0 && event.end >= event.begin, "a time is impossible");
    require(event.name.size() <= 256, "a name is too long");
    require(std::all_of(event.name.begin(), event.name.end(), [](char c) { return c >= 0x20 && c <= 0x7e; }),
            "a name has characters that no terminal gets");
  }
}

}  // namespace
}  // namespace gradwire::inspect

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace gradwire::inspect;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<Profile> profile = parse_profile(text, kMost);
  if (!profile.ok()) {
    gradwire::fuzzing::require(absl::IsInvalidArgument(profile.status()),
                               "another error than the documented one");
    return 0;
  }
  check(*profile);
  std::vector<WorkerTrace> workers(1);
  workers[0].name = "a";
  workers[0].wall_ahead = int64_t{1} << 60;
  gradwire::fuzzing::require(add_profile(*profile, "", workers).ok(), "the only worker is not found");
  gradwire::fuzzing::require(workers[0].spans.size() == profile->events.size(), "events were lost");
  gradwire::fuzzing::require(!chrome_trace(workers, std::vector<WorkerClock>(1)).empty(), "no trace");
  return 0;
}
