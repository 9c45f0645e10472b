#pragma once

#include <cstdint>

#include "gradwire/proto/inspect.pb.h"
#include "gradwire/rpc/core/call_context.h"

namespace gradwire::rpc {

// The work that makes a call: the served call whose handler makes it, also in its continuations, a backward
// pass, or else a request from outside of the job (rpc/trace/trace_context.h). A call of the program itself
// has no parent. Only the caller knows the parent of a call.
struct CallParent {
  enum class Kind : uint8_t { kNone, kCall, kPass, kTrace };

  Kind kind = Kind::kNone;
  // For kCall: the served call's CallIdentity. For kPass: the id of the pass, of which `incarnation` is the
  // root. For kTrace: the two halves of the trace id.
  uint64_t incarnation = 0;
  uint64_t number = 0;

  static CallParent call(const CallIdentity& call) {
    return call ? CallParent{Kind::kCall, call.caller, call.number} : CallParent();
  }
  static CallParent pass(uint64_t root, uint64_t number) { return {Kind::kPass, root, number}; }
  static CallParent trace(uint64_t high, uint64_t low) { return {Kind::kTrace, high, low}; }

  // Whether the parent is this served call.
  bool is(const CallIdentity& call) const {
    return kind == Kind::kCall && incarnation == call.caller && number == call.number;
  }
  explicit operator bool() const { return kind != Kind::kNone; }
  friend bool operator==(const CallParent&, const CallParent&) = default;
};

// The parent of a call that the calling thread makes now: the innermost ParentScope, or else the served call
// of CallContext::current(), or else TraceContext::current().
CallParent current_parent();

// While the object lives, calls that the thread makes have this parent. Without one (kNone) they have the
// served call, so that a handler that runs on a waiting thread does not inherit the scope of that thread.
// Continuations that run later are not in the scope.
class ParentScope {
 public:
  explicit ParentScope(const CallParent& parent);
  ~ParentScope();
  ParentScope(const ParentScope&) = delete;
  ParentScope& operator=(const ParentScope&) = delete;

 private:
  const CallParent parent_;
  const CallParent* const outer_;
};

inline void to_proto(const CallParent& parent, proto::CallOrigin& out) {
  static_assert(static_cast<int>(CallParent::Kind::kCall) == proto::CallOrigin::CALL);
  static_assert(static_cast<int>(CallParent::Kind::kPass) == proto::CallOrigin::PASS);
  static_assert(static_cast<int>(CallParent::Kind::kTrace) == proto::CallOrigin::TRACE);
  out.set_kind(static_cast<proto::CallOrigin::Kind>(parent.kind));
  out.set_incarnation(parent.incarnation);
  out.set_number(parent.number);
}

}  // namespace gradwire::rpc
