#pragma once

#include "absl/strings/string_view.h"

namespace gradwire {

// Installs the crash handler. After a crash (SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT) it writes to standard
// error what was interrupted,
//   worker "server0" was killed by SIGSEGV at address 0x0 while serving "scale" for worker "trainer1"
//     @ 0x55d2a8  demo::scale()
// and writes the first line into the launcher's error file (base/process/last_words.h). Then the program ends
// as it would without the handler: with the same signal and the same core file.
//
// Does nothing if the environment has GRADWIRE_CRASH_HANDLER=0, or under a sanitizer, which has its own
// handler. It skips each signal for which the program has installed a handler. Repeated calls have no effect.
// Thread-safe. Like signals, the handler belongs to the whole process.
void install_crash_handler();

// After a crash has been reported, `hook` gets the first line of the report. It must be async-signal-safe.
// The last hook that was set is called. Thread-safe.
void set_crash_hook(void (*hook)(absl::string_view report));

// Records, while the object lives, that the calling thread of worker `self` serves `callee` for `caller`.
// Scopes nest: the destructor restores the outer scope. The texts must outlive the object. A scope costs two
// writes.
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
