#include "gradwire/base/flight/trace_settings.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "absl/strings/numbers.h"

namespace gradwire {
namespace {

constexpr std::size_t kMaxDirectory = 4096;

}  // namespace

std::size_t TraceSettings::agent_records(std::size_t wanted) const {
  return wanted == 0 || !on() ? wanted : std::max(wanted, records);
}

std::size_t TraceSettings::group_records(std::size_t wanted) const {
  return wanted == 0 || !on() ? wanted : std::max(wanted, records / kGroupPart);
}

TraceSettings parse_trace_settings(const char* directory, const char* records) {
  TraceSettings settings;
  if (directory == nullptr || std::strlen(directory) >= kMaxDirectory) return settings;
  settings.directory = directory;
  uint64_t number = 0;
  const bool given = records != nullptr && absl::SimpleAtoi(records, &number);
  settings.records =
      std::clamp<std::size_t>(given ? number : TraceSettings::kRecords, 1, TraceSettings::kMostRecords);
  return settings;
}

const TraceSettings& trace_settings() {
  static const auto* settings = new TraceSettings(
      parse_trace_settings(std::getenv("GRADWIRE_TRACE_DIR"), std::getenv("GRADWIRE_TRACE_RECORDS")));
  return *settings;
}

}  // namespace gradwire
