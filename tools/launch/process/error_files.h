#pragma once

#include <cstdint>
#include <string>

namespace gradwire::tools {

// Where the workers of this node leave what they die of (tools/launch/process/error_file.h): beside their logs, or in a
// temporary directory that goes with the object. One thread.
class ErrorFiles {
 public:
  ErrorFiles() = default;
  ~ErrorFiles();
  ErrorFiles(const ErrorFiles&) = delete;
  ErrorFiles& operator=(const ErrorFiles&) = delete;

  // `log_directory`: the run's; empty: it has none.
  void prepare(const std::string& log_directory);

  // Empty where nothing can be written: then a worker's last words are only in its log.
  std::string path(int64_t round, int local_rank) const;

 private:
  std::string directory_;
  bool temporary_ = false;
};

}  // namespace gradwire::tools
