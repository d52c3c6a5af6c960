#!/bin/sh
# Builds the Node SDK in sdks/node. Where node, npm or npm's packages cannot be had, it says so loudly and does not fail; code
# that does not compile fails. The first argument is the Python of .venv, whose protoc generates the contract.
set -eu
export LC_ALL=C
python=$1
cd "$(dirname "$0")/../sdks/node"

skip() { printf '\n!!!! %s\n!!!! SKIPPED: the Node SDK, and its tests.\n\n' "$1" >&2; exit 0; }

command -v node >/dev/null 2>&1 || skip "node is not here."
command -v npm >/dev/null 2>&1 || skip "npm is not here."
node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' || skip "node is $(node --version), and 20 is needed."
if [ ! -e node_modules/.package-lock.json ] || [ package-lock.json -nt node_modules/.package-lock.json ]; then
  npm ci --no-audit --no-fund --loglevel=error --fetch-retries=1 --fetch-retry-mintimeout=1000 --fetch-retry-maxtimeout=5000 || skip "npm cannot get the packages of sdks/node."
fi
rm -rf src/gen dist
"$python" ../../tools/stubs.py node --out src/gen
npm run --silent build
npm run --silent check
# What it was built of, for tests: they do not test a build of something else.
cat src/*.ts ../../protos/agentreach/v1/*.proto | "$python" -c \
  'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())' > dist/sources.sha256
