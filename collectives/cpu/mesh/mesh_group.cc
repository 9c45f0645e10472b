#include "gradwire/collectives/cpu/mesh/mesh_group.h"

#include <algorithm>
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

// What a member tells the others when an operation has failed: the code, and the beginning of the reason.
constexpr std::size_t kNoteBytes = 512;
constexpr absl::Duration kNoteTimeout = absl::Seconds(5);
// A member refuses what comes after its failure, and tells why: which may come a little later.
constexpr absl::Duration kNoteTimeout = absl::Milliseconds(200);
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
  // Up to the first zero: note has one, or is cut.
  const absl::string_view text(note.data() + 1, ::strnlen(note.data() + 1, note.size() - 1));
  return absl::Status(known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
                      absl::StrCat("rank ", from, " says: ", text));
}

}  // namespace

struct MeshGroup::State {
  Mutex mutex;
  absl::Status reason ABSL_GUARDED_BY(mutex);
  std::string note = std::string(kNoteBytes, '\0');
  // Of the note of whoever fails first.
  Future<int> told;
  // What errors call the world's ranks; set once.
  absl::flat_hash_map<int, int> names;

  // Whether it was the first.
  bool set(const absl::Status& why) {
    MutexLock lock(mutex);
    if (!reason.ok()) return false;
    reason = why;
    return true;
  }

  // The note has come from this rank of the world, or not. Returns what it says if it is the first reason.
  absl::Status hear(const absl::StatusOr<int>& from) {
    if (!from.ok()) return absl::OkStatus();
    const auto name = names.find(*from);
    absl::Status why = read_note(note, name == names.end() ? *from : name->second);
    return set(why) ? std::move(why) : absl::OkStatus();
  }
};

MeshGroup::MeshGroup(Options options) : options_(std::move(options)), state_(std::make_shared<State>()) {
  Mesh* const mesh = options_.mesh.get();
  absl::flat_hash_map<int, int>& names = state_->names;
  for (std::size_t i = 0; i < options_.names.size(); ++i) names[options_.ranks[i]] = options_.names[i];
  if (!names.empty()) {
    mesh->name_ranks(options_.channel, names);
    mesh->name_ranks(options_.channel + 1, names);
  }
  if (size() == 1) return;
  state_->told = mesh->receive(kAnyRank, options_.channel + 1, 0, {state_->note.data(), state_->note.size()},
                               absl::InfiniteFuture());
  // On one of the mesh's threads, which end before it does.
  state_->told.on_ready_inline(
      [mesh, state = state_, channel = options_.channel](const absl::StatusOr<int>& from) {
        if (const absl::Status reason = state->hear(from); !reason.ok()) mesh->abort(channel, reason);
      });
}

MeshGroup::~MeshGroup() {
  options_.mesh->forget(options_.channel);
  options_.mesh->forget(options_.channel + 1);
}

absl::Status MeshGroup::broken() const {
  MutexLock lock(state_->mutex);
  return state_->reason;
}

void MeshGroup::abort(const std::string& reason) { break_with(absl::AbortedError(reason)); }

void MeshGroup::break_with(const absl::Status& reason) {
  if (!state_->set(reason)) return;
  const std::shared_ptr<std::string> note = make_note(reason);
  const absl::Time deadline = Clock::system().now() + kNoteTimeout;
  for (int position = 0; position < size(); ++position) {
    if (position == options_.position) continue;
    const int rank = options_.ranks[static_cast<std::size_t>(position)];
    options_.mesh->send(rank, options_.channel + 1, 0, {note->data(), note->size()}, deadline)
        .on_ready_inline([note](const absl::Status&) {});
  }
  options_.mesh->abort(options_.channel, reason);
}

absl::Status MeshGroup::run(const char* name, absl::Time deadline, Body body) {
  if (absl::Status before = broken(); !before.ok()) {
    // What another member said meanwhile fails this member's operation, too.
    if (!std::exchange(failed_, true)) return with_context(before, name);
    return absl::AbortedError(
        absl::StrCat(name, ": an operation of the group has failed before: ", before.message()));
  }
  MeshOperation operation(*options_.mesh, options_.ranks, options_.position, options_.channel, next_tag_++,
                          deadline, scratch_);
  absl::Status status = body(operation);
  if (status.ok()) status = operation.finish();
  if (status.ok()) {
    if (scratch_.size > kMaxKeptScratch) scratch_ = {};
    return status;
  }
  if (absl::IsAborted(status) && broken().ok() && size() > 1 && state_->told.wait_for(kNoteTimeout)) {
    // The thread that completed the future may not have come to it yet.
    (void)state_->hear(state_->told.result());
  }
  failed_ = true;
  status = with_context(status, name);
  break_with(status);
  options_.mesh->abort(options_.channel, status);
  operation.drain();
  scratch_ = {};
  // What another member has said is nearer to the cause.
  const absl::Status first = broken();
  return first == status ? status : with_context(first, name);
}

absl::Status MeshGroup::check_root(int root) const {
  if (root >= 0 && root < size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("there is no member ", root, " in a group of ", size()));
}

absl::Status MeshGroup::check_list(const char* what, absl::Span<const Span> list) const {
  if (list.size() == options_.ranks.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a list of ", list.size(), " ", what, " was given in a group of ", size()));
}

absl::Status MeshGroup::check_elements(const Reducer& reducer, Span data) {
  if (data.size % reducer.element_size() == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(data.size, " bytes are no whole number of elements of ",
                                                 reducer.element_size(), " bytes"));
}

// By dissemination: after round k a member has heard, directly or not, from the 2^(k+1) - 1 before it.
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
    return absl::InvalidArgumentError("reduce_scatter: the output has another size than this member's input");
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
