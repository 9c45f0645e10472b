#include "gradwire/tools/launch/metrics/job_metrics.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/metrics/families.h"
#include "gradwire/base/metrics/samples.h"
#include "gradwire/tools/launch/metrics/scrape.h"

namespace gradwire::tools {
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
