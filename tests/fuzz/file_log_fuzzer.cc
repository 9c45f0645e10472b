// Reads the input as the file of a FileStore (store/file/file_log.h).

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/stable_hash.h"
#include "gradwire/store/file/file_log.h"
#include "gradwire/tests/fuzz/fuzzing.h"

namespace {

using gradwire::Clock;
using gradwire::fuzzing::number_at;
using gradwire::fuzzing::require;
using gradwire::store::FileLog;

// The keys and values of a multi_set, and 5 bytes for the length of each of 65,536 keys and values.
constexpr uint64_t kMaxBodyBytes =
    (uint64_t{64} << 20) + (uint64_t{64} << 10) + 2 * 5 * (uint64_t{64} << 10) + 256;

// Returns the bodies of the records; nullopt if the file is damaged. `whole` is set to the end of the last
// complete record.
std::optional<std::vector<std::string>> expected(const std::string& file, std::size_t& whole) {
  std::vector<std::string> bodies;
  whole = 16;
  while (file.size() >= whole + 16) {
    const uint64_t size = number_at(file.data() + whole, 8);
    const uint64_t sum = number_at(file.data() + whole + 8, 8);
    const std::size_t remaining = file.size() - whole - 16;
    if (size > kMaxBodyBytes) return std::nullopt;
    if (size > remaining) break;
    const std::string body = file.substr(whole + 16, size);
    if (gradwire::stable_hash(body) != sum) {
      if (size == remaining) break;
      return std::nullopt;
    }
    bodies.push_back(body);
    whole += 16 + size;
  }
  return bodies;
}

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  const char* const folder = std::getenv("TEST_TMPDIR");
  const std::string path = absl::StrCat(folder != nullptr ? folder : "/tmp", "/file_log_fuzzer_", ::getpid());
  const std::string file(reinterpret_cast<const char*>(data), size);
  std::ofstream(path, std::ios::binary) << file;
  const absl::Time deadline = Clock::system().now() + absl::Seconds(60);
  {
    FileLog log;
    const absl::Status opened = log.open(path, Clock::system(), deadline);
    const std::string magic = "gradwire store 1";
    const bool is_store = file.substr(0, 16) == magic.substr(0, file.size());
    require(opened.ok() == is_store, "a file is accepted or refused wrongly");
    if (!is_store) {
      require(absl::IsInvalidArgument(opened), "an error that is not InvalidArgument");
      require(contents(path) == file, "a foreign file was changed");
    } else {
      std::size_t whole = 16;
      const auto bodies = expected(file.size() < 16 ? magic : file, whole);
      const absl::StatusOr<std::vector<std::string>> read = log.read();
      require(read.ok() == bodies.has_value(), "a log is accepted or refused wrongly");
      if (read.ok()) {
        require(*read == *bodies, "wrong records");
        require(log.has_torn_tail() == (file.size() > whole), "a torn tail is detected wrongly");
        require(log.append("new").ok() && contents(path).size() == whole + 16 + 3,
                "the tail was not cut off");
      } else {
        require(contents(path) == file, "a damaged file was changed");
      }
    }
  }
  std::filesystem::remove(path);
  return 0;
}
