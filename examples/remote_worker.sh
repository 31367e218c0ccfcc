#!/bin/sh
# A remote worker in curl and jq: one job at a time, each run by a program of yours.
#
#   SCHEDULER_TOKEN=js_… ./remote_worker.sh http://127.0.0.1:8000/api ADDON COMMAND [ARGUMENT…]
#
# The program finds the payload on its standard input and JOB_ID, JOB_TYPE, ATTEMPT, FENCE and CHECKPOINT in its
# environment. Exit code 0 is DONE, 77 is SKIPPED, anything else FAILED. What it prints is the result; the end of what it
# prints to standard error says why it failed. Asked to stop, it gets SIGTERM. SIGTERM to this script hands the job back.

[ $# -ge 3 ] && [ -n "${SCHEDULER_TOKEN:-}" ] || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
url=${1%/} addon=$2
shift 2
queue=$url/system/scheduler/queue leases=$url/system/scheduler/lease
worker=${WORKER_ID:-$(hostname)-$$} poll_sec=${POLL_SEC:-1}
home=$(mktemp -d) || exit 1
trap 'rm -rf "$home"' EXIT
leaving='' pid='' patience_sec=10
trap 'leaving=1; [ -z "$pid" ] || kill -TERM "$pid" 2>/dev/null' TERM INT

say() { echo "$(date +%H:%M:%S) $*" >&2; }

# ask NAME METHOD URL [BODY]: the answer is in $home/NAME, its status in $status; 000 if there was none.
ask() {
    name=$1 method=$2 address=$3
    printf '%s' "${4:-}" >"$home/$name.body"
    [ $# -lt 4 ] || address="$address --data-binary @$home/$name.body"
    # shellcheck disable=SC2086 # the address may carry an option
    status=$(curl --silent --max-time "$patience_sec" --output "$home/$name" --write-out '%{http_code}' --request "$method" \
        --header "Authorization: Bearer $SCHEDULER_TOKEN" --header 'Content-Type: application/json' $address)
}

# call …: the same until there is an answer. Every call may be repeated, so one whose answer got lost is.
call() {
    for pause in 0.1 1 2 3 4 5 6 7; do
        ask "$@"
        case $status in 000 | 429 | 5??) sleep "$pause" ;; *) return 0 ;; esac
    done
    say "no answer from $2 $3 (status $status)"
    return 1
}

got() { jq -r "$2 // empty" "$home/$1"; }

# keep: beats until the lease is lost, or may be; a stop request ends the program.
keep() {
    trap 'kill $! 2>/dev/null; exit' TERM
    patience_sec=$beat_sec missed=0
    while sleep "$beat_sec" & wait $!; do
        ask beat POST "$leases/$lease/heartbeat" '{}'
        case $status in
        200) mode=$(got beat 'if .cancel_requested then .cancel_mode else empty end') ;;
        404 | 409) mode=LOST ;;
        *) mode='' missed=$((missed + 1)) ;; # no answer: the next beat may get through
        esac
        [ "$status" != 200 ] || missed=0
        [ "$missed" -lt "$most_missed" ] || mode=LOST # somebody else may have the job soon: stop before that
        [ -n "$mode" ] || continue
        echo "$mode" >"$home/stop"
        kill -TERM "$pid" 2>/dev/null
        [ "$mode" != LOST ] || return
    done
}

# report STATE: how the program ended, with what it printed.
report() {
    head -c 500000 "$home/out" >"$home/result"
    tail -c 20000 "$home/err" >"$home/error"
    body=$(jq -n --arg lease_id "$lease" --arg state "$1" --argjson exit_code "$code" --rawfile error "$home/error" \
        --rawfile out "$home/result" '{$lease_id, $state, $exit_code, $error,
        artifacts: (if $out == "" then {} else {result: ($out | try fromjson catch .)} end)}')
    call complete POST "$queue/jobs/$job/complete" "$body" && say "job $job: $1 ($status)"
}

run() {
    lease=$(got start .lease_id) beat_sec=$(got start .heartbeat_sec)
    most_missed=$(got start '.lease_sec / .heartbeat_sec / 2 | floor') # a beat and its wait take two of these
    jq -c .payload "$home/start" >"$home/in"
    rm -f "$home/stop"
    JOB_ID=$job JOB_TYPE=$type ATTEMPT=$(got start .attempt) FENCE=$(got start .fence) \
        CHECKPOINT=$(jq -c .checkpoint "$home/start") "$@" <"$home/in" >"$home/out" 2>"$home/err" &
    pid=$!
    keep &
    keeper=$!
    wait "$pid"
    code=$?
    while kill -0 "$pid" 2>/dev/null; do # a signal to us ends the waiting, not the program
        wait "$pid"
        code=$?
    done
    pid=''
    kill "$keeper" 2>/dev/null
    wait "$keeper" 2>/dev/null
    stop=$(cat "$home/stop" 2>/dev/null)
    case $stop/$code in
    LOST/*) say "job $job: the lease is lost, nothing is reported" ;;
    */0) report DONE ;;
    */77) report SKIPPED ;;
    CANCEL/*) report CANCELED ;;
    PAUSE/*) report PAUSED ;;
    *) if [ -n "$leaving" ]; then
        call release POST "$leases/$lease/release" '{"hand_back": true}' && say "job $job: handed back"
    else
        report FAILED
    fi ;;
    esac
}

who=$(jq -n --arg worker_id "$worker" --argjson pid $$ --arg host "$(hostname)" '{$worker_id, $pid, $host}')
addon=$(jq -rn --arg addon "$addon" '$addon | @uri')
say "worker $worker started"
while [ -z "$leaving" ]; do
    ask poll GET "$queue/dispatchable?addon_id=$addon&limit=1"
    [ -z "$leaving" ] || break
    job=''
    case $status in
    200) job=$(got poll '.items[0].job_id') ;;
    000) say "no answer from $url" ;;
    *) say "cannot ask for jobs: $status $(got poll .detail)" ;;
    esac
    if [ -z "$job" ]; then
        sleep "$poll_sec"
        continue
    fi
    type=$(got poll '.items[0].job_type')
    call start POST "$queue/jobs/$job/start" "$who" || continue
    case $status in
    200) run "$@" ;;
    404 | 409) [ "$(got start .code)" != slot_busy ] || sleep "$poll_sec" ;; # another worker was faster
    *) say "job $job cannot be started: $(got start .detail)"; sleep "$poll_sec" ;;
    esac
done
say left
