#include "gradwire/tests/simulation/references/describe.h"

#include "absl/strings/str_cat.h"

namespace gradwire::references_simulation {

using rpc::ReferenceMessage;
using Received = rpc::References::Received;

std::string worker(uint64_t incarnation) { return absl::StrCat("w", incarnation); }

std::string describe(const rpc::Id& id) {
  return id ? absl::StrCat(worker(id.origin), "/", id.counter) : std::string("none");
}

std::string describe(const ReferenceMessage& message) {
  static constexpr const char* kKinds[] = {"Add", "Confirm", "Delete", "Revoke", "Fence"};
  const char* kind = kKinds[static_cast<int>(message.kind)];
  if (message.kind != ReferenceMessage::Kind::kFence) {
    return absl::StrCat(kind, " rref ", describe(message.rref), " fork ", describe(message.fork));
  }
  std::string text = absl::StrCat(kind, " round ", message.round, " dead");
  for (uint64_t dead : message.dead) absl::StrAppend(&text, " ", worker(dead));
  return text;
}

std::string describe(ReferenceMessage::Answer answer) {
  static constexpr const char* kAnswers[] = {"done", "refused", "received", "never", "denied"};
  return kAnswers[static_cast<int>(answer)];
}

std::string describe(const Packet& packet) {
  const rpc::References::Reference& reference = packet.reference;
  switch (packet.kind) {
    case Packet::Kind::kMessage:
      return describe(packet.message);
    case Packet::Kind::kAnswer:
      return absl::StrCat("answer ", describe(packet.answer), " to ", describe(packet.message));
    case Packet::Kind::kShare:
      return absl::StrCat("share of rref ", describe(reference.rref), " as fork ", describe(reference.child),
                          reference.registered ? " (registered)" : "");
    case Packet::Kind::kCreate:
      return absl::StrCat("request to create rref ", describe(reference.rref), " with fork ",
                          describe(reference.child));
    case Packet::Kind::kCreated:
      return absl::StrCat("answer to the creation of rref ", describe(reference.rref));
  }
  return "";
}

std::string describe(Received received) {
  static constexpr const char* kReceived[] = {
      "a local handle", "a confirmed fork", "an unconfirmed fork", "nothing: owner lost",
      "refused",        "invalid",          "nothing: too many"};
  return kReceived[static_cast<int>(received)];
}

}  // namespace gradwire::references_simulation
