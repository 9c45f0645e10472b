#include "gradwire/tools/bench/security/gradwire_connect.h"

#include <atomic>
#include <cstdint>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gradwire/base/error.h"
#include "gradwire/security/setup/make_credentials.h"
#include "gradwire/tools/bench/run/measure.h"
#include "gradwire/tools/bench/security/bench_security.h"
#include "gradwire/tools/bench/suites/case_timing.h"
#include "gradwire/transport/connection.h"
#include "gradwire/transport/tcp/tcp_transport.h"

namespace gradwire::bench {
namespace {

// Sends every message back.
class EchoListener final : public transport::ConnectionListener {
 public:
  void on_message(transport::Connection& connection, transport::Message message) override {
    (void)connection.send(std::move(message));
  }
  void on_closed(transport::Connection&, absl::Status) override {}
};

// Waits for one message, or the end of the connection.
class AnswerListener final : public transport::ConnectionListener {
 public:
  void on_message(transport::Connection&, transport::Message) override { answer(absl::OkStatus()); }
  void on_closed(transport::Connection&, absl::Status reason) override { answer(std::move(reason)); }
  absl::Status wait() { return answer_.get_future().get(); }

 private:
  void answer(absl::Status status) {
    if (!answered_.exchange(true)) answer_.set_value(std::move(status));
  }

  std::promise<absl::Status> answer_;
  std::atomic<bool> answered_{false};
};

// A connection of the tcp transport, from connect() to the answer to its first message.
class GradwireConnect final : public BenchProcess {
 public:
  std::string listen(const Endpoint& endpoint) override {
    if (endpoint.rank != 0) return "";
    if (endpoint.transport == "tls") certificates_ = std::make_unique<BenchCertificates>(endpoint.size);
    const std::string folder = certificates_ == nullptr ? "" : certificates_->folder();
    open(endpoint, folder);
    const std::string address = value_or_throw(transport_->listen(
        [](const std::shared_ptr<transport::Connection>&) { return std::make_shared<EchoListener>(); }));
    return absl::StrCat(address, ",", folder);
  }

  void join(const Endpoint& endpoint) override {
    const std::vector<std::string> parts = absl::StrSplit(endpoint.addresses.at(0), ',');
    address_ = parts.at(0);
    if (transport_ == nullptr) open(endpoint, parts.at(1));
  }

  Measurement run(const Task& task) override {
    const auto nothing = [](int64_t) {};
    return measure(
        timing_of(task), nothing, [this](int64_t) { connect_once(); }, nothing);
  }

 private:
  void open(const Endpoint& endpoint, const std::string& folder) {
    transport::TcpOptions options;
    options.credentials =
        value_or_throw(security::make_credentials(security_of(endpoint.transport, folder, endpoint.rank)));
    options.purpose = "rpc";
    options.own_name = absl::StrCat("w", endpoint.rank);
    options.bind_address = "127.0.0.1";
    transport_ = transport::make_tcp_transport(options);
  }

  void connect_once() {
    const auto listener = std::make_shared<AnswerListener>();
    const auto connection = value_or_throw(transport_->connect(address_, listener, absl::Seconds(10)));
    throw_if_error(connection->send({"x", {}}).status());
    const absl::Status answered = listener->wait();
    connection->close(absl::CancelledError("measured"), absl::ZeroDuration());
    throw_if_error(answered);
  }

  std::unique_ptr<BenchCertificates> certificates_;
  std::string address_;
  std::unique_ptr<transport::Transport> transport_;
};

}  // namespace

std::unique_ptr<BenchProcess> make_gradwire_connect() { return std::make_unique<GradwireConnect>(); }

}  // namespace gradwire::bench
