#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/base/metrics/registry.h"
#include "gradwire/base/mutex.h"
#include "gradwire/rpc/otlp/collector_client.h"
#include "gradwire/rpc/otlp/collector_options.h"
#include "gradwire/rpc/otlp/export_schedule.h"
#include "gradwire/rpc/otlp/metrics_text.h"

namespace gradwire::rpc {

// Pushes metrics to an OpenTelemetry collector once in an interval, and a last time when it stops. A failed
// export is not repeated: the next one has the same counters, which only grow. The first of several failures
// is logged, with a second line when exports succeed again; all are counted (gradwire_otlp_exports_total).
// While exports fail they become rarer (ExportSchedule).
//
// One thread does all work and sleeps otherwise. Several exporters in one process know nothing of each other.
// Thread-safe.
class MetricsExporter {
 public:
  struct Setup {
    CollectorOptions options;
    // Must not wait longer than the user wants to wait in stop().
    MetricsSource source;
    // Counts the exports. nullptr: they are not counted.
    std::shared_ptr<metrics::Registry> registry;
    // The worker for whom it works, for the log; may be empty.
    std::string worker;
  };
  // Starts the thread. It needs no collector: without one, exports fail.
  explicit MetricsExporter(Setup setup);
  // As stop().
  ~MetricsExporter();
  MetricsExporter(const MetricsExporter&) = delete;
  MetricsExporter& operator=(const MetricsExporter&) = delete;

  // Ends the export in progress, exports a last time, and joins the thread. Takes as long as the source, and
  // at most the timeout of the options for the collector. Idempotent. Must not be called by the source.
  void stop() { (void)stop_within(absl::InfiniteDuration()); }
  // As stop(), but returns after `wait` at the latest. Returns whether the thread has been joined. If not,
  // the last export goes on.
  bool stop_within(absl::Duration wait);
  // As stop(), but without waiting for the collector: the last export is ended, or left out. Takes as long as
  // the source, if that is being asked. Idempotent.
  void abandon();

 private:
  enum class Result : uint8_t { kNone, kOk, kPartial, kFailed };
  struct Outcome {
    Result result = Result::kOk;
    // The error, or the reason that the collector gave.
    std::string reason;
    uint64_t rejected = 0;
  };

  // Begins to stop. Only the first call does something.
  void begin_stop();
  void run();
  void export_last();
  // Waits until that time on Clock::system(). False if the exporter stops.
  bool wait_until(absl::Time time);
  // Sends all metrics until the deadline on Clock::system().
  Outcome export_all(absl::Time deadline);
  void count(const Outcome& outcome);
  void report(const Outcome& outcome, absl::Duration pause);

  const Setup setup_;
  CollectorClient client_;
  // Used by the thread alone.
  ExportSchedule schedule_;
  Result last_ = Result::kNone;
  uint64_t failures_ = 0;
  absl::Time last_warning_ = absl::InfinitePast();

  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // Whether stop() has ended the export in progress.
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  // When the last export ends; set with `stopping_`.
  absl::Time last_deadline_ ABSL_GUARDED_BY(mutex_);
  // Whether abandon() was called.
  bool abandoned_ ABSL_GUARDED_BY(mutex_) = false;
  // Whether the thread will do nothing more.
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  Mutex joining_;
  std::thread thread_ ABSL_GUARDED_BY(joining_);
};

}  // namespace gradwire::rpc
