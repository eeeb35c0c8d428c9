/** Completion scripts of the command line. */

/** A command with the names of its flags. */
export interface CompletedCommand {
  name: string;
  about: string;
  flags: string[];
}

/** The script of a shell; undefined for an unknown one. */
export function completionScript(shell: string | undefined, commands: CompletedCommand[]): string | undefined {
  const scripts: Record<string, (commands: CompletedCommand[]) => string> = { bash, zsh, fish };
  return Object.hasOwn(scripts, shell ?? "") ? scripts[shell!]!(commands) : undefined;
}

const quoted = (text: string): string => `'${text.replaceAll("'", "'\\''")}'`;

function bash(commands: CompletedCommand[]): string {
  const cases = commands.map(({ name, flags }) => `    ${name}) words="${flags.map((flag) => `--${flag}`).join(" ")}" ;;`);
  return `# eval "$(jerboa completion bash)"
_jerboa() {
  local word=\${COMP_WORDS[COMP_CWORD]} words=
  if [ "$COMP_CWORD" = 1 ]; then
    words="${commands.map(({ name }) => name).join(" ")}"
  else case \${COMP_WORDS[1]} in
${cases.join("\n")}
  esac; fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
  [[ $word == -* ]] || COMPREPLY+=($(compgen -f -- "$word"))
}
complete -o filenames -F _jerboa jerboa`;
}

function zsh(commands: CompletedCommand[]): string {
  const names = commands.map(({ name, about }) => `    ${quoted(`${name}:${about}`)}`);
  const cases = commands.map(({ name, flags }) => `    ${name}) _values flag ${flags.map((flag) => `--${flag}`).join(" ")} ;;`);
  return `#compdef jerboa
_jerboa() {
  local -a commands=(
${names.join("\n")}
  )
  if (( CURRENT == 2 )); then _describe command commands; return; fi
  if [[ $words[CURRENT] != -* ]]; then _files; return; fi
  case $words[2] in
${cases.join("\n")}
  esac
}
compdef _jerboa jerboa`;
}

function fish(commands: CompletedCommand[]): string {
  return commands.flatMap(({ name, about, flags }) => [
    `complete -c jerboa -n __fish_use_subcommand -a ${name} -d ${quoted(about)}`,
    ...flags.map((flag) => `complete -c jerboa -n '__fish_seen_subcommand_from ${name}' -l ${flag}`),
  ]).join("\n");
}
