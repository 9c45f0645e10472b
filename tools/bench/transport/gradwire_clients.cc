#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gradwire/base/mutex.h"
#include "gradwire/tools/bench/run/clocks.h"
#include "gradwire/tools/bench/run/footprint.h"
#include "gradwire/tools/bench/suites/case_name.h"
#include "gradwire/tools/bench/transport/gradwire_transport.h"
#include "gradwire/tools/bench/transport/mirror.h"
#include "gradwire/transport/tcp/tcp_transport.h"

namespace gradwire::bench {
namespace {

using transport::Connection;
using transport::Message;

std::unique_ptr<transport::Transport> make_transport() {
  transport::TcpOptions options;
  options.bind_address = "127.0.0.1";
  return transport::make_tcp_transport(options);
}

// The usual soft limit of descriptors is about the number of connections.
void raise_descriptor_limit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
}

void sleep_until(int64_t nanoseconds) {
  const timespec until{.tv_sec = nanoseconds / 1'000'000'000, .tv_nsec = nanoseconds % 1'000'000'000};
  clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr);
}

class ClientConnections;

// One connection to the server, with at most one message under way.
class Client final : public transport::ConnectionListener {
 public:
  explicit Client(ClientConnections& all) : all_(all) {}

  void connect(transport::Transport& transport, const std::string& address,
               const std::shared_ptr<Client>& self) {
    auto connection = transport.connect(address, self, absl::Seconds(30));
    if (!connection.ok()) throw std::runtime_error(connection.status().ToString());
    connection_ = *std::move(connection);
  }

  bool waits() const { return waits_.load(std::memory_order_acquire); }
  // REQUIRES: !waits()
  absl::Status send() {
    waits_.store(true, std::memory_order_relaxed);
    sent_ns_ = nanoseconds();
    return connection_->send({.header = "message."}).status();
  }

  void on_message(Connection&, Message) override;
  void on_closed(Connection&, absl::Status reason) override;

 private:
  ClientConnections& all_;
  std::shared_ptr<Connection> connection_;
  std::atomic<bool> waits_{false};
  int64_t sent_ns_ = 0;
};

// The connections of one process. One thread sends on one connection after the other, and leaves out those
// that wait for an answer. A run has two parts:
// 1. It sends without a pause. The number of answers is what this process and the server achieve.
// 2. It sends at half of that rate. Only these messages are timed.
// In the first part the transport's thread could send each connection's next message itself, when it has the
// answer. That batches the messages, so the server achieves more than it can in the second part.
class ClientConnections {
 public:
  ClientConnections(transport::Transport& transport, const std::string& address, int count) {
    for (int i = 0; i < count; ++i) {
      clients_.push_back(std::make_shared<Client>(*this));
      clients_.back()->connect(transport, address, clients_.back());
    }
  }

  Measurement run(double seconds) {
    const auto nanos = static_cast<int64_t>(seconds * 1e9);
    Measurement result{.begin_ns = nanoseconds()};
    send_for(nanos / 3, /*interval=*/0);
    const auto full_load = static_cast<int64_t>(micros_.size());
    if (full_load == 0) throw std::runtime_error("the server answered nothing");
    micros_.clear();
    send_for(nanos - nanos / 3, 2 * (nanos / 3) / full_load);
    result.end_ns = nanoseconds();
    result.micros = std::move(micros_);
    result.timed_calls = static_cast<int64_t>(result.micros.size());
    result.calls = result.timed_calls + full_load;
    result.seconds = static_cast<double>(result.end_ns - result.begin_ns) / 1e9;
    return result;
  }

  // Called by the transport's thread.
  void answered(int64_t sent_ns) {
    micros_.push_back(static_cast<float>(static_cast<double>(nanoseconds() - sent_ns) / 1000));
    under_way_.fetch_sub(1, std::memory_order_release);
  }

  void fail(const absl::Status& status) {
    MutexLock lock(mutex_);
    if (error_.ok()) error_ = status;
  }

 private:
  // How long the thread sleeps when every connection waits for an answer.
  static constexpr int64_t kPause = 20'000;

