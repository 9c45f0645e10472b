#!/usr/bin/env python3
"""coming_from_pytorch_test.py [PAGE]: checks docs/coming_from_pytorch.md against the source tree that contains it.

The page has tables with the columns "PyTorch" and "Gradwire". The test checks that

  1. each identifier in the C++ of the columns "Gradwire" and "note" occurs in the code of a public header, or of a
     header of this tree that a public header includes. Comments and string literals of headers do not count;
  2. each option of the launcher is in its table of options, and each environment variable is in the sources;
  3. each name in PYTORCH has a row in a section of its module, and each name in the column "PyTorch" is in PYTORCH;
  4. a name whose row says "not there" is not in a header, unless OTHER_MEANING says that it means something else there;
  5. the C++ program of the page is tests/readme/hello.cc, which another test runs.

The test reads the source tree itself, so Bazel runs it each time.
"""
import os
import re
import subprocess
import sys

PAGE = os.path.realpath(sys.argv[1] if len(sys.argv) > 1 else
                        os.path.join(os.path.dirname(os.path.realpath(__file__)), "../../docs/coming_from_pytorch.md"))
ROOT = os.path.dirname(os.path.dirname(PAGE))  # In the runfiles the page is a link into the source tree.

# The public names of PyTorch 2.11, by module: __all__ and the documented names, parameters included.
PYTORCH = {
    "torch.distributed.rpc": """
        is_available init_rpc rpc_sync rpc_async remote timeout shutdown get_worker_info WorkerInfo WorkerInfo.name
        WorkerInfo.id functions.async_execution BackendType BackendType.TENSORPIPE register_backend backend_registered
        construct_rpc_backend_options init_backend BackendValue RpcBackendOptions TensorPipeRpcBackendOptions
        RpcBackendOptions.rpc_timeout RpcBackendOptions.init_method TensorPipeRpcBackendOptions.num_worker_threads
        TensorPipeRpcBackendOptions.device_maps TensorPipeRpcBackendOptions.devices
        TensorPipeRpcBackendOptions.set_device_map TensorPipeRpcBackendOptions.set_devices RRef RRef.is_owner
        RRef.owner RRef.owner_name RRef.confirmed_by_owner RRef.to_here RRef.local_value RRef.rpc_sync RRef.rpc_async
        RRef.remote RRef.backward get_rpc_timeout RpcAgent TensorPipeAgent RpcAgent.get_worker_info
        RpcAgent.get_worker_infos RpcAgent.shutdown RpcAgent.join RpcAgent.sync RpcAgent.get_debug_info
        RpcAgent.get_metrics constants.DEFAULT_RPC_TIMEOUT_SEC constants.DEFAULT_INIT_METHOD
        constants.DEFAULT_NUM_WORKER_THREADS constants.DEFAULT_SHUTDOWN_TIMEOUT constants.UNSET_RPC_TIMEOUT
        constants.DEFAULT_PROCESS_GROUP_TIMEOUT AllGatherStates method_factory new_method PyRRef RemoteProfilerManager
        enable_gil_profiling""",
    "torch.futures": """
        Future Future.wait Future.value Future.done Future.then Future.add_done_callback Future.set_result
        Future.set_exception collect_all wait_all""",
    "torch.distributed.autograd": """
        is_available context backward retain_graph get_gradients DistAutogradContext""",
    "torch.distributed.optim": """
        DistributedOptimizer DistributedOptimizer.step as_functional_optim PostLocalSGDOptimizer
        ZeroRedundancyOptimizer""",
    "torch.distributed.nn": """
        RemoteModule RemoteModule.forward RemoteModule.forward_async RemoteModule.remote_parameters
        RemoteModule.get_module_rref RemoteModule.init_from_module_rref RemoteModule.train RemoteModule.eval
        RemoteModule.state_dict RemoteModule.load_state_dict RemoteModule.parameters RemoteModule.to
        RemoteModule.apply RemoteModule.register_forward_hook functional.broadcast functional.gather
        functional.scatter functional.reduce functional.reduce_scatter functional.all_gather functional.all_to_all
        functional.all_to_all_single functional.all_reduce""",
    "torch.distributed": """
        is_available is_initialized is_mpi_available is_nccl_available is_backend_available is_gloo_available
        is_ucc_available is_xccl_available is_torchelastic_launched init_process_group init_method world_size rank
        group_name store pg_options device_id timeout destroy_process_group get_rank get_world_size get_backend
        get_backend_config BackendConfig get_default_backend_for_device Backend Backend.GLOO Backend.NCCL Backend.MPI
        Backend.UCC Backend.XCCL Backend.FAKE Backend.UNDEFINED Backend.register_backend ProcessGroup
        ProcessGroup.rank ProcessGroup.size ProcessGroup.name ProcessGroup.group_name ProcessGroup.group_desc
        ProcessGroup.bound_device_id ProcessGroup.boxed ProcessGroup.unbox GroupName ProcessGroup.abort
        ProcessGroup.shutdown
        ProcessGroup.set_timeout ProcessGroup.get_group_store ProcessGroup.merge_remote_group ProcessGroup.split_group
        group GroupMember new_group use_local_synchronization group_desc new_subgroups new_subgroups_by_enumeration
        split_group shrink_group get_process_group_ranks get_global_rank get_group_rank get_pg_count
        get_node_local_rank default_pg_timeout ProcessGroupGloo ProcessGroupNCCL ProcessGroupMPI ProcessGroupUCC
        ProcessGroupXCCL DebugLevel get_debug_level set_debug_level set_debug_level_from_env breakpoint DistError
        DistBackendError DistNetworkError DistStoreError QueueEmptyError broadcast all_reduce reduce all_gather
        all_gather_into_tensor gather scatter reduce_scatter reduce_scatter_tensor all_to_all all_to_all_single
        barrier monitored_barrier async_op group_src group_dst all_reduce_coalesced all_gather_coalesced
        ProcessGroup.allreduce_coalesced ProcessGroup.allgather_coalesced ProcessGroup.reduce_scatter_tensor_coalesced
        ProcessGroup.allgather_into_tensor_coalesced _coalescing_manager ProcessGroup.allreduce ProcessGroup.broadcast
        ProcessGroup.reduce ProcessGroup.allgather ProcessGroup.gather ProcessGroup.scatter
        ProcessGroup.reduce_scatter ProcessGroup.alltoall ProcessGroup.alltoall_base ProcessGroup.barrier
        ProcessGroup.send ProcessGroup.recv wait_all_ranks output_split_sizes input_split_sizes broadcast_object_list
        all_gather_object gather_object scatter_object_list send_object_list recv_object_list AllreduceOptions
        AllreduceCoalescedOptions AllToAllOptions BarrierOptions BroadcastOptions GatherOptions ReduceOptions
        ReduceScatterOptions ScatterOptions supports_complex send recv isend irecv tag ProcessGroup.recv_anysource
        P2POp batch_isend_irecv ReduceOp ReduceOp.SUM ReduceOp.PRODUCT ReduceOp.MIN ReduceOp.MAX ReduceOp.BAND
        ReduceOp.BOR ReduceOp.BXOR ReduceOp.AVG ReduceOp.PREMUL_SUM ReduceOp.UNUSED reduce_op Work Work.wait
        Work.is_completed Work.is_success Work.exception Work.source_rank Work.get_future Work.synchronize
        Work.block_current_stream Work.result Work.boxed Work.unbox Store Store.set Store.get Store.add
        Store.compare_set Store.wait Store.delete_key Store.num_keys Store.set_timeout Store.timeout Store.check
        Store.append Store.multi_get Store.multi_set Store.has_extended_api Store.queue_push Store.queue_pop
        Store.queue_len Store.list_keys Store.clone TCPStore TCPStore.host TCPStore.port is_master wait_for_workers
        multi_tenant master_listen_fd use_libuv TCPStore.libuvBackend FileStore FileStore.path HashStore PrefixStore
        PrefixStore.underlying_store rendezvous register_rendezvous_handler""",
    "torch.distributed.device_mesh": """
        init_device_mesh DeviceMesh DeviceMesh.get_group DeviceMesh.get_all_groups DeviceMesh.from_group
        DeviceMesh.size DeviceMesh.ndim DeviceMesh.shape DeviceMesh.mesh DeviceMesh.mesh_dim_names
        DeviceMesh.device_type DeviceMesh.get_rank DeviceMesh.get_local_rank DeviceMesh.get_coordinate""",
    "torch.nn.parallel": """
        DistributedDataParallel DataParallel data_parallel replicate scatter gather parallel_apply""",
    "torch.nn.parallel.DistributedDataParallel": """
        DistributedDataParallel module device_ids output_device dim broadcast_buffers init_sync process_group
        bucket_cap_mb find_unused_parameters check_reduction gradient_as_bucket_view static_graph
        delay_all_reduce_named_params param_to_hook_all_reduce mixed_precision device_mesh
        skip_all_reduce_unused_params bucket_cap_mb_list forward no_sync join join_hook join_device join_process_group
        register_comm_hook scatter gather to_kwargs will_sync_module_buffers train Reducer Logger BuiltinCommHookType
        GradBucket GradBucket.buffer GradBucket.gradients GradBucket.parameters GradBucket.index GradBucket.is_last
        GradBucket.set_buffer Logger.set_construction_data_and_log Logger.set_error_and_log Logger.set_runtime_stats_and_log
        Reducer.get_backward_stats Reducer.prepare_for_backward Reducer.prepare_for_forward Reducer.set_logger""",
    "torch.distributed.algorithms": """
        Join Join.notify_join_context Joinable JoinHook ddp_comm_hooks.register_ddp_comm_hook
        ddp_comm_hooks.DDPCommHookType ddp_comm_hooks.allreduce_hook ddp_comm_hooks.noop_hook
        ddp_comm_hooks.fp16_compress_hook ddp_comm_hooks.bf16_compress_hook ddp_comm_hooks.fp16_compress_wrapper
        ddp_comm_hooks.bf16_compress_wrapper ddp_comm_hooks.powerSGD_hook ddp_comm_hooks.batched_powerSGD_hook
        ddp_comm_hooks.post_localSGD_hook ddp_comm_hooks.PowerSGDState ddp_comm_hooks.PostLocalSGDState
        ddp_comm_hooks.hook_with_zero_step ddp_comm_hooks.hook_with_zero_step_interleaved
        ddp_comm_hooks.quantization_pertensor_hook ddp_comm_hooks.quantization_perchannel_hook
        model_averaging.ModelAverager model_averaging.PeriodicModelAverager model_averaging.HierarchicalModelAverager
        model_averaging.average_parameters model_averaging.average_parameters_or_parameter_groups
        model_averaging.get_params_to_average""",
    "torch.utils.data.distributed": """
        DistributedSampler dataset num_replicas rank shuffle seed drop_last set_epoch __iter__ __len__""",
    "torchrun": """
        --nnodes --nproc-per-node --rdzv-backend --rdzv-endpoint --rdzv-id --rdzv-conf --standalone --max-restarts
        --monitor-interval --start-method --role -m --module --no-python --run-path --log-dir -r --redirects -t --tee
        --local-ranks-filter --node-rank --master-addr --master-port --local-addr --use-env --duplicate-stdout-filters
        --duplicate-stderr-filters --event-log-handler --logs-specs --numa-binding --signals-to-handle
        --virtual-local-rank""",
    "Environment variables": """
        RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_NAME ROLE_RANK ROLE_WORLD_SIZE
        MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS
        TORCHELASTIC_USE_AGENT_STORE TORCHELASTIC_ERROR_FILE OMP_NUM_THREADS PET_NNODES PYTHON_EXEC
        TORCH_NCCL_ASYNC_ERROR_HANDLING TORCH_DISTRIBUTED_DEBUG TORCH_CPP_LOG_LEVEL GLOO_SOCKET_IFNAME
        TP_SOCKET_IFNAME TORCHELASTIC_ENABLE_FILE_TIMER TORCHELASTIC_TIMER_FILE TORCHELASTIC_HEALTH_CHECK_PORT
        TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE TORCHELASTIC_SIGNALS_TO_HANDLE""",
    "torch.distributed.elastic": """
        multiprocessing.errors.record multiprocessing.errors.ErrorHandler multiprocessing.errors.get_error_handler
        multiprocessing.errors.ChildFailedError multiprocessing.errors.ProcessFailure multiprocessing.SignalException
        multiprocessing.start_processes multiprocessing.PContext rendezvous.RendezvousHandler
        rendezvous.RendezvousParameters rendezvous.RendezvousInfo rendezvous.RendezvousStoreInfo
        rendezvous.RendezvousHandlerRegistry rendezvous.RendezvousHandlerCreator
        rendezvous.rendezvous_handler_registry rendezvous.RendezvousError rendezvous.RendezvousClosedError
        rendezvous.RendezvousTimeoutError rendezvous.RendezvousConnectionError rendezvous.RendezvousStateError
        rendezvous.RendezvousGracefulExitError agent.server.WorkerSpec agent.server.WorkerGroup
        agent.server.ElasticAgent agent.server.SimpleElasticAgent agent.server.LocalElasticAgent timer.expires
        timer.configure events.record metrics.put_metric agent.server.Worker agent.server.WorkerState
        agent.server.RunResult events.record_rdzv_event events.construct_and_record_rdzv_event metrics.publish_metric
        metrics.configure metrics.getStream metrics.prof metrics.profile metrics.get_elapsed_time_ms metrics.MetricData
        metrics.MetricHandler metrics.ConsoleMetricHandler metrics.NullMetricHandler metrics.MetricStream
        metrics.MetricsConfig multiprocessing.MultiprocessContext multiprocessing.SubprocessContext
        multiprocessing.RunProcsResult multiprocessing.ProcessFailure multiprocessing.to_map multiprocessing.Std
        multiprocessing.LogsDest multiprocessing.LogsSpecs multiprocessing.DefaultLogsSpecs timer.TimerClient
        timer.TimerServer timer.TimerRequest timer.RequestQueue""",
}
# PyTorch's names that a row calls "not there" although a header has the word, and what the word means there. A name
# that ends with a dot stands for all names that begin with it.
OTHER_MEANING = {
    "torch.distributed.rpc is_available": "the function of process groups",
    "torch.distributed.autograd is_available": "the function of process groups",
    "torch.distributed.nn RemoteModule.parameters": "arguments of functions",
    "torch.distributed.nn RemoteModule.to": "arguments of functions",
    "torch.distributed.nn RemoteModule.apply": "a method of the implementation",
    "torch.distributed.nn functional.": "collectives, which do not record gradients",
    "torch.distributed Backend.register_backend": "the function of rpc",
    "torch.distributed ProcessGroup.set_timeout": "the method of Store",
    "torch.distributed Work.result": "the method of Future",
    "torch.nn.parallel data_parallel": "the namespace",
    "torch.nn.parallel scatter": "the collective",
    "torch.nn.parallel gather": "the collective",
    "torch.distributed.elastic agent.server.Worker": "the one that makes a call",
    "torch.distributed.elastic agent.server.WorkerState": "the state of a worker of the agent",
    "torch.nn.parallel.DistributedDataParallel dim": "a dimension of a mesh",
    "torch.nn.parallel.DistributedDataParallel scatter": "the collective",
    "torch.nn.parallel.DistributedDataParallel gather": "the collective",
    "torch.distributed.elastic events.record": "a method of the implementation",
}
# The names that the page declares for its lines of C++.
EXAMPLES = set("""
    x out loss weight list outs scale ParameterServer pull NetImpl parameters ps rref options agent network parts
    later promise net model sampler group work store object objects factory error""".split())
