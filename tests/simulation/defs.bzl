"""What simulations of Gradwire's state machines are built of."""

load("//bazel:defs.bzl", "cc_library", "gradwire_cc_test")

# A test that runs many thousands of schedules is worth an optimised build in every configuration.
OPTIMISED = [
    "-O2",
    "-DNDEBUG",
]

def gradwire_simulation(state_machines, state_machine_deps, deliberate_bug, srcs, hdrs, deps, test_size):
    """A world of simulated nodes that run production code: simulation_test, bugs_test, and the program replay.

    The production sources are built once as they are and once with the switch for deliberate bugs, and the world over
    them likewise: `state_machines`, `world` and the same `_with_bugs`.

    state_machines: the production sources.
    state_machine_deps: what they need.
    deliberate_bug: the target of their switch, which bugs.h names.
    srcs, hdrs, deps: the world's.
    test_size: of simulation_test.
    """
    for suffix, defines in [("", []), ("_with_bugs", ["GRADWIRE_DELIBERATE_BUGS"])]:
        cc_library(
            name = "state_machines" + suffix,
            srcs = state_machines,
            copts = OPTIMISED,
            defines = defines,
            linkstatic = True,
            deps = state_machine_deps + [deliberate_bug, "@system//:absl"],
        )
        cc_library(
            name = "world" + suffix,
            testonly = True,
            srcs = srcs,
            hdrs = hdrs,
            copts = OPTIMISED,
            linkstatic = True,
            deps = deps + [":state_machines" + suffix, "@system//:absl"],
        )
    gradwire_cc_test(
        name = "simulation_test",
        size = test_size,
        srcs = ["simulation_test.cc"],
        copts = OPTIMISED,
        linkstatic = True,
        threads = False,
        deps = [":world", "//tests/simulation:simulation_main"],
    )
    cc_library(
        name = "bugs",
        testonly = True,
        hdrs = ["bugs.h"],
        deps = [deliberate_bug],
    )
    gradwire_cc_test(
        name = "bugs_test",
        size = "medium",
        srcs = ["bugs_test.cc"],
        copts = OPTIMISED,
        linkstatic = True,
        threads = False,
        deps = [":bugs", ":world_with_bugs"],
    )

    # bazel run //...:replay -- --seed=N [--bug=NAME]
    native.cc_binary(
        name = "replay",
        testonly = True,
        srcs = ["replay.cc"],
        copts = OPTIMISED,
        linkstatic = True,
        deps = [":bugs", ":world_with_bugs"],
    )