  // Sends for `nanos` nanoseconds: one message every `interval` nanoseconds, or, if that is 0, each at once.
  // Returns when all are answered.
  void send_for(int64_t nanos, int64_t interval) {
    int64_t at = nanoseconds();
    const int64_t end = at + nanos;
    while (at < end) {
      Client* const idle = next_idle();
      if (idle != nullptr) send(*idle);
      at = interval > 0 ? at + interval : nanoseconds() + (idle == nullptr ? kPause : 0);
      sleep_until(at);
    }
    await_answers();
  }

  Client* next_idle() {
    for (std::size_t tried = 0; tried < clients_.size(); ++tried) {
      Client& client = *clients_[next_++ % clients_.size()];
      if (!client.waits()) return &client;
    }
    return nullptr;
  }

  void send(Client& client) {
    under_way_.fetch_add(1, std::memory_order_relaxed);
    if (const absl::Status sent = client.send(); !sent.ok()) throw std::runtime_error(sent.ToString());
  }

  void await_answers() {
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    while (under_way_.load(std::memory_order_acquire) > 0) {
      if (const absl::Status failed = error(); !failed.ok()) throw std::runtime_error(failed.ToString());
      if (absl::Now() > deadline) throw std::runtime_error("no answer from the server within 30 s");
      absl::SleepFor(absl::Milliseconds(1));
    }
  }

  absl::Status error() {
    MutexLock lock(mutex_);
    return error_;
  }

  std::vector<std::shared_ptr<Client>> clients_;
  std::atomic<int> under_way_{0};
  std::size_t next_ = 0;
  // The times of the messages that were answered. Used by run() while nothing is under way, and by the
  // transport's thread otherwise.
  std::vector<float> micros_;

  Mutex mutex_;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
};

void Client::on_message(Connection&, Message) {
  const int64_t sent_ns = sent_ns_;
  waits_.store(false, std::memory_order_release);
  all_.answered(sent_ns);
}

void Client::on_closed(Connection&, absl::Status reason) { all_.fail(reason); }

// The first member is the server. The others share the connections of the case among them.
class Clients final : public BenchProcess {
 public:
  std::string listen(const Endpoint& endpoint) override {
    raise_descriptor_limit();
    transport_ = make_transport();
    if (endpoint.rank != 0) return "";
    before_contact_ = footprint();
    const auto address = transport_->listen([this](const std::shared_ptr<Connection>&) {
      accepted_.fetch_add(1, std::memory_order_relaxed);
      return mirror_;
    });
    if (!address.ok()) throw std::runtime_error(address.status().ToString());
    return *address;
  }

  void join(const Endpoint& endpoint) override { endpoint_ = endpoint; }

  Measurement run(const Task& task) override {
    if (task.case_name == kFootprintCase) {
      const int accepted = accepted_.load(std::memory_order_relaxed);
      return accepted == 0 ? Measurement() : growth_per_peer(before_contact_, accepted);
    }
    const CaseName name = parse_case(task.case_name);
    if (name.operation != "clients" || name.count < 1 || name.count > 65'536) {
      throw std::invalid_argument("unknown case " + task.case_name);
    }
    // By default the kernel may end a sleep 50 us late.
    prctl(PR_SET_TIMERSLACK, 1'000, 0, 0, 0);
    if (connections_ == nullptr) {
      const int64_t clients = endpoint_.size - 1, index = endpoint_.rank - 1;
      connections_ = std::make_unique<ClientConnections>(
          *transport_, endpoint_.addresses.at(0),
          static_cast<int>(name.count * (index + 1) / clients - name.count * index / clients));
    }
    return connections_->run(task.seconds);
  }

 private:
  const std::shared_ptr<transport::ConnectionListener> mirror_ = make_mirror();
  Endpoint endpoint_;
  Footprint before_contact_;
  std::atomic<int> accepted_{0};
  std::unique_ptr<ClientConnections> connections_;
  // Destroyed first: its thread uses the others.
  std::unique_ptr<transport::Transport> transport_;
};

}  // namespace

std::unique_ptr<BenchProcess> make_gradwire_clients() { return std::make_unique<Clients>(); }

}  // namespace gradwire::bench
