# The actions of ./run remote on the other machine. tools/remote.py sends this file through ssh to `bash -s`, after
# lines that set `remote` (the beginning of the user's command) and the arguments: NAME FOLDER ACTION ... Nothing follows
# on the input; it ends when the connection is closed.
#
# FOLDER/.remote/     project   which project the folder is a copy of; without this file it is never written
#                     files     the files that were copied; only these are ever deleted
#                     commit    the commit of .git
#                     copying   exists while a command is copied and started
#                     runs/ID/  command, pid, log, status (written at the end), shown

fail() {
  echo "error: $*" >&2
  exit 3
}

# Prints the state of a run: running, running on HOST, ended STATUS, or killed
state() { # id
  local run=.remote/runs/$1 pid= host=
  [ -s "$run/status" ] || { [ ! -s "$run/pid" ] || read -r pid host _ <"$run/pid"; }
  if [ -s "$run/status" ]; then
    echo "ended $(<"$run/status")"
  elif [ -n "$host" ] && [ "$host" != "$(hostname)" ]; then # another login node: its processes cannot be seen
    echo "running on $host"
  elif [ -n "$pid" ] && ps -o args= -p "$pid" | grep -qF "$1"; then # another process may have this pid by now
    echo running
  elif [ -s "$run/status" ]; then # it has ended since the first check
    echo "ended $(<"$run/status")"
  else
    echo killed
  fi
}

runs() { [ ! -d .remote/runs ] || ls -r .remote/runs; } # the newest first

# Prints number|script of each batch job in SLURM's queue whose script is below a folder, by any path of the folder
batch_jobs() { # folder in this one, with a / at its end; "": this one, and the folders of sweeps that its runs started
  local jobs id path elsewhere=() below=(-e "|$PWD/$1" -e "|$(pwd -P)/$1" -e "|$(realpath -- "${1:-.}")/")
  command -v squeue >/dev/null || return 0
  [ "${1:0:1}" != / ] || below+=(-e "|$1") # also by the path that the sweep has used, which may contain a link
  for id in $([ -n "$1" ] || runs); do
    path=$(sweep "$id")
    [ "${path:0:1}" != / ] || elsewhere+=("$path") below+=(-e "|$path/" -e "|$(realpath -- "$path")/")
  done
  if ! jobs=$(squeue --noheader --user "$(id -u)" --format='%A|%o' 2>&1); then
    # SLURM may be installed without a cluster: then no script was submitted
    [ -n "$(find outputs/ "${elsewhere[@]}" -maxdepth 5 -path '*/.slurm/*.sh' 2>/dev/null | head -n 1)" ] || return 0
    fail "$name:$folder: a sweep was submitted, and its jobs are not known, because squeue has failed: ${jobs##*$'\n'};" \
      "repeat the command later"
  fi
  grep -F "${below[@]}" <<<"$jobs" || :
}

# Prints `attach ID` if this command is running, or has ended and was not shown. Otherwise locks the folder until
# `start` or `release`, and prints a line for each run or job that a change of the code would break.
begin() { # project digest
  local id jobs
  command -v rsync >/dev/null || fail "$name has no rsync: install it there"
  [ ! -L .remote/project ] && [ "$(cat .remote/project 2>/dev/null)" = "$1" ] ||
    fail "$name:$folder: is a copy of another project; choose another folder: ./run remote --folder FOLDER $name ..."
  find .remote -maxdepth 1 -name copying -mmin +60 -exec rmdir {} + # its connection was lost
  mkdir .remote/copying 2>/dev/null || fail "$name:$folder: another ./run remote is copying; repeat the command later." \
    "If there is none: ssh $name rmdir $folder/.remote/copying"
  trap release EXIT # unless the caller gets the last line: the connection may be lost before
  for id in $(runs); do
    case $(state "$id") in
    running*) echo "running $id" ;;
    *) [ ! -e ".remote/runs/$id/shown" ] || continue ;;
    esac
    [ "${id##*-}" != "$2" ] || { echo "attach $id" && return; }
  done
  jobs=$(batch_jobs "") || exit 3
  [ -z "$jobs" ] || echo "running a job in SLURM's queue"
  echo "commit $(cat .remote/commit 2>/dev/null)" && trap - EXIT
}

release() { rmdir .remote/copying 2>/dev/null || :; }

# Marks an empty folder as a copy of the project; fails for other folders without a mark
make() { # project
  if [ ! -e .remote/project ]; then
    [ -z "$(ls -A)" ] || fail "$name:$folder: was not made by ./run remote and is not empty; nothing was changed." \
      "Choose another folder: ./run remote --folder FOLDER $name ..."
    mkdir -p .remote/runs && echo "$1" >.remote/project || fail "$name:$folder: cannot be written"
  fi
}

old() { LC_ALL=C comm -z -23 .remote/files .remote/files.new; } # sorted by bytes

# Deletes the files that were copied before and are not in files.new. Prints `deleted` if there are any. With --dry-run:
# only prints
clear_old() {
  [ -f .remote/files ] || return 0
  old | tr '\0' '\n' | grep -q . || return 0
  echo deleted
  [ "${1:-}" = --dry-run ] || old | xargs -0 rm -f --
}

