#pragma once

namespace gradwire {

// Returns a TCP port that no process listens on at the loopback interface, or 0 if none was found. It is for
// tests of programs that take a port as an argument.
//
// The port is below the range that the system assigns to outgoing connections (from 32768 on, by default).
// Otherwise a connection of a concurrent test could take the port before the program listens on it, or
// between two programs that use it in turn.
int free_port();

}  // namespace gradwire
