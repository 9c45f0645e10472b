#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/tcp/socket/address.h"
#include "gradwire/transport/tcp/socket/name_lookups.h"

namespace gradwire::transport {

// Finds the addresses to which a connection is made, without blocking the loop.
//
//   1. start_in_loop(): if all hosts are numeric, step 3 follows at once. Otherwise each name is looked up on
//      another thread.
//   2. found_in_loop(): a name has been looked up. After the last one step 3 follows.
//   3. finish_in_loop(): `done` gets the addresses in the order of the list. It gets an unresolved_error()
//      (transport/refused.h) if no address was found, or if the lookup of a name has not ended at the
//      deadline.
//
// Used only by the loop's driver.
class AddressSearch : public NameLookups::Asker, public std::enable_shared_from_this<AddressSearch> {
 public:
  using Done = absl::AnyInvocable<void(absl::StatusOr<std::vector<SocketAddress>> addresses)>;

  AddressSearch(std::shared_ptr<EventLoop> loop, std::vector<HostAddress> addresses)
      : loop_(std::move(loop)), addresses_(std::move(addresses)) {}

  // Must be called once. `done` may be called before this returns.
  void start_in_loop(NameLookups& lookups, absl::Time deadline, Done done);
  // `done` is not called any more. A lookup that has begun goes on.
  void cancel_in_loop();

 private:
  // NameLookups::Asker
  void found(const std::string& host, const NameLookups::Result& result) override;

  void found_in_loop(const std::string& host, NameLookups::Result result);
  void resolve_in_loop();
  void finish_in_loop(absl::StatusOr<std::vector<SocketAddress>> result);

  const std::shared_ptr<EventLoop> loop_;
  const std::vector<HostAddress> addresses_;
  Done done_;
  uint64_t timer_ = 0;
  // The names that are being looked up, and the results of the others.
  std::set<std::string> missing_;
  std::map<std::string, NameLookups::Result> results_;
};

}  // namespace gradwire::transport
