#include "gradwire/tools/inspect/trace/profiler_trace.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/io/descriptor.h"

namespace gradwire::inspect {
namespace {

constexpr off_t kMaxFile = off_t{512} << 20;
constexpr std::size_t kMaxText = 256;
constexpr int kMaxDepth = 32;
// Times in nanoseconds are below this, so that sums do not overflow.
constexpr double kMaxTime = 2e18;
// An earlier time is not one of the wall clock.
constexpr int64_t kEarliest = int64_t{1'000'000'000} * 1'000'000'000;

// Receives the values of the file one after the other, so nothing but the events is kept:
//   {"baseTimeNanoseconds": N, "traceEvents": [{"ph": "X", "name": ..., "ts": ..., "dur": ..., ...}, ...],
//   ...}
// Times are microseconds since the base, which is 0 if it is missing. The base may follow the events.
class Reader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Reader(std::size_t most) : most_(most) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t value) override { return number(static_cast<double>(value), value); }
  bool number_unsigned(number_unsigned_t value) override {
    return number(static_cast<double>(value), static_cast<int64_t>(std::min<uint64_t>(value, INT64_MAX)));
  }
  bool number_float(number_float_t value, const string_t&) override { return number(value, std::nullopt); }
  bool string(string_t& value) override {
    if (depth_ != kEventDepth || !in_events_) return true;
    if (key_ == "name") event_.name = clean(value);
    if (key_ == "ph") complete_ = value == "X";
    return true;
  }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override {
    if (++depth_ == kEventDepth && in_events_) {
      event_ = Profile::Event();
      complete_ = false;
      ts_ = dur_ = std::nullopt;
      process_ = thread_ = std::nullopt;
    }
    return depth_ <= kMaxDepth;
  }
  bool key(string_t& value) override {
    // Longer keys are of no interest.
    key_ = value.substr(0, kMaxText);
    if (depth_ == 1) in_events_ = false;
    return true;
  }
  bool end_object() override {
    if (depth_-- == kEventDepth && in_events_) end_event();
    return true;
  }
  bool start_array(std::size_t) override {
    if (++depth_ == 2 && key_ == "traceEvents") in_events_ = true;
    return depth_ <= kMaxDepth;
  }
  bool end_array() override {
    if (depth_-- == 2) in_events_ = false;
    return true;
  }
  bool parse_error(std::size_t place, const std::string&, const nlohmann::detail::exception&) override {
    error_ = absl::StrCat("it is not valid JSON at byte ", place);
    return false;
  }

  const std::string& error() const { return error_; }
  // With absolute times. Call once.
  Profile take() {
    Profile profile{.events = {}, .dropped = dropped_};
    for (auto& [event, ts, dur] : found_) {
      const double begin = ts * 1000 + static_cast<double>(base_);
      if (!(begin >= static_cast<double>(kEarliest)) || !(begin < kMaxTime)) {
        ++profile.dropped;
        continue;
      }
      // The sum as an integer: a double has not enough digits for it.
      event.begin = base_ + static_cast<int64_t>(std::llround(ts * 1000));
      event.end = event.begin + static_cast<int64_t>(std::llround(dur * 1000));
      profile.events.push_back(std::move(event));
    }
    return profile;
  }

 private:
  // An event is an object in an array in an object.
  static constexpr int kEventDepth = 3;

  bool number(double value, std::optional<int64_t> whole) {
    if (depth_ == 1 && key_ == "baseTimeNanoseconds" && whole && *whole >= 0 && value < kMaxTime)
      base_ = *whole;
    if (depth_ != kEventDepth || !in_events_) return true;
    if (key_ == "ts") ts_ = value;
    if (key_ == "dur") dur_ = value;
    if (key_ == "pid") process_ = whole;
    if (key_ == "tid") thread_ = whole;
    return true;
  }
  // Others than complete ones with a process are marks and names.
  void end_event() {
    if (!complete_ || !ts_ || !process_) return;
    const bool good = std::abs(*ts_) < kMaxTime / 1000 && dur_ && *dur_ >= 0 && *dur_ < kMaxTime / 1000;
    if (!good || found_.size() >= most_) {
      ++dropped_;
      return;
    }
    event_.process = *process_;
    event_.thread = thread_.value_or(0);
    found_.push_back({std::move(event_), *ts_, *dur_});
  }
  static std::string clean(const std::string& text) {
    std::string clean = text.substr(0, kMaxText);
    for (char& c : clean) {
      if (c < 0x20 || c > 0x7e) c = '?';
    }
    return clean;
  }

