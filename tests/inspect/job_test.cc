// The program tools/inspect and jobs under the launcher, as users run them.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <google/protobuf/struct.pb.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/tests/inspect/run_inspect.h"
#include "gradwire/tests/launch/launch_process.h"

namespace gradwire::tests {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kProblemFound = 3;

std::string token_file(const std::string& name, const std::string& token) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/", name);
  std::ofstream(path) << token << "\n";
  EXPECT_EQ(chmod(path.c_str(), 0600), 0);
  return path;
}

const std::string& right_token() {
  static const std::string path =
      token_file("right", "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef");
  return path;
}

// A job of two workers with a problem, and a token.
class Job {
 public:
  explicit Job(const std::string& problem)
      : launch_({"--standalone", "--nproc_per_node=2", absl::StrCat("--token_file=", right_token()),
                 "tests/inspect/problem_worker", problem}),
        port_(launch_.events(1).at(0)) {}
  ~Job() {
    launch_.send(SIGTERM);
    launch_.events_to_the_end();
    launch_.wait();
  }

  std::vector<std::string> arguments(std::vector<std::string> more,
                                     const std::string& token = right_token()) const {
    std::vector<std::string> all = {absl::StrCat("--store=127.0.0.1:", port_), "--interval=0.1",
                                    "--timeout=20"};
    if (!token.empty()) all.push_back(absl::StrCat("--token_file=", token));
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

 private:
  LaunchProcess launch_;
  const std::string port_;
};

using Fields = google::protobuf::Map<std::string, google::protobuf::Value>;

// The titles of the findings of a kind.
std::vector<std::string> titles(const google::protobuf::Struct& json, const std::string& kind) {
  std::vector<std::string> titles;
  const auto findings = json.fields().find("findings");
  if (findings == json.fields().end()) return titles;
  for (const auto& finding : findings->second.list_value().values()) {
    const Fields& fields = finding.struct_value().fields();
    if (fields.at("kind").string_value() == kind) titles.push_back(fields.at("title").string_value());
  }
  return titles;
}

TEST(InspectJob, FindsTheDeadlockOfTwoWorkersAndNamesItsCalls) {
  const Job job("deadlock");
  InspectResult result;
  std::vector<std::string> deadlocks;
  EXPECT_TRUE(eventually([&] {
    result = run_inspect(job.arguments({"--once", "--json"}));
    deadlocks = titles(parse_json(result.out), "deadlock");
    return !deadlocks.empty();
  })) << result.out;
  EXPECT_EQ(result.code, kProblemFound);
  ASSERT_EQ(deadlocks.size(), 1u);
  EXPECT_THAT(deadlocks[0], AllOf(HasSubstr("Desk::ask\" at \"default0\" waits for "),
                                  HasSubstr("Desk::ask_back\" at \"default1\" waits for "),
                                  HasSubstr("Desk::sign\" at \"default0\" waits for ")));
  const InspectResult text = run_inspect(job.arguments({"--once"}));
  EXPECT_EQ(text.code, kProblemFound);
  EXPECT_THAT(text.out, AllOf(HasSubstr("deadlock: "), HasSubstr("a deadline ends it in 29 min"),
                              HasSubstr("Workers"), HasSubstr("no turn")));
}

TEST(InspectJob, FindsASlowHandler) {
  const Job job("slow");
  InspectResult result;
  EXPECT_TRUE(eventually([&] {
    result = run_inspect(job.arguments({"--once", "--json", "--slow_call=0.5"}));
    return !titles(parse_json(result.out), "slow_call").empty();
  })) << result.out;
  EXPECT_THAT(titles(parse_json(result.out), "slow_call")[0],
              HasSubstr("sleep_on\" at \"default1\": running"));
}

TEST(InspectJob, AJobWithoutAProblemEndsWithZero) {
  const Job job("none");
  const InspectResult result = run_inspect(job.arguments({"--once", "--json"}));
  EXPECT_EQ(result.code, 0) << result.out;
  const google::protobuf::Struct json = parse_json(result.out);
  EXPECT_EQ(json.fields().at("workers").list_value().values_size(), 2);
  for (const auto& worker : json.fields().at("workers").list_value().values()) {
    EXPECT_TRUE(worker.struct_value().fields().at("answered").bool_value());
  }
}

TEST(InspectJob, NeedsTheToken) {
  const Job job("none");
  for (const std::string& token :
       {std::string(),
        token_file("wrong", "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210")}) {
    const InspectResult result = run_inspect(job.arguments({"--once"}, token));
    EXPECT_EQ(result.code, 1) << result.out;
    EXPECT_THAT(result.out, HasSubstr("token"));
  }
}

TEST(InspectJob, WrongCommandLinesAndMissingJobsSayWhatToDo) {
  EXPECT_EQ(run_inspect({"--nonsense"}).code, 2);
  EXPECT_EQ(run_inspect({"--help"}).code, 0);
  const InspectResult unknown = run_inspect({"--once"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.out, AllOf(HasSubstr("no launcher of this user"), HasSubstr("--store=HOST:PORT")));
  const InspectResult no_file = run_inspect({"--once", "--store=file:///does/not/exist"});
  EXPECT_EQ(no_file.code, 1);
  EXPECT_THAT(no_file.out, HasSubstr("does not exist"));
  const InspectResult no_terminal = run_inspect({"--store=127.0.0.1:1", "</dev/null"});
  EXPECT_EQ(no_terminal.code, 1);
  EXPECT_THAT(no_terminal.out, HasSubstr("--once"));
}

// The program on a terminal of its own.
class LiveView {
 public:
  explicit LiveView(const std::vector<std::string>& arguments) {
    prepare_environment();
    winsize size{};
    size.ws_col = 150;
    size.ws_row = 20;
    int master = -1;
    pid_ = forkpty(&master, nullptr, nullptr, &size);
    if (pid_ == 0) {
      std::vector<char*> argv = {const_cast<char*>(kInspect)};
      for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
      argv.push_back(nullptr);
      execv(kInspect, argv.data());
      _exit(127);
    }
    terminal_ = Descriptor(master);
  }
  ~LiveView() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }

  void press(const std::string& keys) {
    EXPECT_EQ(write(terminal_.get(), keys.data(), keys.size()), ssize_t(keys.size()));
  }
  void send(int signal) const { kill(pid_, signal); }
  // Reads what is drawn until it contains `text`.
  bool shows(const std::string& text) {
    return eventually([&] {
      pollfd fd{terminal_.get(), POLLIN, 0};
      char bytes[4096];
      if (poll(&fd, 1, 100) > 0) {
        const ssize_t got = read(terminal_.get(), bytes, sizeof(bytes));
        if (got > 0) drawn_.append(bytes, static_cast<std::size_t>(got));
      }
      return absl::StrContains(drawn_, text);
    });
  }
  // Waits for the end and returns the exit code, or -1 after a signal.
  int wait() {
    shows("\x1b[?1049l");
    int status = 0;
    waitpid(std::exchange(pid_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  // The settings of the terminal.
  tcflag_t local_flags() const {
    termios settings{};
    EXPECT_EQ(tcgetattr(terminal_.get(), &settings), 0);
    return settings.c_lflag;
  }
  const std::string& drawn() const { return drawn_; }

 private:
  pid_t pid_ = 0;
  Descriptor terminal_;
  std::string drawn_;
};

TEST(InspectLive, DrawsFollowsKeysAndRestoresTheTerminal) {
  const Job job("deadlock");
  LiveView view(job.arguments({}));
  const tcflag_t flags = ECHO | ICANON | ISIG;
  EXPECT_TRUE(view.shows("[1 workers]")) << view.drawn();
  EXPECT_TRUE(view.shows("default1"));
  EXPECT_EQ(view.local_flags() & flags, tcflag_t{0});
  view.press("2");
  EXPECT_TRUE(view.shows("deadlock: ")) << view.drawn();
  view.press("3/sign\r");
  EXPECT_TRUE(view.shows("no turn")) << view.drawn();
  view.press("q");
  EXPECT_EQ(view.wait(), 0);
  EXPECT_TRUE(absl::StrContains(view.drawn(), "\x1b[?25h\x1b[?1049l"));
  EXPECT_EQ(view.local_flags() & flags, flags);
}

TEST(InspectLive, SignalsRestoreTheTerminal) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    // There is no job: the view says so, and tries again.
    LiveView view({"--store=127.0.0.1:1", "--timeout=0.2", "--interval=0.2", "--insecure"});
    EXPECT_TRUE(view.shows("127.0.0.1:1")) << view.drawn();
    view.send(signal);
    EXPECT_EQ(view.wait(), 0);
    EXPECT_EQ(view.local_flags() & (ECHO | ICANON), tcflag_t{ECHO | ICANON});
  }
}

TEST(InspectJob, TraceOfTheNextSecondsHasAllWorkersAndTheOpenCall) {
  const Job job("slow");
  const std::string trace = absl::StrCat(::testing::TempDir(), "/live.json");
  const auto run_trace = [&](const std::string& token) {
    std::vector<std::string> arguments = job.arguments({"--seconds=0.2", "-o", trace}, token);
    std::erase(arguments, "--interval=0.1");
    arguments.insert(arguments.begin(), "trace");
    return run_inspect(arguments);
  };
  const InspectResult result = run_trace(right_token());
  EXPECT_EQ(result.code, 0) << result.out;
  EXPECT_THAT(result.out, AllOf(HasSubstr(absl::StrCat("wrote ", trace)), HasSubstr(" spans of 2 workers")));
  std::stringstream text;
  text << std::ifstream(trace).rdbuf();
  EXPECT_THAT(text.str(),
              AllOf(HasSubstr("\"name\":\"default0 (process "), HasSubstr("\"name\":\"default1 (process "),
                    HasSubstr("sleep_on"), HasSubstr("\"result\":\"not ended\"")));
  // Without the job's token there is nothing to read.
  const InspectResult refused = run_trace("");
  EXPECT_EQ(refused.code, 1) << refused.out;
}

}  // namespace
}  // namespace gradwire::tests
