#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/core/worker.h"
#include "gradwire/security/peer_identity.h"

namespace gradwire::rpc {

// The version that both sides of a connection must speak (proto/rpc.proto, Hello).
inline constexpr uint32_t kProtocolVersion = 2;

// The service by which an observer asks for the state of a worker (proto/inspect.proto).
inline constexpr uint32_t kInspect = 13;

using ReferenceList = google::protobuf::RepeatedPtrField<proto::Reference>;
// The references that an envelope carries.
const ReferenceList& references_of(const proto::Envelope& envelope);

// A worker's view of the group. Implementations are thread-safe and make no callbacks, so that they may be
// called with a lock held.
class GroupView {
 public:
  // kStranger: not in this view; the group's log may be about to name it. kGone: it was lost before this
  // worker joined, or so long ago that only its incarnation is remembered.
  enum class Standing : uint8_t { kStranger, kMember, kDead, kLeft, kGone };

  virtual ~GroupView() = default;
  // Sets *name if `name` is not null and the worker is or was a member of this view.
  virtual Standing standing(uint64_t incarnation, std::string* name) const = 0;
  // Whether the owner of every reference is known, that is, is not a kStranger.
  virtual bool knows_owners(const ReferenceList& references) const = 0;
};

// Decides how one connection opens (proto/rpc.proto, "Opening"): a pure state machine. Its inputs are
// messages and the view of the group; its output is what to do with each message.
//
//   incoming:    silent -> introduced (the peer's Hello is admitted) -> open (our Hello has been sent)
//   made here:   silent -> greeted (our Hello has been sent) -> open (the peer's Hello is admitted)
//   an observer: silent -> observed (proto/inspect.proto)
//
// In each state it may hold messages, because a peer may see a join before we do. A message from a worker
// that our view does not contain yet, or about one, is held until our view catches up. All later messages of
// the connection are held behind it. A Hello is held until the connection ends, any other message until its
// timeout (on_wait_expired()).
//
// Not thread-safe.
class Handshake {
 public:
  // kObserve: the peer is an observer, which may be admitted. kAsk: an observer asks for the state.
  enum class Action : uint8_t { kDeliver, kHold, kAdmit, kPart, kRefuse, kObserve, kAsk };
  struct Step {
    Action action = Action::kDeliver;
    // The reason, for kRefuse.
    absl::Status reason;
  };

  // `self` must outlive this object. `to`: the worker that a connection made here leads to; nullopt for an
  // incoming connection.
  Handshake(const Worker& self, std::optional<Worker> to)
      : self_(self), made_here_(to.has_value()), other_(std::move(to)) {}

  // Sets what the transport knows of the other side. If that includes its name, a Hello with another name is
  // refused.
  void identify(const security::PeerIdentity& peer);

  // Decides on a message that has no held message before it.
  Step receive(const proto::Envelope& envelope, const GroupView& group) const;
  // Call when the caller has accepted a Hello for which receive() returned kAdmit.
  void admitted(const proto::Hello& hello);
  // Call when the caller has accepted the observer for which receive() returned kObserve.
  void observe() { observed_ = true; }
  // Returns this side's Hello. `number`: this side's number of the connection.
  proto::Hello hello(uint64_t number) const;
  // The meaning of a Goodbye: why the connection ends, and, if the worker is lost as well, its final state.
  struct Parting {
    absl::Status reason;
    std::optional<WorkerState> lost;
  };
  Parting part(const proto::Goodbye& goodbye) const;

  // Call when a message is held: later messages are held too, until released().
  void hold() { holds_ = true; }
  void released() { holds_ = wait_expired_ = timer_started_ = false; }
  // Returns whether the caller must start a timer now that calls on_wait_expired() when it ends. False for a
  // Hello, which has a timer of its own, and if the timer has been started already.
  bool limit_wait() { return introduced_ && !std::exchange(timer_started_, true); }
  void on_wait_expired() { wait_expired_ = true; }

  bool holds() const { return holds_; }
  bool introduced() const { return introduced_; }
  bool observed() const { return observed_; }

  // Whether a connection that is ready becomes the one on which new requests are sent. If both sides connect
  // at the same time, each keeps the connection that it had first, since both are equally good. But the peer
  // may have made a new connection because the older one is dead, which this side notices only as silence:
  // then a new connection of a suspect peer takes over.
  static bool takes_over(bool introduced, bool has_another, bool suspect) {
    return !has_another || (introduced && suspect);
  }

 private:
  // Returns why a Hello is refused; OK if it is accepted.
  absl::Status check(const proto::Hello& hello, const GroupView& group) const;
  // The part of check() for what every sender of a Hello must say.
  absl::Status check_sender(const proto::Hello& hello) const;
  absl::Status check_observer(const proto::Hello& hello, const GroupView& group) const;
  // Decides on a message of an observer that has been admitted.
  static Step receive_observed(const proto::Envelope& envelope);
  bool must_wait(const proto::Envelope& envelope, const GroupView& group) const;

  const Worker& self_;
  const bool made_here_;
  // The worker at the other end; before its Hello, the one that is expected there. Nullopt while unknown.
  std::optional<Worker> other_;
  std::optional<std::string> proven_name_;
  bool introduced_ = false;
  bool observed_ = false;
  bool holds_ = false;
  bool wait_expired_ = false;
  bool timer_started_ = false;
};

}  // namespace gradwire::rpc
