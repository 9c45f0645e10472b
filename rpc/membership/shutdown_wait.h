#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/base/clock.h"

namespace gradwire::rpc {

// Formats the reports of a graceful shutdown about what it is waiting for. Thread-compatible.
class ShutdownWait {
 public:
  // Maximum number of items in a report. Items that have lasted longest come first.
  static constexpr std::size_t kMaxItems = 8;

  // Work that must end before the shutdown can.
  struct Unfinished {
    enum class Kind {
      // This worker runs the function `what` for the caller `worker`.
      kServed,
      // This worker called `what` on `worker`, which has not answered.
      kCalled,
      // This worker serves a stream of the function `what`, which `worker` reads.
      kStreamServed,
      // This worker reads a stream that the function `what` has made on `worker`.
      kStreamRead,
      // `worker` has not called shutdown, or still has calls in progress.
      kMember,
      // `worker` has not answered a Ping.
      kSilent,
      // Anything else; `what` is its description.
      kOther,
    };
    Kind kind;
    std::string what;
    std::string worker;
    absl::Time since;
  };

  // The shutdown of `worker`.
  explicit ShutdownWait(std::string worker, Clock& clock = Clock::system());

  // The unfinished work, each item with its duration: "\"f\", called by worker \"b\" (12s)". Items with the
  // same text become one, with the longest duration and their number: "\"f\", called by worker \"b\" (12s, 8
  // times)".
  std::string list(std::vector<Unfinished> unfinished) const;
  // Returns the report as one line, without the duration of the shutdown.
  std::string report(std::vector<Unfinished> unfinished) const;

 private:
  const std::string worker_;
  Clock& clock_;
};

}  // namespace gradwire::rpc
