#pragma once

#include "gradwire/base/log/progress.h"
#include "gradwire/tools/launch/job/outputs.h"

namespace gradwire::tools {

// Prints what the launcher waits for: lines through its outputs, so that they are not mixed with those of
// workers, and the moving line directly. `outputs` must outlive this object. Use on the thread of the
// outputs, and draw no moving line while workers run: they may write to the same terminal.
class WaitOutput final : public ProgressOutput {
 public:
  explicit WaitOutput(WorkerOutputs& outputs) : outputs_(outputs) {}

  bool enabled() const override;
  bool can_move() const override;
  void draw(const void* owner, absl::string_view text) override;
  void clear(const void* owner) override;
  void log(const ProgressState& state, absl::Duration elapsed, bool finished) override;

 private:
  WorkerOutputs& outputs_;
};

}  // namespace gradwire::tools
