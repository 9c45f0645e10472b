#include "gradwire/store/etcd/etcd_process.h"

#include <fcntl.h>
#include <grpcpp/create_channel.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
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

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
// Debian's c-ares, by which gRPC looks names up, loses the ten bytes of "localhost" each time.
extern "C" const char* __lsan_default_suppressions() { return "leak:libcares.so\n"; }
#endif
#endif

namespace gradwire::store {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(60);

// The socket in its folder at which etcd says how it is, without TLS and users; the name is of a host and a
// port to etcd.
constexpr char kHealth[] = "health:0";

// Absolute: etcd is started in another folder.
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
  if (path.empty()) return absl::NotFoundError("GRADWIRE_ETCD_PROGRAM does not say where etcd is");
  if (::access(path.c_str(), X_OK) == 0) return absl::OkStatus();
  // Where there is none, the file says why (third_party/etcd).
  return absl::NotFoundError(read_file(path));
}

EtcdProcess::EtcdProcess(std::vector<std::string> flags, std::string scheme)
    : flags_(std::move(flags)), scheme_(std::move(scheme)) {
  const char* const base = std::getenv("TEST_TMPDIR");
  folder_ = absl::StrCat(base != nullptr ? base : "/tmp", "/etcd-", absl::Hex(random_id()));
  std::filesystem::create_directories(folder_);
  // Somebody else may take the port in between.
  for (int attempt = 0; attempt < 5; ++attempt) {
    port_ = free_port();
    start();
    if (answers()) return;
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
  // Nobody but itself is in its cluster; a socket in its folder needs no port.
  const std::string peer = "unix://peer:0";
  std::vector<std::string> words = {
      program(), "--name=one", "--data-dir=data", "--logger=zap", "--log-level=warn", "--log-outputs=log",
      "--heartbeat-interval=20", "--election-timeout=200",
      // What it was told outlives it in the system's cache; tests do not cut the power.
      "--unsafe-no-fsync", "--listen-client-urls=" + listen, "--advertise-client-urls=" + url,
      "--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=one=" + peer,
      absl::StrCat("--listen-metrics-urls=unix://", kHealth)};
  words.insert(words.end(), flags_.begin(), flags_.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
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

// That it takes connections does not suffice: an etcd that is killed before its first election has been
// written down has no member to elect when it is started again, and waits for ever.
bool EtcdProcess::answers() {
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
  // Through a descriptor of the folder: a test's folder may have a longer name than an address has room for.
  const Descriptor folder(::open(folder_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  absl::SNPrintF(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/%s", folder.get(), kHealth);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    return false;
  const timeval timeout = {5, 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  constexpr absl::string_view kQuestion = "GET /health HTTP/1.0\r\n\r\n";
  if (::send(socket.get(), kQuestion.data(), kQuestion.size(), MSG_NOSIGNAL) < 0) return false;
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

void EtcdProcess::forget() { std::filesystem::remove_all(folder_ + "/data"); }

void EtcdProcess::stop() {
  ::kill(pid_, SIGSTOP);
  ::waitpid(pid_, nullptr, WUNTRACED);
}

void EtcdProcess::carry_on() { ::kill(pid_, SIGCONT); }

std::shared_ptr<grpc::Channel> EtcdProcess::channel() const {
  return grpc::CreateChannel(absl::StrCat("127.0.0.1:", port_), grpc::InsecureChannelCredentials());
}

void EtcdProcess::compact() {
  const auto kv = etcdserverpb::KV::NewStub(channel());
  etcdserverpb::RangeRequest look;
  look.set_key("/");
  etcdserverpb::RangeResponse looked;
  grpc::ClientContext look_context;
  EXPECT_TRUE(kv->Range(&look_context, look, &looked).ok());
  etcdserverpb::CompactionRequest request;
  request.set_revision(looked.header().revision());
  request.set_physical(true);
  etcdserverpb::CompactionResponse response;
  grpc::ClientContext context;
  const grpc::Status status = kv->Compact(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

}  // namespace gradwire::store
