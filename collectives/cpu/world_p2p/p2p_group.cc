// How a collective of a P2pGroup runs, and how its failure reaches the other members. A member whose
// operation fails sends a note with the reason to every other member, on a channel of its own (channel + 1).
// Each member has a receive for one note posted from the start. The first reason that a member gets, its own
// or that of a note, breaks the group on that member.

#include "gradwire/collectives/cpu/world_p2p/p2p_group.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/error.h"
#include "gradwire/base/mutex.h"
#include "gradwire/collectives/cpu/world_p2p/p2p_algorithms.h"

namespace gradwire::collectives::cpu {
namespace {

// The note that a member sends to the others when an operation has failed: the code, and the beginning of the
// reason.
constexpr std::size_t kNoteBytes = 512;
constexpr absl::Duration kNoteTimeout = absl::Seconds(5);
// After its failure a member refuses messages. The note with the reason may arrive a little later than the
// refusal; an operation waits for it at most this long.
constexpr absl::Duration kNoteGrace = absl::Milliseconds(200);
constexpr std::size_t kMaxKeptScratch = std::size_t{16} << 20;

std::shared_ptr<std::string> make_note(const absl::Status& reason) {
  auto note = std::make_shared<std::string>(1, static_cast<char>(reason.code()));
  note->append(reason.message().data(), std::min(reason.message().size(), kNoteBytes - 1));
  note->resize(kNoteBytes, '\0');
  return note;
}

absl::Status read_note(const std::string& note, int from) {
  const int code = static_cast<unsigned char>(note[0]);
  const bool known = code > 0 && code <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  // The text ends at the first zero byte, if there is one.
  const absl::string_view text(note.data() + 1, ::strnlen(note.data() + 1, note.size() - 1));
  return absl::Status(known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
                      absl::StrCat("rank ", from, " reports: ", text));
}

}  // namespace

struct P2pGroup::State {
  Mutex mutex;
  absl::Status reason ABSL_GUARDED_BY(mutex);
  std::string note = std::string(kNoteBytes, '\0');
  // Ready when the note of the first member that failed has been received.
  Future<int> note_received;
  // Maps a rank of the world to its name in error messages. Set once.
  HashMap<int, int> names;

  // Returns whether this was the first reason.
  bool set_reason(const absl::Status& why) {
    MutexLock lock(mutex);
    if (!reason.ok()) return false;
    reason = why;
    return true;
  }

