#include "gradwire/tests/chaos/call_log.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "gradwire/base/error.h"

namespace chaos {
namespace {

std::atomic<uint64_t> next_id{1};

void write_line(int descriptor, const std::string& line) {
  // One write, so that lines of several threads stay whole.
  if (::write(descriptor, line.data(), line.size()) != static_cast<ssize_t>(line.size())) std::abort();
}

}  // namespace

int64_t monotonic_us() {
  timespec now = {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000000 + now.tv_nsec / 1000;
}

CallLog& CallLog::instance() {
  static auto* const log = new CallLog;
  return *log;
}

void CallLog::open(const std::string& path) {
  descriptor_ = ::open(path.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
  if (descriptor_ < 0) std::abort();
}

uint64_t CallLog::begin(const std::string& operation, const std::vector<int>& path, absl::Duration timeout) {
  const uint64_t id = next_id.fetch_add(1);
  const int64_t now = monotonic_us();
  write_line(descriptor_, absl::StrCat("B\t", id, "\t", operation, "\t", absl::StrJoin(path, ","), "\t", now,
                                       "\t", now + absl::ToInt64Microseconds(timeout), "\n"));
  return id;
}

void CallLog::end(uint64_t id, const absl::Status& status) {
  const std::string message = absl::StrReplaceAll(status.message(), {{"\n", " "}, {"\t", " "}});
  write_line(descriptor_, absl::StrCat("E\t", id, "\t", monotonic_us(), "\t", static_cast<int>(status.code()),
                                       "\t", gradwire::worker_of(status), "\t", message, "\n"));
}

void CallLog::note(const std::string& name, int64_t figure) {
  write_line(descriptor_, absl::StrCat("N\t", name, "\t", figure, "\n"));
}

int64_t read_figure(const std::string& path, const std::string& name) {
  int64_t sum = 0;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> fields = absl::StrSplit(line, '\t');
    int64_t figure = 0;
    if (fields.size() == 3 && fields[0] == "N" && fields[1] == name && absl::SimpleAtoi(fields[2], &figure))
      sum += figure;
  }
  return sum;
}

std::vector<CallRecord> read_call_log(const std::string& path) {
  std::map<uint64_t, CallRecord> records;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> fields = absl::StrSplit(line, '\t');
    uint64_t id = 0;
    if (fields.size() != 6 || !absl::SimpleAtoi(fields[1], &id)) continue;
    CallRecord& record = records[id];
    record.id = id;
    if (fields[0] == "B") {
      record.operation = fields[2];
      for (absl::string_view worker : absl::StrSplit(fields[3], ',')) {
        if (int number = -1; absl::SimpleAtoi(worker, &number)) record.path.push_back(number);
      }
      (void)absl::SimpleAtoi(fields[4], &record.start_us);
      (void)absl::SimpleAtoi(fields[5], &record.deadline_us);
    } else {
      int code = 0;
      (void)absl::SimpleAtoi(fields[2], &record.end_us);
      (void)absl::SimpleAtoi(fields[3], &code);
      record.code = static_cast<absl::StatusCode>(code);
      record.worker = fields[4];
      record.message = fields[5];
    }
  }
  std::vector<CallRecord> calls;
  for (auto& [id, record] : records) calls.push_back(std::move(record));
  return calls;
}

}  // namespace chaos
