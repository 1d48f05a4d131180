#!/usr/bin/env bash
# Runs copies of a command that divide their work (sharing.py) on one GPU, within a time limit.
#
#     bash benchmarks/side_by_side.sh COPIES SECONDS LOGS COMMAND...
#
# Processes share a GPU only through CUDA's multi-process service, which is started if it is
# installed. At the limit all copies are stopped; what they have written by then stays.
set -u
copies=$1 seconds=$2 logs=$3
shift 3
mkdir -p "$logs"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
service=nvidia-cuda-mps-control
command -v $service >/dev/null && $service -d
for ((copy = 0; copy < copies; copy++)); do
    timeout --kill-after=10 "$seconds" "$@" >"$logs/$copy.log" 2>&1 &
done
wait
command -v $service >/dev/null && echo quit | $service
grep -h FAILED "$logs"/*.log
tail -qn 1 "$logs"/*.log
