#pragma once

#include <cstdint>

#include "gradwire/security/limits.h"

// The part of a TcpStore's protocol (proto/store.proto) that client and server share.
namespace gradwire::store {

inline constexpr uint64_t kStoreMagic = 0x677773746f726531;
inline constexpr uint32_t kStoreVersion = 1;
// The purpose of the connections in the handshake of their credentials.
inline constexpr char kStorePurpose[] = "store";

// Limits that a message is checked against before memory is allocated for it.
Limits store_message_limits();

}  // namespace gradwire::store
