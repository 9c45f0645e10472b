#include "gradwire/tools/bench/security/bench_security.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "absl/strings/str_cat.h"

namespace gradwire::bench {
namespace {

void shell(const std::string& command) {
  if (std::system(absl::StrCat(command, " 2>/dev/null").c_str()) != 0)
    throw std::runtime_error("this command failed: " + command);
}

}  // namespace

BenchCertificates::BenchCertificates(int members) {
  std::string folder = (std::filesystem::temp_directory_path() / "gradwire-bench-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) throw std::runtime_error("cannot make the folder " + folder);
  folder_ = folder;
  const std::string key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
  shell(absl::StrCat("cd ", folder_, " && umask 077 && openssl req -x509 ", key,
                     " -days 1 -subj /CN=bench -keyout authority.key -out authority.pem"));
  for (int rank = 0; rank < members; ++rank) {
    shell(absl::StrCat("cd ", folder_, " && umask 077 && openssl req ", key, " -subj /CN=w", rank,
                       " -addext subjectAltName=URI:gradwire://bench/w", rank, ",DNS:localhost -keyout ",
                       rank,
                       ".key -out request && openssl x509 -req -in request -CA authority.pem -CAkey "
                       "authority.key -days 1 -copy_extensions copy -out ",
                       rank, ".pem"));
  }
}

BenchCertificates::~BenchCertificates() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

SecurityOptions security_of(absl::string_view transport, const std::string& folder, int rank) {
  SecurityOptions options;
  if (transport == "token") options.token = "the token of a benchmark, which everybody may know";
  if (transport == "tls") {
    options.certificate_file = absl::StrCat(folder, "/", rank, ".pem");
    options.key_file = absl::StrCat(folder, "/", rank, ".key");
    options.authority_file = absl::StrCat(folder, "/authority.pem");
  }
  return options;
}

std::string agent_transport(const std::string& transport) {
  return transport == "plain" || transport == "token" || transport == "tls" ? "tcp" : transport;
}

std::string read_text(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  if (text.str().empty()) throw std::runtime_error("cannot read " + path);
  return text.str();
}

}  // namespace gradwire::bench
