#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gradwire/codec/encoder.h"
#include "gradwire/gateway/limits/limits.h"
#include "gradwire/gateway/session/sessions.h"
#include "gradwire/gateway/values/convert.h"
#include "gradwire/gateway/values/tensors.h"
#include "gradwire/proto/gateway.pb.h"

namespace gradwire::gateway {

// The error of a value with tensors in a gateway that cannot pass them.
absl::Status no_tensor_bridge();

// Keeps a reference of a result in the session, and describes it in `out`. FailedPrecondition without a
// session.
absl::Status keep_reference(Session* session, std::shared_ptr<rpc::RRefHandle> reference, v1::Handle& out);

// Converts values of an answer to responses for the client. What it refers to must outlive it.
class ResultReader final : public ResultSource {
 public:
  // The bytes of tensors are added to `permit`. `session` may be nullptr. `chunked` gets the large tensors;
  // nullptr: they stay in the response.
  ResultReader(rpc::IncomingPayload& in, Quotas::Permit& permit, Session* session,
               std::vector<TensorBytes>* chunked)
      : in_(in), permit_(permit), session_(session), chunked_(chunked) {}

  // Converts one value. ResourceExhausted if the response does not fit into a message.
  absl::Status read(const proto::Value& value, const Type& type, const std::string& worker,
                    v1::CallResponse& response);
  // The bytes of all tensors so far.
  uint64_t bytes() const { return bytes_; }

  absl::Status take_tensor(uint32_t index, v1::Tensor& out) override;
  absl::Status take_reference(uint32_t index, v1::Handle& out) override;

 private:
  rpc::IncomingPayload& in_;
  Quotas::Permit& permit_;
  Session* const session_;
  std::vector<TensorBytes>* const chunked_;
  uint64_t bytes_ = 0;
  std::size_t inline_ = 0;
};

}  // namespace gradwire::gateway
