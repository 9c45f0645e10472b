#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/time/time.h"

namespace gradwire::transport {

// The attempts to connect to one of several addresses, in order. An accepting end that has no place for a
// process turns it away (transport/tcp/admission/admission.h). Then the attempts begin again after a pause,
// so that many processes of a job may start at once. A pure state machine. Not thread-safe.
class UcxAttempts {
 public:
  struct Attempt {
    // The index of the address.
    std::size_t address;
    absl::Time deadline;
  };

  // `addresses`: their number, at least 1.
  UcxAttempts(std::size_t addresses, absl::Time deadline) : addresses_(addresses), deadline_(deadline) {}

  // Begins the next attempt. The remaining addresses share the remaining time equally.
  Attempt begin(absl::Time now) {
    const auto left = static_cast<int64_t>(addresses_ - next_);
    return {next_++, now + (deadline_ - now) / left};
  }

  // An attempt has failed, because the peer has `turned_away` this process or for another reason. Returns
  // when to begin the next one; nullopt: never.
  std::optional<absl::Time> fail(bool turned_away, absl::Time now) {
    turned_away_ |= turned_away;
    if (next_ < addresses_) return now;
    const absl::Time again = now + pause_;
    if (!turned_away_ || again >= deadline_) return std::nullopt;
    turned_away_ = false;
    next_ = 0;
    pause_ = std::min(2 * pause_, absl::Seconds(1));
    return again;
  }

 private:
  const std::size_t addresses_;
  const absl::Time deadline_;
  std::size_t next_ = 0;
  bool turned_away_ = false;
  absl::Duration pause_ = absl::Milliseconds(20);
};

}  // namespace gradwire::transport
