#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "gradwire/base/mutex.h"
#include "gradwire/tools/inspect/input/options.h"
#include "gradwire/tools/inspect/view/report.h"

namespace gradwire::inspect {

// Reads a job again and again on a thread of its own, so that the live view answers keys while a worker does
// not answer. If the job cannot be reached, it tries again. Thread-safe. The destructor returns when the
// reading that is under way has ended, which takes at most a few times JobPlace::timeout.
class BackgroundReader {
 public:
  // Is called on the reader's thread after each reading, with the report, or nullptr if the job could not be
  // read, and with what is wrong with the reading, if anything.
  using OnReading = std::function<void(const Report* report, const std::string& status)>;

  // If `options` name no store, nothing is read before set_store().
  explicit BackgroundReader(const Options& options, OnReading on_reading = {});
  ~BackgroundReader();
  BackgroundReader(const BackgroundReader&) = delete;
  BackgroundReader& operator=(const BackgroundReader&) = delete;

  // Replaces `report` if there is a newer one, and `status` by what is wrong with the reading, if anything.
  void latest(Report& report, std::string& status);
  // The job has its store at another address from now on. Does not wait.
  void set_store(const std::string& store);

 private:
  void run();
  // Reads once. Returns what is wrong; empty if nothing is. `report`: nullptr if nothing was read.
  std::string read(const JobPlace& place, std::unique_ptr<JobReader>& reader, JobView& before,
                   std::unique_ptr<Report>& report);

  const Options options_;
  const OnReading on_reading_;

  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::string store_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Report> newest_ ABSL_GUARDED_BY(mutex_);
  std::string status_ ABSL_GUARDED_BY(mutex_) = "connecting";
  std::thread thread_;
};

}  // namespace gradwire::inspect
