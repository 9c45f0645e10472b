#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "gradwire/base/mutex.h"

namespace gradwire {

// Receives the lines of a flight record, without their ends. Each line is a JSON object. `open`: the line
// describes work that has not ended.
class FlightSink {
 public:
  virtual ~FlightSink() = default;
  virtual void line(absl::string_view json, bool open) = 0;
};

enum class FlightDump {
  kOrdinary,
  // Inside the handler of a fatal signal: only what is async-signal-safe, and no locks.
  kCrash,
};

// Something that keeps flight records: an agent or a process group. Dumps of the process include it from
// attach() to detach(). Thread-safe.
class FlightSource {
 public:
  virtual ~FlightSource() = default;

  // Writes all lines: first a header with `reason`, last a line that says how many there were. With kCrash it
  // must be async-signal-safe.
  virtual void write(FlightSink& sink, absl::string_view reason, FlightDump dump) const = 0;
  // The most important records as text, at most `lines` of each kind.
  virtual std::string text(std::size_t lines) const = 0;
  // The name of its file, without an extension: letters, digits, '-', '_' and '.'. No two sources of a job
  // have the same name. The text lives as long as the source.
  virtual absl::string_view file_name() const = 0;
  // The directory of its file; empty: that of the environment. The text lives as long as the source.
  virtual absl::string_view directory() const { return {}; }

 protected:
  // The most derived class calls attach() at the end of its constructor and detach() at the beginning of its
  // destructor. The first attach() of a process also reads GRADWIRE_FLIGHT_DIR and sets the hook of the crash
  // handler. If 1,024 sources are attached, the next one is left out of dumps. detach() waits for a dump that
  // reads the source.
  void attach();
  void detach();

 private:
  const ProcessMark mark_;
};

// The directory of GRADWIRE_FLIGHT_DIR; empty if it is not set. Read once.
absl::string_view flight_directory();

// Writes the flight records of one source, or of all sources of the process. With a directory each source has
// a file NAME.jsonl there, which replaces the one before. A directory that does not exist is made with the
// mode 0700; files have the mode 0600. Without a directory, a shortened text is logged. A crash writes
// NAME.crash.jsonl instead. Must not be called in a signal handler. Errors: those of the file system, with
// the path; then the text is logged.
absl::Status dump_flight_record(const FlightSource& source, absl::string_view reason);
absl::Status dump_flight_records(absl::string_view reason);

// Writes the records of every source as a crash does. Async-signal-safe. Does nothing in a forked child.
void dump_flight_records_in_crash(absl::string_view reason);

}  // namespace gradwire
