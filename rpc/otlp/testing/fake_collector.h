#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/proto/otlp.pb.h"

namespace gradwire::rpc::testing {

// An OpenTelemetry collector for tests, on a free port of the loopback interface. It keeps the requests that
// arrive. Thread-safe. The destructor ends the calls in progress.
class FakeCollector {
 public:
  using Request = proto::otlp::ExportMetricsServiceRequest;
  using Response = proto::otlp::ExportMetricsServiceResponse;
  // The headers of a request that are not gRPC's own.
  using Headers = std::multimap<std::string, std::string>;

  struct Options {
    // 0: a free one.
    int port = 0;
    // A certificate and its key in PEM; empty: without TLS.
    std::string certificate;
    std::string key;
  };
  FakeCollector() : FakeCollector(Options()) {}
  explicit FakeCollector(const Options& options);
  ~FakeCollector();
  FakeCollector(const FakeCollector&) = delete;
  FakeCollector& operator=(const FakeCollector&) = delete;

  int port() const;
  // "http://127.0.0.1:PORT", or https with a certificate.
  std::string endpoint() const;

  // Decides the answers of the requests that arrive from now on. Without it all are accepted.
  void answer_with(std::function<absl::Status(const Request& request, Response& response)> answer);
  // Requests that arrive from now on get no answer until their callers give up.
  void hang();
  // Ends that: the requests that hang are answered, too.
  void release();

  // Waits until at least `count` requests have arrived in total, for a minute at most, and returns all.
  std::vector<Request> wait_for(std::size_t count) const;
  // Number of requests so far.
  std::size_t count() const;
  // The headers of the last request.
  Headers headers() const;

 private:
  class Service;
  const std::unique_ptr<Service> service_;
};

// The data points of a request, each as "NAME{key=value,...} = VALUE" with the attributes in their order. A
// histogram's value is "count sum [bucket counts]".
std::vector<std::string> points_of(const FakeCollector::Request& request);
// The attributes of each sender in a request.
std::vector<std::map<std::string, std::string>> senders_of(const FakeCollector::Request& request);

}  // namespace gradwire::rpc::testing
