// Lets the input open and close sockets of several hosts, and checks the decisions by the rules in
// transport/tcp/admission/admission.h. The first three bytes are the bounds; then each action has one byte
// for its kind and one for the host, the socket or the time.

#include <algorithm>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/tests/fuzz/fuzzing.h"
#include "gradwire/transport/tcp/admission/admission.h"

namespace {

using gradwire::fuzzing::Input;
using gradwire::fuzzing::require;
using gradwire::transport::Admission;

struct Socket {
  Admission::Id id;
  uint64_t host;
  absl::Time since;
  bool connected = false;
};

class Model {
 public:
  explicit Model(const Admission::Bounds& bounds) : bounds_(bounds), admission_(bounds) {}

  void arrive(uint64_t host, absl::Time now) {
    const Admission::Outcome outcome = admission_.arrive("host" + std::to_string(host), now);
    const std::size_t own = arrivals(host);
    const bool own_full = own >= bounds_.arrivals_per_host;
    const bool full = own_full || arrivals() >= bounds_.arrivals;
    require(full || (outcome.admitted != 0 && outcome.replaced == 0), "a free place is not given");
    if (outcome.replaced != 0) {
      const Socket* const replaced = find(outcome.replaced);
      require(full && replaced != nullptr && !replaced->connected,
              "something else than an arrival is closed");
      const bool waited = now - replaced->since >= Admission::kProtected;
      if (own_full) {
        require(replaced->host == host && waited, "a host takes a place of another one");
      } else {
        require(arrivals(replaced->host) == most_arrivals(), "not the host with the most places gives one");
        require(waited || most_arrivals() >= own + 2, "a protected arrival is closed");
      }
      require(outcome.admitted != 0, "an arrival is closed for nothing");
      remove(outcome.replaced);
    }
    if (outcome.admitted == 0) {
      require(full && (own_full || most_arrivals() < own + 2), "a socket is refused without need");
      return;
    }
    require(outcome.admitted > last_, "an id is used again");
    last_ = outcome.admitted;
    sockets_.push_back({outcome.admitted, host, now});
  }

  void connect(uint64_t which) {
    Socket* const socket = at(which);
    if (socket == nullptr || socket->connected) return;
    const bool may = connections(socket->host) < bounds_.connections_per_host;
    require(admission_.may_connect(socket->id) == may, "a connection is allowed or refused wrongly");
    if (!may) return;
    admission_.connect(socket->id);
    socket->connected = true;
  }

  void leave(uint64_t which) {
    Socket* const socket = at(which);
    if (socket == nullptr) return;
    const Admission::Id id = socket->id;
    admission_.leave(id);
    // Again, which must do nothing.
    admission_.leave(id);
    remove(id);
  }

  void check() const {
    require(admission_.arrivals() == arrivals(), "arrivals are counted wrongly");
    require(admission_.arrivals() + admission_.connections() == sockets_.size(),
            "sockets are counted wrongly");
    require(arrivals() <= bounds_.arrivals, "more arrivals than places");
    for (const Socket& socket : sockets_) {
      require(arrivals(socket.host) <= bounds_.arrivals_per_host, "a host has too many arrivals");
      require(admission_.is_connection(socket.id) == socket.connected, "the wrong stage");
    }
  }

 private:
  std::size_t arrivals() const {
    return static_cast<std::size_t>(
        std::count_if(sockets_.begin(), sockets_.end(), [](const Socket& each) { return !each.connected; }));
  }
  std::size_t count(uint64_t host, bool connected) const {
    return static_cast<std::size_t>(std::count_if(sockets_.begin(), sockets_.end(), [=](const Socket& each) {
      return each.host == host && each.connected == connected;
    }));
  }
  std::size_t arrivals(uint64_t host) const { return count(host, false); }
  std::size_t connections(uint64_t host) const { return count(host, true); }
  std::size_t most_arrivals() const {
    std::size_t most = 0;
    for (const Socket& socket : sockets_) most = std::max(most, arrivals(socket.host));
    return most;
  }
  const Socket* find(Admission::Id id) const {
    const auto found =
        std::find_if(sockets_.begin(), sockets_.end(), [id](const Socket& each) { return each.id == id; });
    return found == sockets_.end() ? nullptr : &*found;
  }
  Socket* at(uint64_t which) { return sockets_.empty() ? nullptr : &sockets_[which % sockets_.size()]; }
  void remove(Admission::Id id) {
    std::erase_if(sockets_, [id](const Socket& each) { return each.id == id; });
  }

  const Admission::Bounds bounds_;
  Admission admission_;
  std::vector<Socket> sockets_;
  Admission::Id last_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  Input input(data, size);
  Model model({.arrivals = input.number(1) % 12,
               .arrivals_per_host = input.number(1) % 8,
               .connections_per_host = input.number(1) % 5});
  absl::Time now = absl::UnixEpoch();
  for (int i = 0; i < 400 && !input.empty(); ++i) {
    const uint64_t kind = input.number(1);
    const uint64_t number = input.number(1);
    switch (kind % 6) {
      case 0:
      case 1:
      case 2:
        model.arrive(number % 6, now);
        break;
      case 3:
        model.connect(number);
        break;
      case 4:
        model.leave(number);
        break;
      case 5:
        now += absl::Milliseconds(number);
        break;
    }
    model.check();
  }
  return 0;
}
