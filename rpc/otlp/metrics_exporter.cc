#include "gradwire/rpc/otlp/metrics_exporter.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/log.h"
#include "gradwire/base/process/start_thread.h"
#include "gradwire/base/random_id.h"
#include "gradwire/rpc/otlp/otlp_reader.h"

namespace gradwire::rpc {
namespace {

using metrics::Metric;

// A collector that accepts one export and rejects the next one must not fill the log.
constexpr absl::Duration kWarningInterval = absl::Minutes(1);

// A random number in [0, 1).
double chance() { return static_cast<double>(random_id() >> 11) / static_cast<double>(uint64_t{1} << 53); }

}  // namespace

MetricsExporter::MetricsExporter(Setup setup)
    : setup_(std::move(setup)),
      client_(setup_.options),
      schedule_(setup_.options.interval),
      thread_(value_or_throw(start_thread("otlp-export", [this] { run(); }))) {}

MetricsExporter::~MetricsExporter() { stop(); }

// The thread may send again only after the export in progress was cancelled: a cancel() that comes later
// would end the last export.
void MetricsExporter::begin_stop() {
  {
    MutexLock lock(mutex_);
    if (std::exchange(stopping_, true)) return;
    last_deadline_ = Clock::system().now() + setup_.options.timeout;
    changed_.notify_all();
  }
  client_.cancel();
  MutexLock lock(mutex_);
  cancelled_ = true;
  changed_.notify_all();
}

bool MetricsExporter::stop_within(absl::Duration wait) {
  begin_stop();
  Clock& clock = Clock::system();
  const absl::Time until = clock.now() + wait;
  {
    MutexLock lock(mutex_);
    while (!ended_ && clock.now() < until) clock.wait_until(mutex_, changed_, until);
    if (!ended_) return false;
  }
  MutexLock lock(joining_);
  if (thread_.joinable()) thread_.join();
  return true;
}

void MetricsExporter::abandon() {
  begin_stop();
  {
    MutexLock lock(mutex_);
    abandoned_ = true;
  }
  // The last export has begun, or never will (export_last()).
  client_.cancel();
  stop();
}

void MetricsExporter::run() {
  const LogWorkerScope scope(setup_.worker);
  Clock& clock = Clock::system();
  absl::Time next = clock.now() + schedule_.first(chance());
  while (wait_until(next)) {
    const absl::Time begun = clock.now();
    const Outcome outcome = export_all(begun + setup_.options.timeout);
    if (outcome.result == Result::kFailed) {
      // An export that stop() has ended is not a failure.
      MutexLock lock(mutex_);
      if (stopping_) break;
    }
    const absl::Duration pause = schedule_.after(outcome.result != Result::kFailed, chance());
    next = std::max(clock.now(), begun + pause);
    count(outcome);
    report(outcome, pause);
  }
  export_last();
  MutexLock lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

void MetricsExporter::export_last() {
  absl::Time deadline;
  bool abandoned = false;
  {
    MutexLock lock(mutex_);
    while (!cancelled_) changed_.wait(mutex_);
    deadline = last_deadline_;
    abandoned = abandoned_;
    // With the lock, so that the cancel() of abandon() comes later.
    if (!abandoned) client_.resume();
  }
  const Outcome outcome = abandoned
                              ? Outcome{.result = Result::kFailed, .reason = "the process had to end at once"}
                              : export_all(deadline);
  count(outcome);
  report(outcome, absl::InfiniteDuration());
}

bool MetricsExporter::wait_until(absl::Time time) {
  Clock& clock = Clock::system();
  MutexLock lock(mutex_);
  while (!stopping_ && clock.now() < time) clock.wait_until(mutex_, changed_, time);
  return !stopping_;
}

MetricsExporter::Outcome MetricsExporter::export_all(absl::Time deadline) {
  std::vector<MetricsText> texts = setup_.source();
  OtlpReader reader(std::move(texts), setup_.options.attributes, absl::Now());
  proto::otlp::ExportMetricsServiceRequest request;
  Outcome outcome;
  while (reader.next(request)) {
    const CollectorClient::Answer answer = client_.send(request, deadline - Clock::system().now());
    if (!answer.status.ok()) {
      outcome.result = Result::kFailed;
      outcome.reason = answer.status.ToString();
      return outcome;
    }
    outcome.rejected += answer.rejected;
    if (!answer.reason.empty()) outcome.reason = answer.reason;
  }
  if (outcome.rejected > 0) outcome.result = Result::kPartial;
  return outcome;
}

void MetricsExporter::count(const Outcome& outcome) {
  if (setup_.registry == nullptr) return;
  const char* const result = outcome.result == Result::kOk        ? "ok"
                             : outcome.result == Result::kPartial ? "partial"
                                                                  : "failed";
  setup_.registry->counter(Metric::kOtlpExports, {result}).add();
  setup_.registry->counter(Metric::kOtlpRejectedPoints).add(outcome.rejected);
}

void MetricsExporter::report(const Outcome& outcome, absl::Duration pause) {
  const std::string where = absl::StrCat("the OpenTelemetry collector at ", setup_.options.address);
  const Result last = std::exchange(last_, outcome.result);
  failures_ += outcome.result == Result::kFailed ? 1 : 0;
  if (outcome.result == last) return;
  if (last == Result::kFailed) {
    log(LogLevel::kInfo, "metrics are exported to ", where, " again, after ", failures_, " failed exports");
    failures_ = 0;
  }
  const absl::Time now = Clock::system().now();
  if (outcome.result == Result::kOk || now - last_warning_ < kWarningInterval) return;
  last_warning_ = now;
  if (outcome.result == Result::kPartial) {
    log(LogLevel::kWarning, where, " rejected ", outcome.rejected, " values: ", outcome.reason,
        "; the others were accepted; see its log, and gradwire_otlp_rejected_points_total");
  } else if (pause == absl::InfiniteDuration()) {
    log(LogLevel::kWarning, "cannot export the last metrics to ", where, ": ", outcome.reason);
  } else {
    log(LogLevel::kWarning, "cannot export metrics to ", where, ": ", outcome.reason, "; trying again in ",
        absl::FormatDuration(absl::Trunc(pause, absl::Milliseconds(1))),
        ", and then less often; check the endpoint, its certificate and the headers");
  }
}

}  // namespace gradwire::rpc