# Variables that the lines declare themselves, and words of C++, that no header has.
LOCALS = set("""
    co_return other scale_later mine who w there median all same everyone of_world local limit sender sum existed met
    indices twice by""".split())
STATUS_CODES = set("""
    Unavailable DeadlineExceeded Cancelled Aborted NotFound InvalidArgument FailedPrecondition ResourceExhausted
    PermissionDenied Unauthenticated Unknown Internal AlreadyExists Unimplemented""".split())
# Words in the notes that are neither C++ nor PyTorch.
WORDS = set("""
    launch try_ cpu gpu gloo nccl c10d etcd etcd-v2 numactl True main _multigpu recurse [default0]: file://
    torch.distributed.launch""".split())

LITERAL = r'"(?:\\.|[^"\\])*"' + r"|'(?:\\.|[^'\\])*'"
COMMENT = r"//[^\n]*|/\*.*?\*/"


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def code_of(text):
    """The text of C++ with empty literals and without comments."""
    return re.sub(f"({LITERAL})|{COMMENT}", lambda match: '""' if match.group(1) else " ", text, flags=re.DOTALL)


def public_headers():
    return subprocess.run([sys.executable, os.path.join(ROOT, "tools/docs"), "--list"], check=True, text=True,
                          stdout=subprocess.PIPE).stdout.split()


