#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// The main function of a test that declares `concurrent = True`. Most cases of such a test wait for a
// timeout, for another process or for a store. So each case runs in a process of its own, several at the same
// time, and the test takes about as long as its longest case.
//
// A process that gets an argument or a part of the cases (a filter, a shard) runs them itself, one after
// another, as every other test does.
namespace {

// The most cases that run at the same time. They hardly use a processor while they wait.
constexpr std::size_t kAtOnce = 8;

std::string environment(const char* name, const char* otherwise = "") {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}

// Lets GoogleTest parse these arguments.
void init_google_test(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "test");
  std::vector<char*> pointers;
  for (std::string& each : arguments) pointers.push_back(each.data());
  int count = static_cast<int>(pointers.size());
  pointers.push_back(nullptr);
  ::testing::InitGoogleTest(&count, pointers.data());
}

void make_folder(const std::string& path) { mkdir(path.c_str(), 0700); }

// A case, in a process of its own. Its standard output and error go to a file.
class Case {
 public:
  // `folder`: an absent folder for its files.
  Case(std::string suite, std::string name, std::string folder)
      : suite_(std::move(suite)), name_(std::move(name)), folder_(std::move(folder)) {}

  // Returns the id of its process, or -1. The process is a copy of this one, which has not started a thread.
  // To execute the program again would take longer than most cases.
  pid_t start() const {
    make_folder(folder_);
    make_folder(temporary());
    const pid_t pid = fork();
    if (pid == 0) std::exit(run());
    return pid;
  }

  void print_output() const {
    std::cout << std::ifstream(output_path()).rdbuf();
    // An empty file sets a bit of failure, after which the stream would ignore all output.
    std::cout.clear();
    std::cout << std::flush;
  }

  // The result as GoogleTest writes it to XML_OUTPUT_FILE, without the outermost element. Nothing if the
  // process ended before it wrote its result.
  std::optional<std::string> result() const {
    std::string inside;
    std::ifstream file(xml_path());
    for (std::string line; std::getline(file, line);) {
      if (line.find("</testsuites>") != std::string::npos) return inside;
      if (line.find("<?xml") == 0 || line.find("<testsuites") != std::string::npos) continue;
      inside += line + "\n";
    }
    return std::nullopt;
  }

  std::string xml() const {
    return result().value_or("  <testsuite name=\"" + suite_ + "\" tests=\"1\" failures=\"1\">\n" +
                             "    <testcase name=\"" + name_ + "\" classname=\"" + suite_ + "\">" +
                             "<failure message=\"the process ended without a result\"/></testcase>\n" +
                             "  </testsuite>\n");
  }

  std::string full_name() const { return suite_ + "." + name_; }

 private:
  // The process of the case. Returns its exit status.
  int run() const {
    const int output = open(output_path().c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    close(output);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    setenv("TEST_TMPDIR", temporary().c_str(), 1);
    unsetenv("TEST_PREMATURE_EXIT_FILE");
    init_google_test({"--gtest_filter=" + full_name(), "--gtest_output=xml:" + xml_path()});
    return RUN_ALL_TESTS();
  }

  std::string temporary() const { return folder_ + "/tmp"; }
  std::string output_path() const { return folder_ + "/output"; }
  std::string xml_path() const { return folder_ + "/result.xml"; }

  const std::string suite_, name_, folder_;
};

bool disabled(std::string_view name) { return name.substr(0, 9) == "DISABLED_"; }

// Writes the suite and the name of each case that is not disabled.
void list_cases(const std::string& path) {
  init_google_test({});
  std::ofstream file(path);
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *all.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const std::string name = suite.GetTestInfo(j)->name();
      if (disabled(suite.name()) || disabled(name)) continue;
      file << suite.name() << " " << name << "\n";
    }
  }
}

// A process can let GoogleTest parse arguments only once. So another one lists the cases.
std::vector<Case> all_cases(const std::string& folder) {
  const std::string path = folder + "/list";
  const pid_t pid = fork();
  if (pid == 0) {
    list_cases(path);
    std::exit(0);
  }
  waitpid(pid, nullptr, 0);
  std::vector<Case> cases;
  std::ifstream file(path);
  for (std::string suite, name; file >> suite >> name;) {
    cases.emplace_back(suite, name, folder + "/" + std::to_string(cases.size()));
  }
  return cases;
}

// Runs the cases. Returns the names of those that failed.
class Runner {
 public:
  explicit Runner(std::vector<Case> cases) : cases_(std::move(cases)) {
    sigemptyset(&signals_);
    for (const int each : {SIGCHLD, SIGTERM, SIGINT}) sigaddset(&signals_, each);
    sigprocmask(SIG_BLOCK, &signals_, nullptr);
  }

  std::vector<std::string> run() {
    std::size_t next = 0;
    while (next < cases_.size() || !running_.empty()) {
      while (next < cases_.size() && running_.size() < kAtOnce) start(cases_[next++]);
      if (running_.empty()) continue;
      int signal = 0;
      sigwait(&signals_, &signal);
      if (signal != SIGCHLD) {
        give_up();
        return failed_;
      }
      collect();
    }
    return failed_;
  }

 private:
  void start(const Case& each) {
    const pid_t pid = each.start();
    if (pid < 0) {
      std::cout << each.full_name() << ": cannot start a process\n";
      failed_.push_back(each.full_name());
      return;
    }
    running_.emplace(pid, &each);
  }

  // Takes notice of the cases that have ended. One signal may stand for several of them.
  void collect() {
    int status = 0;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
      const auto ended = running_.find(pid);
      if (ended == running_.end()) continue;
      ended->second->print_output();
      if (WIFSIGNALED(status)) {
        std::cout << ended->second->full_name() << " ended by signal " << WTERMSIG(status) << "\n";
      }
      if (status != 0 || !ended->second->result()) failed_.push_back(ended->second->full_name());
      running_.erase(ended);
    }
  }

  // The test has taken too long: prints what the unfinished cases have written.
  void give_up() {
    for (const auto& [pid, each] : running_) {
      kill(pid, SIGKILL);
      each->print_output();
      std::cout << each->full_name() << " has not ended in time\n";
      failed_.push_back(each->full_name());
    }
  }

  const std::vector<Case> cases_;
  sigset_t signals_;
  std::map<pid_t, const Case*> running_;
  std::vector<std::string> failed_;
};

int run_concurrently() {
  // A new process would write what is left in the buffer once more.
  std::cout << std::unitbuf;
  const std::string folder = environment("TEST_TMPDIR", "/tmp") + "/cases." + std::to_string(getpid());
  make_folder(folder);
  const std::vector<Case> cases = all_cases(folder);
  const std::vector<std::string> failed = Runner(cases).run();
  if (const std::string xml = environment("XML_OUTPUT_FILE"); !xml.empty()) {
    std::ofstream file(xml);
    file << "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"AllTests\">\n";
    for (const Case& each : cases) file << each.xml();
    file << "</testsuites>\n";
  }
  std::cout << cases.size() << " cases ran, up to " << kAtOnce << " at the same time: " << failed.size()
            << " failed\n";
  for (const std::string& name : failed) std::cout << "[  FAILED  ] " << name << "\n";
  return failed.empty() && !cases.empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  bool whole = argc == 1;
  for (const char* part :
       {"TESTBRIDGE_TEST_ONLY", "GTEST_FILTER", "GTEST_TOTAL_SHARDS", "TEST_TOTAL_SHARDS"}) {
    if (!environment(part).empty()) whole = false;
  }
  if (whole) return run_concurrently();
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
