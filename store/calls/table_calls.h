#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "gradwire/proto/store.pb.h"
#include "gradwire/store/memory/store_table.h"

// The calls of a TcpStore's protocol (proto/store.proto) that are answered at once.
namespace gradwire::store {

// Applies one call to the table and fills in the result. `wakeups` gets the waiters that it satisfied. Errors
// as proto/store.proto says: ResourceExhausted, and InvalidArgument for a malformed or unknown call. The
// fields may come from any program.
absl::Status apply_table_call(StoreTable& table, const proto::Request& request, proto::Response& response,
                              StoreTable::Wakeups& wakeups);

// ResourceExhausted if the key, or the value, is over its limit.
absl::Status check_store_key(absl::string_view key);
absl::Status check_store_value(absl::string_view value);
// Unpacks keys and checks them. InvalidArgument for a malformed list.
absl::StatusOr<std::vector<std::string>> unpack_checked_keys(const proto::KeyList& list);

}  // namespace gradwire::store
