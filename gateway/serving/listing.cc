#include "gradwire/gateway/serving/listing.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "gradwire/base/error.h"
#include "gradwire/gateway/values/utf8.h"
#include "gradwire/rpc/calls/agent_services.h"
#include "gradwire/security/limits.h"

namespace gradwire::gateway {
namespace {

constexpr std::size_t kMaxPage = 512;
constexpr std::size_t kMaxPageBytes = std::size_t{1} << 20;

uint64_t milliseconds(absl::Duration duration) {
  return duration == absl::InfiniteDuration() ? 0
                                              : static_cast<uint64_t>(absl::ToInt64Milliseconds(duration));
}

// The order of the list. The same callee of several workers is one entry.
using Key = std::tuple<int, std::string, std::string>;

// A page token is the key of the last entry: the kind, the name, a zero byte, the signature. A name from a
// token is only compared.
std::string token_of(const Key& key) {
  std::string token(1, static_cast<char>(std::get<0>(key)));
  token += std::get<1>(key);
  token.push_back('\0');
  return token + std::get<2>(key);
}
absl::StatusOr<Key> key_of(const std::string& token) {
  if (token.empty()) return Key(0, "", "");
  const std::size_t zero = token.find('\0', 1);
  if (zero == std::string::npos || token.size() > 200'000) {
    return absl::InvalidArgumentError("malformed page token: use next_page_token of an earlier answer");
  }
  return Key(token[0], token.substr(1, zero - 1), token.substr(zero + 1));
}

// Waits for the answers of all workers, and makes the page of them.
struct Listing {
  std::shared_ptr<Core> core;
  std::string prefix;
  Key after;
  std::size_t page_size = 0;
  v1::ListFunctionsResponse* response = nullptr;
  std::function<void(absl::Status)> done;
  // One for each worker asked.
  std::vector<rpc::Worker> workers;

  Mutex mutex;
  std::vector<CalleeDirectory::Answer> answers ABSL_GUARDED_BY(mutex);
  std::size_t missing ABSL_GUARDED_BY(mutex) = 0;

  bool is_allowed(const ServedCallee& callee) const {
    if (!absl::StartsWith(callee.name, prefix)) return false;
    return callee.kind == v1::FUNCTION_KIND_OPERATOR ? core->access.check_operator(callee.name).ok()
                                                     : core->access.check_callee(callee.name).ok();
  }

  void answered(std::size_t index, const CalleeDirectory::Answer& answer) {
    {
      MutexLock lock(mutex);
      answers[index] = answer;
      if (--missing > 0) return;
    }
    make_page();
    done(absl::OkStatus());
  }

  // Only the last answer gets here, so no other thread uses the answers.
  void make_page() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    std::map<Key, std::pair<const ServedCallee*, std::vector<std::string>>> found;
    for (std::size_t i = 0; i < workers.size(); ++i) {
      if (!answers[i].ok()) {
        v1::StatusValue& unreachable = *response->add_unreachable();
        unreachable.set_code(static_cast<int>(answers[i].status().code()));
        unreachable.set_message(printable(answers[i].status().message().substr(0, 1024)));
        unreachable.set_worker(printable(workers[i].name));
        continue;
      }
      for (const auto& [name, callee] : (*answers[i])->callees) {
        Key key(callee.kind, callee.name, callee.text);
        if (!(after < key) || !is_allowed(callee)) continue;
        auto& entry = found[std::move(key)];
        entry.first = &callee;
        entry.second.push_back(printable(workers[i].name));
      }
    }
    std::size_t bytes = 0;
    const Key* last = nullptr;
    for (auto& [key, entry] : found) {
      if (static_cast<std::size_t>(response->functions_size()) == page_size || bytes > kMaxPageBytes) {
        response->set_next_page_token(token_of(*last));
        break;
      }
      v1::Function& function = *response->add_functions();
      fill(*entry.first, function);
      std::sort(entry.second.begin(), entry.second.end());
      for (std::string& worker : entry.second) function.add_workers(std::move(worker));
      bytes += function.ByteSizeLong();
      last = &key;
    }
  }

