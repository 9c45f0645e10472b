#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/rpc/calls/agent.h"
#include "gradwire/rpc/calls/rref.h"
#include "gradwire/rpc/mesh/broadcast.h"
#include "gradwire/rpc/mesh/gather.h"
#include "gradwire/rpc/mesh/mesh_function.h"
#include "gradwire/rpc/mesh/mesh_result.h"
#include "gradwire/rpc/mesh/mesh_shape.h"

namespace gradwire::rpc {

template <class T>
class MeshRRef;

// Workers that are called together, arranged in named dimensions. Members are ordered row by row: the last
// dimension varies fastest. The caller may be a member itself.
//
//   Mesh mesh({"w0", "w1", "w2", "w3"}, {{"host", 2}, {"gpu", 2}});
//   MeshResult<at::Tensor> all = mesh.call<&scale>(x, 2.0);           // runs on the four at the same time
//   std::vector<at::Tensor> first = mesh.slice("host", 0).call<&scale>(x, 2.0).values();
//
// A call encodes its arguments once. The calls of the members are ordinary calls otherwise
// (rpc/calls/call.h): with the deadline of the caller, its autograd context, and repetitions of idempotent
// functions. Immutable, cheap to copy, and thread-safe. It does not keep its agent alive: after that agent's
// end calls throw FailedPrecondition.
class Mesh {
 public:
  // The workers with these names. Without dimensions they form one, "member". `agent` makes the calls;
  // nullptr: Agent::current(). Throws Error: InvalidArgument without members, for a name that occurs twice,
  // and for dimensions that do not fit; NotFound, which lists the group, for an unknown name.
  explicit Mesh(std::vector<std::string> names, std::vector<MeshDimension> dimensions = {},
                std::shared_ptr<Agent> agent = nullptr);
  // The workers with these ids. Errors as above.
  static Mesh of_ranks(const std::vector<int32_t>& ranks, std::vector<MeshDimension> dimensions = {},
                       std::shared_ptr<Agent> agent = nullptr);
  // All workers of the group that are neither dead nor gone, in the order of their ids, in one dimension
  // "member".
  static Mesh all(std::shared_ptr<Agent> agent = nullptr);

  // The number of members; at least 1.
  std::size_t size() const { return names_->size(); }
  // The dimensions. None if every dimension was dropped by slice(); such a mesh has one member.
  const std::vector<MeshDimension>& shape() const { return shape_.dimensions(); }
  // The names of the members, in order.
  const std::vector<std::string>& names() const { return *names_; }
  // The name of the member with one index for each dimension. Throws InvalidArgument, which names the
  // dimension and its size.
  const std::string& at(std::vector<int64_t> indices) const;

  // The members with this index in the dimension, without that dimension. Throws NotFound, which lists the
  // dimensions, or InvalidArgument for an index out of range.
  Mesh slice(absl::string_view dimension, int64_t index) const;
  // The members with an index of `begin` up to, but not including, `end`. Errors as above.
  Mesh slice(absl::string_view dimension, int64_t begin, int64_t end) const;
  // The same members in one dimension of this name.
  Mesh flatten(std::string dimension = "member") const;
  // The other members, in one dimension "member": for example without those that MeshResult::failed() names.
  // Throws NotFound for a name that is not a member, and InvalidArgument if no member is left.
  Mesh without(const std::vector<std::string>& names) const;
  // Returns a copy whose calls take at most `timeout`, as Destination::with_timeout.
  Mesh with_timeout(absl::Duration timeout) const;

  // Calls the registered function F on all members at the same time, and waits until each of them has
  // answered or failed. Tensors are lent, as by rpc_sync. The errors of the members are in the result. Throws
  // Error for those of this process: FailedPrecondition without an agent, ResourceExhausted if a handler must
  // not wait.
  template <auto F, class... A>
  auto call(A&&... arguments) const;
  // As call(), but returns a Future<MeshResult> at once, and copies tensors once. Cancelling the future
  // cancels the calls of all members.
  template <auto F, class... A>
  auto call_async(A&&... arguments) const;

  // Calls F on all members, and returns the first successful answer. The calls of the others are cancelled.
  // Throws one Error that names all members if each of them has failed.
  template <auto F, class... A>
  auto any(A&&... arguments) const {
    return any_async<F>(std::forward<A>(arguments)...).wait();
  }
  // As any(), but returns a Future at once.
  template <auto F, class... A>
  auto any_async(A&&... arguments) const;

  // Calls F on all members, but the results stay there, as with rpc::remote. Returns the references at once.
  // Throws one Error that names the members for which the call could not be sent. Each use of a reference
  // reports later errors.
  template <auto F, class... A>
  auto remote(A&&... arguments) const;
  // Makes an object of the registered class T on each member, as above.
  template <class T, class... A, class C = DeclaredConstructor<T>>
  MeshRRef<T> remote(A&&... arguments) const;

