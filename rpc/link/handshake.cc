#include "gradwire/rpc/link/handshake.h"

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

Handshake::Step Handshake::receive(const proto::Envelope& envelope, const GroupView& group) const {
  if (must_wait(envelope, group)) return {Action::kHold, {}};
  switch (envelope.body_case()) {
    case proto::Envelope::kHello: {
      absl::Status refused = check(envelope.hello(), group);
      return {refused.ok() ? Action::kAdmit : Action::kRefuse, std::move(refused)};
    }
    case proto::Envelope::kGoodbye:
      return {Action::kPart, {}};
    default:
      if (introduced_) return {};
      return {Action::kRefuse, absl::InvalidArgumentError("a message came before its Hello")};
  }
}

bool Handshake::must_wait(const proto::Envelope& envelope, const GroupView& group) const {
  const uint64_t speaker = envelope.has_hello() ? envelope.hello().incarnation() : 0;
  // Anything else but a Hello is refused as the first message, and a question needs no view of the group.
  if (!introduced_ && speaker == 0) return false;
  // Whoever makes a connection knows who must answer.
  if (!made_here_ && speaker != 0 && group.standing(speaker, nullptr) == Standing::kStranger) return true;
  return !impatient_ && !group.knows_owners(references_of(envelope));
}

absl::Status Handshake::check(const proto::Hello& hello, const GroupView& group) const {
  // First of all: the messages below have the name in them.
  GRADWIRE_RETURN_IF_ERROR(with_context(check_name("worker name", hello.name()), "a Hello"));
  if (hello.protocol_version() != kProtocolVersion) {
    return absl::FailedPreconditionError(absl::StrCat("worker \"", hello.name(),
                                                      "\" speaks protocol version ", hello.protocol_version(),
                                                      ", \"", self_.name, "\" speaks ", kProtocolVersion));
  }
  if (hello.incarnation() == 0) {
    // Somebody asks for the worker that to_incarnation names.
    if (hello.to_incarnation() == self_.incarnation)
      return absl::NotFoundError("a question whether this worker lives");
    return absl::AbortedError("another worker listens here now");
  }
  std::string name;
  const Standing standing = group.standing(hello.incarnation(), &name);
  if (standing == Standing::kGone) {
    return absl::AbortedError(absl::StrCat(
        "worker \"", hello.name(), "\" was declared dead, or left, before \"", self_.name, "\" joined"));
  }
  if (standing == Standing::kStranger || name != hello.name()) {
    return absl::NotFoundError(absl::StrCat("worker \"", hello.name(), "\" (id ", hello.id(),
                                            ") is not the one that joined the group of \"", self_.name,
                                            "\""));
  }
  if (other_.has_value() && other_->incarnation != hello.incarnation()) {
    return absl::InvalidArgumentError(
        absl::StrCat("worker \"", hello.name(), "\" answers in the place of \"", other_->name, "\""));
  }
  if (standing == Standing::kLeft) {
    return absl::AbortedError(
        absl::StrCat("worker \"", hello.name(), "\" has left the group of \"", self_.name, "\""));
  }
  if (standing == Standing::kDead) return declared_dead(hello.name(), self_.name);
  if (!other_.has_value() && hello.to_incarnation() != self_.incarnation) {
    return absl::AbortedError(absl::StrCat("worker \"", self_.name, "\" came back as a new incarnation"));
  }
  if (introduced_) return absl::InvalidArgumentError("a second Hello");
  if (hello.connection() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the Hello of worker \"", hello.name(), "\" does not number its connection"));
  }
  return absl::OkStatus();
}

void Handshake::admitted(const proto::Hello& hello) {
  introduced_ = true;
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
  absl::Status said = status_from_proto(goodbye.reason());
  if (!other_.has_value()) {
    return {said.ok() ? absl::UnavailableError("the other side said goodbye") : said, std::nullopt};
  }
  const std::string& name = other_->name;
  // A worker that shuts down says Cancelled; any other code is why it refuses this one.
  if (said.ok() || absl::IsCancelled(said)) {
    return {with_worker(absl::UnavailableError(absl::StrCat("worker \"", name, "\" has left")), name),
            WorkerState::kLeft};
  }
  absl::Status reason = with_context(said, absl::StrCat("worker \"", name, "\" refuses this one"));
  if (absl::IsAborted(said)) return {with_worker(std::move(reason), name), WorkerState::kDead};
  // It lives, and does not like this connection.
  return {with_worker(absl::UnavailableError(reason.message()), name), std::nullopt};
}

}  // namespace gradwire::rpc
