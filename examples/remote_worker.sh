#!/bin/sh
# A remote worker with curl and jq. It runs one job at a time, each with your own program.
#
#   SCHEDULER_TOKEN=js_… ./remote_worker.sh http://127.0.0.1:8000/api ADDON COMMAND [ARGUMENT…]
#
# The program gets the payload on its standard input, and JOB_ID, JOB_TYPE, ATTEMPT, FENCE and CHECKPOINT in its
# environment. Exit code 0 is DONE, 77 is SKIPPED, any other is FAILED. Its standard output is the result; the end of
# its standard error is the error of a failure. A stop request sends it SIGTERM; SIGTERM here hands the job back.

[ $# -ge 3 ] && [ -n "${SCHEDULER_TOKEN:-}" ] || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
url=${1%/} addon=$2
shift 2
queue=$url/system/scheduler/queue leases=$url/system/scheduler/lease
worker=${WORKER_ID:-$(hostname)-$$} poll_sec=${POLL_SEC:-1}
tmp_dir=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp_dir"' EXIT
stopping='' pid='' timeout_sec=10
trap 'stopping=1; [ -z "$pid" ] || kill -TERM "$pid" 2>/dev/null' TERM INT

log() { echo "$(date +%H:%M:%S) $*" >&2; }

# request NAME METHOD URL [BODY]: write the response to $tmp_dir/NAME and its status to $status; 000: no response.
request() {
    name=$1 method=$2 address=$3
    printf '%s' "${4:-}" >"$tmp_dir/$name.body"
    [ $# -lt 4 ] || address="$address --data-binary @$tmp_dir/$name.body"
    # shellcheck disable=SC2086 # $address may contain an option
    status=$(curl --silent --max-time "$timeout_sec" --output "$tmp_dir/$name" --write-out '%{http_code}' \
        --request "$method" --header "Authorization: Bearer $SCHEDULER_TOKEN" \
        --header 'Content-Type: application/json' $address)
}

# request_until_answered …: repeat a request until there is a response; every request is idempotent.
request_until_answered() {
    for pause in 0.1 1 2 3 4 5 6 7; do
        request "$@"
        case $status in 000 | 429 | 5??) sleep "$pause" ;; *) return 0 ;; esac
    done
    log "no response from $2 $3 (status $status)"
    return 1
}

read_field() { jq -r "$2 // empty" "$tmp_dir/$1"; }

# keep_lease: send heartbeats until the lease is lost, or may be; a stop request ends the program.
keep_lease() {
    trap 'kill $! 2>/dev/null; exit' TERM
    timeout_sec=$beat_sec missed=0
    while sleep "$beat_sec" & wait $!; do
        request beat POST "$leases/$lease/heartbeat" '{}'
        case $status in
        200) mode=$(read_field beat 'if .cancel_requested then .cancel_mode else empty end') ;;
        404 | 409) mode=LOST ;;
        *) mode='' missed=$((missed + 1)) ;; # no response: the next heartbeat may succeed
        esac
        [ "$status" != 200 ] || missed=0
        [ "$missed" -lt "$max_missed" ] || mode=LOST # stop before another worker can start the job
        [ -n "$mode" ] || continue
        echo "$mode" >"$tmp_dir/stop"
        kill -TERM "$pid" 2>/dev/null
        [ "$mode" != LOST ] || return
    done
}

# report STATE: send the outcome of the program with its output.
report() {
    head -c 500000 "$tmp_dir/out" >"$tmp_dir/result"
    tail -c 20000 "$tmp_dir/err" >"$tmp_dir/error"
    body=$(jq -n --arg lease_id "$lease" --arg state "$1" --argjson exit_code "$code" --rawfile error "$tmp_dir/error" \
        --rawfile out "$tmp_dir/result" '{$lease_id, $state, $exit_code, $error,
        artifacts: (if $out == "" then {} else {result: ($out | try fromjson catch .)} end)}')
    request_until_answered complete POST "$queue/jobs/$job/complete" "$body" && log "job $job: $1 ($status)"
}

run() {
    lease=$(read_field start .lease_id) beat_sec=$(read_field start .heartbeat_sec)
    # A heartbeat and the wait before it may take two intervals.
    max_missed=$(read_field start '.lease_sec / .heartbeat_sec / 2 | floor')
    jq -c .payload "$tmp_dir/start" >"$tmp_dir/in"
    rm -f "$tmp_dir/stop"
    JOB_ID=$job JOB_TYPE=$type ATTEMPT=$(read_field start .attempt) FENCE=$(read_field start .fence) \
        CHECKPOINT=$(jq -c .checkpoint "$tmp_dir/start") "$@" <"$tmp_dir/in" >"$tmp_dir/out" 2>"$tmp_dir/err" &
    pid=$!
    keep_lease &
    keeper=$!
    wait "$pid"
    code=$?
    while kill -0 "$pid" 2>/dev/null; do # a signal to this script interrupts `wait`, not the program
        wait "$pid"
        code=$?
    done
    pid=''
    kill "$keeper" 2>/dev/null
    wait "$keeper" 2>/dev/null
    stop=$(cat "$tmp_dir/stop" 2>/dev/null)
    case $stop/$code in
    LOST/*) log "job $job: the lease is lost, nothing is reported" ;;
    */0) report DONE ;;
    */77) report SKIPPED ;;
    CANCEL/*) report CANCELED ;;
    PAUSE/*) report PAUSED ;;
    *) if [ -n "$stopping" ]; then
        request_until_answered release POST "$leases/$lease/release" '{"hand_back": true}' &&
            log "job $job: handed back"
    else
        report FAILED
    fi ;;
    esac
}

identity=$(jq -n --arg worker_id "$worker" --argjson pid $$ --arg host "$(hostname)" '{$worker_id, $pid, $host}')
addon=$(jq -rn --arg addon "$addon" '$addon | @uri')
log "worker $worker started"
while [ -z "$stopping" ]; do
    request poll GET "$queue/dispatchable?addon_id=$addon&limit=1"
    [ -z "$stopping" ] || break
    job=''
    case $status in
    200) job=$(read_field poll '.items[0].job_id') ;;
    000) log "no response from $url" ;;
    *) log "polling failed: $status $(read_field poll .detail)" ;;
    esac
    if [ -z "$job" ]; then
        sleep "$poll_sec"
        continue
    fi
    type=$(read_field poll '.items[0].job_type')
    request_until_answered start POST "$queue/jobs/$job/start" "$identity" || continue
    case $status in
    200) run "$@" ;;
    404 | 409) [ "$(read_field start .code)" != slot_busy ] || sleep "$poll_sec" ;; # another worker has started it
    *) log "job $job cannot be started: $(read_field start .detail)"; sleep "$poll_sec" ;;
    esac
done
log "worker $worker stopped"
