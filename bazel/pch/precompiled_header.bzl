"""Precompiled headers, which shorten the compilation of a file by a third."""

def _impl(ctx):
    toolchain = ctx.attr._cc_toolchain[cc_common.CcToolchainInfo]
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    cpp = ctx.fragments.cpp
    flags = cc_common.get_memory_inefficient_command_line(
        feature_configuration = features,
        action_name = "c++-compile",
        variables = cc_common.create_compile_variables(
            feature_configuration = features,
            cc_toolchain = toolchain,
            user_compile_flags = cpp.copts + cpp.cxxopts + ctx.attr.copts,
            use_pic = True,
        ),
    )
    output = ctx.actions.declare_file(ctx.label.name + ".pch")

    # The result must not depend on the folder of the workspace. Otherwise two checkouts would not share the objects that
    # are compiled with it. So the compiler runs in the root folder, reads standard input, and writes standard output.
    # It also keeps no time stamps of headers. Templates that the headers use are instantiated once, here: otherwise each
    # file that uses the result instantiates them again.
    ctx.actions.run_shell(
        inputs = depset(ctx.files.hdrs + [ctx.file._versions], transitive = [toolchain.all_files]),
        outputs = [output],
        mnemonic = "CppPrecompile",
        progress_message = "Precompiling headers into %s" % output.short_path,
        command = "out=$PWD/$1; shift; headers=$(cat {headers} | sed '/^#pragma once$/d'); cd / && {compiler} \"$@\" -x c++-header -fpch-instantiate-templates -Xclang -fno-pch-timestamp - -o - <<<\"$headers\" >\"$out\"".format(
            headers = " ".join([header.path for header in ctx.files.hdrs]),
            compiler = cc_common.get_tool_for_action(feature_configuration = features, action_name = "c++-compile"),
        ),
        arguments = [output.path] + flags + ["-idirafter" + folder for folder in ctx.attr.includes],
        use_default_shell_env = True,
    )
    return [
        DefaultInfo(files = depset([output])),
        CcInfo(compilation_context = cc_common.create_compilation_context(headers = depset([output]))),
    ]

precompiled_header = rule(
    implementation = _impl,
    doc = "Precompiles headers of the system with the options of the build. Only for clang.",
    attrs = {
        "hdrs": attr.label_list(allow_files = [".h"], doc = "files with the includes", mandatory = True),
        "copts": attr.string_list(doc = "options of the compiler, as in the targets that use the result"),
        "includes": attr.string_list(doc = "absolute folders of headers"),
        # A new version of a package changes its headers, which Bazel does not track.
        "_versions": attr.label(default = "@system//:versions", allow_single_file = True),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
