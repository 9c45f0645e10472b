"""A rule that provides the headers of some targets as runfiles, for a test that compiles code itself."""

def _headers_of_impl(ctx):
    headers = []
    for dep in ctx.attr.deps:
        for header in dep[CcInfo].compilation_context.headers.to_list():
            # Skip headers of other repositories: the compiler finds them in the system.
            if not header.short_path.startswith("../"):
                headers.append(header)
    return [DefaultInfo(runfiles = ctx.runfiles(files = headers))]

headers_of = rule(
    implementation = _headers_of_impl,
    doc = "Provides the headers of this workspace that `deps` need, directly or indirectly, generated ones included.",
    attrs = {"deps": attr.label_list(providers = [CcInfo], mandatory = True)},
)
