#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/worker.h"

namespace gradwire::rpc {

// The version that both sides of a connection must speak (proto/rpc.proto, Hello).
inline constexpr uint32_t kProtocolVersion = 1;

using ReferenceList = google::protobuf::RepeatedPtrField<proto::Reference>;
// The references that an envelope carries.
const ReferenceList& references_of(const proto::Envelope& envelope);

// A worker's view of the others. Implementations are thread-safe and make no callbacks, so that they may be
// used with a lock held.
class GroupView {
 public:
  // kStranger: the group's log may be about to name it. kGone: it was lost before this worker joined, or long
  // ago.
  enum class Standing : uint8_t { kStranger, kMember, kDead, kLeft, kGone };

  virtual ~GroupView() = default;
  // `name`: set for those that are members or were.
  virtual Standing standing(uint64_t incarnation, std::string* name) const = 0;
  // Whether none of their owners is a stranger.
  virtual bool knows_owners(const ReferenceList& references) const = 0;
};

// How one connection opens (proto/rpc.proto, "Opening"): a pure state machine, messages and what is known of
// the group in, what to do with them out.
//
//   came in:    silent -> introduced (the other's Hello is admitted) -> open (ours has been sent)
//   made here:  silent -> greeted (our Hello has been sent) -> open (the other's is admitted)
//
// In each state it may hold: a peer may see a join before we do. A message from or about a worker that our
// view does not have yet waits until the view catches up, and what follows it on the connection waits behind
// it. A Hello waits until the connection is given up, another message until its timeout is over.
//
// Not thread-safe.
class Handshake {
 public:
  enum class Action : uint8_t { kDeliver, kHold, kAdmit, kPart, kRefuse };
  struct Step {
    Action action = Action::kDeliver;
    // kRefuse: why.
    absl::Status reason;
  };

  // `self` must outlive it. `to`: the worker that the connection was made to; nothing for one that came in.
  Handshake(const Worker& self, std::optional<Worker> to)
      : self_(self), made_here_(to.has_value()), other_(std::move(to)) {}

  // The step for a message that has no held message before it.
  Step receive(const proto::Envelope& envelope, const GroupView& group) const;
  // The Hello that kAdmit was said of is accepted.
  void admitted(const proto::Hello& hello);
  // This side's, with its number of the connection.
  proto::Hello hello(uint64_t number) const;
  // The meaning of a Goodbye: why the connection ends, and the state of the worker if it is lost too.
  struct Parting {
    absl::Status reason;
    std::optional<WorkerState> lost;
  };
  Parting part(const proto::Goodbye& goodbye) const;

  // kHold was followed: later messages wait too, until released().
  void hold() { holds_ = true; }
  void released() { holds_ = impatient_ = limited_ = false; }
  // Whether a timer must be started now, whose end is expire_timeout(). A Hello has a timer of its own.
  bool limit_wait() { return introduced_ && !std::exchange(limited_, true); }
  void expire_timeout() { impatient_ = true; }

  bool holds() const { return holds_; }
  bool introduced() const { return introduced_; }

  // Whether a connection that is ready takes the peer's new requests over. When two cross, each end keeps the
  // one that it had first: both are as good. But the other side may have made a new one because the older has
  // died, which shows here only as silence.
  static bool takes_over(bool introduced, bool has_another, bool suspect) {
    return !has_another || (introduced && suspect);
  }

 private:
  // Why a Hello is refused; OK when it is not.
  absl::Status check(const proto::Hello& hello, const GroupView& group) const;
  bool must_wait(const proto::Envelope& envelope, const GroupView& group) const;

  const Worker& self_;
  const bool made_here_;
  // The worker at the other end, or the one that must be there.
  std::optional<Worker> other_;
  bool introduced_ = false;
  bool holds_ = false;
  bool impatient_ = false;
  bool limited_ = false;
};

}  // namespace gradwire::rpc
