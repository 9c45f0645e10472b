#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gradwire/base/threads/stream_fence.h"
#include "gradwire/codec/tensor_set.h"
#include "gradwire/proto/value.pb.h"

namespace gradwire::rpc {

class RRefHandle;

// The maximum depth of nested values in one message. Protobuf's parser refuses messages that are nested more
// than 100 deep, and the receiver would close the connection. Each level takes two of these, and what
// surrounds a value takes some.
inline constexpr int kMaxNesting = 45;

// Counts how deep the value is nested that is being encoded or decoded.
class Nesting {
 public:
  // Exists while the value `at` is encoded or decoded, inside the step of the value that contains it. A codec
  // that passes its own value on to another codec goes no deeper.
  class Step {
   public:
    Step(Nesting& nesting, const proto::Value& at)
        : nesting_(nesting), outer_(nesting.innermost_), levels_(&at == outer_ ? 0 : 1) {
      nesting_.innermost_ = &at;
      nesting_.depth_ += levels_;
    }
    ~Step() {
      nesting_.innermost_ = outer_;
      nesting_.depth_ -= levels_;
    }
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;

    // InvalidArgument if the value is nested too deep.
    absl::Status status() const { return nesting_.depth_ <= kMaxNesting ? absl::OkStatus() : too_deep(); }

   private:
    static absl::Status too_deep();

    Nesting& nesting_;
    const proto::Value* const outer_;
    const int levels_;
  };

 private:
  const proto::Value* innermost_ = nullptr;
  int depth_ = 0;
};

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
  Nesting& nesting() { return nesting_; }

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
  Nesting nesting_;
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
  Nesting& nesting() { return nesting_; }

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
  Nesting nesting_;
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