def words_of_headers(public):
    """The identifiers in the code of public headers and of those that they include, each with one of the headers."""
    headers = list(public)
    for header in public:
        headers += [path for path in re.findall(r'#include "gradwire/([^"]+)"', read(header))
                    if path not in headers and not path.endswith(".pb.h")]
    words = {}
    for header in headers:
        for word in re.findall(r"[A-Za-z_]\w*", code_of(read(header))):
            words.setdefault(word, header)
    return words


def literals_of_sources():
    """The string literals of the library and the launcher that could be names of options or of variables."""
    found = set()
    for folder in ("base", "collectives", "rpc", "store", "tools", "transport"):
        for where, _, names in os.walk(os.path.join(ROOT, folder)):
            for name in names:
                if name.endswith((".cc", ".h")) and not name.endswith("_test.cc"):
                    found |= set(re.findall(r'"(\w+)"', read(os.path.join(where, name))))
    return found


def other_meaning(module, name):
    """The entry of OTHER_MEANING for a name, or None."""
    for entry in (f"{module} {name}", f"{module} {name.split('.')[0]}."):
        if entry in OTHER_MEANING:
            return entry
    return None


class Row:
    def __init__(self, line, heading, cells):
        self.line, self.heading, self.cells = line, heading, cells
        self.module = (re.findall("`([^`]+)`", heading) or [heading])[0]

    def __str__(self):
        first = next(iter(self.cells.values()))
        return f"line {self.line}, section \"{self.heading}\", row \"{first[:70]}\""

    def names(self, column):
        return re.findall("`([^`]+)`", self.cells.get(column, ""))


