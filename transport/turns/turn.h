#pragma once

#include <utility>

#include "gradwire/transport/turns/turns.h"

namespace gradwire::transport {

// The turn of a peer that has not proved who it is. Such peers wait behind connections: the work for a
// connection does its first unit without a question (turns.h), but the work for such a peer asks before each
// unit. Used only by the loop's driver.
class Turn {
 public:
  // Returns whether the caller may do one unit of work now. Otherwise `again` runs in a later round. It must
  // call take() again, which then returns true. Calls before that return false, and their `again` is dropped.
  // REQUIRES: `again` keeps this object alive.
  template <class Again>
  bool take(Turns& turns, Again again) {
    if (state_ == State::kWaits) return false;
    if (state_ == State::kAsks && turns.spent()) {
      state_ = State::kWaits;
      turns.defer([this, again = std::move(again)]() mutable {
        state_ = State::kGranted;
        again();
      });
      return false;
    }
    state_ = State::kAsks;
    return true;
  }

 private:
  // kWaits: a deferred task will run. kGranted: that task runs, and does not ask for the time of the round.
  enum class State { kAsks, kWaits, kGranted };
  State state_ = State::kAsks;
};

}  // namespace gradwire::transport
