#include "gradwire/store/etcd/etcd_process.h"

#include <fcntl.h>
#include <grpcpp/create_channel.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/random_id.h"
#include "gtest/gtest.h"

namespace gradwire::store {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(60);

// The Unix socket in etcd's folder that serves /health, without TLS and users. etcd parses the name as host
// and port.
constexpr char kHealth[] = "health:0";

// Returns an absolute path, because etcd is started in another folder.
std::string program() {
  const char* const path = std::getenv("GRADWIRE_ETCD_PROGRAM");
  return path == nullptr ? "" : std::filesystem::absolute(path).string();
}

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  return std::string{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace

absl::Status EtcdProcess::available() {
  const std::string path = program();
  if (path.empty()) return absl::NotFoundError("etcd not found: GRADWIRE_ETCD_PROGRAM is not set");
  if (::access(path.c_str(), X_OK) == 0) return absl::OkStatus();
  // If etcd is not installed, third_party/etcd creates a text file there that says why.
  return absl::NotFoundError(read_file(path));
}

EtcdProcess::EtcdProcess(std::vector<std::string> flags, std::string scheme)
    : flags_(std::move(flags)), scheme_(std::move(scheme)) {
  const char* const base = std::getenv("TEST_TMPDIR");
  folder_ = absl::StrCat(base != nullptr ? base : "/tmp", "/etcd-", absl::Hex(random_id()));
  ::mkdir(folder_.c_str(), 0700);
  // Retry: another process may take the port before etcd does.
  for (int attempt = 0; attempt < 5; ++attempt) {
    port_ = free_port();
    start();
    if (wait_until_healthy()) return;
    kill();
  }
  ADD_FAILURE() << "etcd does not start: " << read_file(folder_ + "/log");
}

EtcdProcess::~EtcdProcess() {
  kill();
  std::filesystem::remove_all(folder_);
}

std::string EtcdProcess::endpoint() const { return absl::StrCat(scheme_, "://localhost:", port_); }

void EtcdProcess::start() {
  const std::string url = absl::StrCat(scheme_, "://localhost:", port_);
  const std::string listen = absl::StrCat(scheme_, "://127.0.0.1:", port_);
  // etcd is the only member of its cluster. A Unix socket in its folder needs no port.
  const std::string peer = "unix://peer:0";
  std::vector<std::string> command = {
      program(), "--name=one", "--data-dir=data", "--logger=zap", "--log-level=warn", "--log-outputs=log",
      "--heartbeat-interval=20", "--election-timeout=200",
      // Without fsync, written data still survives etcd in the page cache; tests do not crash the host.
      "--unsafe-no-fsync", "--listen-client-urls=" + listen, "--advertise-client-urls=" + url,
      "--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=one=" + peer,
      absl::StrCat("--listen-metrics-urls=unix://", kHealth)};
  command.insert(command.end(), flags_.begin(), flags_.end());
  std::vector<char*> arguments;
  for (std::string& argument : command) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  const std::string log = folder_ + "/output";
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ != 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent || ::chdir(folder_.c_str()) != 0) ::_exit(126);
  const int output = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  ::dup2(output, STDOUT_FILENO);
  ::dup2(output, STDERR_FILENO);
  ::execv(arguments[0], arguments.data());
  ::_exit(127);
}

// Waits until etcd is healthy. That it accepts connections is not enough: if etcd is killed before its first
// election has been written, it has no member to elect after a restart, and waits indefinitely.
bool EtcdProcess::wait_until_healthy() {
  const absl::Time deadline = absl::Now() + kTimeout;
  while (absl::Now() < deadline) {
    if (::waitpid(pid_, nullptr, WNOHANG) == pid_) {
      pid_ = 0;
      return false;
    }
    if (healthy()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

bool EtcdProcess::healthy() const {
  const Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  // Connect through a descriptor of the folder: its path may be too long for a socket address.
  const Descriptor folder(::open(folder_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  absl::SNPrintF(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/%s", folder.get(), kHealth);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    return false;
  const timeval timeout = {5, 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  constexpr absl::string_view kRequest = "GET /health HTTP/1.0\r\n\r\n";
  if (::send(socket.get(), kRequest.data(), kRequest.size(), MSG_NOSIGNAL) < 0) return false;
  std::string answer;
  char bytes[4096];
  ssize_t count;
  while ((count = ::recv(socket.get(), bytes, sizeof(bytes), 0)) > 0)
    answer.append(bytes, static_cast<std::size_t>(count));
  return absl::StrContains(answer, R"("health":"true")");
}

void EtcdProcess::end(int signal) {
  if (pid_ <= 0) return;
  ::kill(pid_, signal);
  ::waitpid(pid_, nullptr, 0);
  pid_ = 0;
}

void EtcdProcess::kill() { end(SIGKILL); }

void EtcdProcess::terminate() { end(SIGTERM); }

void EtcdProcess::delete_data() { std::filesystem::remove_all(folder_ + "/data"); }

void EtcdProcess::stop() {
  ::kill(pid_, SIGSTOP);
  ::waitpid(pid_, nullptr, WUNTRACED);
}

void EtcdProcess::resume() { ::kill(pid_, SIGCONT); }

std::shared_ptr<grpc::Channel> EtcdProcess::channel() const {
  return grpc::CreateChannel(absl::StrCat("127.0.0.1:", port_), grpc::InsecureChannelCredentials());
}

void EtcdProcess::compact() {
  const auto kv = etcdserverpb::KV::NewStub(channel());
  etcdserverpb::RangeRequest range;
  range.set_key("/");
  etcdserverpb::RangeResponse range_response;
  grpc::ClientContext range_context;
  EXPECT_TRUE(kv->Range(&range_context, range, &range_response).ok());
  etcdserverpb::CompactionRequest request;
  request.set_revision(range_response.header().revision());
  request.set_physical(true);
  etcdserverpb::CompactionResponse response;
  grpc::ClientContext context;
  const grpc::Status status = kv->Compact(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

}  // namespace gradwire::store
