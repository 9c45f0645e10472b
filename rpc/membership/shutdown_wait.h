#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/base/clock.h"

namespace gradwire::rpc {

// Decides when a graceful shutdown that waits reports what it waits for, and words the report: after kFirst,
// then every kEvery. Not thread-safe.
class ShutdownWait {
 public:
  static constexpr absl::Duration kFirst = absl::Seconds(5);
  static constexpr absl::Duration kEvery = absl::Seconds(30);
  // A report names so many, those that have lasted longest.
  static constexpr std::size_t kNamed = 8;

  // Something that has to end first.
  struct Unfinished {
    enum class Kind {
      // This worker runs `what`, which `worker` called.
      kServed,
      // This worker called `what` on `worker`, which has not answered.
      kCalled,
      // `worker` has not called shutdown, or has calls under way itself.
      kMember,
      // `worker` has not answered the question whether it lives.
      kSilent,
      // `what` alone says it.
      kOther,
    };
    Kind kind;
    std::string what;
    std::string worker;
    absl::Time since;
  };

  // The shutdown of `worker` begins now.
  explicit ShutdownWait(std::string worker, Clock& clock = Clock::system());

  // Whether a report is due; true once for each.
  bool due();
  // The unfinished work, with how long it has lasted: "\"f\", called by worker \"b\" (12s)".
  std::string list(std::vector<Unfinished> unfinished) const;
  // One line for the log.
  std::string report(std::vector<Unfinished> unfinished) const;

 private:
  const std::string worker_;
  Clock& clock_;
  const absl::Time began_;
  absl::Time next_;
};

}  // namespace gradwire::rpc
