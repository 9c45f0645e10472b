#pragma once

// Collectives and messages of objects: values of any type that has a Codec (codec/codec.h), tensors included.
//
// Every rank of the group must call the function with the same T. `src` and `dst` are ranks of the world.
// `group`: nullptr is the world. Each NAME_async returns at once; the object that it writes to must live
// until the Work has ended, and is written before the Work ends. On a rank that is not a member of the group
// nothing happens.
//
// Errors, thrown as Error: the errors of the group's collectives; InvalidArgument on all ranks if a rank
// cannot encode its object, or if the objects together have more than kMaxObjectBytes; InvalidArgument on one
// rank if the bytes that it received cannot be decoded as a T.

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/codec/torch/tensor_codec.h"
#include "gradwire/collectives/objects/object_bytes.h"
#include "gradwire/collectives/process_group.h"
#include "gradwire/collectives/world.h"

namespace gradwire::collectives {

namespace objects_internal {

// Encodes an object as bytes. If it cannot be encoded, returns an undefined tensor, which the exchange
// reports to the other ranks, and stores the first such error in `why`.
template <class T>
at::Tensor pack(const T& object, absl::Status& why) {
  absl::StatusOr<at::Tensor> bytes = pack_object(object);
  if (bytes.ok()) return *std::move(bytes);
  if (why.ok()) why = bytes.status();
  return at::Tensor();
}

template <class T>
absl::Status unpack(const at::Tensor& bytes, T& object) {
  GRADWIRE_ASSIGN_OR_RETURN(object, unpack_object<T>(bytes));
  return absl::OkStatus();
}

// Decodes the objects of all ranks into `list`, which stays unchanged if there is an error.
template <class T>
absl::Status unpack_all(const std::vector<at::Tensor>& received, std::vector<T>& list) {
  std::vector<T> values;
  for (const at::Tensor& bytes : received) {
    absl::StatusOr<T> value = unpack_object<T>(bytes);
    if (!value.ok()) return with_context(value.status(), absl::StrCat("the object of rank ", values.size()));
    values.push_back(*std::move(value));
  }
  list = std::move(values);
  return absl::OkStatus();
}

// Runs the exchange; a synchronous one throws `why`, if it is an error, instead of the less detailed "could
// not encode" that all ranks get.
std::shared_ptr<Work> run(ObjectExchange exchange, const absl::Status& why, bool later, const Group& group);

template <class T>
std::shared_ptr<Work> broadcast(T& object, int src, bool later, const Group& group) {
  const Group in = group_or_world(group);
  ObjectExchange exchange{.kind = ObjectExchange::Kind::kBroadcast, .root = src};
  absl::Status why;
  const bool sends = is_rank(*in, src);
  if (sends) exchange.sent.push_back(pack(object, why));
  exchange.receive = [&object, sends](std::vector<at::Tensor> received) {
    return sends ? absl::OkStatus() : unpack(received[0], object);
  };
  return run(std::move(exchange), why, later, in);
}

template <class T>
std::shared_ptr<Work> gather(std::vector<T>& list, const T& object, ObjectExchange::Kind kind, int dst,
                             bool later, const Group& group) {
  ObjectExchange exchange{.kind = kind, .root = dst};
  absl::Status why;
  exchange.sent.push_back(pack(object, why));
  exchange.receive = [&list](std::vector<at::Tensor> received) { return unpack_all(received, list); };
  return run(std::move(exchange), why, later, group_or_world(group));
}

template <class T>
std::shared_ptr<Work> scatter(T& object, const std::vector<T>& list, int src, bool later,
                              const Group& group) {
  ObjectExchange exchange{.kind = ObjectExchange::Kind::kScatter, .root = src};
  absl::Status why;
  for (const T& one : list) exchange.sent.push_back(pack(one, why));
  exchange.receive = [&object](std::vector<at::Tensor> received) { return unpack(received[0], object); };
  return run(std::move(exchange), why, later, group_or_world(group));
}

// Sends an encoded object in two messages: its size, then its bytes. `bytes`: undefined if the object could
// not be encoded, because of `why`; the receiver learns that, and `why` is thrown.
void send(const at::Tensor& bytes, const absl::Status& why, int dst, int tag, const Group& group);

// An object that was received, and its sender's rank in the world.
struct Received {
  at::Tensor bytes;
  int source = -1;
};
// Receives an encoded object. Undefined on a rank that is not a member of the group. Errors: as recv_object.
Received receive(int src, int tag, const Group& group);

}  // namespace objects_internal

// Copies the `object` of `src` to the `object` of every rank.
template <class T>
void broadcast_object(T& object, int src, const Group& group = nullptr) {
  objects_internal::broadcast(object, src, false, group);
}
// As broadcast_object, but returns at once.
template <class T>
std::shared_ptr<Work> broadcast_object_async(T& object, int src, const Group& group = nullptr) {
  return objects_internal::broadcast(object, src, true, group);
}

// `list` becomes all ranks' objects, in the order of the group's ranks.
template <class T>
void all_gather_object(std::vector<T>& list, const T& object, const Group& group = nullptr) {
  objects_internal::gather(list, object, ObjectExchange::Kind::kAllGather, 0, false, group);
}
// As all_gather_object, but returns at once.
template <class T>
std::shared_ptr<Work> all_gather_object_async(std::vector<T>& list, const T& object,
                                              const Group& group = nullptr) {
  return objects_internal::gather(list, object, ObjectExchange::Kind::kAllGather, 0, true, group);
}

// As all_gather_object, but only at `dst`; on the other ranks `list` becomes empty.
template <class T>
void gather_object(std::vector<T>& list, const T& object, int dst = 0, const Group& group = nullptr) {
  objects_internal::gather(list, object, ObjectExchange::Kind::kGather, dst, false, group);
}
// As gather_object, but returns at once.
template <class T>
std::shared_ptr<Work> gather_object_async(std::vector<T>& list, const T& object, int dst = 0,
                                          const Group& group = nullptr) {
  return objects_internal::gather(list, object, ObjectExchange::Kind::kGather, dst, true, group);
}

// `object` becomes this rank's entry of the `list` of `src`. `list`: at `src`, one object for each rank;
// empty elsewhere.
template <class T>
void scatter_object(T& object, const std::vector<T>& list = {}, int src = 0, const Group& group = nullptr) {
  objects_internal::scatter(object, list, src, false, group);
}
// As scatter_object, but returns at once.
template <class T>
std::shared_ptr<Work> scatter_object_async(T& object, const std::vector<T>& list = {}, int src = 0,
                                           const Group& group = nullptr) {
  return objects_internal::scatter(object, list, src, true, group);
}

// Copies the `list` of `src`, with its length, to the `list` of every rank.
template <class T>
void broadcast_object_list(std::vector<T>& list, int src, const Group& group = nullptr) {
  objects_internal::broadcast(list, src, false, group);
}
// As broadcast_object_list, but returns at once.
template <class T>
std::shared_ptr<Work> broadcast_object_list_async(std::vector<T>& list, int src,
                                                  const Group& group = nullptr) {
  return objects_internal::broadcast(list, src, true, group);
}

// Sends an object to `dst`, which receives it with recv_object and the same T and tag. Returns when `object`
// may change; a large object waits for its receiver, as send. The object travels as two messages with this
// tag. Errors: as send; InvalidArgument on both ranks if the object cannot be encoded, or has more than
// kMaxObjectBytes. Two threads must not send objects to one rank with the same tag at the same time: their
// messages would mix.
template <class T>
void send_object(const T& object, int dst, const Group& group = nullptr, int tag = 0) {
  absl::Status why;
  const at::Tensor bytes = objects_internal::pack(object, why);
  objects_internal::send(bytes, why, dst, tag, group);
}
// Waits for an object and returns its sender's rank in the world; -1 on a rank that is not a member. `src`
// may be kAnySource, if the backend supports that; then no other thread may receive with this tag at the same
// time. Errors: as recv; InvalidArgument if the sender could not encode the object, or if the bytes cannot be
// decoded as a T.
template <class T>
int recv_object(T& object, int src = kAnySource, const Group& group = nullptr, int tag = 0) {
  const objects_internal::Received received = objects_internal::receive(src, tag, group);
  if (!received.bytes.defined()) return -1;
  throw_if_error(objects_internal::unpack(received.bytes, object));
  return received.source;
}

// Sends a list of objects to `dst`, which receives it with recv_object_list and the same T. As send_object.
template <class T>
void send_object_list(const std::vector<T>& list, int dst, const Group& group = nullptr) {
  send_object(list, dst, group);
}
// Waits for a list of objects, which replaces `list`, and returns its sender's rank in the world. As
// recv_object.
template <class T>
int recv_object_list(std::vector<T>& list, int src = kAnySource, const Group& group = nullptr) {
  return recv_object(list, src, group);
}

}  // namespace gradwire::collectives
