#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gradwire/base/error.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/rpc/mesh/mesh_call.h"
#include "gradwire/rpc/mesh/mesh_error.h"

namespace gradwire::rpc {

// The answers of all members of a mesh to one call (rpc/mesh.h), in the order of the members. Each answer is
// a T or an error; T may be void. Copyable; not synchronised.
template <class T>
class MeshResult {
 public:
  // The answer of one member: absl::StatusOr<T>, or absl::Status if T is void.
  using Member = typename Future<T>::Result;

  // Made by the calls. `members` has one entry for each name of `label`.
  MeshResult(mesh_internal::CallLabel label, std::vector<Member> members)
      : label_(std::move(label)), members_(std::move(members)) {}

  // The number of members.
  std::size_t size() const { return members_.size(); }
  // The names of the members.
  const std::vector<std::string>& names() const { return *label_.names; }

  // Whether all members have answered without an error.
  bool ok() const {
    return std::all_of(members_.begin(), members_.end(),
                       [](const Member& member) { return future_internal::status_of(member).ok(); });
  }
  // The names of the members with an error.
  std::vector<std::string> failed() const {
    std::vector<std::string> failed;
    for (const MemberFailure& failure : failures()) failed.push_back(failure.name);
    return failed;
  }
  // OK, or one error that names every failed member with its error. It has the code of the first of them.
  absl::Status status() const {
    return failure_of_members(label_.action, size(), label_.timeout, failures());
  }

  // Returns the values in order. Throws Error with status() if a member has failed. void if T is void.
  auto values() const& { return MeshResult(*this).values_or_throw(); }
  // As above, without copying the values.
  auto values() && { return std::move(*this).values_or_throw(); }

  // The answer of the member with this index. REQUIRES: index < size()
  const Member& operator[](std::size_t index) const { return members_.at(index); }
  // The answer of the member with this name. Throws NotFound, which lists the members.
  const Member& at(absl::string_view name) const {
    return members_[mesh_internal::find_member(*label_.names, name)];
  }
  // Iteration over the answers, in order.
  auto begin() const { return members_.begin(); }
  // The end of the iteration.
  auto end() const { return members_.end(); }

 private:
  std::vector<MemberFailure> failures() const {
    std::vector<MemberFailure> failures;
    for (std::size_t i = 0; i < members_.size(); ++i) {
      absl::Status status = future_internal::status_of(members_[i]);
      if (!status.ok()) failures.push_back({names()[i], std::move(status)});
    }
    return failures;
  }
  auto values_or_throw() && {
    throw_if_error(status());
    if constexpr (!std::is_void_v<T>) {
      std::vector<T> values;
      values.reserve(members_.size());
      for (Member& member : members_) values.push_back(*std::move(member));
      return values;
    }
  }

  mesh_internal::CallLabel label_;
  std::vector<Member> members_;
};

}  // namespace gradwire::rpc
