#pragma once

#include "gradwire/proto/inspect.pb.h"
#include "gradwire/rpc/flight/call_parent.h"

namespace gradwire::rpc {

inline void to_proto(const CallParent& parent, proto::CallOrigin& out) {
  static_assert(static_cast<int>(CallParent::Kind::kCall) == proto::CallOrigin::CALL);
  static_assert(static_cast<int>(CallParent::Kind::kPass) == proto::CallOrigin::PASS);
  static_assert(static_cast<int>(CallParent::Kind::kTrace) == proto::CallOrigin::TRACE);
  out.set_kind(static_cast<proto::CallOrigin::Kind>(parent.kind));
  out.set_incarnation(parent.incarnation);
  out.set_number(parent.number);
}

}  // namespace gradwire::rpc
