#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "gradwire/tests/simulation/pass/world.h"

namespace gradwire::pass_simulation {

void World::violate(std::string what) {
  if (!violation_.empty()) return;
  trace("VIOLATION: ", what);
  violation_ = std::move(what);
}

int World::state_of(const Part& part) const {
  if (!part.state.status().ok()) return Coverage::kFailed;
  if (part.state.ended()) return Coverage::kEnded;
  if (!part.took_part) return Coverage::kNew;
  const PassInfo& pass = passes_[part.pass];
  if (pass.root == part.worker && !pass.wave_over) return Coverage::kWave;
  for (const OwedReply& each : part.replies) {
    if (each.wave) return Coverage::kWave;
  }
  return part.state.remaining() > 0 ? Coverage::kWork : Coverage::kIdle;
}

void World::count_shipped(PassInfo& pass, const Tensors& tensors) {
  ++pass.messages_shipped;
  for (int i = 0; i < 8; ++i) {
    if (!(tensors.mask & 1 << i)) continue;
    if (++pass.shipped[tensors.message][i] > 1) violate("a gradient is shipped twice");
    if (!pass.fast && !(pass.expected->shipped[tensors.message] & 1 << i)) {
      violate(absl::StrCat("in ", name(pass), " tensor ", i, " of message ", tensors.message,
                           " is shipped, but no input needs it"));
    }
  }
}

void World::check_actions(const Part& part, const Actions& actions) {
  if (!actions.ended) return;
  if (part.ended) violate(absl::StrCat(worker_name(part.worker), " ends its part twice"));
  if (actions.status.ok() && part.state.remaining() > 0) {
    violate(absl::StrCat(worker_name(part.worker), " ends its part with work left"));
  }
  // The root's part ends now, and the user is notified now or a little later.
  if (actions.status.ok() && passes_[part.pass].root == part.worker) check_success(passes_[part.pass]);
}

void World::check_success(const PassInfo& pass) {
  const auto wrong = [&](const auto&... what) {
    violate(absl::StrCat(name(pass), " succeeds, but ", what...));
  };
  for (const auto& part : parts_) {
    if (&passes_[part->pass] != &pass || !part->took_part || !workers_[part->worker].alive) continue;
    if (!part->state.ended()) return wrong(worker_name(part->worker), " has not ended its part");
    if (!part->state.status().ok()) return wrong(worker_name(part->worker), " has failed");
    if (part->state.remaining() > 0) return wrong(worker_name(part->worker), " has work left");
  }
  if (pass.messages_arrived != pass.messages_shipped) return wrong("some gradients have not arrived");
  for (std::size_t m = 0; m < pass.shipped.size(); ++m) {
    for (int i = 0; i < 8; ++i) {
      if (pass.expected->shipped[m] & 1 << i && pass.shipped[m][i] == 0) {
        return wrong("tensor ", i, " of message ", m, " was not shipped");
      }
    }
  }
  for (std::size_t n = 0; n < pass.kept.size(); ++n) {
    for (int i = 0; i < 8; ++i) {
      const int expected = pass.expected->kept[n] >> i & 1;
      if (pass.kept[n][i] < expected) return wrong("a gradient of node ", n, " is missing");
      if (!pass.fast && pass.kept[n][i] > expected)
        return wrong("node ", n, " keeps a gradient that is not wanted");
    }
  }
}

// A failed pass must name a cause that really occurred.
void World::check_failure(const PassInfo& pass) {
  const absl::string_view message = pass.status.message();
  const ContextInfo& context = contexts_[pass.context];
  if (absl::StartsWith(message, "lost worker w")) {
    const int lost = message.back() - '0';
    bool matters = pass.fast || (pass.expected->participants & 1u << lost) != 0;
    for (const Edge& input : pass.inputs) matters = matters || context.graph.nodes[input.node].worker == lost;
    if (workers_[lost].alive)
      violate(absl::StrCat(name(pass), " fails because ", worker_name(lost),
                           " was lost, but that worker is alive"));
    if (!matters)
      violate(absl::StrCat(name(pass), " fails because ", worker_name(lost),
                           " was lost, but that worker does not take part"));
    return;
  }
  const bool ended = context.released || !workers_[context.origin].alive;
  const bool named = (pass.node_failed && absl::StartsWith(message, "node failed")) ||
                     (pass.cancelled && absl::StartsWith(message, "cancelled")) ||
                     (pass.timed_out && absl::StartsWith(message, "deadline exceeded")) ||
                     (ended && message == "the context was released");
  if (!named) violate(absl::StrCat(name(pass), " fails with a cause that did not occur: ", message));
}

void World::check_quiet() {
  for (const PassInfo& pass : passes_) {
    if (pass.begun && !pass.completed && workers_[pass.root].alive)
      return violate(absl::StrCat(name(pass), " never ends"));
  }
  for (const auto& part : parts_) {
    if (!part->took_part || !workers_[part->worker].alive || part->state.ended()) continue;
    return violate(
        absl::StrCat(worker_name(part->worker), " never ends its part in ", name(passes_[part->pass])));
  }
  for (const Arrival& arrival : arrivals_) {
    const Call& call = calls_[arrival.call];
    if (arrival.answered || !workers_[call.to].alive) continue;
    return violate(absl::StrCat(worker_name(call.to), " never answers ", describe(call)));
  }
  for (const Call& call : calls_) {
    if (call.completed || call.kind == Kind::kForward || !workers_[call.from].alive) continue;
    return violate(absl::StrCat(worker_name(call.from), " has no answer to ", describe(call)));
  }
}

// Returns, as a bit set, the workers that refuse a CLEANUP from `sender`: they have peers in the context, but
// `sender` is not one of them. No worker refuses a CLEANUP from the origin.
uint32_t World::refusing(const ContextInfo& context, int sender) const {
  uint32_t refusing = 0;
  if (sender == context.origin) return 0;
  const auto c = static_cast<std::size_t>(&context - contexts_.data());
  for (int w = 0; w < scenario_.workers; ++w) {
    const uint32_t parties = workers_[w].contexts[c].served_from | context.touched[w];
    if (parties != 0 && !(parties & 1u << sender)) refusing |= 1u << w;
  }
  return refusing;
}

uint32_t World::notified_of_end(const ContextInfo& context) const {
  uint32_t alive = 0;
  for (int w = 0; w < scenario_.workers; ++w) alive |= workers_[w].alive ? 1u << w : 0;
  if (!(alive & 1u << context.origin)) return alive;
  uint32_t notified = 1u << context.origin;
  for (uint32_t before = 0; before != notified;) {
    before = notified;
    for (int w = 0; w < scenario_.workers; ++w) {
      if (before & 1u << w) notified |= context.touched[w] & alive & ~refusing(context, w);
    }
  }
  return notified;
}

void World::check_released() {
  for (const ContextInfo& context : contexts_) {
    if (!context.opened) continue;
    const uint32_t notified = notified_of_end(context);
    for (int w = 0; w < scenario_.workers; ++w) {
      if (!(notified & 1u << w)) continue;
      autograd::ContextTable& table = workers_[w].table;
      const auto what = absl::StrCat("context ", context.id.counter, " of ", worker_name(context.origin));
      if (table.live(context.id))
        return violate(absl::StrCat(worker_name(w), " holds ", what, ", which has ended"));
      for (int from = 0; from < scenario_.workers; ++from) {
        // A worker that w has lost cannot send it a message.
        if (!(context.touched[from] & 1u << w) || workers_[w].lost & 1u << from) continue;
        if (table.enter(context.id, incarnation(from)) == autograd::ContextTable::Entry::kReleased) continue;
        return violate(absl::StrCat("at ", worker_name(w), " a late message of ", worker_name(from),
                                    " creates again ", what));
      }
    }
  }
}

}  // namespace gradwire::pass_simulation
