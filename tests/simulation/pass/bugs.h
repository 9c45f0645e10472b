#pragma once

#include <string_view>

#include "gradwire/autograd/deliberate_bug.h"

namespace gradwire::pass_simulation {

// The names of the deliberate bugs, for tests and for replay.
struct NamedBug {
  std::string_view name;
  autograd::DeliberateBug bug;
};
inline constexpr NamedBug kBugs[] = {
    {"end_while_shipping", autograd::DeliberateBug::kEndWhileShipping},
    {"count_run_twice", autograd::DeliberateBug::kCountRunTwice},
    {"answer_mark_early", autograd::DeliberateBug::kAnswerMarkEarly},
    {"forget_backward", autograd::DeliberateBug::kForgetBackward},
    {"forget_participants", autograd::DeliberateBug::kForgetParticipants},
    {"answer_first_only", autograd::DeliberateBug::kAnswerFirstOnly},
    {"serve_failed", autograd::DeliberateBug::kServeFailed},
    {"finish_at_once", autograd::DeliberateBug::kFinishAtOnce},
    {"ask_neighbours_only", autograd::DeliberateBug::kAskNeighboursOnly},
    {"keep_abort", autograd::DeliberateBug::kKeepAbort},
    {"fail_silently", autograd::DeliberateBug::kFailSilently},
    {"ignore_lost_partner", autograd::DeliberateBug::kIgnoreLostPartner},
    {"revive_context", autograd::DeliberateBug::kReviveContext},
    {"forget_touched", autograd::DeliberateBug::kForgetTouched},
    {"high_watermark", autograd::DeliberateBug::kHighWatermark},
};

}  // namespace gradwire::pass_simulation
