#!/bin/bash
# Train on several nodes with Slurm: sbatch --nodes 2 slurm.sh run.yaml trainer.n_gpus_per_node=8
#SBATCH --job-name=agentrl
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
set -euo pipefail

config=$1
shift
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes%%$'\n'*}
# starts Ray on every node, runs the command on the first node, and stops Ray when the command ends
srun ray symmetric-run --address "$head:6379" --min-nodes "$SLURM_JOB_NUM_NODES" -- \
    agentrl train --config "$config" "trainer.nnodes=$SLURM_JOB_NUM_NODES" cluster.address=auto "$@"
