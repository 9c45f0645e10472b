#include "gradwire/rpc/rref/reference_codec.h"

#include <utility>

#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/link/goodbye.h"

namespace gradwire::rpc {

using Kind = ReferenceMessage::Kind;
using Answer = ReferenceMessage::Answer;

uint32_t service_of(Kind kind) {
  switch (kind) {
    case Kind::kAdd:
      return kForkAdd;
    case Kind::kConfirm:
      return kForkConfirmed;
    case Kind::kDelete:
      return kForkDelete;
    case Kind::kRevoke:
      return kForkRevoke;
    case Kind::kFence:
      break;
  }
  return kFence;
}

bool has_departures(Kind kind) { return kind == Kind::kDelete || kind == Kind::kRevoke; }

std::string serialize(const ReferenceMessage& message, const Departures& sent) {
  if (message.kind == Kind::kFence) {
    proto::Fence fence;
    fence.set_round(message.round);
    fence.mutable_dead()->Add(message.dead.begin(), message.dead.end());
    return fence.SerializeAsString();
  }
  proto::ForkDelete out;  // All messages about one fork have these fields; some leave the last one empty.
  to_proto(message.rref, *out.mutable_rref());
  to_proto(message.fork, *out.mutable_fork());
  if (has_departures(message.kind)) to_proto(sent, *out.mutable_sent());
  return out.SerializeAsString();
}

std::optional<ReferenceMessage> parse(uint32_t service, const std::string& body, Departures& sent) {
  ReferenceMessage message;
  if (service == kFence) {
    proto::Fence fence;
    constexpr int kMaxDead = 65536;
    if (!fence.ParseFromString(body) || fence.dead_size() > kMaxDead) return std::nullopt;
    message.kind = Kind::kFence;
    message.round = fence.round();
    message.dead.assign(fence.dead().begin(), fence.dead().end());
    return message;
  }
  // The messages about one fork share the numbers of their fields, so one type reads all of them.
  proto::ForkDelete in;
  if (!in.ParseFromString(body) || !from_proto(in.fork())) return std::nullopt;
  // Empty for messages that have none. Refused if a peer lists more connections than it may have.
  std::optional<Departures> departures = from_proto(in.sent());
  if (!departures) return std::nullopt;
  sent = *std::move(departures);
  message.rref = from_proto(in.rref());
  message.fork = from_proto(in.fork());
  for (Kind kind : {Kind::kAdd, Kind::kConfirm, Kind::kDelete, Kind::kRevoke}) {
    if (service_of(kind) == service) message.kind = kind;
  }
  return message;
}

ServiceReply reply_of(Kind kind, Answer answer) {
  ServiceReply reply;
  reply.deferrable = kind == Kind::kDelete;
  if (kind == Kind::kRevoke) {
    proto::ForkRevoked revoked;
    revoked.set_received(answer == Answer::kReceived);
    reply.body = revoked.SerializeAsString();
  }
  return reply;
}

Answer answer_of(Kind kind, const ServiceReply& reply) {
  if (kind != Kind::kRevoke) return Answer::kDone;
  proto::ForkRevoked revoked;
  // After a malformed answer the reference is kept, since that is safe.
  return revoked.ParseFromString(reply.body) && !revoked.received() ? Answer::kNever : Answer::kReceived;
}

}  // namespace gradwire::rpc
