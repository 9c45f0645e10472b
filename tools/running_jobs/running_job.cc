#include "gradwire/tools/running_jobs/running_job.h"

#include <nlohmann/json.hpp>

#include "absl/status/status.h"

namespace gradwire::tools {
namespace {

using nlohmann::json;

// The names of the members, once for both directions.
constexpr char kId[] = "id";
constexpr char kProgram[] = "program";
constexpr char kLauncher[] = "launcher";
constexpr char kBegan[] = "began_ms";
constexpr char kStore[] = "store";
constexpr char kObserver[] = "observer";
constexpr char kTokenFile[] = "token_file";
constexpr char kCertificateFile[] = "certificate_file";
constexpr char kKeyFile[] = "key_file";
constexpr char kAuthorityFile[] = "authority_file";
constexpr char kInsecure[] = "insecure";

std::string text_in(const json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || !found->is_string() ? "" : found->get<std::string>();
}

int64_t number_in(const json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || !found->is_number_integer() ? 0 : found->get<int64_t>();
}

}  // namespace

std::string to_text(const RunningJob& job) {
  const json object = {{kId, job.id},
                       {kProgram, job.program},
                       {kLauncher, job.launcher},
                       {kBegan, absl::ToUnixMillis(job.began)},
                       {kStore, job.store},
                       {kObserver, job.observer},
                       {kTokenFile, job.security.token_file},
                       {kCertificateFile, job.security.certificate_file},
                       {kKeyFile, job.security.key_file},
                       {kAuthorityFile, job.security.authority_file},
                       {kInsecure, job.security.insecure}};
  // The program's path may have any bytes.
  return object.dump(/*indent=*/1, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace) + "\n";
}

// A small text cannot nest deep enough to exhaust the stack: the parser keeps its levels on the heap.
absl::StatusOr<RunningJob> parse_running_job(absl::string_view text) {
  if (text.size() > kMostJobText) return absl::InvalidArgumentError("the file of a job is too large");
  const json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return absl::InvalidArgumentError("the file of a job is not a JSON object");
  RunningJob job = {.id = text_in(object, kId),
                    .program = text_in(object, kProgram),
                    .launcher = number_in(object, kLauncher),
                    .began = absl::FromUnixMillis(number_in(object, kBegan)),
                    .store = text_in(object, kStore),
                    .security = {.token_file = text_in(object, kTokenFile),
                                 .certificate_file = text_in(object, kCertificateFile),
                                 .key_file = text_in(object, kKeyFile),
                                 .authority_file = text_in(object, kAuthorityFile)},
                    .observer = text_in(object, kObserver)};
  const auto insecure = object.find(kInsecure);
  job.security.insecure = insecure != object.end() && insecure->is_boolean() && insecure->get<bool>();
  if (job.id.empty() || job.store.empty()) {
    return absl::InvalidArgumentError("the file of a job has no id or no store");
  }
  return job;
}

}  // namespace gradwire::tools
