#include "gradwire/rpc/link/handshake.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/name.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/rpc/link/goodbye.h"

namespace gradwire::rpc {

using Standing = GroupView::Standing;

const ReferenceList& references_of(const proto::Envelope& envelope) {
  return envelope.has_response() ? envelope.response().result().references()
                                 : envelope.request().arguments().references();
}

// Without proof of a name, whatever the Hello says is as good: a process of this user, or of a trusted
// network.
void Handshake::identify(const security::PeerIdentity& peer) {
  using Proof = security::PeerIdentity::Proof;
  if (peer.proof == Proof::kToken || peer.proof == Proof::kCertificate) proven_name_ = peer.name;
}

Handshake::Step Handshake::receive(const proto::Envelope& envelope, const GroupView& group) const {
  if (observed_) return receive_observed(envelope);
  if (must_wait(envelope, group)) return {Action::kHold, {}};
  if (envelope.hello().observer()) {
    absl::Status refused = check_observer(envelope.hello(), group);
    return {refused.ok() ? Action::kObserve : Action::kRefuse, std::move(refused)};
  }
  switch (envelope.body_case()) {
    case proto::Envelope::kHello: {
      absl::Status refused = check(envelope.hello(), group);
      return {refused.ok() ? Action::kAdmit : Action::kRefuse, std::move(refused)};
    }
    case proto::Envelope::kGoodbye:
      return {Action::kPart, {}};
    default:
      if (introduced_) return {};
      return {Action::kRefuse,
              absl::InvalidArgumentError(
                  "got a message before its Hello: the first message of a connection must be a Hello")};
  }
}

Handshake::Step Handshake::receive_observed(const proto::Envelope& envelope) {
  if (envelope.has_goodbye()) return {Action::kPart, {}};
  const proto::Request& request = envelope.request();
  if (request.service().number() == kInspect && !request.has_arguments() && envelope.parts() == 0) {
    return {Action::kAsk, {}};
  }
  return {Action::kRefuse,
          absl::InvalidArgumentError("got another message from an observer: it may only ask for the state")};
}

bool Handshake::must_wait(const proto::Envelope& envelope, const GroupView& group) const {
  const uint64_t sender = envelope.has_hello() ? envelope.hello().incarnation() : 0;
  // A first message other than Hello is refused, and a liveness query needs no view of the group: neither
  // waits.
  if (!introduced_ && sender == 0) return false;
  // The side that made the connection knows which worker must answer; only an incoming Hello can be a
  // stranger's.
  if (!made_here_ && sender != 0 && group.standing(sender, nullptr) == Standing::kStranger) return true;
  return !wait_expired_ && !group.knows_owners(references_of(envelope));
}

// The other side acts on the code of a refusal (Handshake::part at that side):
//   - Aborted: this worker and the sender cannot be members together any more. One of them is lost, has left,
//     or is another incarnation. The sender gives this worker up.
//   - Any other code: only this connection is refused. The sender may connect again.
// A liveness query is answered by a refusal, too: NotFound means alive, Aborted means another incarnation.
absl::Status Handshake::check_sender(const proto::Hello& hello) const {
  // The name must be checked first, because the error messages below contain it.
  GRADWIRE_RETURN_IF_ERROR(with_context(check_name("worker name", hello.name()), "a Hello"));
  if (proven_name_.has_value() && hello.name() != *proven_name_) {
    return absl::PermissionDeniedError(absl::StrCat(
        "a worker says in its Hello that it is \"", hello.name(), "\", but its credentials are those of \"",
        absl::CHexEscape(*proven_name_), "\": give it the certificate of the worker that it is to be"));
  }
  if (hello.protocol_version() != kProtocolVersion) {
    return absl::FailedPreconditionError(absl::StrCat("protocol version mismatch: worker \"", hello.name(),
                                                      "\" has ", hello.protocol_version(), ", worker \"",
                                                      self_.name, "\" has ", kProtocolVersion,
                                                      "; run the same version of Gradwire on all workers"));
  }
  return absl::OkStatus();
}

absl::Status Handshake::check_observer(const proto::Hello& hello, const GroupView& group) const {
  GRADWIRE_RETURN_IF_ERROR(check_sender(hello));
  if (made_here_ || introduced_ || hello.incarnation() != 0 || hello.connection() != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("malformed Hello: \"", hello.name(),
                     "\" says that it is an observer, which has no incarnation and connects by itself"));
  }
  if (hello.to_incarnation() != self_.incarnation) {
    return absl::AbortedError(absl::StrCat("observation of another incarnation: worker \"", self_.name,
                                           "\" listens at this address now"));
  }
  // Before that this worker has no id, and there is nothing to see.
  if (group.standing(self_.incarnation, nullptr) != Standing::kMember) {
    return absl::UnavailableError(
        absl::StrCat("worker \"", self_.name, "\" has not joined its group yet, or has ended: ask again"));
  }
  return absl::OkStatus();
}

