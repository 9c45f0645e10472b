#include "gradwire/tools/bench/run/channel.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace gradwire::bench {
namespace {

using nlohmann::json;

// Maximum size of a message, far above that of four million samples of four bytes.
constexpr uint32_t kMaxBytes = 1U << 28;

}  // namespace

Channel::~Channel() {
  if (fd_ >= 0) close(fd_);
}

absl::Status Channel::send(const Order& order) {
  return write(json::to_cbor(json{{"kind", static_cast<int>(order.kind)},
                                  {"rank", order.endpoint.rank},
                                  {"size", order.endpoint.size},
                                  {"transport", order.endpoint.transport},
                                  {"addresses", order.endpoint.addresses},
                                  {"host", order.endpoint.host},
                                  {"case", order.task.case_name},
                                  {"seconds", order.task.seconds},
                                  {"depth", order.task.depth},
                                  {"extra_figures", order.task.extra_figures}}));
}

absl::Status Channel::send(const Answer& answer) {
  const Measurement& m = answer.measurement;
  const auto* first = reinterpret_cast<const uint8_t*>(m.micros.data());
  std::vector<uint8_t> samples(first, first + m.micros.size() * sizeof(float));
  json figures = json::array();
  for (const Figure& figure : m.figures) figures.push_back(json::array({figure.metric, figure.value}));
  return write(json::to_cbor(json{{"error", answer.error},
                                  {"address", answer.address},
                                  {"cpu_us", answer.cpu_us},
                                  {"samples", json::binary(std::move(samples))},
                                  {"calls", m.calls},
                                  {"timed_calls", m.timed_calls},
                                  {"seconds", m.seconds},
                                  {"begin_ns", m.begin_ns},
                                  {"end_ns", m.end_ns},
                                  {"own_cpu_us", m.own_cpu_us},
                                  {"figures", std::move(figures)}}));
}

absl::StatusOr<Order> Channel::receive_order() {
  const auto message = read(absl::InfiniteDuration());
  if (!message.ok()) return message.status();
  try {
    const json value = json::from_cbor(*message);
    Order order;
    order.kind = static_cast<Order::Kind>(value.at("kind").get<int>());
    order.endpoint.rank = value.at("rank");
    order.endpoint.size = value.at("size");
    order.endpoint.transport = value.at("transport");
    order.endpoint.addresses = value.at("addresses").get<std::vector<std::string>>();
    order.endpoint.host = value.at("host");
    order.task.case_name = value.at("case");
    order.task.seconds = value.at("seconds");
    order.task.depth = value.at("depth");
    order.task.extra_figures = value.at("extra_figures");
    return order;
  } catch (const json::exception& e) {
    return absl::InvalidArgumentError(e.what());
  }
}

absl::StatusOr<Answer> Channel::receive_answer(absl::Duration timeout) {
  const auto message = read(timeout);
  if (!message.ok()) return message.status();
  try {
    const json value = json::from_cbor(*message);
    Answer answer;
    answer.error = value.at("error");
    answer.address = value.at("address");
    answer.cpu_us = value.at("cpu_us");
    Measurement& m = answer.measurement;
    const auto& samples = value.at("samples").get_binary();
    m.micros.resize(samples.size() / sizeof(float));
    if (!m.micros.empty()) std::memcpy(m.micros.data(), samples.data(), m.micros.size() * sizeof(float));
    m.calls = value.at("calls");
    m.timed_calls = value.at("timed_calls");
    m.seconds = value.at("seconds");
    m.begin_ns = value.at("begin_ns");
    m.end_ns = value.at("end_ns");
    m.own_cpu_us = value.at("own_cpu_us");
    for (const json& figure : value.at("figures")) m.figures.push_back({figure.at(0), figure.at(1)});
    return answer;
  } catch (const json::exception& e) {
    return absl::InvalidArgumentError(e.what());
  }
}

absl::Status Channel::write(const std::vector<uint8_t>& message) {
  const auto size = static_cast<uint32_t>(message.size());
  std::string framed(reinterpret_cast<const char*>(&size), sizeof size);
  framed.append(reinterpret_cast<const char*>(message.data()), message.size());
  for (std::size_t sent = 0; sent < framed.size();) {
    const ssize_t n = ::send(fd_, framed.data() + sent, framed.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && errno != EINTR) {
      return absl::UnavailableError(
          absl::StrCat("cannot write to the bench process: ", std::strerror(errno)));
    }
    if (n > 0) sent += static_cast<std::size_t>(n);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<uint8_t>> Channel::read(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  uint32_t size = 0;
  if (absl::Status status = read_bytes(&size, sizeof size, deadline); !status.ok()) return status;
  if (size > kMaxBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("bench message too large: got ", size, " bytes, expected at most ", kMaxBytes));
  }
  std::vector<uint8_t> message(size);
  if (absl::Status status = read_bytes(message.data(), size, deadline); !status.ok()) return status;
  return message;
}

absl::Status Channel::read_bytes(void* data, std::size_t size, absl::Time deadline) {
  for (std::size_t got = 0; got < size;) {
    int wait_ms = -1;
    if (deadline != absl::InfiniteFuture()) {
      wait_ms = static_cast<int>(std::max<int64_t>(0, absl::ToInt64Milliseconds(deadline - absl::Now()) + 1));
    }
    pollfd entry{.fd = fd_, .events = POLLIN, .revents = 0};
    const int ready = poll(&entry, 1, wait_ms);
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) return absl::DeadlineExceededError("the bench process did not answer in time");
    const ssize_t n = recv(fd_, static_cast<char*>(data) + got, size - got, 0);
    if (n == 0) return absl::UnavailableError("the bench process has closed its connection");
    if (n < 0 && errno != EINTR) return absl::UnavailableError(std::strerror(errno));
    if (n > 0) got += static_cast<std::size_t>(n);
  }
  return absl::OkStatus();
}

}  // namespace gradwire::bench
