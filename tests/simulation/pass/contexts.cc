// The steps of Contexts and Engine: which workers a context has reached, and which must be notified of its
// end.
#include <algorithm>
#include <utility>

#include "gradwire/tests/simulation/pass/world.h"

namespace gradwire::pass_simulation {

using autograd::ContextTable;

void World::cover(int worker, int context, Coverage::ContextEvent event) {
  if (coverage_ == nullptr) return;
  const Local& local = workers_[worker].contexts[context];
  coverage_->hit(Coverage::kContext,
                 local.live       ? Coverage::kLive
                 : local.notified ? Coverage::kGone
                                  : Coverage::kUnknown,
                 event);
}

int World::find_context(const rpc::Id& id) const {
  for (std::size_t c = 0; c < contexts_.size(); ++c) {
    if (contexts_[c].id == id) return static_cast<int>(c);
  }
  return -1;
}

void World::open(int c) {
  ContextInfo& context = contexts_[c];
  WorkerState& worker = workers_[context.origin];
  if (!worker.alive) return;
  context.opened = true;
  context.id = {incarnation(context.origin), worker.next_counter++};
  trace(worker_name(context.origin), " opens context ", c);
  enter(context.origin, c, context.origin, Coverage::kOpened);
}

bool World::enter(int w, int c, int from, Coverage::ContextEvent event) {
  Local& local = workers_[w].contexts[c];
  cover(w, c, event);
  const ContextTable::Entry entry =
      workers_[w].table.enter(contexts_[c].id, w == from ? 0 : incarnation(from));
  if (w != from) local.served_from |= 1u << from;
  if (entry == ContextTable::Entry::kReleased) {
    // A message may be refused only if this worker was notified of the context's end, or if the sender itself
    // has sent a CLEANUP.
    if (!local.notified && !(local.cleanups_from & 1u << from))
      violate(absl::StrCat(worker_name(w), " refuses context ", c, ", but was never notified of its end"));
    return false;
  }
  // A context that is live after the notification is about to be ended. But it must not be created again.
  if (local.notified && entry == ContextTable::Entry::kNew)
    violate(absl::StrCat("context ", c, " is created again at ", worker_name(w), " after its end"));
  local.live = true;
  return true;
}

bool World::touch(int w, int c, int to) {
  cover(w, c, Coverage::kSends);
  if (!workers_[w].contexts[c].live) return false;
  if (to == w) return true;
  contexts_[c].touched[w] |= 1u << to;
  if (workers_[w].table.touch(contexts_[c].id, incarnation(to))) return true;
  violate(absl::StrCat(worker_name(w), " cannot send in context ", c, ", which is live at this worker"));
  return false;
}

void World::release_by_user(int c) {
  ContextInfo& context = contexts_[c];
  if (!context.opened || context.released || !workers_[context.origin].alive) return;
  context.released = true;
  trace(worker_name(context.origin), ": the user releases context ", c);
  cover(context.origin, c, Coverage::kUserRelease);
  release_context(context.origin, c, context.origin);
}

// Records that worker `w` was notified of the end of every context of origin `below.origin` whose counter is
// lower than `below.counter`.
void World::mark_notified(int w, const rpc::Id& below) {
  for (std::size_t c = 0; c < contexts_.size(); ++c) {
    if (!contexts_[c].opened || contexts_[c].id.origin != below.origin ||
        contexts_[c].id.counter >= below.counter)
      continue;
    workers_[w].contexts[c].notified = true;
    const bool ended = contexts_[c].released || !workers_[contexts_[c].origin].alive;
    if (!ended)
      violate(absl::StrCat(worker_name(w), " is notified of the end of context ", c, ", which is live"));
  }
}

// Ends a context at worker `w`: `w` is the origin and its user has released the context, or the origin,
// `from`, is lost.
void World::release_context(int w, int c, int from) {
  WorkerState& worker = workers_[w];
  const rpc::Id context = contexts_[c].id;
  auto touched = worker.table.release(context, 0);
  uint64_t low = 0;
  if (contexts_[c].origin == w) {
    low = worker.table.low(incarnation(w), worker.next_counter);
    worker.table.release(context, low);
  }
  worker.contexts[c].notified = true;
  mark_notified(w, {context.origin, low});
  std::vector<ContextTable::Ended> ended;
  if (touched.has_value()) ended.push_back({context, *std::move(touched)});
  end_contexts(w, c, std::move(ended), low, from);
}

void World::serve_cleanup(int w, int c, uint64_t low, int from) {
  Local& local = workers_[w].contexts[c];
  cover(w, c, Coverage::kCleanup);
  // Only the user of worker `w` can end a context of which `w` is the origin.
  if (contexts_[c].origin == w) return;
  const ContextTable::Cleanup cleanup = workers_[w].table.cleanup(contexts_[c].id, low, incarnation(from));
  local.cleanups_from |= 1u << from;
  if (from == contexts_[c].origin) {
    local.notified = true;
    mark_notified(w, {contexts_[c].id.origin, low});
  }
  if (cleanup.refused != (local.live && from != contexts_[c].origin && !local.notified &&
                          std::none_of(cleanup.ended.begin(), cleanup.ended.end(),
                                       [&](const auto& each) { return each.context == contexts_[c].id; }))) {
    violate(absl::StrCat(
        worker_name(w), " refused a CLEANUP without reporting it, or reported a refusal of an accepted one"));
  }
  const bool is_party = ((local.served_from | contexts_[c].touched[w]) & 1u << from) != 0;
  if (cleanup.refused && is_party && !(workers_[w].lost & 1u << from)) {
    violate(absl::StrCat(worker_name(w), " refuses a CLEANUP of ", worker_name(from),
                         ", a participant of the context"));
  }
  end_contexts(w, c, cleanup.ended, low, from);
}

// Aborts the passes of contexts that the table has ended, and sends CLEANUP to the workers that they reached.
// `c` is the context that the CLEANUP from `from` named, or -1 when there was none.
void World::end_contexts(int w, int c, std::vector<ContextTable::Ended> ended, uint64_t low, int from) {
  // Sort the contexts: the table returns them in the order of a hash table, which differs between processes.
  std::sort(ended.begin(), ended.end(),
            [](const ContextTable::Ended& a, const ContextTable::Ended& b) { return a.context < b.context; });
  for (ContextTable::Ended& each : ended) std::sort(each.touched.begin(), each.touched.end());
  std::vector<int> released;
  for (const ContextTable::Ended& each : ended) {
    const int index = find_context(each.context);
    if (index != c) cover(w, index, Coverage::kOverdue);
    released.push_back(index);
  }
  for (int index : released) {
    Local& local = workers_[w].contexts[index];
    local.live = false;
    local.notified = true;
    if (!contexts_[index].released && workers_[contexts_[index].origin].alive) {
      return violate(absl::StrCat("context ", index, " ends at ", worker_name(w), " before its release"));
    }
    for (int part : std::exchange(local.parts, {})) {
      cover(*parts_[part], Coverage::kReleased);
      abort(part, absl::AbortedError("the context was released"));
    }
  }
  for (const ContextTable::Ended& each : ended) {
    for (uint64_t to : each.touched) {
      const int index = find_context(each.context);
      // Do not answer a CLEANUP with a CLEANUP of the same context. The sender may not know the end of the
      // other contexts, so it is notified of these.
      if ((worker_of(to) == from && index == c) || to == each.context.origin) continue;
      call({.kind = Kind::kCleanup, .from = w, .to = worker_of(to), .context = index, .low = low});
    }
  }
}

void World::straggle() {
  const int c = static_cast<int>(random_.below(contexts_.size()));
  const int from = static_cast<int>(random_.below(workers_.size()));
  const int to = static_cast<int>(random_.below(workers_.size()));
  if (!contexts_[c].opened || !workers_[from].alive || from == to) return;
  if (!touch(from, c, to)) return;
  call({.kind = Kind::kForward, .from = from, .to = to, .context = c});
  // A late message may cause more late messages of the same context.
  if (random_.below(2) == 0) scheduler_.add(now_ + some_delay(), Event::Kind::kStraggle);
}

void World::lose(int w, int dead, int step) {
  WorkerState& worker = workers_[w];
  const uint64_t lost = incarnation(dead);
  switch (step) {
    case 0:
      trace(worker_name(w), " is notified that ", worker_name(dead), " is lost");
      worker.lost |= 1u << dead;
      return;
    case 1: {
      std::vector<int> parts;
      for (const Local& local : worker.contexts)
        parts.insert(parts.end(), local.parts.begin(), local.parts.end());
      for (int part : parts) worker_lost(part, dead);
      return;
    }
    case 2: {
      end_contexts(w, -1, worker.table.worker_lost(lost), 0, dead);
      const std::vector<rpc::Id> orphans = worker.table.origin_lost(lost);
      for (std::size_t c = 0; c < contexts_.size(); ++c) {
        const bool of_dead = contexts_[c].opened && contexts_[c].id.origin == lost;
        cover(w, static_cast<int>(c), of_dead ? Coverage::kOriginLost : Coverage::kPeerLost);
        if (of_dead) worker.contexts[c].notified = true;
      }
      for (const rpc::Id& orphan : orphans) release_context(w, find_context(orphan), dead);
      return;
    }
    default:
      return fail_calls(w, dead);
  }
}

int World::find_pass(int w, int pass) {
  Local& local = workers_[w].contexts[passes_[pass].context];
  if (!local.live) return -1;
  for (int part : local.parts) {
    if (parts_[part]->pass == pass) return part;
  }
  return add_part(w, pass);
}

int World::add_part(int w, int pass) {
  const int index = static_cast<int>(parts_.size());
  const int context = passes_[pass].context;
  parts_.push_back(std::make_unique<Part>(w, pass, passes_[pass], contexts_[context].graph));
  workers_[w].contexts[context].parts.push_back(index);
  return index;
}

}  // namespace gradwire::pass_simulation
