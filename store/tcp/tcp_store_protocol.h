#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/proto/store.pb.h"
#include "gradwire/security/limits.h"

// What both ends of a TcpStore's connection know of its protocol (proto/store.proto).
namespace gradwire::store {

inline constexpr uint64_t kStoreMagic = 0x677773746f726531;
inline constexpr uint32_t kStoreVersion = 1;

// What one message may have before memory is set aside for it.
Limits store_message_limits();

void pack_keys(const std::vector<std::string>& keys, proto::KeyList& list);
// None unless the sizes are those of the keys and there are no more than kMaxKeysPerWait.
std::optional<std::vector<std::string>> unpack_keys(const proto::KeyList& list);

}  // namespace gradwire::store
