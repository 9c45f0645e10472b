#include "gradwire/tools/launch/metrics/scrape.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/io/descriptor.h"

namespace gradwire::tools {
namespace {

// HTTP 1.0: the end of the connection is the end of the answer.
constexpr absl::string_view kRequest = "GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n";

// One request and its answer.
class Scrape {
 public:
  Scrape(const std::string& path, std::size_t most_bytes) : path_(path), most_bytes_(most_bytes) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof(address.sun_path)) {
      end(absl::UnavailableError("its path is too long"));
      return;
    }
    std::memcpy(address.sun_path, path.data(), path.size());
    socket_ = Descriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    // The request is shorter than the buffer of a new socket, so it is sent as a whole.
    if (!socket_.valid() ||
        connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
        send(socket_.get(), kRequest.data(), kRequest.size(), MSG_NOSIGNAL) !=
            static_cast<ssize_t>(kRequest.size())) {
      // A worker that is stuck does not accept connections, and the queue for them is full after a while.
      end(errno == EAGAIN ? absl::DeadlineExceededError("it accepts no connections")
                          : absl::UnavailableError(std::strerror(errno)));
    }
  }

  // -1 when it has ended.
  int fd() const { return socket_.get(); }

  // Call when the socket is readable.
  void read() {
    char buffer[64 << 10];
    const ssize_t received = recv(socket_.get(), buffer, sizeof(buffer), 0);
    if (received < 0) {
      if (errno != EAGAIN && errno != EINTR) end(absl::UnavailableError(std::strerror(errno)));
    } else if (received > 0) {
      answer_.append(buffer, static_cast<std::size_t>(received));
      if (answer_.size() > most_bytes_)
        end(absl::ResourceExhaustedError(absl::StrCat("more than ", most_bytes_, " bytes")));
    } else {
      end(absl::OkStatus());
    }
  }

  absl::StatusOr<std::string> result() && {
    if (socket_.valid()) end(absl::DeadlineExceededError("no answer in time"));
    if (!status_.ok()) return absl::Status(status_.code(), absl::StrCat(path_, ": ", status_.message()));
    const std::size_t body = answer_.find("\r\n\r\n");
    // With the end of its last line, so that a length is not taken for one of its beginnings.
    const absl::string_view head =
        absl::string_view(answer_).substr(0, body == std::string::npos ? body : body + 2);
    const bool complete =
        body != std::string::npos && absl::StartsWith(head, "HTTP/1.") && absl::StrContains(head, " 200 ") &&
        absl::StrContains(head, absl::StrCat("Content-Length: ", answer_.size() - body - 4, "\r\n"));
    if (!complete) return absl::InternalError(absl::StrCat(path_, ": the answer is not a page"));
    answer_.erase(0, body + 4);
    return std::move(answer_);
  }

 private:
  void end(absl::Status status) {
    status_ = std::move(status);
    socket_.reset();
  }

  const std::string path_;
  const std::size_t most_bytes_;
  Descriptor socket_;
  std::string answer_;
  absl::Status status_;
};

}  // namespace

std::vector<absl::StatusOr<std::string>> scrape(const std::vector<std::string>& paths, absl::Duration limit,
                                                std::size_t most_bytes) {
  const absl::Time deadline = Clock::system().now() + limit;
  std::vector<Scrape> scrapes;
  scrapes.reserve(paths.size());
  for (const std::string& path : paths) scrapes.emplace_back(path, most_bytes);
  while (true) {
    std::vector<pollfd> events;
    std::vector<Scrape*> waiting;
    for (Scrape& each : scrapes) {
      if (each.fd() < 0) continue;
      events.push_back({each.fd(), POLLIN, 0});
      waiting.push_back(&each);
    }
    const absl::Duration left = deadline - Clock::system().now();
    if (events.empty() || left <= absl::ZeroDuration()) break;
    (void)poll(events.data(), events.size(), static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
    for (std::size_t i = 0; i < events.size(); ++i) {
      if (events[i].revents != 0) waiting[i]->read();
    }
  }
  std::vector<absl::StatusOr<std::string>> results;
  for (Scrape& each : scrapes) results.push_back(std::move(each).result());
  return results;
}

}  // namespace gradwire::tools
