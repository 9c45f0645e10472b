#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/clock.h"
#include "gradwire/store/store.h"
#include "gradwire/tools/launch/rendezvous/rendezvous.h"

namespace gradwire::rendezvous {

// Executes the operations that one node's state machine wants on the store, one step at a time:
//
//   1. If the record is not known to be current, read it.
//   2. Execute the first operation that is wanted: set or delete the beat, read the beats of others, or
//      change the record.
//   3. If none is wanted, watch the record for a slice of time.
//
// After a call whose outcome is unknown it starts at 1 again. For one thread only.
class StoreDriver {
 public:
  // The store is lost if it cannot be reached for `store_timeout`. If `interrupted` returns true, reading the
  // beats stops. The clock must outlive the driver.
  StoreDriver(const Options& options, absl::Duration store_timeout, std::function<bool()> interrupted,
              Clock& clock)
      : store_timeout_(store_timeout),
        alone_(options.settings.max_nodes == 1),
        interrupted_(std::move(interrupted)),
        clock_(clock),
        machine_(options, clock.now()) {}

  Rendezvous& machine() { return machine_; }
  bool ended() const { return machine_.update().kind == RendezvousUpdate::Kind::kEnded; }

  // Sets the store. Must be called before step().
  void use(std::shared_ptr<store::Store> store) { store_ = std::move(store); }
  // Runs one step; takes at most a slice, or the timeout of one call. Returns how long to pause before the
  // next step. A report of the launcher ends the pause.
  absl::Duration step();

 private:
  absl::StatusOr<absl::Duration> try_step();
  absl::Status read_beats(const std::vector<std::string>& ids);
  absl::Status change(const Rendezvous::Wanted::Change& change);
  absl::Status watch(absl::Duration timeout);
  // Reads the current value of the key without waiting; nullopt if it is missing.
  absl::StatusOr<std::optional<std::string>> read_now(const std::string& key);
  void deliver(std::optional<std::string> bytes);
  // `start` is when the call began.
  void on_error(const absl::Status& status, absl::Time start);

  const absl::Duration store_timeout_;
  const bool alone_;
  const std::function<bool()> interrupted_;
  Clock& clock_;
  std::shared_ptr<store::Store> store_;
  Rendezvous machine_;
  // The record as last read. known_ is true if no call has failed since.
  std::optional<std::string> bytes_;
  bool known_ = false;
  std::optional<absl::Time> failing_since_;
};

// Whether an error of a store may be temporary.
bool is_temporary(const absl::Status& status);

}  // namespace gradwire::rendezvous