def rows_of(text):
    """The rows of all tables with a column "Gradwire"."""
    rows, heading, columns, fenced = [], "", None, False
    for number, line in enumerate(text.splitlines(), 1):
        fenced ^= line.startswith("```")
        if fenced:
            continue
        if line.startswith("#"):
            heading = line.lstrip("# ")
        if not line.startswith("|"):
            columns = None
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if columns is None:
            columns = cells
        elif "Gradwire" in columns and not set(line) <= set("|- "):
            if len(cells) != len(columns):
                raise SystemExit(f"FAIL: line {number}: got {len(cells)} columns, expected {len(columns)}")
            rows.append(Row(number, heading, dict(zip(columns, cells))))
    return rows


class Checker:
    def __init__(self, public, words, options, literals):
        self.public, self.words, self.options, self.literals = public, words, options, literals
        self.pytorch = {name for names in PYTORCH.values() for name in names.split()}

    def has_variable(self, name):
        return name in self.literals or (name.startswith("PET_") and name[4:].lower() in self.options)

    def errors_in_target(self, label):
        folder, _, name = label[2:].partition(":")
        path = os.path.join(folder, "BUILD.bazel")
        name = name or os.path.basename(folder)
        if not os.path.exists(os.path.join(ROOT, path)) or f'name = "{name}"' not in read(path):
            return [f"target {label} not found"]
        return []

    def errors_in(self, span):
        """The errors of a piece of text between backquotes."""
        if span in WORDS | STATUS_CODES:
            return []
        if span.startswith("//"):
            return self.errors_in_target(span)
        if re.fullmatch(r"(gradwire/)?[\w/]+\.h", span):
            return [] if span.replace("gradwire/", "") in self.public else [f"{span} is not a public header"]
        if re.fullmatch(r"[a-z]\w*(/\w+)+", span):
            return [] if os.path.exists(os.path.join(ROOT, span)) else [f"{span} not found"]
        if re.match(r"--?\w", span):
            options = [word.split("=")[0].lstrip("-").replace("-", "_") for word in span.split() if word[0] == "-"]
            return [f"the launcher does not have the option --{name}" for name in options if name not in self.options]
        if re.fullmatch(r"[A-Z][A-Z0-9_]+", span) and span not in self.words:
            return [] if self.has_variable(span) else [f"no header has the macro, and no source the variable, {span}"]
        code = re.sub(r"\b(?:std|absl|at|torch|c10)(?:::\w+)+", " ", code_of(span))
        identifiers = re.findall(r"[A-Za-z_]\w*", re.sub(r"\b\d[\w.]*", " ", code))
        return [f"no public header has the identifier {name}" for name in identifiers
                if name not in self.words and name not in EXAMPLES | LOCALS]

    def errors_of_row(self, row):
        errors = [f"{what} (column Gradwire)" for span in row.names("Gradwire") for what in self.errors_in(span)]
        for span in row.names("note"):
            if span not in self.pytorch:
                errors += [f"{what} (column note)" for what in self.errors_in(span)]
        if "note" not in row.cells:
            return errors
        if row.cells["Gradwire"] == "not there":
            errors += [what for name in row.names("PyTorch") for what in self.errors_of_gap(row.module, name)]
        elif not row.names("Gradwire"):
            errors.append(f"got \"{row.cells['Gradwire']}\", expected C++ between backquotes, or: not there")
        return errors

    def errors_of_gap(self, module, name):
        """Whether a name that the page calls "not there" exists after all."""
        if module == "torchrun":
            found = name.lstrip("-").replace("-", "_") in self.options and "the launcher's table of options"
        elif module == "Environment variables":
            found = self.has_variable(name) and "a source"
        else:
            last = name.split(".")[-1]
            found = self.words.get(last) if other_meaning(module, name) is None else None
        return [f"the row says \"not there\", but {found} has {name}; write its C++, or explain the word in "
                "OTHER_MEANING of this test"] if found else []


