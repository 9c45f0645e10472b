"""Build rules for the simulations of Gradwire's state machines."""

load("//bazel:defs.bzl", "OPTIMISED", "cc_library", "gradwire_cc_test")

def _sources_with_bugs_impl(ctx):
    folder = ctx.label.name + "/"
    table = ctx.actions.declare_file(folder + "all_bugs.cc")
    copies = [ctx.actions.declare_file(folder + source.short_path.lstrip("./")) for source in ctx.files.srcs]
    arguments = ctx.actions.args()
    arguments.add_all([ctx.file._tool, ctx.file.bugs, table])
    for source, copy in zip(ctx.files.srcs, copies):
        arguments.add_joined([source, copy], join_with = "=")
    ctx.actions.run(
        executable = "python3",
        arguments = [arguments],
        inputs = ctx.files.srcs + [ctx.file.bugs, ctx.file._tool],
        outputs = [table] + copies,
        mnemonic = "SourcesWithBugs",
        progress_message = "Building deliberate bugs into %s" % ctx.label,
        use_default_shell_env = True,
    )
    return [DefaultInfo(files = depset([table] + copies))]

# Makes copies of source files with the deliberate bugs of a list built in, and the file that names the bugs
# (with_bugs.py).
_sources_with_bugs = rule(
    implementation = _sources_with_bugs_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cc"]),
        "bugs": attr.label(allow_single_file = [".txt"], mandatory = True),
        "_tool": attr.label(allow_single_file = True, default = "//tests/simulation/harness:with_bugs"),
    },
)

# A simulation_test runs many thousands of schedules, so every configuration compiles it with optimisation. The sanitizers
# have nothing to find in it that they do not find in the tests of the state machines, and would run it much longer.
def gradwire_simulation(state_machines, state_machine_deps, srcs, hdrs, deps, test_size):
    """Defines a simulator: simulation_test, bugs_test, and the program replay.

    A simulator is a world of simulated nodes that run production code. The library `world` contains the production
    sources unchanged (`state_machines`). The library `world_with_bugs` is compiled from copies of the production
    sources and of the world's sources, into which the bugs of bugs.txt are built. Each library defines simulator()
    (simulator.h).

    state_machines: the production sources. A label that ends in "_headers" is a target of headers.
    state_machine_deps: the dependencies of the production sources.
    srcs, hdrs, deps: the sources, headers and dependencies of the world.
    test_size: the size of simulation_test.
    """
    cc_library(
        name = "state_machines",
        srcs = state_machines,
        copts = OPTIMISED,
        linkstatic = True,
        deps = state_machine_deps + ["@system//:absl"],
    )
    cc_library(
        name = "world",
        testonly = True,
        srcs = srcs,
        hdrs = hdrs,
        copts = OPTIMISED,
        linkstatic = True,
        # The harness calls simulator(), which the world defines.
        alwayslink = True,
        deps = deps + [":state_machines", "@system//:absl"],
    )
    sources = state_machines + srcs
    others = [each for each in sources if each.endswith(("_headers", ".inc"))]
    _sources_with_bugs(
        name = "sources_with_bugs",
        srcs = [each for each in sources if each not in others],
        bugs = "bugs.txt",
    )
    cc_library(
        name = "world_with_bugs",
        testonly = True,
        srcs = [":sources_with_bugs"] + others,
        hdrs = hdrs,
        copts = OPTIMISED,
        linkstatic = True,
        # The harness calls simulator(), which the world defines.
        alwayslink = True,
        deps = deps + [each for each in state_machine_deps if each not in deps] +
               ["//tests/simulation/harness:bug", "@system//:absl"],
    )
    gradwire_cc_test(
        name = "simulation_test",
        size = test_size,
        srcs = ["simulation_test.cc"],
        copts = OPTIMISED,
        linkstatic = True,
        sanitizers = False,
        threads = False,
        deps = [":world", "//tests/simulation/harness:simulation_main"],
    )
    gradwire_cc_test(
        name = "bugs_test",
        size = "medium",
        srcs = ["//tests/simulation/harness:bugs_test.cc"],
        copts = OPTIMISED,
        linkstatic = True,
        sanitizers = False,
        threads = False,
        deps = [
            ":world_with_bugs",
            "//tests/simulation/harness",
            "//tests/simulation/harness:bug",
            "@system//:absl",
        ],
    )

    # bazel run //...:replay -- --seed=N [--bug=NAME] [--search=COUNT]
    native.cc_binary(
        name = "replay",
        testonly = True,
        srcs = ["//tests/simulation/harness:replay.cc"],
        copts = OPTIMISED,
        linkstatic = True,
        deps = [
            ":world_with_bugs",
            "//tests/simulation/harness",
            "//tests/simulation/harness:bug",
            "@system//:absl",
        ],
    )
