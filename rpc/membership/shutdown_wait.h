#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/base/clock.h"

namespace gradwire::rpc {

// Decides when a graceful shutdown reports what it is waiting for, and formats the report. The first report
// is due after kFirst, later ones every kEvery. Not thread-safe.
class ShutdownWait {
 public:
  static constexpr absl::Duration kFirst = absl::Seconds(5);
  static constexpr absl::Duration kEvery = absl::Seconds(30);
  // Maximum number of items in a report. Items that have lasted longest come first.
  static constexpr std::size_t kMaxItems = 8;

  // Work that must end before the shutdown can.
  struct Unfinished {
    enum class Kind {
      // This worker runs the function `what` for the caller `worker`.
      kServed,
      // This worker called `what` on `worker`, which has not answered.
      kCalled,
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

  // The shutdown of `worker` begins now.
  explicit ShutdownWait(std::string worker, Clock& clock = Clock::system());

  // Whether a report is due. Returns true once for each report.
  bool due();
  // The unfinished work, each item with its duration: "\"f\", called by worker \"b\" (12s)".
  std::string list(std::vector<Unfinished> unfinished) const;
  // Returns the report as one line for the log.
  std::string report(std::vector<Unfinished> unfinished) const;

 private:
  const std::string worker_;
  Clock& clock_;
  const absl::Time began_;
  absl::Time next_;
};

}  // namespace gradwire::rpc
