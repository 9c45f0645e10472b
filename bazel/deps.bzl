"""The repositories that Gradwire needs, for Gradwire's own workspace and for those that use it."""

load("//third_party/cuda:cuda.bzl", "cuda_repository")
load("//third_party/etcd:etcd.bzl", "etcd_repository")
load("//third_party/libtorch:libtorch.bzl", "libtorch_repository")
load("//third_party/pytorch:pytorch.bzl", "pytorch_repository")
load("//third_party/system:system.bzl", "system_repository")

# Debian's bazel-bootstrap has these, and downloads nothing.
_DEBIAN_RULES = "/usr/share/bazel/rules/"

def _bundled_impl(ctx):
    for entry in ctx.path(ctx.attr.workspace).dirname.readdir():
        ctx.symlink(entry, entry.basename)

# A folder of Gradwire as a repository. local_repository takes its path relative to the workspace that uses Gradwire.
_bundled_repository = repository_rule(
    implementation = _bundled_impl,
    attrs = {"workspace": attr.label(mandatory = True, doc = "the WORKSPACE file of the folder")},
    local = True,
)

def gradwire_dependencies(libraries = {}, debian_bazel = True):
    """Declares the repositories that Gradwire needs, except those that the workspace has declared before.

    So a workspace with its own libtorch declares a repository named libtorch first, with a target
    @libtorch//:libtorch.

    Args:
      libraries: labels to use in place of Debian's libraries and programs, by the names of the targets in
        third_party/system/system.BUILD. For example, {"protobuf": "@com_google_protobuf//:protobuf", "protoc":
        "@com_google_protobuf//:protoc"}. What uses the same library must use the same one: replace "protobuf",
        "protoc", "grpc++" and "grpc_cpp_plugin" together.
      debian_bazel: whether Bazel is Debian's bazel-bootstrap, which downloads nothing. False: Bazel's own defaults
        provide rules_cc, rules_java, rules_proto and remote_coverage_tools.
    """
    declared = native.existing_rules()
    if "system" not in declared:
        system_repository(name = "system", libraries = libraries)
    elif libraries:
        fail("gradwire_dependencies: libraries was given, but the workspace has declared a repository named system")
    for name, rule in [
        ("libtorch", libtorch_repository),
        ("cuda", cuda_repository),
        ("etcd", etcd_repository),
        ("pytorch", pytorch_repository),
    ]:
        if name not in declared:
            rule(name = name)
    if not debian_bazel:
        return
    for name in ["rules_cc", "remote_coverage_tools"]:
        if name not in declared:
            _bundled_repository(name = name, workspace = Label("//third_party/%s:WORKSPACE" % name))
    for name, folder in [("rules_java", "java"), ("rules_proto", "proto")]:
        if name not in declared:
            native.local_repository(name = name, path = _DEBIAN_RULES + folder)
