# Tab completion of ./run in bash, and in zsh after bashcompinit; source this file once, for all projects made from this
# one. It does not create an environment or import torch: without an environment it completes only commands and files.

_complete_run() {
  local root=${COMP_WORDS[0]%/*} line=${COMP_LINE:0:$COMP_POINT} cur found command=${COMP_WORDS[1]} arguments before=
  root=${root/#\~/$HOME}
  cur=${line##* }
  COMPREPLY=()
  [ -f "$root/src/train.py" ] && [ -f "$root/conf/train.yaml" ] || return 0 # a `run` of another program: complete files
  arguments=${line#*run*"$command"}
  if [ "$COMP_CWORD" = 1 ]; then
    found=$(sed -n 's/^  \([a-z0-9]*\)  .*/\1/p' "$root/run")
  else
    case $command:$cur in
    train:-*) found="-m --cfg --help" ;;
    train:* | tune:[!-]* | tune: | env:[!-]* | env:) # by Hydra, which does not accept our short form sweep=NAME
      arguments=$(printf '%s' "$arguments" | sed 's/ sweep=[^ ]* / /g')
      found=$(COMP_LINE="train.py $arguments" "$root/.ci/python" "$root/src/train.py" --shell-completion query=bash)
      ;;
    h5:*)
      set -- $arguments
      case $1:$cur in
      pack:-* | inspect:-* | repack:-*) found=$("$root/.ci/python" "$root/src/h5.py" "$1" --help | _options_of_help) ;;
      pack:* | inspect:* | repack:*) [ "$1" != "$cur" ] || found="pack inspect repack" ;;
      *) found="pack inspect repack" ;;
      esac
      ;;
    docs:*) found="build serve" ;;
    fork:-* | schema:-* | remote:-*) found=$("$root/.ci/python" "$root/tools/$command.py" --help | _options_of_help) ;;
    *:-*) [ ! -f "$root/src/$command.py" ] || found=$("$root/.ci/python" "$root/src/$command.py" --help | _options_of_help) ;;
    esac
  fi 2>/dev/null </dev/null
  COMPREPLY=($(compgen -W "$found" -- "$cur"))
  case ${#COMPREPLY[@]}:${COMPREPLY[0]} in 1:*[=./]) compopt -o nospace 2>/dev/null ;; esac
  # bash replaces only the text after the last =, so remove the text before it from the words
  case $COMP_WORDBREAKS:$cur in *=*:*=*) before=${cur%=*}= ;; esac
  COMPREPLY=("${COMPREPLY[@]#"$before"}")
}

_options_of_help() {
  grep -oE -- '(^|[ [])--[a-z][a-z-]*' | tr -d ' [' | sort -u
}

complete -o default -F _complete_run run
