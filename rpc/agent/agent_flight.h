#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/base/flight/flight_source.h"
#include "gradwire/rpc/core/options.h"
#include "gradwire/rpc/flight/call_report.h"

namespace gradwire::rpc {

struct AgentRuntime;
class Caller;
class Peers;
class ServedCalls;

// The flight record of one agent: what it recorded, and the calls that are open when it is written.
// Thread-safe. Dumps of the process include it.
class AgentFlight final : public FlightSource {
 public:
  // The sources of the agent. They must outlive this object.
  struct Sources {
    AgentRuntime& runtime;
    Caller& caller;
    const ServedCalls& served;
    const Peers& peers;
  };
  explicit AgentFlight(const Sources& sources);
  ~AgentFlight() override;
  AgentFlight(const AgentFlight&) = delete;
  AgentFlight& operator=(const AgentFlight&) = delete;

  // As AgentServices::open_calls().
  OpenCalls open_calls(bool services) const;
  // Call when a call has timed out, which had this much time. At the first timeout that
  // FlightRecordOptions::dump_timeouts_from counts, and then at most once in `dump_interval`, it has the
  // records of the process dumped, on the executor.
  void timed_out(const absl::Status& error, absl::Duration timeout);

  // FlightSource. A crash leaves out the open calls, whose table has a lock; the ring shows them while their
  // records are not overwritten.
  void write(FlightSink& sink, absl::string_view reason, FlightDump dump) const override;
  std::string text(std::size_t lines) const override;
  absl::string_view file_name() const override { return file_name_; }
  absl::string_view directory() const override { return options_.directory; }

 private:
  bool dump_is_due(absl::Time now);

  const Sources sources_;
  const FlightRecordOptions& options_;
  const std::string file_name_;
  std::atomic<int64_t> next_dump_{0};
};

}  // namespace gradwire::rpc
