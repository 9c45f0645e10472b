#pragma once

#include <google/protobuf/arena.h>

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "gradwire/base/block_cache.h"
#include "gradwire/proto/rpc.pb.h"

namespace gradwire::rpc {

// An envelope and the arena that its parts are allocated in. An envelope of ordinary size needs no heap
// memory besides the box itself, and is destroyed in one step. Without an arena, an envelope whose body has
// no memory cannot be destroyed. Not movable; not thread-safe.
class EnvelopeBox {
 public:
  EnvelopeBox() : arena_(block_, sizeof(block_)) {
    envelope_ = google::protobuf::Arena::CreateMessage<proto::Envelope>(&arena_);
  }
  EnvelopeBox(const EnvelopeBox&) = delete;
  EnvelopeBox& operator=(const EnvelopeBox&) = delete;

  proto::Envelope& operator*() { return *envelope_; }
  proto::Envelope* operator->() { return envelope_; }
  const proto::Envelope& operator*() const { return *envelope_; }
  const proto::Envelope* operator->() const { return envelope_; }

  // The size of the serialised envelope, in bytes. Set for an envelope that has arrived, else 0.
  std::size_t wire_bytes() const { return wire_bytes_; }
  void set_wire_bytes(std::size_t bytes) { wire_bytes_ = bytes; }

  // Not OK if this process had no memory for the buffers of the message, which has none then.
  const absl::Status& lost() const { return lost_; }
  void set_lost(absl::Status reason) { lost_ = std::move(reason); }

 private:
  static constexpr std::size_t kBlockBytes = 3072;
  alignas(std::max_align_t) char block_[kBlockBytes];
  google::protobuf::Arena arena_;
  proto::Envelope* envelope_;
  std::size_t wire_bytes_ = 0;
  absl::Status lost_;
};

using EnvelopePtr = std::shared_ptr<EnvelopeBox>;
inline EnvelopePtr make_envelope() {
  return std::allocate_shared<EnvelopeBox>(BlockAllocator<EnvelopeBox>());
}

}  // namespace gradwire::rpc
