#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gradwire/tests/fuzz/fuzzing.h"
#include "gradwire/tools/inspect/dump/flight_file.h"
#include "gradwire/tools/inspect/dump/flight_join.h"

// Reads the input as two flight records, which a line "---" separates, and joins them. The checks follow from
// docs/observability.md and the headers.
namespace gradwire::tools {
namespace {

using fuzzing::require;

bool is_printable(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c <= 0x7e; });
}

void check(const FlightFile& file) {
  require(is_printable(file.title) && is_printable(file.reason),
          "a text has characters that no terminal gets");
  require(file.is_group || file.incarnation != 0, "the file of an agent has no incarnation");
  for (const auto& [incarnation, name] : file.workers) {
    require(incarnation != 0 || file.is_group, "a worker has no incarnation");
    require(is_printable(name), "a name has characters that no terminal gets");
  }
  for (const FlightCall& call : file.calls) {
    require(call.identity.caller != 0 && call.peer != 0 && call.began > 0, "a call lacks a field");
    require(call.ended >= 0 && call.started >= 0 && call.deadline >= 0, "a time is negative");
    require(is_printable(call.name) && is_printable(call.state) && is_printable(call.code),
            "a text of a call has characters that no terminal gets");
  }
}

}  // namespace
}  // namespace gradwire::tools

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace gradwire::tools;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const std::string separator = "\n---\n";
  const std::size_t end = text.find(separator);
  std::vector<FlightFile> files;
  for (const std::string& part :
       {text.substr(0, end),
        end == std::string::npos ? std::string() : text.substr(end + separator.size())}) {
    auto file = parse_flight_file(part);
    if (file.ok()) {
      check(*file);
      files.push_back(*std::move(file));
    } else {
      gradwire::fuzzing::require(absl::IsInvalidArgument(file.status()),
                                 "another error than the documented one");
    }
  }
  std::size_t calls = 0;
  for (const FlightFile& file : files) calls += file.calls.size();
  const FlightJoin join = join_flight_files(files);
  gradwire::fuzzing::require(join.chains.size() <= calls, "the chains have more calls than the files");
  for (const ClockOffset& clock : join.clocks)
    gradwire::fuzzing::require(clock.error_ns >= 0 && clock.from < clock.to, "a clock offset is impossible");
  return 0;
}
