#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/codec/tensor_set.h"
#include "gradwire/proto/value.pb.h"

namespace gradwire::rpc {

class RRefHandle;

// Collects what one payload carries besides plain values. Used by Codec<T>::encode. Not thread-safe; lives
// for the encoding of one message.
class Encoder {
 public:
  // Gives references forks for the receiver (implemented by the agent).
  class References {
   public:
    virtual ~References() = default;
    // Appends to `payload.references`; returns the index there.
    virtual absl::StatusOr<uint32_t> add(const std::shared_ptr<RRefHandle>& handle,
                                         proto::Payload& payload) = 0;
  };

  // `references` may be nullptr: then RRefs cannot be encoded.
  Encoder(proto::Payload& payload, References* references) : payload_(payload), references_(references) {}
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  proto::Payload& payload() { return payload_; }

  // The set that tensors are added to; made on first use. Set is the tensor codec's one subclass of
  // TensorSet.
  template <class Set>
  Set& tensors() {
    if (tensors_ == nullptr) tensors_ = std::make_unique<Set>();
    return static_cast<Set&>(*tensors_);
  }
  // nullptr when no tensor was added.
  std::unique_ptr<TensorSet> take_tensors() { return std::move(tensors_); }

  absl::StatusOr<uint32_t> add_reference(const std::shared_ptr<RRefHandle>& handle) {
    if (references_ == nullptr) return absl::InvalidArgumentError("an RRef cannot be encoded here");
    return references_->add(handle, payload_);
  }

 private:
  proto::Payload& payload_;
  References* const references_;
  std::unique_ptr<TensorSet> tensors_;
};

// What one payload carried, for Codec<T>::decode. Not thread-safe.
class Decoder {
 public:
  // `tensors` may be nullptr. All of it outlives the decoder.
  Decoder(const proto::Payload& payload, TensorSet* tensors,
          const std::vector<std::shared_ptr<RRefHandle>>& references)
      : payload_(payload), tensors_(tensors), references_(references) {}
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  const proto::Payload& payload() const { return payload_; }

  // nullptr when the payload has no tensors.
  template <class Set>
  Set* tensors() {
    return static_cast<Set*>(tensors_);
  }

  absl::StatusOr<std::shared_ptr<RRefHandle>> reference(uint32_t index) const {
    if (index >= references_.size()) return absl::InvalidArgumentError("a reference index is out of range");
    return references_[index];
  }

 private:
  const proto::Payload& payload_;
  TensorSet* const tensors_;
  const std::vector<std::shared_ptr<RRefHandle>>& references_;
};

// A payload that arrived, with what it carried: values, tensors (decoded) and references (registered:
// dropping them gives them back). Movable.
struct IncomingPayload {
  // Never nullptr; shares the ownership of the message it came in.
  std::shared_ptr<const proto::Payload> payload{std::shared_ptr<void>(), &proto::Payload::default_instance()};
  std::unique_ptr<TensorSet> tensors;
  std::vector<std::shared_ptr<RRefHandle>> references;

  // For as long as this payload stays where it is.
  Decoder decoder() const { return Decoder(*payload, tensors.get(), references); }
};

}  // namespace gradwire::rpc
