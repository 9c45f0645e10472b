#include "gradwire/rpc/otlp/testing/fake_collector.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/mutex.h"
#include "gradwire/rpc/otlp/testing/metrics_service.grpc.pb.h"

namespace gradwire::rpc::testing {
namespace {

constexpr absl::Duration kLongestWait = absl::Minutes(1);

template <class Point>
std::string labels_of(const Point& point) {
  return absl::StrJoin(point.attributes(), ",", [](std::string* out, const proto::otlp::KeyValue& each) {
    absl::StrAppend(out, each.key(), "=", each.value().string_value());
  });
}

void add_numbers(const std::string& name,
                 const google::protobuf::RepeatedPtrField<proto::otlp::NumberDataPoint>& points,
                 std::vector<std::string>& out) {
  for (const auto& point : points) {
    out.push_back(absl::StrCat(name, "{", labels_of(point), "} = ",
                               point.value_case() == proto::otlp::NumberDataPoint::kAsInt
                                   ? absl::StrCat(point.as_int())
                                   : absl::StrCat(point.as_double())));
  }
}

}  // namespace

class FakeCollector::Service : public opentelemetry::proto::collector::metrics::v1::MetricsService::Service {
 public:
  explicit Service(const Options& options) : tls_(!options.certificate.empty()) {
    grpc::ServerBuilder builder;
    std::shared_ptr<grpc::ServerCredentials> credentials = grpc::InsecureServerCredentials();
    if (tls_) {
      grpc::SslServerCredentialsOptions ssl;
      ssl.pem_key_cert_pairs.push_back({options.key, options.certificate});
      credentials = grpc::SslServerCredentials(ssl);
    }
    builder.AddListeningPort(absl::StrCat("127.0.0.1:", options.port), credentials, &port_);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) {
      std::fprintf(stderr, "the fake collector cannot listen on port %d\n", options.port);
      std::abort();
    }
  }
  ~Service() override {
    {
      MutexLock lock(mutex_);
      ending_ = true;
      changed_.notify_all();
    }
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }

  grpc::Status Export(grpc::ServerContext* context, const Request* request, Response* response) override {
    std::function<absl::Status(const Request&, Response&)> answer;
    bool hangs = false;
    {
      MutexLock lock(mutex_);
      requests_.push_back(*request);
      headers_.clear();
      for (const auto& [name, value] : context->client_metadata())
        headers_.emplace(std::string(name.data(), name.size()), std::string(value.data(), value.size()));
      answer = answer_;
      hangs = hangs_;
      changed_.notify_all();
    }
    if (hangs) {
      MutexLock lock(mutex_);
      while (hangs_ && !ending_ && !context->IsCancelled()) changed_.wait_for(mutex_, absl::Milliseconds(5));
      if (hangs_) return {grpc::StatusCode::CANCELLED, "no answer"};
    }
    const absl::Status status = answer == nullptr ? absl::OkStatus() : answer(*request, *response);
    return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
  }

  const bool tls_;
  // Set by the constructor.
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;

  mutable Mutex mutex_;
  mutable CondVar changed_;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool hangs_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<absl::Status(const Request&, Response&)> answer_ ABSL_GUARDED_BY(mutex_);
  std::vector<Request> requests_ ABSL_GUARDED_BY(mutex_);
  Headers headers_ ABSL_GUARDED_BY(mutex_);
};

FakeCollector::FakeCollector(const Options& options) : service_(std::make_unique<Service>(options)) {}

FakeCollector::~FakeCollector() = default;

int FakeCollector::port() const { return service_->port_; }

std::string FakeCollector::endpoint() const {
  return absl::StrCat(service_->tls_ ? "https" : "http", "://127.0.0.1:", port());
}

void FakeCollector::answer_with(std::function<absl::Status(const Request&, Response&)> answer) {
  MutexLock lock(service_->mutex_);
  service_->answer_ = std::move(answer);
}

void FakeCollector::hang() {
  MutexLock lock(service_->mutex_);
  service_->hangs_ = true;
}

void FakeCollector::release() {
  MutexLock lock(service_->mutex_);
  service_->hangs_ = false;
  service_->changed_.notify_all();
}

std::vector<FakeCollector::Request> FakeCollector::wait_for(std::size_t count) const {
  const auto deadline = std::chrono::steady_clock::now() + absl::ToChronoMilliseconds(kLongestWait);
  MutexLock lock(service_->mutex_);
  while (service_->requests_.size() < count && std::chrono::steady_clock::now() < deadline)
    service_->changed_.wait_for(service_->mutex_, absl::Seconds(1));
  return service_->requests_;
}

std::size_t FakeCollector::count() const {
  MutexLock lock(service_->mutex_);
  return service_->requests_.size();
}

FakeCollector::Headers FakeCollector::headers() const {
  MutexLock lock(service_->mutex_);
  return service_->headers_;
}

std::vector<std::string> points_of(const FakeCollector::Request& request) {
  std::vector<std::string> points;
  for (const auto& resource : request.resource_metrics()) {
    for (const auto& scope : resource.scope_metrics()) {
      for (const auto& metric : scope.metrics()) {
        add_numbers(metric.name(), metric.sum().data_points(), points);
        add_numbers(metric.name(), metric.gauge().data_points(), points);
        for (const auto& point : metric.histogram().data_points()) {
          points.push_back(absl::StrCat(metric.name(), "{", labels_of(point), "} = ", point.count(), " ",
                                        point.sum(), " [", absl::StrJoin(point.bucket_counts(), ","), "]"));
        }
      }
    }
  }
  return points;
}

std::vector<std::map<std::string, std::string>> senders_of(const FakeCollector::Request& request) {
  std::vector<std::map<std::string, std::string>> senders;
  for (const auto& resource : request.resource_metrics()) {
    auto& sender = senders.emplace_back();
    for (const auto& each : resource.resource().attributes())
      sender[each.key()] = each.value().string_value();
  }
  return senders;
}

}  // namespace gradwire::rpc::testing
