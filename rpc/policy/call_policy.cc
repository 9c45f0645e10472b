#include "gradwire/rpc/policy/call_policy.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/log.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/security/policy/policy_parser.h"

namespace gradwire::rpc {
namespace {

using security::CalleeClass;
using security::Subject;

// Names of callees come from the caller. Messages show so many bytes of them.
constexpr std::size_t kShown = 256;
// Maximum number of refusals that are remembered, so that each is logged once. More are counted only.
constexpr std::size_t kMaxLogged = 4096;

bool is_identifier_character(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_';
}

// The class of a method, "ns::Class::method": everything before the last "::" that is not inside < > or [ ],
// or before "::operator". Empty for "Stream[ns::T].take", whose object has no class of the user. The
// registration makes the name of a method from that of its class.
absl::string_view class_of(absl::string_view method) {
  constexpr absl::string_view kOperator = "::operator";
  const std::size_t found = method.rfind(kOperator);
  if (found != absl::string_view::npos && found + kOperator.size() < method.size() &&
      !is_identifier_character(method[found + kOperator.size()]))
    return method.substr(0, found);
  int depth = 0;
  for (std::size_t i = method.size(); i > 1; --i) {
    const char c = method[i - 1];
    if (c == '>' || c == ']') ++depth;
    if (c == '<' || c == '[') --depth;
    if (depth == 0 && c == ':' && method[i - 2] == ':') return method.substr(0, i - 2);
  }
  return {};
}

std::string shown(absl::string_view name) {
  return absl::StrCat("\"", absl::CHexEscape(name.substr(0, kShown)), name.size() > kShown ? "..." : "",
                      "\"");
}

// The action that is denied, in words that follow "may not".
std::string describe(const Subject& subject) {
  switch (subject.kind) {
    case CalleeClass::kFunction:
      return absl::StrCat("call the function ", shown(subject.name));
    case CalleeClass::kClass:
      return subject.owner.empty() ? absl::StrCat("make objects of the class ", shown(subject.name))
                                   : absl::StrCat("call the method ", shown(subject.name));
    case CalleeClass::kOperator:
      return absl::StrCat("call the operator ", shown(subject.name));
    case CalleeClass::kScript:
      return absl::StrCat("call the script ", shown(subject.name));
    case CalleeClass::kReference:
      return subject.name == "fetch" ? "fetch the values of references" : "hold references";
    case CalleeClass::kService:
      return absl::StrCat("use the service ", shown(subject.name));
  }
  return "";
}

// The line that would allow it; empty for names that cannot be written in a line.
std::string advice(absl::string_view caller, const Subject& subject) {
  const bool plain =
      subject.name.size() <= kShown && std::all_of(subject.name.begin(), subject.name.end(),
                                                   [](char c) { return c >= ' ' && c <= '~' && c != '*'; });
  if (!plain || subject.name.empty()) return "";
  return absl::StrCat("allow ", caller, " ", security::word_for(subject.kind), " ",
                      security::quoted_if_needed(subject.name));
}

}  // namespace

absl::StatusOr<std::unique_ptr<CallPolicy>> CallPolicy::open(const std::string& path, const Worker& self,
                                                             const Repeat& examine) {
  GRADWIRE_ASSIGN_OR_RETURN(std::shared_ptr<security::PolicyFile> file,
                            security::PolicyFile::open(path, examine));
  return std::unique_ptr<CallPolicy>(new CallPolicy(std::move(file), self));
}

absl::Status CallPolicy::check_request(const Worker& from, const proto::Request& request) {
  const absl::string_view overload = request.operator_();
  switch (request.callee_case()) {
    case proto::Request::kFunction:
      GRADWIRE_RETURN_IF_ERROR(check(from, {CalleeClass::kFunction, request.function()}));
      break;
    case proto::Request::kMethod:
      GRADWIRE_RETURN_IF_ERROR(
          check(from, {CalleeClass::kClass, request.method(), class_of(request.method())}));
      break;
    case proto::Request::kConstructor:
      GRADWIRE_RETURN_IF_ERROR(check(from, {CalleeClass::kClass, request.constructor()}));
      break;
    case proto::Request::kOperator:
      GRADWIRE_RETURN_IF_ERROR(check(from, {CalleeClass::kOperator, overload.substr(0, overload.find('.'))}));
      break;
    case proto::Request::kScript:
      GRADWIRE_RETURN_IF_ERROR(check(from, {CalleeClass::kScript, request.script()}));
      break;
    default:
      // A fetch is checked below. A request without a callee is malformed.
      break;
  }
  // A method uses the object as its class allows. An operator could hand out the value, as a fetch does.
  if (request.has_fetch() || (request.has_target() && !request.has_method()))
    GRADWIRE_RETURN_IF_ERROR(check(from, {CalleeClass::kReference, "fetch"}));
  if (request.has_result_rref()) GRADWIRE_RETURN_IF_ERROR(check_hold(from));
  if (request.arguments().has_graph()) GRADWIRE_RETURN_IF_ERROR(check_service(from, "autograd"));
  return absl::OkStatus();
}

absl::Status CallPolicy::check_service(const Worker& from, absl::string_view service) {
  return check(from, {CalleeClass::kService, service});
}

absl::Status CallPolicy::check_hold(const Worker& from) {
  return check(from, {CalleeClass::kReference, "hold"});
}

absl::Status CallPolicy::check(const Worker& from, const Subject& subject) {
  if (from.incarnation == self_.incarnation) return absl::OkStatus();
  const security::Decision decision = file_->check(from.name, subject);
  return decision.allowed ? absl::OkStatus() : refuse(from, subject, decision.line);
}

absl::Status CallPolicy::refuse(const Worker& from, const Subject& subject, int line) {
  denied_.fetch_add(1, std::memory_order_relaxed);
  std::string text = absl::StrCat("worker \"", from.name, "\" may not ", describe(subject), " of worker \"",
                                  self_.name, "\": ");
  if (line != 0) {
    absl::StrAppend(&text, "line ", line, " of ", file_->path(), " denies it");
  } else {
    const std::string rule = advice(from.name, subject);
    absl::StrAppend(&text, "no line of ", file_->path(), " allows it");
    if (!rule.empty()) absl::StrAppend(&text, "; to allow it, add the line: ", rule);
  }
  if (is_news(from.name, line))
    log(LogLevel::kWarning, text, " (later refusals of this worker by this rule are counted only)");
  return absl::PermissionDeniedError(text);
}

bool CallPolicy::is_news(const std::string& caller, int line) {
  const uint64_t generation = file_->generation();
  MutexLock lock(mutex_);
  // Other rules stand in the lines of a new file.
  if (generation != generation_) logged_.clear();
  generation_ = generation;
  return logged_.size() < kMaxLogged && logged_.emplace(caller, line).second;
}

}  // namespace gradwire::rpc
