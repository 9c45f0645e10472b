#include "gradwire/tools/launch/job/outputs.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/testing/test_needs.h"
#include "gradwire/tools/launch/io/fd.h"

namespace gradwire::tools {
namespace {

// A fixture that redirects the test's standard error to a file, from which printed() reads the launcher's
// lines.
class Outputs : public ::testing::Test {
 protected:
  Outputs() : loop_(*FdLoop::create()), path_(::testing::TempDir() + "/outputs.err") {
    fflush(stderr);
    saved_ = Descriptor(dup(STDERR_FILENO));
    FILE* file = fopen(path_.c_str(), "w");
    dup2(fileno(file), STDERR_FILENO);
    fclose(file);
    options_.log_dir = ::testing::TempDir();
    options_.nproc_per_node = 2;
    options_.roles = {{"a", 2}};
    options_.streams.redirects = *StreamSpec::parse("1");
  }
  ~Outputs() override { dup2(saved_.get(), STDERR_FILENO); }

  std::string printed() const {
    std::ifstream file(path_);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }

  FdLoop loop_;
  LaunchOptions options_;
  std::string path_;
  Descriptor saved_;
};

absl::StatusOr<Pipe> no_terminal() { return absl::UnavailableError("none here"); }

TEST_F(Outputs, WithoutTerminalsWarnsOnceAndWritesTheFile) {
  WorkerOutputs outputs(loop_, options_, &no_terminal);
  ASSERT_TRUE(outputs.prepare("no_terminal").ok());
  for (int rank = 0; rank < 2; ++rank) {
    absl::StatusOr<WorkerStreams> streams = outputs.open(0, {.local_rank = rank});
    ASSERT_TRUE(streams.ok()) << streams.status();
    EXPECT_FALSE(streams->terminal);
    ASSERT_TRUE(streams->out.valid());
    EXPECT_FALSE(isatty(streams->out.get()));
    ASSERT_TRUE(write_all(streams->out.get(), "text\n"));
    std::ifstream file(absl::StrCat(outputs.directory(), "/attempt_0/", rank, "/stdout.log"));
    std::string line;
    EXPECT_TRUE(std::getline(file, line) && line == "text") << line;
  }
  const std::string text = printed();
  EXPECT_TRUE(absl::StrContains(text, "none here")) << text;
  EXPECT_EQ(text.find("none here"), text.rfind("none here")) << text;
}

TEST_F(Outputs, WithoutLogsErrorFilesAreInATemporaryDirectory) {
  options_.streams.redirects = {};
  std::string directory;
  {
    WorkerOutputs outputs(loop_, options_);
    ASSERT_TRUE(outputs.prepare("no_logs").ok());
    const std::string path = outputs.error_file(0, 1);
    EXPECT_TRUE(absl::EndsWith(path, "/attempt_0/1/error.json")) << path;
    EXPECT_TRUE(std::ofstream(path) << "{}") << path;
    directory = outputs.directory();
    EXPECT_TRUE(std::filesystem::exists(directory));
  }
  EXPECT_FALSE(std::filesystem::exists(directory)) << directory;
}

TEST_F(Outputs, ErrorFilesAreBesideLogsAndAreKept) {
  std::string path;
  {
    WorkerOutputs outputs(loop_, options_);
    ASSERT_TRUE(outputs.prepare("logs").ok());
    path = outputs.error_file(0, 1);
    EXPECT_EQ(path, absl::StrCat(outputs.directory(), "/attempt_0/1/error.json"));
    EXPECT_TRUE(std::ofstream(path) << "{}") << path;
  }
  EXPECT_TRUE(std::filesystem::exists(path)) << path;
}

// Whatever the umask is.
TEST_F(Outputs, DirectoriesAndLogsAreForTheirOwnerAlone) {
  const mode_t before = umask(0);
  options_.log_dir = absl::StrCat(options_.log_dir, "/new//deeper");
  WorkerOutputs outputs(loop_, options_);
  ASSERT_TRUE(outputs.prepare("private").ok());
  ASSERT_TRUE(outputs.open(0, {.local_rank = 0}).ok());
  umask(before);
  const auto mode = [](const std::string& path) {
    struct stat about {};
    EXPECT_EQ(stat(path.c_str(), &about), 0) << path;
    return about.st_mode & 07777;
  };
  const std::string attempt = outputs.directory() + "/attempt_0";
  for (const std::string& directory : {options_.log_dir, outputs.directory(), attempt, attempt + "/0"})
    EXPECT_EQ(mode(directory), 0700) << directory;
  EXPECT_EQ(mode(attempt + "/0/stdout.log"), 0600);
}

TEST_F(Outputs, LineBufferedFalseAsksForNoTerminal) {
  options_.line_buffered = false;
  WorkerOutputs outputs(loop_, options_, []() -> absl::StatusOr<Pipe> {
    ADD_FAILURE() << "asked for a terminal";
    return make_terminal();
  });
  ASSERT_TRUE(outputs.prepare("not_wanted").ok());
  absl::StatusOr<WorkerStreams> streams = outputs.open(0, {.local_rank = 0});
  ASSERT_TRUE(streams.ok()) << streams.status();
  EXPECT_FALSE(streams->terminal);
}

TEST_F(Outputs, StandardOutputIsATerminalAndStandardErrorTheLaunchersOwn) {
  GRADWIRE_NEEDS("pseudo_terminals", test_needs::pseudo_terminals());
  WorkerOutputs outputs(loop_, options_);
  ASSERT_TRUE(outputs.prepare("terminal").ok());
  absl::StatusOr<WorkerStreams> streams = outputs.open(0, {.local_rank = 1});
  ASSERT_TRUE(streams.ok()) << streams.status();
  EXPECT_TRUE(streams->terminal);
  EXPECT_TRUE(isatty(streams->out.get()));
  EXPECT_FALSE(streams->err.valid());
}

}  // namespace
}  // namespace gradwire::tools
