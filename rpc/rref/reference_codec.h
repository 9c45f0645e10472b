#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "gradwire/rpc/core/extension.h"
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

// Encoding of reference messages and their answers in service calls.

uint32_t service_of(ReferenceMessage::Kind kind);
// Whether the message carries the count of messages that its sender had sent before it.
bool has_departures(ReferenceMessage::Kind kind);
// `sent` is used only for messages with has_departures().
std::string serialize(const ReferenceMessage& message, const Departures& sent);
// nullopt for a malformed message.
std::optional<ReferenceMessage> parse(uint32_t service, const std::string& body, Departures& sent);
ServiceReply reply_of(ReferenceMessage::Kind kind, ReferenceMessage::Answer answer);
ReferenceMessage::Answer answer_of(ReferenceMessage::Kind kind, const ServiceReply& reply);

}  // namespace gradwire::rpc