  // Copies `value` to all members and returns a reference to each copy, which its member owns. The value is
  // sent down a tree of the members: this worker sends it to at most two of them, and they pass it on. If a
  // member fails, the worker above it in the tree sends to the members below. Waits until all of them have
  // answered or failed. A tensor arrives as it does outside of an autograd context. T must be registered with
  // GRADWIRE_RPC_BROADCAST (at::Tensor is). Throws one Error that names every member that did not get the
  // value.
  template <class T>
  MeshRRef<T> broadcast(const T& value) const;

 private:
  template <class T>
  friend class MeshRRef;
  Mesh(const Mesh& whole, const MeshShape::Part& part);

  std::shared_ptr<Agent> agent() const;
  mesh_internal::CallLabel label(const Agent& agent, absl::string_view action) const;
  Destination destination(Destination to) const { return timeout_ ? to.with_timeout(*timeout_) : to; }
  std::vector<mesh_internal::MemberTarget> targets() const;
  // The incarnations of the members, and a failure for each that is unknown or lost.
  struct Located {
    std::vector<uint64_t> incarnations;
    std::vector<absl::Status> failures;
  };
  Located locate(Agent& agent) const;
  // Runs the caller's part of a broadcast. Returns a handle for each member; throws as broadcast().
  std::vector<std::shared_ptr<RRefHandle>> spread(const Agent& agent, Located located,
                                                  mesh_internal::RelayTree& tree) const;

  std::weak_ptr<Agent> agent_;
  MeshShape shape_;
  std::shared_ptr<const std::vector<std::string>> names_;
  std::optional<absl::Duration> timeout_;
};

// References to values of type T, one on each member of a mesh. As an argument of a call of that mesh it
// gives each member its own reference. Copyable and thread-safe.
template <class T>
class MeshRRef {
 public:
  // `references` has one entry for each member of `mesh`.
  MeshRRef(Mesh mesh, std::vector<RRef<T>> references)
      : mesh_(std::move(mesh)), references_(std::move(references)) {}

  // The members and their arrangement.
  const Mesh& mesh() const { return mesh_; }
  // The number of references.
  std::size_t size() const { return references_.size(); }
  // The reference with this index. REQUIRES: index < size()
  const RRef<T>& operator[](std::size_t index) const { return references_.at(index); }
  // The reference of the member with this name. Throws NotFound, which lists the members.
  const RRef<T>& at(absl::string_view name) const {
    return references_[mesh_internal::find_member(mesh_.names(), name)];
  }
  // Iteration over the references, in order.
  auto begin() const { return references_.begin(); }
  // The end of the iteration.
  auto end() const { return references_.end(); }
  // As Mesh::slice.
  MeshRRef slice(absl::string_view dimension, int64_t index) const {
    return part(value_or_throw(mesh_.shape_.slice(dimension, index)));
  }
  // As Mesh::slice with a range.
  MeshRRef slice(absl::string_view dimension, int64_t begin, int64_t end) const {
    return part(value_or_throw(mesh_.shape_.slice(dimension, begin, end)));
  }
  // Returns a copy whose calls take at most `timeout`.
  MeshRRef with_timeout(absl::Duration timeout) const {
    return MeshRRef(mesh_.with_timeout(timeout), references_);
  }

  // Waits until every value has been made. The result has the error of each value that could not be made.
  MeshResult<void> created() const;

  // Calls a method of all objects at the same time, as Mesh::call: actors.call<&Actor::step>(batch).
  template <auto F, class... A>
  auto call(A&&... arguments) const;
  // As call(), but returns a Future<MeshResult> at once.
  template <auto F, class... A>
  auto call_async(A&&... arguments) const;

  // For encoding: the handles of the references.
  std::vector<std::shared_ptr<RRefHandle>> handles() const {
    std::vector<std::shared_ptr<RRefHandle>> handles;
    for (const RRef<T>& reference : references_) handles.push_back(reference.handle());
    return handles;
  }

 private:
  MeshRRef part(const MeshShape::Part& part) const {
    std::vector<RRef<T>> references;
    for (const std::size_t position : part.positions) references.push_back(references_[position]);
    return MeshRRef(Mesh(mesh_, part), std::move(references));
  }
  std::vector<mesh_internal::MemberTarget> targets() const {
    std::vector<mesh_internal::MemberTarget> targets;
    for (const RRef<T>& reference : references_) {
      const std::shared_ptr<RRefHandle>& handle = reference.handle();
      targets.push_back({mesh_.destination(Destination::incarnation_of(handle->owner())), handle});
    }
    return targets;
  }

