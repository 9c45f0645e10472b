#pragma once

namespace gradwire {

// From clear_line_on_signals() until keep_line_on_signals(), a SIGINT, SIGTERM or SIGHUP that ends the
// process first clears the line of the terminal `fd` in which the cursor is. Without this the shell's prompt
// would stand behind the moving line.
//
// Signals for which the program has a handler, or which it ignores, are left alone, also those that get a
// handler between the two calls. One terminal at a time; the caller serialises the calls.
void clear_line_on_signals(int fd);
void keep_line_on_signals(int fd);

}  // namespace gradwire
