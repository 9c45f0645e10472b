#pragma once

namespace gradwire {

// For tests of programs that must be told a port: one of the loopback interface that nobody listens on. Below
// those that the system gives to connections (from 32768 on unless it is set up otherwise), so that no
// connection of a test that runs beside takes it before it is listened on, or between two servers. 0 if none
// was found.
int free_port();

}  // namespace gradwire
