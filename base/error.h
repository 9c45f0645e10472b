#pragma once

#include <exception>
#include <stdexcept>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradwire {

// What the public interface throws: an absl::Status and, where it came from another process, the name of that
// worker.
//
// Codes have one meaning each:
//   Unavailable         the peer cannot be reached, has left or is dead
//   DeadlineExceeded    the time given was not enough
//   Cancelled           the caller gave up
//   Aborted             the pass or group was aborted, or the peer came back as a new incarnation
//   NotFound            no such function, worker or context
//   InvalidArgument     an argument, a signature or a frame that cannot be right
//   FailedPrecondition  the wrong state or the wrong owner
//   ResourceExhausted   a limit was reached
//   PermissionDenied, Unauthenticated
//   Unknown             user code threw
//   Internal            a defect of this library
class Error : public std::runtime_error {
 public:
  // An OK status becomes Internal.
  explicit Error(absl::Status status);

  // What went wrong; never OK.
  const absl::Status& status() const { return status_; }
  // The worker where the error arose; empty when it arose here.
  const std::string& worker() const { return worker_; }

 private:
  absl::Status status_;
  std::string worker_;
};

// Marks `status` with the worker where it arose, unless it carries one already. OK stays OK.
absl::Status with_worker(absl::Status status, absl::string_view worker);
// The worker a status was marked with, or "".
std::string worker_of(const absl::Status& status);

// Puts `context` and ": " before the message; code and worker stay.
absl::Status with_context(const absl::Status& status, absl::string_view context);

// The status of an exception: an Error's own; for anything else Unknown with the exception's type and text,
// unless a translator knows it better.
absl::Status status_from_exception(const std::exception_ptr& exception);

// Lets a layer above say more about the exceptions it knows (libtorch's append a backtrace to what()). Called
// during static initialisation; the translator returns OK for what it does not know.
using ExceptionTranslator = absl::Status (*)(const std::exception& exception);
// Installs the translator of the process; the last one counts, nullptr is none. Thread-safe.
void set_exception_translator(ExceptionTranslator translator);

// "what: text of errno". Unavailable: what the system would not do now it may do another time.
absl::Status errno_status(absl::string_view what, int error);

// Throws Error unless OK.
void throw_if_error(const absl::Status& status);

// The value, or throws Error with the result's status.
template <class T>
T value_or_throw(absl::StatusOr<T> result) {
  if (!result.ok()) throw Error(std::move(result).status());
  return *std::move(result);
}

}  // namespace gradwire

// Returns from the enclosing function with the status of `expression` unless it is OK.
#define GRADWIRE_RETURN_IF_ERROR(expression)                                                             \
  do {                                                                                                   \
    if (::absl::Status gradwire_status_ = (expression); !gradwire_status_.ok()) return gradwire_status_; \
  } while (false)

#define GRADWIRE_CONCAT_INNER_(a, b) a##b
#define GRADWIRE_CONCAT_(a, b) GRADWIRE_CONCAT_INNER_(a, b)

// GRADWIRE_ASSIGN_OR_RETURN(auto x, f()): x is f()'s value, or the enclosing function returns f()'s status.
#define GRADWIRE_ASSIGN_OR_RETURN(target, expression) \
  GRADWIRE_ASSIGN_OR_RETURN_(GRADWIRE_CONCAT_(gradwire_result_, __LINE__), target, expression)
#define GRADWIRE_ASSIGN_OR_RETURN_(result, target, expression) \
  auto result = (expression);                                  \
  if (!result.ok()) return std::move(result).status();         \
  target = *std::move(result)
