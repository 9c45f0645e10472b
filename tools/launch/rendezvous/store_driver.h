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

// Does at the store what one node's state machine wants, a step at a time:
//
//   1. Without a record that is known to be the store's, reads it.
//   2. Does the first thing that is wanted: sets or deletes the beat, reads others' beats, changes the
//      record.
//   3. Else watches the record, for a slice.
//
// After a call whose outcome nobody knows it begins with 1 again. For one thread.
class StoreDriver {
 public:
  // A store that cannot be reached for `store_timeout` is lost. `interrupted` ends a pass over others' beats.
  // The clock outlives the driver.
  StoreDriver(const Options& options, absl::Duration store_timeout, std::function<bool()> interrupted,
              Clock& clock)
      : store_timeout_(store_timeout),
        alone_(options.settings.max_nodes == 1),
        interrupted_(std::move(interrupted)),
        clock_(clock),
        machine_(options, clock.now()) {}

  Rendezvous& machine() { return machine_; }
  bool ended() const { return machine_.update().kind == RendezvousUpdate::Kind::kEnded; }

  // From now on; before step().
  void use(std::shared_ptr<store::Store> store) { store_ = std::move(store); }
  // At most a slice, or one call that does not come back. Returns how long to rest before the next; less when
  // the launcher has something to report.
  absl::Duration step();

 private:
  absl::StatusOr<absl::Duration> try_step();
  absl::Status look(const std::vector<std::string>& ids);
  absl::Status change(const Rendezvous::Wanted::Change& change);
  absl::Status watch(absl::Duration timeout);
  // The value of the key, at once; nullopt if it is missing.
  absl::StatusOr<std::optional<std::string>> read_now(const std::string& key);
  void take_in(std::optional<std::string> bytes);
  // `began`: when the call did.
  void on_error(const absl::Status& status, absl::Time began);

  const absl::Duration store_timeout_;
  const bool alone_;
  const std::function<bool()> interrupted_;
  Clock& clock_;
  std::shared_ptr<store::Store> store_;
  Rendezvous machine_;
  // The record as last read. known_: no call has failed since.
  std::optional<std::string> bytes_;
  bool known_ = false;
  std::optional<absl::Time> failing_since_;
};

// Whether an error of a store may pass.
bool may_pass(const absl::Status& status);

}  // namespace gradwire::rendezvous