  Mesh mesh_;
  std::vector<RRef<T>> references_;
};

template <auto F, class... A>
auto Mesh::call(A&&... arguments) const {
  const std::shared_ptr<Agent> caller = agent();
  mesh_internal::GroupFunctionCall<F> call(*caller, size(), std::forward<A>(arguments)...);
  static_assert(!decltype(call)::Traits::kIsMethod, "methods are called through a MeshRRef");
  return mesh_internal::gather_now<typename decltype(call)::Result>(
      caller, call, label(*caller, call_internal::name_of<F>()), targets());
}

template <auto F, class... A>
auto Mesh::call_async(A&&... arguments) const {
  const std::shared_ptr<Agent> caller = agent();
  mesh_internal::GroupFunctionCall<F> call(*caller, size(), std::forward<A>(arguments)...);
  static_assert(!decltype(call)::Traits::kIsMethod, "methods are called through a MeshRRef");
  return mesh_internal::gather<typename decltype(call)::Result>(
      caller, call, label(*caller, call_internal::name_of<F>()), targets());
}

template <auto F, class... A>
auto Mesh::any_async(A&&... arguments) const {
  const std::shared_ptr<Agent> caller = agent();
  mesh_internal::GroupFunctionCall<F> call(*caller, size(), std::forward<A>(arguments)...);
  static_assert(!decltype(call)::Traits::kIsMethod, "methods are called through a MeshRRef");
  return mesh_internal::race<typename decltype(call)::Result>(
      caller, call, label(*caller, call_internal::name_of<F>()), targets());
}

template <auto F, class... A>
auto Mesh::remote(A&&... arguments) const {
  const std::shared_ptr<Agent> caller = agent();
  mesh_internal::GroupFunctionCall<F> call(*caller, size(), std::forward<A>(arguments)...);
  static_assert(!decltype(call)::Traits::kIsMethod, "methods are called through a MeshRRef");
  using V = ValueOf<typename decltype(call)::Result>;
  std::vector<RRef<V>> references;
  for (std::shared_ptr<RRefHandle>& handle : mesh_internal::send_remotes(
           caller, call, label(*caller, call_internal::name_of<F>()), targets(), value_type_name<V>()))
    references.emplace_back(std::move(handle));
  return MeshRRef<V>(*this, std::move(references));
}

template <class T, class... A, class C>
MeshRRef<T> Mesh::remote(A&&... arguments) const {
  const std::shared_ptr<Agent> caller = agent();
  mesh_internal::GroupConstruction<T, C> call(*caller, size(), std::forward<A>(arguments)...);
  std::vector<RRef<T>> references;
  for (std::shared_ptr<RRefHandle>& handle : mesh_internal::send_remotes(
           caller, call, label(*caller, cpp_type_name<T>()), targets(), value_type_name<T>()))
    references.emplace_back(std::move(handle));
  return MeshRRef<T>(*this, std::move(references));
}

template <class T>
MeshRRef<T> Mesh::broadcast(const T& value) const {
  const std::shared_ptr<Agent> caller = agent();
  Located located = locate(*caller);
  const std::vector<uint64_t> members = located.incarnations;
  const std::shared_ptr<mesh_internal::RelayTree> tree =
      mesh_internal::make_relay_tree<T>(caller, members, caller->services().call_deadline(timeout_), value);
  std::vector<RRef<T>> references;
  for (std::shared_ptr<RRefHandle>& handle : spread(*caller, std::move(located), *tree))
    references.emplace_back(std::move(handle));
  return MeshRRef<T>(*this, std::move(references));
}

template <class T>
MeshResult<void> MeshRRef<T>::created() const {
  const std::shared_ptr<Agent> caller = mesh_.agent();
  mesh_internal::CallLabel label = mesh_.label(*caller, "");
  label.action = "the creation of the values";
  std::vector<absl::Status> results;
  for (const RRef<T>& reference : references_) results.push_back(reference.handle()->created().result());
  return MeshResult<void>(std::move(label), std::move(results));
}

template <class T>
template <auto F, class... A>
auto MeshRRef<T>::call(A&&... arguments) const {
  const std::shared_ptr<Agent> caller = mesh_.agent();
  mesh_internal::GroupFunctionCall<F, T> call(*caller, size(), std::forward<A>(arguments)...);
  return mesh_internal::gather_now<typename decltype(call)::Result>(
      caller, call, mesh_.label(*caller, call_internal::name_of<F, T>()), targets());
}

template <class T>
template <auto F, class... A>
auto MeshRRef<T>::call_async(A&&... arguments) const {
  const std::shared_ptr<Agent> caller = mesh_.agent();
  mesh_internal::GroupFunctionCall<F, T> call(*caller, size(), std::forward<A>(arguments)...);
  return mesh_internal::gather<typename decltype(call)::Result>(
      caller, call, mesh_.label(*caller, call_internal::name_of<F, T>()), targets());
}

}  // namespace gradwire::rpc
