#!/usr/bin/env bash
# A replacement of Slurm's srun, with the features that the templates use. Starts the command once for each node of the
# job, all on this machine, with the variables that Slurm sets in a step. Exits with the largest exit code. Refuses all
# other options.
set -euo pipefail
shopt -s extglob

while [[ ${1:-} == -* ]]; do
  case $1 in
    --no-kill | --kill-on-bad-exit=[01] | --wait=+([0-9])) ;;
    *) echo "srun: unrecognized option '$1'" >&2; exit 1 ;;
  esac
  shift
done
[[ ${SRUN_CPUS_PER_TASK:-} == "$SLURM_CPUS_PER_TASK" ]] ||
  { echo "srun: SRUN_CPUS_PER_TASK is not set to SLURM_CPUS_PER_TASK" >&2; exit 1; }

export SLURM_STEP_ID=0 SLURM_STEPID=0 SLURM_STEP_NODELIST=$SLURM_JOB_NODELIST SLURM_LOCALID=0
export SLURM_STEP_NUM_NODES=$SLURM_JOB_NUM_NODES SLURM_STEP_NUM_TASKS=$SLURM_JOB_NUM_NODES
export SLURM_STEP_TASKS_PER_NODE="1(x$SLURM_JOB_NUM_NODES)"
export SLURM_NTASKS=$SLURM_JOB_NUM_NODES SLURM_NPROCS=$SLURM_JOB_NUM_NODES
pids=()
for ((node = 0; node < SLURM_JOB_NUM_NODES; ++node)); do
  # Every launcher finds the list's first host on this machine. Only the first node may host the store, so set is_host.
  is_host=$([[ $node == 0 ]] && echo true || echo false)
  PET_RDZV_CONF=${PET_RDZV_CONF:+$PET_RDZV_CONF,}is_host=$is_host \
    SLURM_NODEID=$node SLURM_PROCID=$node SLURM_GTIDS=$node "$@" &
  pids+=($!)
done
largest=0
for pid in "${pids[@]}"; do
  code=0
  wait "$pid" || code=$?
  ((code <= largest)) || largest=$code
done
exit "$largest"
