#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/proto/gateway.grpc.pb.h"

namespace gradwire::gateway::testing {

// A context of an RPC with a deadline, so that no test waits indefinitely.
struct Context : grpc::ClientContext {
  explicit Context(std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
    set_deadline(std::chrono::system_clock::now() + timeout);
  }
  // The detail of the error of an RPC that has ended.
  v1::ErrorDetail detail() const {
    v1::ErrorDetail detail;
    const auto& metadata = GetServerTrailingMetadata();
    const auto found = metadata.find("gradwire-error-bin");
    if (found != metadata.end())
      detail.ParseFromArray(found->second.data(), static_cast<int>(found->second.size()));
    return detail;
  }
};

inline v1::Value integer(int64_t number) {
  v1::Value value;
  value.set_integer(number);
  return value;
}
inline v1::Value real(double number) {
  v1::Value value;
  value.set_real(number);
  return value;
}
inline v1::Value text(std::string content) {
  v1::Value value;
  value.set_text(std::move(content));
  return value;
}
inline v1::Value handle(const std::string& id) {
  v1::Value value;
  value.mutable_handle()->set_id(id);
  return value;
}

inline v1::CallRequest call_of(const std::string& worker, const std::string& function,
                               const std::vector<v1::Value>& arguments) {
  v1::CallRequest request;
  request.set_worker(worker);
  request.set_function(function);
  for (const v1::Value& argument : arguments) *request.add_arguments() = argument;
  return request;
}

// A connection of its own: each client counts for itself in the limits.
class Client {
 public:
  explicit Client(int port) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    channel = grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials(),
                                        arguments);
    stub = v1::Gateway::NewStub(channel);
  }

  // Calls, and returns the status; the result is in `result`, the detail of an error in `detail`.
  grpc::Status call(const v1::CallRequest& request) {
    Context context;
    const grpc::Status status = stub->Call(&context, request, &result);
    detail = context.detail();
    return status;
  }

  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Gateway::Stub> stub;
  v1::CallResponse result;
  v1::ErrorDetail detail;
};

// A session that ends when this is destroyed, or with close().
class OpenedSession {
 public:
  explicit OpenedSession(Client& client) : stream_(client.stub->OpenSession(&context_)) {
    v1::SessionEvent event;
    if (stream_->Read(&event)) id = event.opened().session();
  }
  ~OpenedSession() { close(); }

  // Closes this direction, and returns the status of the stream.
  grpc::Status close() {
    if (closed_) return grpc::Status::OK;
    closed_ = true;
    stream_->WritesDone();
    return stream_->Finish();
  }
  // Waits for the end of the stream, without closing this direction.
  grpc::Status wait() {
    closed_ = true;
    v1::SessionEvent event;
    while (stream_->Read(&event)) {
    }
    return stream_->Finish();
  }
  void cancel() { context_.TryCancel(); }
  bool keep_alive() { return stream_->Write(v1::SessionRequest()); }

  std::string id;

 private:
  Context context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::SessionRequest, v1::SessionEvent>> stream_;
  bool closed_ = false;
};

}  // namespace gradwire::gateway::testing