  static void fill(const ServedCallee& callee, v1::Function& function) {
    function.set_kind(callee.kind);
    function.set_name(callee.name);
    function.set_object_type(callee.object_type);
    function.set_idempotent(callee.idempotent);
    if (callee.text.empty()) return;
    function.set_signature(callee.text);
    for (const Type& parameter : callee.signature.parameters) function.add_parameters(parameter.name);
    function.set_result(callee.signature.result.name);
  }
};

}  // namespace

v1::Info describe(const Core& core) {
  const Options& options = core.options;
  v1::Info info;
  info.set_version("Gradwire");
  info.set_worker(printable(core.agent->get_worker_info().name));
  info.set_max_unary_bytes(kMaxUnaryBytes);
  info.set_max_chunk_bytes(kMaxChunkBytes);
  info.set_max_call_bytes(options.max_call_bytes);
  info.set_max_depth(kMaxValueDepth);
  info.set_max_calls_per_client(options.max_calls_per_client);
  info.set_max_sessions_per_client(options.max_sessions_per_client);
  info.set_max_objects_per_session(options.max_objects_per_session);
  info.set_max_bytes_per_client(options.max_bytes_per_client);
  info.set_max_bytes(options.max_bytes);
  info.set_default_timeout_ms(milliseconds(options.default_timeout));
  info.set_session_idle_ms(milliseconds(options.session_idle));
  info.set_streams(true);
  info.set_operators(core.access.any_operators());
  info.set_max_calls(options.max_calls);
  info.set_max_sessions(options.max_sessions);
  return info;
}

v1::ListWorkersResponse list_workers(const Core& core) {
  v1::ListWorkersResponse response;
  std::vector<rpc::WorkerInfo> infos = core.agent->get_worker_infos();
  std::sort(infos.begin(), infos.end(),
            [](const rpc::WorkerInfo& a, const rpc::WorkerInfo& b) { return a.id < b.id; });
  for (const rpc::WorkerInfo& info : infos) {
    v1::WorkerInfo& worker = *response.add_workers();
    worker.set_name(printable(info.name));
    worker.set_id(info.id);
    worker.set_gateway(info == core.agent->get_worker_info());
    worker.set_state(v1::WorkerInfo::STATE_GONE);
    try {
      const rpc::WorkerState state = core.agent->worker_state(info.name);
      if (state == rpc::WorkerState::kAlive) worker.set_state(v1::WorkerInfo::STATE_ALIVE);
      if (state == rpc::WorkerState::kSuspect) worker.set_state(v1::WorkerInfo::STATE_SUSPECT);
    } catch (const Error&) {
      // It has left since the list was made.
    }
  }
  return response;
}

void list_functions(std::shared_ptr<Core> core, const v1::ListFunctionsRequest& request,
                    v1::ListFunctionsResponse* response, std::function<void(absl::Status)> done) {
  rpc::AgentServices& services = core->agent->services();
  auto listing = std::make_shared<Listing>();
  absl::StatusOr<Key> after = key_of(request.page_token());
  if (!after.ok()) {
    done(after.status());
    return;
  }
  if (request.worker().empty()) {
    for (const rpc::WorkerInfo& info : core->agent->get_worker_infos()) {
      absl::StatusOr<rpc::Worker> worker = services.find_worker(rpc::Destination(info));
      if (worker.ok() && services.worker_status(*worker).ok()) listing->workers.push_back(*std::move(worker));
    }
  } else {
    absl::StatusOr<rpc::Worker> worker = services.find_worker(rpc::Destination(request.worker()));
    if (!worker.ok()) {
      done(worker.status());
      return;
    }
    listing->workers.push_back(*std::move(worker));
  }
  listing->core = core;
  listing->prefix = request.prefix();
  listing->after = *std::move(after);
  listing->page_size =
      request.page_size() == 0 ? kMaxPage : std::min<std::size_t>(request.page_size(), kMaxPage);
  listing->response = response;
  listing->done = std::move(done);
  if (listing->workers.empty()) {
    listing->done(absl::OkStatus());
    return;
  }
  {
    MutexLock lock(listing->mutex);
    listing->answers.resize(listing->workers.size(), absl::UnknownError(""));
    listing->missing = listing->workers.size();
  }
  for (std::size_t i = 0; i < listing->workers.size(); ++i) {
    core->directory->get(listing->workers[i], [listing, i](const CalleeDirectory::Answer& answer) {
      listing->answered(i, answer);
    });
  }
}

}  // namespace gradwire::gateway
