#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "gradwire/rpc/agent/extension.h"
#include "gradwire/rpc/link/arrivals.h"
#include "gradwire/rpc/rref/reference_message.h"

namespace gradwire::rpc {

// Service numbers of the rpc layer (proto/rpc.proto).
inline constexpr uint32_t kForkAdd = 1;
inline constexpr uint32_t kForkConfirmed = 2;
inline constexpr uint32_t kForkDelete = 3;
inline constexpr uint32_t kPing = 4;
inline constexpr uint32_t kForkRevoke = 5;
inline constexpr uint32_t kFence = 6;
inline constexpr uint32_t kCreationFailed = 7;

// How reference messages and their answers stand in service calls.

uint32_t service_of(ReferenceMessage::Kind kind);
// Whether what its sender has sent before matters to the message.
bool says_what_was_sent(ReferenceMessage::Kind kind);
// `sent` is used by those messages alone.
std::string serialize(const ReferenceMessage& message, const Departures& sent);
// None when the peer sent something else.
std::optional<ReferenceMessage> parse(uint32_t service, const std::string& body, Departures& sent);
ServiceReply reply_of(ReferenceMessage::Kind kind, ReferenceMessage::Answer answer);
ReferenceMessage::Answer answer_of(ReferenceMessage::Kind kind, const ServiceReply& reply);

}  // namespace gradwire::rpc
