#pragma once

#include "gradwire/base/cpp20.h"

#include <exception>
#include <stdexcept>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradwire {

// The exception that the public interface throws. It holds an absl::Status and, if the error arose in another
// process, the name of that worker.
//
// Each code has one meaning:
//   Unavailable         the peer cannot be reached, has left or is dead
//   DeadlineExceeded    the timeout was too short
//   Cancelled           the caller cancelled the operation
//   Aborted             the pass or group was aborted, or the peer was restarted as a new incarnation
//   NotFound            the function, worker or context does not exist
//   InvalidArgument     an argument, a signature or a frame is invalid
//   FailedPrecondition  the wrong state or the wrong owner
//   ResourceExhausted   a limit was reached
//   PermissionDenied, Unauthenticated
//   Unknown             user code threw
//   Internal            a defect of this library
class Error : public std::runtime_error {
 public:
  // An OK status is replaced by Internal.
  explicit Error(absl::Status status);

  // The reason of the failure; never OK.
  const absl::Status& status() const { return status_; }
  // Name of the worker where the error arose; empty if it arose in this process.
  const std::string& worker() const { return worker_; }

 private:
  absl::Status status_;
  std::string worker_;
};

// Returns `status` marked with the worker where it arose, unless it already carries a worker. OK stays OK.
absl::Status with_worker(absl::Status status, absl::string_view worker);
// The worker that a status was marked with, or "".
std::string worker_of(const absl::Status& status);

// Returns `status` with `context` and ": " before its message. Code and worker are kept. A message of more
// than 64 KiB gets no context: how many there are may be the choice of a caller, as in a chain of calls.
absl::Status with_context(const absl::Status& status, absl::string_view context);

// Converts an exception to a status. For an Error it is the status of the Error. For any other exception it
// is Unknown with the exception's type and text, unless the installed translator returns something more
// precise. For std::bad_alloc, and without memory for the description, it is ResourceExhausted. Never throws.
absl::Status status_from_exception(const std::exception_ptr& exception);

// As status_from_exception(), with a context, for the exception that is handled now:
//   catch (...) { return caught("adding up gradients"); }
absl::Status caught(absl::string_view context);
// The same with the name of a function, in quotes, as the context.
absl::Status caught_in(absl::string_view function);

// The status that `make` describes, or else the error that it has thrown.
template <class F>
absl::Status describe_error(F&& make) noexcept {
  try {
    return std::forward<F>(make)();
  } catch (...) {
    return caught("the description of an error");
  }
}

// The status of std::bad_alloc. Its copy needs no memory.
const absl::Status& no_memory();

// A translator lets a higher layer describe the exceptions that it knows; for example, libtorch's exceptions
// append a backtrace to what(). It returns OK for an exception that it does not know.
using ExceptionTranslator = absl::Status (*)(const std::exception& exception);
// Installs the translator of the process and replaces the previous one; nullptr removes it. It is called
// during static initialisation. Thread-safe.
void set_exception_translator(ExceptionTranslator translator);

// Returns Unavailable with the message "what: text of errno". The code is Unavailable because a later attempt
// may succeed.
absl::Status errno_status(absl::string_view what, int error);

// Throws Error if `status` is not OK.
void throw_if_error(const absl::Status& status);

// Returns the value, or throws Error with the status of `result`. The parameter is a reference, because
// Abseil declares that the move of a StatusOr never throws: a value whose move throws would end the process.
template <class T>
T value_or_throw(const absl::StatusOr<T>& result) {
  throw_if_error(result.status());
  return *result;
}
// As above. Moves the value.
template <class T>
T value_or_throw(absl::StatusOr<T>&& result) {
  throw_if_error(result.status());
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

// GRADWIRE_ASSIGN_OR_RETURN(auto x, f()): assigns the value of f() to x. If f() fails, the enclosing function
// returns its status.
#define GRADWIRE_ASSIGN_OR_RETURN(target, expression) \
  GRADWIRE_ASSIGN_OR_RETURN_(GRADWIRE_CONCAT_(gradwire_result_, __LINE__), target, expression)
#define GRADWIRE_ASSIGN_OR_RETURN_(result, target, expression) \
  auto result = (expression);                                  \
  if (!result.ok()) return std::move(result).status();         \
  target = *std::move(result)
