#pragma once

namespace gradwire {

// Changes to the directory in which the user called `bazel run`, because paths on the command line are
// relative to it: Bazel starts programs in their runfiles directory. Does nothing in a program that was
// started in another way.
void return_to_users_directory();

}  // namespace gradwire
