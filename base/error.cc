#include "gradwire/base/error.h"

#include <cxxabi.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <system_error>
#include <typeinfo>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace gradwire {
namespace {

constexpr absl::string_view kWorkerPayload = "gradwire/worker";

// The longest message that gets a context.
constexpr std::size_t kMaxMessage = std::size_t{64} << 10;

std::atomic<ExceptionTranslator> exception_translator{nullptr};

std::string describe(const absl::Status& status) {
  std::string worker = worker_of(status);
  std::string text = absl::StrCat(absl::StatusCodeToString(status.code()), ": ", status.message());
  if (!worker.empty()) absl::StrAppend(&text, " [worker \"", worker, "\"]");
  return text;
}

// An Error with an OK status would turn a failure into a success where it is caught.
const absl::Status& replace_ok(absl::Status& status) {
  if (status.ok()) status = absl::InternalError("an Error was thrown with an OK status");
  return status;
}

// Made before memory is short.
[[maybe_unused]] const absl::Status& made_at_start = no_memory();

std::string type_name(const std::exception& exception) {
  int failed = 0;
  std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(typeid(exception).name(), nullptr, nullptr, &failed), &std::free);
  return failed == 0 ? name.get() : typeid(exception).name();
}

}  // namespace

const absl::Status& no_memory() {
  static const auto& status = *new absl::Status(absl::StatusCode::kResourceExhausted, "no memory is left");
  return status;
}

Error::Error(absl::Status status)
    : std::runtime_error(describe(replace_ok(status))),
      status_(std::move(status)),
      worker_(worker_of(status_)) {}

// The first worker is kept: it is the one nearest to the cause. Workers that only pass the error on do not
// replace it.
absl::Status with_worker(absl::Status status, absl::string_view worker) {
  if (!status.ok() && !worker.empty() && !status.GetPayload(kWorkerPayload)) {
    status.SetPayload(kWorkerPayload, absl::Cord(worker));
  }
  return status;
}

std::string worker_of(const absl::Status& status) {
  absl::optional<absl::Cord> worker = status.GetPayload(kWorkerPayload);
  return worker ? std::string(*worker) : std::string();
}

absl::Status with_context(const absl::Status& status, absl::string_view context) {
  if (status.ok() || status.message().size() > kMaxMessage) return status;
  absl::Status longer(status.code(), absl::StrCat(context, ": ", status.message()));
  status.ForEachPayload(
      [&longer](absl::string_view type, const absl::Cord& payload) { longer.SetPayload(type, payload); });
  return longer;
}

// Exceptions of libraries that base does not know are translated by a function that an upper layer
// installs. An exception that is not translated becomes kUnknown, with its type in the message.
absl::Status status_from_exception(const std::exception_ptr& exception) try {
  try {
    std::rethrow_exception(exception);
  } catch (const Error& error) {
    return error.status();
  } catch (const std::bad_alloc&) {
    return no_memory();
  } catch (const std::exception& error) {
    if (ExceptionTranslator translate = exception_translator.load()) {
      if (absl::Status status = translate(error); !status.ok()) return status;
    }
    return absl::UnknownError(absl::StrCat(type_name(error), ": ", error.what()));
  } catch (...) {
    return absl::UnknownError("an exception that is not a std::exception");
  }
} catch (const std::bad_alloc&) {
  // No memory was left for the description.
  return no_memory();
}

absl::Status caught(absl::string_view context) {
  absl::Status status = status_from_exception(std::current_exception());
  try {
    return with_context(status, context);
  } catch (const std::bad_alloc&) {
    return status;
  }
}

absl::Status caught_in(absl::string_view function) {
  absl::Status status = status_from_exception(std::current_exception());
  try {
    return with_context(status, absl::StrCat("\"", function, "\""));
  } catch (const std::bad_alloc&) {
    return status;
  }
}

void set_exception_translator(ExceptionTranslator translator) { exception_translator.store(translator); }

absl::Status errno_status(absl::string_view what, int error) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::generic_category().message(error)));
}

void throw_if_error(const absl::Status& status) {
  if (!status.ok()) throw Error(status);
}

}  // namespace gradwire