  // Called when the note was received from this rank of the world, or the receive failed. Returns the reason
  // in the note if it is the first one, otherwise OK.
  absl::Status receive_note(const absl::StatusOr<int>& from) {
    if (!from.ok()) return absl::OkStatus();
    const auto name = names.find(*from);
    absl::Status why = read_note(note, name == names.end() ? *from : name->second);
    return set_reason(why) ? std::move(why) : absl::OkStatus();
  }
};

P2pGroup::P2pGroup(Options options)
    : options_(std::move(options)),
      state_(std::make_shared<State>()),
      notes_(nullptr, [p2p = options_.p2p.get(), channel = options_.channel + 1](std::nullptr_t) {
        p2p->forget(channel);
      }) {
  WorldP2p* const p2p = options_.p2p.get();
  HashMap<int, int>& names = state_->names;
  for (std::size_t i = 0; i < options_.names.size(); ++i) names[options_.ranks[i]] = options_.names[i];
  if (!names.empty()) {
    p2p->name_ranks(options_.channel, names);
    p2p->name_ranks(options_.channel + 1, names);
  }
  if (size() == 1) return;
  state_->note_received = p2p->receive(kAnyRank, options_.channel + 1, 0,
                                       {state_->note.data(), state_->note.size()}, absl::InfiniteFuture());
  // Runs on a thread of the WorldP2p, whose threads end before it does.
  state_->note_received.on_ready_inline(
      [p2p, state = state_, channel = options_.channel](const absl::StatusOr<int>& from) {
        if (const absl::Status reason = state->receive_note(from); !reason.ok()) p2p->abort(channel, reason);
      });
}

P2pGroup::~P2pGroup() { options_.p2p->forget(options_.channel); }

absl::Status P2pGroup::broken() const {
  MutexLock lock(state_->mutex);
  return state_->reason;
}

void P2pGroup::abort(const std::string& reason) { break_with(absl::AbortedError(reason)); }

// The notes go out before the channel is aborted. The abort makes this member refuse messages, and its peers
// would otherwise learn only of the refusal. Each continuation keeps the note, and its channel, until the
// send has ended: the group may be destroyed before, for example while the connection is still being made.
void P2pGroup::break_with(const absl::Status& reason) {
  if (!state_->set_reason(reason)) return;
  const std::shared_ptr<std::string> note = make_note(reason);
  const absl::Time deadline = Clock::system().now() + kNoteTimeout;
  for (int position = 0; position < size(); ++position) {
    if (position == options_.position) continue;
    const int rank = options_.ranks[static_cast<std::size_t>(position)];
    options_.p2p->send(rank, options_.channel + 1, 0, {note->data(), note->size()}, deadline)
        .on_ready_inline([note, notes = notes_](const absl::Status&) {});
  }
  options_.p2p->abort(options_.channel, reason);
}

// 1. Refuse the operation if the group is broken. The first operation after a failure elsewhere reports the
//    reason itself.
// 2. Run the algorithm, and wait for its messages. Every operation has a tag of its own, so a late message is
//    not taken for one of the next operation.
// 3. After Aborted, wait a moment for the note of the member that failed first: a refusal arrives without a
//    reason.
// 4. Break the group, and abort the channel, so that all sends and receives end.
// 5. Wait for them (drain): they use the caller's buffers.
absl::Status P2pGroup::run(const char* name, absl::Time deadline, Body body) {
  if (absl::Status before = broken(); !before.ok()) {
    // A failure that another member reported meanwhile fails this member's operation, too.
    if (!std::exchange(failed_, true)) return with_context(before, name);
    return absl::AbortedError(
        absl::StrCat(name, ": an earlier operation of the group has failed: ", before.message()));
  }
  P2pOperation operation(*options_.p2p, options_.ranks, options_.position, options_.channel, next_tag_++,
                         deadline, scratch_);
  absl::Status status = body(operation);
  if (status.ok()) status = operation.finish();
  if (status.ok()) {
    // Memory is kept for the next operation, but not so much that one large operation holds it for the life
    // of the group.
    if (scratch_.size > kMaxKeptScratch) scratch_ = {};
    return status;
  }
  if (absl::IsAborted(status) && broken().ok() && size() > 1 && state_->note_received.wait_for(kNoteGrace)) {
    // The continuation of the future may not have run yet.
    (void)state_->receive_note(state_->note_received.result());
  }
  failed_ = true;
  status = with_context(status, name);
  break_with(status);
  // If the group was broken before, break_with() has done nothing.
  options_.p2p->abort(options_.channel, status);
  operation.drain();
  scratch_ = {};
  // A reason that another member reported first is nearer to the cause.
  const absl::Status first = broken();
  return first == status ? status : with_context(first, name);
}

absl::Status P2pGroup::check_root(int root) const {
  if (root >= 0 && root < size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("invalid root ", root, ": expected 0 to ", size() - 1));
}

absl::Status P2pGroup::check_list(const char* what, absl::Span<const Span> list) const {
  if (list.size() == options_.ranks.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("invalid number of ", what, ": got ", list.size(),
                                                 ", expected ", size(), ", the size of the group"));
}

absl::Status P2pGroup::check_elements(const Reducer& reducer, Span data) {
  if (data.size % reducer.element_size() == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("invalid size of the data: got ", data.size,
                                                 " bytes, expected a multiple of the element size ",
                                                 reducer.element_size()));
}

// Dissemination barrier: after round k a member knows, directly or not, that the 2^(k+1) - 1 members before
// it have arrived.
absl::Status P2pGroup::barrier(absl::Time deadline) {
  return run("barrier", deadline, [&](P2pOperation& operation) {
    for (int distance = 1; distance < size(); distance *= 2) {
      operation.send(operation.shifted(distance), {});
      GRADWIRE_RETURN_IF_ERROR(operation.receive_now(operation.shifted(-distance), {}));
    }
    return absl::OkStatus();
  });
}

absl::Status P2pGroup::broadcast(Span data, int root, absl::Time deadline) {
  GRADWIRE_RETURN_IF_ERROR(check_root(root));
  return run("broadcast", deadline, [&](P2pOperation& operation) {
    return data.size <= options_.small_bytes ? broadcast_tree(operation, data, root)
                                             : broadcast_chain(operation, data, root, options_.segment_bytes);
  });
}

absl::Status P2pGroup::reduce(Span data, int root, const Reducer& reducer, absl::Time deadline) {
  GRADWIRE_RETURN_IF_ERROR(check_root(root));
  GRADWIRE_RETURN_IF_ERROR(check_elements(reducer, data));
  return run("reduce", deadline, [&](P2pOperation& operation) {
    return data.size <= options_.small_bytes
               ? reduce_tree(operation, data, root, reducer)
               : reduce_chain(operation, data, root, reducer, options_.segment_bytes);
  });
}

absl::Status P2pGroup::all_reduce(Span data, const Reducer& reducer, absl::Time deadline) {
  GRADWIRE_RETURN_IF_ERROR(check_elements(reducer, data));
  return run("all_reduce", deadline, [&](P2pOperation& operation) {
    if (size() == 1) return absl::OkStatus();
    return data.size <= options_.small_bytes
               ? all_reduce_doubling(operation, data, reducer)
               : all_reduce_ring(operation, data, reducer, options_.segment_bytes);
  });
}

absl::Status P2pGroup::reduce_scatter(Span output, absl::Span<const Span> inputs, const Reducer& reducer,
                                      absl::Time deadline) {
  GRADWIRE_RETURN_IF_ERROR(check_list("inputs", inputs));
  std::size_t total = 0;
  for (const Span& input : inputs) {
    GRADWIRE_RETURN_IF_ERROR(check_elements(reducer, input));
    total += input.size;
  }
  const Span& own = inputs[static_cast<std::size_t>(rank())];
  if (own.size != output.size)
    return absl::InvalidArgumentError(absl::StrCat("reduce_scatter: size mismatch: the output has ",
                                                   output.size, " bytes, this member's input ", own.size));
  return run("reduce_scatter", deadline, [&](P2pOperation& operation) {
    if (size() == 1) {
      if (own.size > 0) std::memmove(output.data, own.data, own.size);
      return absl::OkStatus();
    }
    return total <= options_.small_bytes
               ? reduce_scatter_direct(operation, output, inputs, reducer)
               : reduce_scatter_ring(operation, output, inputs, reducer, options_.segment_bytes);
  });
}

// Collectives of a P2pGroup that move blocks: gather, all-gather, scatter and all-to-all.

namespace {

absl::Status check_own(const char* name, Span own, Span in_list) {
  if (own.size == in_list.size) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, ": this member's block has ", own.size,
                                                 " bytes, its entry in the list has ", in_list.size));
}