absl::Status Handshake::check(const proto::Hello& hello, const GroupView& group) const {
  GRADWIRE_RETURN_IF_ERROR(check_sender(hello));
  if (hello.incarnation() == 0) {
    // A liveness query: does the worker with incarnation to_incarnation live at this address?
    if (hello.to_incarnation() == self_.incarnation)
      return absl::NotFoundError(absl::StrCat("liveness query: worker \"", self_.name, "\" is alive"));
    return absl::AbortedError(absl::StrCat("liveness query for another incarnation: worker \"", self_.name,
                                           "\" listens at this address now"));
  }
  std::string name;
  const Standing standing = group.standing(hello.incarnation(), &name);
  // receive() has held the Hello as long as the sender was a stranger. A connection that was made here is not
  // held, so its other end may still be one.
  if (standing == Standing::kGone) {
    return absl::AbortedError(absl::StrCat(
        "worker \"", hello.name(), "\" was declared dead, or left, before \"", self_.name, "\" joined"));
  }
  if (standing == Standing::kStranger || name != hello.name()) {
    return absl::NotFoundError(absl::StrCat("worker \"", hello.name(), "\" (id ", hello.id(),
                                            ") does not match a member of the group of \"", self_.name,
                                            "\": its incarnation is unknown or has another name"));
  }
  if (other_.has_value() && other_->incarnation != hello.incarnation()) {
    return absl::InvalidArgumentError(absl::StrCat("expected an answer from worker \"", other_->name,
                                                   "\", got one from worker \"", hello.name(), "\""));
  }
  if (standing == Standing::kLeft) {
    return absl::AbortedError(
        absl::StrCat("worker \"", hello.name(), "\" has left the group of \"", self_.name, "\""));
  }
  if (standing == Standing::kDead) return declared_dead(hello.name(), self_.name);
  if (!other_.has_value() && hello.to_incarnation() != self_.incarnation) {
    return absl::AbortedError(absl::StrCat("worker \"", self_.name, "\" was restarted as a new incarnation"));
  }
  if (introduced_) return absl::InvalidArgumentError("got a second Hello on the same connection");
  if (hello.connection() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the Hello of worker \"", hello.name(), "\" has no connection number"));
  }
  return absl::OkStatus();
}

void Handshake::admitted(const proto::Hello& hello) {
  introduced_ = true;
  // On a connection that was made here, check() has compared the sender with the expected worker.
  if (!made_here_) other_ = Worker{hello.name(), hello.id(), hello.incarnation()};
}

proto::Hello Handshake::hello(uint64_t number) const {
  proto::Hello hello;
  hello.set_protocol_version(kProtocolVersion);
  hello.set_id(self_.id);
  hello.set_name(self_.name);
  hello.set_incarnation(self_.incarnation);
  hello.set_to_incarnation(made_here_ ? other_->incarnation : 0);
  hello.set_connection(number);
  return hello;
}

Handshake::Parting Handshake::part(const proto::Goodbye& goodbye) const {
  absl::Status sent_reason = status_from_proto(goodbye.reason());
  // No Hello was admitted, so no worker is known that could be lost.
  if (!other_.has_value()) {
    return {sent_reason.ok() ? absl::UnavailableError("the peer ended the connection with a Goodbye")
                             : sent_reason,
            std::nullopt};
  }
  const std::string& name = other_->name;
  // A worker that shuts down sends OK or Cancelled. Any other code is the reason why it refuses this worker.
  if (sent_reason.ok() || absl::IsCancelled(sent_reason)) {
    return {with_worker(absl::UnavailableError(absl::StrCat("worker \"", name, "\" has left")), name),
            WorkerState::kLeft};
  }
  absl::Status reason = with_context(sent_reason, absl::StrCat("worker \"", name, "\" refuses this worker"));
  if (absl::IsAborted(sent_reason)) return {with_worker(std::move(reason), name), WorkerState::kDead};
  // The peer is alive and refuses only this connection.
  return {with_worker(absl::UnavailableError(reason.message()), name), std::nullopt};
}

}  // namespace gradwire::rpc
