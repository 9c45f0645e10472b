#include "gradwire/tools/launch/process/error_file.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"

namespace gradwire::tools {
namespace {

class ErrorFile : public ::testing::Test {
 protected:
  ErrorFile() {
    unlink(path_.c_str());
    setenv("TORCHELASTIC_ERROR_FILE", path_.c_str(), 1);
  }
  ~ErrorFile() override {
    unsetenv("TORCHELASTIC_ERROR_FILE");
    unlink(path_.c_str());
  }

  absl::StatusOr<ErrorRecord> read(const std::string& content) const {
    std::ofstream(path_, std::ios::binary) << content;
    return read_error_file(path_);
  }
  std::string message_of(const std::string& content) const {
    absl::StatusOr<ErrorRecord> record = read(content);
    EXPECT_TRUE(record.ok()) << record.status() << " for " << content;
    return record.ok() ? record->message : "";
  }

  const std::string path_ = absl::StrCat(::testing::TempDir(), "/error.json");
};

TEST_F(ErrorFile, ReadsWhatWasWritten) {
  write_error_file(absl::InvalidArgumentError("shapes [2, 3] and [4]"));
  absl::StatusOr<ErrorRecord> record = read_error_file(path_);
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(record->message, "INVALID_ARGUMENT: shapes [2, 3] and [4]");
  EXPECT_TRUE(record->time.has_value());
}

TEST_F(ErrorFile, LastOneStays) {
  write_error_file(absl::InternalError("first"));
  write_error_file(absl::UnknownError("std::runtime_error: second"));
  EXPECT_EQ(read_error_file(path_)->message, "std::runtime_error: second");
}

TEST_F(ErrorFile, InvalidUtf8IsReplaced) {
  write_error_file(absl::InternalError("a\xff\n\x1b[2Jb"));
  EXPECT_EQ(read_error_file(path_)->message, "INTERNAL: a\xef\xbf\xbd [2Jb");
}

TEST_F(ErrorFile, UnwritablePathIsIgnored) {
  setenv("TORCHELASTIC_ERROR_FILE", absl::StrCat(::testing::TempDir(), "/absent/error.json").c_str(), 1);
  write_error_file(absl::InternalError("x"));
  unsetenv("TORCHELASTIC_ERROR_FILE");
  write_error_file(absl::InternalError("x"));
}

TEST_F(ErrorFile, PythonWorkersFilesAreRead) {
  absl::StatusOr<ErrorRecord> record =
      read(R"({"message": {"message": "ValueError: bad", "extraInfo": {"py_callstack": "Traceback:\n  ...",)"
           R"( "timestamp": "1700000000"}}})");
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(record->message, "ValueError: bad");
  EXPECT_EQ(record->time, absl::FromUnixSeconds(1700000000));
  EXPECT_EQ(message_of(R"({"message": "plain", "errorCode": 3})"), "plain");
}

TEST_F(ErrorFile, MessageBecomesOneCleanShortLine) {
  EXPECT_EQ(message_of(R"({"message": "  a\n\tb \u001b]0;title\u0007 \u0000c\u009b2J\u202ed  "})"),
            "a b ]0;title c 2J d");
  const std::string long_one = message_of(absl::StrCat(R"({"message": ")", std::string(5000, 'x'), "\"}"));
  EXPECT_EQ(long_one.size(), kMaxErrorMessage);
  EXPECT_EQ(long_one.substr(long_one.size() - 4), "x...");
}

TEST_F(ErrorFile, InvalidTimesAreIgnored) {
  for (const char* time : {"\"-1\"", "\"x\"", "\"99999999999999999\"", "17", "null", "{}"}) {
    absl::StatusOr<ErrorRecord> record =
        read(absl::StrCat(R"({"message": {"message": "m", "extraInfo": {"timestamp": )", time, "}}}"));
    ASSERT_TRUE(record.ok()) << record.status();
    EXPECT_FALSE(record->time.has_value()) << time;
  }
  EXPECT_EQ(message_of(R"({"message": {"message": "m", "extraInfo": [1]}})"), "m");
}

TEST_F(ErrorFile, MalformedFileIsInvalid) {
  for (const std::string& content :
       {std::string(), std::string("{"), std::string("[]"), std::string("3"), std::string("{}"),
        std::string(R"({"message": 3})"), std::string(R"({"message": {"message": ["x"]}})"),
        std::string(R"({"message": {}})"), std::string("{\"message\": \"\xff\"}"), std::string(1 << 19, '['),
        absl::StrCat(R"({"message": "m", "x": )", std::string(100, '['), std::string(100, ']'), "}"),
        absl::StrCat(R"({"message": ")", std::string(1 << 20, 'x'), "\"}")}) {
    EXPECT_EQ(read(content).status().code(), absl::StatusCode::kInvalidArgument) << content.substr(0, 60);
  }
}

TEST_F(ErrorFile, SpecialFilesAreNotRead) {
  EXPECT_EQ(read_error_file(path_).status().code(), absl::StatusCode::kNotFound);
  // Opening a FIFO would block the reader.
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(read_error_file(path_).status().code(), absl::StatusCode::kInvalidArgument);
  unlink(path_.c_str());
  ASSERT_EQ(symlink("/etc/passwd", path_.c_str()), 0);
  EXPECT_EQ(read_error_file(path_).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(read_error_file(::testing::TempDir()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(CleanLine, CutsBetweenCharacters) {
  EXPECT_EQ(clean_line("abcdef", 6), "abcdef");
  EXPECT_EQ(clean_line("abcdefg", 6), "abc...");
  EXPECT_EQ(clean_line("ab\xc3\xa4\xc3\xa4\xc3\xa4", 7), "ab\xc3\xa4...");
  EXPECT_EQ(clean_line("ab cdefgh", 6), "ab...");
  EXPECT_EQ(clean_line("abcdef  \n", 6), "abcdef");
  EXPECT_EQ(clean_line("\n\n", 6), "");
  EXPECT_EQ(clean_line("\xc3", 6), "");
  EXPECT_EQ(clean_line("a\xf0\x9f\x98\x80", 6), "a\xf0\x9f\x98\x80");
  EXPECT_EQ(clean_line("a\xe2\x82", 6), "a");
}

}  // namespace
}  // namespace gradwire::tools