// memmove, because the caller may pass overlapping tensors.
void copy(Span to, Span from) {
  if (to.size > 0 && to.data != from.data) std::memmove(to.data, from.data, to.size);
}

}  // namespace

absl::Status P2pGroup::gather(Span data, absl::Span<const Span> outputs, int root, absl::Time deadline) {
  GRADWIRE_RETURN_IF_ERROR(check_root(root));
  const auto own = static_cast<std::size_t>(rank());
  if (rank() == root) {
    GRADWIRE_RETURN_IF_ERROR(check_list("outputs", outputs));
    GRADWIRE_RETURN_IF_ERROR(check_own("gather", data, outputs[own]));
  }
  return run("gather", deadline, [&](P2pOperation& operation) {
    if (rank() != root) {
      operation.send(root, data);
      return absl::OkStatus();
    }
    for (int by = 1; by < size(); ++by)
      operation.receive(operation.shifted(by), outputs[static_cast<std::size_t>(operation.shifted(by))]);
    copy(outputs[own], data);
    return absl::OkStatus();
  });
}

absl::Status P2pGroup::scatter(Span data, absl::Span<const Span> inputs, int root, absl::Time deadline) {
  GRADWIRE_RETURN_IF_ERROR(check_root(root));
  const auto own = static_cast<std::size_t>(rank());
  if (rank() == root) {
    GRADWIRE_RETURN_IF_ERROR(check_list("inputs", inputs));
    GRADWIRE_RETURN_IF_ERROR(check_own("scatter", data, inputs[own]));
  }
  return run("scatter", deadline, [&](P2pOperation& operation) {
    if (rank() != root) {
      operation.receive(root, data);
      return absl::OkStatus();
    }
    for (int by = 1; by < size(); ++by)
      operation.send(operation.shifted(by), inputs[static_cast<std::size_t>(operation.shifted(by))]);
    copy(data, inputs[own]);
    return absl::OkStatus();
  });
}

