#include "gradwire/tools/launch/job/wait_output.h"

#include "absl/strings/str_cat.h"
#include "gradwire/base/log/line_output.h"
#include "gradwire/base/log/log_settings.h"
#include "gradwire/tools/launch/io/launcher_lines.h"

namespace gradwire::tools {

bool WaitOutput::enabled() const { return log_settings().progress(); }

bool WaitOutput::can_move() const {
  return moves_ && log_settings().terminal && LineOutput::standard_error().can_move();
}

// Lines that the outputs have not written yet would be written behind the moving line.
void WaitOutput::draw(const void* owner, absl::string_view text) {
  if (outputs_.flushed()) LineOutput::standard_error().draw(owner, absl::StrCat("launch: ", text));
}

void WaitOutput::clear(const void* owner) { LineOutput::standard_error().clear(owner); }

void WaitOutput::log(const ProgressState& state, absl::Duration elapsed, bool finished) {
  outputs_.print_lines(launcher_progress(state, elapsed, finished));
}

}  // namespace gradwire::tools
