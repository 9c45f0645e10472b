#include "gradwire/tests/simulation/pass/world.h"

namespace gradwire::pass_simulation {

std::string World::describe(const std::vector<Tensors>& tensors) const {
  std::string text;
  for (const Tensors& each : tensors) {
    absl::StrAppend(&text, " m", each.message, "[");
    for (int i = 0; i < 8; ++i) {
      if (each.mask & 1 << i) absl::StrAppend(&text, text.back() == '[' ? "" : ",", i);
    }
    absl::StrAppend(&text, "]");
  }
  return text;
}

std::string World::describe(const Call& call) const {
  static constexpr const char* kKinds[] = {"MARK",  "NEEDED",  "RUN",     "FINISH",
                                           "ABORT", "CLEANUP", "forward", "inputs"};
  std::string text = kKinds[static_cast<int>(call.kind)];
  if (call.kind == Kind::kMark || call.kind == Kind::kNeeded) absl::StrAppend(&text, " ", call.number);
  absl::StrAppend(&text, describe(call.tensors));
  if (call.kind == Kind::kAbort) absl::StrAppend(&text, " (", call.reason.message(), ")");
  if (call.kind == Kind::kCleanup) absl::StrAppend(&text, " below ", call.low);
  absl::StrAppend(&text, " of ",
                  call.pass >= 0 ? name(passes_[call.pass]) : absl::StrCat("context ", call.context));
  return text;
}

std::string World::name(const PassInfo& pass) const {
  return absl::StrCat("pass ", &pass - passes_.data(), " (",
                      pass.fast      ? "fast"
                      : pass.planned ? "planned"
                                     : "smart",
                      pass.inputs_only ? ", inputs" : "", ")");
}

}  // namespace gradwire::pass_simulation