// Short blocks are sent to each member directly. Long ones travel around the ring, in which each member sends
// and receives one block at a time.
absl::Status P2pGroup::all_gather(Span data, absl::Span<const Span> outputs, absl::Time deadline) {
  GRADWIRE_RETURN_IF_ERROR(check_list("outputs", outputs));
  const auto own = static_cast<std::size_t>(rank());
  GRADWIRE_RETURN_IF_ERROR(check_own("all_gather", data, outputs[own]));
  std::size_t largest = 0;
  std::size_t total = 0;
  for (const Span& output : outputs) {
    largest = std::max(largest, output.size);
    total += output.size;
  }
  return run("all_gather", deadline, [&](P2pOperation& operation) {
    copy(outputs[own], data);
    if (size() == 1) return absl::OkStatus();
    if (total <= options_.small_bytes) {
      for (int by = 1; by < size(); ++by)
        operation.receive(operation.shifted(-by), outputs[static_cast<std::size_t>(operation.shifted(-by))]);
      for (int by = 1; by < size(); ++by) operation.send(operation.shifted(by), data);
      return absl::OkStatus();
    }
    const int segments = pieces_of(largest, options_.segment_bytes);
    const auto piece = [&](int by, int segment) {
      return piece_of(outputs[static_cast<std::size_t>(operation.shifted(by))], segment, segments, 1);
    };
    const auto send_from = [&](int step, int segment) { return piece(-step, segment); };
    const auto receive_into = [&](int step, int segment) { return piece(-step - 1, segment); };
    const auto received = [](int, int) {};
    const auto overwrites = [](int) { return -1; };
    return operation.run_ring({size() - 1, segments, send_from, receive_into, received, overwrites});
  });
}

// In step s each member sends to the member s positions after it and receives from the one s positions before
// it. All receives are posted at the start; at most two sends are in progress at a time.
absl::Status P2pGroup::all_to_all(absl::Span<const Span> outputs, absl::Span<const Span> inputs,
                                  absl::Time deadline) {
  GRADWIRE_RETURN_IF_ERROR(check_list("outputs", outputs));
  GRADWIRE_RETURN_IF_ERROR(check_list("inputs", inputs));
  const auto own = static_cast<std::size_t>(rank());
  GRADWIRE_RETURN_IF_ERROR(check_own("all_to_all", inputs[own], outputs[own]));
  return run("all_to_all", deadline, [&](P2pOperation& operation) {
    for (int by = 1; by < size(); ++by)
      operation.receive(operation.shifted(-by), outputs[static_cast<std::size_t>(operation.shifted(-by))]);
    std::vector<std::size_t> sent;
    for (int by = 1; by < size(); ++by) {
      if (by > 2) GRADWIRE_RETURN_IF_ERROR(operation.wait_sent(sent[static_cast<std::size_t>(by - 3)]));
      sent.push_back(
          operation.send(operation.shifted(by), inputs[static_cast<std::size_t>(operation.shifted(by))]));
    }
    copy(outputs[own], inputs[own]);
    return absl::OkStatus();
  });
}

}  // namespace gradwire::collectives::cpu
