// How a collective of a MeshGroup runs, and how its failure reaches the other members. A member whose
// operation fails sends a note with the reason to every other member, on a channel of its own (channel + 1).
// Each member has a receive for one note posted from the start. The first reason that a member gets, its own
// or that of a note, breaks the group on that member.

#include "gradwire/collectives/cpu/mesh/mesh_group.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/mutex.h"
#include "gradwire/collectives/cpu/mesh/mesh_algorithms.h"

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

struct MeshGroup::State {
  Mutex mutex;
  absl::Status reason ABSL_GUARDED_BY(mutex);
  std::string note = std::string(kNoteBytes, '\0');
  // Ready when the note of the first member that failed has been received.
  Future<int> note_received;
  // Maps a rank of the world to its name in error messages. Set once.
  absl::flat_hash_map<int, int> names;

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

MeshGroup::MeshGroup(Options options)
    : options_(std::move(options)),
      state_(std::make_shared<State>()),
      notes_(nullptr, [mesh = options_.mesh.get(), channel = options_.channel + 1](std::nullptr_t) {
        mesh->forget(channel);
      }) {
  Mesh* const mesh = options_.mesh.get();
  absl::flat_hash_map<int, int>& names = state_->names;
  for (std::size_t i = 0; i < options_.names.size(); ++i) names[options_.ranks[i]] = options_.names[i];
  if (!names.empty()) {
    mesh->name_ranks(options_.channel, names);
    mesh->name_ranks(options_.channel + 1, names);
  }
  if (size() == 1) return;
  state_->note_received = mesh->receive(kAnyRank, options_.channel + 1, 0,
                                        {state_->note.data(), state_->note.size()}, absl::InfiniteFuture());
  // Runs on a thread of the mesh, whose threads end before the mesh does.
  state_->note_received.on_ready_inline(
      [mesh, state = state_, channel = options_.channel](const absl::StatusOr<int>& from) {
        if (const absl::Status reason = state->receive_note(from); !reason.ok()) mesh->abort(channel, reason);
      });
}

MeshGroup::~MeshGroup() { options_.mesh->forget(options_.channel); }

absl::Status MeshGroup::broken() const {
  MutexLock lock(state_->mutex);
  return state_->reason;
}

void MeshGroup::abort(const std::string& reason) { break_with(absl::AbortedError(reason)); }

// The notes go out before the channel is aborted. The abort makes this member refuse messages, and its peers
// would otherwise learn only of the refusal. Each continuation keeps the note, and its channel, until the
// send has ended: the group may be destroyed before, for example while the connection is still being made.
void MeshGroup::break_with(const absl::Status& reason) {
  if (!state_->set_reason(reason)) return;
  const std::shared_ptr<std::string> note = make_note(reason);
  const absl::Time deadline = Clock::system().now() + kNoteTimeout;
  for (int position = 0; position < size(); ++position) {
    if (position == options_.position) continue;
    const int rank = options_.ranks[static_cast<std::size_t>(position)];
    options_.mesh->send(rank, options_.channel + 1, 0, {note->data(), note->size()}, deadline)
        .on_ready_inline([note, notes = notes_](const absl::Status&) {});
  }
  options_.mesh->abort(options_.channel, reason);
}

// 1. Refuse the operation if the group is broken. The first operation after a failure elsewhere reports the
//    reason itself.
// 2. Run the algorithm, and wait for its messages. Every operation has a tag of its own, so a late message is
//    not taken for one of the next operation.
// 3. After Aborted, wait a moment for the note of the member that failed first: a refusal arrives without a
//    reason.
// 4. Break the group, and abort the channel, so that all sends and receives end.
// 5. Wait for them (drain): they use the caller's buffers.
absl::Status MeshGroup::run(const char* name, absl::Time deadline, Body body) {
  if (absl::Status before = broken(); !before.ok()) {
    // A failure that another member reported meanwhile fails this member's operation, too.
    if (!std::exchange(failed_, true)) return with_context(before, name);
    return absl::AbortedError(
        absl::StrCat(name, ": an earlier operation of the group has failed: ", before.message()));
  }
  MeshOperation operation(*options_.mesh, options_.ranks, options_.position, options_.channel, next_tag_++,
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
  options_.mesh->abort(options_.channel, status);
  operation.drain();
  scratch_ = {};
  // A reason that another member reported first is nearer to the cause.
  const absl::Status first = broken();
  return first == status ? status : with_context(first, name);
}

absl::Status MeshGroup::check_root(int root) const {
  if (root >= 0 && root < size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("invalid root ", root, ": expected 0 to ", size() - 1));
}

absl::Status MeshGroup::check_list(const char* what, absl::Span<const Span> list) const {
  if (list.size() == options_.ranks.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("invalid number of ", what, ": got ", list.size(),
                                                 ", expected ", size(), ", the size of the group"));
}

absl::Status MeshGroup::check_elements(const Reducer& reducer, Span data) {
  if (data.size % reducer.element_size() == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("invalid size of the data: got ", data.size,
                                                 " bytes, expected a multiple of the element size ",
                                                 reducer.element_size()));
}

// Dissemination barrier: after round k a member knows, directly or not, that the 2^(k+1) - 1 members before
// it have arrived.
absl::Status MeshGroup::barrier(absl::Time deadline) {
  return run("barrier", deadline, [&](MeshOperation& operation) {
    for (int distance = 1; distance < size(); distance *= 2) {
      operation.send(operation.shifted(distance), {});
      GRADWIRE_RETURN_IF_ERROR(operation.receive_now(operation.shifted(-distance), {}));
    }
    return absl::OkStatus();
  });
}

absl::Status MeshGroup::broadcast(Span data, int root, absl::Time deadline) {
  GRADWIRE_RETURN_IF_ERROR(check_root(root));
  return run("broadcast", deadline, [&](MeshOperation& operation) {
    return data.size <= options_.small_bytes ? broadcast_tree(operation, data, root)
                                             : broadcast_chain(operation, data, root, options_.segment_bytes);
  });
}

absl::Status MeshGroup::reduce(Span data, int root, const Reducer& reducer, absl::Time deadline) {
  GRADWIRE_RETURN_IF_ERROR(check_root(root));
  GRADWIRE_RETURN_IF_ERROR(check_elements(reducer, data));
  return run("reduce", deadline, [&](MeshOperation& operation) {
    return data.size <= options_.small_bytes
               ? reduce_tree(operation, data, root, reducer)
               : reduce_chain(operation, data, root, reducer, options_.segment_bytes);
  });
}

absl::Status MeshGroup::all_reduce(Span data, const Reducer& reducer, absl::Time deadline) {
  GRADWIRE_RETURN_IF_ERROR(check_elements(reducer, data));
  return run("all_reduce", deadline, [&](MeshOperation& operation) {
    if (size() == 1) return absl::OkStatus();
    return data.size <= options_.small_bytes
               ? all_reduce_doubling(operation, data, reducer)
               : all_reduce_ring(operation, data, reducer, options_.segment_bytes);
  });
}

absl::Status MeshGroup::reduce_scatter(Span output, absl::Span<const Span> inputs, const Reducer& reducer,
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
  return run("reduce_scatter", deadline, [&](MeshOperation& operation) {
    if (size() == 1) {
      if (own.size > 0) std::memmove(output.data, own.data, own.size);
      return absl::OkStatus();
    }
    return total <= options_.small_bytes
               ? reduce_scatter_direct(operation, output, inputs, reducer)
               : reduce_scatter_ring(operation, output, inputs, reducer, options_.segment_bytes);
  });
}

}  // namespace gradwire::collectives::cpu
