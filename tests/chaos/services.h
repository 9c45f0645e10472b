#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/base/mutex.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/tests/chaos/call_log.h"

// The functions and classes that the workers of a run register, and the references that they hold.
namespace chaos {

// An object with a unique tag. A reference that reaches a wrong object is noticed by the tag.
class Cell {
 public:
  explicit Cell(int64_t tag) : tag_(tag) {}
  int64_t tag() const { return tag_; }
  int64_t plus(int64_t n) const { return tag_ + n; }

 private:
  int64_t tag_;
};

}  // namespace chaos

namespace gradwire::rpc {

template <>
struct Codec<chaos::Cell> {
  static std::string type_name() { return "chaos.Cell"; }
  static absl::Status encode(const chaos::Cell& cell, Encoder& encoder, proto::Value& out) {
    return encode_value<int64_t>(cell.tag(), encoder, out);
  }
  static absl::StatusOr<chaos::Cell> decode(const proto::Value& in, Decoder& decoder) {
    GRADWIRE_ASSIGN_OR_RETURN(int64_t tag, decode_value<int64_t>(in, decoder));
    return chaos::Cell(tag);
  }
};

}  // namespace gradwire::rpc

namespace chaos {

// A reference, and what its holder knows about the value.
struct Held {
  gradwire::rpc::RRef<Cell> cell;
  int64_t tag = 0;
  // Whether the owner has created the value, and knew of the handle from which this one was copied. Then the
  // value must be available while the owner lives.
  bool certain = false;

  // The form of a Held as an argument of a call: the reference, and a number that contains the other members.
  using Wire = std::pair<gradwire::rpc::RRef<Cell>, int64_t>;
  Wire to_wire() const { return {cell, tag * 2 + (certain ? 1 : 0)}; }
  static Held from_wire(Wire wire) { return {std::move(wire.first), wire.second / 2, wire.second % 2 != 0}; }
};

// The references that this process holds. Thread-safe.
class HeldReferences {
 public:
  static HeldReferences& instance();

  // Adds a reference, or drops it if the set is full or closed.
  void add(Held held);
  // Returns a random reference, or nullopt if the set is empty.
  std::optional<Held> pick(uint64_t random);
  // Drops a random reference, if the set is not empty.
  void drop(uint64_t random);
  std::vector<Held> all();
  // Drops all references. References that are added later are dropped, too.
  void close();

 private:
  gradwire::Mutex mutex_;
  std::vector<Held> held_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

int64_t add(int64_t a, int64_t b);
// Returns `size` times 'x'.
std::string text(int64_t size);
// Returns how often this process has run it for `tag`, including this time. Idempotent, so a caller must get
// 1 also if its call is repeated.
int64_t run_once(int64_t tag);
// Returns after this time, or earlier if the call is cancelled.
int64_t slow(int64_t milliseconds);
// Never completes, unless the call is cancelled.
gradwire::Future<void> hold();
// Throws.
int64_t fail(int64_t n);
// Each worker calls the next one of `path`. Returns the sum of all ids. The first function blocks a thread,
// the second one does not.
int64_t chain(const std::vector<int64_t>& path);
gradwire::Future<int64_t> chain_async(const std::vector<int64_t>& path);
// Returns a cell after a while.
Cell make_slowly(int64_t tag, int64_t milliseconds);
// Throws.
Cell make_failing(int64_t tag);
// Adds the references to those that the callee holds.
void keep(const std::vector<Held::Wire>& held);
// As keep() for one reference, and then calls pass_on() on the next worker of `path`.
void pass_on(const Held::Wire& held, const std::vector<int64_t>& path);
// Returns up to `count` of the references that the callee holds.
std::vector<Held::Wire> lend(int64_t count);

// Makes a call and writes it to the CallLog. `start` returns the future of the call, or throws.
template <class T, class F>
gradwire::Future<T> logged(const std::string& operation, const std::vector<int>& path, absl::Duration timeout,
                           F start) {
  const uint64_t id = CallLog::instance().begin(operation, path, timeout);
  gradwire::Future<T> future = [&]() -> gradwire::Future<T> {
    try {
      return start();
    } catch (const gradwire::Error& error) {
      return gradwire::Future<T>(error.status());
    }
  }();
  future.on_ready_inline([id](const auto& result) {
    CallLog::instance().end(id, gradwire::future_internal::status_of(result));
  });
  return future;
}

// Writes a violation of a guarantee to the CallLog, so that the driver fails the run.
void report_violation(const std::string& what);

}  // namespace chaos