def errors_of_names(rows):
    """Names of PyTorch without a row, and names in the page that are not in PYTORCH."""
    errors, named = [], {}
    for row in rows:
        if "note" not in row.cells:
            continue
        if row.module not in PYTORCH:
            errors.append(f"{row}: PYTORCH of this test does not have the module {row.module}")
            continue
        for name in row.names("PyTorch"):
            if name not in PYTORCH[row.module].split():
                errors.append(f"{row}: PYTORCH of this test does not have {row.module} {name}")
            if (row.module, name) in named:
                errors.append(f"{row}: {name} has a row already, in line {named[row.module, name]}")
            named[row.module, name] = row.line
    for module, names in PYTORCH.items():
        errors += [f"{module} {name} has no row in the tables" for name in names.split() if (module, name) not in named]
    return errors


def errors_of_text(text, checker):
    """The C++ program, the declarations of the examples, and the lists of names that PyTorch does not have."""
    errors = []
    blocks = [block.split("\n```")[0] for block in text.split("```cpp\n")[1:]]
    if len(blocks) != 2:
        return [f"got {len(blocks)} blocks of C++, expected 2: the program, and the names of the examples"]
    if blocks[0].strip() != read("tests/readme/hello.cc").strip():
        errors.append("the program of the page differs from tests/readme/hello.cc")
    declared = set(re.findall(r"[A-Za-z_]\w*", code_of(blocks[1])))
    errors += [f"the block of example names does not declare {name}" for name in sorted(EXAMPLES - declared)]
    errors += [f"the block of example names: {what}" for what in checker.errors_in(" " + blocks[1])]
    for paragraph in re.findall(r"^Not in PyTorch[^:\n]*: (.*?)\n\n", text, re.MULTILINE | re.DOTALL):
        errors += [f"the line \"Not in PyTorch: {paragraph[:40]}...\": {what}"
                   for span in re.findall("`([^`]+)`", paragraph) for what in checker.errors_in(span)]
    return errors