  struct Found {
    Profile::Event event;
    double ts = 0;
    double dur = 0;
  };
  const std::size_t most_;
  int depth_ = 0;
  bool in_events_ = false;
  std::string key_;
  Profile::Event event_;
  bool complete_ = false;
  std::optional<double> ts_, dur_;
  std::optional<int64_t> process_, thread_;
  int64_t base_ = 0;
  std::vector<Found> found_;
  uint64_t dropped_ = 0;
  std::string error_;
};

// The index of the worker that recorded the profile.
absl::StatusOr<std::size_t> find_worker(const Profile& profile, const std::string& name,
                                        const std::vector<WorkerTrace>& workers) {
  std::set<int64_t> processes;
  for (const Profile::Event& event : profile.events) processes.insert(event.process);
  std::vector<std::size_t> named, recorded;
  for (std::size_t i = 0; i < workers.size(); ++i) {
    if (!name.empty() && workers[i].name != name) continue;
    named.push_back(i);
    if (processes.contains(workers[i].process)) recorded.push_back(i);
  }
  if (named.size() == 1) return named[0];
  if (named.empty()) {
    return absl::NotFoundError(
        absl::StrCat("no worker of the trace has the name \"", absl::CHexEscape(name), "\""));
  }
  if (recorded.size() == 1) return recorded[0];
  return absl::InvalidArgumentError(absl::StrCat(
      named.size(), " workers of the trace may have recorded the profile, and its process ids fit ",
      recorded.size(), " of them; give --profiler=WORKER=FILE"));
}

}  // namespace

absl::StatusOr<Profile> parse_profile(absl::string_view text, std::size_t most) {
  Reader reader(most);
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &reader)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot read the profile: ", reader.error().empty()
                                         ? absl::StrCat("it is nested more than ", kMaxDepth, " deep")
                                         : reader.error()));
  }
  Profile profile = reader.take();
  if (profile.events.empty()) {
    return absl::InvalidArgumentError(
        "the profile has no events with absolute times; save it by ProfilerResult::save() or "
        "export_chrome_trace(), and not by the legacy profiler");
  }
  return profile;
}

absl::StatusOr<Profile> read_profile(const std::string& path) {
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return errno_status(absl::StrCat("cannot open ", path), errno);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode))
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  if (info.st_size > kMaxFile)
    return absl::InvalidArgumentError(absl::StrCat(path, " is larger than 512 MiB"));
  std::string text(static_cast<std::size_t>(info.st_size), '\0');
  std::size_t have = 0;
  while (have < text.size()) {
    const ssize_t got = ::read(fd.get(), text.data() + have, text.size() - have);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    have += static_cast<std::size_t>(got);
  }
  text.resize(have);
  absl::StatusOr<Profile> profile = parse_profile(text);
  return profile.ok() ? std::move(profile) : with_context(profile.status(), path);
}

absl::Status add_profile(const Profile& profile, const std::string& worker,
                         std::vector<WorkerTrace>& workers) {
  GRADWIRE_ASSIGN_OR_RETURN(const std::size_t index, find_worker(profile, worker, workers));
  WorkerTrace& trace = workers[index];
  if (trace.wall_ahead == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("the flight record of \"", trace.name, "\" does not say how its clock runs"));
  }
  // Threads of the process, and streams of devices, which may have the same numbers.
  std::map<std::pair<int64_t, int64_t>, uint64_t> threads;
  for (const Profile::Event& event : profile.events) {
    const auto [found, is_new] =
        threads.try_emplace({event.process, event.thread}, trace.thread_names.size() + threads.size());
    const uint64_t thread = found->second;
    TraceSpan span;
    span.kind = SpanKind::kOperator;
    span.name = event.name;
    span.result = "OK";
    span.begin = span.ran = event.begin - trace.wall_ahead;
    span.end = event.end - trace.wall_ahead;
    span.thread = thread;
    trace.spans.push_back(std::move(span));
  }
  for (const auto& [place, thread] : threads) {
    trace.thread_names[thread] =
        place.first == trace.process
            ? absl::StrCat("thread ", place.second)
            : absl::StrCat("process or device ", place.first, ", stream ", place.second);
  }
  trace.damaged += profile.dropped;
  return absl::OkStatus();
}

}  // namespace gradwire::inspect
