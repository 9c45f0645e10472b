#include "gradwire/tools/launch/metrics/job_metrics.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/metrics/families.h"
#include "gradwire/base/metrics/samples.h"

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

namespace {

using metrics::Metric;

// The address of a socket has at most 107 bytes. This leaves room for the names in the folder.
constexpr std::size_t kLongestParent = 50;
// Sockets of one worker: one for each of its agents.
constexpr std::size_t kMostSockets = 64;

std::vector<std::string> sockets_in(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  for (auto entry = std::filesystem::directory_iterator(folder, error);
       !error && entry != std::filesystem::directory_iterator() && paths.size() < kMostSockets;
       entry.increment(error)) {
    paths.push_back(entry->path().string());
  }
  return paths;
}

}  // namespace

absl::StatusOr<JobMetrics> JobMetrics::create(const Options& options) {
  if (options.address.empty() && !options.exported) return JobMetrics(options, "");
  const char* const set = std::getenv("TMPDIR");
  std::string parent = set != nullptr && *set != '\0' ? set : "/tmp";
  if (parent.size() > kLongestParent) parent = "/tmp";
  std::string folder = absl::StrCat(parent, "/gradwire_metrics_XXXXXX");
  // mkdtemp() makes the folder with the mode 0700.
  if (mkdtemp(folder.data()) == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("cannot create a folder for sockets in ", parent, ": ", std::strerror(errno)));
  }
  return JobMetrics(options, std::move(folder));
}

JobMetrics::JobMetrics(JobMetrics&& other) noexcept
    : options_(std::move(other.options_)),
      folder_(std::exchange(other.folder_, "")),
      round_folder_(std::move(other.round_folder_)),
      state_(std::move(other.state_)),
      server_(std::move(other.server_)) {}

JobMetrics::~JobMetrics() {
  server_ = nullptr;
  std::error_code ignored;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
}

absl::Status JobMetrics::serve() {
  if (options_.address.empty()) return absl::OkStatus();
  GRADWIRE_ASSIGN_OR_RETURN(
      server_, transport::HttpServer::start(
                   {.address = options_.address,
                    .insecure = options_.insecure,
                    .consent = "--metrics_insecure",
                    // Longer than the wait for the workers.
                    .time_limit = options_.limit + absl::Seconds(10)},
                   {{"/metrics",
                     {std::string(transport::kMetricsType),
                      [state = state_.get(), limit = options_.limit] { return text_of(*state, limit); }}},
                    {"/healthz", {.make = [] { return std::string("ok\n"); }}}}));
  return absl::OkStatus();
}

void JobMetrics::begin_round(int64_t round, int restarts) {
  state_->restarts.set(restarts);
  state_->rounds.add(1);
  if (enabled()) round_folder_ = absl::StrCat(folder_, "/", round);
  MutexLock lock(state_->mutex);
  state_->round_since = absl::Now();
}

absl::Status JobMetrics::add_worker(int local_rank, int rank, Variables& variables) {
  if (!enabled()) return absl::OkStatus();
  const std::string folder = absl::StrCat(round_folder_, "/", local_rank);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat("cannot create the folder ", folder, " for metrics: ", error.message()));
  }
  MutexLock lock(state_->mutex);
  state_->workers.push_back({rank, folder});
  variables.emplace_back("GRADWIRE_METRICS_ADDRESS", absl::StrCat("unix:", folder, "/"));
  return absl::OkStatus();
}

void JobMetrics::end_round() {
  {
    MutexLock lock(state_->mutex);
    state_->workers.clear();
  }
  std::error_code ignored;
  if (!round_folder_.empty()) std::filesystem::remove_all(round_folder_, ignored);
}

std::string JobMetrics::text() const { return text_of(*state_, options_.limit); }

std::string JobMetrics::text_of(State& state, absl::Duration limit) {
  metrics::Samples samples;
  for (const Text& worker : texts_of_workers(state, limit))
    samples.add_text(worker.text, {"rank", absl::StrCat(worker.rank)});
  add_own(state, samples);
  return samples.text();
}

std::vector<JobMetrics::Text> JobMetrics::texts() const {
  std::vector<Text> texts = texts_of_workers(*state_, options_.limit);
  metrics::Samples own;
  add_own(*state_, own);
  texts.push_back({.text = own.text(), .since = state_->since});
  return texts;
}

// A worker that has not started its agent yet, or has ended it, has no socket, and does not count as a
// failure. One that does not answer does.
std::vector<JobMetrics::Text> JobMetrics::texts_of_workers(State& state, absl::Duration limit) {
  std::vector<WorkerSockets> workers;
  absl::Time since;
  {
    MutexLock lock(state.mutex);
    workers = state.workers;
    since = state.round_since;
  }
  std::vector<std::string> paths;
  std::vector<int> ranks;
  for (const WorkerSockets& worker : workers) {
    for (std::string& path : sockets_in(worker.folder)) {
      paths.push_back(std::move(path));
      ranks.push_back(worker.rank);
    }
  }
  std::vector<Text> texts;
  std::vector<absl::StatusOr<std::string>> answers = scrape(paths, limit);
  for (std::size_t i = 0; i < answers.size(); ++i) {
    if (answers[i].ok()) {
      texts.push_back({.rank = ranks[i], .text = *std::move(answers[i]), .since = since});
    } else if (!absl::IsUnavailable(answers[i].status())) {
      state.failures.add();
    }
  }
  return texts;
}

void JobMetrics::add_own(State& state, metrics::Samples& samples) {
  uint64_t workers = 0;
  {
    MutexLock lock(state.mutex);
    workers = state.workers.size();
  }
  samples.add(Metric::kLaunchRestarts, {}, static_cast<uint64_t>(state.restarts.value()));
  samples.add(Metric::kLaunchRounds, {}, static_cast<uint64_t>(state.rounds.value()));
  samples.add(Metric::kLaunchWorkers, {}, workers);
  samples.add(Metric::kLaunchScrapeFailures, {}, state.failures.value());
  state.registry->collect(samples);
}

}  // namespace gradwire::tools
