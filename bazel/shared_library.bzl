"""A shared library for programs that are not built with Bazel."""

# A path into the builder's own folders is wrong in a file that is installed elsewhere.
_BUILDERS_PATH = "-Wl,-rpath,"

def _whole(ctx, toolchain, features, library):
    if not library.static_library and not library.pic_static_library:
        return library
    return cc_common.create_library_to_link(
        actions = ctx.actions,
        feature_configuration = features,
        cc_toolchain = toolchain,
        static_library = library.static_library,
        pic_static_library = library.pic_static_library,
        alwayslink = True,
    )

def _is_shared(library):
    return not library.static_library and not library.pic_static_library and library.dynamic_library

# Flags that link shared libraries without the run path that Bazel adds for them. A library that only another one of them
# needs is left out.
def _shared_flags(libraries):
    if not libraries:
        return []
    return ["-Wl,--push-state,--as-needed"] + [each.path for each in libraries] + ["-Wl,--pop-state"]

def _whole_libraries_impl(ctx):
    toolchain = ctx.attr._cc_toolchain[cc_common.CcToolchainInfo]
    features = cc_common.configure_features(ctx = ctx, cc_toolchain = toolchain)
    linker_inputs = []
    for given in cc_common.merge_cc_infos(
        cc_infos = [dep[CcInfo] for dep in ctx.attr.deps],
    ).linking_context.linker_inputs.to_list():
        flags = [flag for flag in given.user_link_flags if not flag.startswith(_BUILDERS_PATH)]
        shared = [each.dynamic_library for each in given.libraries if _is_shared(each)]
        linker_inputs.append(cc_common.create_linker_input(
            owner = given.owner,
            libraries = depset([_whole(ctx, toolchain, features, each) for each in given.libraries if not _is_shared(each)]),
            user_link_flags = depset(flags + _shared_flags(shared)),
            additional_inputs = depset(given.additional_inputs + shared),
        ))
    return [CcInfo(linking_context = cc_common.create_linking_context(
        linker_inputs = depset(linker_inputs, order = "topological"),
    ))]

# The libraries of `deps`, direct or not, for a shared library: all their objects are linked. Otherwise the linker takes
# only those that another one refers to, but a program may use any of them. Flags for the run path are left out.
whole_libraries = rule(
    implementation = _whole_libraries_impl,
    attrs = {
        "deps": attr.label_list(providers = [CcInfo]),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
    fragments = ["cpp"],
    provides = [CcInfo],
)
