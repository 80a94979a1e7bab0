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

# Returns whether the API server says that there is no such Job; false while it does not answer.
is_deleted() {
    name=$(kubectl "$@" get job "$job" --ignore-not-found -o name) && [ -z "$name" ]
}

finish() {
    if [ -n "$log" ]; then kill "$log" 2>/dev/null || true; fi
    exit "$1"
}

# Whatever fails is tried again: an exit says that the Job is suspended and its GPU free.
stop() {
    trap '' TERM INT
    until kubectl "$@" patch job "$job" --type=merge -p '{"spec":{"suspend":true}}' >/dev/null; do
        if is_deleted "$@"; then finish 1; fi
        sleep 5
    done
    # The GPU is free once the pods are gone.
    until kubectl "$@" wait --for=delete pod --selector "$pods" --timeout=1h >/dev/null; do sleep 5; done
    finish 143
}
command -v kubectl >/dev/null || { echo "kubectl is not installed" >&2; exit 127; }
trap 'stop "$@"' TERM INT

# Tried again, too: an exit here would leave the Job suspended for ever or, if only the answer was lost, running alone.
# Without the right to change the Job, each attempt would fail.
until error=$(kubectl "$@" patch job "$job" --type=merge -p '{"spec":{"suspend":false}}' 2>&1 >/dev/null); do
    echo "$error" >&2
    case "$error" in *"(Forbidden)"*) finish 1 ;; esac
    if is_deleted "$@"; then echo "there is no Job $job" >&2; finish 1; fi
    # A signal interrupts the wait for a process in the background, but not one in the foreground.
    sleep 5 &
    wait $! || true
done
# The pods' lines, in which `--log-progress` finds the progress.
kubectl "$@" logs --follow --pod-running-timeout=24h --tail=-1 "job/$job" &
log=$!
while :; do
    sleep 5 &
    wait $! || true
    # Only the answer about a deleted Job is empty, since the Job's name comes first.
    state=$(kubectl "$@" get job "$job" --ignore-not-found \
        -o 'jsonpath={.metadata.name} {.status.conditions[?(@.status=="True")].type}') || continue
    case " $state " in
        "  ") echo "the Job $job was deleted" >&2; finish 1 ;;
        *" Complete "*) wait "$log" || true; exit 0 ;;
        *" Failed "*) wait "$log" || true; exit 1 ;;
    esac
done
