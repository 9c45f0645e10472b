#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/mutex.h"

namespace gradwire::gateway {

// One reached limit, as ErrorDetail reports it.
struct Reached {
  std::string limit;
  std::string option;
};
// Returns the limit of a ResourceExhausted status that Quotas made; empty for others.
Reached reached_limit(const absl::Status& status);

// The error of a reached limit: its field in Info, the option that sets it, and its value.
absl::Status limit_error(absl::string_view what, absl::string_view limit, absl::string_view option,
                         uint64_t value);

// Counts what clients use, and refuses what exceeds a limit. Thread-safe. Permits may outlive it.
class Quotas {
 public:
  struct Bounds {
    uint64_t calls_per_client = 0;
    uint64_t calls = 0;
    uint64_t sessions_per_client = 0;
    uint64_t sessions = 0;
    uint64_t bytes_per_call = 0;
    uint64_t bytes_per_client = 0;
    uint64_t bytes = 0;
  };
  explicit Quotas(const Bounds& bounds);

  // The share of a limit that a client has; the destructor gives it back. Movable.
  class Permit {
   public:
    Permit() = default;
    ~Permit();
    Permit(Permit&& other) noexcept;
    Permit& operator=(Permit&& other) noexcept;
    explicit operator bool() const { return state_ != nullptr; }

    // Adds bytes to a call's permit. ResourceExhausted names the limit.
    absl::Status add_bytes(uint64_t bytes);
    // Gives bytes back before the end: all, or so many of those that were added.
    void drop_bytes();
    void drop_bytes(uint64_t bytes);

   private:
    friend class Quotas;
    std::shared_ptr<void> state_;
    std::string client_;
    uint64_t bytes_ = 0;
    bool session_ = false;
  };

  // ResourceExhausted names the limit.
  absl::StatusOr<Permit> enter_call(const std::string& client);
  absl::StatusOr<Permit> enter_session(const std::string& client);

  // The numbers in use, for tests.
  uint64_t calls() const;
  uint64_t sessions() const;
  uint64_t bytes() const;
  std::size_t clients() const;

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace gradwire::gateway
