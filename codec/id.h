#pragma once

#include "gradwire/base/cpp20.h"

#include <compare>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "gradwire/proto/value.pb.h"

namespace gradwire::rpc {

// The id of an RRef, a fork or a context. It consists of the incarnation of the worker that allocated it and
// a counter of that worker, so it is unique across all workers at all times. {0, 0} is the null id.
struct Id {
  uint64_t origin = 0;
  uint64_t counter = 0;

  explicit operator bool() const { return origin != 0; }
  friend auto operator<=>(const Id&, const Id&) = default;
  template <class H>
  friend H AbslHashValue(H state, const Id& id) {
    return H::combine(std::move(state), id.origin, id.counter);
  }
};

inline Id from_proto(const proto::Id& id) { return {id.origin(), id.counter()}; }
inline void to_proto(const Id& id, proto::Id& out) {
  out.set_origin(id.origin);
  out.set_counter(id.counter);
}
inline std::string to_string(const Id& id) { return absl::StrCat(absl::Hex(id.origin), ":", id.counter); }

}  // namespace gradwire::rpc
