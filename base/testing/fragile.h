#pragma once

#include <atomic>
#include <stdexcept>

#include "gradwire/base/duty.h"

namespace gradwire::testing {

// How a type can be moved.
enum class Moves { kCopiesOnly, kNeverThrow, kMayThrow };

// A value whose nth copy or move from now on throws, and which counts what threads on duty do with it:
// copies, moves and destructors of values are code of users.
template <Moves kMoves>
class Fragile {
 public:
  // 0: never.
  static inline std::atomic<int> until_throw = 0;
  static inline std::atomic<int> on_duty_count = 0;
  static inline std::atomic<int> living = 0;

  explicit Fragile(int number) : number_(number) { note(); }
  Fragile(const Fragile& other) : number_(other.number_) {
    may_throw();
    note();
  }
  Fragile(Fragile&& other) noexcept(kMoves == Moves::kNeverThrow) requires(kMoves != Moves::kCopiesOnly)
      : number_(other.number_) {
    if constexpr (kMoves == Moves::kMayThrow) may_throw();
    note();
  }
  Fragile& operator=(const Fragile&) = default;
  ~Fragile() {
    if (on_duty()) ++on_duty_count;
    --living;
  }
  int number() const { return number_; }

 private:
  static void may_throw() {
    // Only the copy that counts it down to 0 throws.
    if (until_throw > 0 && --until_throw == 0) throw std::runtime_error("the copy failed");
  }
  static void note() {
    if (on_duty()) ++on_duty_count;
    ++living;
  }

  int number_;
};

}  // namespace gradwire::testing
