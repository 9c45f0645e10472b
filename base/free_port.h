#pragma once

namespace gradwire {

// A TCP port at the loopback interface that no process listens on, for tests of programs that take a port as
// an argument.
//
// While it exists, nobody else gets the port: neither another FreePort, in whatever process, nor the system,
// for an outgoing connection or for a program that lets it choose. Programs that set SO_REUSEADDR, as servers
// do, can listen on it, also in turn; a connection while none listens is refused.
class FreePort {
 public:
  FreePort();
  ~FreePort();
  FreePort(const FreePort&) = delete;
  FreePort& operator=(const FreePort&) = delete;

  // 0 if no port is free.
  int number() const { return number_; }

 private:
  friend int free_port();

  int socket_;
  int number_ = 0;
};

// The number of a port that is reserved until the process ends.
int free_port();

}  // namespace gradwire
