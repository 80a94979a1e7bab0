#!/bin/sh
# Runs a Kubernetes Job as the command of `wattune run`: resumes it at the start, suspends it on SIGTERM, ends when it ends.
#
#     wattune run --within 24h --duration 8h --suspend --max-slowdown 0.9 --log-progress -- follow-job.sh JOB [KUBECTL OPTION ...]
#
# The Job exists already, with `spec.suspend: true`. Its pods save a checkpoint on SIGTERM within their
# terminationGracePeriodSeconds, and go on from the newest one. Runs with the rights of whoever starts it: to get, patch
# and watch this Job and its pods, and to read their log. The daemon runs no command and needs no rights on the cluster.
set -eu

if [ $# -lt 1 ]; then
    sed -n '2,8s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
job=$1
shift
pods="batch.kubernetes.io/job-name=$job"
log=""

stop() {
    trap '' TERM INT
    kubectl "$@" patch job "$job" --type=merge -p '{"spec":{"suspend":true}}' >/dev/null
    # The GPU is free once the pods are gone.
    kubectl "$@" wait --for=delete pod --selector "$pods" --timeout=1h >/dev/null
    if [ -n "$log" ]; then kill "$log" 2>/dev/null || true; fi
    exit 143
}
trap 'stop "$@"' TERM INT

kubectl "$@" patch job "$job" --type=merge -p '{"spec":{"suspend":false}}' >/dev/null
# The pods' lines, in which `--log-progress` finds the progress.
kubectl "$@" logs --follow --pod-running-timeout=24h --tail=-1 "job/$job" &
log=$!
while :; do
    # A signal interrupts the wait for a process in the background, but not one in the foreground.
    sleep 5 &
    wait $! || true
    state=$(kubectl "$@" get job "$job" -o 'jsonpath={.status.conditions[?(@.status=="True")].type}') || continue
    case " $state " in
        *" Complete "*) wait "$log" || true; exit 0 ;;
        *" Failed "*) wait "$log" || true; exit 1 ;;
    esac
done
