#include "gradwire/base/log/progress.h"

#include <unistd.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gradwire/base/log/line_output.h"
#include "gradwire/base/log/log.h"
#include "gradwire/base/log/log_settings.h"

namespace gradwire {
namespace {

class StandardError final : public ProgressOutput {
 public:
  bool enabled() const override { return log_settings().progress(); }
  bool first_on_host() const override { return log_settings().first_on_host; }
  bool can_move() const override {
    return log_settings().terminal && LineOutput::standard_error().can_move();
  }
  void draw(const void* owner, absl::string_view text) override {
    LineOutput::standard_error().draw(owner, absl::StrCat("gradwire: ", text));
  }
  void clear(const void* owner) override { LineOutput::standard_error().clear(owner); }
  void log(const ProgressState& state, absl::Duration elapsed, bool finished) override {
    const std::string worker = log_worker();
    LineOutput::standard_error().write(format_record({.level = LogLevel::kInfo,
                                                      .time = absl::Now(),
                                                      .pid = getpid(),
                                                      .rank = log_settings().rank,
                                                      .worker = worker,
                                                      .progress = &state,
                                                      .elapsed = elapsed,
                                                      .finished = finished},
                                                     log_settings().format));
  }
};

}  // namespace

ProgressOutput& ProgressOutput::standard_error() {
  static StandardError* const output = new StandardError;
  return *output;
}

Progress::Progress(const Target& target)
    : output_(*target.output),
      clock_(*target.clock),
      enabled_(output_.enabled()),
      in_log_(!target.once_per_host || output_.first_on_host()),
      schedule_(clock_.now()) {}

Progress::~Progress() { output_.clear(this); }

// can_move() makes system calls. So it is asked only when output could be due.
void Progress::update(absl::FunctionRef<std::optional<ProgressState>()> state) {
  const absl::Time now = clock_.now();
  if (!enabled_ || now < std::min(schedule_.next(true), schedule_.next(false))) return;
  const bool moving = output_.can_move();
  if (!schedule_.due(moving, now) || (!moving && !in_log_)) return;
  const std::optional<ProgressState> current = state();
  if (!current.has_value()) return;
  const absl::Duration elapsed = now - schedule_.began();
  if (moving) {
    output_.draw(this, printable(progress_text(*current, elapsed)));
  } else {
    logged_ = true;
    output_.log(*current, elapsed, /*finished=*/false);
  }
}

absl::Duration Progress::until_next() const {
  if (!enabled_) return absl::InfiniteDuration();
  return std::max(schedule_.next(output_.can_move()) - clock_.now(), absl::ZeroDuration());
}

void Progress::finish(absl::string_view text) {
  output_.clear(this);
  if (!enabled_ || !logged_) return;
  output_.log({.text = std::string(text)}, clock_.now() - schedule_.began(), /*finished=*/true);
}

}  // namespace gradwire
