#include "gradwire/tools/bench/transport/gradwire_transport.h"

#include <cstring>
#include <semaphore>
#include <stdexcept>
#include <string>
#include <utility>

#include "gradwire/tools/bench/run/measure.h"
#include "gradwire/tools/bench/run/pattern.h"
#include "gradwire/tools/bench/suites/case_name.h"
#include "gradwire/tools/bench/transport/mirror.h"
#include "gradwire/transport/shm/shm_transport.h"
#include "gradwire/transport/tcp/tcp_transport.h"

namespace gradwire::bench {
namespace {

using transport::Connection;
using transport::Message;

std::unique_ptr<transport::Transport> make_transport(const std::string& kind) {
  if (kind == "tcp") {
    transport::TcpOptions options;
    options.bind_address = "127.0.0.1";
    return transport::make_tcp_transport(options);
  }
  if (kind == "shm") return transport::make_shm_transport();
  throw std::runtime_error("unknown transport: got " + kind + ", expected shm or tcp");
}

class GradwireTransport final : public BenchProcess, public transport::ConnectionListener {
 public:
  std::string listen(const Endpoint& endpoint) override {
    transport_ = make_transport(endpoint.transport);
    if (endpoint.rank != 0) return "";
    const auto address = transport_->listen([this](const std::shared_ptr<Connection>&) { return mirror_; });
    if (!address.ok()) throw std::runtime_error(address.status().ToString());
    return *address;
  }

  void join(const Endpoint& endpoint) override {
    if (endpoint.rank == 0) return;
    // This object lives until the process ends, so the pointer need not own it.
    const std::shared_ptr<transport::ConnectionListener> self(std::shared_ptr<void>(), this);
    const auto connection = transport_->connect(endpoint.addresses.at(0), self, absl::Seconds(10));
    if (!connection.ok()) throw std::runtime_error(connection.status().ToString());
    connection_ = *connection;
  }

  // Each call starts on the thread that delivered the previous answer, so that the measurement contains no
  // hand-over between threads.
  Measurement run(const Task& task) override {
    const CaseName name = parse_case(task.case_name);
    if (task.case_name != "ping" && (name.operation != "send" || name.bytes == 0)) {
      throw std::invalid_argument("unknown case " + task.case_name);
    }
    bytes_ = static_cast<std::size_t>(name.bytes);
    source_ = std::make_shared<std::string>(bytes_, '\0');
    result_ = {};
    sent_ = 0;
    warm_until_ = nanoseconds() + static_cast<int64_t>(std::min(0.1, task.seconds / 4) * 1e9);
    until_ = warm_until_ + static_cast<int64_t>(task.seconds * 1e9);
    result_.begin_ns = warm_until_;
    send();
    done_.acquire();
    if (!error_.ok()) throw std::runtime_error(error_.ToString());
    result_.end_ns = nanoseconds();
    result_.seconds = static_cast<double>(result_.end_ns - result_.begin_ns) / 1e9;
    return std::move(result_);
  }

 private:
  void send() {
    Message message{.header = std::string(8, '\0')};
    std::memcpy(message.header.data(), &sent_, sizeof sent_);
    if (bytes_ > 0) {
      const int64_t start = nanoseconds(CLOCK_THREAD_CPUTIME_ID);
      fill_pattern(source_->data(), bytes_, sent_);
      result_.own_cpu_us += static_cast<double>(nanoseconds(CLOCK_THREAD_CPUTIME_ID) - start) / 1000;
      message.buffers.emplace_back(source_->data(), bytes_, source_);
    }
    ++result_.calls;
    start_ns_ = nanoseconds();
    if (const auto sent = connection_->send(std::move(message)); !sent.ok()) fail(sent.status());
  }

  void on_message(Connection&, Message message) override {
    const int64_t now = nanoseconds();
    if (message.header.size() != 8 || std::memcmp(message.header.data(), &sent_, sizeof sent_) != 0) {
      return fail(absl::InternalError("the answer does not belong to the last message"));
    }
    ++sent_;
    if (now > warm_until_) {
      result_.micros.push_back(static_cast<float>(static_cast<double>(now - start_ns_) / 1000));
    }
    result_.timed_calls = static_cast<int64_t>(result_.micros.size());
    if (now < until_ || result_.timed_calls < 3) {
      send();
    } else {
      done_.release();
    }
  }

  void on_closed(Connection&, absl::Status reason) override { fail(std::move(reason)); }

  void fail(absl::Status status) {
    error_ = std::move(status);
    done_.release();
  }

  const std::shared_ptr<transport::ConnectionListener> mirror_ = make_mirror();
  std::unique_ptr<transport::Transport> transport_;
  std::shared_ptr<Connection> connection_;
  // State of a run. run() uses it before the first message and after the last answer; in between only the
  // thread of the transport uses it.
  std::size_t bytes_ = 0;
  std::shared_ptr<std::string> source_;
  Measurement result_;
  uint64_t sent_ = 0;
  int64_t start_ns_ = 0;
  int64_t warm_until_ = 0;
  int64_t until_ = 0;
  absl::Status error_;
  std::counting_semaphore<> done_{0};
};

}  // namespace

std::unique_ptr<BenchProcess> make_gradwire_transport() { return std::make_unique<GradwireTransport>(); }

}  // namespace gradwire::bench
