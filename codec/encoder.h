#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/base/threads/stream_fence.h"
#include "gradwire/codec/tensor_set.h"
#include "gradwire/proto/value.pb.h"

namespace gradwire::rpc {

class RRefHandle;

// Collects the tensors and references of one payload. Codec<T>::encode uses it. Not thread-safe. It exists
// while one message is encoded.
class Encoder {
 public:
  // Creates forks of references for the receiver. The agent implements it.
  class References {
   public:
    virtual ~References() = default;
    // Appends a fork to `payload.references` and returns its index.
    virtual absl::StatusOr<uint32_t> add(const std::shared_ptr<RRefHandle>& handle,
                                         proto::Payload& payload) = 0;
  };

  // If `references` is nullptr, RRefs cannot be encoded.
  Encoder(proto::Payload& payload, References* references) : payload_(payload), references_(references) {}
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  proto::Payload& payload() { return payload_; }

  // The set to which tensors are added; created on first use. Set is the tensor codec's subclass of
  // TensorSet.
  template <class Set>
  Set& tensors() {
    if (tensors_ == nullptr) tensors_ = std::make_unique<Set>();
    return static_cast<Set&>(*tensors_);
  }
  // Returns nullptr if no tensor was added.
  std::unique_ptr<TensorSet> take_tensors() { return std::move(tensors_); }

  absl::StatusOr<uint32_t> add_reference(const std::shared_ptr<RRefHandle>& handle) {
    if (references_ == nullptr) return absl::InvalidArgumentError("an RRef cannot be sent in this message");
    return references_->add(handle, payload_);
  }

 private:
  proto::Payload& payload_;
  References* const references_;
  std::unique_ptr<TensorSet> tensors_;
};

// The tensors and references of one received payload, for Codec<T>::decode. Not thread-safe.
class Decoder {
 public:
  // `tensors` may be nullptr. All arguments must outlive the decoder.
  Decoder(const proto::Payload& payload, TensorSet* tensors,
          const std::vector<std::shared_ptr<RRefHandle>>& references)
      : payload_(payload), tensors_(tensors), references_(references) {}
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  const proto::Payload& payload() const { return payload_; }

  // Returns nullptr if the payload has no tensors.
  template <class Set>
  Set* tensors() {
    return static_cast<Set*>(tensors_);
  }

  absl::StatusOr<std::shared_ptr<RRefHandle>> reference(uint32_t index) const {
    if (index >= references_.size())
      return absl::InvalidArgumentError("the index of a reference is out of range");
    return references_[index];
  }

 private:
  const proto::Payload& payload_;
  TensorSet* const tensors_;
  const std::vector<std::shared_ptr<RRefHandle>>& references_;
};

// A received payload: its values, its tensors (decoded) and its references (registered with the agent;
// dropping a handle releases the reference). Movable.
struct IncomingPayload {
  // Never nullptr. Shares the ownership of the message that contains it.
  std::shared_ptr<const proto::Payload> payload{std::shared_ptr<void>(), &proto::Payload::default_instance()};
  std::unique_ptr<TensorSet> tensors;
  std::vector<std::shared_ptr<RRefHandle>> references;
  // After it the tensors on devices may be used; nullptr if all are on the CPU.
  StreamFencePtr fence;

  // The returned decoder is valid until this payload is moved or destroyed.
  Decoder decoder() const { return Decoder(*payload, tensors.get(), references); }
};

}  // namespace gradwire::rpc
