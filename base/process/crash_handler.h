#pragma once

#include "absl/strings/string_view.h"

namespace gradwire {

// From here on a crash (SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT) says on standard error what it has
// interrupted,
//   worker "server0" was killed by SIGSEGV at address 0x0 while serving "scale" for worker "trainer1"
//     @ 0x55d2a8  demo::scale()
// and leaves the first line for the launcher (base/process/last_words.h). Then the program ends as it would
// have, with the same signal and the same core file.
//
// Does nothing with GRADWIRE_CRASH_HANDLER=0 in the environment, under a sanitizer, which has a handler of
// its own, and for a signal that the program handles itself. Later calls change nothing. Thread-safe. It
// belongs to the process, as signals do.
void install_crash_handler();

// Records what the calling thread does while the object lives: worker `self` serves `callee` for `caller`.
// A thread that serves inside of serving goes back to what it did before. The texts outlive the object, which
// costs two writes.
class ServingScope {
 public:
  ServingScope(absl::string_view self, absl::string_view callee, absl::string_view caller);
  ~ServingScope();
  ServingScope(const ServingScope&) = delete;
  ServingScope& operator=(const ServingScope&) = delete;

  absl::string_view self() const { return self_; }
  absl::string_view callee() const { return callee_; }
  absl::string_view caller() const { return caller_; }

 private:
  const absl::string_view self_;
  const absl::string_view callee_;
  const absl::string_view caller_;
  const ServingScope* const outer_;
};

}  // namespace gradwire