def self_check(checker):
    """Checks that good rows are accepted and bad ones refused."""
    def errors(pytorch, gradwire, module="torch.distributed"):
        return checker.errors_of_row(Row(1, f"`{module}`", {"PyTorch": pytorch, "Gradwire": gradwire, "note": ""}))

    for good in ("`all_reduce(x, ReduceOp::kAvg);`", "`--nnodes=2:4`", "`GRADWIRE_LOG_LEVEL`", "`rpc/rpc.h`"):
        assert not errors("`all_reduce`", good), errors("`all_reduce`", good)
    for bad in ("`all_reduce_twice(x);`", "`{.no_such_field = 1}`", "`--no_such_option`", "`NO_SUCH_VARIABLE`",
                "`rpc/no_such_header.h`", "`GRADWIRE_RPC_NO_SUCH_MACRO`", "all_reduce", "not there"):
        assert errors("`all_reduce`", bad), bad
    assert errors("`--nnodes`", "not there", "torchrun")


def main():
    public = public_headers()
    table = read("tools/launch/options/option_table.cc")
    options = set(re.findall(r'^    \{"(\w+)", ', table.split("kReplacements")[0], re.MULTILINE))
    words = words_of_headers(public)
    text = read(PAGE)
    rows = rows_of(text)
    if len(public) < 20 or len(options) < 20 or len(words) < 500 or len(rows) < 200:
        sys.exit(f"FAIL: found {len(public)} headers, {len(options)} options, {len(words)} words and {len(rows)} rows: "
                 "check the paths and the format of the tables")
    checker = Checker(public, words, options, literals_of_sources())
    self_check(checker)
    failures = [f"{row}: {what}" for row in rows for what in checker.errors_of_row(row)]
    failures += errors_of_names(rows) + errors_of_text(text, checker)
    needed = {other_meaning(row.module, name) for row in rows if row.cells["Gradwire"] == "not there"
              for name in row.names("PyTorch")}
    failures += [f"OTHER_MEANING has \"{entry}\", which no row needs" for entry in OTHER_MEANING if entry not in needed]
    if failures:
        sys.exit("\n".join(["FAIL: docs/coming_from_pytorch.md and the source tree differ:"] + failures))
    gaps = sum(row.cells["Gradwire"] == "not there" for row in rows)
    print(f"{len(rows)} rows, {gaps} of them \"not there\"")


if __name__ == "__main__":
    main()
