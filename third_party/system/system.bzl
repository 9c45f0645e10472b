"""Finds the libraries and programs of Debian's packages, or those that a workspace gives in their place."""

_LIBRARIES_BZL = '''"""The libraries and programs that the workspace gives in place of Debian's."""

_GIVEN = {given}

def library(name, **kwargs):
    """A cc_library, or an alias of the target that the workspace gives in its place."""
    if name in _GIVEN:
        native.alias(name = name, actual = _GIVEN[name])
    else:
        native.cc_library(name = name, **kwargs)

def program(name, path):
    """A program, or an alias of the target that the workspace gives in its place."""
    native.alias(name = name, actual = _GIVEN.get(name, path))
'''

def _impl(ctx):
    ctx.symlink("/usr/bin", "bin")
    ctx.symlink("/usr/lib", "lib")

    # For what is made of their headers. Without dpkg the file says nothing.
    versions = ctx.execute(["dpkg-query", "--show"] + ["lib%s-dev" % name for name in ["absl", "gmock", "gtest", "protobuf", "c6", "stdc++-12"]])
    ctx.file("versions", versions.stdout, executable = False)
    ctx.file("libraries.bzl", _LIBRARIES_BZL.format(given = repr(ctx.attr.libraries)))
    ctx.symlink(ctx.attr._build_file, "BUILD.bazel")

system_repository = repository_rule(
    implementation = _impl,
    attrs = {
        "libraries": attr.string_dict(doc = "labels by the names of targets in system.BUILD"),
        "_build_file": attr.label(default = "//third_party/system:system.BUILD", allow_single_file = True),
    },
    local = True,
)
