"""The headers that code using some targets is compiled with, as runfiles."""

def _headers_of_impl(ctx):
    headers = []
    for dep in ctx.attr.deps:
        for header in dep[CcInfo].compilation_context.headers.to_list():
            # The compiler finds those of other repositories where the system has them.
            if not header.short_path.startswith("../"):
                headers.append(header)
    return [DefaultInfo(runfiles = ctx.runfiles(files = headers))]

headers_of = rule(
    implementation = _headers_of_impl,
    doc = "Brings the workspace's own headers, generated ones too, that a user of `deps` includes directly or not.",
    attrs = {"deps": attr.label_list(providers = [CcInfo], mandatory = True)},
)
