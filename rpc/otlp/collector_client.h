#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/base/mutex.h"
#include "gradwire/proto/otlp.pb.h"
#include "gradwire/rpc/otlp/collector_options.h"

namespace grpc {
class Channel;
class ClientContext;
}  // namespace grpc

namespace gradwire::rpc {

// Sends requests to an OpenTelemetry collector over gRPC. cancel() and resume() are thread-safe; one thread
// at a time calls send().
class CollectorClient {
 public:
  // Connects with the first request. `options` must outlive it.
  explicit CollectorClient(const CollectorOptions& options);
  ~CollectorClient();
  CollectorClient(const CollectorClient&) = delete;
  CollectorClient& operator=(const CollectorClient&) = delete;

  // The answer of the collector. Its texts are shortened, and have no values of headers, which a collector
  // may repeat in its messages.
  struct Answer {
    // The error of gRPC if the collector did not answer, or refused everything. Cancelled after cancel().
    absl::Status status;
    // If it accepted the request: the number of data points that it rejected, and the reason. A reason
    // without rejected data points is a hint.
    uint64_t rejected = 0;
    std::string reason;
  };
  // Sends a request and waits for the answer, for `timeout` at most. After an error the next request makes a
  // new connection, at once.
  Answer send(const proto::otlp::ExportMetricsServiceRequest& request, absl::Duration timeout);

  // Ends the send() in progress and all later ones, until resume().
  void cancel();
  void resume();

 private:
  std::string presentable(absl::string_view text) const;

  const CollectorOptions& options_;
  // Used by send() alone. nullptr before the first request and after an error.
  std::shared_ptr<grpc::Channel> channel_;

  Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  // That of the send() in progress, or nullptr.
  std::shared_ptr<grpc::ClientContext> context_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::rpc
