"""Dependencies that tests of process groups share."""

# The dependencies of tests that run the ranks of a group as threads, over the reference backend.
GROUP_TEST_DEPS = [
    "//base:error",
    "//collectives:backend",
    "//collectives:process_group",
    "//collectives/testing:group",
    "//collectives/testing:local_backend",
    "//store:hash_store",
    "@libtorch",
    "@system//:absl",
]
