#pragma once

#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/log/log_record.h"

namespace gradwire {

// Decides when the progress of a piece of work is printed. Pure: no clock, no output.
//
// A moving line appears after kDrawAfter and is drawn again every kRedraw at most. In a log the first line
// comes after kLogAfter, so work that ends sooner has none. Further lines come every kLogAfter in the first
// kOftenFor, and every kLogLater after that.
class ProgressSchedule {
 public:
  static constexpr absl::Duration kDrawAfter = absl::Seconds(1);
  static constexpr absl::Duration kRedraw = absl::Seconds(1);
  static constexpr absl::Duration kLogAfter = absl::Seconds(10);
  static constexpr absl::Duration kOftenFor = absl::Minutes(1);
  static constexpr absl::Duration kLogLater = absl::Minutes(1);

  // The work begins at `began`.
  explicit ProgressSchedule(absl::Time began)
      : began_(began), next_draw_(began + kDrawAfter), next_log_(began + kLogAfter) {}

  // When the next output is due, on a moving line or in a log.
  absl::Time next(bool moving) const { return moving ? next_draw_ : next_log_; }

  // Whether to print now. If so, the output counts as printed.
  bool due(bool moving, absl::Time now) {
    if (now < next(moving)) return false;
    if (moving) {
      next_draw_ = now + kRedraw;
      return true;
    }
    next_log_ = now + (now - began_ < kOftenFor ? kLogAfter : kLogLater);
    return true;
  }

  absl::Time began() const { return began_; }

 private:
  const absl::Time began_;
  absl::Time next_draw_;
  absl::Time next_log_;
};

// Where progress is printed. Implementations are thread-safe.
class ProgressOutput {
 public:
  virtual ~ProgressOutput() = default;
  // Whether anything is printed at all.
  virtual bool enabled() const = 0;
  // Whether draw() has an effect now.
  virtual bool can_move() const = 0;
  // Draws the moving line of `owner`, or clears it.
  virtual void draw(const void* owner, absl::string_view text) = 0;
  virtual void clear(const void* owner) = 0;
  // Whether the process reports for all workers of its host.
  virtual bool first_on_host() const { return true; }
  // Writes a line to the log.
  virtual void log(const ProgressState& state, absl::Duration elapsed, bool finished) = 0;

  // Standard error, with the settings of the log. It is never destroyed.
  static ProgressOutput& standard_error();
};

// Where and by which time a Progress is printed. Both must outlive the Progress.
struct ProgressTarget {
  ProgressOutput* output = &ProgressOutput::standard_error();
  Clock* clock = &Clock::system();
  // Whether all workers of a host would report the same. In a log only those with the local rank 0 do.
  bool once_per_host = false;
};

// Shows how a long piece of work goes, usually a wait: on a terminal one moving line, which disappears at the
// end, and in a log one line at most every 10 seconds. Work that ends within 10 seconds leaves no line in a
// log, and within one second none on a terminal.
//
// Thread-compatible. Starts no thread: the work calls update() between its steps, and in waits at the latest
// after until_next().
//
//   Progress progress;
//   while (!ready()) {
//     progress.update([&] { return ProgressState{.text = "waiting for " + names()}; });
//     wait_for(std::min(left, progress.until_next()));
//   }
class Progress {
 public:
  using Target = ProgressTarget;

  explicit Progress(const Target& target = {});
  // Clears the moving line. The end of the work is not logged.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Prints the state if that is due, and only then calls `state`. If it returns nullopt, for example because
  // another process reports the same, nothing is printed until the next output is due.
  void update(absl::FunctionRef<std::optional<ProgressState>()> state);
  // The time until update() prints again; infinite if it never does.
  absl::Duration until_next() const;
  // Clears the moving line. If the log has a line about this work, it gets a last one: `text`, and how long
  // the work took. Call it once, at the end.
  void finish(absl::string_view text);

 private:
  ProgressOutput& output_;
  Clock& clock_;
  const bool enabled_;
  const bool in_log_;  // Whether lines go to the log.
  ProgressSchedule schedule_;
  bool logged_ = false;
};

}  // namespace gradwire
