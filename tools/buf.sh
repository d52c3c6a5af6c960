#!/bin/sh
# Runs buf with the given arguments: an installed one, else the pinned release through npx, else says loudly that it did not.

if command -v buf >/dev/null 2>&1; then
  exec buf "$@"
elif command -v npx >/dev/null 2>&1; then
  exec npx --yes "@bufbuild/buf@${BUF_VERSION:?}" "$@"
fi
printf '\n!!!! Neither buf nor npx is here.\n!!!! SKIPPED: buf %s\n\n' "$*" >&2
