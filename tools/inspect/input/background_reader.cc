#include "gradwire/tools/inspect/input/background_reader.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/process/start_thread.h"
#include "gradwire/tools/inspect/analysis/analysis.h"

namespace gradwire::inspect {

BackgroundReader::BackgroundReader(const Options& options, OnReading on_reading)
    : options_(options),
      on_reading_(std::move(on_reading)),
      store_(options.place.store),
      thread_(value_or_throw(start_thread("inspect", [this] { run(); }))) {}

BackgroundReader::~BackgroundReader() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void BackgroundReader::latest(Report& report, std::string& status) {
  MutexLock lock(mutex_);
  if (newest_ != nullptr) report = std::move(*std::exchange(newest_, nullptr));
  status = status_;
}

void BackgroundReader::set_store(const std::string& store) {
  MutexLock lock(mutex_);
  store_ = store;
  changed_.notify_all();
}

std::string BackgroundReader::read(const JobPlace& place, std::unique_ptr<JobReader>& reader, JobView& before,
                                   std::unique_ptr<Report>& report) {
  if (place.store.empty()) return "the workers of the job have not been started";
  if (reader == nullptr) {
    absl::StatusOr<std::unique_ptr<JobReader>> opened = JobReader::open(place);
    if (!opened.ok()) return std::string(opened.status().message());
    reader = *std::move(opened);
  }
  std::string warning;
  absl::StatusOr<JobView> now = reader->read(warning);
  if (!now.ok()) return std::string(now.status().message());
  report = std::make_unique<Report>();
  report->rates = compare(before, *now);
  report->findings = analyze(*now, options_.thresholds);
  report->job = *now;
  before = *std::move(now);
  return warning;
}

void BackgroundReader::run() {
  JobPlace place = options_.place;
  std::unique_ptr<JobReader> reader;
  JobView before;
  while (true) {
    const absl::Time next = Clock::system().now() + options_.interval;
    std::unique_ptr<Report> report;
    std::string status = read(place, reader, before, report);
    if (on_reading_) on_reading_(report.get(), status);
    MutexLock lock(mutex_);
    status_ = std::move(status);
    if (report != nullptr) newest_ = std::move(report);
    while (!stopping_ && store_ == place.store && Clock::system().now() < next)
      changed_.wait_for(mutex_, next - Clock::system().now());
    if (stopping_) return;
    if (store_ == place.store) continue;
    place.store = store_;
    reader = nullptr;
  }
}

}  // namespace gradwire::inspect
