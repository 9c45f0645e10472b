#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/base/future.h"
#include "gradwire/base/mutex.h"
#include "gradwire/rpc/call.h"
#include "gradwire/tests/chaos/call_log.h"

// What the workers of a run register, and keep.
namespace chaos {

// An object that knows who it is: a handle that reaches another one, or none, shows.
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

// A reference and what is known of it.
struct Held {
  gradwire::rpc::RRef<Cell> cell;
  int64_t tag = 0;
  // The owner has made the value and knew of the handle that this one descends from: as long as the owner
  // lives the value must be there.
  bool certain = false;

  // As an argument: the reference, and the rest as one number.
  using Wire = std::pair<gradwire::rpc::RRef<Cell>, int64_t>;
  Wire to_wire() const { return {cell, tag * 2 + (certain ? 1 : 0)}; }
  static Held from_wire(Wire wire) { return {std::move(wire.first), wire.second / 2, wire.second % 2 != 0}; }
};

// The references that this process keeps. Thread-safe.
class Keep {
 public:
  static Keep& instance();

  // Drops it instead once the keep was closed, or is full.
  void add(Held held);
  std::optional<Held> pick(uint64_t random);
  // Drops one, if there is any.
  void drop(uint64_t random);
  std::vector<Held> all();
  // Drops everything, now and from now on.
  void close();

 private:
  gradwire::Mutex mutex_;
  std::vector<Held> held_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

int64_t add(int64_t a, int64_t b);
// `size` bytes; each is 'x'.
std::string text(int64_t size);
// How often this process has run it for `tag`, with this time. Idempotent: a caller sees 1, however often its
// call is repeated.
int64_t run_once(int64_t tag);
// Takes so long, unless the caller gives up.
int64_t slow(int64_t milliseconds);
// Is never answered.
gradwire::Future<void> hold();
// Throws.
int64_t fail(int64_t n);
// Each worker calls the next of `path`; the sum of all ids. The first blocks a thread, the second does not.
int64_t chain(const std::vector<int64_t>& path);
gradwire::Future<int64_t> chain_async(const std::vector<int64_t>& path);
// An object, after a while; or an error.
Cell make_slowly(int64_t tag, int64_t milliseconds);
Cell make_failing(int64_t tag);
// Keeps the references.
void keep(const std::vector<Held::Wire>& held);
// Keeps the reference, and has the workers of `path` keep it too, one after the other.
void pass_on(const Held::Wire& held, const std::vector<int64_t>& path);
// Up to `count` of the references that the callee keeps.
std::vector<Held::Wire> lend(int64_t count);

// Makes a call that appears in the log; `start` returns its future, or throws.
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

// What must not be, for the driver to find.
void complain(const std::string& what);

}  // namespace chaos
