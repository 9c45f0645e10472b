#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/transport/tcp/socket/address.h"

namespace gradwire::transport {

// Looks up host names, which may take long, on threads of its own. A name that several askers want is looked
// up once. At most kMostThreads names are looked up at the same time; the others wait. A thread ends when no
// name waits.
//
// Thread-safe. A lookup cannot be interrupted: the destructor does not wait for it. Its thread then ends
// without calling an asker.
class NameLookups {
 public:
  using Result = absl::StatusOr<std::vector<SocketAddress>>;

  class Asker {
   public:
    virtual ~Asker() = default;
    // Called once for each call of find(), on another thread. Must return soon.
    virtual void found(const std::string& host, const Result& result) = 0;
  };

  static constexpr int kMostThreads = 8;

  // `look_up` is called without a lock. Empty: look_up_host().
  explicit NameLookups(HostLookup look_up);
  ~NameLookups();
  NameLookups(const NameLookups&) = delete;
  NameLookups& operator=(const NameLookups&) = delete;

  // Returns at once. A name whose askers have all been destroyed before its lookup begins is not looked up.
  // The result is Unavailable if the name is not found, or a local shortage (base/process/shortage.h) if the
  // system has no threads left.
  void find(const std::string& host, std::weak_ptr<Asker> asker);

 private:
  struct State;

  static void run(State& state);

  // Shared with the threads, because a lookup may outlive this object.
  const std::shared_ptr<State> state_;
};

}  // namespace gradwire::transport
