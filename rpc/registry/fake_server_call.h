#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/codec.h"
#include "gradwire/codec/codec_test_util.h"
#include "gradwire/rpc/registry/server_call.h"

namespace gradwire::rpc {

// A served call without an agent. Its result is encoded and decoded as on the wire. For tests with one
// thread.
class FakeServerCall : public ServerCall {
 public:
  FakeServerCall(std::string callee, IncomingPayload arguments)
      : callee_(std::move(callee)), arguments_(std::move(arguments)) {}

  void set_target(std::shared_ptr<void> target, const TypeOps* type) {
    target_ = std::move(target);
    target_type_ = type;
  }

  Agent& agent() const override { throw Error(absl::FailedPreconditionError("a fake call has no agent")); }
  const std::shared_ptr<Executor>& executor() const override { return executor_; }
  const std::string& callee() const override { return callee_; }
  const IncomingPayload& arguments() const override { return arguments_; }
  const std::shared_ptr<void>& target() const override { return target_; }
  const TypeOps* target_type() const override { return target_type_; }
  void finish(std::shared_ptr<void> value, const TypeOps* type, StreamFencePtr /*fence*/ = nullptr) override {
    value_ = std::move(value);
    value_type_ = type;
  }
  void fail(absl::Status status) override { status_ = std::move(status); }
  void release_arguments() override { arguments_ = IncomingPayload(); }
  void finish_later() override {}

  const absl::Status& status() const { return status_; }
  const TypeOps* value_type() const { return value_type_; }

  // The result as the caller decodes it.
  template <class T>
  absl::StatusOr<T> result() const {
    if (!status_.ok()) return status_;
    if (value_ == nullptr) return absl::InternalError("the call was not ended");
    TestSender sender;
    GRADWIRE_RETURN_IF_ERROR(
        value_type_->encode(value_.get(), sender.encoder(), *sender.payload().add_values()));
    GRADWIRE_ASSIGN_OR_RETURN(WireMessage wire, sender.finish());
    GRADWIRE_ASSIGN_OR_RETURN(IncomingPayload in, receive(std::move(wire)));
    return decode_first<T>(in);
  }

 private:
  const std::shared_ptr<Executor> executor_;
  const std::string callee_;
  IncomingPayload arguments_;
  std::shared_ptr<void> target_;
  const TypeOps* target_type_ = nullptr;
  std::shared_ptr<void> value_;
  const TypeOps* value_type_ = nullptr;
  absl::Status status_;
};

}  // namespace gradwire::rpc
