#!/usr/bin/env bash
# Compiles the engine and the targets with counters for libFuzzer, on a stable toolchain and without cargo-fuzz:
#   RUSTC_WRAPPER=$PWD/crate/fuzz/coverage.sh CARGO_TARGET_DIR=target cargo build --manifest-path crate/fuzz/Cargo.toml --bins --config 'profile.dev.package.jerboa.opt-level=2'
#   mkdir -p target/corpus/gguf && target/debug/gguf target/corpus/gguf crate/fuzz/seeds/gguf -max_total_time=1200 -rss_limit_mb=2048 -timeout=20 -max_len=65536
rustc=$1
shift
name=
for ((i = 1; i <= $#; i++)); do
  if [ "${!i}" = --crate-name ]; then next=$((i + 1)) && name=${!next}; fi
done
case "$name" in
  jerboa | safetensors | gguf | mlc | checkpoint | config | tokenizer | template | audio | image)
    # The crate `safetensors` of tests is compiled so too; it does no harm.
    set -- "$@" -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
      -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=4
    ;;
esac
exec "$rustc" "$@"
