#pragma once

#include "gradwire/base/log/progress.h"
#include "gradwire/tools/launch/job/outputs.h"

namespace gradwire::tools {

// Prints what the launcher waits for: lines through its outputs, so that they are not mixed with those of
// workers, and the moving line directly. `outputs` must outlive this object. Use on the thread of the
// outputs.
class WaitOutput final : public ProgressOutput {
 public:
  // `moves`: false while workers run, which may write to the same terminal. Then only lines are printed.
  explicit WaitOutput(WorkerOutputs& outputs, bool moves = true) : outputs_(outputs), moves_(moves) {}

  bool enabled() const override;
  bool can_move() const override;
  void draw(const void* owner, absl::string_view text) override;
  void clear(const void* owner) override;
  void log(const ProgressState& state, absl::Duration elapsed, bool finished) override;

 private:
  WorkerOutputs& outputs_;
  const bool moves_;
};

}  // namespace gradwire::tools