start() { # id arguments...
  local id=$1 run=.remote/runs/$1 tries=0
  mkdir "$run" || fail "$name:$folder/$run: cannot be made"
  printf '%q ' "${@:2}" >"$run/command"
  : >"$run/log"
  # setsid: in a new session, the command does not get the SIGHUP at the end of the connection. The inner one: `stop`
  # sends SIGTERM to the command's process group, which must not contain the shell that writes the status
  RUN_REMOTE=$remote RUN_REMOTE_HOST=$name setsid bash -c '
    run=.remote/runs/$0
    setsid ./run "$@" >>"$run/log" 2>&1 </dev/null &
    echo "$$ $(hostname) $!" >"$run/pid"
    wait $!
    echo $? >"$run/status.new" && mv "$run/status.new" "$run/status"
  ' "$id" "${@:2}" </dev/null >/dev/null 2>&1 &
  until [ -s "$run/pid" ]; do
    [ $((tries += 1)) -lt 100 ] || fail "$name:$folder/$run: the command has not started"
    sleep 0.1
  done
  release
}

# Prints the log from its beginning until the run ends or the connection is closed
follow() { # id
  local log=.remote/runs/$1/log shown=0 size now
  while :; do
    now=$(state "$1") size=$(wc -c <"$log") # in this order: once the run has ended, the log is complete
    [ "$size" -le "$shown" ] || tail -c "+$((shown + 1))" "$log" | head -c $((size - shown)) || return
    shown=$size
    case $now in running*) ;; *) return ;; esac
    read -r -t 1 _
    [ $? -gt 128 ] || return # not a timeout but the end of the input: the connection is closed
  done
}

# Prints `found PATH` for each directory that the log of a run names (the run's, or its sweep's), or `none` if the
# command should have made one and did not
directories() { # id
  local run=.remote/runs/$1 path found
  found=$({
    sed -n -e 's/, resumed from [^ ,]*$//' -e 's/^run \(.*\)/\1/p' -e 's|^ *\(.*\)/report\.md$|\1|p' "$run/log"
    sweep "$1"
  } | while IFS= read -r path; do
    [ ! -e "${path%/*}/sweep.json" ] || path=${path%/*}
    [ ! -d "$path" ] || echo "found $path"
  done | sort -u)
  if [ -n "$found" ]; then echo "$found"; elif trains "$1"; then echo none; fi
}

# Returns 0 if the command of a run makes a directory: train, without --help, --cfg, ...
trains() { # id
  local word
  eval "set -- $(<".remote/runs/$1/command")" # as `start` has quoted it
  [ "${1:-}" = train ] || return
  for word in "${@:2}"; do case $word in -m | --multirun) ;; -*) return 1 ;; esac done
}

# Prints the directory of a sweep: the log of a run has it on its own line, indented by two spaces
sweep() { # id
  sed -n 's/^  //p' ".remote/runs/$1/log" | while IFS= read -r path; do
    [ ! -e "$path/sweep.json" ] || { echo "$path" && break; }
  done
}

stop() { # id
  local run=.remote/runs/$1 host group jobs= directory
  case $(state "$1") in
  running)
    read -r _ host group <"$run/pid"
    kill -TERM -- "-$group" && echo "stopping $1: SIGTERM was sent; a training run saves and ends with status 75"
    ;;
  running*)
    read -r _ host group <"$run/pid"
    fail "$name: $1 runs on $host, and this is $(hostname): name that host, or log in there: kill -TERM -- -$group"
    ;;
  *) # the command has ended, but a sweep that it submitted may have jobs in the queue
    directory=$(sweep "$1")
    if [ -d "$directory/.slurm" ]; then
      jobs=$(batch_jobs "$directory/.slurm/") || exit
      jobs=$(cut -d '|' -f 1 <<<"$jobs" | sort -u)
    fi
    if [ -n "$jobs" ]; then scancel $jobs && echo "cancelled in SLURM's queue:" $jobs; else echo "$1: $(state "$1")"; fi
    ;;
  esac
}

main() {
  local name=$1 folder=$2 action=$3 id=${4:-}
  echo "$mark" # ignore the lines before this one: a login profile has printed them
  cd || exit
  if [ "$action" = make ]; then mkdir -p -- "$folder" && cd -- "$folder" || fail "$name:$folder: cannot be made"; else
    cd -- "$folder" 2>/dev/null && [ -f .remote/project ] ||
      fail "$name:$folder: ./run remote has copied nothing there; a command does: $remote train ..."
  fi
  case $action in
  attach | fetch | stop | pick | follow | state | directories | shown)
    [ -n "$id" ] || [ "$action" != stop ] || id=$(runs | while read -r one; do case $(state "$one") in running*) echo "$one" ;; esac done | head -n 1)
    id=${id:-$(runs | head -n 1)}
    [ -n "$id" ] || fail "$name:$folder: no command was started there"
    [ -d ".remote/runs/$id" ] || fail "$name:$folder: has no run $id; $remote status lists them"
    ;;
  esac
  case $action in
  make | begin | clear_old | start | release) "$action" "${@:4}" ;;
  pick) echo "$id" ;;
  follow | state | directories | stop) "$action" "$id" ;;
  shown) : >".remote/runs/$id/shown" ;;
  copied) mv .remote/files.new .remote/files && echo "$id" >.remote/commit ;;
  status)
    for id in $(runs); do
      echo "$id  $(state "$id")  ./run $(<".remote/runs/$id/command")"
      directories "$id" | sed -n 's/^found /    /p'
    done
    ;;
  esac
}
main "$@"; exit # on one line, because bash reads the script line by line, and `read` in follow would read the next one
